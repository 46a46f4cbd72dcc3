"""Where the RTL first leaves the interpreter: retirement traces compared queue by queue (docs/machine.md, section 6)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.hw.isa import Instruction, Queue
from headrace.sim.iss import Retired


@dataclass(frozen=True)
class Divergence:
    """The `index`-th retirement of `queue` differs. A side that has ended is None. `cycle` is the RTL's."""

    queue: Queue
    index: int
    cycle: int | None
    rtl: tuple[int, int] | None  # pc, signature
    interpreter: tuple[int, int] | None

    def describe(self, program: Sequence[Instruction] | None = None) -> str:
        def side(entry):
            if entry is None:
                return "nothing"
            pc, signature = entry
            name = f" ({program[pc].op.name})" if program is not None and pc < len(program) else ""
            return f"instruction {pc}{name} with signature {signature:#010x}"

        return (
            f"queue {self.queue.name}, retirement {self.index}" + (f", cycle {self.cycle}" if self.cycle is not None else "")
            + f": the RTL retired {side(self.rtl)}, the interpreter {side(self.interpreter)}"
        )


def first_divergence(rtl: np.ndarray, interpreter: Sequence[Retired]) -> Divergence | None:
    """The earliest (by the RTL's cycle) retirement that differs, or None where every queue agrees to its end.

    rtl: records of `sim.cosim.TRACE_DTYPE` in order. Queues are compared each in its own order: between queues the order is the
    RTL's own affair.
    """
    found = []
    for queue in Queue:
        ours = rtl[rtl["queue"] == queue]
        theirs = [(r.pc, r.signature) for r in interpreter if r.queue == queue]
        pcs = np.array([pc for pc, _ in theirs], np.int64)
        signatures = np.array([signature for _, signature in theirs], np.uint64)
        n = min(len(ours), len(theirs))
        wrong = np.flatnonzero((ours["pc"][:n] != pcs[:n]) | (ours["signature"][:n].astype(np.uint64) != signatures[:n]))
        if not len(wrong) and len(ours) == len(theirs):
            continue
        i = int(wrong[0]) if len(wrong) else n
        record = ours[i] if i < len(ours) else None
        found.append(
            Divergence(
                queue=queue, index=i, cycle=None if record is None else int(record["cycle"]),
                rtl=None if record is None else (int(record["pc"]), int(record["signature"])),
                interpreter=theirs[i] if i < len(theirs) else None,
            )
        )  # fmt: skip
    return min(found, key=lambda d: (d.cycle is None, d.cycle or 0), default=None)
