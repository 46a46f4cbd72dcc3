"""Sizes of the architectures that a Hugging Face config.json may name: tensors, and what follows from them. No weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.models.architectures import llama_like, state_space, transformers_with_biases
from headrace.models.architectures.base import Counted, DoesNotFit, Fields
from headrace.models.configfile import validate
from headrace.models.errors import UserError
from headrace.models.formats.safetensors_file import read_json

TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": (
        "Gemma3ForCausalLM",
        {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8},
    ),
}  # fmt: skip
"""Class of a model of text and images -> class of its `text_config`, and that class's defaults for what published files leave out there."""

ARCHITECTURES = {**llama_like.ARCHITECTURES, **transformers_with_biases.ARCHITECTURES, **state_space.ARCHITECTURES}


@dataclass(frozen=True, kw_only=True)
class Described:
    """A config.json: the class that it names, the fields that decide sizes, and the counts.

    part_of: the class of text and images of which this is the text part; None for all others. document: the JSON object that `fields` are
    of, `source` what to call it in messages.
    """

    architecture: str
    fields: Fields
    counted: Counted
    part_of: str | None
    document: dict
    source: str

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user must know of the counts."""
        return () if self.part_of is None else (f"the text part of {self.part_of} alone: what reads images is not counted",)


def config_path(path: str | Path) -> Path:
    """The config.json meant by a folder or a file."""
    path = Path(path)
    return path / "config.json" if path.is_dir() else path


def describe(path: str | Path) -> Described:
    """Count what a config.json (its folder, or the file) describes. Raises UserError naming file, field, value and what is allowed."""
    path = config_path(path)
    document, source, part_of = read_json(path), str(path), None
    named = document.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else None
    if name in TEXT_PARTS:
        text = document.get("text_config")
        if not isinstance(text, dict):
            raise UserError(f"{path}: text_config = {str(text)[:60]!r}; allowed is an object, of which {name} is counted")
        part_of, source = name, f"{path}: text_config"
        name, defaults = TEXT_PARTS[name]
        document = defaults | text
    if name not in ARCHITECTURES:
        allowed = f"a list of one of {', '.join(sorted(ARCHITECTURES | TEXT_PARTS))}"
        if isinstance(document.get("text_config"), dict):
            allowed += "; a model's text part is counted where its text_config is a config.json of its own that names one of them"
        raise UserError(f"{path}: architectures = {str(named)[:60]!r}; allowed is {allowed}")
    architecture = ARCHITECTURES[name]
    fields = validate(architecture.fields, document, source=source)
    try:
        counted = architecture.count(fields)
    except DoesNotFit as error:
        raise UserError(f"{source}: {error.field} = {error.value!r}; allowed is {error.allowed}") from None
    return Described(architecture=name, fields=fields, counted=counted, part_of=part_of, document=document, source=source)
