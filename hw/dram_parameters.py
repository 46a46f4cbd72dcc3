"""Parameters of the memory rules as signals, so that one simulator build serves every timing of a geometry."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from headrace.hw.memory_timing import MAX_CYCLES, MAX_QUEUE, ChannelTiming

RATIO_BITS = 41
"""Of p and q of the port clock."""

FIFO_BITS = 17
"""Of `port_fifo`, the tokens that a port can hold."""

CYCLES = (
    "cl", "cwl", "bl", "rcdrd", "rcdwr", "rp", "ras", "rc", "rtp", "wr", "ccds", "ccdl", "rrds", "rrdl", "faw", "wtrs",
    "wtrl", "rtw", "ppd", "refi", "rfc", "rfcpb", "rrefd", "act_cycles", "pre_cycles", "column_cycles",
)  # fmt: skip
"""Fields of `ChannelTiming` that are numbers of cycles."""

WIDTHS = (
    {name: (MAX_CYCLES - 1).bit_length() for name in CYCLES}
    | {"queue": MAX_QUEUE.bit_length(), "one_bus": 1, "closed": 1, "all_bank": 1, "per_bank": 1}
    | {"p": RATIO_BITS, "q": RATIO_BITS, "port_fifo": FIFO_BITS}
)
"""Name to bits."""


def parameters() -> wiring.Signature:
    """A signal for each of `WIDTHS`, seen from the side that sets them. They do not change after reset."""
    return wiring.Signature({name: Out(width) for name, width in WIDTHS.items()})


def parameter_values(timing: ChannelTiming, *, p: int = 1, q: int = 1, port_fifo: int = 1) -> dict[str, int]:
    """The values of `WIDTHS` for `timing` and ports with a clock of p/q that hold `port_fifo` tokens."""
    if not 0 < p <= q < 1 << RATIO_BITS:
        raise ValueError(f"p/q = {p}/{q}: above 0, at most 1, and q below 2**{RATIO_BITS} is allowed")
    if not 1 <= port_fifo < 1 << FIFO_BITS:
        raise ValueError(f"port_fifo = {port_fifo}: 1..{(1 << FIFO_BITS) - 1} is allowed")
    return {name: getattr(timing, name) for name in (*CYCLES, "queue")} | {
        "one_bus": int(timing.buses == 1),
        "closed": int(timing.page == "closed"),
        "all_bank": int(timing.refresh == "all-bank"),
        "per_bank": int(timing.refresh == "per-bank"),
        "p": p,
        "q": q,
        "port_fifo": port_fifo,
    }


def geometry(timing: ChannelTiming) -> tuple[int, int, int]:
    """What is fixed in a channel: pseudo-channels, bank groups of each, banks of a group."""
    return timing.pcs, timing.bank_groups, timing.banks_per_group
