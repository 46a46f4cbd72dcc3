"""The wait and release masks hold every order that the data ask for, under any timing, and never lock up.

A scheduler that knows only queues, tokens and the weight FIFO runs a compiled program with random timing. Whenever an instruction starts, every earlier
instruction that touches the same rows must have completed.
"""

from collections import defaultdict, deque
from dataclasses import replace

import numpy as np
import pytest
from models_for_tests import random_model

from headrace.hw.isa import SCALES_FLAG_BIT, TOKEN_LIMIT, Op, Queue
from headrace.hw.machine import load_machine
from headrace.mapping.compiler import compile_model, lay_out
from headrace.mapping.plan import make_plan
from headrace.mapping.program import items
from headrace.mapping.stream import stream_words
from headrace.models.decoder import LINEAR_NAMES
from headrace.sim.iss import Interpreter

OVERLAPPING = {Queue.LD: 3, Queue.MV: 3, Queue.ST: 1, Queue.VEC: 1}


class OrderError(AssertionError):
    pass


def conflicts(later, earlier):
    def meet(a, b):
        return any(x.overlaps(y) for x in a for y in b)

    if later.queue == earlier.queue:  # a queue writes in order
        return meet(later.reads, earlier.writes)
    return meet(later.reads, earlier.writes) or meet(later.writes, earlier.reads) or meet(later.writes, earlier.writes)


def run(program, executed, words, machine, rng):
    """`executed`: PCs in program order; `words[i]`: words that dynamic instruction i puts into or takes from the FIFO."""
    depth, capacity = machine.control.queue_depth, machine.buffers.raw_fifo_words
    queues = {q: deque() for q in OVERLAPPING}
    flying = {q: deque() for q in OVERLAPPING}
    open_items: set[int] = set()  # dispatched or not, begun or not: not completed, before `next_`
    tokens = defaultdict(int)
    state = {"next": 0, "delivered": 0, "consumed": 0}
    asked = 0  # words of LDWs that have started
    due = {}  # LDW or MV -> its FIFO mark when complete
    mv_words = 0

    def ready(item):
        return all(tokens[b, item.queue] for b in item.instruction.wait)

    def start(i):
        nonlocal asked, mv_words
        item = program[executed[i]]
        for b in item.instruction.wait:
            tokens[b, item.queue] -= 1
        for j in open_items:
            if j < i and conflicts(item, program[executed[j]]):
                raise OrderError(f"{executed[i]} {item.instruction.comment} before {executed[j]} {program[executed[j]].instruction.comment}")
        if item.instruction.op == Op.LDW:
            asked += words[i]
            due[i] = asked
        if item.instruction.op == Op.MV:
            mv_words += words[i]
            due[i] = mv_words

    def complete(i):
        item = program[executed[i]]
        open_items.discard(i)
        for b in item.instruction.release:
            tokens[item.queue, b] += 1
            assert tokens[item.queue, b] <= TOKEN_LIMIT, "token overflow"

    def flow():
        state["delivered"] = min(asked, state["consumed"] + capacity)
        state["consumed"] = min(mv_words, state["delivered"])

    while state["next"] < len(executed) or open_items:
        actions = []
        i = state["next"]
        if i < len(executed):
            item = program[executed[i]]
            if item.queue == Queue.SYS:
                idle = not any(queues.values()) and not any(flying.values())
                if ready(item) and (idle or item.instruction.op not in (Op.BAR, Op.HALT)):
                    actions.append(("sys", i))
            elif len(queues[item.queue]) < depth:
                actions.append(("dispatch", i))
        for q in queues:
            if queues[q] and len(flying[q]) < OVERLAPPING[q] and ready(program[executed[queues[q][0]]]):
                actions.append(("start", q))
            if flying[q]:
                head = flying[q][0]
                op = program[executed[head]].instruction.op
                mark = {Op.LDW: "delivered", Op.MV: "consumed"}.get(op)
                if mark is None or state[mark] >= due[head]:
                    actions.append(("complete", q))
        before = dict(state)
        flow()
        if not actions and before == state:
            raise OrderError(f"locked up at {executed[i] if i < len(executed) else 'the end'}")
        if not actions:
            continue
        kind, what = actions[rng.integers(len(actions))]
        if kind == "sys":
            open_items.add(what)
            start(what)
            complete(what)
            state["next"] += 1
        elif kind == "dispatch":
            open_items.add(what)
            queues[program[executed[what]].queue].append(what)
            state["next"] += 1
        elif kind == "start":
            head = queues[what].popleft()
            start(head)
            flying[what].append(head)
        else:
            complete(flying[what].popleft())
    assert not any(tokens.values()), "tokens left over"


def dynamic(model, machine, prompt, outputs):
    """(items, PCs in program order, words per dynamic instruction)."""
    image = compile_model(model, machine, prompt, outputs=outputs)
    plan = make_plan(model.config, machine, {n: model.layers[0][n].bits for n in LINEAR_NAMES}, None, outputs)
    program = items(plan, lay_out(model, plan, prompt)[1])
    interpreter = Interpreter(machine, image.bytes(), image.layout.next_word, arguments=(len(prompt), outputs))
    words, executed, execute = [], [], interpreter._execute

    def spy(instruction, o, pc):
        executed.append(pc)
        count = 0
        if instruction.op == Op.LDW:
            count = o[2] * o[3]
        elif instruction.op == Op.MV:
            count = stream_words(machine, o[4], o[5], instruction.flags & 15, bool(instruction.flags >> SCALES_FLAG_BIT & 1))
        words.append(count)
        return execute(instruction, o, pc)

    interpreter._execute = spy
    interpreter.run()
    return program, executed, words


@pytest.fixture(scope="module")
def case():
    machine = load_machine("nano")
    return machine, *dynamic(random_model(3, vocab=96, width=64, ffn=272, heads=4, kv_heads=2), machine, [1, 2, 3], 2)


@pytest.mark.parametrize("seed", range(6))
def test_any_timing_keeps_the_order(case, seed):
    machine, program, executed, words = case
    print(f"seed {seed}, {len(executed)} instructions")
    run(program, executed, words, machine, np.random.default_rng(seed))


def test_a_missing_wait_is_found(case):
    """Drop one wait mask at a time (and its releases' surplus is tolerated by giving tokens back): most must be caught."""
    machine, program, executed, words = case
    waiting = [pc for pc, item in enumerate(program) if item.instruction.wait and item.queue != Queue.SYS and item.reads]
    caught = 0
    for pc in waiting[:12]:
        broken = list(program)
        broken[pc] = replace(program[pc], instruction=replace(program[pc].instruction, wait=frozenset()))
        for seed in range(8):
            try:
                run(broken, executed, words, machine, np.random.default_rng(seed))
            except AssertionError:
                caught += 1
                break
    assert caught == len(waiting[:12])
