"""A model on the cycle simulator: the compiler's program from sizes alone, the phases of a run, one decode step, and its trace."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from headrace.hw.isa import INSTRUCTION_BYTES, Instruction, Op, Operand, Queue
from headrace.hw.machine import LANES, Machine
from headrace.mapping.image import table_words
from headrace.mapping.placement import linear_words, round_up
from headrace.mapping.plan import Addresses, Plan, make_plan, rope_words, unplaced
from headrace.mapping.program import generate
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.sim.chrome_trace import span_times
from headrace.sim.cycle import CycleResult, simulate

TABLE_SECTIONS = 16
"""Of the compiler's section table (mapping.compiler.lay_out)."""


def placed(plan: Plan) -> tuple[Addresses, int]:
    """(addresses, program's base word): those that `mapping.compiler.lay_out` gives, from the sections' sizes."""
    c, m = plan.config, plan.machine
    sizes = {name: linear_words(m, *c.linear_shape(name), plan.bits[name]) for name in LINEAR_NAMES}
    norm_words = -(-c.width * 4 // m.word_bytes)
    offsets, offset = {}, 2 * norm_words
    for name in LINEAR_NAMES:
        offsets[name], offset = offset, offset + sizes[name]
    head = linear_words(m, c.vocab, c.width, 8)
    program = -(-len(generate(plan, unplaced(plan))) * INSTRUCTION_BYTES // m.word_bytes)
    logit_beats = -(-c.vocab // LANES)
    sections = [
        ("header", 1), ("table", table_words(m.word_bytes, TABLE_SECTIONS)), ("program", program), ("constants", -(-4 * LANES * 4 // m.word_bytes)),
        ("rope", plan.context * 2 * rope_words(plan)), ("prompt", round_up(plan.context, m.scales_per_word) * 4 // m.word_bytes),
        ("final_norm", norm_words), ("embedding", head), ("lm_head", 0 if c.tie_embeddings else head), ("layers", c.layers * offset),
        ("cache", c.layers * plan.cache.layer_words), ("logits", -(-plan.outputs * logit_beats // m.memory.ports)),
        ("tokens", -(-plan.outputs // m.memory.ports)),
    ]  # fmt: skip
    base, at = {}, 0
    for name, words in sections:
        base[name], at = at, at + words
    if c.tie_embeddings:
        base["lm_head"] = base["embedding"]
    addresses = Addresses(
        layers=base["layers"], layer_words=offset, linear=offsets, linear_size=sizes, norms=0, norm_words=norm_words,
        final_norm=base["final_norm"], constants=base["constants"], constant_words=dict(sections)["constants"], rope=base["rope"],
        rope_words=rope_words(plan), embedding=base["embedding"], lm_head=base["lm_head"], prompt=base["prompt"], cache=base["cache"],
        logits=base["logits"], logit_beats=logit_beats, tokens=base["tokens"],
    )  # fmt: skip
    return addresses, base["program"]


def program_of(plan: Plan) -> tuple[tuple[Instruction, ...], int]:
    """(the compiler's program, its base word)."""
    return _program_of(plan.config, plan.machine, tuple(sorted(plan.bits.items())), plan.context, plan.outputs)


@lru_cache(maxsize=16)
def _program_of(config: DecoderConfig, machine: Machine, bits: tuple[tuple[str, int], ...], context: int, outputs: int):
    """The program does not depend on how far it runs, so many runs share one."""
    plan = make_plan(config, machine, dict(bits), context, outputs)
    addresses, base = placed(plan)
    return tuple(generate(plan, addresses)), base


def run_phases(plan: Plan, prompt: int, outputs: int, tokens: Sequence[int] = ()) -> CycleResult:
    """The whole program: `prompt` tokens in, `outputs` out. `tokens`: prompt and outputs, as far as they are known.

    Mark 0 starts the prefill, mark k ends the pass that gave output token k. Tokens decide which rows of the embedding are read, and so how
    their loads fall into bursts: a few cycles in a pass.
    """
    program, base = program_of(plan)
    return simulate(program, plan.machine, (prompt, outputs), values=tokens, program_word=base)


def run_step(plan: Plan, context: int, token: int = 0) -> CycleResult:
    """One decode step at KV length `context` (at least 2), from the mark before it (id 0) to its own (id 1)."""
    program, base = program_of(plan)
    return simulate(step_program(program, context), plan.machine, (context - 1, 2), values=(token,), program_word=base)


def step_program(program: Sequence[Instruction], context: int) -> list[Instruction]:
    """The program as it is when output token 0 has just been marked and the step at `context` is next.

    Prologue, then the end of the position loop (copied behind the program, with the mark before it), then the position itself.
    """
    if context < 2:
        raise ValueError(f"context = {context}: a decode step has at least the prompt's first token before it")
    start = next(i for i, instruction in enumerate(program) if instruction.op == Op.MARK)
    # The loop over positions ends with its counter's ADD, BAR, the branch back, HALT.
    tail = program[-4:]
    if [i.op for i in tail] != [Op.ADD, Op.BAR, Op.BLT, Op.HALT]:
        raise ValueError("the program does not end with the loop over positions")
    counter = tail[0].flags
    out = list(program)
    for i in range(start):
        if out[i].op == Op.SET and out[i].flags == counter:
            out[i] = replace(out[i], operands=(Operand(context - 2),))
    out[start] = Instruction(Op.BLT, (0, 1, len(program)), comment="to the step")
    return [*out, program[start], *tail]


def span(result: CycleResult, first: int, last: int) -> int:
    """Cycles from mark `first` to mark `last`."""
    at = dict(result.marks)
    return at[last] - at[first]


def chrome_trace(result: CycleResult, program: Sequence[Instruction], machine: Machine, *, name: str) -> dict:
    """Retired instructions as a Chrome trace (opens in Perfetto): one thread per queue, times in microseconds.

    LD and MV overlap their instructions: a span begins when its instruction has started and the one before it has retired. `args` hold the
    cycles of dispatch, start and retirement; `marks` those of the step's begin (0) and end (1), before which the prologue runs. SYS instructions shorter than a handful of cycles stand there like all others.
    """
    cycle_s = 1 / machine.clock_hz
    events = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": name}}]
    for queue in Queue:
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": int(queue), "args": {"name": queue.name}})
        events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": int(queue), "args": {"sort_index": int(queue)}})
    free = [0] * len(Queue)
    columns = zip(*(array.tolist() for array in (result.queue, result.pc, result.dispatched, result.started, result.retired)), strict=True)
    for queue, pc, dispatched, started, retired in columns:
        begin, end = max(started, free[queue]), retired + 1
        free[queue] = end
        instruction = program[pc]
        events.append(
            {"name": instruction.comment or instruction.op.name, "cat": instruction.op.name, "ph": "X", "pid": 0, "tid": queue,
             **span_times(begin * cycle_s, end * cycle_s),
             "args": {"pc": pc, "op": instruction.op.name, "dispatched": dispatched, "started": started, "retired": retired}}
        )  # fmt: skip
    return {"traceEvents": events, "otherData": {"machine": machine.name, "clock_hz": machine.clock_hz, "cycles": result.cycles, "marks": dict(result.marks), "level": "cycle"}}
