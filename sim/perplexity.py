"""Perplexity of a text: one pass over it, the first token unscored."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.sim.session import Executor, nan_named

POSITIONS_PER_PASS = 64
"""Positions whose logits are held at once (float64 while they are scored)."""

MAX_LOG_PERPLEXITY = math.log(sys.float_info.max)
"""Above it float64 has no exponential."""


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """exp(mean negative log likelihood) over the scored tokens. `tokens` counts all tokens of the text."""

    perplexity: float
    tokens: int
    scored_tokens: int


def check_length(config: DecoderConfig, tokens: int, name: str = "text") -> None:
    """UserError unless a text of this many tokens can be scored in one pass. name: what to call it."""
    if not 2 <= tokens <= config.max_positions + 1:
        raise UserError(
            f"{name}: has {tokens} tokens; allowed are 2 to {config.max_positions + 1} for model {config.name}, whose "
            f"max_positions = {config.max_positions}"
        )


def perplexity(executor: Executor, tokens: Sequence[int], advance: Callable[[int], None] = lambda steps: None) -> Perplexity:
    """Score each token but the first by the logits before it. `advance(positions)` reports progress.

    Starts from an empty cache. Raises UserError when the text is shorter than 2 tokens or longer than the model's positions.
    """
    check_length(executor.config, len(tokens))
    executor.reset()
    inputs, targets = tokens[:-1], np.asarray(tokens[1:], np.int64)
    total = 0.0
    for start in range(0, len(inputs), POSITIONS_PER_PASS):
        chunk = inputs[start : start + POSITIONS_PER_PASS]
        with nan_named(executor.config):
            logits = executor.prefill(chunk, all_positions=True)
        total += negative_log_likelihood(logits, targets[start : start + len(chunk)])
        advance(len(chunk))
    if not total / len(targets) <= MAX_LOG_PERPLEXITY:  # a NaN fails too
        raise UserError(f"model {executor.config.name}: mean negative log likelihood = {total / len(targets):g}: no perplexity follows from it")
    return Perplexity(perplexity=math.exp(total / len(targets)), tokens=len(tokens), scored_tokens=len(targets))


def negative_log_likelihood(logits: np.ndarray, targets: np.ndarray) -> float:
    """Sum over positions of -log softmax(logits)[target], in float64. logits [n, vocab], targets int [n]."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    log_sum = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    return float((log_sum - wide[np.arange(len(targets)), targets]).sum())
