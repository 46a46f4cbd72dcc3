"""DramQueue: the read queue or the write queue of a memory channel (``docs/memory.md``, sections 2 and 3)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.dram_pick import index_of, oldest, selected


class DramQueue(wiring.Component):
    """Entries that wait for a command, and the oldest of those that may have one. Simulation only.

    An entry stays in the place where it came in; its age is a mask of the places that are older. So an entry that
    leaves moves nothing, and a choice costs one AND per place.

    column_banks -> column, column_index
        The oldest entry that hits an open row in one of these banks, one-hot and as a number.
    row_banks -> row, row_index
        The same for the oldest entry of a bank that does not hit: where the oldest entry of a bank hits, no other
        entry of this bank wants a row command; else that oldest one is the first to want it.
    take_column, take_row
        Removes the choice.
    closing, activate, activate_bank, activate_row
        What happens to the rows in this cycle.
    accept, accept_bank, accept_row, accept_hit
        Takes an entry to `place`, when there is `room` (places that this cycle frees count). `accept_hit`: its row
        is the open one when the cycle ends.
    check_banks -> check
        The entries that hit in the banks, as the cycle begins.
    `limit` is the number of entries that may be held; it does not change after reset. `level` is the number of entries as the cycle begins. No latency: all choices are of the same cycle.
    """

    def __init__(self, *, entries: int, banks: int, row_bits: int):
        if not 1 <= entries <= 64 or not 1 <= banks <= 64:
            raise ValueError(f"DramQueue of {entries} entries, {banks} banks: 1..64 of each is allowed")
        self.entries, self.banks, self.row_bits = entries, banks, row_bits
        index_bits = max(1, (entries - 1).bit_length())
        bank_bits = max(1, (banks - 1).bit_length())
        super().__init__(
            {
                "column_banks": In(banks),
                "column": Out(entries),
                "column_index": Out(index_bits),
                "row_banks": In(banks),
                "row": Out(entries),
                "row_index": Out(index_bits),
                "take_column": In(1),
                "take_row": In(1),
                "closing": In(banks),
                "activate": In(1),
                "activate_bank": In(bank_bits),
                "activate_row": In(row_bits),
                "accept": In(1),
                "accept_bank": In(bank_bits),
                "accept_row": In(row_bits),
                "accept_hit": In(1),
                "room": Out(1),
                "place": Out(index_bits),
                "check_banks": In(banks),
                "check": Out(entries),
                "limit": In(range(entries + 1)),
                "level": Out(range(entries + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.entries
        valid = Signal(n)
        hit = Signal(n)  # the row is open; only of valid entries
        # Places of the entries of a bank, and places older than a place. Bits of places that became free are stale
        # until the place is taken again; `valid` hides them.
        of_bank = [Signal(n, name=f"of_bank{b}", reset_less=True) for b in range(self.banks)]
        older = [Signal(n, name=f"older{i}", reset_less=True) for i in range(n)]
        before = [Signal(n, name=f"before{i}", reset_less=True) for i in range(n)]  # older ones of the same bank
        rows = [Signal(self.row_bits, name=f"row{i}", reset_less=True) for i in range(n)]

        # Choices.
        column_candidates = Signal(n)
        with m.If(self.column_banks.any() & hit.any()):
            m.d.comb += column_candidates.eq(hit & selected(self.column_banks, of_bank))
        row_candidates = Signal(n)
        waiting = Signal(n)
        m.d.comb += waiting.eq(valid & ~hit)
        with m.If(self.row_banks.any() & waiting.any()):
            first = Cat(~(mask & valid).any() for mask in before)
            m.d.comb += row_candidates.eq(waiting & first & selected(self.row_banks, of_bank))
        m.d.comb += [
            self.column.eq(oldest(m, column_candidates, older, name="column_choice")),
            self.column_index.eq(index_of(self.column)),
            self.row.eq(oldest(m, row_candidates, older, name="row_choice")),
            self.row_index.eq(index_of(self.row)),
        ]
        with m.If(self.check_banks.any() & hit.any()):
            m.d.comb += self.check.eq(hit & selected(self.check_banks, of_bank))

        # Leaving and closing; then rows that open.
        kept = Signal(n)
        m.d.comb += kept.eq(valid & ~(Mux(self.take_column, self.column, 0) | Mux(self.take_row, self.row, 0)))
        closed = Signal(n)
        with m.If(self.closing.any() & hit.any()):
            m.d.comb += closed.eq(selected(self.closing, of_bank))
        opened = Signal(n)
        one_hot_bank = Signal(self.banks)
        with m.If(self.activate):
            m.d.comb += [
                one_hot_bank.eq(Const(1, self.banks) << self.activate_bank),
                opened.eq(selected(one_hot_bank, of_bank) & Cat(row == self.activate_row for row in rows)),
            ]

        # Entering.
        place = Signal(n)
        free = Signal(n)
        left = Signal(range(n + 1))
        m.d.comb += [
            free.eq(~kept),
            left.eq(self.level - self.take_column - self.take_row),
            self.room.eq(left < self.limit),
            place.eq(free & (~free + 1)),
            self.place.eq(index_of(place)),
        ]
        m.d.sync += [
            valid.eq(kept | Mux(self.accept, place, 0)),
            hit.eq(kept & ((hit & ~closed) | opened) | Mux(self.accept & self.accept_hit, place, 0)),
            self.level.eq(left + self.accept),
        ]
        accept_mask = Signal(n)
        with m.If(self.accept):
            m.d.comb += accept_mask.eq(
                kept & selected(Const(1, self.banks) << self.accept_bank, of_bank)
            )
            for b, mask in enumerate(of_bank):
                m.d.sync += mask.eq((mask & ~place) | Mux(self.accept_bank == b, place, 0))
            for i in range(n):
                with m.If(place[i]):
                    m.d.sync += [older[i].eq(kept), before[i].eq(accept_mask), rows[i].eq(self.accept_row)]
                with m.Else():
                    m.d.sync += [older[i].eq(older[i] & ~place), before[i].eq(before[i] & ~place)]
        return m
