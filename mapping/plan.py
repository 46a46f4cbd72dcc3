"""The numbers between a model's sizes and its program: buffers, caches and addresses, without weights."""

from dataclasses import dataclass

from headrace.hw.machine import Machine
from headrace.mapping.placement import (
    LANES, ActivationSlices, CacheGeometry, VectorRows, activation_slices, cache_geometry, check_supported, largest_context, limits_passed,
    linear_words, round_up, vector_rows,
)
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig


@dataclass(frozen=True)
class Addresses:
    """Base words of the memory sections, and strides in words."""

    layers: int
    layer_words: int
    linear: dict[str, int]  # offset of each linear within its layer
    linear_size: dict[str, int]
    norms: int  # offset of attn_norm, mlp_norm within the layer
    norm_words: int
    final_norm: int
    constants: int
    constant_words: int
    rope: int
    rope_words: int  # of one table row of one position
    embedding: int
    lm_head: int
    prompt: int
    cache: int
    logits: int
    logit_beats: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """Everything that code generation needs, in numbers. Built without weights, so that other levels can use it."""

    config: DecoderConfig
    machine: Machine
    bits: dict[str, int]  # of each linear
    context: int
    outputs: int  # most output tokens that the image has room for
    rows: VectorRows
    slices: ActivationSlices
    cache: CacheGeometry

    @property
    def group(self) -> int:
        return self.config.heads // self.config.kv_heads

    def linear_stripes(self, outputs: int) -> int:
        """Stripes of a linear, rows padded to whole scale words."""
        return round_up(outputs, self.machine.scales_per_word) // self.machine.stripe_rows


def make_plan(config: DecoderConfig, machine: Machine, bits: dict[str, int], context: int | None, outputs: int) -> Plan:
    """Raises UserError where the model does not fit the machine."""
    check_supported(config, machine)
    limit = largest_context(config, machine)
    context = limit if context is None else context
    if not 1 <= context <= limit:
        why = [f"needs {text}" for text in limits_passed(config, machine, context)] if context > limit else []
        if context > config.max_positions:
            why.append(f"is past the model's max_positions = {config.max_positions}")
        reason = f": {context} {' and '.join(why)}" if why else ""
        raise UserError(f"context = {context}; model {config.name} on machine {machine.name} allows 1 to {limit}{reason}")
    return Plan(
        config=config, machine=machine, bits=bits, context=context, outputs=outputs,
        rows=vector_rows(config, machine, context)[0], slices=activation_slices(config, machine, context)[0],
        cache=cache_geometry(config, machine, context),
    )  # fmt: skip


def unplaced(plan: Plan) -> Addresses:
    """Addresses of zero with true sizes: enough to generate a program of the right length."""
    machine, config = plan.machine, plan.config
    sizes = {name: linear_words(machine, *config.linear_shape(name), plan.bits[name]) for name in LINEAR_NAMES}
    return Addresses(
        layers=0, layer_words=0, linear=dict.fromkeys(LINEAR_NAMES, 0), linear_size=sizes, norms=0, norm_words=1, final_norm=0,
        constants=0, constant_words=1, rope=0, rope_words=rope_words(plan), embedding=0, lm_head=0, prompt=0, cache=0, logits=0,
        logit_beats=-(-config.vocab // LANES), tokens=0,
    )  # fmt: skip


def rope_words(plan: Plan) -> int:
    return -(-plan.config.head_dim // 2 * 4 // plan.machine.word_bytes)
