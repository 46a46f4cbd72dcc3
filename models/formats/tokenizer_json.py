"""What a tokenizer.json may hold, checked before the tokenizers library sees it.

The library believes its files: some of its parts end the process, or take all memory, where a field lies. Only parts that the
tokenizers of language models are made of pass (names: the library's documentation of its components), with lengths that can be meant.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace.models.errors import UserError
from headrace.models.formats.safetensors_file import read_json

MAX_FILE_BYTES = 3 << 24
MAX_PATTERN_CHARACTERS = 4096
MAX_COUNT = 1 << 16

_MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
# Section -> the types that it may name, and the field of its Sequence that holds more of them.
_SECTIONS = {
    "normalizer": (
        ("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "StripAccents"), "normalizers",
    ),
    "pre_tokenizer": (
        ("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace", "WhitespaceSplit"),
        "pretokenizers",
    ),
    "post_processor": (("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"), "processors"),
    "decoder": (("BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"), "decoders"),
}


def read_tokenizer_json(path: Path) -> bytes:
    """The file's own content in JSON anew, so that what was checked is what the library reads; without padding and truncation,
    since a prompt is taken as it is. Raises UserError naming file, field, value and what is allowed."""
    return checked_tokenizer(read_json(path, MAX_FILE_BYTES), path)


def checked_tokenizer(document: dict, path: Path | str) -> bytes:
    """The same of a document that has been read; `path` names it in messages."""
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") not in (*_MODELS, None):
        kind = model.get("type") if isinstance(model, dict) else model
        raise UserError(f"{path}: field model.type = {str(kind)[:40]!r}; allowed are {', '.join(_MODELS)}")
    _check_counts(path, "model", {name: value for name, value in model.items() if name not in ("vocab", "merges")})
    for section, (types, _) in _SECTIONS.items():
        if document.get(section) is not None:
            _check_part(path, section, section, document[section], types)
    return json.dumps(document | {"padding": None, "truncation": None}).encode()


def _check_part(path: Path, section: str, where: str, part: object, types: tuple[str, ...]) -> None:
    kind = part.get("type") if isinstance(part, dict) else part
    if isinstance(part, dict) and kind == "Sequence":
        name = _SECTIONS[section][1]
        inner = part.get(name)
        if not isinstance(inner, list) or len(inner) > 64:
            raise UserError(f"{path}: field {where}.{name} must be a list of at most 64 parts")
        for number, item in enumerate(inner):
            _check_part(path, section, f"{where}.{name}[{number}]", item, types)
        return
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in types:
        raise UserError(f"{path}: field {where}.type = {str(kind)[:40]!r}; allowed are Sequence, {', '.join(types)}")
    _check_counts(path, where, part)
    if kind == "TemplateProcessing":
        _check_template(path, where, part)
    pattern = part.get("pattern")
    text = next(iter(pattern.values()), None) if isinstance(pattern, dict) else pattern
    if "pattern" in part and not (isinstance(text, str) and 1 <= len(text) <= MAX_PATTERN_CHARACTERS):
        raise UserError(f"{path}: field {where}.pattern = {str(text)[:40]!r}; allowed is text of 1 to {MAX_PATTERN_CHARACTERS} characters")


def _check_template(path: Path, where: str, part: dict) -> None:
    """Every special token that the template puts in is one that it describes."""
    known = part.get("special_tokens")
    for name in ("single", "pair"):
        pieces = part.get(name)
        for piece in pieces if isinstance(pieces, list) else ():
            special = piece.get("SpecialToken") if isinstance(piece, dict) else None
            token = special.get("id") if isinstance(special, dict) else None
            if token is not None and not (isinstance(known, dict) and isinstance(token, str) and token in known):
                raise UserError(f"{path}: field {where}.{name} holds {str(token)[:40]!r}; allowed are tokens of {where}.special_tokens")


def _check_counts(path: Path, where: str, part: dict) -> None:
    """Numbers of a part are lengths (or a share below 1)."""
    for name, value in part.items():
        if isinstance(value, (int, float)) and not 0 <= value <= MAX_COUNT:
            raise UserError(f"{path}: field {where}.{name} = {str(value)[:40]}; allowed are numbers from 0 to {MAX_COUNT}")
