"""Bits of a KV cache's keys and values: codes, group metadata and scales."""

from headrace.kernels.contract import constants as c

SCALE_BITS = 32
"""One float32 scale for each key or value of one token and head, at up to 8 bits."""

META_BITS = c.MULT_MAX.bit_length() + (c.OFF_MAX - c.OFF_MIN).bit_length()
"""mult and off of a group of 4-bit codes."""


def code_bits(head_dim: int, kv_bits: int) -> int:
    """Of one key or value of one head without its scale: codes, and at 4 bits (contract section 6) mult and off of each group."""
    return head_dim * kv_bits + (META_BITS * -(-head_dim // c.GROUP) if kv_bits == 4 else 0)


def cache_bytes(layers: int, kv_heads: int, head_dim: int, kv_bits: int) -> int:
    """That one token adds to all layers: a key and a value of each KV head, with scales at up to 8 bits."""
    bits = code_bits(head_dim, kv_bits) + (SCALE_BITS if kv_bits <= 8 else 0)
    return -(-2 * layers * kv_heads * bits // 8)
