"""A bounds-checked reader of safetensors files, one or sharded, with float32, float16 and bfloat16 tensors.

The safetensors package has no numpy type for bfloat16 and maps whole files; this reads the header, checks it against the bytes
that are there, and converts one tensor at a time. Layout: 8 bytes of header length, a JSON header, the data.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_JSON_BYTES = 1 << 24
MAX_DEPTH = 64
MAX_COMMAS = 1 << 21  # an empty list takes twenty times the memory of its text; a tokenizer.json of 262,144 tokens has 1.3 million
MAX_NAME = 255  # of a file, on the file systems in use
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
DTYPES = {"U8": np.dtype("u1"), "I8": np.dtype("i1"), "I16": np.dtype("<i2"), "F32": np.dtype("<f4")}
"""Of the tensors of packed files."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies: bytes `start` to `end` of `data`."""

    data: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def values(self) -> np.ndarray:
        """float32, in the tensor's shape."""
        raw = np.frombuffer(self.data, np.uint8, self.end - self.start, self.start)
        if self.dtype == "BF16":  # the upper half of a float32
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return raw.view("<f4" if self.dtype == "F32" else "<f2").astype(np.float32).reshape(self.shape)


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict:
    """A JSON object from a file of at most `limit` bytes."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > limit:
        raise UserError(f"{path}: is larger than the {limit} bytes allowed")
    return parse_object(raw, str(path))


def parse_object(raw: bytes, source: str) -> dict:
    if raw.count(b",") > MAX_COMMAS:
        raise UserError(f"{source}: holds more than the {MAX_COMMAS} values allowed")
    try:
        document = json.loads(raw, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(document, dict):
        raise UserError(f"{source}: holds a JSON {type(document).__name__}; allowed is an object")
    _check_depth(document, source)
    return document


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; ValueError where a key is given twice, of which Python would silently keep the last."""
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key {twice[:40]!r} is given twice")
    return document


def _check_depth(document: dict, source: str) -> None:
    """Refuse nesting that would exhaust the stack of whoever walks or prints the document."""
    level: list[object] = [document]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node) if isinstance(child, (dict, list))]
        if not level:
            return
    raise UserError(f"{source}: is nested deeper than the {MAX_DEPTH} levels allowed")


def open_safetensors(path: Path, item_bytes: Mapping[str, int] = ITEM_BYTES) -> dict[str, StoredTensor]:
    """Name -> tensor of one file, of the element types (their bytes) allowed. Raises UserError when the header claims what the file
    does not hold, or another type."""
    data, header, base = _open(path)
    return {name: _stored(path, data, name, entry, base, len(data), item_bytes) for name, entry in header.items() if name != "__metadata__"}


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that a file keeps beside its tensors."""
    metadata = _open(path)[1].get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError(f"{path}: __metadata__ is not an object of texts")
    return metadata


def _open(path: Path) -> tuple[mmap.mmap, dict, int]:
    """(the file's bytes, its header, where data start)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise UserError(f"{path}: is truncated: it has {size} bytes, a safetensors file starts with 8")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an index may name what no file can be called
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    (header_bytes,) = struct.unpack_from("<Q", data, 0)
    if header_bytes > min(size - 8, MAX_HEADER_BYTES):
        raise UserError(f"{path}: header claims {header_bytes} bytes; allowed are {min(size - 8, MAX_HEADER_BYTES)} (truncated?)")
    header = parse_object(data[8 : 8 + header_bytes], f"{path}: header")
    return data, header, 8 + header_bytes


def _stored(path: Path, data: mmap.mmap, name: str, entry: object, base: int, size: int, item_bytes: Mapping[str, int]) -> StoredTensor:
    def counts(value: object) -> bool:
        return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)

    if not isinstance(entry, dict) or not counts(entry.get("shape")) or not counts(entry.get("data_offsets")):
        raise UserError(f"{path}: tensor {name[:60]!r} lacks a shape or data_offsets of whole numbers")
    dtype, shape, offsets = entry.get("dtype"), tuple(entry["shape"]), entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in item_bytes:
        raise UserError(f"{path}: tensor {name[:60]!r} has dtype {str(dtype)[:20]!r}; allowed are {', '.join(item_bytes)}")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size - base:
        raise UserError(f"{path}: tensor {name[:60]!r} claims data_offsets {offsets[:3]}; allowed are 0 to {size - base} (truncated?)")
    if len(shape) > 8 or math.prod(shape) * item_bytes[dtype] != offsets[1] - offsets[0]:
        raise UserError(
            f"{path}: tensor {name[:60]!r} of shape {list(shape[:8])} in {dtype} does not fill its {offsets[1] - offsets[0]} bytes"
        )
    return StoredTensor(data=data, dtype=dtype, shape=shape, start=base + offsets[0], end=base + offsets[1])


def save_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write contiguous arrays of the types in `DTYPES`. The same input gives the same bytes, which the package's own writer does not promise
    (its metadata have no order). Raises OSError."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    names = {dtype: name for name, dtype in DTYPES.items()}
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so that each lies at a multiple of its element
    offset = 0
    for name in ordered:
        array = tensors[name]
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            file.write(np.ascontiguousarray(tensors[name]).data.cast("B") if tensors[name].size else b"")


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of model.safetensors, or of the shards that model.safetensors.index.json names (files of that folder only)."""
    single, index_path = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return open_safetensors(single)
    if not index_path.is_file():
        raise UserError(f"{folder}: holds neither model.safetensors nor model.safetensors.index.json")
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index_path}: field weight_map must be an object of tensor name to file name")
    shards: dict[str, dict[str, StoredTensor]] = {}
    tensors: dict[str, StoredTensor] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or len(shard) > MAX_NAME or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(f"{index_path}: weight_map {name[:60]!r} = {str(shard)[:60]!r}; allowed is a .safetensors file of this folder")
        if shard not in shards:
            shards[shard] = open_safetensors(folder / shard)
        if name not in shards[shard]:
            raise UserError(f"{folder / shard}: tensor {name[:60]!r} is missing, though the index says it is here")
        tensors[name] = shards[shard][name]
    return tensors
