"""Text to token numbers and back, with the tokenizer of a tokenizer.json or of a GGUF file (`gguf_tokenizer`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tokenizers

from headrace.models.errors import UserError
from headrace.models.formats.safetensors_file import parse_object
from headrace.models.formats.tokenizer_json import checked_tokenizer, read_tokenizer_json


@contextmanager
def library_errors(source: str, what: str) -> Iterator[None]:
    """What the tokenizers library raises inside ends in a UserError: `source`: `what`: reason."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # bare Exception, and a panic of its Rust code, which is none
        raise UserError(f"{source}: {what}: {str(error)[:200]}") from None


class Tokenizer:
    """Raw text <-> token numbers. BOS is put first only where the tokenizer's own file says so (`add_bos`).

    `vocab` is one more than the highest token number; `source` names the file in messages.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, source: str):
        self._backend, self._source = backend, source
        self.vocab = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.add_bos = bool(self.encode(""))

    def encode(self, text: str) -> list[int]:
        """Token numbers of raw text; no chat template. UserError for text that came from bytes that are not UTF-8."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"text is not valid Unicode at character {error.start}: {text[error.start]!r}; allowed is UTF-8") from None
        with library_errors(self._source, "its tokenizer cannot encode this text"):
            return self._backend.encode(text).ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token numbers; BOS, EOS and other special tokens are left out unless `skip_special` is False."""
        with library_errors(self._source, "its tokenizer cannot decode these tokens"):
            return self._backend.decode([int(token) for token in tokens], skip_special_tokens=skip_special)

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json."""
        raw = read_tokenizer_json(path)
        with library_errors(str(path), "is not a tokenizer that can be read"):
            return cls(tokenizers.Tokenizer.from_buffer(raw), source=str(path))

    @classmethod
    def from_bytes(cls, raw: bytes, source: str) -> Tokenizer:
        """Read the content of a tokenizer.json. `source` names it in messages."""
        checked = checked_tokenizer(parse_object(raw, source), source)
        with library_errors(source, "is not a tokenizer that can be read"):
            return cls(tokenizers.Tokenizer.from_buffer(checked), source=source)

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        return self._backend.to_str()
