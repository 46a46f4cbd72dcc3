"""DRAM channels behind the ports, for the cycle simulator: docs/memory.md section 12.

Of channels that are in the same state one is stepped (sim/cycle_symmetry.py). A channel that owes a read may lag behind the core by as many
command cycles as there are from a column command to its completion, one that owes nothing as it likes; it may run ahead to where the core's next
request can reach it.
"""

import numpy as np
from numba import njit

from headrace.hw.dram_ports import ADDRESS_QUEUE, READ_RING, WRITE_RING, DramPorts
from headrace.hw.machine import MAX_PORTS
from headrace.sim.dram_core import BANK_MASK, CHANNEL, FAR, PLACE_MASK, ROW_SHIFT, RULES, channels, cycle, enter, issue_read, leave, next_cycle, rules

FIELDS = 64
"""Pieces of an address at most: more bits than the largest preset has to choose a row, column and bank, and a piece has one at least."""
BURST = 16
"""Beats that a burst has at most, none of which crosses a multiple of it."""
MERGE_EVERY = 64
"""Core cycles between two looks whether channels have come together again."""
LONGEST = 1 << 22
"""Core cycles passed at once at most: times q, which is below 2**40, they fit 63 bits."""

PORT = np.dtype(
    [(name, "i8") for name in ("base_bank", "r_valid", "left", "address", "high", "next_at", "level", "q_head", "q_tail", "r_head", "r_tail", "r_sent")]
    + [(name, "i8") for name in ("w_level", "wq_head", "wq_tail", "w_tail", "w_sent", "b_head", "b_tail")]
    + [(name, "i8", (ADDRESS_QUEUE,)) for name in ("q_due", "q_address", "q_beats", "wq_due", "wq_key")]
    + [(name, "i8", (READ_RING,)) for name in ("ring_key", "ring_from", "ring_done")]
    + [(name, "i8", (WRITE_RING,)) for name in ("w_key", "w_from", "b_done")]
)
"""A port. Counters run on, a place is a counter modulo its ring: r_tail beats were put into the read ring, r_sent have entered the channel, r_head
have moved to R; w_tail, w_sent, b_tail, b_head: writes put into the write ring, entered, completed, answered. Keys are row and bank as in a
queue of the channel, high: that of the burst without its lowest bits; next_at: the core cycle in which the next beat may be put in; from: the
command cycle from which an entry may enter; done: the completion cycle, FAR while it is not known."""

BRIDGE = np.dtype([("turn", "i8"), ("entered", "i8")])
"""Between ports and channel. entered: requests so far, the next one's age. The tag of a request is its port and, below bit 16, its place."""

DRAM = np.dtype(
    [(name, "i8") for name in ("p", "q", "whole", "rest", "phase", "last", "now", "latency", "pcs", "channels", "active", "symmetric", "merge_in")]
    + [(name, "i8") for name in ("changed", "read_lag", "write_lag", "fields")]
    + [(name, "i8", (FIELDS,)) for name in ("mask", "bits", "up")]
    + [("low", "i8", (BURST,))]
    + [(name, "i8", (MAX_PORTS,)) for name in ("order", "of", "apart")]
    + [("rules", RULES), ("bridge", BRIDGE, (MAX_PORTS,)), ("channel", CHANNEL, (MAX_PORTS,)), ("port", PORT, (MAX_PORTS,))]
)
"""All of it, as one record: numba counts references of arrays at every call, of records not. last: T(n) of docs/memory.md; whole, rest: of q / p.
order: the channels, of which the first `active` are stepped; of: the channel that stands for each; apart: read beats of a port beyond those of the
port that stands for it. mask, bits, up: of a field of the address, its bits and where they go in a key; low: keys of an address's lowest bits."""


def create(parameters: DramPorts | None, *, symmetric: bool) -> np.ndarray:
    """DRAM [1] after reset; without parameters the record of a machine that has none."""
    memory = np.zeros(1, DRAM)
    if parameters is None:
        return memory
    m, t, count = memory[0], parameters.timing, parameters.channels
    at = {"bank": ROW_SHIFT - 8, "bank_group": (t.banks_per_group - 1).bit_length(), "row": ROW_SHIFT, "column": -1}
    for name, value in (
        ("p", parameters.p), ("q", parameters.q), ("whole", parameters.q // parameters.p), ("rest", parameters.q % parameters.p), ("last", -1),
        ("latency", parameters.latency), ("pcs", t.pcs), ("channels", count), ("active", 1 if symmetric else count), ("symmetric", symmetric),
        ("merge_in", MERGE_EVERY), ("changed", 1), ("read_lag", t.cl + t.bl), ("write_lag", min(t.cl, t.cwl) + t.bl),
        ("fields", len(parameters.fields)),
    ):  # fmt: skip
        m[name] = value
    for i, (name, bits) in enumerate(parameters.fields):
        m["bits"][i], m["mask"][i], m["up"][i] = bits, 0 if name == "column" else (1 << bits) - 1, max(at[name], 0)
        at[name] += bits
    m["rules"] = rules(t)[0]
    m["channel"][:count] = channels(t, count)
    ports = m["port"][: parameters.ports]
    ports["base_bank"] = np.arange(parameters.ports) % t.pcs * t.banks_per_pc
    ports["ring_done"] = FAR
    m["low"] = [key_of(memory[0], beat, 0) for beat in range(BURST)]
    m["order"] = np.arange(MAX_PORTS)
    m["of"] = 0 if symmetric else np.arange(MAX_PORTS)
    return memory


@njit(cache=True, error_model="numpy")
def key_of(m, beat, base):
    """A port's beat address as row and bank of its channel."""
    key = 0
    for i in range(m.fields):
        key |= (beat & m.mask[i]) << m.up[i]
        beat >>= m.bits[i]
    return key + base


@njit(cache=True, error_model="numpy")
def only_hits(m, number):
    """Whether a channel holds nothing but reads of open rows, in its queue alone, so that no row command is wanted."""
    c, ports = m.channel[number], m.port
    if c.slots_used != 0 or c.write_mode != 0 or c.tail[1] != c.head[1] or c.refab_pending != 0 or c.refpb_bank >= 0 or m.rules.closed_page != 0:
        return False
    for i in range(number * m.pcs, (number + 1) * m.pcs):
        if ports[i].w_sent != ports[i].w_tail:
            return False
    queues, open_row = c.queues, c.open_row
    for place in range(c.head[0], c.tail[0]):
        key = queues[0, place] & PLACE_MASK
        if open_row[key & BANK_MASK] != key >> ROW_SHIFT:
            return False
    return True


@njit(cache=True, error_model="numpy")
def flow(m, number, until, horizon):
    """Command cycles of a channel as long as it holds and gets only hits: what `cycle` and `enter` do then, without their other cases.

    horizon: a refresh becomes due in this cycle. A read that enters an empty queue and may have its RD in the next cycle gets it at once.
    """
    c, p, bridge, ports, pcs = m.channel[number], m.rules, m.bridge[number], m.port, m.pcs
    first = number * pcs
    t = c.t
    open_row, group_of, pc_of, queues, tags = c.open_row, p.group_of, p.pc_of, c.queues, c.tags
    column_ok, group_ok, pc_ok = c.column_ok, c.group_ok, c.pc_ok
    while t <= until and t + 2 < horizon:
        head, tail = c.head[0], c.tail[0]
        if head == tail and pcs == 2 and bridge.turn != 1 and bridge.turn != 2 and p.column_cycles == 1 and p.queue > 1:
            c.t = t
            t = pairs(m, number, until, horizon)
            if t > until or t + 2 >= horizon:
                break
        soon = FAR
        moved = False
        at = -1  # the cycle of an RD
        b = tag = 0
        if head != tail:
            if c.column_free > t:
                soon = c.column_free
            else:
                for place in range(head, tail):
                    b = queues[0, place] & BANK_MASK
                    ok = max(column_ok[0, b], max(group_ok[0, group_of[b]], pc_ok[0, pc_of[b]]))
                    if ok <= t:
                        at, tag = t, tags[0, place]
                        leave(c, 0, place)
                        moved = True
                        break
                    soon = min(soon, ok)
        if at >= 0:
            issue_read(c, p, b, at)
            ports[first + (tag >> 16)].ring_done[tag & 0xFFFF] = at + p.cl + p.bl
        # Acceptance, into the room at the start of the cycle.
        if tail - head < p.queue:
            i = 1 if pcs == 2 and (bridge.turn == 1 or bridge.turn == 2) else 0
            entered = False
            for _ in range(pcs):
                port = ports[first + i]
                if port.r_sent != port.r_tail:
                    since = port.ring_from[port.r_sent & (READ_RING - 1)]
                    if since <= t:
                        entered = True
                        break
                    soon = min(soon, since)
                i = pcs - 1 - i
            if entered:
                port = ports[first + i]
                place = port.r_sent & (READ_RING - 1)
                key = port.ring_key[place]
                b, row = key & BANK_MASK, key >> ROW_SHIFT
                port.r_sent += 1
                request = bridge.entered
                bridge.entered = request + 1
                bridge.turn = 2 * i + 1
                moved = True
                hit = open_row[b] == row
                if hit and c.head[0] == c.tail[0] and p.queue > 1:
                    ok = max(column_ok[0, b], max(group_ok[0, group_of[b]], pc_ok[0, pc_of[b]]))
                    if max(ok, c.column_free) <= t + 1:
                        issue_read(c, p, b, t + 1)
                        port.ring_done[place] = t + 1 + p.cl + p.bl
                        t += 1
                        continue
                c.t = t
                enter(c, p, request, i << 16 | place, row, b, False)
                if not hit:
                    t += 1
                    break
        t = t + 1 if moved else min(soon, min(until + 1, horizon - 2))
    c.t = t
    c.column_next = c.row_next = c.wake = t  # not followed above


@njit(cache=True, error_model="numpy")
def pairs(m, number, until, horizon):
    """The commonest case of `flow`: both ports put a beat in at the same cycle s, the channel is empty, and both hit; the first enters at s and has
    its RD at s + 1, the second a cycle later. Gives the cycle after those that were served so."""
    c, p, bridge, one, two = m.channel[number], m.rules, m.bridge[number], m.port[2 * number], m.port[2 * number + 1]
    open_row, group_of, column_ok, group_ok, pc_ok = c.open_row, p.group_of, c.column_ok, c.group_ok, c.pc_ok
    t = c.t
    served = 0
    for k in range(min(one.r_tail - one.r_sent, two.r_tail - two.r_sent)):
        a, b = (one.r_sent + k) & (READ_RING - 1), (two.r_sent + k) & (READ_RING - 1)
        since = one.ring_from[a]
        if since < t or two.ring_from[b] != since or since + 2 > until or since + 4 >= horizon:
            break
        x, y = one.ring_key[a] & BANK_MASK, two.ring_key[b] & BANK_MASK
        if open_row[x] != one.ring_key[a] >> ROW_SHIFT or open_row[y] != two.ring_key[b] >> ROW_SHIFT:
            break
        g, h = group_of[x], group_of[y]
        if max(max(c.column_free, column_ok[0, x]), max(group_ok[0, g], pc_ok[0, 0])) > since + 1:
            break
        if max(column_ok[0, y], max(group_ok[0, h], pc_ok[0, 1])) > since + 2:
            break
        issue_read(c, p, x, since + 1)
        issue_read(c, p, y, since + 2)
        one.ring_done[a], two.ring_done[b] = since + 1 + p.cl + p.bl, since + 2 + p.cl + p.bl
        t = since + 2
        served += 1
    if served:
        one.r_sent += served
        two.r_sent += served
        bridge.entered += 2 * served
        bridge.turn = 3
    return t


@njit(cache=True, error_model="numpy")
def advance(m, number, until):
    """Command cycles of a channel up to `until`."""
    c, p, bridge, ports, pcs = m.channel[number], m.rules, m.bridge[number], m.port, m.pcs
    first = number * pcs
    sources = 2 * pcs
    head, tail = c.head, c.tail
    while c.t <= until:
        acts = next_cycle(c, p) == c.t
        if (acts or head[0] == tail[0]) and only_hits(m, number):
            flow(m, number, until, c.refab_due if p.refresh == 1 else c.refpb_due if p.refresh == 2 else FAR)
            if c.t > until:
                return
            acts = next_cycle(c, p) == c.t
        t = c.t
        read_room = tail[0] - head[0] < p.queue
        write_room = tail[1] - head[1] < p.queue
        moved = False
        if acts:
            done, written, moved = cycle(c, p)
            if done >= 0:
                port = ports[first + (done >> 16)]
                if written:
                    port.b_done[port.b_tail & (WRITE_RING - 1)] = t + p.cwl + p.bl
                    port.b_tail += 1
                else:
                    port.ring_done[done & 0xFFFF] = t + p.cl + p.bl
        wake = FAR
        source = bridge.turn
        for _ in range(sources):
            port = ports[first + (source >> 1)]
            write = source & 1
            if write == 0:
                waits = read_room and port.r_sent != port.r_tail
                place = port.r_sent & (READ_RING - 1)
                since = port.ring_from[place]
            else:
                waits = write_room and port.w_sent != port.w_tail
                place = port.w_sent & (WRITE_RING - 1)
                since = port.w_from[place]
            after = source + 1 if source + 1 < sources else 0
            if waits:
                if since <= t:
                    if write:
                        port.w_sent += 1
                        key = port.w_key[place]
                    else:
                        port.r_sent += 1
                        key = port.ring_key[place]
                    enter(c, p, bridge.entered, (source >> 1) << 16 | place, key >> ROW_SHIFT, key & BANK_MASK, write == 1)
                    bridge.entered += 1
                    bridge.turn = after
                    moved = True
                    break
                wake = min(wake, since)
            source = after
        if moved:
            c.t = t + 1
            continue
        c.t = max(t + 1, min(min(wake, next_cycle(c, p)), until + 1))


@njit(cache=True, error_model="numpy")
def still(m, most):
    """How many of the next `most` core cycles pass before a port does anything, if nothing is asked of any in them."""
    pcs, ports = m.pcs, m.port
    waits = False
    for j in range(m.active):
        for i in range(m.order[j] * pcs, (m.order[j] + 1) * pcs):
            port = ports[i]
            if port.r_valid or port.left or port.level or port.w_level or port.w_tail != port.b_head:
                return 0
            waits = waits or port.r_head != port.r_tail
    if not waits:
        return most
    # A completion that is not known by `until` comes after until + read_lag: no channel gets ahead of what the core may still ask.
    most = min(most, LONGEST)
    end = m.last + (most * m.q - m.phase + m.p - 1) // m.p
    until = m.last - 1
    while True:
        found = FAR
        for j in range(m.active):
            advance(m, m.order[j], until)
            for i in range(m.order[j] * pcs, (m.order[j] + 1) * pcs):
                if ports[i].r_head != ports[i].r_tail:
                    found = min(found, ports[i].ring_done[ports[i].r_head & (READ_RING - 1)])
        if found < FAR:
            # The first core cycle from now, counted from 1, with T > found.
            ahead = found + 1 - m.last
            first = ((ahead - 1) * m.p + m.phase) // m.q + 1 if ahead > 0 else 1
            return min(most, first - 1)
        until += m.read_lag
        if until >= end:
            return most


@njit(cache=True, error_model="numpy")
def pass_by(m, cycles):
    """Core cycles in which nothing happens."""
    while cycles > 0:
        some = min(cycles, LONGEST)
        ticks = (some * m.q - m.phase + m.p - 1) // m.p
        m.last += ticks
        m.phase += ticks * m.p - some * m.q
        cycles -= some


@njit(cache=True, error_model="numpy")
def tick(m):
    """Command cycles up to the core's next tick: q // p, or one more. The phase is below p after a tick."""
    early = m.phase >= m.rest
    m.last += m.whole if early else m.whole + 1
    m.phase -= m.rest if early else m.rest - m.p


@njit(cache=True, error_model="numpy")
def addresses(m, port, lane, room, ar_address, ar_beats, now):
    """AR, and the oldest due burst into the ring, which has `room` places. Gives whether the port does not take the address that it is offered."""
    ready = port.level < ADDRESS_QUEUE
    taken = lane.ar_valid == 1 and ready
    lane.taken = 1 if taken else 0
    if port.left == 0 and room > 0 and port.level and port.q_due[port.q_head & (ADDRESS_QUEUE - 1)] <= now and port.next_at <= now:
        place = port.q_head & (ADDRESS_QUEUE - 1)
        port.address, port.left = port.q_address[place], port.q_beats[place]
        port.high = key_of(m, port.address & -BURST, port.base_bank)
        port.q_head += 1
        port.level -= 1
    if port.left and room > 0:
        # All that is left, one beat a core cycle from now on, if the ring has room for it: nothing can come between.
        beats = port.left if room >= port.left else 1
        since, phase = m.last + 1, m.phase
        for _ in range(beats):
            place = port.r_tail & (READ_RING - 1)
            port.ring_key[place] = port.high + m.low[port.address & (BURST - 1)]
            port.ring_from[place] = since
            port.r_tail += 1
            port.address += 1
            early = phase >= m.rest
            since += m.whole if early else m.whole + 1
            phase -= m.rest if early else m.rest - m.p
        port.left -= beats
        port.next_at = now + beats
    if taken:
        place = port.q_tail & (ADDRESS_QUEUE - 1)
        port.q_due[place], port.q_address[place], port.q_beats[place] = now + m.latency, ar_address, ar_beats
        port.q_tail += 1
        port.level += 1
    return lane.ar_valid == 1 and not ready


@njit(cache=True, error_model="numpy")
def step(m, group, ar_address, ar_beats, now, count):
    """One core cycle of all ports that are stepped; count: 1 where beats are counted. Gives (a port has not taken a read address, write answers)."""
    ports, lanes, order = m.port, group.lane, m.order
    tick(m)
    last = m.last
    m.now = now
    waiting = False
    answers = 0
    for j in range(m.active):
        number = order[j]
        first = number * m.pcs
        lag = FAR  # a channel that owes nothing may lag as it likes
        for i in range(first, first + m.pcs):
            if ports[i].w_tail != ports[i].b_head:
                lag = m.write_lag
            elif ports[i].r_tail != ports[i].r_head:
                lag = min(lag, m.read_lag)
        if m.channel[number].t <= last - 1 - lag:
            advance(m, number, last - 1)
        for i in range(first, first + m.pcs):
            port, lane = ports[i], lanes[i]
            lane.arrived = port.r_valid
            # R, and B.
            place = port.r_head & (READ_RING - 1)
            port_room = READ_RING - (port.r_tail - port.r_head)
            if port.r_head != port.r_tail and port.ring_done[place] < last:
                port.ring_done[place] = FAR
                port.r_head += 1
                port.r_valid = 1
            else:
                port.r_valid = 0
            wrote = 0
            if lane.aw_valid or port.w_level or port.w_tail != port.b_head:
                write_room = port.w_tail - port.b_head < WRITE_RING
                if port.b_head != port.b_tail and port.b_done[port.b_head & (WRITE_RING - 1)] < last:
                    port.b_head += 1
                    answers += 1
                accept = lane.aw_valid == 1 and port.w_level < ADDRESS_QUEUE
                if port.w_level and port.wq_due[port.wq_head & (ADDRESS_QUEUE - 1)] <= now and write_room:
                    place = port.w_tail & (WRITE_RING - 1)
                    port.w_key[place] = port.wq_key[port.wq_head & (ADDRESS_QUEUE - 1)]
                    port.w_from[place] = last + 1
                    port.w_tail += 1
                    port.wq_head += 1
                    port.w_level -= 1
                if accept:
                    wrote = 1
                    place = port.wq_tail & (ADDRESS_QUEUE - 1)
                    port.wq_due[place] = now + m.latency
                    port.wq_key[place] = key_of(m, lane.aw_address, port.base_bank)
                    port.wq_tail += 1
                    port.w_level += 1
            lane.wrote = wrote
            lane.taken = 0
            if (lane.ar_valid or port.level or port.left) and addresses(m, port, lane, port_room, ar_address, ar_beats, now):
                waiting = True
            if count:
                lane.reads += lane.arrived
                lane.writes += wrote
    return waiting, answers
