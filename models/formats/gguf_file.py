"""A bounds-checked reader of the GGUF container (versions 2 and 3, little-endian).

Nothing in the file is believed: every count, length and offset is checked against the bytes that are there before anything is
allocated, so a truncated or lying file ends in a UserError of one line. Layout: the GGUF specification of ggml
(docs/gguf.md); the blocks of its tensor types: `gguf_blocks`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError
from headrace.models.formats.gguf_blocks import BLOCK_TYPES, bfloat16_values, nibbles
from headrace.models.model import GroupCodes

MAX_ENTRIES = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ENTRIES = 1 << 22
MAX_DIMENSIONS = 4

# Value type number -> struct format. 7 is bool, 8 string, 9 array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor type number -> name, elements per block, bytes per block.
TENSOR_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    **{kind: (block.name, block.elements, block.block_bytes) for kind, block in BLOCK_TYPES.items()},
}
# Names of other types, for the message alone.
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}
_BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}
# Types whose codes can be passed on as they are: codes of 4 bits with a step and an offset for each 32.
CODE_TYPES = ("Q4_0", "Q4_1")


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor: `shape` is numpy's (slowest first), `start` the offset of its first byte in the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


class _Cursor:
    """Reads little-endian values and refuses to pass the end of the file."""

    def __init__(self, data: mmap.mmap | bytes, source: str):
        self.data, self.source, self.at, self.end = data, source, 0, len(data)

    def fail(self, text: str) -> UserError:
        return UserError(f"{self.source}: {text}")

    def need(self, count: int, what: str) -> None:
        if count > self.end - self.at:
            raise self.fail(f"is truncated: {what} at byte {self.at} needs {count} bytes, {self.end - self.at} are left")

    def scalar(self, code: str, what: str) -> int | float:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def string(self, limit: int, what: str) -> str:
        length = self.scalar("Q", f"length of {what}")
        if length > limit:
            raise self.fail(f"{what} claims {length} bytes; allowed are {limit}")
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return bytes(raw).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8 text") from None

    def value(self, kind: int, key: str) -> object:
        if kind == _STRING:
            return self.string(MAX_STRING_BYTES, f"field {key}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.fail(f"field {key} has value type {kind}; allowed are 0 to 12")
        number = self.scalar(_SCALARS[kind], f"field {key}")
        return bool(number) if kind == _BOOL else number

    def array(self, key: str) -> list[str] | np.ndarray:
        kind, count = self.scalar("I", f"field {key}"), self.scalar("Q", f"field {key}")
        if count > MAX_ARRAY_ENTRIES:
            raise self.fail(f"field {key} claims {count} entries; allowed are {MAX_ARRAY_ENTRIES}")
        if kind == _STRING:
            self.need(8 * count, f"field {key}")
            return [self.string(MAX_STRING_BYTES, f"field {key}[{index}]") for index in range(count)]
        if kind not in _SCALARS:
            raise self.fail(f"field {key} is an array of value type {kind}; allowed are numbers, booleans and strings")
        dtype = np.dtype("<" + _SCALARS[kind])
        self.need(count * dtype.itemsize, f"field {key}")
        values = np.frombuffer(self.data, dtype, count, self.at).copy()
        self.at += count * dtype.itemsize
        return values


class GgufFile:
    """An open GGUF file: `fields` (key -> value) and `tensors` (name -> TensorInfo); data stays on disk until asked for."""

    def __init__(self, path: Path):
        self.source = str(path)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        cursor = _Cursor(self._data, self.source)
        if bytes(self._data[:4]) != b"GGUF":
            raise cursor.fail("is not a GGUF file: the first four bytes are not 'GGUF'")
        cursor.at = 4
        version = cursor.scalar("I", "version")
        if version not in (2, 3):
            raise cursor.fail(f"version = {version}; allowed are 2 and 3, little-endian")
        tensor_count, field_count = cursor.scalar("Q", "tensor count"), cursor.scalar("Q", "field count")
        for what, count in (("tensor count", tensor_count), ("field count", field_count)):
            if count > MAX_ENTRIES:
                raise cursor.fail(f"{what} = {count}; allowed is up to {MAX_ENTRIES}")
        self.fields = self._read_fields(cursor, field_count)
        self.tensors = self._read_tensors(cursor, tensor_count)

    def _read_fields(self, cursor: _Cursor, count: int) -> dict[str, object]:
        fields: dict[str, object] = {}
        for _ in range(count):
            key = cursor.string(MAX_KEY_BYTES, "a field's name")
            if key in fields:
                raise cursor.fail(f"field {key} is given twice")
            fields[key] = cursor.value(cursor.scalar("I", f"type of field {key}"), key)
        return fields

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        alignment = self.fields.get("general.alignment", 32)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment not in (8 << n for n in range(14)):
            raise cursor.fail(f"general.alignment = {alignment!r}; allowed is a power of two from 8 to 65536")
        raw = []
        for _ in range(count):
            name = cursor.string(MAX_KEY_BYTES, "a tensor's name")
            dimensions = cursor.scalar("I", f"tensor {name}")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise cursor.fail(f"tensor {name} has {dimensions} dimensions; allowed are 1 to {MAX_DIMENSIONS}")
            shape = tuple(cursor.scalar("Q", f"tensor {name}") for _ in range(dimensions))[::-1]
            raw.append((name, shape, cursor.scalar("I", f"tensor {name}"), cursor.scalar("Q", f"tensor {name}")))
        base = -(-cursor.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in raw:
            if name in tensors:
                raise cursor.fail(f"tensor {name} is given twice")
            if kind not in TENSOR_TYPES:
                known = ", ".join(entry[0] for entry in TENSOR_TYPES.values())
                raise cursor.fail(f"tensor {name} has type {_OTHER_TYPES.get(kind, kind)}; allowed are {known}")
            type_name, elements, block_bytes = TENSOR_TYPES[kind]
            if 0 in shape or shape[-1] % elements:
                raise cursor.fail(f"tensor {name} of type {type_name} has shape {shape}; allowed are rows of a multiple of {elements}")
            size = math.prod(shape) // elements * block_bytes
            if offset % alignment or base + offset + size > cursor.end:
                raise cursor.fail(
                    f"tensor {name} claims bytes {base + offset} to {base + offset + size}; the file has {cursor.end} (truncated?)"
                )
            tensors[name] = TensorInfo(name=name, type_name=type_name, shape=shape, start=base + offset, size_bytes=size)
        return tensors

    def field(self, key: str, kind: type, default: object = None) -> object:
        """A field of the wanted Python type; UserError when it is missing without a default or of another type."""
        value = self.fields.get(key, default)
        if value is None:
            raise UserError(f"{self.source}: field {key} is missing")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            shown = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
            raise UserError(f"{self.source}: field {key} = {shown[:60]}; allowed is one {kind.__name__}")
        return value

    def values(self, name: str) -> np.ndarray:
        """The tensor, dequantised to float32 in its own shape. UserError where a block's scale is no number."""
        tensor = self.tensors[name]
        raw = self._raw(tensor)
        match tensor.type_name:
            case "F32" | "F16":
                return raw.view("<f4" if tensor.type_name == "F32" else "<f2").astype(np.float32).reshape(tensor.shape)
            case "BF16":
                return bfloat16_values(raw).reshape(tensor.shape)
            case _:
                return _BLOCKS[tensor.type_name].values(raw).reshape(tensor.shape)

    def group_codes(self, name: str) -> GroupCodes:
        """Codes, d and m of a Q4_1 or Q4_0 tensor [N, K]. A Q4_0 block has no m: d * (code - 8) is d * code + (-8 * d), exactly."""
        tensor = self.tensors[name]
        columns = tensor.shape[-1]
        block = _BLOCKS[tensor.type_name]
        blocks = self._raw(tensor).reshape(-1, block.block_bytes)
        codes_at = 2 * len(block.scales)
        scales = blocks[:, :codes_at].copy().view("<f2").astype(np.float32).reshape(-1, columns // block.elements, len(block.scales))
        d = scales[:, :, 0].copy()
        m = scales[:, :, 1].copy() if tensor.type_name == "Q4_1" else np.float32(-8) * d
        return GroupCodes(codes=nibbles(blocks[:, codes_at:]).reshape(-1, columns), d=d, m=m)

    def _raw(self, tensor: TensorInfo) -> np.ndarray:
        raw = np.frombuffer(self._data, np.uint8, tensor.size_bytes, tensor.start)
        block = _BLOCKS.get(tensor.type_name)
        if block is not None and not block.scales_are_finite(raw):
            raise UserError(f"{self.source}: tensor {tensor.name[:60]} holds a block scale that is not finite; allowed are finite float16")
        return raw
