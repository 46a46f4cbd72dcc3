"""L1, the cycle simulator: a compiled program on the machine's units, instruction by instruction, without the data.

`simulate` is the whole interface. Every cycle of the RTL's control is stepped (sim/cycle_kernel.py): sequencer, queues, tokens, bursts, FIFOs,
the units' pipelines and the memory's slots. No number comes from a run of the RTL: latencies and depths are the blocks' own attributes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.hw.isa import Instruction, Op, Queue
from headrace.hw.machine import Machine
from headrace.hw.top import control_parameters
from headrace.hw.dram_ports import dram_of
from headrace.sim import cycle_dram, cycle_memory
from headrace.sim.cycle_kernel import BOOT_LOADS, HALTED, REGISTERS, WATCHDOG, run
from headrace.sim.cycle_sfu import DEPENDENCY, DRAIN, timeline
from headrace.sim.cycle_state import GROUP, LD, MV, QUEUE, SEQUENCER, SFU, ST, ST_RING, sizes
from headrace.sim.cycle_stream import Program, dynamic_stream

HOST_WRITE_CYCLES = 2
"""Of one AXI-Lite write by the co-simulation's host (sim/cosim_driver.py): taken in one cycle, answered in the next."""


def host_cycles(arguments: int) -> int:
    """Cycles from reset to the start pulse: the co-simulation's host writes the arguments and the header's address first."""
    return HOST_WRITE_CYCLES * (arguments + 1)


MOST_REQUESTS = (1 << 31) - 1
"""Of a DRAM channel in a run: a request's number must fit beside its place (sim/dram_core.py)."""


class CycleError(RuntimeError):
    """The machine would stop: watchdog or a token counter past its limit."""


@dataclass(frozen=True)
class CycleResult:
    """What a run takes.

    cycles: of the program. marks: (id, cycle) of every MARK. counters: the names of the RTL's counters. The arrays [n] are in order of the
    stream, that is of the program as executed: `queue`, `pc`, `op`; `dispatched`, `started`, `retired`: cycle, 0 = the first of the program.
    """

    cycles: int
    marks: tuple[tuple[int, int], ...]
    counters: dict[str, int]
    queue: np.ndarray
    pc: np.ndarray
    op: np.ndarray
    dispatched: np.ndarray
    started: np.ndarray
    retired: np.ndarray
    partitions: dict[str, tuple[str, ...]] = field(repr=False)

    def retirements(self, queue: Queue) -> tuple[np.ndarray, np.ndarray]:
        """(pc, cycle) of a queue's instructions, in order."""
        own = self.queue == queue
        return self.pc[own], self.retired[own]


def simulate(
    program: Sequence[Instruction], machine: Machine, arguments: Sequence[int] = (), *, values: Sequence[int] = (), program_word: int = 0,
    header_word: int = 0, start_cycle: int | None = None, instruction_limit: int = 20_000_000, symmetric: bool = True,
) -> CycleResult:
    """Run `program` to HALT.

    arguments
        R1, R2, ...
    values
        What the RDV instructions read, in order (0 after the last).
    program_word, header_word
        Where boot loads program and header from: its loads set the memory's phase.
    start_cycle
        Cycles from the memory's reset to the start pulse; those of the co-simulation's host unless given. It decides when refreshes fall.
    symmetric
        Step only one of DRAM channels that are in the same state. The result is the same without, later.

    Raises CycleError where the machine would latch an error, cycle_stream.StreamError for a program that does not end.
    """
    coded = Program.of(program)
    stream = dynamic_stream(coded, arguments, values, limit=instruction_limit)
    k = sizes(machine, len(program))
    parameters = control_parameters(machine)
    n = len(stream.pc)

    # The stream with boot's two loads in front.
    first = BOOT_LOADS
    op = np.zeros(first + n, np.int64)
    pc = np.zeros(first + n, np.int64)
    operands = np.zeros((first + n, stream.operands.shape[1]), np.int64)
    taken = np.zeros(first + n, np.int8)
    op[:first] = Op.LD_SYS
    per_word = int(k[0]["instructions_per_word"])
    operands[0, :3] = header_word, k[0]["header_words"], 1
    operands[1, :3] = program_word, -(-len(program) // per_word), 1
    op[first:], pc[first:], operands[first:], taken[first:] = coded.op[stream.pc], stream.pc, stream.operands, stream.taken
    queue = op >> 5
    offsets, lengths, marks = _vec_timelines(op, coded.flags[pc], operands)
    loads = np.flatnonzero((queue == Queue.LD) & (op & 31 != 0))
    products = np.flatnonzero(op == Op.MV)

    counters = np.zeros(len(parameters.counter_names), np.int64)
    times = tuple(np.zeros(first + n, np.int64) for _ in range(3))
    begin = host_cycles(len(arguments)) if start_cycle is None else start_cycle
    ahead = begin + 1
    fixed = cycle_memory.create(machine)
    dram = cycle_dram.create(dram_of(machine), symmetric=symmetric)
    state, rings = _state(k)
    if machine.memory.dram:
        cycle_dram.pass_by(dram[0], ahead)
    else:
        cycle_memory.pass_by(fixed[0], ahead)
    status, culprit, cycles = run(
        k, state, fixed, dram, rings, (coded.flags, coded.wait, coded.release),
        (op, pc, operands, taken, _padded(loads), _padded(products), offsets, lengths, marks, _before(marks, DEPENDENCY), _before(marks, DRAIN)),
        counters, times, ahead,
    )  # fmt: skip
    if dram["bridge"]["entered"].max() > MOST_REQUESTS:
        raise CycleError(f"cycle {cycles}: a DRAM channel has had more than {MOST_REQUESTS} requests, whose ages are then too large to compare")
    if status != HALTED:
        what = "no instruction retires any more (watchdog)" if status == WATCHDOG else "a token counter passes its limit"
        raise CycleError(f"cycle {cycles}: {what}, queue {Queue(culprit).name}")
    named = {name: int(value) for name, value in zip(parameters.counter_names, counters, strict=True)}
    marked = np.flatnonzero(op == Op.MARK)
    return CycleResult(
        cycles=int(cycles), marks=tuple((int(operands[i, 0]), int(times[2][i])) for i in marked), counters=named,
        queue=queue[first:], pc=pc[first:], op=op[first:], dispatched=times[0][first:], started=times[1][first:], retired=times[2][first:],
        partitions=parameters.partitions(),
    )  # fmt: skip


def _padded(order: np.ndarray) -> np.ndarray:
    return np.append(order, 0).astype(np.int64)


def _before(marks: np.ndarray, bit: int) -> np.ndarray:
    """[i]: how many of the first i marks have `bit`, and no other stall before it (a dependency hides a drain)."""
    has = marks & bit != 0 if bit == DEPENDENCY else (marks & DRAIN != 0) & (marks & DEPENDENCY == 0)
    return np.concatenate([[0], np.cumsum(has)]).astype(np.int64)


def _vec_timelines(op: np.ndarray, flags: np.ndarray, operands: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offset, length of every instruction, marks): the timelines of all different VEC commands one after the other."""
    offsets, lengths = np.zeros(len(op), np.int64), np.zeros(len(op), np.int64)
    vec = np.flatnonzero(op == Op.VEC)
    if not vec.size:
        return offsets, lengths, np.zeros(1, np.uint8)
    kinds, place = np.unique(np.column_stack([flags[vec] & 0xFF, operands[vec, 4], operands[vec, 5]]), axis=0, return_inverse=True)
    place = place.reshape(-1)
    parts = [timeline(*(int(v) for v in kind)) for kind in kinds]
    counts = np.array([len(part) for part in parts])
    offsets[vec] = (np.cumsum(counts) - counts)[place]
    lengths[vec] = counts[place] - 1
    return offsets, lengths, np.concatenate(parts)


def _state(k: np.ndarray):
    """(records, rings) after reset; boot starts in the next cycle."""
    size = k[0]
    ports = int(size["ports"])
    sequencer, queues = np.zeros(1, SEQUENCER), np.zeros(4, QUEUE)
    ld, mv, st, sfu = np.zeros(1, LD), np.zeros(1, MV), np.zeros(1, ST), np.zeros(1, SFU)
    sequencer["boot"], sequencer["next"] = REGISTERS, BOOT_LOADS
    queues["head"] = -1
    ld["free"], mv["s_places"], st["room"] = size["port_fifo"], size["scale_rows"], size["st_fifo"]

    def row(count):
        return np.zeros(count, np.int64)

    group = np.zeros(1, GROUP)
    group["count"], group["order"][0, :ports] = ports, np.arange(ports)
    state = sequencer, queues, ld, mv, st, sfu, np.zeros(4, cycle_memory.FIFO), group
    rings = (
        np.zeros((4, int(size["queue_depth"])), np.int64), np.zeros((4, int(size["in_flight"])), np.int64), row(ST_RING),
        np.zeros((5, 5), np.int64), row(5), np.full(5, -1), row(5),
    )  # fmt: skip
    return state, rings
