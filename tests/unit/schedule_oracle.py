"""A cycle-stepped model of the machine's schedule, for tests of the analytic level: it runs the compiled program.

Sequencer, queues, tokens and units are stepped cycle by cycle with the latencies that the blocks state; memory ports refresh in their own
windows and every word passes the FIFOs. No data: SYS instructions are executed, everything else only takes time.
"""

from collections import deque
from math import ceil

from headrace.hw.isa import SCALES_FLAG_BIT, Op, Program, Queue
from headrace.hw.machine import Machine
from headrace.hw.sfu_timing import sfu_cycles
from headrace.mapping.analytic_timing import (
    BRANCH_TAKEN_CYCLES, LD_DONE_CYCLES, MV_FRONT_CYCLES, MV_START_CYCLES, RAW_FIFO_CYCLES, SYS_CYCLES, SYS_DEFAULT_CYCLES, MachineColumns,
)  # fmt: skip
from headrace.mapping.stream import stripe_words

MASK = (1 << 32) - 1
IN_FLIGHT = 8
RESULT_STRIPES = 8
"""Finished stripes that wait for the scale unit."""


class Ports:
    """Read data of words in order: when each is complete over all ports."""

    def __init__(self, machine: Machine):
        m, memory = machine, machine.memory
        self.ports, self.trefi, self.trfc, self.step = memory.ports, m.trefi_cycles, m.trfc_cycles, memory.q / memory.p
        self.last = [-1.0] * memory.ports

    def arrival(self, due: int) -> int:
        """Of the next word, whose beats may come from cycle `due` on."""
        for port in range(self.ports):
            time = max(due, self.last[port] + self.step)
            since = (time - port * self.trefi // self.ports) % self.trefi
            if since < self.trfc:
                time += self.trfc - since
            self.last[port] = time
        return ceil(max(self.last))


class Oracle:
    """Runs a program of `mapping.compiler.generate`; `marks` are (identity, cycle)."""

    def __init__(self, machine: Machine, program, arguments: dict[int, int]):
        self.machine, self.program, self.columns = machine, program, MachineColumns.of(machine)
        self.registers = [0] * 32
        for register, value in arguments.items():
            self.registers[register] = value
        self.tokens = {(a, b): 0 for a in Queue for b in Queue}
        self.released: deque = deque()
        self.queues: dict[Queue, deque] = {queue: deque() for queue in Queue if queue != Queue.SYS}
        self.started: dict[Queue, deque] = {queue: deque() for queue in self.queues}  # [instruction, done time or None]
        self.free = dict.fromkeys(self.queues, 0)
        self.marks: list[tuple[int, int]] = []
        self.now = 0
        # LD
        self.ports = Ports(machine)
        self.to_issue: deque = deque()  # words: (kind, entry, last of the command)
        self.arriving: deque = deque()  # (time, kind, entry, last)
        self.port_capacity = int(self.columns.in_flight_words)
        self.raw: deque = deque()  # times at which words may be taken
        self.ld_busy = 0
        # MV
        self.mv: deque = deque()  # [entry, words of each stripe left, words left in this stripe, stripes left]
        self.front = 0
        self.scaled: deque = deque()  # times at which the scale unit begins stripes
        self.scale_free = 0

    # Tokens

    def _may_take(self, queue: Queue, instruction) -> bool:
        if any(self.tokens[source, queue] == 0 for source in instruction.wait):
            return False
        for source in instruction.wait:
            self.tokens[source, queue] -= 1
        return True

    def _retire(self, queue: Queue, instruction) -> None:
        for target in instruction.release:
            self.released.append((self.now + 1, queue, target))

    # One cycle

    def run(self, limit: int = 10**7) -> int:
        pc, ready, barrier = 0, 0, False
        while self.now < limit:
            while self.released and self.released[0][0] <= self.now:
                _, source, target = self.released.popleft()
                self.tokens[source, target] += 1
            self._units()
            if barrier and not any(self.queues.values()) and not any(self.started.values()):
                barrier, ready, pc = False, self.now + 1, pc + 1
            elif not barrier and self.now >= ready:
                instruction = self.program[pc]
                queue = instruction.op.queue
                if queue != Queue.SYS:
                    if len(self.queues[queue]) < self.machine.control.queue_depth:
                        values = [(o if isinstance(o, int) else o.imm + self.registers[o.reg]) & MASK for o in instruction.operands]
                        self.queues[queue].append((self.now + 1, instruction, values))
                        ready, pc = self.now + 1, pc + 1
                elif instruction.op == Op.HALT:
                    return self.now
                elif instruction.op == Op.BAR:
                    barrier = True
                elif self._may_take(queue, instruction):
                    ready, pc = self._sys(instruction, pc)
            self.now += 1
        raise AssertionError(f"no end after {limit} cycles at pc {pc}")

    def _sys(self, instruction, pc: int) -> tuple[int, int]:
        values = [(o.imm + self.registers[o.reg]) & MASK for o in instruction.operands] + [0, 0]
        a, b = values[:2]
        op = instruction.op
        self._retire(Queue.SYS, instruction)
        if op in (Op.BNE, Op.BLT):
            taken = a != b if op == Op.BNE else a < b
            return (self.now + BRANCH_TAKEN_CYCLES, values[2]) if taken else (self.now + SYS_DEFAULT_CYCLES, pc + 1)
        if op == Op.MARK:
            self.marks.append((a, self.now))
        results = {
            Op.SET: a, Op.ADD: a + b, Op.SUB: a - b, Op.MUL: a * b, Op.SHL: a << (b & 31), Op.SHR: a >> (b & 31), Op.AND: a & b, Op.RDV: 0,
        }  # fmt: skip
        if op in results and instruction.flags & 31:
            self.registers[instruction.flags & 31] = results[op] & MASK
        return self.now + SYS_CYCLES.get(op, SYS_DEFAULT_CYCLES), pc + 1

    def _units(self) -> None:
        self._ld_words()
        self._mv_words()
        for queue, waiting in self.queues.items():
            started = self.started[queue]
            while started and started[0][1] is not None and started[0][1] <= self.now:
                self._retire(queue, started.popleft()[0])
            if not waiting or waiting[0][0] > self.now or self.now < self.free[queue] or len(started) >= IN_FLIGHT:
                continue
            _, instruction, values = waiting[0]
            if not self._may_take(queue, instruction):
                continue
            waiting.popleft()
            entry = [instruction, None]
            started.append(entry)
            self._start(queue, instruction, values + [0] * 7, entry)

    def _start(self, queue: Queue, instruction, o, entry) -> None:
        op = instruction.op
        if op in (Op.LD_NOP, Op.ST_NOP, Op.MV_NOP, Op.VEC_NOP):
            entry[1] = self.now + 1
        elif queue == Queue.VEC:
            program = Program(instruction.flags & 0xFF)
            entry[1] = self.free[queue] = self.now + sfu_cycles(int(program), o[4], max(1, o[5]))
        elif queue == Queue.ST:
            items = {Op.STV: o[2], Op.STS: o[2], Op.STK: o[2] * o[3], Op.STT: 8 * o[2] * o[3]}[op]
            entry[1] = self.free[queue] = self.now + ceil(self.columns.store_cycles(items))
        elif queue == Queue.LD:
            words = o[2] if op == Op.LDA else o[1] * o[2]
            for i in range(words):
                self.to_issue.append((op, entry, i == words - 1, self.now + 2))
        else:
            bits, scales = instruction.flags & 15, instruction.flags >> SCALES_FLAG_BIT & 1
            self.free[queue] = self.now + MV_FRONT_CYCLES
            self.mv.append([entry, stripe_words(self.machine, o[4], bits), bool(scales), o[3], 0, 0, self.now + MV_START_CYCLES])

    def _ld_words(self) -> None:
        if self.to_issue and len(self.arriving) < self.port_capacity and self.to_issue[0][3] <= self.now:
            op, entry, last, _ = self.to_issue.popleft()
            self.arriving.append((self.ports.arrival(self.now + self.machine.memory.read_latency_cycles) + 3, op, entry, last))
        if not self.arriving or self.arriving[0][0] > self.now or self.now < self.ld_busy:
            return
        _, op, entry, last = self.arriving[0]
        if op == Op.LDW:
            if len(self.raw) >= self.machine.buffers.raw_fifo_words:
                return
            self.raw.append(self.now + RAW_FIFO_CYCLES)
            self.ld_busy = self.now + 1
        else:
            self.ld_busy = self.now + (self.machine.memory.ports if op == Op.LDV else 1)
        self.arriving.popleft()
        if last:
            entry[1] = self.ld_busy - 1 + LD_DONE_CYCLES

    def _mv_words(self) -> None:
        """One word a cycle; a stripe's words end in a result for the scale unit, and only so many may wait there."""
        while self.scaled and self.scaled[0] <= self.now:
            self.scaled.popleft()
        if not self.mv or self.now < self.mv[0][6] or not self.raw or self.raw[0] > self.now:
            return
        job = self.mv[0]
        entry, per_stripe, scales, stripes, stripe, word, _ = job
        if word == per_stripe - 1 + (scales and stripe % self.machine.stripes_per_scale_word == 0) and len(self.scaled) >= RESULT_STRIPES:
            return
        self.raw.popleft()
        job[5] += 1
        if job[5] < per_stripe + (scales and stripe % self.machine.stripes_per_scale_word == 0):
            return
        results = int(self.columns.results_cycles)
        after = int(self.columns.mv_tail_cycles) - results
        begin = max(self.now + after, self.scale_free)
        self.scale_free = begin + results
        self.scaled.append(begin)
        job[4], job[5] = stripe + 1, 0
        if job[4] == stripes:
            entry[1] = self.scale_free
            self.mv.popleft()


def step_cycles(program, *, prompt: int, outputs: int, machine: Machine) -> list[int]:
    """Cycles of each decode step: between the ends of the passes that wrote one token and the next."""
    oracle = Oracle(machine, program, {1: prompt, 2: outputs})
    oracle.run()
    times = [cycle for identity, cycle in oracle.marks if identity > 0]
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
