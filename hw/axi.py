"""The AXI3-shaped memory port (docs/machine.md, section 7): one ID, in order, five valid/ready streams.

Signatures are seen from the master (the core). `addr` is in bytes and local to the port; `len` is beats - 1.
Bursts are incrementing, of whole 32-byte beats; the fields that never change (size, burst, id) are tied off by
the wrapper that makes a vendor's AXI port of these streams. Data lie at bit 0 of their payloads, so that
simulators slice them at word boundaries.
"""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

ADDRESS_BITS = 33
BEAT_BYTES = 32
BEAT_BITS = 8 * BEAT_BYTES
BURST_BEATS = 16
"""Beats of the longest AXI3 burst; 16 beats of 32 bytes never cross 4 KiB when split at 16-beat boundaries."""

OKAY = 0
SLAVE_ERROR = 2


class Address(data.StructLayout):
    """AR or AW."""

    def __init__(self):
        super().__init__({"addr": ADDRESS_BITS, "len": 4})


class ReadData(data.StructLayout):
    """R."""

    def __init__(self):
        super().__init__({"data": BEAT_BITS, "last": 1, "resp": 2})


class WriteData(data.StructLayout):
    """W; strb bit i enables byte i."""

    def __init__(self):
        super().__init__({"data": BEAT_BITS, "strb": BEAT_BYTES, "last": 1})


class WriteResponse(data.StructLayout):
    """B."""

    def __init__(self):
        super().__init__({"resp": 2})


class ReadPort(wiring.Signature):
    """AR and R of one memory port, seen from the master."""

    def __init__(self):
        super().__init__({"ar": Out(stream.Signature(Address())), "r": In(stream.Signature(ReadData()))})


class WritePort(wiring.Signature):
    """AW, W and B of one memory port, seen from the master."""

    def __init__(self):
        super().__init__(
            {
                "aw": Out(stream.Signature(Address())),
                "w": Out(stream.Signature(WriteData())),
                "b": In(stream.Signature(WriteResponse())),
            }
        )


class MemoryPort(wiring.Signature):
    """One whole memory port, seen from the master: the members of `ReadPort` and `WritePort`."""

    def __init__(self):
        super().__init__(dict(ReadPort().members.items()) | dict(WritePort().members.items()))
