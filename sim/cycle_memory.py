"""The memory behind the ports, for the cycle simulator: `PORT` holds a port's state, `step` moves it by one cycle.

Another memory model replaces this file and nothing else: `create` makes the state, `ar_ready` says whether a port takes a read address (from
registers alone), `step` sees what the machine holds out in this cycle and gives what the port does; where it says so, `move_queues` follows
with the addresses (apart, because it is rare and the loop is hot). Rules here are those of hw/sim_memory.py.
"""

import numpy as np
from numba import njit

from headrace.hw.machine import Machine
from headrace.hw.sim_memory import MemoryTiming

FIFO = np.dtype([(name, "i8") for name in ("stored", "fetched", "valid")])
"""A StreamFifo's three places (hw/stream_fifo.py): items in the RAM, in its read register, in the output register."""

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
def ar_ready(port, timing):
    return port.reads_stored + port.reads_fetched + port.reads_valid < timing.queue


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

    reads = port.reads_stored + port.reads_fetched + port.reads_valid
    answers = port.answers_stored + port.answers_fetched + port.answers_valid
    if not ar_valid and not w_valid and port.r_valid == 0 and port.busy == 0 and reads + answers == 0:
        return 0
    done = ENTER if ar_valid and reads < timing.queue else 0
    due = port.busy == 1 or (port.reads_valid == 1 and now >= port.head_due)
    if slot and w_valid and answers < timing.queue:
        done |= WRITE
    elif slot and due:
        done |= READ
        if port.busy == 0:
            done |= TAKE
            port.left = port.head_beats
        port.left -= 1
        port.busy = 1 if port.left > 0 else 0
    port.r_valid = done & READ

    # The read queue is a StreamFifo; so is that of the responses' cycles.
    if reads or done & ENTER:
        take = done & TAKE != 0
        move = port.reads_fetched == 1 and (port.reads_valid == 0 or take)
        fetch = port.reads_stored > 0 and (port.reads_fetched == 0 or move)
        port.reads_valid = 1 if port.reads_fetched == 1 or (port.reads_valid == 1 and not take) else 0
        port.reads_fetched = 1 if fetch or (port.reads_fetched == 1 and not move) else 0
        port.reads_stored += (1 if done & ENTER else 0) - (1 if fetch else 0)
    if answers or done & WRITE:
        leave = port.answers_valid == 1 and now >= port.answer_due
        if leave:
            done |= ANSWER
        move = port.answers_fetched == 1 and (port.answers_valid == 0 or leave)
        fetch = port.answers_stored > 0 and (port.answers_fetched == 0 or move)
        port.answers_valid = 1 if port.answers_fetched == 1 or (port.answers_valid == 1 and not leave) else 0
        port.answers_fetched = 1 if fetch or (port.answers_fetched == 1 and not move) else 0
        port.answers_stored += (1 if done & WRITE else 0) - (1 if fetch else 0)
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
def skip(ports, timing, cycles):
    """`cycles` in which nothing is asked of the memory, from reset on."""
    for now in range(cycles):
        for i in range(ports.size):
            step(ports[i], timing[0], now, False, False)
