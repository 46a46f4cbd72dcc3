"""The memory behind the ports, for the cycle simulator: `PORT` holds a port's state, `step` moves it by one cycle.

Another memory model replaces this file and nothing else: `create` makes the state, `ar_ready` says whether a port takes a read address (from
registers alone), `step` sees what the machine holds out in this cycle and gives what the port does; where it says so, `move_queues` follows
with the addresses (apart, because it is rare and the loop is hot). Rules here are those of hw/sim_memory.py.
"""

import numpy as np
from numba import njit

from headrace.hw.machine import Machine
from headrace.hw.sim_memory import MemoryTiming
from headrace.hw.stream_fifo import StreamFifo

FIFO = np.dtype([(name, "i8") for name in ("young", "ripe")])
"""A StreamFifo (hw/stream_fifo.py) without its data: `young` has a bit for each of the last two cycles in which an item entered, `ripe` counts
the items that may leave. RAM, read register and output register refill while the output stands still, so an item that entered in cycle e is at
the output from max(e + StreamFifo.LATENCY, the cycle after the one before it left): a delay and a count say the same as the three places."""
assert StreamFifo.LATENCY == 3, "two cycles of `young` and one of `ripe`"

PORT = np.dtype(
    [(name, "i8") for name in ("r_valid", "busy", "left", "since", "phase", "read_head", "read_tail", "answer_head", "answer_tail")]
    + [(name, "i8") for name in ("head_due", "head_beats", "answer_due")]
    + [(f"{fifo}_{place}", "i8") for fifo in ("reads", "answers") for place in FIFO.names]
)
TIMING = np.dtype([(name, "i8") for name in ("p", "q", "read_latency", "trefi", "trfc", "queue")])

READ, WRITE, ANSWER, ENTER, TAKE = 1, 2, 4, 8, 16
"""Bits of what a port did in a cycle: moved a read beat (on R in the next cycle), took a write, gave a write's response, took a read address,
began the oldest burst."""
QUEUES = WRITE | ANSWER | ENTER | TAKE
"""After any of these the port's queues have moved: `move_queues`."""


def create(machine: Machine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ports PORT [P], timing TIMING [1], rings int64 [P, 3, queue]) after reset."""
    t = MemoryTiming.of(machine)
    ports = np.zeros(t.ports, PORT)
    for k in range(t.ports):
        ports[k]["since"] = (-t.refresh_start(k)) % t.trefi
    timing = np.zeros(1, TIMING)
    timing[0] = (t.p, t.q, t.read_latency, t.trefi, t.trfc, t.queue_bursts)
    return ports, timing, np.zeros((t.ports, 3, t.queue_bursts), np.int64)


@njit(cache=True, error_model="numpy")
def fifo_step(fifo, enter, leave):
    """One cycle: an item enters, the item at the output leaves."""
    fifo.ripe += (fifo.young >> 1) - (1 if leave else 0)
    fifo.young = ((fifo.young << 1) | (1 if enter else 0)) & 3


@njit(cache=True, error_model="numpy")
def fifo_level(fifo):
    return fifo.ripe + (fifo.young & 1) + (fifo.young >> 1)


@njit(cache=True, error_model="numpy")
def ar_ready(port, timing):
    return port.reads_ripe + (port.reads_young & 1) + (port.reads_young >> 1) < timing.queue


@njit(cache=True, error_model="numpy")
def step(port, timing, now, ar_valid, w_valid):
    """One cycle of a port; `now` counts from reset. ar_valid, w_valid: what stands on AR, and on AW and W together. Gives the bits above.

    R and B are always taken (the machine's ready signals are constant).
    """
    # The slot: p of q cycles (phase accumulator), none in the trfc cycles after a refresh began.
    slot = True
    if timing.p != timing.q:
        slot = port.phase + timing.p >= timing.q
        port.phase += timing.p - timing.q if slot else timing.p
    if port.since < timing.trfc:
        slot = False
    port.since += 1
    if port.since == timing.trefi:
        port.since = 0

    reads = port.reads_ripe + (port.reads_young & 1) + (port.reads_young >> 1)
    done = ENTER if ar_valid and reads < timing.queue else 0
    due = port.busy == 1 or (port.reads_ripe > 0 and now >= port.head_due)
    write = False
    if w_valid or port.answers_ripe > 0 or port.answers_young > 0:
        answers = port.answers_ripe + (port.answers_young & 1) + (port.answers_young >> 1)
        write = slot and w_valid and answers < timing.queue
        leave = port.answers_ripe > 0 and now >= port.answer_due
        done |= (WRITE if write else 0) | (ANSWER if leave else 0)
        port.answers_ripe += (port.answers_young >> 1) - (1 if leave else 0)
        port.answers_young = ((port.answers_young << 1) | (1 if write else 0)) & 3
    port.r_valid = 0
    if slot and due and not write:
        done |= READ
        port.r_valid = 1
        if port.busy == 0:
            done |= TAKE
            port.left = port.head_beats
        port.left -= 1
        port.busy = 1 if port.left > 0 else 0
    port.reads_ripe += (port.reads_young >> 1) - (1 if done & TAKE else 0)
    port.reads_young = ((port.reads_young << 1) | (1 if done & ENTER else 0)) & 3
    return done


@njit(cache=True, error_model="numpy")
def move_queues(port, timing, rings, i, now, done, ar_address, ar_beats, w_address):
    """What port `i` keeps of addresses after a cycle that did `done`. Addresses are port-local beats, not used by this model."""
    last = timing.queue - 1
    if done & ENTER:
        # A beat read in cycle c stands on R in c + 1: due one cycle before its latency is over.
        rings[i, 0, port.read_tail] = now + timing.read_latency - 1
        rings[i, 1, port.read_tail] = ar_beats
        port.read_tail = (port.read_tail + 1) & last
    if done & TAKE:
        port.read_head = (port.read_head + 1) & last
    if done & WRITE:
        rings[i, 2, port.answer_tail] = now + timing.read_latency
        port.answer_tail = (port.answer_tail + 1) & last
    if done & ANSWER:
        port.answer_head = (port.answer_head + 1) & last
    port.head_due, port.head_beats = rings[i, 0, port.read_head], rings[i, 1, port.read_head]
    port.answer_due = rings[i, 2, port.answer_head]


@njit(cache=True, error_model="numpy")
def step_all(memory, lanes, ar_address, ar_beats, now, counters, reads_at, writes_at):
    """One cycle of all ports. reads_at, writes_at: places of their beats in `counters`, or -1. Gives (a port has not taken a read address, write
    answers)."""
    ports, timings, rings = memory
    timing = timings[0]
    answers = 0
    waiting = False
    for i in range(ports.size):
        port, lane = ports[i], lanes[i]
        ready = ar_ready(port, timing)
        lane.taken = 1 if ready and lane.ar_valid == 1 else 0
        if lane.ar_valid == 1 and not ready:
            waiting = True
        lane.arrived = port.r_valid
        did = step(port, timing, now, lane.ar_valid == 1, lane.aw_valid == 1)
        if did & QUEUES:
            move_queues(port, timing, rings, i, now, did, ar_address, ar_beats, lane.aw_address)
        lane.wrote = 1 if did & WRITE else 0
        if did & ANSWER:
            answers += 1
        if reads_at >= 0:
            counters[reads_at + i] += lane.arrived
            counters[writes_at + i] += lane.wrote
    return waiting, answers


@njit(cache=True, error_model="numpy")
def still(memory, most):
    """How many of the next `most` cycles pass before a port does anything, if nothing is asked of any in them."""
    for port in memory[0]:
        if port.r_valid or port.busy or port.reads_ripe or port.reads_young or port.answers_ripe or port.answers_young:
            return 0
    return most


@njit(cache=True, error_model="numpy")
def pass_by(memory, cycles):
    """Cycles in which nothing is asked of the memory and nothing is under way."""
    ports, timings, _ = memory
    timing = timings[0]
    for port in ports:
        port.since = (port.since + cycles) % timing.trefi
        port.phase = (port.phase + cycles * timing.p) % timing.q
