"""The linear layer's Triton kernel, specialised to the shapes of a model: the text of a module that needs torch and triton alone.

The arithmetic is not written twice: the kernel's functions are cut out of ``linear_w4a8.py``; sizes that are arguments there become
constants, so that Triton folds them into each compiled kernel.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from headrace.kernels.contract import constants as c
from headrace.kernels.packing import GROUP_BYTES, WIDTHS
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig, require_plain_llama
from headrace.models.scheme import Scheme, refuse_single_tensors

KERNEL_FILE = Path(__file__).with_name("linear_w4a8.py")
FUNCTIONS = ("_flush", "mul_f32", "_decode", "_accumulate", "linear_kernel")
RUNTIME_SIZES, CONSTANT_SIZES = (
    "M, N, K, row_bytes, groups,", "M, N: tl.constexpr, K: tl.constexpr, row_bytes: tl.constexpr, groups: tl.constexpr,",
)  # fmt: skip
CONSTANTS = {
    "_SHIFT": c.CODE_SHIFT[4], "_HALF": 1 << (c.CODE_SHIFT[4] - 1), "_INT8_MAX": c.INT8_MAX, "_GROUP": c.GROUP, "_GROUP_BYTES": GROUP_BYTES,
    "_MAGNITUDE": c.MAGNITUDE_MASK, "_SIGN": c.SIGN_BIT, "_MIN_NORMAL_BITS": c.MIN_NORMAL_BITS, "_MIN_NORMAL": 2.0**-126, "_NAN": c.NAN_BITS,
}  # fmt: skip
"""Those of ``linear_w4a8.py``; a test holds one to the other."""
LEAST_BLOCK_N, LEAST_BLOCK_BYTES, MOST_BLOCK = 16, 32, 1024


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """One matrix [outputs, inputs] and the blocks of its kernel; row_bytes and groups as `packing.PackedLinear` stores them."""

    name: str
    outputs: int
    inputs: int
    bits: int
    block_n: int
    block_bytes: int

    @property
    def groups(self) -> int:
        return 0 if self.bits == 8 else -(-self.inputs // c.GROUP)

    @property
    def row_bytes(self) -> int:
        return self.inputs if self.bits == 8 else self.groups * GROUP_BYTES

    def text(self) -> str:
        return (
            f"Linear(outputs={self.outputs}, inputs={self.inputs}, bits={self.bits}, row_bytes={self.row_bytes}, groups={self.groups}, "
            f"block_n={self.block_n}, block_bytes={self.block_bytes})"
        )


def linear_shapes(config: DecoderConfig, scheme: Scheme, *, block_n: int | None = None, block_bytes: int | None = None) -> list[LinearShape]:
    """The seven linears of a layer and the LM head. Blocks not given: 64 rows (fewer where a matrix has fewer), and the widest of 32 to
    128 bytes that divides a row, so that no load is partial. Raises UserError for widths or blocks that have no kernel."""
    require_plain_llama(config, "`kernels generate`")
    for option, value, least in (("block-n", block_n, LEAST_BLOCK_N), ("block-bytes", block_bytes, LEAST_BLOCK_BYTES)):
        if value is not None and (not least <= value <= MOST_BLOCK or value & (value - 1)):
            raise UserError(f"--{option} {value}: allowed is a power of two from {least} to {MOST_BLOCK}")
    if scheme.sparsity is not None and scheme.sparsity.n != scheme.sparsity.m:
        raise UserError(f"scheme {scheme.name}: sparsity.n = {scheme.sparsity.n} has no kernel; allowed is {scheme.sparsity.m} (dense)")
    if scheme.activation_bits != 8:
        raise UserError(f"scheme {scheme.name}: activation_bits = {scheme.activation_bits} has no kernel; allowed is 8")
    refuse_single_tensors(scheme, "a kernel module")
    sizes = [(name, *config.linear_shape(name), scheme.bits_of(name)) for name in LINEAR_NAMES]
    sizes.append(("lm_head", config.vocab, config.width, scheme.lm_head_bits))
    shapes = []
    for name, outputs, inputs, bits in sizes:
        if bits not in WIDTHS:
            raise UserError(f"scheme {scheme.name}: {bits} bits for {name} have no kernel; allowed are {', '.join(map(str, WIDTHS))}")
        rows = max(LEAST_BLOCK_N, min(64, 1 << (outputs - 1).bit_length()))
        row_bytes = inputs if bits == 8 else -(-inputs // c.GROUP) * GROUP_BYTES
        bytes_ = next((size for size in (128, 64, 32) if row_bytes % size == 0), 64)
        shapes.append(LinearShape(name=name, outputs=outputs, inputs=inputs, bits=bits, block_n=block_n or rows, block_bytes=block_bytes or bytes_))
    return shapes


def kernel_functions() -> str:
    """Text of `FUNCTIONS` out of ``linear_w4a8.py``, sizes but M turned into constants."""
    text = KERNEL_FILE.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    parts = ["\n".join(lines[found[name].decorator_list[0].lineno - 1 : found[name].end_lineno]) for name in FUNCTIONS]
    if parts[-1].count(RUNTIME_SIZES) != 1:
        raise ValueError(f"{KERNEL_FILE.name}: linear_kernel no longer takes '{RUNTIME_SIZES}'")
    return "\n\n\n".join(parts).replace(RUNTIME_SIZES, CONSTANT_SIZES)


def generate(config: DecoderConfig, scheme: Scheme, shapes: list[LinearShape], *, version: str) -> str:
    """The module's text: the same for the same input. `shapes` are those of `linear_shapes`."""
    constants = "\n".join(f"{name} = tl.constexpr({value!r})" for name, value in CONSTANTS.items())
    table = "\n".join(f"    {shape.name!r}: {shape.text()}," for shape in shapes)
    return (
        TEMPLATE.replace("@VERSION@", repr(version)).replace("@MODEL@", repr(config.name)).replace("@SCHEME@", repr(scheme.name))
        .replace("@CONTRACT@", str(c.CONTRACT_VERSION)).replace("@CONSTANTS@", constants)
        .replace("@LINEARS@", table).replace("@FUNCTIONS@", kernel_functions())
    )  # fmt: skip


TEMPLATE = '''"""The linear layers of one model as Triton kernels. Written by `headrace kernels generate`; stands alone on torch and triton.

    y = linear(name, codes, mult, off, row_scale, q, s_a)

    name       a key of LINEARS
    codes      4 bits: uint8 [outputs, row_bytes], byte j of group g holds code 32 g + j in its low and 32 g + 16 + j in its high nibble
               (`pack` makes it of uint8 codes [outputs, inputs]); 8 bits: int8 [outputs, inputs]
    mult, off  uint8 and int16 [outputs, groups]; a weight is clip((code * mult + off + 4) >> 3, -127, 127). 8 bits: [outputs, 0]
    row_scale  float32 [outputs]
    q, s_a     int8 [M, inputs] and float32 [M], M any: one row by plain multiply-adds, more by matrix instructions
    y          float32 [M, outputs] = f32(sum) * (s_a * row_scale), each product rounded once and subnormals flushed

Sums are exact int32, so no result depends on blocks or on M. With TRITON_INTERPRET=1 set before the import it runs on CPU tensors.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

HEADRACE_VERSION = @VERSION@
MODEL = @MODEL@
SCHEME = @SCHEME@
CONTRACT_VERSION = @CONTRACT@
DOT_ROWS = 16
"""Rows of a batch tile where there is more than one row."""

@CONSTANTS@


@dataclass(frozen=True)
class Linear:
    """Sizes of one matrix as the kernel stores it, and the blocks of its kernel."""

    outputs: int
    inputs: int
    bits: int
    row_bytes: int
    groups: int
    block_n: int
    block_bytes: int


LINEARS = {
@LINEARS@
}


@FUNCTIONS@


def pack(name, codes):
    """uint8 codes [outputs, inputs] of 4 bits as the kernel reads them; int8 codes of 8 bits as they are."""
    shape = LINEARS[name]
    if shape.bits == 8:
        return codes.contiguous()
    padded = torch.nn.functional.pad(codes, (0, 32 * shape.groups - shape.inputs)).reshape(shape.outputs, shape.groups, 2, 16)
    return (padded[:, :, 0] | padded[:, :, 1] << 4).reshape(shape.outputs, shape.row_bytes).contiguous()


def linear(name, codes, mult, off, row_scale, q, s_a):
    """float32 [M, outputs]; see the head of this file. ValueError for shapes, types or devices that do not match."""
    shape = LINEARS[name]
    rows = q.shape[0] if q.dim() == 2 else 0
    for what, tensor, dtype, size in (
        ("codes", codes, torch.int8 if shape.bits == 8 else torch.uint8, (shape.outputs, shape.row_bytes)),
        ("mult", mult, torch.uint8, (shape.outputs, shape.groups)),
        ("off", off, torch.int16, (shape.outputs, shape.groups)),
        ("row_scale", row_scale, torch.float32, (shape.outputs,)),
        ("q", q, torch.int8, (max(rows, 1), shape.inputs)),
        ("s_a", s_a, torch.float32, (rows,)),
    ):
        if tensor.dtype != dtype or tuple(tensor.shape) != size or tensor.device != q.device or not tensor.is_contiguous():
            raise ValueError(f"{name}: {what} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; needed is contiguous {dtype} {size} on {q.device}")
    block_m = 1 if rows == 1 else DOT_ROWS
    y = torch.empty((rows, shape.outputs), dtype=torch.float32, device=q.device)
    linear_kernel[(triton.cdiv(shape.outputs, shape.block_n), triton.cdiv(rows, block_m))](
        q, s_a, codes, mult, off, row_scale, y, rows, shape.outputs, shape.inputs, shape.row_bytes, shape.groups,
        BITS=shape.bits, DOT=block_m > 1, BLOCK_M=block_m, BLOCK_N=shape.block_n, BLOCK_BYTES=shape.block_bytes,
    )
    return y
'''
