"""The compiler: a compressed model and a machine to a program and a memory image."""

from math import sqrt

import numpy as np

from headrace.hw.isa import INSTRUCTION_BYTES
from headrace.hw.machine import Machine
from headrace.mapping.image import Image, Layout, table_words
from headrace.mapping.placement import LANES, round_up
from headrace.mapping.plan import Addresses, Plan, make_plan, rope_words, unplaced
from headrace.mapping.program import generate
from headrace.mapping.stream import pack_stream
from headrace.models.errors import UserError
from headrace.models.graph import LINEAR_NAMES, NORM_NAMES, LlamaConfig, require_plain_llama
from headrace.models.quantise import QuantisedLinear, QuantisedModel
from headrace.models.scheme import refuse_cache_and_mask


def compile_model(
    model: QuantisedModel, machine: Machine, prompt: list[int], *, outputs: int, context: int | None = None
) -> Image:
    """Image for `prompt` and up to `outputs` tokens. Raises UserError for a prompt or length that does not fit."""
    config = model.config
    require_plain_llama(config, f"machine {machine.name}")
    refuse_cache_and_mask(model.scheme, f"machine {machine.name}")
    plan = make_plan(config, machine, {name: model.layers[0][name].bits for name in LINEAR_NAMES}, context, outputs)
    if not prompt:
        raise UserError("the prompt has no tokens")
    if len(prompt) + outputs - 1 > plan.context:
        raise UserError(
            f"{len(prompt)} prompt tokens and {outputs} output tokens reach position {len(prompt) + outputs - 1}; "
            f"model {config.name} on machine {machine.name} has context {plan.context}"
        )
    if not all(0 <= token < config.vocab for token in prompt):
        raise UserError(f"a prompt token is outside 0..{config.vocab - 1}")
    layout, address = lay_out(model, plan, prompt)
    instructions = generate(plan, address)
    if len(instructions) > machine.buffers.imem_words:
        raise UserError(
            f"the program has {len(instructions)} instructions; machine {machine.name} has buffers.imem_words = "
            f"{machine.buffers.imem_words}"
        )
    program = layout.sections[[s.name for s in layout.sections].index("program")]
    raw = np.frombuffer(b"".join(i.encode() for i in instructions), np.uint8)
    program.data.reshape(-1)[: raw.size] = raw
    widths = sorted(set(plan.bits.values()) | {8})
    manifest = {
        "model": config.name, "scheme": model.scheme.name, "machine": machine.name, "widths": widths, "vocab": config.vocab,
        "context": plan.context, "outputs": outputs, "prompt_tokens": len(prompt), "instructions": len(instructions),
        "logit_beats": address.logit_beats, "word_bytes": machine.word_bytes,
    }  # fmt: skip
    return Image(machine, layout, "program", len(instructions), manifest)


def program_words(machine: Machine, instructions: int) -> int:
    return -(-instructions * INSTRUCTION_BYTES // machine.word_bytes)


def lay_out(model: QuantisedModel, plan: Plan, prompt: list[int]) -> tuple[Layout, Addresses]:
    machine, config = plan.machine, plan.config
    layout = Layout(machine.word_bytes)
    layout.add("header", np.zeros(machine.word_bytes, np.uint8))
    layout.add("table", np.zeros(table_words(machine.word_bytes, 16) * machine.word_bytes, np.uint8))
    length = len(generate(plan, unplaced(plan)))  # addresses do not change a program's length
    layout.add("program", np.zeros(program_words(machine, length) * machine.word_bytes, np.uint8))
    constants = layout.add("constants", _constants(config))
    rope = layout.add("rope", _rope(model, plan))
    prompt_section = layout.add("prompt", _prompt(plan, prompt))
    final_norm = layout.add("final_norm", model.final_norm.astype("<f4"))
    embedding = layout.add("embedding", _pack(machine, model.embedding))
    lm_head = embedding if model.lm_head is model.embedding else layout.add("lm_head", _pack(machine, model.lm_head))
    blocks, offsets, sizes, norm_words = [], {}, {}, -(-config.width * 4 // machine.word_bytes)
    for layer in model.layers:
        parts, offset = [], 0
        for name in NORM_NAMES:
            parts.append(_words(machine, layer[name].astype("<f4")))
            offset += norm_words
        for name in LINEAR_NAMES:
            packed = _pack(machine, layer[name])
            offsets[name], sizes[name] = offset, packed.shape[0]
            parts.append(packed)
            offset += packed.shape[0]
        blocks.append(np.concatenate(parts))
    layers = layout.add("layers", np.stack(blocks))
    cache = layout.reserve("cache", config.layers * plan.cache.layer_words)
    beats_per_word = machine.memory.ports
    logit_beats = -(-config.vocab // LANES)
    logits = layout.reserve("logits", -(-plan.outputs * logit_beats // beats_per_word))
    tokens = layout.reserve("tokens", -(-plan.outputs // beats_per_word))
    address = Addresses(
        layers=layers.base, layer_words=blocks[0].shape[0], linear=offsets, linear_size=sizes, norms=0, norm_words=norm_words,
        final_norm=final_norm.base, constants=constants.base, constant_words=constants.words, rope=rope.base,
        rope_words=rope_words(plan), embedding=embedding.base, lm_head=lm_head.base, prompt=prompt_section.base,
        cache=cache.base, logits=logits.base, logit_beats=logit_beats, tokens=tokens.base,
    )  # fmt: skip
    return layout, address


def _words(machine: Machine, array: np.ndarray) -> np.ndarray:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    out = np.zeros((-(-raw.size // machine.word_bytes), machine.word_bytes), np.uint8)
    out.reshape(-1)[: raw.size] = raw
    return out


def _pack(machine: Machine, linear: QuantisedLinear) -> np.ndarray:
    linear = linear.in_groups_of_32()
    return pack_stream(machine, linear.codes, linear.bits, linear.row_scale, linear.mult, linear.off)


def _constants(config: LlamaConfig) -> np.ndarray:
    """Rows of eight equal lanes: 1, f32(1/sqrt(head_dim)), f32(1/width), f32(eps)."""
    values = np.array([1.0, 1.0 / sqrt(config.head_dim), 1.0 / config.width, config.rms_eps], "<f4")
    return np.repeat(values, LANES)


def _rope(model: QuantisedModel, plan: Plan) -> np.ndarray:
    """For each position: the cosines, then the sines, each padded to whole words."""
    width = rope_words(plan) * plan.machine.word_bytes // 4
    table = np.zeros((plan.context, 2, width), "<f4")
    half = plan.config.head_dim // 2
    table[:, 0, :half] = model.rope_cos[: plan.context]
    table[:, 1, :half] = model.rope_sin[: plan.context]
    return table


def _prompt(plan: Plan, prompt: list[int]) -> np.ndarray:
    """Token ids as u32, room for the whole context, so that a host can put another prompt in place."""
    ids = np.zeros(round_up(plan.context, plan.machine.scales_per_word), "<u4")
    ids[: len(prompt)] = prompt
    return ids
