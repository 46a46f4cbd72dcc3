"""Triton kernel of the linear layer, bit for bit as docs/contract.md: 4- or 8-bit weights, INT8 activations, float32 out.

``y[m, n] = f32(acc) (*) (s_a[m] (*) s_w[n])`` with ``acc = sum_k w8[n, k] * q[m, k]`` exact in int32 and w8 decoded on the way from
memory. No result depends on block sizes or batch: integer sums have no order. The same source runs on a GPU and, with
TRITON_INTERPRET=1 set before this module is imported, on CPU tensors.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from headrace.kernels.contract import constants as c
from headrace.kernels.packing import GROUP_BYTES, PackedLinear

_SHIFT = tl.constexpr(c.CODE_SHIFT[4])
_HALF = tl.constexpr(1 << (c.CODE_SHIFT[4] - 1))
_INT8_MAX = tl.constexpr(c.INT8_MAX)
_GROUP = tl.constexpr(c.GROUP)
_GROUP_BYTES = tl.constexpr(GROUP_BYTES)
_MAGNITUDE = tl.constexpr(c.MAGNITUDE_MASK)
_SIGN = tl.constexpr(c.SIGN_BIT)
_MIN_NORMAL_BITS = tl.constexpr(c.MIN_NORMAL_BITS)
_MIN_NORMAL = tl.constexpr(2.0**-126)
_NAN = tl.constexpr(c.NAN_BITS)

DOT_ROWS = 16
"""Smallest batch tile of a matrix instruction; a batch of one uses plain multiply-adds instead."""


@triton.jit
def _flush(x):
    """Subnormals as zero of their sign."""
    u = x.to(tl.uint32, bitcast=True)
    return tl.where((u & _MAGNITUDE) < _MIN_NORMAL_BITS, u & _SIGN, u).to(tl.float32, bitcast=True)


@triton.jit
def mul_f32(a, b):
    """``a (*) b``. The float64 product of two float32 is exact, so one conversion rounds it, the flush is decided on the exact value,
    no compiler can contract it, and no subnormal mode of the device can matter: results that would be subnormal are replaced."""
    exact = _flush(a).to(tl.float64) * _flush(b).to(tl.float64)
    u = exact.to(tl.float32).to(tl.uint32, bitcast=True)
    u = tl.where(tl.abs(exact) < _MIN_NORMAL, u & _SIGN, u)
    u = tl.where(exact != exact, _NAN, u)
    return u.to(tl.float32, bitcast=True)


@triton.jit
def _decode(code, mult, off):
    """int8 grid values of 4-bit codes: ``clip((c * mult + off + half) >> shift, -127, 127)``; int32 in and out."""
    grid = (code * mult + off + _HALF) >> _SHIFT
    return tl.minimum(tl.maximum(grid, -_INT8_MAX), _INT8_MAX)


@triton.jit
def _accumulate(acc, w, q, DOT: tl.constexpr):
    """acc [BLOCK_M, BLOCK_N] int32 plus q [BLOCK_M, B] times w [BLOCK_N, B], both int8."""
    if DOT:
        return tl.dot(q, tl.trans(w), acc=acc, out_dtype=tl.int32)
    else:
        return acc + tl.sum(w.to(tl.int32) * q.to(tl.int32), axis=1)[None, :]


@triton.jit
def linear_kernel(
    q_ptr, s_a_ptr, codes_ptr, mult_ptr, off_ptr, s_w_ptr, y_ptr, M, N, K, row_bytes, groups,
    BITS: tl.constexpr, DOT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """q int8 [M, K], s_a float32 [M], codes [N, row_bytes], mult and off [N, groups], s_w float32 [N] -> y float32 [M, N].

    A program makes BLOCK_M x BLOCK_N results (BLOCK_M = 1 where DOT is off), BLOCK_BYTES code bytes of each row at a time.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = n.to(tl.int64)[:, None]
    q_rows = q_ptr + m.to(tl.int64)[:, None] * K
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for start in range(0, row_bytes, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)
        here = (n < N)[:, None] & (byte < row_bytes)[None, :]
        codes = tl.load(codes_ptr + row * row_bytes + byte[None, :], mask=here, other=0)
        if BITS == 8:
            q = tl.load(q_rows + byte[None, :], mask=(m < M)[:, None] & (byte < K)[None, :], other=0)
            acc = _accumulate(acc, codes, q, DOT)
        else:
            group = byte // _GROUP_BYTES
            mult = tl.load(mult_ptr + row * groups + group[None, :], mask=here, other=0).to(tl.int32)
            off = tl.load(off_ptr + row * groups + group[None, :], mask=here, other=0).to(tl.int32)
            codes = codes.to(tl.int32)
            # Codes that pad the last group decode to something, but meet q = 0: loads past K are masked.
            low = group * _GROUP + byte % _GROUP_BYTES
            q = tl.load(q_rows + low[None, :], mask=(m < M)[:, None] & (low < K)[None, :], other=0)
            acc = _accumulate(acc, _decode(codes & 15, mult, off).to(tl.int8), q, DOT)
            high = low + _GROUP_BYTES
            q = tl.load(q_rows + high[None, :], mask=(m < M)[:, None] & (high < K)[None, :], other=0)
            acc = _accumulate(acc, _decode(codes >> 4, mult, off).to(tl.int8), q, DOT)
    s_a = tl.load(s_a_ptr + m, mask=m < M, other=0.0)
    s_w = tl.load(s_w_ptr + n, mask=n < N, other=0.0)
    # An integer is zero or at least 1 in magnitude: its conversion (nearest even) is never subnormal.
    y = mul_f32(acc.to(tl.float32), mul_f32(s_a[:, None], s_w[None, :]))
    tl.store(y_ptr + m.to(tl.int64)[:, None] * N + n[None, :], y, mask=(m < M)[:, None] & (n < N)[None, :])


@dataclass(frozen=True, kw_only=True)
class DeviceLinear:
    """The tensors of a `PackedLinear` on one device."""

    inputs: int
    outputs: int
    bits: int
    codes: torch.Tensor
    mult: torch.Tensor
    off: torch.Tensor
    row_scale: torch.Tensor


def to_device(packed: PackedLinear, device: str | torch.device) -> DeviceLinear:
    """Copy to `device` ("cpu" under the interpreter)."""
    tensors = {name: torch.from_numpy(getattr(packed, name)).to(device) for name in ("codes", "mult", "off", "row_scale")}
    return DeviceLinear(inputs=packed.inputs, outputs=packed.outputs, bits=packed.bits, **tensors)


def linear(
    weights: DeviceLinear, q: torch.Tensor, s_a: torch.Tensor, *, block_m: int | None = None, block_n: int = 64, block_bytes: int = 64
) -> torch.Tensor:
    """y float32 [M, N] of activations q int8 [M, K] and their scales s_a float32 [M].

    Block sizes are powers of two and change no bit; block_m is 1 for one row and 16 otherwise unless given (1, or at least 16).
    Raises ValueError for shapes, types or devices that do not match.
    """
    rows = q.shape[0] if q.dim() == 2 else 0
    if rows < 1 or q.shape[1] != weights.inputs or q.dtype != torch.int8:
        raise ValueError(f"q is {q.dtype} {tuple(q.shape)}; needed is int8 [M, {weights.inputs}] with M >= 1")
    if tuple(s_a.shape) != (rows,) or s_a.dtype != torch.float32:
        raise ValueError(f"s_a is {s_a.dtype} {tuple(s_a.shape)}; needed is float32 [{rows}]")
    if not q.device == s_a.device == weights.codes.device:
        raise ValueError(f"q is on {q.device}, s_a on {s_a.device}, the weights on {weights.codes.device}; one device is needed")
    if block_m is None:
        block_m = 1 if rows == 1 else DOT_ROWS
    for name, value, least in (("block_m", block_m, 1 if block_m == 1 else DOT_ROWS), ("block_n", block_n, 16), ("block_bytes", block_bytes, 32)):
        if value < least or value & (value - 1):
            raise ValueError(f"{name} = {value}; needed is a power of two of at least {least}")
    y = torch.empty((rows, weights.outputs), dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(weights.outputs, block_n), triton.cdiv(rows, block_m))
    linear_kernel[grid](
        q.contiguous(), s_a.contiguous(), weights.codes, weights.mult, weights.off, weights.row_scale, y,
        rows, weights.outputs, weights.inputs, weights.codes.shape[1], weights.mult.shape[1],
        BITS=weights.bits, DOT=block_m > 1, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_BYTES=block_bytes,
    )  # fmt: skip
    return y
