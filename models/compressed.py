"""A model and its codes by name or path: compressed here to the nearest codes, or as a packed file holds them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.models.errors import UserError
from headrace.models.model import Model
from headrace.models.packed import is_packed, load_packed, read_packed_config
from headrace.models.quantise import QuantisedModel, quantise_model
from headrace.models.registry import load_model
from headrace.models.scheme import Scheme, load_scheme


def scheme_of(model: str | Path, name: str | Path | None, default: str, overrides: Iterable[str] = ()) -> Scheme:
    """The scheme that a model runs under: a packed file's own, else `name`, else `default`, with `overrides` (`path=value`).

    Raises UserError where a packed file is given another scheme: its codes are made.
    """
    overrides = list(overrides)
    if not is_packed(model):
        return load_scheme(default if name is None else name, overrides)
    for what in ([f"--scheme {name}"] if name is not None else []) + [f"--set scheme.{override}" for override in overrides]:
        raise UserError(f"{what}: {model} is compressed already; allowed is its own scheme")
    return read_packed_config(model)[1]


def load_compressed(model: str | Path, name: str | Path | None, default: str, overrides: Iterable[str] = ()) -> tuple[Model, QuantisedModel]:
    """(sizes, tokenizer and what weights there are; codes). See `scheme_of`."""
    scheme = scheme_of(model, name, default, overrides)
    if is_packed(model):
        compressed = load_packed(model).model
        return Model(config=compressed.config, weights={}, tokenizer=compressed.tokenizer), compressed
    loaded = load_model(model)
    return loaded, quantise_model(loaded, scheme)

