"""The operator graph that a config.json describes, of any architecture of `ARCHITECTURES`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.models.architectures import config_path, describe, graph_llama_like, graph_state_space, graph_with_biases
from headrace.models.architectures.base import DoesNotFit
from headrace.models.architectures.graph_of_config import graph_of_config
from headrace.models.configfile import validate
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.formats.hf import read_hf_config
from headrace.models.operators import OperatorGraph
from headrace.models.registry import model_config, model_path

GRAPHS = {**graph_llama_like.GRAPHS, **graph_with_biases.GRAPHS, **graph_state_space.GRAPHS}
"""Class -> (fields, function of name, class and fields)."""


def read_graph(path: str | Path) -> OperatorGraph:
    """From a config.json (its folder, or the file). Raises UserError naming file, field, value and what is allowed."""
    path = config_path(path)
    described = describe(path)
    fields, build = GRAPHS[described.architecture]
    named = path if path.name != "config.json" else path.parent
    try:
        checked = validate(fields, described.document, source=described.source)
        notes = described.notes
        if described.document.get("layer_types") is not None and "layer_types" not in fields.model_fields:
            notes += (f"layer_types is not read: {described.architecture} does not have it",)
        return replace(build(named.resolve().name.removesuffix(".json"), described.architecture, checked), notes=notes)
    except DoesNotFit as error:
        raise UserError(f"{described.source}: {error.field} = {error.value!r}; allowed is {error.allowed}") from None


def load_graph(name_or_path: str | Path) -> OperatorGraph:
    """Of a name of configs/models or a GGUF file, or of a config.json, its folder or the file."""
    path = model_path(name_or_path)
    if path is not None and path.suffix.lower() == ".tgraph":
        raise UserError(f"{path}: is a tensor graph, which `models show` alone counts; allowed here is a model with a config.json, a GGUF file or a name")
    if path is not None and (path.is_dir() or path.suffix.lower() == ".json"):
        return read_graph(path)
    return graph_of_config(model_config(name_or_path))


def plain_llama(name_or_path: str | Path) -> DecoderConfig | None:
    """Sizes of a model that the compiler takes: a plain Llama by a name of configs/models, a GGUF file or a config.json. None for any other."""
    path = model_path(name_or_path)
    if path is None or not (path.is_dir() or path.suffix.lower() == ".json"):
        config = model_config(name_or_path)
        return config if config.plain_llama else None
    path = config_path(path)
    try:
        config = read_hf_config(path.parent if path.name == "config.json" else path)
    except UserError:
        return None
    return config if config.plain_llama else None
