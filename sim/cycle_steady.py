"""The commonest stretch of the cycle loop: control sleeps, the weights of one load run into MV, nothing is written.

`steady` passes its cycles by what moves in them alone and leaves before one in which anything else would. They are the cycles of the loop
(sim/cycle_kernel.py), which steps all of them where every channel is stepped (`symmetric=False`).
"""

from numba import njit

from headrace.hw.dram_ports import ADDRESS_QUEUE, READ_RING
from headrace.sim.cycle_dram import addresses, advance, tick
from headrace.sim.cycle_memory import fifo_level, fifo_step
from headrace.sim.cycle_sfu import DEPENDENCY, DRAIN, VB_READ, VB_WRITE
from headrace.sim.cycle_symmetry import merge
from headrace.sim.cycle_units import IDLE, WEIGHTS, burst_finishes, issue_burst, mv_describe, mv_step, pop_word
from headrace.sim.dram_core import FAR


@njit(cache=True, error_model="numpy")
def begins(m, group, ld, mv, st, loads, writes):
    """Whether a stretch begins, as far as the units say."""
    if m.symmetric == 0 or ld.busy == 0 or ld.empty == 1 or ld.kind != WEIGHTS or mv.d_run == 0:
        return False
    if ld.done or ld.unit_last or loads.young or st.running or st.done or writes.ripe or writes.young or st.pipe:
        return False
    for j in range(m.active):
        for i in range(m.order[j] * m.pcs, (m.order[j] + 1) * m.pcs):
            port = m.port[i]
            if group.lane[i].aw_valid or port.w_level or port.w_tail != port.b_head:
                return False
    return True


@njit(cache=True, error_model="numpy")
def taken_by_all(m, group):
    """Whether the ports take the burst that waits for them."""
    for j in range(m.active):
        for i in range(m.order[j] * m.pcs, (m.order[j] + 1) * m.pcs):
            if group.lane[i].ar_valid and m.port[i].level >= ADDRESS_QUEUE:
                return False
    return True


@njit(cache=True, error_model="numpy")
def on_its_way(m, group):
    """Whether a port or its FIFO holds anything that will move."""
    for j in range(m.active):
        for i in range(m.order[j] * m.pcs, (m.order[j] + 1) * m.pcs):
            port, lane = m.port[i], group.lane[i]
            if port.r_valid or port.r_head != port.r_tail or port.level or lane.young or lane.ar_valid:
                return True
    return False


@njit(cache=True, error_model="numpy")
def steady(m, group, k, ld, mv, sfu, raw, rows, stream, uses, ld_counter, mv_counter, vec_counter, counters, wants_mv, cycle, now, most):
    """Passes up to `most` cycles and gives how many. stream: MV's order, flags, pc, operands; uses: the SFU's marks; *_counter: place of the
    unit's count of active cycles, before those of its stalls; vec_counter: of the SFU's stalls."""
    mv_order, flags, pc, operands, slice_counter = stream
    ports, lanes = m.port, group.lane
    pcs, order = m.pcs, m.order
    passed = 0
    address_at = now  # before it no port does anything with its addresses
    offered, joined = False, True
    for j in range(m.active):
        for i in range(order[j] * pcs, (order[j] + 1) * pcs):
            offered = offered or lanes[i].ar_valid == 1
            joined = joined and lanes[i].ripe > 0
    while passed < most:
        if mv.done == 1 or (wants_mv and mv.front == IDLE):
            break
        if m.active > 1:
            merge(m, group)
        waiting = offered and not taken_by_all(m, group)
        issue, ends_run, beats = burst_finishes(ld, k, waiting)
        full = fifo_level(raw) >= k.raw_fifo
        word = joined and not full
        if (issue and ends_run and ld.count == 1) or (word and ld.r_left == 1 and ld.r_count == 1):
            break
        # ---- ports ----
        tick(m)
        m.now, last = now, m.last
        with_addresses = offered or issue or address_at <= now
        # What enters a ring from a later cycle on is not known; all before is, so a channel may run ahead to there.
        ahead = 0 if with_addresses or m.active > 1 else min(address_at - now, m.latency) * m.whole
        if with_addresses:
            offered, address_at = False, FAR
        blocked = 2 if joined else 1  # its stall, were there no word: raw FIFO, memory
        joined = True
        for j in range(m.active):
            if m.channel[order[j]].t <= last - 1 - m.read_lag:
                advance(m, order[j], last - 1 + ahead)
            for i in range(order[j] * pcs, (order[j] + 1) * pcs):
                port, lane = ports[i], lanes[i]
                if with_addresses:
                    addresses(m, port, lane, READ_RING - (port.r_tail - port.r_head), ld.ar_address, ld.ar_beats, now)
                    lane.ar_valid = 1 if issue or (lane.ar_valid == 1 and lane.taken == 0) else 0
                    offered = offered or lane.ar_valid == 1
                    if port.left:
                        address_at = now + 1
                    elif port.level:
                        address_at = min(address_at, max(port.q_due[port.q_head & (ADDRESS_QUEUE - 1)], port.next_at))
                arrived = port.r_valid
                lane.reads += arrived
                place = port.r_head & (READ_RING - 1)
                if port.ring_done[place] < last:  # FAR where the ring is empty
                    port.ring_done[place] = FAR
                    port.r_head += 1
                    port.r_valid = 1
                else:
                    port.r_valid = 0
                fifo_step(lane, arrived == 1, word)
                joined = joined and lane.ripe > 0
        # ---- LD ----
        if issue:
            issue_burst(ld, ends_run, beats)
        if word:
            pop_word(ld)
        counters[ld_counter + (0 if word else blocked)] += 1
        # ---- MV ----
        use = uses[sfu.offset + cycle - sfu.start] if sfu.running == 1 else 0
        counters[slice_counter] += mv.i_valids & 1
        take, stages, stall, moving = mv_step(mv, k, rows, False, raw.ripe > 0, use & VB_READ == 0, use & VB_WRITE == 0)
        if stages:
            mv_describe(mv, k, stages, mv_order, flags, pc, operands)
        counters[mv_counter + 1 + stall] += 1
        if use & (DEPENDENCY | DRAIN):
            counters[vec_counter + (0 if use & DEPENDENCY else 1)] += 1
        fifo_step(raw, word, take)
        cycle += 1
        now += 1
        passed += 1
        if not (word or moving or issue or on_its_way(m, group)):
            break
    return passed
