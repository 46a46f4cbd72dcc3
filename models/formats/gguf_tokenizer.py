"""The tokenizer inside a GGUF file: byte-level BPE with merges ("gpt2"), or SentencePiece's BPE with scores ("llama").

Which fields there are, and their defaults: docs/gguf.md of ggml and src/llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headrace.models.errors import UserError
from headrace.models.formats.gguf_file import GgufFile
from headrace.models.formats.tokenizer import Tokenizer, library_errors

MAX_TOKEN_CHARACTERS = 512
MAX_CHARACTERS = 1 << 22
"""Of all tokens together: each is tried as so many merges. Gemma's 262,144 tokens have 1.5 million."""
MAX_MERGES = 1 << 21
"""Gemma's scores make 514,847."""

# Types of tokens (`tokenizer.ggml.token_type`).
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
SPACE = "\u2581"
"""What SentencePiece writes for a space."""


@dataclass(frozen=True, kw_only=True)
class _Splits:
    """How a byte-level BPE splits text before it merges: the name's entry in `PRE_TOKENIZERS`.

    `whole_words`: a split that is a token is taken as it is, whatever the merges say.
    """

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    whole_words: bool = False
    add_bos: bool = False


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _splits_of(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """The splits of Llama 3 and Qwen2, which differ in how many digits stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


# llama.cpp's name of the splits -> the same here (`LLAMA_VOCAB_PRE_TYPE_*` of llama-vocab.cpp, and the published tokenizer.json
# of GPT-2, SmolLM, Llama 3 and Qwen2, which normalises to NFC). "smollm" splits off every digit, then words as GPT-2 does.
PRE_TOKENIZERS = {
    "gpt-2": _Splits(pre_tokenizer=_gpt2),
    "llama-bpe": _Splits(pre_tokenizer=_splits_of(r"\p{N}{1,3}"), whole_words=True, add_bos=True),
    "qwen2": _Splits(pre_tokenizer=_splits_of(r"\p{N}"), normalizer=normalizers.NFC),
    "smollm": _Splits(pre_tokenizer=lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])),
}


def read_tokenizer(file: GgufFile, vocab: int) -> Tokenizer | None:
    """The embedded tokenizer, of `vocab` tokens; None when the file has none. UserError naming file, field, value and what is allowed."""
    if "tokenizer.ggml.model" not in file.fields:
        return None
    kind = file.field("tokenizer.ggml.model", str)
    if kind not in ("gpt2", "llama"):
        raise UserError(f"{file.source}: tokenizer.ggml.model = {kind[:40]!r}; allowed are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)")
    tokens = file.field("tokenizer.ggml.tokens", list)
    if len(tokens) != vocab:
        raise UserError(f"{file.source}: tokenizer.ggml.tokens has {len(tokens)} entries; allowed is {vocab}, the embedding's rows")
    _check_tokens(file, tokens)
    types = file.field("tokenizer.ggml.token_type", np.ndarray, np.ones(len(tokens), np.int32)).tolist()
    if len(types) != len(tokens):
        raise UserError(f"{file.source}: tokenizer.ggml.token_type has {len(types)} entries; allowed is {len(tokens)}, one a token")
    if file.field("tokenizer.ggml.add_eos_token", bool, False):
        raise UserError(f"{file.source}: tokenizer.ggml.add_eos_token = True; allowed is False: a prompt must not end with EOS")
    with library_errors(file.source, "its tokenizer cannot be built"):
        if kind == "gpt2":
            backend, add_bos = _byte_level(file, tokens)
        else:
            backend, add_bos = _sentence_piece(file, tokens, types), True
        _add_special(backend, tokens, types)
        if file.field("tokenizer.ggml.add_bos_token", bool, add_bos):
            bos = _token_number(file, "tokenizer.ggml.bos_token_id", tokens)
            # A name of its own: the template's syntax gives `:` and `$` in a token's text another meaning.
            backend.post_processor = processors.TemplateProcessing(single=["bos", "$A"], special_tokens=[("bos", bos)])
    return Tokenizer(backend, source=file.source)


def _check_tokens(file: GgufFile, tokens: Sequence[str]) -> None:
    total = 0
    for number, token in enumerate(tokens):
        total += len(token)
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise UserError(f"{file.source}: tokenizer.ggml.tokens[{number}] has {len(token)} characters; allowed are {MAX_TOKEN_CHARACTERS}")
    if total > MAX_CHARACTERS:
        raise UserError(f"{file.source}: tokenizer.ggml.tokens has {total} characters; allowed are {MAX_CHARACTERS}")
    if len(set(tokens)) != len(tokens):
        raise UserError(f"{file.source}: tokenizer.ggml.tokens holds the same token twice; allowed is each once")


def _token_number(file: GgufFile, key: str, tokens: Sequence[str]) -> int:
    number = file.field(key, int)
    if not 0 <= number < len(tokens):
        raise UserError(f"{file.source}: {key} = {number}; allowed is 0 to {len(tokens) - 1}")
    return number


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE from the file's merges, and whether BOS comes first where the file does not say."""
    pre = file.field("tokenizer.ggml.pre", str, "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise UserError(f"{file.source}: tokenizer.ggml.pre = {pre[:40]!r} is not supported; allowed: {', '.join(sorted(PRE_TOKENIZERS))}")
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs, merges = [], file.field("tokenizer.ggml.merges", list)
    if len(merges) > MAX_MERGES:
        raise UserError(f"{file.source}: tokenizer.ggml.merges has {len(merges)} entries; allowed are {MAX_MERGES}")
    for number, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise UserError(f"{file.source}: tokenizer.ggml.merges[{number}] = {merge[:40]!r} does not join two tokens to a third")
        pairs.append((left, right))
    splits = PRE_TOKENIZERS[pre]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=splits.whole_words))
    if splits.normalizer is not None:
        backend.normalizer = splits.normalizer()
    backend.pre_tokenizer = splits.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, splits.add_bos


def _sentence_piece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE (`bpe_model.cc`): the two neighbours whose join has the highest score are joined first, the leftmost of equals.

    A character that is no token becomes its UTF-8 bytes (`<0x00>` to `<0xFF>`), or the unknown token where the file lacks those.
    """
    scores = file.field("tokenizer.ggml.scores", np.ndarray)
    if len(scores) != len(tokens) or not np.isfinite(scores).all():
        raise UserError(f"{file.source}: tokenizer.ggml.scores must hold {len(tokens)} finite numbers, one a token")
    vocab = {token: number for number, token in enumerate(tokens)}
    all_bytes = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    unknown = tokens[_token_number(file, "tokenizer.ggml.unknown_token_id", tokens)] if not all_bytes else None
    pieces = {
        token: score for token, kind, score in zip(tokens, types, scores.tolist(), strict=True)
        if kind not in (_UNKNOWN, _CONTROL, _BYTE) and token
    }
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges_of_scores(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=all_bytes)
    )
    prefix = file.field("tokenizer.ggml.add_space_prefix", bool, True)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    strip: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def merges_of_scores(pieces: dict[str, float]) -> list[tuple[str, str]]:
    """Ranked merges that do what the scores of `pieces` do: every way to make a piece of two others, by the piece's falling score.

    Ways to the same score follow by falling length of their left part, as in the conversion of `transformers`
    (`SentencePieceExtractor`). SentencePiece takes the leftmost of these instead; the two differ only where one piece can be made
    at two overlapping places in different ways. ValueError for more than `MAX_MERGES`.
    """
    ranked = []
    for piece, score in pieces.items():
        for at in range(len(piece) - 1, 0, -1):
            if piece[:at] in pieces and piece[at:] in pieces:
                ranked.append((score, at, piece))
        if len(ranked) > MAX_MERGES:
            raise ValueError(f"its tokens can be joined in more than the {MAX_MERGES} ways allowed")
    ranked.sort(key=lambda way: way[:2], reverse=True)
    return [(piece[:at], piece[at:]) for _, at, piece in ranked]


def _add_special(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that are found in the raw text before anything else: control tokens, which decoding leaves out, and the user's own."""
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL) and token]
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED and token]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in own])
