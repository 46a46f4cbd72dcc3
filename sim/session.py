"""What a command needs to run a model on the host: the executor of a backend, and the tokens of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.kernels.contract.f32 import UnorderedError
from headrace.models.compressed import load_compressed
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.model import Model
from headrace.models.packed import is_packed
from headrace.models.registry import load_model
from headrace.models.scheme import Scheme
from headrace.models.formats.tokenizer import Tokenizer
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor

DEFAULT_SCHEME = "w4a8kv8"
HOST_BACKENDS = ("golden", "float")


class Executor(Protocol):
    """What `GoldenExecutor` and `FloatExecutor` have in common."""

    config: DecoderConfig
    position: int

    def reset(self) -> None: ...

    def step(self, token: int) -> np.ndarray: ...

    def prefill(self, tokens: Sequence[int], *, all_positions: bool = False) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class Session:
    """A model ready to run. `scheme` is None where the float backend runs the file's own weights."""

    model: Model
    scheme: Scheme | None
    backend: str
    executor: Executor

    @property
    def tokenizer(self) -> Tokenizer:
        return require_tokenizer(self.model)


def require_tokenizer(model: Model) -> Tokenizer:
    """The model's tokenizer; UserError when its files hold none."""
    if model.tokenizer is None:
        raise UserError(f"model {model.config.name}: has no tokenizer, so text cannot be read; a tokenizer.json is needed")
    return model.tokenizer


def open_session(
    model: str | Path, *, scheme: str | Path | None = None, backend: str = "golden", overrides: Iterable[str] = ()
) -> Session:
    """Load, compress and prepare.

    golden: `scheme`, or `DEFAULT_SCHEME`. float: without a scheme the file's own weights; with one, weights on its grid but
    activations, KV and scores in float, which tells how much of the loss is the weights'.
    """
    overrides = list(overrides)
    if backend not in HOST_BACKENDS:
        raise UserError(f"backend = {backend!r} is unknown; allowed: {', '.join(HOST_BACKENDS)}")
    if backend == "float" and scheme is None and not is_packed(model):
        if overrides:
            raise UserError(f"--set scheme.{overrides[0]}: backend float without --scheme runs the file's own weights; give --scheme too")
        loaded = load_model(model)
        return Session(model=loaded, scheme=None, backend=backend, executor=FloatExecutor.from_model(loaded))
    loaded, compressed = load_compressed(model, scheme, DEFAULT_SCHEME, overrides)
    executor = GoldenExecutor(compressed) if backend == "golden" else FloatExecutor.from_quantised(compressed)
    return Session(model=loaded, scheme=compressed.scheme, backend=backend, executor=executor)


@contextmanager
def nan_named(config: DecoderConfig) -> Iterator[None]:
    """Turn a NaN that finite weights lead to (they are too large for float32's range) into a UserError that names the model."""
    try:
        yield
    except UnorderedError as error:
        raise UserError(f"model {config.name}: its activations leave the range of float32: {error}") from error


def scheme_overrides(groups: dict[str, list[str]]) -> list[str]:
    """The scheme's part of `configfile.split_overrides`; UserError when others are given: no machine takes part."""
    for name in ("machine", "board"):
        if groups[name]:
            raise UserError(f"--set {'' if name == 'machine' else f'{name}.'}{groups[name][0]}: no machine and no board takes part; allowed is scheme.FIELD=VALUE")
    return groups["scheme"]
