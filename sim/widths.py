"""Widths of a model's linears under a budget, from the loss that each of them was measured to cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headrace.models.compress.statistics import InputStatistics
from headrace.models.compress.widths import solve_widths
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.model import Model
from headrace.models.quantise import finite_weight
from headrace.models.scheme import Scheme, matrix_bytes, weight_bytes
from headrace.sim.calibrate import Method, input_of, round_dense
from headrace.sim.float_model import FloatExecutor

WIDTHS = (3, 4, 5, 6, 8)
MEASURED_BITS = 3
"""The width at which a linear's loss is measured; see `measure_losses`."""

MEASURED_TEXTS, MEASURED_TOKENS = 4, 64
Advance = Callable[..., None]


def measure_losses(
    model: Model, scheme: Scheme, method: Method, statistics: Mapping[str, InputStatistics], tokens: np.ndarray, advance: Advance
) -> dict[str, dict[int, float]]:
    """Linear -> bits -> loss: the Kullback-Leibler divergence per token, in nats, of the next token's distribution from the float model's
    when this linear alone is rounded.

    It is measured at 3 bits. The divergence is quadratic in a small change of a linear's outputs, so at other widths it is taken in
    proportion to the mean square of that change, which calibration gives. Texts: the first windows of `tokens`.
    Linears of `given_widths` are left out.
    """
    given = given_widths(model.config, scheme)
    executor = FloatExecutor.from_model(model, mask=scheme.mask)
    texts = tokens[:MEASURED_TEXTS, :MEASURED_TOKENS]
    states = executor.states(texts)
    reference = _log_softmax(executor.logits_from(0, states[0], {}))
    losses: dict[str, dict[int, float]] = {}
    for layer in range(model.config.layers):
        for kind in model.config.linear_names:
            name = f"layers.{layer}.{kind}"
            if name in given:
                continue
            weight, inputs = finite_weight(model, name), statistics[input_of(model.config, name)]
            rounded = {bits: round_dense(weight, inputs, bits, scheme.group, method).dequantised() for bits in WIDTHS}
            errors = {bits: inputs.output_error(rounded[bits] - weight) for bits in WIDTHS}
            found = _log_softmax(executor.logits_from(layer, states[layer], {name: rounded[MEASURED_BITS]}))
            loss = float((np.exp(reference) * (reference - found)).sum(axis=-1).mean())
            base = errors[MEASURED_BITS]
            losses[name] = {bits: loss * errors[bits] / base if base > 0 else 0.0 for bits in WIDTHS}
            advance(1)
    return losses


def choose_widths(
    model: Model, scheme: Scheme, losses: Mapping[str, Mapping[int, float]], bytes_per_weight: float
) -> Scheme:
    """`scheme` with the widths of the linears of `losses` that lose least while all weights take at most `bytes_per_weight` each."""
    config = model.config
    check_budget(config, scheme, bytes_per_weight)
    sizes = {
        name: {bits: matrix_bytes(*config.linear_shape(name.rpartition(".")[2]), bits, scheme.group) for bits in widths}
        for name, widths in losses.items()
    }
    fixed = weight_bytes(config, _narrowest(scheme)) - sum(size[WIDTHS[0]] for size in sizes.values())
    budget = int(bytes_per_weight * config.parameters) - fixed
    widths = given_widths(config, scheme) | solve_widths(losses, sizes, budget)
    return scheme.model_copy(update={"name": f"{scheme.name}-{bytes_per_weight:g}", "tensor_bits": widths})


def given_widths(config: DecoderConfig, scheme: Scheme) -> dict[str, int]:
    """Linear -> bits, where `linear_bits` or `tensor_bits` of the scheme say them: a budget leaves those as they are."""
    names = [f"layers.{layer}.{kind}" for layer in range(config.layers) for kind in config.linear_names]
    return {
        name: scheme.bits_of_tensor(name) for name in names
        if name in scheme.tensor_bits or name.rpartition(".")[2] in scheme.linear_bits
    }  # fmt: skip


def check_budget(config: DecoderConfig, scheme: Scheme, bytes_per_weight: float) -> None:
    """UserError for a budget that no widths keep, or where none is left to choose; said before losses are measured."""
    given = len(given_widths(config, scheme))
    if given == config.layers * len(config.linear_names):
        raise UserError(f"--bytes-per-weight {bytes_per_weight:g}: scheme {scheme.name} gives the width of every linear; leave one of the two out")
    least = weight_bytes(config, _narrowest(scheme))
    if least > bytes_per_weight * config.parameters:
        others = f", but for {given} whose widths scheme {scheme.name} gives," if given else ""
        raise UserError(
            f"--bytes-per-weight {bytes_per_weight:g}: with {WIDTHS[0]} bits for every linear of {config.name}{others} its weights take "
            f"{least / config.parameters:.4f} bytes each; allowed is more than that"
        )


def _narrowest(scheme: Scheme) -> Scheme:
    return scheme.model_copy(update={"weight_bits": WIDTHS[0]})


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
