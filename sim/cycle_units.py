"""One cycle of the units: LD, MV and ST, and the FIFO between them. Each `*_step` reads what others hold in registers and moves its own.

Names are those of the RTL (hw/ld_unit.py, hw/burst_generator.py, hw/mv_unit.py and its parts, hw/st_unit.py): a line here is a line there,
without the data.
"""

from numba import njit

from headrace.hw.isa import Op
from headrace.sim.cycle_memory import fifo_step

WEIGHTS, ROWS, SLICES, SYS = 1, 2, 3, 4  # LD's kinds: low bits of the opcode
SCALE, META, CODE = 0, 1, 2
IDLE, CHECK, HAND, REQUEST, SCALE_READ, GIVE = range(6)
STALL_NONE = -1


@njit(cache=True, error_model="numpy")
def burst_finishes(ld, k, waiting):
    """(issue, ends_run, beats) of the BurstGenerator; `waiting`: a port has not taken the last burst."""
    room = k.burst_beats - (ld.address & (k.burst_beats - 1))
    ends_run = ld.left <= room
    beats = ld.left if ends_run else room
    return ld.live == 1 and not waiting and ld.free >= beats, ends_run, beats


@njit(cache=True, error_model="numpy")
def issue_burst(ld, ends_run, beats):
    """The BurstGenerator's burst of `beats` goes to the ports."""
    ld.ar_address, ld.ar_beats = ld.address, beats
    if not ends_run:
        ld.address += beats
        ld.left -= beats
    else:
        if ld.count == 1:
            ld.live = 0
        ld.run_base = (ld.run_base + ld.stride) & 0xFFFFFFFF
        ld.address, ld.left = ld.run_base, ld.words
        ld.count -= 1
    ld.free -= beats


@njit(cache=True, error_model="numpy")
def pop_word(ld):
    """The receiver takes a word from the ports' FIFOs."""
    ld.free += 1
    if ld.r_left == 1:
        ld.r_left = ld.r_words
        ld.r_count -= 1
    else:
        ld.r_left -= 1


@njit(cache=True, error_model="numpy")
def ld_step(ld, k, loads, group, accept, waiting, weights_ready, sys_ready, vb_ready, ab_ready):
    """One cycle of LdUnit. accept: a command is taken in this cycle; `ld_accept` follows. waiting: a port has not taken the last burst.

    Gives (word to the raw FIFO, word to boot, the receiver takes its next command: `ld_next` follows, stall or STALL_NONE, whether anything moved).
    """
    lanes = group.lane
    # Issue.
    issue, ends_run, beats = burst_finishes(ld, k, waiting)
    if issue:
        issue_burst(ld, ends_run, beats)
    moving = issue
    joined = True
    for j in range(group.count):
        lane = lanes[group.order[j]]
        lane.ar_valid = 1 if issue or (lane.ar_valid == 1 and lane.taken == 0) else 0
        moving = moving or lane.ar_valid == 1 or lane.young != 0 or lane.arrived == 1
        if lane.ripe == 0:
            joined = False

    # Receive.
    available = ld.busy == 1 and ld.empty == 0 and joined
    kind = ld.kind
    ready = weights_ready if kind == WEIGHTS else vb_ready if kind == ROWS else ab_ready if kind == SLICES else sys_ready
    moved = available and ready
    last_part = kind != ROWS or ld.part == k.ports - 1
    pop = moved and last_part
    finish = ld.busy == 1 and (ld.empty == 1 or (pop and ld.r_left == 1 and ld.r_count == 1))
    stall = STALL_NONE
    if ld.busy == 1 and ld.empty == 0 and not joined:
        stall = 0
    elif available and not ready:
        stall = 1 if kind == WEIGHTS or kind == SYS else 2
    to_raw, to_sys = moved and kind == WEIGHTS, moved and kind == SYS
    if pop:
        pop_word(ld)
    if moved and kind == ROWS:
        ld.part = 0 if last_part else ld.part + 1
    next_load = loads.ripe > 0 and (ld.busy == 0 or finish)
    if finish:
        ld.busy = 0
    ld.inside += (1 if accept else 0) - ld.unit_last
    ld.done = ld.unit_last
    ld.unit_last = 1 if finish else 0
    moving = moving or moved or (available and kind != WEIGHTS) or accept or loads.young != 0 or next_load or finish or ld.done == 1
    fifo_step(loads, accept, next_load)
    for j in range(group.count):
        lane = lanes[group.order[j]]
        fifo_step(lane, lane.arrived == 1, pop)
    return to_raw, to_sys, next_load, stall, moving


@njit(cache=True, error_model="numpy")
def ld_accept(ld, at, op, operands):
    """The BurstGenerator's registers at a new command (stream place `at`)."""
    ld.words = 1 if op[at] & 31 == SLICES else operands[at, 1]
    ld.count, ld.stride = operands[at, 2], operands[at, 3]
    ld.live = 1 if ld.words != 0 and ld.count != 0 else 0
    ld.address = ld.run_base = operands[at, 0]
    ld.left = ld.words


@njit(cache=True, error_model="numpy")
def ld_next(ld, at, op, operands):
    """The receiver's registers at its next command."""
    ld.load_next += 1
    ld.busy = 1
    ld.kind = op[at] & 31
    ld.r_words = 1 if ld.kind == SLICES else operands[at, 1]
    ld.r_left, ld.r_count = ld.r_words, operands[at, 2]
    ld.empty = 1 if ld.r_words == 0 or ld.r_count == 0 else 0


@njit(cache=True, error_model="numpy")
def mv_front(mv, k, accept, read_ready):
    """The FSM that checks a command and hands its parts out. Gives which descriptor queues it writes: 1 decode, issue, write; 2 scale."""
    given = 0
    if mv.front == IDLE:
        if accept:
            mv.front = CHECK
    elif mv.front == CHECK:
        mv.front = HAND
    elif mv.front == HAND:
        if mv.decode_queue < k.mv_commands and mv.issue_queue < k.mv_commands and mv.write_queue < k.mv_commands:
            given = 1
            mv.front = REQUEST
    elif mv.front == REQUEST:
        if read_ready:
            mv.front = SCALE_READ
            mv.answer = k.vb_stages
    elif mv.front == SCALE_READ:
        mv.answer -= 1
        if mv.answer == 0:
            mv.front = GIVE
    elif mv.scale_queue < k.mv_commands:
        given = 2
        mv.front = IDLE
    return given


@njit(cache=True, error_model="numpy")
def mv_results(mv, k, rows, write_ready):
    """Scale unit and writer. Gives (the scale unit ends its command, the writer its own or anything else moved)."""
    row_start = mv.s_group & (k.row_beats - 1) == 0
    go = mv.s_run == 1 and mv.r_ready != 0 and (mv.f_ready != 0 or mv.s_scales == 0) and (not row_start or mv.s_places != 0)
    s_finish = False
    rows_ready = mv.o_run == 1 and mv.o_left != 0 and (mv.o_valid == 0 or write_ready)
    move = rows_ready and rows.ripe > 0
    accepted_row = mv.o_valid == 1 and write_ready
    o_finish = mv.o_run == 1 and mv.o_left == 0 and mv.o_valid == 0 and mv.o_share == 0
    if go:
        stripe_end = mv.s_group == k.result_groups - 1
        mv.s_group = (mv.s_group + 1) & (k.result_groups - 1)
        if row_start:
            mv.s_places -= 1
        if stripe_end:
            s_finish = mv.s_stripes_left == 1
            scales_end = mv.s_phase == k.scale_stripes - 1
            mv.r_used -= 1
            mv.r_ready -= 1
            mv.s_stripes_left -= 1
            mv.s_phase = 0 if scales_end else mv.s_phase + 1
            if mv.s_scales == 1 and (s_finish or scales_end):
                mv.f_used -= 1
                mv.f_ready -= 1
            if s_finish:
                mv.s_run = 0
    enter_row = mv.s_complete == 1
    if go or mv.s_flow != 0 or enter_row:
        arrived = (mv.s_flow >> (k.scale_stages - 1)) & 1
        mv.s_complete = 1 if arrived and mv.s_beat == k.row_beats - 1 else 0
        if arrived:
            mv.s_beat = 0 if mv.s_beat == k.row_beats - 1 else mv.s_beat + 1
        mv.s_flow = ((mv.s_flow << 1) | (1 if go else 0)) & 0xFFFF
    fifo_step(rows, enter_row, move)
    if accepted_row:
        mv.o_valid = 0
    if move:
        mv.o_valid = 1
        mv.o_left -= 1
        mv.s_places += 1
    mv.o_share = 1 if accepted_row else 0
    mv.commands -= mv.done
    mv.done = 1 if o_finish else 0
    if o_finish:
        mv.o_run = 0
    return s_finish, go or move or o_finish


@njit(cache=True, error_model="numpy")
def mv_step(mv, k, rows, accept, word_valid, read_ready, write_ready):
    """One cycle of MvUnit. Gives (word taken, stages that take their next command: `mv_describe` follows, stall or STALL_NONE, whether anything
    moved)."""
    results_flow = (
        mv.s_flow != 0 or mv.s_complete != 0 or rows.young != 0 or mv.o_valid != 0 or mv.o_share != 0 or mv.done != 0
    )
    flowing = results_flow or mv.front != IDLE or mv.i_valids != 0 or mv.d_pipe != 0 or mv.d_scale_write != 0
    # Decode unit: what the next word is, and whether it may go.
    is_code = mv.d_kind == CODE
    if is_code:
        may = mv.w_used != k.weight_slices or mv.d_part != 0
    else:
        may = mv.d_kind == META or mv.f_used != k.scale_words
    d_ready = mv.d_run == 1 and may
    take = d_ready and word_valid
    parts = k.parts8 if mv.d_bits8 else k.parts4
    part_last = mv.d_part == parts - 1
    code = take and is_code
    slice_end = code and part_last
    stripe_end = slice_end and mv.d_slices_left == 1
    d_finish = stripe_end and mv.d_stripes_left == 1
    reserve = code and mv.d_part == 0
    scale_take = take and mv.d_kind == SCALE

    # Issue of slices to the array.
    last = mv.i_slices_left == 1
    issue = mv.i_run == 1 and mv.w_ready != 0 and (not last or mv.r_used != k.result_stripes)
    i_finish = issue and last and mv.i_stripes_left == 1
    slice_written = (mv.d_pipe >> (k.decode_stages - 1)) & 1
    released = (mv.i_valids >> k.release_stage) & 1
    result = (mv.i_lasts >> k.sum_stage) & 1

    stall = STALL_NONE
    if mv.d_run == 1 and not word_valid:
        stall = 0
    elif not d_ready:
        stall = 1 if mv.o_valid == 1 and not write_ready else 2 if mv.d_run == 1 else 3

    # Scale unit and writer: most of the time nothing is there for them.
    s_free, o_free = mv.s_run == 0, mv.o_run == 0
    results_moved = False
    if results_flow or rows.ripe != 0 or (mv.r_ready != 0 and not s_free) or (mv.o_left == 0 and not o_free):
        s_finish, results_moved = mv_results(mv, k, rows, write_ready)
        s_free = s_free or s_finish

    # Descriptors: which stages take one in this cycle.
    d_desc = mv.decode_queue > 0 and (mv.d_run == 0 or d_finish)
    i_desc = mv.issue_queue > 0 and (mv.i_run == 0 or i_finish)
    s_desc = mv.scale_queue > 0 and s_free
    o_desc = mv.write_queue > 0 and o_free
    stages = (1 if d_desc else 0) | (2 if i_desc else 0) | (4 if s_desc else 0) | (8 if o_desc else 0)
    given = mv_front(mv, k, accept, read_ready) if accept or mv.front != IDLE else 0
    if stages or given:
        head, tail = 1 if given == 1 else 0, 1 if given == 2 else 0
        mv.decode_queue += head - (1 if d_desc else 0)
        mv.issue_queue += head - (1 if i_desc else 0)
        mv.write_queue += head - (1 if o_desc else 0)
        mv.scale_queue += tail - (1 if s_desc else 0)

    # Registers of the decode unit.
    mv.d_pipe = ((mv.d_pipe << 1) | (1 if slice_end else 0)) & 0xFFFF
    if scale_take or mv.d_scale_write:
        mv.f_used += 1 if scale_take else 0
        mv.f_ready += mv.d_scale_write
        mv.d_scale_write = 1 if scale_take else 0
    if take:
        first_of_slice = CODE if mv.d_bits8 else META
        if mv.d_kind == SCALE:
            mv.d_kind = first_of_slice
        elif mv.d_kind == META:
            mv.d_kind = CODE
        else:
            mv.d_part = 0 if part_last else mv.d_part + 1
        if slice_end:
            mv.d_slices_left -= 1
            mv.d_phase += 1
            if mv.d_phase == k.meta_phases:
                mv.d_phase = 0
                mv.d_kind = first_of_slice
        if stripe_end:
            scale_last = mv.d_scale_phase == k.scale_stripes - 1
            mv.d_slices_left = mv.d_slices
            mv.d_phase = 0
            mv.d_stripes_left -= 1
            mv.d_scale_phase = 0 if scale_last else mv.d_scale_phase + 1
            mv.d_kind = SCALE if mv.d_scales and scale_last else first_of_slice
        if d_finish:
            mv.d_run = 0

    # Weight FIFO, issue, array.
    mv.w_used += (1 if reserve else 0) - released
    mv.w_ready += slice_written - (1 if issue else 0)
    mv.i_valids = ((mv.i_valids << 1) | (1 if issue else 0)) & 0xFFFFFFFF
    mv.i_lasts = ((mv.i_lasts << 1) | (1 if issue and last else 0)) & 0xFFFFFFFF
    mv.r_ready += result
    if issue:
        mv.i_slices_left -= 1
        if last:
            mv.r_used += 1
            mv.i_slices_left = mv.i_slices
            mv.i_stripes_left -= 1
            if i_finish:
                mv.i_run = 0
    mv.commands += 1 if accept else 0
    return take, stages, stall, flowing or take or issue or results_moved or accept or stages != 0


@njit(cache=True, error_model="numpy")
def mv_describe(mv, k, stages, orders, flags, pc, operands):
    """The stages' registers at their next commands; `orders` lists the MVs of the stream."""
    if stages & 1:
        at = orders[mv.d_next]
        mv.d_next += 1
        mv.d_run = 1
        mv.d_bits8 = (flags[pc[at]] >> 3) & 1
        mv.d_scales = (flags[pc[at]] >> 4) & 1
        mv.d_stripes_left = operands[at, 3]
        mv.d_slices = mv.d_slices_left = operands[at, 4]
        mv.d_part = mv.d_phase = mv.d_scale_phase = 0
        mv.d_kind = SCALE if mv.d_scales else CODE if mv.d_bits8 else META
    if stages & 2:
        at = orders[mv.i_next]
        mv.i_next += 1
        mv.i_run = 1
        mv.i_stripes_left = operands[at, 3]
        mv.i_slices = mv.i_slices_left = operands[at, 4]
    if stages & 4:
        at = orders[mv.s_next]
        mv.s_next += 1
        mv.s_run = 1
        mv.s_scales = (flags[pc[at]] >> 4) & 1
        mv.s_stripes_left = operands[at, 3]
        mv.s_phase = 0
    if stages & 8:
        mv.o_run = 1
        mv.o_left = operands[orders[mv.o_next], 3] * k.stripe_vb_rows
        mv.o_next += 1


@njit(cache=True, error_model="numpy")
def st_step(st, k, fifo, ring, op, operands, accept, vb_ready, ab_ready, group, answers):
    """One cycle of StUnit. accept: the command taken in this cycle, or -1. Gives its stall or STALL_NONE."""
    lanes = group.lane
    from_vb = st.op == Op.STV or st.op == Op.STS
    go = st.issuing == 1 and st.room != 0
    request = go and (vb_ready if from_vb else ab_ready)
    complete = st.running == 1 and st.start == 0 and st.issuing == 0 and st.room == k.st_fifo and st.unanswered == 0
    stall = STALL_NONE
    if go and not request:
        stall = 0
    elif st.running == 1 and st.start == 0 and not go and not complete:
        stall = 1

    # Ports: AW and W of one beat wait in registers of their port, taken together.
    pop = False
    send = fifo.ripe > 0 and st.unanswered != k.st_writes
    target = ring[st.ring_read] & (k.ports - 1)
    for j in range(group.count):
        i = group.order[j]
        lane = lanes[i]
        if send and i == target and (lane.aw_valid == 0 or lane.wrote == 1):
            pop = True
            lane.aw_valid = 1
            lane.aw_address = ring[st.ring_read] // k.ports
        elif lane.wrote == 1:
            lane.aw_valid = 0
    if pop:
        st.ring_read = (st.ring_read + 1) & (ring.size - 1)
    fifo_step(fifo, (st.pipe >> k.vb_stages) & 1 == 1, pop)
    st.unanswered += (1 if pop else 0) - answers
    st.room += (1 if pop else 0) - (1 if request else 0)
    st.pipe = ((st.pipe << 1) | (1 if request else 0)) & 0xFF

    if request:
        beat = st.place if st.op == Op.STV else st.place >> 3 if st.op == Op.STS else st.place >> 1
        ring[st.ring_write] = beat
        st.ring_write = (st.ring_write + 1) & (ring.size - 1)
        at = st.command
        if st.index == st.length - 1:
            st.index = 0
            st.heads -= 1
            st.head = (st.head + operands[at, 4]) & 0xFFFFFFFF
            st.place = st.stripe = st.head
            if st.heads == 0:
                st.issuing = 0
        else:
            if st.op == Op.STT and st.index & (k.pairs_per_stripe - 1) == k.pairs_per_stripe - 1:
                st.stripe = (st.stripe + operands[at, 6]) & 0xFFFFFFFF
                st.place = st.stripe
            elif st.op == Op.STV:
                st.place += 1
            elif st.op == Op.STS:
                st.place = (st.place + operands[at, 4]) & 0xFFFFFFFF
            elif st.op == Op.STK:
                st.place += 2 * k.pairs_per_stripe
            else:
                st.place += 2
            st.index += 1
    if st.start == 1:
        at = st.command
        st.start = 0
        st.place = st.head = st.stripe = operands[at, 0]
        st.index = 0
        st.length = operands[at, 2] << 3 if st.op == Op.STT else operands[at, 2]
        st.heads = operands[at, 3] if st.op == Op.STK or st.op == Op.STT else 1
        st.issuing = 1 if operands[at, 2] != 0 and (operands[at, 3] != 0 or from_vb) else 0
    st.done = 1 if complete else 0
    if complete:
        st.running = 0
    if accept >= 0:
        st.running, st.start, st.command, st.op = 1, 1, accept, op[accept]
    return stall
