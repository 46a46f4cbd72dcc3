"""The cycle loop: memory, units, queues, tokens and sequencer of the machine, one clock cycle after another.

In every cycle each part first sees what the others hold in registers, then moves. Parts whose outputs another part needs within the cycle (a
ready signal that depends on more than registers) come first. hw/control.py, hw/sequencer.py, hw/command_queue.py and hw/boot.py are the text.
"""

import hashlib
from pathlib import Path

import numpy as np
from numba import njit

from headrace.hw.isa import TOKEN_LIMIT, Op, Queue
from headrace.sim import cycle_dram, cycle_memory, cycle_sfu, cycle_steady, cycle_symmetry, cycle_units, dram_core
from headrace.sim.cycle_memory import fifo_level, fifo_step
from headrace.sim.cycle_sfu import AB_READ, AB_WRITE, DEPENDENCY, DRAIN, VB_READ, VB_WRITE
from headrace.sim.cycle_units import (
    IDLE, REQUEST, STALL_NONE, burst_finishes, ld_accept, ld_next, ld_step, mv_describe, mv_step, st_step,
)  # fmt: skip

LD, ST, MV, VEC, SYS = (int(queue) for queue in Queue)
ISSUE, MULTIPLY, READ_REQUEST, READ_RESPONSE, WRITE_BACK, BARRIER = range(6)
BOOT_IDLE, REGISTERS, HEADER_COMMAND, HEADER_DATA, CHECK_HEADER, PROGRAM_COMMAND, PROGRAM_DATA, PROGRAM_DONE = range(8)
HALTED, WATCHDOG, TOKEN_OVERFLOW = 0, 5, 3
BOOT_LOADS = 2
"""Entries that stand before the program's in the stream: boot's header and program."""

# Places in `counters`: the order of hw.control.ControlParameters.counter_names.
CYCLES, BOOT_CYCLES, INSTRUCTIONS = 0, 1, 2
LD_BUSY, ST_BUSY, MV_BUSY, VEC_BUSY, SYS_FIRST = 7, 14, 20, 28, 34
DISPATCH, EXECUTE, QUEUE_FULL, WAIT_TOKEN, IN_BARRIER, FETCH = range(6)
BEATS = 40

SOURCE = hashlib.sha256(
    b"".join(Path(module.__file__).read_bytes() for module in (cycle_dram, cycle_memory, cycle_sfu, cycle_steady, cycle_symmetry, cycle_units, dram_core))
).hexdigest()
"""Of the files whose functions the loop contains: numba's disk cache knows only this file's own age."""


@njit(cache=True, error_model="numpy")
def take_tokens(tokens, held, q, wait):
    """Queue q takes one token from every queue of the mask. held[q]: mask of the queues of which q has a token."""
    for b in range(5):
        if (wait >> b) & 1:
            tokens[b, q] -= 1
            if tokens[b, q] == 0:
                held[q] &= ~(1 << b)


@njit(cache=True, error_model="numpy")
def queue_step(queue, k, q, rings, started, op_of, push, start, done):
    """One cycle of a CommandQueue. Gives the stream place that retires, or -1. started: places of what is in the unit, oldest first."""
    retired = -1
    direct = False
    if queue.count > 0:
        oldest = started[q, queue.oldest]
        nop = op_of[oldest] & 31 == 0
        if not nop and queue.kept > 0:
            queue.kept -= 1
            retired = oldest
        elif nop:
            retired = oldest
        elif done:
            direct = True
            retired = oldest
    if done and not direct:
        queue.kept += 1
    if start:
        started[q, queue.newest] = queue.head
        queue.newest = (queue.newest + 1) & (k.in_flight - 1)
    if retired >= 0:
        queue.oldest = (queue.oldest + 1) & (k.in_flight - 1)
    queue.count += (1 if start else 0) - (1 if retired >= 0 else 0)
    load = queue.head < 0 or start
    if load:
        if queue.behind > 0:
            queue.head = rings[q, queue.ring_read]
            queue.ring_read = (queue.ring_read + 1) & (k.queue_depth - 1)
            queue.behind -= 1
            if push >= 0:
                rings[q, queue.ring_write] = push
                queue.ring_write = (queue.ring_write + 1) & (k.queue_depth - 1)
                queue.behind += 1
        else:
            queue.head = push
    elif push >= 0:
        rings[q, queue.ring_write] = push
        queue.ring_write = (queue.ring_write + 1) & (k.queue_depth - 1)
        queue.behind += 1
    return retired


def _loop(source: str):
    @njit(cache=True, error_model="numpy")
    def run(sizes, state, fixed, dram, rings, program, stream, counters, times, now):
        """From the cycle after `start` (number `now` from reset) to HALT. Gives (status, queue, cycle).

        fixed, dram: the memory, of which `sizes.dram` says which is meant (sim/cycle_memory.py, sim/cycle_dram.py).
        """
        if len(source) == 0:  # keeps `source` in the closure, and so in the key of the disk cache
            return -1, 0, 0
        k = sizes[0]
        sequencers, queues, lds, mvs, sts, sfus, fifos, groups = state
        s, ld, mv, st, sfu = sequencers[0], lds[0], mvs[0], sts[0], sfus[0]
        raw, loads, rows, writes = fifos[0], fifos[1], fifos[2], fifos[3]
        group = groups[0]
        queue_rings, started, st_ring, tokens, held, retired, done = rings
        flags, wait_of, release_of = program
        op, pc, operands, branch_taken, ld_order, mv_order, vec_offset, vec_length, marks, dependencies, drains = stream
        dispatch_at, start_at, retire_at = times
        ports_n = k.ports
        with_dram = k.dram == 1
        memory, m = fixed[0], dram[0]
        cycle = 0
        status = -1
        culprit = SYS
        # Control sleeps while nothing that it looks at changes; what it counts in each such cycle stays the same.
        asleep = False
        wants_ld = wants_st = wants_mv = wants_vec = False
        activity = FETCH
        counted = np.zeros(4, np.int64)
        while status < 0:
            running = s.running == 1
            # ---- memory: sees AR, AW and W in registers ----
            count = 1 if running else 0
            if with_dram:
                if m.active > 1:
                    cycle_symmetry.merge(m, group)
                if writes.ripe > 0 and st.unanswered != k.st_writes:
                    cycle_symmetry.touch(m, group, st_ring[st.ring_read] & (ports_n - 1))
                waiting, answers = cycle_dram.step(m, group, ld.ar_address, ld.ar_beats, now, count)
                if m.changed == 1:
                    m.changed = 0
                    cycle_symmetry.stepped_lanes(m, group)
            else:
                waiting, answers = cycle_memory.step_all(memory, group, ld.ar_beats, now, count)
            # ---- buffers' ports: SFU first, then MV, LD; or MV, ST, control ----
            use = 0
            if sfu.running == 1:
                use = marks[sfu.offset + cycle - sfu.start]
            mv_ready = use & VB_WRITE == 0
            ld_vb_ready = mv_ready and mv.o_valid == 0
            ld_ab_ready = use & AB_WRITE == 0
            read_free = use & VB_READ == 0
            mv_read_ready = read_free
            if mv.front == REQUEST:
                read_free = False
            st_vb_ready = read_free
            if st.issuing == 1 and st.room != 0 and (st.op == Op.STV or st.op == Op.STS):
                read_free = False
            sys_ready = read_free
            st_ab_ready = use & AB_READ == 0
            # ---- units' readiness for a command; tokens ----
            issue, ends_run, _ = burst_finishes(ld, k, waiting)
            ld_ready = (ld.live == 0 or (issue and ends_run and ld.count == 1)) and fifo_level(loads) < k.load_queue
            sfu_last = sfu.running == 1 and cycle - sfu.start == sfu.length
            sfu_idle = sfu.running == 0 or sfu_last
            # ---- sequencer and queues ----
            ld_taken = st_accept = -1
            mv_accept = vec_accept = False
            if asleep and (
                ld.done == 1 or st.done == 1 or mv.done == 1 or sfu_last or (wants_ld and ld_ready) or (wants_mv and mv.front == IDLE)
                or (wants_st and st.running == 0) or (wants_vec and sfu_idle)
            ):  # fmt: skip
                asleep = False
            awake = running and not asleep
            if awake:
                done[LD], done[ST], done[MV] = ld.done, st.done, mv.done
                done[VEC] = 1 if sfu_last else 0
                push = -1
                push_queue = -1
                complete = False
                start_redirect = False
                moved = s.redirect == 1
                activity = FETCH
                if s.x_valid == 1:
                    x = s.x
                    q = op[x] >> 5
                    if q != SYS:
                        activity = QUEUE_FULL
                        if queues[q].behind < k.queue_depth - 1:
                            activity = DISPATCH
                            push, push_queue = x, q
                            dispatch_at[x] = cycle
                    elif s.state == BARRIER:
                        activity = IN_BARRIER
                        drained = True
                        for j in range(4):
                            if queues[j].head >= 0 or queues[j].count > 0:
                                drained = False
                        complete = drained
                    else:
                        activity = EXECUTE
                        if s.state == ISSUE:
                            if wait_of[pc[x]] & ~held[SYS] == 0:
                                take_tokens(tokens, held, SYS, wait_of[pc[x]])
                                dispatch_at[x] = start_at[x] = cycle
                                moved = True
                                if op[x] == Op.MUL:
                                    s.state = MULTIPLY
                                elif op[x] == Op.RDV:
                                    s.state = READ_REQUEST
                                elif op[x] == Op.BAR or op[x] == Op.HALT:
                                    s.state = BARRIER
                                else:
                                    complete = True
                                    start_redirect = branch_taken[x] == 1
                            else:
                                activity = WAIT_TOKEN
                        else:
                            moved = True
                            if s.state == MULTIPLY:
                                s.state = WRITE_BACK
                            elif s.state == READ_REQUEST:
                                if sys_ready:
                                    s.state = READ_RESPONSE
                                    s.answer = k.vb_stages
                            elif s.state == READ_RESPONSE:
                                s.answer -= 1
                                if s.answer == 0:
                                    s.state = WRITE_BACK
                            else:
                                complete = True
                else:
                    moved = True
                counters[SYS_FIRST + activity] += 1
                if complete:
                    s.state = ISSUE
                    retired[SYS] = s.x
                # Decode stage: stands still when a SYS instruction completes and in the cycle of a redirect.
                if s.redirect == 0 and (s.x_valid == 0 or push >= 0):
                    s.x = s.next
                    s.next += 1
                    s.x_valid = 1
                elif complete:
                    s.x_valid = 0
                s.redirect = 1 if start_redirect else 0
                moved = moved or complete or push >= 0 or start_redirect

                # Queues: start, retire.
                wants_ld = wants_st = wants_mv = wants_vec = False
                for q in range(4):
                    queue = queues[q]
                    head = queue.head
                    ok = False
                    start = False
                    if head >= 0:
                        wait = wait_of[pc[head]]
                        ok = wait & ~held[q] == 0
                        if ok and queue.count != k.in_flight:
                            nop = op[head] & 31 == 0
                            start = (
                                nop or (q == LD and ld_ready) or (q == ST and st.running == 0) or (q == MV and mv.front == IDLE)
                                or (q == VEC and sfu_idle)
                            )  # fmt: skip
                            if start:
                                start_at[head] = cycle
                                if wait != 0:
                                    take_tokens(tokens, held, q, wait)
                                if not nop:
                                    if q == LD:
                                        ld_taken = ld.accepted
                                        ld.accepted += 1
                                    elif q == ST:
                                        st_accept = head
                                    elif q == MV:
                                        mv_accept = True
                                    else:
                                        vec_accept = True
                            elif q == LD:
                                wants_ld = True
                            elif q == ST:
                                wants_st = True
                            elif q == MV:
                                wants_mv = True
                            else:
                                wants_vec = True
                    if q == LD:
                        active, base, stalls = ld.inside != 0, LD_BUSY, 3
                    elif q == ST:
                        active, base, stalls = st.running == 1, ST_BUSY, 2
                    elif q == MV:
                        active, base, stalls = mv.commands != 0, MV_BUSY, 4
                    else:
                        active, base, stalls = sfu.running == 1 and cycle > sfu.start and not sfu_last, VEC_BUSY, 2
                        if sfu.running == 1 and not active:
                            moved = True
                        if sfu_last:
                            sfu.running = 0
                        if vec_accept:
                            sfu.running, sfu.start, sfu.offset, sfu.length = 1, cycle, vec_offset[head], vec_length[head]
                    counted[q] = base if active else base + 2 + stalls if head >= 0 and not ok else base + 3 + stalls
                    counters[counted[q]] += 1
                    moves = start or push_queue == q or done[q] == 1 or queue.kept > 0
                    if moves or (queue.count > 0 and op[started[q, queue.oldest]] & 31 == 0):
                        retired[q] = queue_step(queue, k, q, queue_rings, started, op, push if push_queue == q else -1, start, done[q] == 1)
                        moved = True
                asleep = not moved
            elif running:
                counters[SYS_FIRST + activity] += 1
                for q in range(4):
                    counters[counted[q]] += 1
            # ---- boot ----
            sys_word_ready = False
            boot_load = s.boot != BOOT_IDLE
            run_now = False
            if boot_load:
                done[LD] = ld.done
                counters[BOOT_CYCLES] += 1
                last = s.boot_left != 0 and s.boot_index + 1 == k.instructions
                if s.boot == HEADER_DATA:
                    sys_word_ready = s.boot_index != k.header_words
                elif s.boot == PROGRAM_DATA:
                    sys_word_ready = s.boot_left <= 1 and not last
                if (s.boot == HEADER_COMMAND or s.boot == PROGRAM_COMMAND) and ld_ready:
                    ld_taken = ld.accepted
                    ld.accepted += 1
            # ---- units ----
            mv_active = mv.commands != 0
            ld_active = ld.inside != 0
            st_active = st.running == 1
            raw_room = fifo_level(raw) < k.raw_fifo
            to_raw, to_sys, next_load, ld_stall, moving = ld_step(
                ld, k, loads, group, ld_taken >= 0, waiting, raw_room, sys_word_ready, ld_vb_ready, ld_ab_ready
            )
            if ld_taken >= 0:
                ld_accept(ld, ld_order[ld_taken], op, operands)
            if next_load:
                ld_next(ld, ld_order[ld.load_next], op, operands)
            word = False
            mv_stall = STALL_NONE
            if mv_active or mv_accept or mv.i_valids != 0:
                slice_read = (mv.i_valids & 1) == 1
                word, stages, mv_stall, mv_moving = mv_step(mv, k, rows, mv_accept, raw.ripe > 0, mv_read_ready, mv_ready)
                moving = moving or mv_moving
                if stages:
                    mv_describe(mv, k, stages, mv_order, flags, pc, operands)
                if slice_read:
                    counters[BEATS + 2 * ports_n] += 1
            st_stall = STALL_NONE
            if st_active or st_accept >= 0 or st.done == 1:
                moving = True
                st_stall = st_step(st, k, writes, st_ring, op, operands, st_accept, st_vb_ready, st_ab_ready, group, answers)
            moving = moving or raw.young != 0
            fifo_step(raw, to_raw, word)
            if running:
                if ld_active:
                    counters[LD_BUSY + 2 + ld_stall] += 1
                if st_active:
                    counters[ST_BUSY + 2 + st_stall] += 1
                if mv_active:
                    counters[MV_BUSY + 2 + mv_stall] += 1
                if use & (DEPENDENCY | DRAIN):
                    counters[VEC_BUSY + (2 if use & DEPENDENCY else 3)] += 1
            # ---- boot's registers ----
            if boot_load:
                finished = s.boot_finished == 1 or done[LD] == 1
                if s.boot == REGISTERS:
                    s.boot_index += 1
                    if s.boot_index == k.registers:
                        s.boot = HEADER_COMMAND
                elif s.boot == HEADER_COMMAND:
                    s.boot_index = 0
                    finished = False
                    if ld_ready:
                        s.boot = HEADER_DATA
                elif s.boot == HEADER_DATA:
                    if s.boot_index == k.header_words and finished:
                        s.boot = CHECK_HEADER
                    if to_sys:
                        s.boot_index += 1
                elif s.boot == CHECK_HEADER:
                    s.boot = PROGRAM_COMMAND
                elif s.boot == PROGRAM_COMMAND:
                    s.boot_index = s.boot_left = 0
                    finished = False
                    if ld_ready:
                        s.boot = PROGRAM_DATA
                elif s.boot == PROGRAM_DATA:
                    last = s.boot_left != 0 and s.boot_index + 1 == k.instructions
                    if s.boot_left != 0:
                        s.boot_index += 1
                        s.boot_left -= 1
                    if last:
                        s.boot = PROGRAM_DONE
                    elif to_sys:
                        s.boot_left = k.instructions_per_word
                elif finished:
                    s.boot = BOOT_IDLE
                    run_now = True
                s.boot_finished = 1 if finished else 0
            # ---- tokens: released in this cycle, there in the next ----
            if running:
                any_retired = False
                for q in range(5 if awake else 0):
                    at = retired[q]
                    if at >= 0:
                        any_retired = True
                        retired[q] = -1
                        retire_at[at] = cycle
                        counters[INSTRUCTIONS + q] += 1
                        release = release_of[pc[at]]
                        for b in range(5):
                            if (release >> b) & 1:
                                tokens[q, b] += 1
                                held[b] |= 1 << q
                                if tokens[q, b] > TOKEN_LIMIT:
                                    status, culprit = TOKEN_OVERFLOW, q
                        if q == SYS and op[at] == Op.HALT:
                            status = HALTED
                s.quiet = 0 if any_retired else s.quiet + 1
                if s.quiet >= k.watchdog:
                    status = WATCHDOG
                cycle += 1
            if run_now:
                s.running = 1
            now += 1
            # ---- nothing moves: on to the cycle in which the SFU ends or the memory answers, or the watchdog barks ----
            if asleep and not moving:
                most = k.watchdog - s.quiet - 1
                if sfu.running == 1:
                    most = min(most, sfu.start + sfu.length - cycle)
                if most > 0:
                    most = cycle_dram.still(m, most) if with_dram else cycle_memory.still(memory, most)
                if most > 0:
                    if with_dram:
                        cycle_dram.pass_by(m, most)
                    else:
                        cycle_memory.pass_by(memory, most)
                    counters[SYS_FIRST + activity] += most
                    for q in range(4):
                        counters[counted[q]] += most
                    if ld_active:
                        counters[LD_BUSY + 2 + ld_stall] += most
                    if mv_active:
                        counters[MV_BUSY + 2 + mv_stall] += most
                    if sfu.running == 1:
                        first = sfu.offset + cycle - sfu.start
                        counters[VEC_BUSY + 2] += dependencies[first + most] - dependencies[first]
                        counters[VEC_BUSY + 3] += drains[first + most] - drains[first]
                    s.quiet += most
                    cycle += most
                    now += most
            # ---- or what moves is weights on their way into MV ----
            elif asleep and with_dram and not (
                wants_st or (wants_vec and sfu.running == 0) or (wants_ld and ld.live == 0 and fifo_level(loads) < k.load_queue)
            ) and cycle_steady.begins(m, group, ld, mv, st, loads, writes):  # fmt: skip
                most = k.watchdog - s.quiet - 1
                if sfu.running == 1:
                    most = min(most, sfu.start + sfu.length - cycle)
                passed = cycle_steady.steady(
                    m, group, k, ld, mv, sfu, raw, rows, (mv_order, flags, pc, operands, BEATS + 2 * ports_n), marks, LD_BUSY + 1, MV_BUSY + 1,
                    VEC_BUSY + 2, counters, wants_mv, cycle, now, most,
                )  # fmt: skip
                counters[SYS_FIRST + activity] += passed
                for q in range(4):
                    counters[counted[q]] += passed
                s.quiet += passed
                cycle += passed
                now += passed
        counters[CYCLES] = cycle
        if with_dram:
            cycle_symmetry.finish(m, group)
        for i in range(ports_n):
            counters[BEATS + i], counters[BEATS + ports_n + i] = group.lane[i].reads, group.lane[i].writes
        # Active is what is busy and not stalled.
        counters[VEC_BUSY + 1] = counters[VEC_BUSY] - counters[VEC_BUSY + 2] - counters[VEC_BUSY + 3]
        return status, culprit, cycle

    return run


run = _loop(SOURCE)
