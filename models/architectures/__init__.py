"""Sizes of the architectures that a Hugging Face config.json may name: tensors, and what follows from them. No weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.models.architectures import llama_like, state_space, transformers_with_biases
from headrace.models.architectures.base import Counted, DoesNotFit, Fields
from headrace.models.configfile import validate
from headrace.models.errors import UserError
from headrace.models.formats.safetensors_file import read_json

ARCHITECTURES = {**llama_like.ARCHITECTURES, **transformers_with_biases.ARCHITECTURES, **state_space.ARCHITECTURES}


@dataclass(frozen=True, kw_only=True)
class Described:
    """A config.json: the class that it names, the fields that decide sizes, and the counts."""

    architecture: str
    fields: Fields
    counted: Counted


def config_path(path: str | Path) -> Path:
    """The config.json meant by a folder or a file."""
    path = Path(path)
    return path / "config.json" if path.is_dir() else path


def describe(path: str | Path) -> Described:
    """Count what a config.json (its folder, or the file) describes. Raises UserError naming file, field, value and what is allowed."""
    path = config_path(path)
    document = read_json(path)
    named = document.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(f"{path}: architectures = {str(named)[:60]!r}; allowed is a list of one of {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    fields = validate(architecture.fields, document, source=str(path))
    try:
        return Described(architecture=name, fields=fields, counted=architecture.count(fields))
    except DoesNotFit as error:
        raise UserError(f"{path}: {error.field} = {error.value!r}; allowed is {error.allowed}") from None
