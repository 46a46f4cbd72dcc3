"""Greedy generation: raw prompt, lowest index among the largest logits, no stop at EOS."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.kernels.contract.functions import argmax
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.formats.tokenizer import Tokenizer
from headrace.sim.session import Executor, nan_named


@dataclass(frozen=True, kw_only=True)
class Generation:
    """`text` and `tokens` are the continuation alone. `latency_s` covers prefill and decode, not loading."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    latency_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens, the prefill's first one included, over host seconds (measured)."""
        return len(self.tokens) / self.latency_s


def encode_prompt(tokenizer: Tokenizer, prompt: str, config: DecoderConfig, count: int) -> list[int]:
    """Token numbers of `prompt` when `count` tokens after it fit the model; UserError otherwise."""
    if not prompt:
        raise UserError("prompt = '' is empty; allowed is a text of at least one token")
    tokens = tokenizer.encode(prompt)
    if not tokens:
        raise UserError(f"prompt = {prompt[:40]!r} has no tokens; allowed is a text of at least one token")
    check_count(config, len(tokens), count)
    return tokens


def check_count(config: DecoderConfig, prompt_tokens: int, count: int) -> None:
    """UserError unless 1 <= count and every position exists: the last output token itself takes none."""
    room = config.max_positions - prompt_tokens + 1
    if prompt_tokens > config.max_positions:
        raise UserError(f"prompt: has {prompt_tokens} tokens; model {config.name} allows max_positions = {config.max_positions}")
    if not 1 <= count <= room:
        raise UserError(
            f"tokens = {count}; allowed are 1 to {room} (max_positions = {config.max_positions} of model {config.name}, "
            f"prompt of {prompt_tokens} tokens)"
        )


def generate_tokens(
    executor: Executor, prompt_tokens: list[int], count: int, on_token: Callable[[int], None] = lambda token: None
) -> list[int]:
    """`count` greedy tokens after the prompt; the first comes from the prefill. Starts from an empty cache."""
    check_count(executor.config, len(prompt_tokens), count)
    executor.reset()
    tokens: list[int] = []
    with nan_named(executor.config):
        logits = executor.prefill(prompt_tokens)
        while True:
            tokens.append(int(argmax(logits)))
            on_token(tokens[-1])
            if len(tokens) == count:
                return tokens
            logits = executor.step(tokens[-1])


def generate(
    executor: Executor, tokenizer: Tokenizer, prompt: str, count: int, on_token: Callable[[int], None] = lambda token: None
) -> Generation:
    """Greedy continuation of a raw prompt. `on_token` is called with each token as it appears."""
    prompt_tokens = encode_prompt(tokenizer, prompt, executor.config, count)
    start = time.perf_counter()
    tokens = generate_tokens(executor, prompt_tokens, count, on_token)
    latency_s = time.perf_counter() - start
    return Generation(
        prompt_tokens=tuple(prompt_tokens), tokens=tuple(tokens), text=tokenizer.decode(tokens), latency_s=latency_s
    )
