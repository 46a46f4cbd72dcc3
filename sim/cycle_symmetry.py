"""Channels that are in the same state are one, for the cycle simulator's DRAM (sim/cycle_dram.py).

Of those only the lowest is stepped, until a write parts one from the others (`touch`), and from when its state is the same again (`merge`).
That is a symmetry, not an approximation: `simulate(..., symmetric=False)` steps every channel.
"""

from numba import njit

from headrace.hw.dram_ports import ADDRESS_QUEUE, READ_RING
from headrace.sim.cycle_dram import MERGE_EVERY, advance
from headrace.sim.dram_core import PLACE_MASK, REQUEST_SHIFT


@njit(cache=True, error_model="numpy")
def part(m, group, source, number):
    """Channel `number` is stepped on its own from now on; so far `source` stood for it."""
    ports, lanes, apart = m.port, group.lane, m.apart
    m.channel[number] = m.channel[source]
    m.bridge[number] = m.bridge[source]
    for i in range(m.pcs):
        ours, theirs = number * m.pcs + i, source * m.pcs + i
        writes = lanes[ours].writes
        ports[ours] = ports[theirs]
        lanes[ours] = lanes[theirs]
        lanes[ours].writes = writes
        lanes[ours].reads += apart[ours]
        apart[ours] = 0
    m.of[number] = number
    m.order[m.active] = number
    m.active += 1
    m.changed = 1


@njit(cache=True, error_model="numpy")
def touch(m, group, i):
    """Port `i` is about to get a write: its channel leaves those that are in the same state."""
    of, lanes = m.of, group.lane
    number = i // m.pcs
    stands = of[number]
    if stands != number:
        part(m, group, stands, number)
        return
    heir = -1
    for other in range(m.channels):
        if other != number and of[other] == number:
            if heir < 0:
                heir = other
                part(m, group, number, other)
            else:
                of[other] = heir
                for j in range(m.pcs):
                    m.apart[other * m.pcs + j] += lanes[number * m.pcs + j].reads - lanes[heir * m.pcs + j].reads


@njit(cache=True, error_model="numpy")
def late(a, b, t):
    return max(a, t) == max(b, t)


@njit(cache=True, error_model="numpy")
def same(m, group, a, b):
    """Whether two channels, both advanced to the same cycle and without writes, and their ports are in the same state but for times that are over."""
    p, x, y, bridges, ports, lanes = m.rules, m.channel[a], m.channel[b], m.bridge, m.port, group.lane
    t = x.t
    if x.t != y.t or bridges[a].turn != bridges[b].turn:
        return False
    if x.refab_pending != y.refab_pending or x.refab_due != y.refab_due or x.refpb_bank != y.refpb_bank or x.refpb_event != y.refpb_event:
        return False
    if x.slots_used != y.slots_used or x.tail[0] - x.head[0] != y.tail[0] - y.head[0] or x.write_mode != y.write_mode:
        return False
    for i in range(m.pcs):
        u, v = ports[a * m.pcs + i], ports[b * m.pcs + i]
        f, g = lanes[a * m.pcs + i], lanes[b * m.pcs + i]
        if f.young != g.young or f.ripe != g.ripe or f.ar_valid != g.ar_valid:
            return False
        if u.r_valid != v.r_valid or u.left != v.left or not late(u.next_at, v.next_at, m.now) or u.level != v.level or u.r_head != v.r_head or u.r_tail != v.r_tail or u.r_sent != v.r_sent:
            return False
        if u.left and u.address != v.address:
            return False
        if u.q_head != v.q_head or u.q_tail != v.q_tail:
            return False
        for j in range(u.q_head, u.q_tail):
            place = j & (ADDRESS_QUEUE - 1)
            if u.q_due[place] != v.q_due[place] or u.q_address[place] != v.q_address[place] or u.q_beats[place] != v.q_beats[place]:
                return False
        for j in range(u.r_head, u.r_tail):
            place = j & (READ_RING - 1)
            if u.ring_key[place] != v.ring_key[place] or not late(u.ring_from[place], v.ring_from[place], t):
                return False
            if not late(u.ring_done[place], v.ring_done[place], t - 1):
                return False
    for j in range(m.pcs):
        if not (late(x.pc_act_ok[j], y.pc_act_ok[j], t) and late(x.pc_pre_ok[j], y.pc_pre_ok[j], t)):
            return False
        if not (late(x.pc_refpb_ok[j], y.pc_refpb_ok[j], t) and late(x.pc_refab_ok[j], y.pc_refab_ok[j], t)):
            return False
        if not (late(x.pc_ok[0, j], y.pc_ok[0, j], t) and late(x.pc_ok[1, j], y.pc_ok[1, j], t)):
            return False
        for k in range(4):
            if not late(x.window[j, (x.window_at[j] + k) & 3] + p.faw, y.window[j, (y.window_at[j] + k) & 3] + p.faw, t):
                return False
    if not (late(x.row_free, y.row_free, t) and late(x.column_free, y.column_free, t)):
        return False
    for k in range(p.banks):
        if x.open_row[k] != y.open_row[k] or not (late(x.act_ok[k], y.act_ok[k], t) and late(x.pre_ok[k], y.pre_ok[k], t)):
            return False
        if not (late(x.column_ok[0, k], y.column_ok[0, k], t) and late(x.column_ok[1, k], y.column_ok[1, k], t)):
            return False
        if not (late(x.act_at[k] + p.ras, y.act_at[k] + p.ras, t) and late(x.group_act_ok[k], y.group_act_ok[k], t)):
            return False
        if not (late(x.group_ok[0, k], y.group_ok[0, k], t) and late(x.group_ok[1, k], y.group_ok[1, k], t)):
            return False
        if (x.slot[k] < 0) != (y.slot[k] < 0):
            return False
        if x.slot[k] >= 0 and (x.slot_tag[k] != y.slot_tag[k] or bridges[a].entered - x.slot[k] != bridges[b].entered - y.slot[k]):
            return False
    for j in range(x.tail[0] - x.head[0]):
        u, v = x.queues[0, x.head[0] + j], y.queues[0, y.head[0] + j]
        if (u & PLACE_MASK) != (v & PLACE_MASK) or x.tags[0, x.head[0] + j] != y.tags[0, y.head[0] + j]:
            return False
        if bridges[a].entered - (u >> REQUEST_SHIFT) != bridges[b].entered - (v >> REQUEST_SHIFT):
            return False
    return True


@njit(cache=True, error_model="numpy")
def writes_nothing(m, group, number):
    c, ports, lanes = m.channel[number], m.port, group.lane
    for i in range(number * m.pcs, (number + 1) * m.pcs):
        if lanes[i].aw_valid or ports[i].w_level or ports[i].w_tail != ports[i].b_head:
            return False
    return c.tail[1] == c.head[1]


@njit(cache=True, error_model="numpy")
def merge(m, group):
    """From time to time: channels that are again in the state of the first that is stepped are no longer stepped."""
    m.merge_in -= 1
    if m.merge_in > 0 or m.symmetric == 0:
        return
    m.merge_in = MERGE_EVERY
    order, of, lanes, pcs = m.order, m.of, group.lane, m.pcs
    first = order[0]
    if not writes_nothing(m, group, first):
        return
    advance(m, first, m.last - 1)
    kept = 1
    for j in range(1, m.active):
        number = order[j]
        gone = False
        if writes_nothing(m, group, number):
            advance(m, number, m.last - 1)
            gone = same(m, group, first, number)
        if not gone:
            order[kept] = number
            kept += 1
            continue
        for other in range(m.channels):
            if of[other] == number:
                of[other] = first
                for i in range(pcs):
                    m.apart[other * pcs + i] += lanes[number * pcs + i].reads - lanes[first * pcs + i].reads
    if kept < m.active:
        m.active = kept
        m.changed = 1


@njit(cache=True, error_model="numpy")
def stepped_lanes(m, group):
    """The lanes of the channels that are stepped, for the units."""
    group.count = m.active * m.pcs
    for j in range(group.count):
        group.order[j] = m.order[j // m.pcs] * m.pcs + j % m.pcs


@njit(cache=True, error_model="numpy")
def finish(m, group):
    """Read beats of the ports that others stood for."""
    for number in range(m.channels):
        if m.of[number] != number:
            for i in range(m.pcs):
                ours = number * m.pcs + i
                group.lane[ours].reads = group.lane[m.of[number] * m.pcs + i].reads + m.apart[ours]
