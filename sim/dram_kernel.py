"""The timing rules of ``docs/memory.md`` as one numba function; `headrace.sim.dram` is its front.

Three things make it quick and change no result. Cycles in which nothing can happen are skipped: a selection that finds
nothing also collects the earliest cycle in which one of its candidates could become legal (`wake`). And a queue is
searched again only after that cycle, or after a change that could bring another candidate (`column_next`, `row_next`).
And an entry that needs a row command is looked at again only when its bank's own times allow one (`bound`).
"""

import numpy as np
from numba import njit

FAR = 1 << 60
QUEUE_ROOM = 4096
"""Entries of the array in which a queue slides upwards, before it is moved back to the start."""

REQUEST_SHIFT = 32
ROW_SHIFT = 8
BANK_MASK = (1 << ROW_SHIFT) - 1
PLACE_MASK = (1 << REQUEST_SHIFT) - 1
"""A queue entry is one integer: request number, 24 bits of row, 8 bits of bank."""

PARAMETERS = (
    "pcs", "bank_groups", "banks_per_group", "cl", "cwl", "bl", "rcdrd", "rcdwr", "rp", "ras", "rc", "rtp", "wr", "ccds", "ccdl",
    "rrds", "rrdl", "faw", "wtrs", "wtrl", "rtw", "ppd", "refi", "rfc", "rfcpb", "rrefd", "act_cycles", "pre_cycles",
    "column_cycles", "buses", "queue",
)  # fmt: skip
"""Order of the integers in the kernel's first argument; closed page and refresh kind follow."""


@njit(cache=True, nogil=True)
def run_channel(parameters, bank_of, row_of, write_of, arrival, port_of, ports, port_p, port_q, port_fifo, accepted, completed, counts):
    """Fill `accepted` and `completed` (int64, N) of the requests given by `bank_of`, `row_of` (int32), `write_of` (uint8),
    `arrival` (int64; empty: all 0) and `port_of` (uint8; empty: no ports). `counts` (int64, 6): ACT, PRE and PREA,
    RD, WR, REF, cycles with a selection. Times are command cycles."""
    (pcs, bank_groups, banks_per_group, cl, cwl, bl, rcdrd, rcdwr, rp, ras, rc, rtp, wr, ccds, ccdl,
     rrds, rrdl, faw, wtrs, wtrl, rtw, ppd, refi, rfc, rfcpb, rrefd, act_cycles, pre_cycles,
     column_cycles, buses, depth, closed_page, refresh) = parameters  # fmt: skip
    number = bank_of.size
    per_pc = bank_groups * banks_per_group
    banks = pcs * per_pc
    one_bus = buses == 1
    write_hold = cwl + bl + wr

    open_row = np.full(banks, -1, np.int64)
    act_ok = np.zeros(banks, np.int64)
    pre_ok = np.zeros(banks, np.int64)
    act_at = np.zeros(banks, np.int64)
    column_ok = np.zeros((2, banks), np.int64)
    group_ok = np.zeros((2, banks), np.int64)
    group_act_ok = np.zeros(banks, np.int64)
    pc_ok = np.zeros((2, pcs), np.int64)
    pc_act_ok = np.zeros(pcs, np.int64)
    pc_pre_ok = np.zeros(pcs, np.int64)
    pc_refpb_ok = np.zeros(pcs, np.int64)
    pc_refab_ok = np.zeros(pcs, np.int64)
    window = np.full((pcs, 4), -FAR, np.int64)
    window_at = np.zeros(pcs, np.int64)
    group_of = np.empty(banks, np.int64)
    pc_of = np.empty(banks, np.int64)
    for b in range(banks):
        group_of[b] = b // banks_per_group
        pc_of[b] = b // per_pc

    slot = np.full(banks, -1, np.int64)
    slots = np.empty(banks, np.int64)
    slots_used = 0
    queues = np.empty((2, QUEUE_ROOM), np.int64)
    bound = np.zeros((2, QUEUE_ROOM), np.int64)  # of an entry: no hit, and no legal row command before; 0: not known
    head = np.zeros(2, np.int64)
    tail = np.zeros(2, np.int64)
    write_mode = 0
    column_next = FAR  # no entry of the mode's queue has a legal column command before
    row_next = FAR  # and none a legal row command
    blocked = np.uint64(0)  # banks whose PRE waits for a slot or an older hit, as the last search saw it

    row_free = 0
    column_free = 0
    refab_pending = 0
    refab_due = refi
    refpb_bank = -1
    refpb_event = 0
    refpb_due = refi // banks if refresh == 2 else FAR

    token = np.zeros(max(ports, 1), np.int64)
    phase = 0
    done = 0
    following = 0
    t = 0
    while done < number:
        # 1. Refresh timer.
        if refresh == 1 and t >= refab_due:
            refab_due += refi
            refab_pending = (1 << pcs) - 1
        if refresh == 2 and refpb_bank < 0 and t >= refpb_due:
            refpb_bank = (refpb_event % pcs) * per_pc + (refpb_event // pcs) % per_pc
            refpb_event += 1
            refpb_due = (refpb_event + 1) * refi // banks
            column_next = row_next = t
        # 2. Write mode.
        reads = tail[0] - head[0]
        writes = tail[1] - head[1]
        if write_mode == 0:
            if 5 * writes > 4 * depth or (reads == 0 and writes > 0):
                write_mode = 1
                column_next = row_next = t
        elif (reads > 0 and 5 * writes < depth) or writes == 0:
            write_mode = 0
            column_next = row_next = t
        mode = write_mode

        wake = FAR
        column_request = -1
        column_place = -1  # position in the queue; -1: from a slot
        row_bank = -1
        row_place = -1
        row_kind = 0  # 1 ACT, 2 PRE, 3 PREA, 4 REFab, 5 REFpb

        # 3a. Column command of a slot.
        if t < column_free:
            wake = min(wake, column_free)
        else:
            for s in range(slots_used):
                b = slots[s]
                request = slot[b]
                w = write_of[request]
                ok = max(column_ok[w, b], max(group_ok[w, group_of[b]], pc_ok[w, pc_of[b]]))
                if ok <= t:
                    if column_request < 0 or request < column_request:
                        column_request = request
                elif ok < wake:
                    wake = ok
        column_bank = bank_of[column_request] if column_request >= 0 else -1

        # What the queue may give: 3b and 4b are one pass over it, in age order.
        need_column = column_request < 0 and t >= column_free
        row_can = t >= row_free
        if not row_can:
            wake = min(wake, row_free)
        row_open = row_can and not (one_bus and column_request >= 0)

        # 4a. All-bank refresh; 3b and 4b are off while it is pending.
        if refab_pending:
            pc = 0 if refab_pending & 1 else 1
            base = pc * per_pc
            any_open = False
            any_slot = False
            ready = pc_pre_ok[pc]
            closed_ready = pc_refab_ok[pc]
            for b in range(base, base + per_pc):
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
            if need_column and column_next > t:
                wake = min(wake, column_next)
                need_column = False
            need_row = row_open
            if need_row and row_next > t:
                wake = min(wake, row_next)
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
                    if b == refpb_bank:
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
                                if one_bus:
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
                            if closed_page == 0:  # an auto-precharge may close the bank for an earlier activate
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
                    column_next = column_soon if need_column else t + 1
                    wake = min(wake, column_next)
                if search_row:
                    row_next = row_soon if need_row else t + 1
                    wake = min(wake, row_next)
                if row_kind == 2 and row_bank == column_bank:
                    # An older entry wants to close the row that 3b has just used: the next that wants a row command.
                    row_kind = 0
                    row_next = t + 1
                    hit_banks = np.uint64(0)
                    for place in range(head[mode], tail[mode]):
                        entry = queues[mode, place]
                        b = entry & BANK_MASK
                        if b == refpb_bank:
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
        if refpb_bank >= 0:
            b = refpb_bank
            pc = pc_of[b]
            if open_row[b] >= 0:
                if slot[b] < 0 and column_bank != b:
                    ok = max(pre_ok[b], pc_pre_ok[pc])
                    if ok > t:
                        wake = min(wake, ok)
                    elif row_can and not (one_bus and column_request >= 0):
                        row_kind = 2
                        row_bank = b
                        row_place = -1
            else:
                ok = max(act_ok[b], pc_refpb_ok[pc])
                if ok > t:
                    wake = min(wake, ok)
                elif row_can and not (one_bus and column_request >= 0):
                    row_kind = 5
                    row_bank = b
                    row_place = -1

        # 5. Issue. Auto-precharge looks at the queues as they were at the start of the cycle.
        if column_request >= 0 or row_kind:
            counts[5] += 1
        if column_request >= 0:
            b = column_bank
            w = write_of[column_request]
            pc = pc_of[b]
            group = group_of[b]
            precharge = closed_page == 1
            if precharge:
                row = open_row[b]
                if slot[b] >= 0 and slot[b] != column_request:
                    precharge = False
                for kind in range(2):
                    for place in range(head[kind], tail[kind]):
                        entry = queues[kind, place]
                        if entry >> REQUEST_SHIFT != column_request and (entry & PLACE_MASK) == (row << ROW_SHIFT | b):
                            precharge = False
            group_ok[w, group] = max(group_ok[w, group], t + ccdl)
            pc_ok[w, pc] = max(pc_ok[w, pc], t + ccds)
            if w:
                group_ok[0, group] = max(group_ok[0, group], t + cwl + bl + wtrl)
                pc_ok[0, pc] = max(pc_ok[0, pc], t + cwl + bl + wtrs)
                pre_ok[b] = max(pre_ok[b], t + write_hold)
                completed[column_request] = t + cwl + bl
                counts[3] += 1
            else:
                pc_ok[1, pc] = max(pc_ok[1, pc], t + rtw)
                pre_ok[b] = max(pre_ok[b], t + rtp)
                completed[column_request] = t + cl + bl
                counts[2] += 1
            if precharge:
                open_row[b] = -1
                closing = max(act_at[b] + ras, t + (write_hold if w else rtp))
                act_ok[b] = max(act_ok[b], closing + rp)
                row_next = min(row_next, act_ok[b])
            elif (blocked >> np.uint64(b)) & np.uint64(1):
                row_next = min(row_next, pre_ok[b])
            if column_place < 0:
                slot[b] = -1
                for s in range(slots_used):
                    if slots[s] == b:
                        slots_used -= 1
                        slots[s] = slots[slots_used]
                        break
            else:
                for place in range(column_place, head[mode], -1):
                    queues[mode, place] = queues[mode, place - 1]
                    bound[mode, place] = bound[mode, place - 1]
                head[mode] += 1
                if row_kind and row_place >= 0 and row_place < column_place:
                    row_place += 1
            column_free = t + column_cycles
            if one_bus:
                row_free = column_free
            done += 1
        if row_kind:
            b = row_bank
            pc = pc_of[b]
            hold = pre_cycles
            if row_kind == 1:
                request = queues[mode, row_place] >> REQUEST_SHIFT
                key = queues[mode, row_place] & PLACE_MASK
                for place in range(row_place, head[mode], -1):
                    queues[mode, place] = queues[mode, place - 1]
                    bound[mode, place] = bound[mode, place - 1]
                head[mode] += 1
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
                    column_next = min(column_next, t + 1)
                slot[b] = request
                slots[slots_used] = b
                slots_used += 1
                open_row[b] = key >> ROW_SHIFT
                act_at[b] = t
                column_ok[0, b] = t + rcdrd
                column_ok[1, b] = t + rcdwr
                act_ok[b] = max(act_ok[b], t + rc)
                pre_ok[b] = max(pre_ok[b], t + ras)
                group = group_of[b]
                group_act_ok[group] = t + rrdl
                window[pc, window_at[pc]] = t
                window_at[pc] = (window_at[pc] + 1) & 3
                pc_act_ok[pc] = max(pc_act_ok[pc], max(t + rrds, window[pc, window_at[pc]] + faw))
                pc_refpb_ok[pc] = max(pc_refpb_ok[pc], t + rrds)
                hold = act_cycles
                counts[0] += 1
            elif row_kind == 2:
                open_row[b] = -1
                act_ok[b] = max(act_ok[b], t + rp)
                pc_pre_ok[pc] = t + ppd
                row_next = t + 1
                counts[1] += 1
            elif row_kind == 3:
                for bank in range(b, b + per_pc):
                    if open_row[bank] >= 0:
                        open_row[bank] = -1
                        act_ok[bank] = max(act_ok[bank], t + rp)
                pc_pre_ok[pc] = t + ppd
                counts[1] += 1
            elif row_kind == 4:
                pc_act_ok[pc] = max(pc_act_ok[pc], t + rfc)
                pc_refab_ok[pc] = t + rfc
                refab_pending &= ~(1 << pc)
                row_next = t + 1
                counts[4] += 1
            else:
                act_ok[b] = t + rfcpb
                pc_act_ok[pc] = max(pc_act_ok[pc], t + rrefd)
                pc_refpb_ok[pc] = max(pc_refpb_ok[pc], t + rrefd)
                refpb_bank = -1
                column_next = row_next = t + 1
                counts[4] += 1
            row_free = t + hold
            if one_bus:
                column_free = row_free

        # 6. Acceptance.
        if ports:
            phase += port_p
            if phase >= port_q:
                phase -= port_q
                for k in range(ports):
                    token[k] = min(token[k] + 1, port_fifo)
        entered = False
        if following < number:
            w = write_of[following]
            if tail[w] - head[w] < depth:
                ready = arrival[following] if arrival.size else 0
                if ready > t:
                    wake = min(wake, ready)
                elif ports and token[port_of[following]] == 0:
                    wake = min(wake, t + (port_q - phase + port_p - 1) // port_p)
                else:
                    if ports:
                        token[port_of[following]] -= 1
                    if tail[w] == QUEUE_ROOM:
                        used = tail[w] - head[w]
                        for place in range(used):
                            queues[w, place] = queues[w, head[w] + place]
                            bound[w, place] = bound[w, head[w] + place]
                        head[w] = 0
                        tail[w] = used
                    b = bank_of[following]
                    queues[w, tail[w]] = following << REQUEST_SHIFT | row_of[following] << ROW_SHIFT | b
                    bound[w, tail[w]] = 0
                    tail[w] += 1
                    if w == mode:
                        if open_row[b] == row_of[following]:
                            column_next = min(column_next, t + 1)
                        else:
                            row_next = min(row_next, t + 1)
                    accepted[following] = t
                    following += 1
                    entered = True

        if entered or column_request >= 0 or row_kind:
            t += 1
            continue
        if refresh == 1:
            wake = min(wake, refab_due)
        elif refresh == 2 and refpb_bank < 0:
            wake = min(wake, refpb_due)
        if wake <= t or wake == FAR:
            return -1  # a fault of this function: nothing can ever happen again
        if ports:
            gone = phase + (wake - 1 - t) * port_p
            for k in range(ports):
                token[k] = min(token[k] + gone // port_q, port_fifo)
            phase = gone % port_q
        t = wake
    return t
