"""The memory presets of ``configs/memories`` and the parameters that both implementations of the timing rules take.

The rules are those of ``docs/memory.md``. A `MemoryConfig` is a file: organisation and timings with their source. A
`ChannelTiming` is what the rules need of it, in command-clock cycles.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from headrace.models.configfile import StrictModel, load_model
from headrace.models.errors import UserError

MAX_QUEUE = 64
MAX_BANKS = 64
MAX_CYCLES = 1 << 20
FIELDS = ("pc", "bank_group", "bank", "row", "column")
PAGES = ("open", "closed")
REFRESHES = ("none", "all-bank", "per-bank")


@dataclass(frozen=True, kw_only=True)
class ChannelTiming:
    """Parameters of one channel, named and counted as in ``docs/memory.md`` section 1. Raises ValueError."""

    pcs: int
    bank_groups: int
    banks_per_group: int
    cl: int
    cwl: int
    bl: int
    rcdrd: int
    rcdwr: int
    rp: int
    ras: int
    rc: int
    rtp: int
    wr: int
    ccds: int
    ccdl: int
    rrds: int
    rrdl: int
    faw: int
    wtrs: int
    wtrl: int
    rtw: int
    ppd: int = 0
    refi: int = 0
    rfc: int = 0
    rfcpb: int = 0
    rrefd: int = 0
    act_cycles: int = 1
    pre_cycles: int = 1
    column_cycles: int = 1
    buses: int = 2
    queue: int = 32
    page: str = "open"
    refresh: str = "none"

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("page", "refresh") and not 0 <= value < MAX_CYCLES:
                raise ValueError(f"{field.name} = {value}: 0..{MAX_CYCLES - 1} is allowed.")
        for name in ("cl", "cwl", "bl", "rcdrd", "rcdwr", "rp", "ras", "rc", "rtp", "ccds", "ccdl", "rrds", "rrdl", "rtw", "act_cycles", "pre_cycles", "column_cycles"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 1 cycle is needed.")
        if self.pcs not in (1, 2):
            raise ValueError(f"pcs = {self.pcs}: 1 or 2 is allowed.")
        if not 1 <= self.banks <= MAX_BANKS:
            raise ValueError(f"{self.banks} banks in the channel: 1..{MAX_BANKS} is allowed.")
        if self.bl > self.ccds or self.ccds > self.ccdl:
            raise ValueError(f"bl = {self.bl}, ccds = {self.ccds}, ccdl = {self.ccdl}: bl <= ccds <= ccdl is needed.")
        if self.buses not in (1, 2):
            raise ValueError(f"buses = {self.buses}: 1 or 2 is allowed.")
        if not 1 <= self.queue <= MAX_QUEUE:
            raise ValueError(f"queue = {self.queue}: 1..{MAX_QUEUE} is allowed.")
        if self.page not in PAGES:
            raise ValueError(f"page = {self.page!r}; allowed: {', '.join(PAGES)}.")
        if self.refresh not in REFRESHES:
            raise ValueError(f"refresh = {self.refresh!r}; allowed: {', '.join(REFRESHES)}.")
        if self.refresh == "all-bank" and not 0 < self.rfc < self.refi:
            raise ValueError(f"all-bank refresh needs 0 < rfc < refi, not rfc = {self.rfc}, refi = {self.refi}.")
        if self.refresh == "per-bank" and not (0 < self.rfcpb < self.refi and self.refi >= self.banks):
            raise ValueError(f"per-bank refresh needs 0 < rfcpb < refi and refi >= banks, not rfcpb = {self.rfcpb}, refi = {self.refi}.")
        if self.refresh == "per-bank":
            # Refresh goes first (docs/memory.md, section 3): where it can take every cycle, no bank is ever activated and nothing ends.
            if self.refi // self.banks_per_pc <= self.rrefd:
                raise ValueError(
                    f"per-bank refresh: rrefd = {self.rrefd}, but a pseudo-channel refreshes a bank every {self.refi} / {self.banks_per_pc} cycles "
                    f"(refi / banks): no ACT would ever be legal. refi of at least {self.banks_per_pc * (self.rrefd + 1)} is needed."
                )
            if self.refi // self.banks <= self.pre_cycles:
                raise ValueError(
                    f"per-bank refresh: pre_cycles = {self.pre_cycles}, but the channel refreshes a bank every {self.refi} / {self.banks} cycles "
                    f"(refi / banks): the row bus would never be free. refi of at least {self.banks * (self.pre_cycles + 1)} is needed."
                )

    @property
    def banks_per_pc(self) -> int:
        return self.bank_groups * self.banks_per_group

    @property
    def banks(self) -> int:
        return self.pcs * self.banks_per_pc


class Organisation(StrictModel):
    """Sizes of one channel, and how many channels the device or board has."""

    channels: int = Field(ge=1, le=1024)
    pcs: Literal[1, 2]
    bank_groups: int = Field(ge=1, le=MAX_BANKS)
    banks_per_group: int = Field(ge=1, le=MAX_BANKS)
    rows: int = Field(ge=2, le=1 << 24)
    row_bytes: int = Field(ge=64, le=1 << 16)
    burst_bytes: int = Field(ge=8, le=1024)

    @model_validator(mode="after")
    def _check(self):
        for name in ("bank_groups", "banks_per_group", "rows", "row_bytes", "burst_bytes"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} = {value} must be a power of two.")
        if self.row_bytes < self.burst_bytes:
            raise ValueError(f"row_bytes = {self.row_bytes} is below burst_bytes = {self.burst_bytes}.")
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """Field of an address to the number of its values, column in bursts."""
        return {
            "pc": self.pcs,
            "bank_group": self.bank_groups,
            "bank": self.banks_per_group,
            "row": self.rows,
            "column": self.row_bytes // self.burst_bytes,
        }


class Timings(StrictModel):
    """Timings as the source states them: cycles, or nanoseconds where the name ends in ``_ns``."""

    cl: int
    cwl: int
    bl: int
    rcdrd: int
    rcdwr: int
    rp: int
    ras: int
    rc: int
    rtp: int
    wr: int
    ccds: int
    ccdl: int
    rrds: int
    rrdl: int
    faw: int
    wtrs: int
    wtrl: int
    rtw: int | None = None
    """None: cl + bl + 2 - cwl."""
    ppd: int = 0
    refi: int | None = None
    refi_ns: float | None = None
    rfc: int | None = None
    rfc_ns: float | None = None
    rfcpb: int | None = None
    rfcpb_ns: float | None = None
    rrefd: int | None = None
    rrefd_ns: float | None = None

    @model_validator(mode="after")
    def _check(self):
        for name in ("refi", "rfc", "rfcpb", "rrefd"):
            if getattr(self, name) is not None and getattr(self, f"{name}_ns") is not None:
                raise ValueError(f"{name} and {name}_ns are both given; give one.")
        if self.refi is None and self.refi_ns is None:
            raise ValueError("refi or refi_ns is needed.")
        return self

    def cycles(self, name: str, tck_ps: int) -> int:
        """`refi`, `rfc`, `rfcpb` or `rrefd` in cycles, rounded up; 0 where the source has none."""
        ns = getattr(self, f"{name}_ns")
        if ns is not None:
            return math.ceil(Fraction(str(ns)) * 1000 / tck_ps)
        return getattr(self, name) or 0


class Commands(StrictModel):
    """Command buses of a channel, and cycles that a command holds one."""

    buses: Literal[1, 2]
    act_cycles: int = Field(ge=1, le=8)
    pre_cycles: int = Field(default=1, ge=1, le=8)
    column_cycles: int = Field(default=1, ge=1, le=8)


class Port(StrictModel):
    """The user's port on a pseudo-channel: clock, fixed latency beyond the rules, and that of one more crossbar hop."""

    hz: float = Field(gt=0)
    fifo: int = Field(default=1, ge=1, le=1 << 16)
    """Bursts that wait in the port's own buffer."""
    latency_ns: float = Field(default=0.0, ge=0)
    hop_ns: float = Field(default=0.0, ge=0)


class MemoryConfig(StrictModel):
    """One preset. `mapping` lists the address fields from the least significant bit up (``name`` or ``name:bits``)."""

    name: str = Field(min_length=1)
    standard: str = Field(min_length=1)
    tck_ps: int = Field(ge=100, le=10_000)
    organisation: Organisation
    timings: Timings
    commands: Commands
    queue: int = Field(default=32, ge=1, le=MAX_QUEUE)
    page: Literal["open", "closed"] = "open"
    mapping: tuple[str, ...] = Field(strict=False)
    port: Port | None = None
    src: str = Field(min_length=1)
    r: Literal["read", "derived", "recall"]
    derived: tuple[str, ...] = Field(default=(), strict=False)
    recall: tuple[str, ...] = Field(default=(), strict=False)
    note: str = ""

    @model_validator(mode="after")
    def _check(self):
        mapping_bits(self.mapping, self.organisation.sizes)
        known = set(Timings.model_fields) | set(Organisation.model_fields) | set(Commands.model_fields) | set(Port.model_fields) | set(type(self).model_fields)
        for kind in ("derived", "recall"):
            for name in getattr(self, kind):
                if name not in known:
                    raise ValueError(f"{kind} names {name!r}, which is not a field.")
        channel_timing(self)
        return self

    @property
    def peak_bytes_per_s(self) -> float:
        """Of one channel's data buses: a burst of every pseudo-channel in `bl` cycles."""
        return self.organisation.pcs * self.organisation.burst_bytes / (self.timings.bl * self.tck_ps * 1e-12)


def mapping_bits(mapping: Iterable[str], sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The (field, bits) of a mapping from the least significant up; ``name`` alone takes the bits that are left.

    ``("bank_group:1", "column", "bank", "bank_group", "row")`` splits the bank group. Raises ValueError.
    """
    left = {name: size.bit_length() - 1 for name, size in sizes.items()}
    steps = []
    for item in mapping:
        name, colon, text = item.partition(":")
        if name not in left:
            raise ValueError(f"mapping names {name!r}; allowed: {', '.join(FIELDS)}.")
        if colon and not (text.isdecimal() and 0 < int(text) <= left[name]):
            raise ValueError(f"mapping {item!r}: 1..{left[name]} bits are left of {name}.")
        bits = int(text) if colon else left[name]
        left[name] -= bits
        steps.append((name, bits))
    missing = [name for name, bits in left.items() if bits]
    if missing:
        raise ValueError(f"mapping leaves {left[missing[0]]} bits of {missing[0]} out.")
    return steps


def channel_timing(config: MemoryConfig, *, queue: int | None = None, page: str | None = None, refresh: str = "none") -> ChannelTiming:
    """The parameters of a preset's channel. Raises ValueError."""
    t = config.timings
    values = {name: getattr(t, name) for name in Timings.model_fields if not name.endswith("_ns") and name not in ("rtw", "refi", "rfc", "rfcpb", "rrefd")}
    values |= {name: t.cycles(name, config.tck_ps) for name in ("refi", "rfc", "rfcpb", "rrefd")}
    organisation = config.organisation
    return ChannelTiming(
        pcs=organisation.pcs,
        bank_groups=organisation.bank_groups,
        banks_per_group=organisation.banks_per_group,
        rtw=t.cl + t.bl + 2 - t.cwl if t.rtw is None else t.rtw,
        queue=config.queue if queue is None else queue,
        page=config.page if page is None else page,
        refresh=refresh,
        **values,
        **config.commands.model_dump(),
    )


def load_memory(name_or_path: str | Path, overrides: Iterable[str] = ()) -> MemoryConfig:
    """A preset of ``configs/memories`` by name, or a file. Raises `UserError`."""
    return load_model(MemoryConfig, "memories", name_or_path, overrides)


def usual_refresh(config: MemoryConfig) -> str:
    """All-bank refresh where the source has its time, else per-bank refresh, else none."""
    return next((kind for kind, name in (("all-bank", "rfc"), ("per-bank", "rfcpb")) if config.timings.cycles(name, config.tck_ps)), "none")


def user_timing(config: MemoryConfig, *, queue: int | None, page: str | None, refresh: str) -> ChannelTiming:
    """`channel_timing` for values that a user typed. Raises `UserError` naming what the preset lacks or refuses."""
    for kind, field in (("all-bank", "rfc"), ("per-bank", "rfcpb")):
        if refresh == kind and config.timings.cycles(field, config.tck_ps) == 0:
            raise UserError(f"--refresh {kind}: the source of {config.name} has no {field}; allowed: {', '.join(k for k in REFRESHES if k != kind)}")
    try:
        return channel_timing(config, queue=queue, page=page, refresh=refresh)
    except ValueError as error:
        raise UserError(f"{config.name}: {error}") from None
