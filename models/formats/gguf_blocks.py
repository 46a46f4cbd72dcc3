"""Dequantisers of ggml's block types: bytes of whole blocks to float32.

Layouts are those of ggml-common.h (`block_q4_0` and the others), values those of the `dequantize_row_*` functions of ggml-quants.c:
a product, and where a type has an offset a sum, each rounded to float32. Every dequantiser takes uint8 [blocks, bytes of a block]
and gives float32 [blocks, elements of a block]. A float16 of a block is little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SLICE_ELEMENTS = 1 << 18
"""Elements dequantised at once, so that what is in between stays small beside the result."""


@dataclass(frozen=True, kw_only=True)
class BlockType:
    """A tensor type of blocks. `scales`: offsets of a block's float16 scales, which must be finite."""

    name: str
    elements: int
    block_bytes: int
    scales: tuple[int, ...]
    dequantise: Callable[[np.ndarray], np.ndarray]

    def values(self, raw: np.ndarray) -> np.ndarray:
        """float32 [elements] of uint8 [bytes], whole blocks, in slices."""
        blocks = raw.reshape(-1, self.block_bytes)
        result = np.empty((len(blocks), self.elements), np.float32)
        step = SLICE_ELEMENTS // self.elements
        for start in range(0, len(blocks), step):
            result[start : start + step] = self.dequantise(blocks[start : start + step])
        return result.reshape(-1)

    def scales_are_finite(self, raw: np.ndarray) -> bool:
        """Whether every scale of these blocks (uint8 [bytes]) is a number."""
        blocks = raw.reshape(-1, self.block_bytes)
        return all(bool(np.isfinite(_half(blocks, at)).all()) for at in self.scales)


def bfloat16_values(raw: np.ndarray) -> np.ndarray:
    """float32 [n] of uint8 [2n]: a bfloat16 is the upper half of a float32."""
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [..., 2n] of uint8 [..., n]: all low halves, then all high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _fields(packed: np.ndarray, bits: int) -> np.ndarray:
    """Fields of `bits` bits of uint8 [blocks, ..., n], lowest first: uint8 [blocks, ..., 8 / bits, n]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _scaled(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """scale * code, float32 [blocks, elements]: `scales` [blocks, G] serve the G equal runs of `codes` [blocks, elements]."""
    runs = codes.reshape(*scales.shape, -1).astype(np.float32)
    runs *= scales[:, :, None]
    return runs.reshape(codes.shape)


def _with_offset(codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """scale * code + offset, as `_scaled`."""
    runs = _scaled(codes, scales).reshape(*scales.shape, -1)
    runs += offsets[:, :, None]
    return runs.reshape(codes.shape)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    """d, 16 bytes of codes 0 to 15 low and 16 to 31 high: d * (code - 8)."""
    return _scaled(nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8), _half(blocks, 0))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """d, m, 16 bytes of codes as in Q4_0: d * code + m."""
    return _with_offset(nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _five_bits(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Codes 0 to 31 [blocks, 32]: bit i of the 4 bytes `high` is the fifth bit of code i."""
    return nibbles(low) | np.unpackbits(high, axis=-1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    """d, 4 bytes of fifth bits, 16 bytes as in Q4_0: d * (code - 16)."""
    return _scaled(_five_bits(blocks[:, 2:6], blocks[:, 6:]).astype(np.int8) - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    """d, m, 4 bytes of fifth bits, 16 bytes as in Q4_0: d * code + m."""
    return _with_offset(_five_bits(blocks[:, 4:8], blocks[:, 8:]), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """d, 32 int8: d * code."""
    return _scaled(blocks[:, 2:].view(np.int8), _half(blocks, 0))


IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the 16 codes of IQ4_NL stand for: `kvalues_iq4nl` of ggml-common.h."""


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """d, 16 bytes of codes as in Q4_0: d * the code's entry of `IQ4_NL_VALUES`."""
    return _scaled(IQ4_NL_VALUES[nibbles(blocks[:, 2:])], _half(blocks, 0))


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    """16 bytes of 4-bit scale (low) and offset (high) per 16 elements, 64 bytes of codes, d, dmin: d * scale * code - dmin * offset.

    Of each 128 elements, 32 bytes hold element l, l + 32, l + 64 and l + 96 in bits 0, 2, 4 and 6 of byte l.
    """
    scales = _half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    offsets = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    codes = _fields(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return _with_offset(codes, scales, -offsets)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """32 bytes of third bits, 64 bytes of codes as in Q2_K, 12 bytes of 6-bit scales, d: d * (scale - 32) * (code - 4).

    Bit c of high byte l belongs to element 32c + l. Scale i: four bits of byte i mod 8 (low ones for i < 8), and above them
    two of byte 8 + i mod 4, at bit 2 * (i div 4).
    """
    low, high = nibbles(blocks[:, 96:104]), _fields(blocks[:, 104:108], 2).reshape(-1, 16)
    scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    third = _fields(blocks[:, :32], 1).reshape(-1, 256)
    codes = _fields(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return _scaled((codes | third << np.uint8(2)).astype(np.int8) - np.int8(4), _half(blocks, 108) * scales.astype(np.float32))


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d * scale and -dmin * offset of Q4_K and Q5_K, float32 [blocks, 8], for 32 elements each: d, dmin, then 12 bytes of 6-bit numbers.

    Bytes 0 to 3 hold scales 0 to 3 and bytes 4 to 7 offsets 0 to 3, in their low six bits. Bytes 8 to 11 hold the low four bits
    of scales 4 to 7 (low) and of offsets 4 to 7 (high), whose upper two bits are bits 6 and 7 of bytes 0 to 7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
    offsets = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    return _half(blocks, 0) * scales.astype(np.float32), -(_half(blocks, 2) * offsets.astype(np.float32))


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """16 bytes of `_k_scales`, 128 of codes: of each 64 elements, 32 bytes hold the first half low, the second high."""
    return _with_offset(nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256), *_k_scales(blocks))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """16 bytes of `_k_scales`, 32 of fifth bits (bit c of byte l belongs to element 32c + l), 128 of codes as in Q4_K."""
    fifth = _fields(blocks[:, 16:48], 1).reshape(-1, 256)
    return _with_offset(nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256) | fifth << np.uint8(4), *_k_scales(blocks))


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """128 bytes of low four bits, 64 of upper two, 16 int8 scales of 16 elements, d: d * scale * (code - 32).

    Of each 128 elements, 64 bytes hold the first half low, the second high; the upper bits lie as the codes of Q2_K.
    """
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled((low | high << np.uint8(4)).astype(np.int8) - np.int8(32), scales)


def _block_type(name: str, elements: int, block_bytes: int, scales: tuple[int, ...], dequantise) -> BlockType:
    return BlockType(name=name, elements=elements, block_bytes=block_bytes, scales=scales, dequantise=dequantise)


BLOCK_TYPES = {
    2: _block_type("Q4_0", 32, 18, (0,), _q4_0),
    3: _block_type("Q4_1", 32, 20, (0, 2), _q4_1),
    6: _block_type("Q5_0", 32, 22, (0,), _q5_0),
    7: _block_type("Q5_1", 32, 24, (0, 2), _q5_1),
    8: _block_type("Q8_0", 32, 34, (0,), _q8_0),
    10: _block_type("Q2_K", 256, 84, (80, 82), _q2_k),
    11: _block_type("Q3_K", 256, 110, (108,), _q3_k),
    12: _block_type("Q4_K", 256, 144, (0, 2), _q4_k),
    13: _block_type("Q5_K", 256, 176, (0, 2), _q5_k),
    14: _block_type("Q6_K", 256, 210, (208,), _q6_k),
    20: _block_type("IQ4_NL", 32, 18, (0,), _iq4_nl),
}
"""Type number of a GGUF tensor (`ggml_type` of ggml.h) -> its blocks."""
