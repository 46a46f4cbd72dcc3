"""One channel of the timing rules of ``docs/memory.md``: its state, one command cycle, and the entry of a request.

`headrace.sim.dram_kernel` runs a trace on it, `headrace.sim.cycle_dram` the ports of a machine. Three things make it quick and change no result.
Cycles in which nothing can happen are skipped by the caller: a selection that finds nothing leaves in `wake` the earliest cycle in which one of
its candidates could become legal, and an entry brings it forward at most to when its own command could. A queue is searched again only after that cycle, or after a change that could bring another candidate
(`column_next`, `row_next`). And an entry that needs a row command is looked at again only when its bank's own times allow one (`bound`).
"""

import numpy as np
from numba import njit

from headrace.hw.memory_timing import MAX_BANKS, PAGES, REFRESHES, ChannelTiming

FAR = 1 << 60
QUEUE_ROOM = 128
"""Entries of the array in which a queue slides upwards, before it is moved back to the start."""

REQUEST_SHIFT = 32
ROW_SHIFT = 8
BANK_MASK = (1 << ROW_SHIFT) - 1
PLACE_MASK = (1 << REQUEST_SHIFT) - 1
"""A queue entry is one integer: request number, which is its age, 24 bits of row, 8 bits of bank."""

_TIMINGS = (
    "pcs", "cl", "cwl", "bl", "rcdrd", "rcdwr", "rp", "ras", "rc", "rtp", "ccds", "ccdl", "rrds", "rrdl", "faw", "wtrs", "wtrl", "rtw", "ppd",
    "refi", "rfc", "rfcpb", "rrefd", "act_cycles", "pre_cycles", "column_cycles", "queue",
)  # fmt: skip
RULES = np.dtype(
    [(name, "i8") for name in (*_TIMINGS, "closed_page", "refresh", "per_pc", "banks", "one_bus", "write_hold")]
    + [(name, "i8", (MAX_BANKS,)) for name in ("group_of", "pc_of")]
)
"""The parameters as section 1 names them, and what follows from them."""

_SCALARS = (
    "t", "wake", "slots_used", "write_mode", "column_next", "row_next", "row_free", "column_free", "refab_pending", "refab_due", "refpb_bank",
    "refpb_event", "refpb_due",
)  # fmt: skip
CHANNEL = np.dtype(
    [(name, "i8") for name in _SCALARS]
    + [("blocked", "u8")]
    + [(name, "i8", (MAX_BANKS,)) for name in ("open_row", "act_ok", "pre_ok", "act_at", "slot", "slot_write", "slot_tag", "slots", "group_act_ok")]
    + [(name, "i8", (2, MAX_BANKS)) for name in ("column_ok", "group_ok")]
    + [("pc_ok", "i8", (2, 2)), ("window", "i8", (2, 4))]
    + [(name, "i8", (2,)) for name in ("pc_act_ok", "pc_pre_ok", "pc_refpb_ok", "pc_refab_ok", "window_at", "head", "tail")]
    + [(name, "i8", (2, QUEUE_ROOM)) for name in ("queues", "tags", "bound")]
    + [("counts", "i8", (5,))]
)
"""State of a channel. t: the next command cycle. wake: no command is issued before, unless a refresh becomes due. open_row: -1 = closed. x_ok: cycle from which on x is legal as far as this bank, group or
pseudo-channel says ([kind]: 0 read, 1 write). slot: request or -1; slots: the banks that have one. tags: what the user calls a request, with it in queue and slot. queues: section 2's, from head to tail.
bound: of an entry, no hit and no legal row command before; 0: not known. blocked: banks whose PRE waits for a slot or an older hit, as the last
search saw it. counts: ACT, PRE and PREA, RD, WR, REF."""


def rules(timing: ChannelTiming) -> np.ndarray:
    """RULES [1]."""
    p = np.zeros(1, RULES)
    for name in _TIMINGS:
        p[name] = getattr(timing, name)
    p["closed_page"], p["refresh"] = PAGES.index(timing.page), REFRESHES.index(timing.refresh)
    p["per_pc"], p["banks"], p["one_bus"] = timing.banks_per_pc, timing.banks, timing.buses == 1
    p["write_hold"] = timing.cwl + timing.bl + timing.wr
    bank = np.arange(MAX_BANKS)
    p["group_of"], p["pc_of"] = bank // timing.banks_per_group, bank // timing.banks_per_pc
    return p


def channels(timing: ChannelTiming, count: int) -> np.ndarray:
    """CHANNEL [count] after reset."""
    c = np.zeros(count, CHANNEL)
    c["column_next"] = c["row_next"] = FAR
    c["refab_due"], c["refpb_bank"] = timing.refi, -1
    c["refpb_due"] = timing.refi // timing.banks if timing.refresh == "per-bank" else FAR
    c["open_row"] = c["slot"] = -1
    c["window"] = -FAR
    return c


@njit(cache=True, nogil=True)
def enter(c, p, request, tag, row, bank, write):
    """Step 6: a request enters its queue, which has room, in cycle c.t. request: its age, a number above those before it and below 2**31."""
    w = 1 if write else 0
    head, tail, queues, tags, bound = c.head, c.tail, c.queues, c.tags, c.bound
    if tail[w] == QUEUE_ROOM:
        used = tail[w] - head[w]
        for place in range(used):
            queues[w, place] = queues[w, head[w] + place]
            tags[w, place] = tags[w, head[w] + place]
            bound[w, place] = bound[w, head[w] + place]
        head[w] = 0
        tail[w] = used
    at = tail[w]
    queues[w, at] = request << REQUEST_SHIFT | row << ROW_SHIFT | bank
    tags[w, at] = tag
    bound[w, at] = 0
    tail[w] = at + 1
    soon = c.t + 1
    if w == c.write_mode:
        # The times by which a bank, group and pseudo-channel allow a command only grow, so the entry need not be looked at before.
        group, pc = p.group_of[bank], p.pc_of[bank]
        if c.open_row[bank] == row:
            soon = max(soon, max(c.column_ok[w, bank], max(c.group_ok[w, group], c.pc_ok[w, pc])))
            c.column_next = min(c.column_next, soon)
        else:
            if c.open_row[bank] < 0:
                bound[w, at] = max(c.act_ok[bank], max(c.group_act_ok[group], c.pc_act_ok[pc]))
            elif p.closed_page == 0:
                bound[w, at] = c.pre_ok[bank]
            soon = max(soon, bound[w, at])
            c.row_next = min(c.row_next, soon)
    c.wake = min(c.wake, soon)


@njit(cache=True, nogil=True)
def leave(c, kind, place):
    """The entry at `place` of a queue leaves it; those before it move up."""
    queues, tags, bound, first = c.queues, c.tags, c.bound, c.head[kind]
    for later in range(place, first, -1):
        queues[kind, later] = queues[kind, later - 1]
        tags[kind, later] = tags[kind, later - 1]
        bound[kind, later] = bound[kind, later - 1]
    c.head[kind] = first + 1


@njit(cache=True, nogil=True)
def issue_read(c, p, b, t):
    """What an RD of bank b in cycle t, in which it is legal, leaves for later commands."""
    group, pc = p.group_of[b], p.pc_of[b]
    c.group_ok[0, group] = t + p.ccdl
    c.pc_ok[0, pc] = t + p.ccds
    c.pc_ok[1, pc] = max(c.pc_ok[1, pc], t + p.rtw)
    c.pre_ok[b] = max(c.pre_ok[b], t + p.rtp)
    c.counts[2] += 1
    hold_column(c, p, t)


@njit(cache=True, nogil=True)
def issue_write(c, p, b, t):
    """What a WR of bank b in cycle t, in which it is legal, leaves for later commands."""
    group, pc = p.group_of[b], p.pc_of[b]
    c.group_ok[1, group] = t + p.ccdl
    c.pc_ok[1, pc] = t + p.ccds
    c.group_ok[0, group] = max(c.group_ok[0, group], t + p.cwl + p.bl + p.wtrl)
    c.pc_ok[0, pc] = max(c.pc_ok[0, pc], t + p.cwl + p.bl + p.wtrs)
    c.pre_ok[b] = max(c.pre_ok[b], t + p.write_hold)
    c.counts[3] += 1
    hold_column(c, p, t)


@njit(cache=True, nogil=True)
def hold_column(c, p, t):
    c.column_free = t + p.column_cycles
    if p.one_bus:
        c.row_free = c.column_free


@njit(cache=True, nogil=True)
def cycle(c, p):
    """Steps 1 to 5 in cycle c.t. Gives (the tag of the request whose RD or WR is issued or -1, 1 for a write, whether any command is issued)."""
    t = c.t
    open_row, act_ok, pre_ok, act_at, column_ok, group_ok = c.open_row, c.act_ok, c.pre_ok, c.act_at, c.column_ok, c.group_ok
    group_act_ok, pc_ok, pc_act_ok, pc_pre_ok, pc_refpb_ok = c.group_act_ok, c.pc_ok, c.pc_act_ok, c.pc_pre_ok, c.pc_refpb_ok
    pc_refab_ok, window, window_at, slot, slot_write, slots = c.pc_refab_ok, c.window, c.window_at, c.slot, c.slot_write, c.slots
    slot_tag = c.slot_tag
    queues, tags, bound, head, tail, counts = c.queues, c.tags, c.bound, c.head, c.tail, c.counts
    group_of, pc_of = p.group_of, p.pc_of
    blocked = c.blocked
    w = 0
    issued = -1
    # 1. Refresh timer.
    if p.refresh == 1 and t >= c.refab_due:
        c.refab_due += p.refi
        c.refab_pending = (1 << p.pcs) - 1
    if p.refresh == 2 and c.refpb_bank < 0 and t >= c.refpb_due:
        c.refpb_bank = (c.refpb_event % p.pcs) * p.per_pc + (c.refpb_event // p.pcs) % p.per_pc
        c.refpb_event += 1
        c.refpb_due = (c.refpb_event + 1) * p.refi // p.banks
        c.column_next = c.row_next = t
    # 2. Write mode.
    reads = tail[0] - head[0]
    writes = tail[1] - head[1]
    if c.write_mode == 0:
        if 5 * writes > 4 * p.queue or (reads == 0 and writes > 0):
            c.write_mode = 1
            c.column_next = c.row_next = t
    elif (reads > 0 and 5 * writes < p.queue) or writes == 0:
        c.write_mode = 0
        c.column_next = c.row_next = t
    mode = c.write_mode

    wake = FAR
    column_request = -1
    column_bank = -1
    column_place = -1  # position in the queue; -1: from a slot
    row_bank = -1
    row_place = -1
    row_kind = 0  # 1 ACT, 2 PRE, 3 PREA, 4 REFab, 5 REFpb

    # 3a. Column command of a slot.
    if t < c.column_free:
        wake = min(wake, c.column_free)
    else:
        for s in range(c.slots_used):
            b = slots[s]
            request = slot[b]
            w = slot_write[b]
            ok = max(column_ok[w, b], max(group_ok[w, group_of[b]], pc_ok[w, pc_of[b]]))
            if ok <= t:
                if column_request < 0 or request < column_request:
                    column_request = request
                    column_bank = b
            elif ok < wake:
                wake = ok

    # What the queue may give: 3b and 4b are one pass over it, in age order.
    need_column = column_request < 0 and t >= c.column_free
    row_can = t >= c.row_free
    if not row_can:
        wake = min(wake, c.row_free)
    row_open = row_can and not (p.one_bus and column_request >= 0)

    # 4a. All-bank refresh; 3b and 4b are off while it is pending.
    if c.refab_pending:
        pc = 0 if c.refab_pending & 1 else 1
        base = pc * p.per_pc
        any_open = False
        any_slot = False
        ready = pc_pre_ok[pc]
        closed_ready = pc_refab_ok[pc]
        for b in range(base, base + p.per_pc):
            if open_row[b] >= 0:
                any_open = True
                ready = max(ready, pre_ok[b])
            else:
                closed_ready = max(closed_ready, act_ok[b])
            if slot[b] >= 0:
                any_slot = True
        if any_open:
            if not any_slot:
                if ready > t:
                    wake = min(wake, ready)
                elif row_open:
                    row_kind = 3
                    row_bank = base
        elif closed_ready > t:
            wake = min(wake, closed_ready)
        elif row_open:
            row_kind = 4
            row_bank = base
    else:
        if need_column and c.column_next > t:
            wake = min(wake, c.column_next)
            need_column = False
        need_row = row_open
        if need_row and c.row_next > t:
            wake = min(wake, c.row_next)
            need_row = False
        if need_column or need_row:
            search_column = need_column
            search_row = need_row
            column_soon = FAR
            row_soon = FAR
            hit_banks = np.uint64(0)
            if search_row:
                blocked = np.uint64(0)
            for place in range(head[mode], tail[mode]):
                if bound[mode, place] > t:
                    row_soon = min(row_soon, bound[mode, place])
                    continue
                entry = queues[mode, place]
                b = entry & BANK_MASK
                if b == c.refpb_bank:
                    continue
                if open_row[b] == (entry & PLACE_MASK) >> ROW_SHIFT:
                    hit_banks |= np.uint64(1) << np.uint64(b)
                    if need_column:
                        ok = max(column_ok[mode, b], max(group_ok[mode, group_of[b]], pc_ok[mode, pc_of[b]]))
                        if ok <= t:
                            column_request = entry >> REQUEST_SHIFT
                            column_place = place
                            column_bank = b
                            need_column = False
                            if p.one_bus:
                                need_row = False
                                row_kind = 0
                            if not need_row:
                                break
                        elif ok < column_soon:
                            column_soon = ok
                elif need_row:
                    if open_row[b] < 0:
                        ok = max(act_ok[b], max(group_act_ok[group_of[b]], pc_act_ok[pc_of[b]]))
                        if ok <= t:
                            row_kind = 1
                            row_bank = b
                            row_place = place
                            need_row = False
                            if not need_column:
                                break
                        else:
                            bound[mode, place] = ok
                            row_soon = min(row_soon, ok)
                    elif pre_ok[b] > t:
                        if p.closed_page == 0:  # an auto-precharge may close the bank for an earlier activate
                            bound[mode, place] = pre_ok[b]
                        row_soon = min(row_soon, pre_ok[b])
                    elif slot[b] >= 0 or b == column_bank or (hit_banks >> np.uint64(b)) & np.uint64(1):
                        blocked |= np.uint64(1) << np.uint64(b)
                    else:
                        ok = pc_pre_ok[pc_of[b]]
                        if ok <= t:
                            row_kind = 2
                            row_bank = b
                            row_place = place
                            need_row = False
                            if not need_column:
                                break
                        elif ok < row_soon:
                            row_soon = ok
            if search_column:
                c.column_next = column_soon if need_column else t + 1
                wake = min(wake, c.column_next)
            if search_row:
                c.row_next = row_soon if need_row else t + 1
                wake = min(wake, c.row_next)
            if row_kind == 2 and row_bank == column_bank:
                # An older entry wants to close the row that 3b has just used: the next that wants a row command.
                row_kind = 0
                c.row_next = t + 1
                hit_banks = np.uint64(0)
                for place in range(head[mode], tail[mode]):
                    entry = queues[mode, place]
                    b = entry & BANK_MASK
                    if b == c.refpb_bank:
                        continue
                    if open_row[b] == (entry & PLACE_MASK) >> ROW_SHIFT:
                        hit_banks |= np.uint64(1) << np.uint64(b)
                    elif open_row[b] < 0:
                        if max(act_ok[b], max(group_act_ok[group_of[b]], pc_act_ok[pc_of[b]])) <= t:
                            row_kind = 1
                            row_bank = b
                            row_place = place
                            break
                    elif slot[b] < 0 and b != column_bank and not (hit_banks >> np.uint64(b)) & np.uint64(1):
                        if max(pre_ok[b], pc_pre_ok[pc_of[b]]) <= t:
                            row_kind = 2
                            row_bank = b
                            row_place = place
                            break

    # 4a with per-bank refresh: before any entry's row command, if it is legal.
    if c.refpb_bank >= 0:
        b = c.refpb_bank
        pc = pc_of[b]
        if open_row[b] >= 0:
            if slot[b] < 0 and column_bank != b:
                ok = max(pre_ok[b], pc_pre_ok[pc])
                if ok > t:
                    wake = min(wake, ok)
                elif row_can and not (p.one_bus and column_request >= 0):
                    row_kind = 2
                    row_bank = b
                    row_place = -1
        else:
            ok = max(act_ok[b], pc_refpb_ok[pc])
            if ok > t:
                wake = min(wake, ok)
            elif row_can and not (p.one_bus and column_request >= 0):
                row_kind = 5
                row_bank = b
                row_place = -1

    # 5. Issue. Auto-precharge looks at the queues as they were at the start of the cycle.
    if column_request >= 0:
        b = column_bank
        w = slot_write[b] if column_place < 0 else mode
        issued = slot_tag[b] if column_place < 0 else tags[mode, column_place]
        pc = pc_of[b]
        group = group_of[b]
        precharge = p.closed_page == 1
        if precharge:
            row = open_row[b]
            if slot[b] >= 0 and slot[b] != column_request:
                precharge = False
            for kind in range(2):
                for place in range(head[kind], tail[kind]):
                    entry = queues[kind, place]
                    if entry >> REQUEST_SHIFT != column_request and (entry & PLACE_MASK) == (row << ROW_SHIFT | b):
                        precharge = False
        if w:
            issue_write(c, p, b, t)
        else:
            issue_read(c, p, b, t)
        if precharge:
            open_row[b] = -1
            closing = max(act_at[b] + p.ras, t + (p.write_hold if w else p.rtp))
            act_ok[b] = max(act_ok[b], closing + p.rp)
            c.row_next = min(c.row_next, act_ok[b])
        elif (blocked >> np.uint64(b)) & np.uint64(1):
            c.row_next = min(c.row_next, pre_ok[b])
        if column_place < 0:
            slot[b] = -1
            for s in range(c.slots_used):
                if slots[s] == b:
                    c.slots_used -= 1
                    slots[s] = slots[c.slots_used]
                    break
        else:
            leave(c, mode, column_place)
            if row_kind and row_place >= 0 and row_place < column_place:
                row_place += 1
    if row_kind:
        b = row_bank
        pc = pc_of[b]
        hold = p.pre_cycles
        if row_kind == 1:
            request = queues[mode, row_place] >> REQUEST_SHIFT
            key = queues[mode, row_place] & PLACE_MASK
            tag = tags[mode, row_place]
            leave(c, mode, row_place)
            alike = 0
            for kind in range(2):
                found = 0
                for place in range(head[kind], tail[kind]):
                    found += (queues[kind, place] & PLACE_MASK) == key
                if found:
                    for place in range(head[kind], tail[kind]):
                        if (queues[kind, place] & PLACE_MASK) == key:
                            bound[kind, place] = 0
                alike += found
            if alike:
                c.column_next = min(c.column_next, t + 1)
            slot[b] = request
            slot_write[b] = mode
            slot_tag[b] = tag
            slots[c.slots_used] = b
            c.slots_used += 1
            open_row[b] = key >> ROW_SHIFT
            act_at[b] = t
            column_ok[0, b] = t + p.rcdrd
            column_ok[1, b] = t + p.rcdwr
            act_ok[b] = max(act_ok[b], t + p.rc)
            pre_ok[b] = max(pre_ok[b], t + p.ras)
            group = group_of[b]
            group_act_ok[group] = t + p.rrdl
            window[pc, window_at[pc]] = t
            window_at[pc] = (window_at[pc] + 1) & 3
            pc_act_ok[pc] = max(pc_act_ok[pc], max(t + p.rrds, window[pc, window_at[pc]] + p.faw))
            pc_refpb_ok[pc] = max(pc_refpb_ok[pc], t + p.rrds)
            hold = p.act_cycles
            counts[0] += 1
        elif row_kind == 2:
            open_row[b] = -1
            act_ok[b] = max(act_ok[b], t + p.rp)
            pc_pre_ok[pc] = t + p.ppd
            c.row_next = t + 1
            counts[1] += 1
        elif row_kind == 3:
            for bank in range(b, b + p.per_pc):
                if open_row[bank] >= 0:
                    open_row[bank] = -1
                    act_ok[bank] = max(act_ok[bank], t + p.rp)
            pc_pre_ok[pc] = t + p.ppd
            counts[1] += 1
        elif row_kind == 4:
            pc_act_ok[pc] = max(pc_act_ok[pc], t + p.rfc)
            pc_refab_ok[pc] = t + p.rfc
            c.refab_pending &= ~(1 << pc)
            c.row_next = t + 1
            counts[4] += 1
        else:
            act_ok[b] = t + p.rfcpb
            pc_act_ok[pc] = max(pc_act_ok[pc], t + p.rrefd)
            pc_refpb_ok[pc] = max(pc_refpb_ok[pc], t + p.rrefd)
            c.refpb_bank = -1
            c.column_next = c.row_next = t + 1
            counts[4] += 1
        c.row_free = t + hold
        if p.one_bus:
            c.column_free = c.row_free
    moved = column_request >= 0 or row_kind != 0
    c.blocked = blocked
    c.wake = t + 1 if moved else wake
    return issued, w, moved


@njit(cache=True, nogil=True)
def next_cycle(c, p):
    """The first cycle from c.t on in which `cycle` may do anything if no request enters; FAR: never."""
    wake = c.wake
    if p.refresh == 1:
        wake = min(wake, c.refab_due)
    elif p.refresh == 2 and c.refpb_bank < 0:
        wake = min(wake, c.refpb_due)
    return max(wake, c.t)
