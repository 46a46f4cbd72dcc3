"""Scaling of channels that leaves the float model as it is: what one weight divides its outputs by, the next ones multiply their inputs by.

AWQ (Lin et al., MLSys 2024, section 3.2) enlarges the weights of channels with large activations, so that rounding costs them less.
SmoothQuant (Xiao et al., ICML 2023, section 4) moves the range of activations into the weights, so that INT8 activations cost less.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np

from headrace.models.compress.statistics import InputStatistics
from headrace.models.decoder import DecoderConfig
from headrace.models.quantise import quantise_groups, quantise_rows

AWQ_EXPONENTS = tuple(step / 10 for step in range(11))
SMOOTH_EXPONENT = 0.5
"""SmoothQuant's migration strength (section 4, "a sweet spot" of 0.5)."""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """`source` (a norm's weight [K], or a linear whose rows are the channels) feeds `consumers` [N, K].

    repeats: consumers see each block of `block` channels of the source `repeats` times (grouped KV heads), else 1.
    """

    source: str
    consumers: tuple[str, ...]
    repeats: int = 1
    block: int = 0

    def spread(self, scale: np.ndarray) -> np.ndarray:
        """Scales of the source's channels to the consumers' columns."""
        return scale if self.repeats == 1 else np.repeat(scale.reshape(-1, self.block), self.repeats, axis=0).reshape(-1)

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """Largest value of the consumers' columns that one channel of the source feeds."""
        return values if self.repeats == 1 else values.reshape(-1, self.repeats, self.block).max(axis=1).reshape(-1)


def folds(config: DecoderConfig, layer: int) -> tuple[Fold, ...]:
    """Where channels of a layer can be scaled: behind both norms, between values and output, and between up and down where nothing but a
    product (a gated MLP) or a ReLU lies between them."""
    w = f"layers.{layer}."
    found = [
        Fold(source=w + "attn_norm", consumers=(w + "q", w + "k", w + "v")),
        Fold(source=w + "v", consumers=(w + "o",), repeats=config.heads // config.kv_heads, block=config.head_dim),
        Fold(source=w + "mlp_norm", consumers=(w + "gate", w + "up") if config.gated else (w + "up",)),
    ]
    if config.gated or config.activation == "relu":
        found.append(Fold(source=w + "up", consumers=(w + "down",)))
    return tuple(found)


def fold_in(weights: MutableMapping[str, np.ndarray], fold: Fold, scale: np.ndarray) -> None:
    """Divide the source by `scale` (of its channels, float32) and multiply the consumers' columns."""
    source, bias = weights[fold.source], weights.get(fold.source + ".bias")
    weights[fold.source] = source / (scale if source.ndim == 1 else scale[:, None])
    if bias is not None:
        weights[fold.source + ".bias"] = bias / scale
    for name in fold.consumers:
        weights[name] = weights[name] * fold.spread(scale)


def smooth_scale(weights: Mapping[str, np.ndarray], fold: Fold, inputs: InputStatistics, exponent: float = SMOOTH_EXPONENT) -> np.ndarray:
    """SmoothQuant: max|x|^a / max|w|^(1 - a) of each channel, float32; 1 for a channel that calibration saw nothing in, or that no weight reads."""
    size, largest = fold.gathered(inputs.absmax), fold.gathered(np.max([np.abs(weights[name]).max(axis=0) for name in fold.consumers], axis=0))
    known = (size > 0) & (largest > 0)
    return _positive(np.where(known, size, 1) ** exponent / np.where(known, largest, 1) ** (1 - exponent))


def awq_scale(weights: Mapping[str, np.ndarray], fold: Fold, inputs: InputStatistics, bits: Mapping[str, int], group: int) -> np.ndarray:
    """AWQ: mean|x|^a for the exponent a, of eleven from 0 to 1, at which rounding to nearest changes the outputs least. float32.

    bits: code bits of each consumer. Exponent 0 leaves the weights as they are; so does a channel that calibration saw nothing in.
    """
    size = fold.gathered(inputs.absmean)
    known = size > 0
    size = np.where(known, size, size.max() if known.any() else 1)
    best, least = np.ones_like(size), np.inf
    for exponent in AWQ_EXPONENTS:
        scale = size**exponent
        scale = np.where(known, _positive(scale / np.sqrt(scale.max() * scale.min())), np.float32(1))
        columns, error = fold.spread(scale), 0.0
        for name in fold.consumers:
            scaled = weights[name] * columns
            rounded = quantise_rows(scaled) if bits[name] == 8 else quantise_groups(scaled, bits[name], group)
            error += inputs.output_error(rounded.dequantised() / columns - weights[name])
        if error < least:
            best, least = scale, error
    return best


def _positive(scale: np.ndarray) -> np.ndarray:
    """float32, within 2**-16 .. 2**16, so that no product leaves float32's range."""
    return np.clip(scale, 2.0**-16, 2.0**16).astype(np.float32)
