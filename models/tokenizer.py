"""Text to token numbers and back, from a tokenizer.json or from the byte-level BPE vocabulary inside a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from headrace.models.errors import UserError

MAX_FILE_BYTES = 1 << 26

_CONTROL, _USER_DEFINED = 3, 4


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# llama.cpp's name of the pre-tokenizer -> the same splits here. "smollm" splits off every digit, then words as GPT-2 does.
PRE_TOKENIZERS = {
    "gpt-2": _gpt2,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()]),
}


class Tokenizer:
    """Raw text <-> token numbers. BOS is put first only where the tokenizer's own file says so (`add_bos`)."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        self.vocab = backend.get_vocab_size(with_added_tokens=True)
        self.add_bos = bool(backend.encode("").ids)

    def encode(self, text: str) -> list[int]:
        """Token numbers of raw text; no chat template. UserError for text that came from bytes that are not UTF-8."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"text is not valid Unicode at character {error.start}: {text[error.start]!r}; allowed is UTF-8") from None
        return self._backend.encode(text).ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token numbers; BOS, EOS and other special tokens are left out unless `skip_special` is False."""
        return self._backend.decode([int(token) for token in tokens], skip_special_tokens=skip_special)

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json."""
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        if len(raw) > MAX_FILE_BYTES:
            raise UserError(f"{path}: is larger than the {MAX_FILE_BYTES} bytes allowed for a tokenizer")
        try:
            return cls(tokenizers.Tokenizer.from_buffer(raw))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path}: is not a tokenizer that can be read: {error}") from None

    @classmethod
    def from_bpe(
        cls, *, source: str, pre: str, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], bos: int | None
    ) -> Tokenizer:
        """Byte-level BPE from a GGUF's lists. `bos`: the token put first, None for none. `source` names the file in messages."""
        if pre not in PRE_TOKENIZERS:
            raise UserError(
                f"{source}: tokenizer.ggml.pre = {pre!r} is not supported; allowed: {', '.join(sorted(PRE_TOKENIZERS))}"
            )
        vocab = {token: number for number, token in enumerate(tokens)}
        if len(vocab) != len(tokens):
            raise UserError(f"{source}: tokenizer.ggml.tokens holds the same token twice; allowed is each once")
        if len(types) != len(tokens):
            raise UserError(f"{source}: tokenizer.ggml.token_type has {len(types)} entries; allowed is {len(tokens)}, one a token")
        pairs = []
        for number, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            if left not in vocab or right not in vocab or left + right not in vocab:
                raise UserError(f"{source}: tokenizer.ggml.merges[{number}] = {merge[:40]!r} does not join two tokens to a third")
            pairs.append((left, right))
        if bos is not None and not 0 <= bos < len(tokens):
            raise UserError(f"{source}: tokenizer.ggml.bos_token_id = {bos}; allowed is 0 to {len(tokens) - 1}")
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
        backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
        backend.decoder = decoders.ByteLevel()
        special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL and t]
        own = [t for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED and t]
        backend.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in special])
        backend.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in own])
        if bos is not None:
            backend.post_processor = processors.TemplateProcessing(
                single=[tokens[bos], "$A"],
                special_tokens=[(tokens[bos], bos)],
            )
        return cls(backend)
