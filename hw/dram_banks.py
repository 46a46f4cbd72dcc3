"""DramBanks: open rows of a memory channel and what is legal now (``docs/memory.md``, section 4)."""

from collections.abc import Iterable

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from headrace.hw.dram_parameters import parameters

TIME_BITS = 40
"""Of cycle numbers: a simulation never reaches 2**40 cycles."""


class DramBanks(wiring.Component):
    """Each rule ``t >= last(X) + n`` is a register "not before cycle", set to t + n when X is issued. Simulation only.

    Registers of a kind that guard the same command of the same bank, group or pseudo-channel are merged by maximum.

    `now` is the cycle. Outputs, for the state as the cycle begins, a bit per bank unless said:
        `open`; `read_ok`, `write_ok`: RD, WR meet their rules (of an open bank); `activate_ok`, `refresh_bank_ok`:
        ACT, REFpb are legal; `precharge_ok`: PRE meets its rules (of an open bank); `idle_ok`: the rules of
        REFab for the bank are met; `refresh_ok` (a bit per pseudo-channel): its own rule is met.
    Commands issued in this cycle:
        `read`, `write` of `column_bank`, with `auto_precharge`; `activate` of `row_bank`; `precharge`: the banks in
        `closing_row` (several for PREA); `refresh_bank` of `row_bank`; `refresh` of the pseudo-channels in `row_pcs`.
        `row_pcs` (one-hot) goes with every row command.
    `column_hot`, `row_hot` are the two bank numbers one-hot; `column_hot` is 0 without RD and WR.
    `closing`: the banks that close in this cycle.
    """

    def __init__(self, *, pcs: int, bank_groups: int, banks_per_group: int):
        self.pcs, self.bank_groups, self.banks_per_group = pcs, bank_groups, banks_per_group
        banks = pcs * bank_groups * banks_per_group
        bank_bits = max(1, (banks - 1).bit_length())
        super().__init__(
            {
                "parameters": In(parameters()),
                "now": In(TIME_BITS),
                "open": Out(banks),
                "closing": Out(banks),
                "read_ok": Out(banks),
                "write_ok": Out(banks),
                "activate_ok": Out(banks),
                "precharge_ok": Out(banks),
                "refresh_bank_ok": Out(banks),
                "idle_ok": Out(banks),
                "refresh_ok": Out(pcs),
                "read": In(1),
                "write": In(1),
                "column_bank": In(bank_bits),
                "column_hot": In(banks),
                "auto_precharge": In(1),
                "activate": In(1),
                "precharge": In(1),
                "refresh_bank": In(1),
                "refresh": In(1),
                "row_bank": In(bank_bits),
                "row_hot": In(banks),
                "row_pcs": In(pcs),
                "closing_row": In(banks),
            }
        )

    def elaborate(self, platform):
        m = Module()
        t = self.parameters
        per_group, per_pc = self.banks_per_group, self.bank_groups * self.banks_per_group
        groups = self.pcs * self.bank_groups
        count = groups * per_group

        def registers(name: str, number: int) -> list[Signal]:
            return [Signal(TIME_BITS, name=f"{name}{i}") for i in range(number)]

        def met(stamps: Iterable[Signal]) -> Value:
            return Cat(self.now >= stamp for stamp in stamps)

        def spread(bits: Value, times: int) -> Value:
            return Cat(bit.replicate(times) for bit in bits)

        def any_of(bits: Value, size: int) -> Value:
            return Cat(bits[i : i + size].any() for i in range(0, len(bits), size))

        def after(name: str, cycles: Value) -> Signal:
            total = Signal(TIME_BITS, name=f"after_{name}")
            m.d.comb += total.eq(self.now + cycles)
            return total

        def raise_to(stamp: Signal, value: Value):
            return stamp.eq(Mux(stamp < value, value, stamp))

        read_bank, write_bank = registers("read_bank", count), registers("write_bank", count)
        activate_bank, precharge_bank = registers("activate_bank", count), registers("precharge_bank", count)
        read_group, write_group = registers("read_group", groups), registers("write_group", groups)
        activate_group = registers("activate_group", groups)
        read_pc, write_pc = registers("read_pc", self.pcs), registers("write_pc", self.pcs)
        row_pc = registers("row_pc", self.pcs)  # ACT and REFpb: rrds, rfc, rrefd
        refresh_pc, precharge_pc = registers("refresh_pc", self.pcs), registers("precharge_pc", self.pcs)
        window = [registers(f"window{pc}_", 4) for pc in range(self.pcs)]  # faw after each of the last four ACT

        # What is legal.
        met_bank = Signal(count)
        row_ok = Signal(self.pcs)
        read_group_ok, write_group_ok, activate_group_ok = Signal(groups), Signal(groups), Signal(groups)
        m.d.comb += [
            met_bank.eq(met(activate_bank)),
            row_ok.eq(met(row_pc)),
            read_group_ok.eq(met(read_group) & spread(met(read_pc), self.bank_groups)),
            write_group_ok.eq(met(write_group) & spread(met(write_pc), self.bank_groups)),
            activate_group_ok.eq(
                met(activate_group) & spread(row_ok & met(acts[3] for acts in window), self.bank_groups)
            ),
            self.read_ok.eq(met(read_bank) & spread(read_group_ok, per_group)),
            self.write_ok.eq(met(write_bank) & spread(write_group_ok, per_group)),
            self.activate_ok.eq(~self.open & met_bank & spread(activate_group_ok, per_group)),
            self.refresh_bank_ok.eq(~self.open & met_bank & spread(row_ok, per_pc)),
            self.precharge_ok.eq(met(precharge_bank) & spread(met(precharge_pc), per_pc)),
            self.idle_ok.eq(met_bank),
            self.refresh_ok.eq(met(refresh_pc)),
        ]

        # Open banks.
        precharged = Signal(count)
        auto_precharged = Signal(count)
        m.d.comb += [
            precharged.eq(Mux(self.precharge, self.closing_row & self.open, 0)),
            auto_precharged.eq(Mux(self.auto_precharge, self.column_hot, 0)),
            self.closing.eq(auto_precharged | precharged),
        ]
        m.d.sync += self.open.eq((self.open & ~self.closing) | Mux(self.activate, self.row_hot, 0))

        # Column commands: the next one of the same kind, of the other kind, PRE.
        column = Signal()
        column_pcs, column_groups = Signal(self.pcs), Signal(groups)
        m.d.comb += column.eq(self.read | self.write)
        with m.If(column):
            m.d.comb += [
                column_groups.eq(any_of(self.column_hot, per_group)),
                column_pcs.eq(any_of(column_groups, self.bank_groups)),
            ]
        written = Signal(TIME_BITS)  # the last write data
        m.d.comb += written.eq(self.now + t.cwl + t.bl)
        next_s, next_l, read_to_write = after("ccds", t.ccds), after("ccdl", t.ccdl), after("rtw", t.rtw)
        read_s, read_l, write_s = Signal(TIME_BITS), Signal(TIME_BITS), Signal(TIME_BITS)
        closes_at = Signal(TIME_BITS)
        m.d.comb += [
            read_s.eq(Mux(self.write, written + t.wtrs, next_s)),
            read_l.eq(Mux(self.write, written + t.wtrl, next_l)),
            write_s.eq(Mux(self.write, next_s, read_to_write)),
            closes_at.eq(Mux(self.write, written + t.wr, self.now + t.rtp)),
        ]
        for i in range(self.pcs):
            with m.If(column_pcs[i]):
                m.d.sync += [raise_to(read_pc[i], read_s), raise_to(write_pc[i], write_s)]
        for i in range(groups):
            with m.If(column_groups[i]):
                m.d.sync += raise_to(read_group[i], read_l)
                with m.If(self.write):
                    m.d.sync += raise_to(write_group[i], next_l)

        # Auto-precharge: as if PRE came when ras of the row is over and the column command allows it.
        m.submodules.opened = opened = Memory(shape=TIME_BITS, depth=count, init=[])
        write_port, read_port = opened.write_port(), opened.read_port(domain="comb")
        after_ras = after("ras", t.ras)
        auto_ready = Signal(TIME_BITS)
        m.d.comb += [
            write_port.en.eq(self.activate),
            write_port.addr.eq(self.row_bank),
            write_port.data.eq(after_ras),
            read_port.addr.eq(self.column_bank),
            auto_ready.eq(Mux(read_port.data < closes_at, closes_at, read_port.data) + t.rp),
        ]

        # Row commands.
        row_ready = Signal(TIME_BITS)
        row_busy = Signal(count)
        with m.If(self.precharge):
            m.d.comb += [row_ready.eq(self.now + t.rp), row_busy.eq(precharged)]
        with m.Elif(self.refresh_bank):
            m.d.comb += [row_ready.eq(self.now + t.rfcpb), row_busy.eq(self.row_hot)]
        with m.Elif(self.activate):
            m.d.comb += [row_ready.eq(self.now + t.rc), row_busy.eq(self.row_hot)]
        activated = Signal(count)
        m.d.comb += activated.eq(Mux(self.activate, self.row_hot, 0))
        after_read, after_write = after("rcdrd", t.rcdrd), after("rcdwr", t.rcdwr)
        for i in range(count):
            # RD or WR and ACT never meet in one bank; nor do auto-precharge and a row command.
            with m.If(activated[i]):
                m.d.sync += [read_bank[i].eq(after_read), write_bank[i].eq(after_write)]
            with m.If(activated[i] | self.column_hot[i]):
                m.d.sync += raise_to(precharge_bank[i], Mux(activated[i], after_ras, closes_at))
            with m.If(row_busy[i] | auto_precharged[i]):
                m.d.sync += raise_to(activate_bank[i], Mux(row_busy[i], row_ready, auto_ready))
        activated_groups = Signal(groups)
        m.d.comb += activated_groups.eq(any_of(activated, per_group))
        after_rrdl, after_rrds, after_faw = after("rrdl", t.rrdl), after("rrds", t.rrds), after("faw", t.faw)
        after_ppd, after_rrefd, after_rfc = after("ppd", t.ppd), after("rrefd", t.rrefd), after("rfc", t.rfc)
        for i in range(groups):
            with m.If(activated_groups[i]):
                m.d.sync += activate_group[i].eq(after_rrdl)
        for i in range(self.pcs):
            with m.If(self.row_pcs[i]):
                with m.If(self.activate):
                    m.d.sync += raise_to(row_pc[i], after_rrds)
                    m.d.sync += [new.eq(old) for new, old in zip(window[i], [after_faw, *window[i][:3]], strict=True)]
                with m.Elif(self.precharge):
                    m.d.sync += precharge_pc[i].eq(after_ppd)
                with m.Elif(self.refresh_bank):
                    m.d.sync += raise_to(row_pc[i], after_rrefd)
                with m.Elif(self.refresh):
                    m.d.sync += [raise_to(row_pc[i], after_rfc), refresh_pc[i].eq(after_rfc)]
        return m
