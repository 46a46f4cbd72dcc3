"""Text that a model writes itself, to calibrate on: it needs no data, and it is spread as the model's own distribution is.

Source of the idea: Liu et al., "LLM-QAT: Data-Free Quantization Aware Training for Large Language Models" (2023), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.models.errors import UserError
from headrace.sim.float_model import FloatExecutor


def write_texts(
    executor: FloatExecutor, texts: int, length: int, seed: int, advance: Callable[[int], None] = lambda steps: None
) -> np.ndarray:
    """int64 [texts, length] tokens, sampled at temperature 1, all texts at once.

    The first half starts from the model's BOS (from token 0 where it has none), the others from tokens drawn at random, so that no
    kind of text is left out. `advance(tokens of each text)` reports progress.
    """
    rng, config = np.random.default_rng(seed), executor.config
    tokens = np.empty((texts, length), np.int64)
    tokens[:, 0] = rng.integers(0, config.vocab, texts)
    tokens[: texts // 2, 0] = config.bos_token_id or 0
    executor.reset()
    for place in range(1, length):
        logits = executor.step(tokens[:, place - 1])
        if not np.isfinite(logits).all():
            raise UserError(f"model {config.name}: its activations leave the range of float32, so it writes no texts")
        weights = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1, dtype=np.float64)
        drawn = rng.random(texts) * weights[:, -1]
        tokens[:, place] = [min(np.searchsorted(row, value, side="right"), config.vocab - 1) for row, value in zip(weights, drawn, strict=True)]
        advance(1)
    return tokens
