"""Compression with calibration: what a model's linears see on calibration texts, and their rounding with that knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headrace.models.compress.error_compensation import compensate
from headrace.models.compress.group_grid import round_to_nearest
from headrace.models.compress.prune import check_shape, mixed_counts, prune, scores, uniform_counts
from headrace.models.compress.scaling import awq_scale, fold_in, folds, smooth_scale
from headrace.models.compress.statistics import InputStatistics
from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig
from headrace.models.masks import Mask
from headrace.models.model import Model
from headrace.models.quantise import (
    QuantisedLinear, QuantisedModel, check_compressible, finite_weight, quantise_groups, quantise_model, quantise_rows,
)
from headrace.models.scheme import Scheme
from headrace.sim.float_model import FloatExecutor

Rounding = Literal["nearest", "fitted", "gptq"]
Scaling = Literal["none", "awq", "smoothquant"]
Pruning = Literal["magnitude", "wanda", "sparsegpt"]

TEXTS_PER_PASS = 16
Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Method:
    """How weights are rounded and pruned.

    rounding: "nearest" code of each group's minimum and maximum; "fitted", nearest in the range that costs the outputs least; "gptq", the
    same ranges with error compensation. scaling: of channels, before. pruning: how the kept weights of an N:16 scheme are chosen.
    mixed: blocks may keep different numbers, of which the scheme's n is the mean.
    """

    rounding: Rounding = "gptq"
    scaling: Scaling = "none"
    pruning: Pruning = "sparsegpt"
    mixed: bool = False

    @property
    def calibrates(self) -> bool:
        """Whether it needs statistics of the linears' inputs (pruning apart)."""
        return self.rounding != "nearest" or self.scaling != "none"


def input_of(config: LlamaConfig, name: str) -> str:
    """The first of the linears that have the same input: "layers.3.v" -> "layers.3.q"."""
    prefix, _, kind = name.rpartition(".")
    first = {"k": "q", "v": "q", "up": "gate" if config.gated else "up"}.get(kind, kind)
    return f"{prefix}.{first}"


def collect(
    model: Model, tokens: np.ndarray, advance: Advance = lambda texts: None, *, mask: Mask | None = None
) -> dict[str, InputStatistics]:
    """Statistics of the inputs of a model's linears, in float, over texts int64 [texts, length]. Keys: `input_of` names. mask: a scheme's.

    `advance(texts)` reports progress. Memory: a Gram matrix float32 [K, K] for each input.
    """
    found: dict[str, InputStatistics] = {}

    def observe(name: str, x: np.ndarray) -> None:
        if name != "lm_head" and input_of(model.config, name) == name:
            seen = InputStatistics.of(x)
            found[name] = found[name].joined(seen) if name in found else seen

    executor = FloatExecutor.from_model(model, observe=observe, mask=mask)
    for start in range(0, len(tokens), TEXTS_PER_PASS):
        part = tokens[start : start + TEXTS_PER_PASS]
        executor.reset()
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            executor.prefill(part)
        advance(len(part))
    for name, inputs in found.items():
        if not np.isfinite(inputs.gram).all():
            raise UserError(f"model {model.config.name}: the inputs of {name} leave the range of float32 on the calibration texts")
    return found


def check_scheme(config: LlamaConfig, scheme: Scheme) -> None:
    """UserError where a model cannot be compressed under a scheme; said before long work."""
    check_compressible(config, scheme)
    if scheme.sparsity is not None and scheme.sparsity.n < scheme.sparsity.m:
        for kind in config.linear_names:
            check_shape(kind, config.linear_shape(kind), scheme.sparsity.index_share)


def calibrated(
    model: Model, scheme: Scheme, method: Method, statistics: Mapping[str, InputStatistics] | None, advance: Advance = lambda linears: None
) -> QuantisedModel:
    """Compress `model` by `method`. statistics: of `collect`; None where the method needs none.

    Weights are always rounded from their float values: a file's own codes do not pass through. `advance(1)` after each linear.
    """
    sparsity = scheme.sparsity if scheme.sparsity is not None and scheme.sparsity.n < scheme.sparsity.m else None
    if statistics is None and (method.calibrates or (sparsity and method.pruning != "magnitude")):
        raise UserError(f"rounding {method.rounding}, scaling {method.scaling}, pruning {method.pruning}: need calibration texts")
    config, statistics = model.config, dict(statistics or {})
    if method.scaling != "none":
        model = _scaled(model, scheme, method, statistics)

    def rounding(name: str, weight: np.ndarray) -> QuantisedLinear:
        inputs, bits = statistics.get(input_of(config, name)), scheme.bits_of_tensor(name)
        result = round_dense(weight, inputs, bits, scheme.group, method) if sparsity is None else _sparse(name, weight, inputs, bits, scheme, method)
        advance(1)
        return result

    return quantise_model(replace(model, codes={}), scheme, rounding)


def round_dense(weight: np.ndarray, inputs: InputStatistics | None, bits: int, group: int, method: Method) -> QuantisedLinear:
    """float32 weight [N, K] by the method's rounding, no scaling. inputs: None for "nearest" alone."""
    if method.rounding == "gptq":
        return compensate(weight, inputs, bits, group)
    if bits == 8:
        return quantise_rows(weight)
    return quantise_groups(weight, bits, group) if method.rounding == "nearest" else round_to_nearest(weight, bits, group, importance=inputs.importance)


def _sparse(name: str, weight: np.ndarray, inputs: InputStatistics | None, bits: int, scheme: Scheme, method: Method) -> QuantisedLinear:
    share = scheme.sparsity.index_share
    check_shape(name, weight.shape, share)
    mean = scheme.sparsity.n
    counts = mixed_counts(scores(weight, inputs, method.pruning), mean, share) if method.mixed else uniform_counts(weight.shape, mean)
    kept, pruned = prune(weight, inputs, counts, share, method.pruning)
    if method.rounding == "gptq":
        # After sparsegpt the original weights are rounded again, with the same columns pruned: their errors are spread together.
        start = weight if method.pruning == "sparsegpt" else pruned
        return compensate(start, inputs, bits, scheme.group, kept=kept, pruned=pruned, index_share=share)
    importance = None if method.rounding == "nearest" else inputs.importance
    return round_to_nearest(pruned, bits, scheme.group, importance=importance, kept=kept, index_share=share)


def _scaled(model: Model, scheme: Scheme, method: Method, statistics: dict[str, InputStatistics]) -> Model:
    """`model` with scaled channels; `statistics` become those of the scaled inputs."""
    config = model.config
    weights = {name: finite_weight(model, name) for name in config.weight_shapes()}
    for layer in range(config.layers):
        for fold in folds(config, layer):
            key = input_of(config, fold.consumers[0])
            if method.scaling == "awq":
                bits = {name: scheme.bits_of_tensor(name) for name in fold.consumers}
                scale = awq_scale(weights, fold, statistics[key], bits, scheme.group)
            else:
                scale = smooth_scale(weights, fold, statistics[key])
            fold_in(weights, fold, scale)
            statistics[key] = statistics[key].scaled(fold.spread(scale))
    return replace(model, weights=weights, codes={})
