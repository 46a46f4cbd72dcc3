"""DramRefresh: when a refresh of a memory channel is due, and of what (``docs/memory.md``, section 6)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.dram_parameters import WIDTHS, parameters

COUNT_BITS = 32
"""Of the per-bank events that wait."""


class DramRefresh(wiring.Component):
    """Pending refreshes. The outputs hold for the cycle in which they show: the timer of this cycle has counted.

    `pcs`: pseudo-channels whose all-bank refresh is pending. `bank_valid`, `bank`: the bank whose refresh is pending.
    `done` with `done_pcs` (one-hot): REFab of it, or REFpb of the pending bank, is issued in this cycle.
    """

    def __init__(self, *, pcs: int, banks_per_pc: int):
        self.pseudo_channels, self.banks_per_pc = pcs, banks_per_pc
        super().__init__(
            {
                "parameters": In(parameters()),
                "pcs": Out(pcs),
                "bank_valid": Out(1),
                "bank": Out(max(1, (pcs * banks_per_pc - 1).bit_length())),
                "done": In(1),
                "done_pcs": In(pcs),
            }
        )

    def elaborate(self, platform):
        m = Module()
        with m.If(self.parameters.all_bank):
            self._all_bank(m)
        with m.If(self.parameters.per_bank):
            self._per_bank(m)
        return m

    def _all_bank(self, m: Module) -> None:
        elapsed = Signal(WIDTHS["refi"])  # since the last event, or since reset
        pending = Signal(self.pseudo_channels)
        event = Signal()
        m.d.comb += [
            event.eq(elapsed == self.parameters.refi),
            self.pcs.eq(pending | event.replicate(self.pseudo_channels)),
        ]
        m.d.sync += [
            elapsed.eq(Mux(event, 1, elapsed + 1)),
            pending.eq(self.pcs & ~Mux(self.done, self.done_pcs, 0)),
        ]

    def _per_bank(self, m: Module) -> None:
        """Event k comes in the cycle t that first has (t + 1) * banks > (k + 1) * refi: an accumulator counts it."""
        refi = self.parameters.refi
        banks = self.pseudo_channels * self.banks_per_pc
        phase = Signal(WIDTHS["refi"] + 1)
        event = Signal()
        m.d.comb += event.eq(phase + banks > refi)
        m.d.sync += phase.eq(Mux(event, phase + banks - refi, phase + banks))

        pending = Signal()
        waiting = Signal(COUNT_BITS)
        due = Signal(COUNT_BITS)
        start = Signal()
        m.d.comb += [
            due.eq(waiting + event),
            start.eq(~pending & (due != 0)),
            self.bank_valid.eq(pending | start),
        ]
        m.d.sync += [waiting.eq(due - start), pending.eq(self.bank_valid & ~self.done)]

        # The bank of the event that is pending, or comes next: pseudo-channels take turns, then the banks of each.
        pc = Signal(range(self.pseudo_channels + 1))
        number = Signal(range(self.banks_per_pc + 1))
        m.d.comb += self.bank.eq(pc * self.banks_per_pc + number)
        with m.If(self.done):
            m.d.sync += pc.eq(Mux(pc == self.pseudo_channels - 1, 0, pc + 1))
            with m.If(pc == self.pseudo_channels - 1):
                m.d.sync += number.eq(Mux(number == self.banks_per_pc - 1, 0, number + 1))
