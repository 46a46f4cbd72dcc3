"""Access patterns on one DRAM channel, as arrays of address fields, and Ramulator's read/write trace form."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from headrace.hw.memory_timing import FIELDS, MemoryConfig, Organisation, mapping_bits
from headrace.models.errors import UserError

ORDERS = {
    "sequential": ("pc", "bank_group", "column", "bank", "row"),
    "bank-group-last": ("pc", "column", "bank_group", "bank", "row"),
    "one-pseudo-channel": ("bank_group", "column", "bank", "row", "pc"),
}
"""Regular patterns: address fields from the fastest to the slowest."""
PATTERNS = (*ORDERS, "random")
MAX_REQUESTS = 1 << 26
MAX_TRACE_BYTES = 1 << 30
TRACE_FIELDS = ("channel", "pc", "bank_group", "bank", "row", "column")
"""Of an address in a trace file; DDR's rank takes the place of the pseudo-channel."""

Fields = dict[str, np.ndarray]


def pattern_fields(name: str, config: MemoryConfig, *, accesses: int, access_bytes: int, seed: int = 0) -> Fields:
    """Fields (int64, one element a burst) of `accesses` accesses of `access_bytes` each.

    A regular pattern visits bursts in the order of `ORDERS`, wrapping at the channel's end. `random`: each access
    starts at a multiple of its size anywhere in the channel; its bursts follow in the preset's mapping.
    """
    organisation = config.organisation
    if access_bytes % organisation.burst_bytes or access_bytes < organisation.burst_bytes:
        raise UserError(f"--access-bytes {access_bytes}: a multiple of the {organisation.burst_bytes} bytes of a burst of {config.name} is allowed")
    bursts = access_bytes // organisation.burst_bytes
    if not 1 <= accesses * bursts <= MAX_REQUESTS:
        raise UserError(f"--requests {accesses}: 1..{MAX_REQUESTS // bursts} is allowed with --access-bytes {access_bytes}")
    if name in ORDERS:
        return split(np.arange(accesses * bursts, dtype=np.int64), [(field, None) for field in ORDERS[name]], organisation)
    if name != "random":
        raise UserError(f"--pattern {name!r} is unknown; allowed: {', '.join(PATTERNS)}, or the path of a trace file")
    total = int(np.prod(list(organisation.sizes.values()), dtype=np.int64))
    starts = np.random.default_rng(seed).integers(0, max(total // bursts, 1), accesses) * bursts
    index = (starts[:, None] + np.arange(bursts)).reshape(-1) % total
    return split(index, mapping_bits(config.mapping, organisation.sizes), organisation)


def split(index: np.ndarray, steps: Iterable[tuple[str, int | None]], organisation: Organisation) -> Fields:
    """Burst numbers to fields, by (field, bits) from the least significant up; bits None: all of the field."""
    sizes = organisation.sizes
    fields = {name: np.zeros(len(index), np.int64) for name in FIELDS}
    shift = dict.fromkeys(FIELDS, 0)
    for name, bits in steps:
        bits = sizes[name].bit_length() - 1 if bits is None else bits
        fields[name] |= (index & ((1 << bits) - 1)) << shift[name]
        shift[name] += bits
        index = index >> bits
    return fields


def write_flags(accesses: int, bursts: int, share: float, seed: int = 0) -> np.ndarray:
    """uint8, one a burst: each access is a write with probability `share`, independently."""
    if not 0 <= share <= 1:
        raise UserError(f"--write-share {share}: 0..1 is allowed")
    flags = np.random.default_rng([seed, 1]).random(accesses) < share
    return np.repeat(flags, bursts).astype(np.uint8)


def bank_ids(fields: Fields, organisation: Organisation) -> np.ndarray:
    """`bank_id` of ``docs/memory.md`` section 1 (int32)."""
    group = fields["pc"] * organisation.bank_groups + fields["bank_group"]
    return (group * organisation.banks_per_group + fields["bank"]).astype(np.int32)


def export_trace(path: Path, fields: Fields, write: np.ndarray) -> None:
    """Write Ramulator's read/write form: ``R channel,pseudo-channel,bank group,bank,row,column``, a line a burst."""
    columns = [fields[name].tolist() for name in TRACE_FIELDS[1:]]
    with path.open("w") as file:
        for flag, *address in zip(write.tolist(), *columns, strict=True):
            file.write(f"{'W' if flag else 'R'} 0,{','.join(map(str, address))}\n")


def read_trace(path: Path, organisation: Organisation) -> tuple[Fields, np.ndarray]:
    """Fields and write flags of a file that `export_trace` or a user wrote. Raises `UserError` naming the line."""
    if path.stat().st_size > MAX_TRACE_BYTES:
        raise UserError(f"{path}: is larger than the {MAX_TRACE_BYTES} bytes allowed for a trace")
    limits = [1, *(organisation.sizes[name] for name in TRACE_FIELDS[1:])]
    rows, write = [], []
    with path.open("r", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or words[0] not in ("R", "W"):
                raise UserError(f"{path}: line {number}: {line.strip()[:40]!r}: 'R' or 'W' and an address are needed")
            texts = words[1].split(",")
            if len(texts) != len(limits):
                raise UserError(f"{path}: line {number}: the address has {len(texts)} fields; {len(limits)} are needed: {','.join(TRACE_FIELDS)}")
            values = []
            for name, text, limit in zip(TRACE_FIELDS, texts, limits, strict=True):
                if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < limit):
                    raise UserError(f"{path}: line {number}: {name} = {text[:20]!r}: 0..{limit - 1} is allowed")
                values.append(int(text))
            if len(rows) == MAX_REQUESTS:
                raise UserError(f"{path}: line {number}: more than the {MAX_REQUESTS} requests allowed")
            rows.append(values[1:])
            write.append(words[0] == "W")
    if not rows:
        raise UserError(f"{path}: holds no request")
    table = np.array(rows, np.int64)
    return {name: table[:, column] for column, name in enumerate(TRACE_FIELDS[1:])}, np.array(write, np.uint8)
