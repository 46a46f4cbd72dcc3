"""The memory behind the ports, for the cycle simulator: `PORT` holds a port's state, `step` moves it by one cycle.

Another memory model replaces this file and nothing else: `create` makes the state, `ar_ready` says whether a port takes a read address (from
registers alone), `step` sees what the machine holds out in this cycle and gives what the port does; where it says so, `move_queues` follows
with the addresses (apart, because it is rare and the loop is hot). Rules here are those of hw/sim_memory.py.
"""

import numpy as np
from numba import njit

from headrace.hw.machine import MAX_PORTS, Machine
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
QUEUE_BURSTS = 64
FIXED = np.dtype(
    [(name, "i8") for name in ("count", "p", "q", "read_latency", "trefi", "trfc", "queue")]
    + [("port", PORT, (MAX_PORTS,)), ("ring", "i8", (MAX_PORTS, 3, QUEUE_BURSTS))]
)
"""The whole memory as one record: timing, ports, and what their queues hold (when due, beats; of writes, when due)."""

READ, WRITE, ANSWER, ENTER, TAKE = 1, 2, 4, 8, 16
"""Bits of what a port did in a cycle: moved a read beat (on R in the next cycle), took a write, gave a write's response, took a read address,
began the oldest burst."""
QUEUES = WRITE | ANSWER | ENTER | TAKE
"""After any of these the port's queues have moved: `move_queues`."""


def create(machine: Machine) -> np.ndarray:
    """FIXED [1] after reset."""
    t = MemoryTiming.of(machine)
    memory = np.zeros(1, FIXED)
    for name, value in (
        ("count", t.ports), ("p", t.p), ("q", t.q), ("read_latency", t.read_latency), ("trefi", t.trefi), ("trfc", t.trfc), ("queue", t.queue_bursts),
    ):  # fmt: skip
        memory[name] = value
    memory["port"]["since"][0, : t.ports] = [(-t.refresh_start(k)) % t.trefi for k in range(t.ports)]
    return memory


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
def move_queues(port, timing, i, now, done, ar_beats):
    """What port `i` keeps of its queues after a cycle that did `done`. Addresses have no part in this model."""
    rings = timing.ring
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
def step_all(m, group, ar_beats, now, count):
    """One cycle of all ports; count: 1 where beats are counted. Gives (a port has not taken a read address, write answers)."""
    ports, lanes = m.port, group.lane
    answers = 0
    waiting = False
    for i in range(m.count):
        port, lane = ports[i], lanes[i]
        ready = ar_ready(port, m)
        lane.taken = 1 if ready and lane.ar_valid == 1 else 0
        if lane.ar_valid == 1 and not ready:
            waiting = True
        lane.arrived = port.r_valid
        did = step(port, m, now, lane.ar_valid == 1, lane.aw_valid == 1)
        if did & QUEUES:
            move_queues(port, m, i, now, did, ar_beats)
        lane.wrote = 1 if did & WRITE else 0
        if did & ANSWER:
            answers += 1
        if count:
            lane.reads += lane.arrived
            lane.writes += lane.wrote
    return waiting, answers


@njit(cache=True, error_model="numpy")
def still(m, most):
    """How many of the next `most` cycles pass before a port does anything, if nothing is asked of any in them."""
    for i in range(m.count):
        port = m.port[i]
        if port.r_valid or port.busy or port.reads_ripe or port.reads_young or port.answers_ripe or port.answers_young:
            return 0
    return most


@njit(cache=True, error_model="numpy")
def pass_by(m, cycles):
    """Cycles in which nothing is asked of the memory and nothing is under way."""
    for i in range(m.count):
        port = m.port[i]
        port.since = (port.since + cycles) % m.trefi
        port.phase = (port.phase + cycles * m.p) % m.q
