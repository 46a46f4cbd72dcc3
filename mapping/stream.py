"""The weight stream: how a matrix becomes memory words, in the order in which the decode unit takes them.

docs/machine.md, section 3, is the text. Everything is vectorised; nothing here knows of models.
"""

import numpy as np

from headrace.hw.machine import Machine

BLOCK = 16  # columns of a slice
GROUP_SLICES = 2  # a metadata group is 32 columns
META_FIELD_BITS = 20


def slice_words(machine: Machine, bits: int) -> int:
    """Words of one slice of stripe_rows x 16 codes."""
    size = machine.stripe_rows * BLOCK * bits
    if size % machine.word_bits:
        raise ValueError(f"a slice of {bits}-bit codes has {size} bits, not whole words of {machine.word_bits} bits")
    return size // machine.word_bits


def stripe_words(machine: Machine, slices: int, bits: int) -> int:
    """Words of one stripe of `slices` slices, metadata in, scale words out."""
    meta = -(-slices // (GROUP_SLICES * machine.meta_groups_per_word)) if bits < 8 else 0
    return slices * slice_words(machine, bits) + meta


def stream_words(machine: Machine, stripes: int, slices: int, bits: int, scales: bool) -> int:
    """Words that an MV of `stripes` x `slices` takes."""
    scale_words = -(-stripes // machine.stripes_per_scale_word) if scales else 0
    return scale_words + stripes * stripe_words(machine, slices, bits)


def pack_stream(
    machine: Machine,
    codes: np.ndarray,
    bits: int,
    row_scale: np.ndarray | None,
    mult: np.ndarray | None = None,
    off: np.ndarray | None = None,
) -> np.ndarray:
    """uint8 [words, word_bytes] of the stream of one matrix.

    codes: [N, K], unsigned below 8 bits, two's complement int8 at 8 bits. row_scale: float32 [N] or None (no scale words).
    mult, off: [N, ceil(K/32)] below 8 bits. N is padded with zero rows to whole scale words (or stripes without scales).
    """
    if bits == 8 and codes.size and int(codes.min()) < -127:
        raise ValueError("an 8-bit code of -128 is outside +-127")
    r = machine.stripe_rows
    n, k = codes.shape
    rows = -(-n // machine.scales_per_word) * machine.scales_per_word if row_scale is not None else -(-n // r) * r
    slices = -(-k // BLOCK)
    stripes = rows // r
    padded = np.zeros((rows, slices * BLOCK), np.uint8)
    padded[:n, :k] = codes.astype(np.uint8) if bits < 8 else codes.astype(np.int8).view(np.uint8)
    flat = padded.reshape(stripes, r, slices, BLOCK).transpose(0, 2, 1, 3).reshape(stripes, slices, r * BLOCK)
    words = _pack_bits(flat, bits).reshape(stripes, slices * slice_words(machine, bits), machine.word_bytes)
    if bits < 8:
        words = _insert_metadata(machine, words, slices, bits, _pad_rows(mult, rows), _pad_rows(off, rows))
    if row_scale is None:
        return words.reshape(-1, machine.word_bytes)
    per = machine.stripes_per_scale_word
    scale = np.zeros(rows, "<f4")
    scale[:n] = row_scale
    scale_bytes = scale.view(np.uint8).reshape(rows // machine.scales_per_word, 1, machine.word_bytes)
    body = words.reshape(stripes // per, per * words.shape[1], machine.word_bytes)
    return np.concatenate([scale_bytes, body], axis=1).reshape(-1, machine.word_bytes)


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros((rows, array.shape[1]), array.dtype)
    out[: array.shape[0]] = array
    return out


def _pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis, `bits` each, little endian, to bytes."""
    if bits == 8:
        return codes
    if bits == 4:
        return codes[..., 0::2] | codes[..., 1::2] << 4
    raise ValueError(f"codes of {bits} bits have no packing in ISA version 1; 4 and 8 do")


def _insert_metadata(machine, words, slices, bits, mult, off):
    """One metadata word before every meta_groups_per_word groups of each stripe."""
    r, per = machine.stripe_rows, machine.meta_groups_per_word
    stripes = words.shape[0]
    groups = -(-slices // GROUP_SLICES)
    chunks = -(-groups // per)
    value = (off.astype(np.int64) & 0xFFF) << 8 | mult.astype(np.int64)  # [rows, groups]
    value = value[:, :groups].reshape(stripes, r, groups).transpose(0, 2, 1)  # [stripe, group, row]
    field = np.zeros((stripes, chunks * per, r), np.uint32)
    field[:, :groups] = value
    one = np.unpackbits(field.astype("<u4").view(np.uint8).reshape(stripes, chunks, per * r, 4), axis=-1, bitorder="little")
    used = one[..., :META_FIELD_BITS].reshape(stripes, chunks, per * r * META_FIELD_BITS)
    bit = np.zeros((stripes, chunks, machine.word_bits), np.uint8)
    bit[..., : used.shape[-1]] = used
    meta = np.packbits(bit, axis=-1, bitorder="little")  # [stripe, chunk, word_bytes]
    width = slice_words(machine, bits) * GROUP_SLICES * per  # code words that one metadata word serves
    out = []
    for chunk in range(chunks):
        out += [meta[:, chunk : chunk + 1], words[:, chunk * width : (chunk + 1) * width]]
    return np.concatenate(out, axis=1)
