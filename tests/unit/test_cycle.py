"""The cycle simulator by itself: what blocks state of their latencies, counters that partition the cycles, refusals."""

import numpy as np
import pytest
from random_programs import RandomProgram

from headrace.hw.isa import Instruction, Op, Operand, Program, Queue
from headrace.hw.ld_unit import LdUnit
from headrace.hw.machine import load_machine
from headrace.hw.sfu_timing import NOP_CYCLES, sfu_cycles, sfu_vector_accesses
from headrace.sim.cycle import CycleError, simulate
from headrace.sim.cycle_memory import FIFO, fifo_level, fifo_step
from headrace.sim.cycle_sfu import VB_READ, VB_WRITE, timeline
from headrace.sim.cycle_stream import StreamError

NANO = load_machine("nano")
HALT = Instruction(Op.HALT)


def machine(**memory):
    return load_machine("nano", [f"memory.{name}={value}" for name, value in memory.items()])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("memory", [{}, {"p": 2, "q": 3, "read_latency_cycles": 90}, {"outstanding_bursts": 1, "burst_beats": 4}])
def test_counters_partition_the_cycles(seed, memory):
    print("seed", seed)
    made = machine(**memory)
    program = RandomProgram(made, seed)
    result = simulate(program.instructions, made, program_word=program.program_section.base)
    for unit, parts in result.partitions.items():
        assert sum(result.counters[part] for part in parts) == result.cycles, unit
    for unit in ("ld", "st", "mv", "vec"):
        stalls = sum(value for name, value in result.counters.items() if name.startswith(f"{unit}_stall"))
        assert result.counters[f"{unit}_busy"] == result.counters[f"{unit}_active"] + stalls
    for queue in Queue:
        assert result.counters[f"instructions_{queue.name.lower()}"] == (result.queue == queue).sum()
    assert (result.dispatched <= result.started).all() and (result.started <= result.retired).all()
    for queue in Queue:
        own = result.retired[result.queue == queue]
        assert (np.diff(own) >= 0).all(), "a queue retires in order"
    assert result.retired.max() == result.cycles - 1


def test_beats_are_those_of_the_operands():
    program = [
        Instruction(Op.LDV, (100, 40, 2, 64, 0)), Instruction(Op.LDA, (300, 1, 7, 3, 0, 1)), Instruction(Op.STV, (800, 0, 9)), HALT,
    ]  # fmt: skip
    counters = simulate(program, NANO).counters
    assert [counters[f"read_beats_port{i}"] for i in range(2)] == [87, 87]
    assert [counters[f"write_beats_port{i}"] for i in range(2)] == [5, 4]


def test_latencies_that_blocks_state():
    """A load alone: from its start to its first word LdUnit.LATENCY and the memory's, P rows a word, two cycles to done."""
    for words in (1, 5, 16):
        still = machine(trfc_ns=0.0)
        result = simulate([Instruction(Op.LDV, (64, words, 1, 0, 0)), HALT], still)
        loaded = result.retired[0] - result.started[0]
        assert loaded == LdUnit.LATENCY + still.memory.read_latency_cycles + 2 * words - 1 + 2
    for program, n, reps in ((Program.QUANT, 70, 3), (Program.SOFTMAX, 33, 2), (Program.ADD, 5, 1)):
        result = simulate([Instruction(Op.VEC, (0, 500, 600, 700, n, reps, 0), int(program)), HALT], NANO)
        assert result.retired[0] - result.started[0] == sfu_cycles(program, n, reps)
        assert result.counters["vec_busy"] == sfu_cycles(program, n, reps) - 1
    assert NOP_CYCLES == 2


@pytest.mark.parametrize("program", Program)
def test_timeline_has_every_access(program):
    for n, reps in ((16, 1), (176, 5), (1008, 2)):
        marks = timeline(int(program), n, reps)
        reads, writes = sfu_vector_accesses(int(program), n, reps)
        assert len(marks) == sfu_cycles(int(program), n, reps) + 1
        assert ((marks & VB_READ) != 0).sum() == reads
        assert ((marks & VB_WRITE) != 0).sum() == writes


def test_refresh_costs_what_it_takes():
    """A long stream on memory without and with refresh: longer by about its share of the time."""
    program = [Instruction(Op.LDA, (0, 1, 1000, 1, 0, 0)), HALT]
    still, busy = simulate(program, machine(trfc_ns=0.0)).cycles, simulate(program, NANO).cycles
    assert still < busy
    assert simulate(program, machine(trfc_ns=0.0, p=1, q=2)).cycles >= still


def test_a_program_that_waits_for_ever():
    impatient = load_machine("nano", ["control.watchdog_cycles=1024"])
    with pytest.raises(CycleError, match="watchdog"):
        simulate([Instruction(Op.MV_NOP, wait=frozenset({Queue.LD})), HALT], impatient)


def test_too_many_tokens():
    with pytest.raises(CycleError, match="limit, queue LD"):
        simulate([Instruction(Op.LD_NOP, release=frozenset({Queue.MV}))] * 16 + [HALT], NANO)


def test_streams_that_do_not_end():
    with pytest.raises(StreamError, match="past the program's 1"):
        simulate([Instruction(Op.SYS_NOP)], NANO)
    with pytest.raises(StreamError, match="no HALT within 100"):
        simulate([Instruction(Op.BNE, (1, 2, 0)), HALT], NANO, instruction_limit=100)


def test_values_steer_the_program():
    program = [
        Instruction(Op.RDV, (0, 0), 3), Instruction(Op.BNE, (Operand(0, 3), 7, 3)), Instruction(Op.MARK, (1,)), HALT,
    ]  # fmt: skip
    assert [mark for mark, _ in simulate(program, NANO, values=(7,)).marks] == [1]
    assert simulate(program, NANO, values=(8,)).marks == ()


@pytest.mark.parametrize("seed", range(5))
def test_fifo_is_the_three_places_of_the_rtl(seed):
    """hw/stream_fifo.py's own equations (RAM, read register, output register) against the delay and count of the cycle simulator."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    stored = fetched = valid = 0
    fifo = np.zeros(1, FIFO)
    depth = 16
    enters, readies = rng.random(3000) < rng.uniform(0.2, 0.9), rng.random(3000) < rng.uniform(0.2, 0.9)
    for enter, ready in zip(enters.tolist(), readies.tolist(), strict=True):
        level = stored + fetched + valid
        assert fifo_level(fifo[0]) == level
        assert (fifo[0]["ripe"] > 0) == bool(valid)
        enter = enter and level < depth
        leave = ready and bool(valid)
        move = fetched and (not valid or ready)
        fetch = stored > 0 and (not fetched or move)
        valid, fetched = int(bool(fetched) or (bool(valid) and not ready)), int(fetch or (bool(fetched) and not move))
        stored += int(enter) - int(fetch)
        fifo_step(fifo[0], enter, leave)
