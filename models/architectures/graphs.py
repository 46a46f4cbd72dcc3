"""The operator graph that a config.json describes, of any architecture of `ARCHITECTURES`."""

from __future__ import annotations

from pathlib import Path

from headrace.models.architectures import config_path, describe, graph_llama_like, graph_state_space, graph_with_biases
from headrace.models.architectures.base import DoesNotFit
from headrace.models.configfile import validate
from headrace.models.errors import UserError
from headrace.models.operators import OperatorGraph
from headrace.models.safetensors_file import read_json

GRAPHS = {**graph_llama_like.GRAPHS, **graph_with_biases.GRAPHS, **graph_state_space.GRAPHS}
"""Class -> (fields, function of name, class and fields)."""


def read_graph(path: str | Path) -> OperatorGraph:
    """From a config.json (its folder, or the file). Raises UserError naming file, field, value and what is allowed."""
    path = config_path(path)
    described = describe(path)
    fields, build = GRAPHS[described.architecture]
    named = path if path.name != "config.json" else path.parent
    try:
        return build(named.resolve().name.removesuffix(".json"), described.architecture, validate(fields, read_json(path), source=str(path)))
    except DoesNotFit as error:
        raise UserError(f"{path}: {error.field} = {error.value!r}; allowed is {error.allowed}") from None
