"""DramChannel: one memory channel by the timing rules of ``docs/memory.md``, cycle by cycle. Simulation only."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from headrace.hw.dram_banks import TIME_BITS, DramBanks
from headrace.hw.dram_parameters import FIFO_BITS, RATIO_BITS, WIDTHS, geometry, parameter_values, parameters
from headrace.hw.dram_pick import index_of, oldest, selected
from headrace.hw.dram_queue import DramQueue
from headrace.hw.dram_refresh import DramRefresh
from headrace.hw.memory_timing import ChannelTiming


class Request(data.StructLayout):
    """One burst. `bank` is the `bank_id` of the rules, over pseudo-channels and groups; the column does not matter."""

    def __init__(self, *, banks: int, row_bits: int, ports: int, tag_bits: int):
        super().__init__(
            {
                "write": 1,
                "bank": max(1, (banks - 1).bit_length()),
                "row": row_bits,
                "port": max(1, (ports - 1).bit_length()),
                "tag": tag_bits,
            }
        )


class Completion(data.StructLayout):
    """`cycle` is the completion cycle of the rules: `cl` + `bl` (write: `cwl` + `bl`) after the RD or WR."""

    def __init__(self, *, tag_bits: int):
        super().__init__({"write": 1, "tag": tag_bits, "cycle": TIME_BITS})


class DramChannel(wiring.Component):
    """Queues, scheduler, banks and refresh of one channel.

    timing
        The parameters, in cycles of the command clock, which is this component's clock.
    ports, p, q, port_fifo
        User ports, their clock of p/q port cycles per cycle, and the tokens that a port holds (section 7).
    settable
        Makes the parameters inputs (`parameters`, see ``dram_parameters``). Of `timing` only the geometry and, as a
        limit, `queue` are fixed then. For simulators that serve many timings with one build.

    `request`: the in-order source. A request is valid from its arrival cycle on; the cycle in which `ready` answers
    is its acceptance. `ready` depends on the payload and on the commands of this cycle.
    `done`: shows a request, by its tag, in the cycle in which its RD or WR is issued; there is no back-pressure. Its
    data are due in `done.payload.cycle`, a constant number of cycles later for reads, and another for writes. So a user
    delays `done` by these constants and never has to store cycles.
    `room`: bit 0 for reads, bit 1 for writes: the queue held fewer than `queue` entries as the cycle began, so that such a request
    would be accepted, tokens aside. Unlike `ready` it depends on registers only.
    `now` is the cycle number; reset makes it 0. Two runs of one instance have a cycle of reset between them.
    Latency: a request is scheduled from the cycle after its acceptance on. One acceptance and one `done` a cycle.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(
        self,
        timing: ChannelTiming,
        *,
        ports: int = 1,
        p: int = 1,
        q: int = 1,
        port_fifo: int = 1,
        row_bits: int = 24,
        tag_bits: int = 32,
        settable: bool = False,
    ):
        if not 1 <= ports <= 64:
            raise ValueError(f"ports = {ports}: 1..64 is allowed")
        if not 1 <= row_bits <= 32 or not 1 <= tag_bits <= 64:
            raise ValueError(f"row_bits = {row_bits}, tag_bits = {tag_bits}: 1..32 and 1..64 are allowed")
        self.timing, self.ports, self.settable = timing, ports, settable
        self.values = parameter_values(timing, p=p, q=q, port_fifo=port_fifo)
        self.row_bits, self.tag_bits = row_bits, tag_bits
        super().__init__(
            {
                "request": In(stream.Signature(Request(banks=timing.banks, row_bits=row_bits, ports=ports, tag_bits=tag_bits))),
                "done": Out(wiring.Signature({"valid": Out(1), "payload": Out(Completion(tag_bits=tag_bits))})),
                "now": Out(TIME_BITS),
                "room": Out(2),
                **({"parameters": In(parameters())} if settable else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        pcs, bank_groups, banks_per_group = geometry(self.timing)
        banks_per_pc = bank_groups * banks_per_group
        count = pcs * banks_per_pc
        pc_banks = [Const(((1 << banks_per_pc) - 1) << pc * banks_per_pc, count) for pc in range(pcs)]
        if self.settable:
            t = self.parameters
        else:
            t = parameters().create()
            m.d.comb += [getattr(t, name).eq(value) for name, value in self.values.items()]

        def one_hot(number: Value) -> Value:
            return (Const(1, count) << number)[:count]

        m.submodules.banks = banks = DramBanks(pcs=pcs, bank_groups=bank_groups, banks_per_group=banks_per_group)
        m.submodules.refresh = refresh = DramRefresh(pcs=pcs, banks_per_pc=banks_per_pc)
        m.submodules.reads = reads = DramQueue(entries=self.timing.queue, banks=count, row_bits=self.row_bits)
        m.submodules.writes = writes = DramQueue(entries=self.timing.queue, banks=count, row_bits=self.row_bits)
        for name in WIDTHS:
            m.d.comb += [getattr(block.parameters, name).eq(getattr(t, name)) for block in (banks, refresh)]
        m.d.comb += [
            reads.limit.eq(t.queue),
            writes.limit.eq(t.queue),
            self.room.eq(Cat(reads.level < t.queue, writes.level < t.queue)),
        ]
        m.d.sync += self.now.eq(self.now + 1)
        m.d.comb += banks.now.eq(self.now)

        # Step 1. The refresh timer.
        draining = Signal()  # an all-bank refresh is pending
        allowed = Signal(count)  # banks of which queue entries may have commands
        pending_bank = Signal(count)
        m.d.comb += [
            draining.eq(refresh.pcs.any()),
            pending_bank.eq(Mux(refresh.bank_valid, one_hot(refresh.bank), 0)),
            allowed.eq(Mux(draining, 0, ~pending_bank)),
        ]

        # Step 2. Write mode.
        mode_before = Signal()
        mode = Signal()
        with m.If(mode_before):
            m.d.comb += mode.eq(~(((reads.level != 0) & (5 * writes.level < t.queue)) | (writes.level == 0)))
        with m.Else():
            m.d.comb += mode.eq((5 * writes.level > 4 * t.queue) | ((reads.level == 0) & (writes.level != 0)))
        m.d.sync += mode_before.eq(mode)

        # Buses.
        column_until = Signal(TIME_BITS)
        row_until = Signal(TIME_BITS)
        column_free, row_free = Signal(), Signal()
        bus_until = [self.now >= column_until, self.now >= row_until]
        m.d.comb += [
            column_free.eq(bus_until[0] & (~t.one_bus | bus_until[1])),
            row_free.eq(bus_until[1] & (~t.one_bus | bus_until[0])),
        ]

        # Step 3. Column selection: slots, then the mode's queue.
        slot = Signal(count)
        slot_write = Signal(count)
        slot_age = [Signal(TIME_BITS, name=f"slot_age{b}", reset_less=True) for b in range(count)]
        slot_older = [Signal(count, name=f"slot_older{b}", reset_less=True) for b in range(count)]
        slot_candidates = Signal(count)
        from_slot = Signal()
        with m.If(column_free & slot.any()):
            m.d.comb += slot_candidates.eq(slot & ((slot_write & banks.write_ok) | (~slot_write & banks.read_ok)))
        m.d.comb += from_slot.eq(slot_candidates.any())
        slot_choice = oldest(m, slot_candidates, slot_older, name="slot_choice")
        with m.If(column_free & ~from_slot):
            with m.If(mode):
                m.d.comb += writes.column_banks.eq(banks.write_ok & allowed)
            with m.Else():
                m.d.comb += reads.column_banks.eq(banks.read_ok & allowed)

        # What the entries are: place in the lower half for reads, in the upper for writes.
        place_bits = len(reads.place)
        entry = data.StructLayout({"bank": len(banks.column_bank), "row": self.row_bits})
        m.submodules.entries = entries = Memory(shape=entry, depth=2 << place_bits, init=[])
        m.submodules.tags = tags = Memory(shape=self.tag_bits, depth=2 << place_bits, init=[])
        m.submodules.ages = ages = Memory(shape=TIME_BITS, depth=2 << place_bits, init=[])
        m.submodules.slot_tags = slot_tags = Memory(shape=self.tag_bits, depth=count, init=[])
        column_entry, row_entry = entries.read_port(domain="comb"), entries.read_port(domain="comb")
        column_tag, row_tag = tags.read_port(domain="comb"), tags.read_port(domain="comb")
        row_age = ages.read_port(domain="comb")
        slot_tag = slot_tags.read_port(domain="comb")
        column_at, row_at = Signal(place_bits + 1), Signal(place_bits + 1)
        m.d.comb += [
            column_at.eq(Cat(Mux(mode, writes.column_index, reads.column_index), mode)),
            row_at.eq(Cat(Mux(mode, writes.row_index, reads.row_index), mode)),
            column_entry.addr.eq(column_at),
            column_tag.addr.eq(column_at),
            row_entry.addr.eq(row_at),
            row_tag.addr.eq(row_at),
            row_age.addr.eq(row_at),
        ]

        column = Signal()
        column_write = Signal()
        column_hot = Signal(count)
        m.d.comb += [
            column.eq(from_slot | reads.column.any() | writes.column.any()),
            column_write.eq(Mux(from_slot, (slot_write & slot_choice).any(), mode)),
            banks.column_bank.eq(Mux(from_slot, index_of(slot_choice), column_entry.data.bank)),
            banks.read.eq(column & ~column_write),
            banks.write.eq(column & column_write),
            reads.take_column.eq(reads.column.any()),
            writes.take_column.eq(writes.column.any()),
            slot_tag.addr.eq(banks.column_bank),
            banks.column_hot.eq(column_hot),
        ]
        with m.If(column):
            m.d.comb += column_hot.eq(one_hot(banks.column_bank))
        m.d.comb += [
            self.done.valid.eq(column),
            self.done.payload.write.eq(column_write),
            self.done.payload.tag.eq(Mux(from_slot, slot_tag.data, column_tag.data)),
            self.done.payload.cycle.eq(self.now + Mux(column_write, t.cwl + t.bl, t.cl + t.bl)),
        ]
        # Auto-precharge. The row is the open one for the slot of the bank and for every entry that hits in it.
        others = Signal()
        with m.If(t.closed):
            m.d.comb += [
                reads.check_banks.eq(column_hot),
                writes.check_banks.eq(column_hot),
                others.eq(
                    (reads.check & ~reads.column).any()
                    | (writes.check & ~writes.column).any()
                    | (~from_slot & (slot & column_hot).any())
                ),
                banks.auto_precharge.eq(column & ~others),
            ]

        # Step 4. Row selection: refresh first.
        row_may = Signal()
        m.d.comb += row_may.eq(row_free & ~(t.one_bus & column))
        precharge_all, refresh_pc, precharge_one, refresh_one = Signal(), Signal(), Signal(), Signal()
        refresh_pcs = Signal(pcs)
        of_refresh = Signal(count)
        lowest = Signal(pcs)
        of_lowest = Signal(count)
        m.d.comb += [
            lowest.eq(refresh.pcs & (~refresh.pcs + 1)),
            of_lowest.eq(selected(lowest, pc_banks)),
        ]
        with m.If(row_may & draining):
            m.d.comb += [
                refresh_pcs.eq(lowest),
                of_refresh.eq(of_lowest),
                precharge_all.eq(
                    (banks.open & of_lowest).any()
                    & ~((slot | column_hot | (banks.open & ~banks.precharge_ok)) & of_lowest).any()
                ),
                refresh_pc.eq(
                    ~((banks.open | ~banks.idle_ok) & of_lowest).any() & (banks.refresh_ok & lowest).any()
                ),
            ]
        with m.Elif(row_may & refresh.bank_valid):
            m.d.comb += [
                refresh_pcs.eq(Cat((pending_bank & mask).any() for mask in pc_banks)),
                of_refresh.eq(pending_bank),
                precharge_one.eq((pending_bank & banks.open & banks.precharge_ok & ~slot & ~column_hot).any()),
                refresh_one.eq((pending_bank & banks.refresh_bank_ok).any()),
            ]
        refreshing = Signal()
        m.d.comb += refreshing.eq(precharge_all | refresh_pc | precharge_one | refresh_one)
        row_banks = Signal(count)
        with m.If(row_may & ~refreshing):
            m.d.comb += row_banks.eq(
                allowed & (banks.activate_ok | (banks.open & banks.precharge_ok & ~slot & ~column_hot))
            )
        m.d.comb += [
            writes.row_banks.eq(Mux(mode, row_banks, 0)),
            reads.row_banks.eq(Mux(mode, 0, row_banks)),
        ]
        wanted = Signal()
        activate, precharge = Signal(), Signal()
        row_hot = Signal(count)
        m.d.comb += wanted.eq(reads.row.any() | writes.row.any())
        with m.If(wanted):
            m.d.comb += [
                row_hot.eq(one_hot(row_entry.data.bank)),
                precharge.eq((row_hot & banks.open).any()),
                activate.eq(~precharge),
            ]
        m.d.comb += [
            banks.row_bank.eq(row_entry.data.bank),
            banks.row_hot.eq(row_hot | Mux(refresh_one, of_refresh, 0)),
            banks.row_pcs.eq(
                Mux(refreshing, refresh_pcs, Cat((row_hot & mask).any() for mask in pc_banks))
            ),
            banks.activate.eq(activate),
            banks.precharge.eq(precharge | precharge_all | precharge_one),
            banks.closing_row.eq(Mux(precharge, row_hot, of_refresh)),
            banks.refresh_bank.eq(refresh_one),
            banks.refresh.eq(refresh_pc),
            refresh.done.eq(refresh_pc | refresh_one),
            refresh.done_pcs.eq(refresh_pcs),
            reads.take_row.eq(activate & ~mode),
            writes.take_row.eq(activate & mode),
        ]

        # Step 5. Buses, slots and open rows after the issue.
        with m.If(column):
            m.d.sync += column_until.eq(self.now + t.column_cycles)
        with m.If(activate):
            m.d.sync += row_until.eq(self.now + t.act_cycles)
        with m.If(precharge | refreshing):
            m.d.sync += row_until.eq(self.now + t.pre_cycles)
        m.d.sync += slot.eq((slot & ~slot_choice) | Mux(activate, row_hot, 0))
        slot_tag_write = slot_tags.write_port()
        m.d.comb += [
            slot_tag_write.en.eq(activate),
            slot_tag_write.addr.eq(row_entry.data.bank),
            slot_tag_write.data.eq(row_tag.data),
        ]
        is_older = Signal(count)
        with m.If(activate):
            m.d.comb += is_older.eq(Cat(age < row_age.data for age in slot_age))
            m.d.sync += slot_write.eq((slot_write & ~row_hot) | Mux(mode, row_hot, 0))
            for b in range(count):
                with m.If(row_hot[b]):
                    m.d.sync += [slot_age[b].eq(row_age.data), slot_older[b].eq(is_older & ~row_hot)]
                with m.Else():
                    m.d.sync += slot_older[b].eq((slot_older[b] & ~row_hot) | Mux(is_older[b], 0, row_hot))
        m.submodules.open_rows = open_rows = Memory(shape=self.row_bits, depth=count, init=[])
        open_write, open_read = open_rows.write_port(), open_rows.read_port(domain="comb")
        m.d.comb += [
            open_write.en.eq(activate),
            open_write.addr.eq(row_entry.data.bank),
            open_write.data.eq(row_entry.data.row),
        ]
        for queue in (reads, writes):
            m.d.comb += [
                queue.closing.eq(banks.closing),
                queue.activate.eq(activate),
                queue.activate_bank.eq(row_entry.data.bank),
                queue.activate_row.eq(row_entry.data.row),
            ]

        # Step 6. Acceptance.
        request = self.request.payload
        has_tokens = Signal(self.ports)
        phase = Signal(RATIO_BITS + 1)
        phase_next = Signal(RATIO_BITS + 1)
        tick = Signal()
        m.d.comb += [
            phase_next.eq(phase + t.p),
            tick.eq(phase_next >= t.q),
        ]
        m.d.sync += phase.eq(Mux(tick, phase_next - t.q, phase_next))
        accept = Signal()
        taken = Signal(self.ports)
        has_token = Signal()
        same_bank = Signal()
        open_then = Signal()
        m.d.comb += [
            has_token.eq(tick | (has_tokens >> request.port)[0]),
            self.request.ready.eq(Mux(request.write, writes.room, reads.room) & has_token),
            accept.eq(self.request.valid & self.request.ready),
            reads.accept.eq(accept & ~request.write),
            writes.accept.eq(accept & request.write),
            open_read.addr.eq(request.bank),
        ]
        with m.If(accept):
            m.d.comb += [
                taken.eq(Const(1, self.ports) << request.port),
                same_bank.eq(activate & (row_entry.data.bank == request.bank)),
                open_then.eq(
                    same_bank
                    | ((banks.open & ~banks.closing) & one_hot(request.bank)).any()
                ),
            ]
        for i in range(self.ports):
            tokens = Signal(FIFO_BITS, name=f"tokens{i}")
            m.d.comb += has_tokens[i].eq(tokens != 0)
            with m.If(tick & ~taken[i] & (tokens != t.port_fifo)):
                m.d.sync += tokens.eq(tokens + 1)
            with m.Elif(~tick & taken[i]):
                m.d.sync += tokens.eq(tokens - 1)
            # A full port that gets a token in the cycle in which it gives one loses the new one.
            with m.Elif(tick & taken[i] & (tokens == t.port_fifo)):
                m.d.sync += tokens.eq(tokens - 1)
        hit = Signal()
        m.d.comb += hit.eq(open_then & (request.row == Mux(same_bank, row_entry.data.row, open_read.data)))
        for queue in (reads, writes):
            m.d.comb += [
                queue.accept_bank.eq(request.bank),
                queue.accept_row.eq(request.row),
                queue.accept_hit.eq(hit),
            ]
        accept_at = Signal(place_bits + 1)
        m.d.comb += accept_at.eq(Cat(Mux(request.write, writes.place, reads.place), request.write))
        for memory, value in ((entries, Cat(request.bank, request.row)), (tags, request.tag), (ages, self.now)):
            port = memory.write_port()
            m.d.comb += [port.en.eq(accept), port.addr.eq(accept_at), Value.cast(port.data).eq(value)]
        return m
