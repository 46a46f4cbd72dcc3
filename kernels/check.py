"""Equality of the Triton kernels with the contract, and their speed. Imports torch and triton only when called.

The contract side is numpy (`kernels.contract`), written without the kernels. A case is a matrix, a batch and its scales.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.kernels.contract import constants as c
from headrace.kernels.contract.functions import scale
from headrace.kernels.contract.integers import decode_codes, dot_int8
from headrace.kernels.packing import WIDTHS, pack_linear
from headrace.models.errors import UserError
from headrace.models.quantise import QuantisedLinear

INTERPRETER = "CPU interpreter"
_TRUE = ("1", "true", "yes", "on", "y")
TINY = np.array([0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x1FFFFFFF, 0x20000000, 0x00000000], np.uint32).view(np.float32)
"""Scales whose products are subnormal, at the edge of the flush, or zero: least and largest subnormal, 2**-126 and the next, two about
2**-63, +0."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One multiplication: weights [N, K], q int8 [M, K], s_a float32 [M]."""

    name: str
    weights: QuantisedLinear
    q: np.ndarray
    s_a: np.ndarray


def backend() -> str:
    """`INTERPRETER`, or the name of the CUDA device. Decides, once per process, before the kernels are imported.

    Raises UserError without torch or triton. Triton reads TRITON_INTERPRET when a kernel is defined, so it is set here where there is
    no device.
    """
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"kernels: {name} is not installed; Triton kernels need the gpu extra: pip install -e '.[gpu]' in the clone")
    import torch

    asked = os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE
    if not asked and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if not asked and "headrace.kernels.linear_w4a8" in sys.modules:
        raise RuntimeError("the kernels were compiled for a device before the interpreter was chosen")
    os.environ["TRITON_INTERPRET"] = "1"
    return INTERPRETER


def reference(case: Case) -> np.ndarray:
    """float32 [M, N] by the contract."""
    w = case.weights
    grid = w.codes if w.bits == 8 else decode_codes(w.codes, w.mult, w.off, w.bits)
    return scale(dot_int8(case.q, grid), case.s_a[:, None], w.row_scale)


def random_weights(rng: np.random.Generator, outputs: int, inputs: int, bits: int) -> QuantisedLinear:
    """Codes and metadata over their whole range (so that the map clips on both sides), scales over many binades."""
    row_scale = np.exp2(rng.uniform(-40, 10, outputs)).astype(np.float32)
    if bits == 8:
        none = np.zeros((outputs, 0))
        codes = rng.integers(-c.INT8_MAX, c.INT8_MAX + 1, (outputs, inputs)).astype(np.int8)
        return QuantisedLinear(
            codes=codes, mult=none.astype(np.uint8), off=none.astype(np.int16), shift=0, bits=8, row_scale=row_scale
        )
    groups = -(-inputs // c.GROUP)
    return QuantisedLinear(
        codes=rng.integers(0, 2**bits, (outputs, inputs)).astype(np.uint8),
        mult=rng.integers(0, c.MULT_MAX + 1, (outputs, groups)).astype(np.uint8),
        off=rng.integers(c.OFF_MIN, c.OFF_MAX + 1, (outputs, groups)).astype(np.int16),
        shift=c.CODE_SHIFT[bits], bits=bits, row_scale=row_scale,
    )  # fmt: skip


def random_case(rng: np.random.Generator, batch: int, outputs: int, inputs: int, bits: int) -> Case:
    q = rng.integers(-c.INT8_MAX, c.INT8_MAX + 1, (batch, inputs)).astype(np.int8)
    s_a = np.exp2(rng.uniform(-40, 10, batch)).astype(np.float32)
    name = f"{bits} bits, {batch} x {outputs} x {inputs}"
    return Case(name=name, weights=random_weights(rng, outputs, inputs, bits), q=q, s_a=s_a)


def extreme_case(inputs: int, bits: int, sign: int) -> Case:
    """Every product is 127 * 127 of one sign: the largest accumulators, far past 2**24 where conversion must round."""
    rng = np.random.default_rng(inputs)
    weights = random_weights(rng, 3, inputs, bits)
    if bits == 8:
        codes = np.full_like(weights.codes, sign * c.INT8_MAX)
        mult, off = weights.mult, weights.off
    else:
        codes = np.full_like(weights.codes, 15)
        mult, off = np.full_like(weights.mult, c.MULT_MAX), np.full_like(weights.off, c.OFF_MAX if sign > 0 else c.OFF_MIN)
        if sign < 0:
            codes[:], mult[:] = 0, 0
    codes[1, 0] = 0  # odd accumulators beside even ones
    weights = QuantisedLinear(
        codes=codes, mult=mult, off=off, shift=weights.shift, bits=bits, row_scale=np.array([1.0, 1.0, 2.0**-126], np.float32)
    )
    q = np.full((2, inputs), c.INT8_MAX, np.int8)
    q[1, -1] = 1
    return Case(name=f"{bits} bits, largest sums, sign {sign:+d}, K {inputs}", weights=weights, q=q, s_a=np.array([1.0, 3.0], np.float32))


def flush_case(rng: np.random.Generator, bits: int) -> Case:
    """Every pair of tiny scales and small accumulators: both products meet the flush."""
    scales = np.concatenate([TINY, -TINY, np.array([1.0, 2.0**-60, np.inf], np.float32)])
    weights = random_weights(rng, len(scales), 32, bits)
    weights = QuantisedLinear(
        codes=weights.codes, mult=weights.mult, off=weights.off, shift=weights.shift, bits=bits, row_scale=scales
    )
    q = np.zeros((len(scales), 32), np.int8)
    q[:, 0] = rng.integers(-1, 2, len(scales))
    return Case(name=f"{bits} bits, tiny scales", weights=weights, q=q, s_a=scales)


def check_cases(seed: int, random_cases: int = 8) -> Iterator[Case]:
    """Corners, then random shapes (few enough elements for the interpreter)."""
    rng = np.random.default_rng(seed)
    for bits in WIDTHS:
        yield flush_case(rng, bits)
        for sign in (1, -1):
            yield extreme_case(4133, bits, sign)
        for batch, outputs, inputs in ((1, 1, 1), (1, 64, 64), (2, 65, 33), (17, 16, 31)):
            yield random_case(rng, batch, outputs, inputs, bits)
    for _ in range(random_cases):
        batch, outputs, inputs = int(rng.integers(1, 40)), int(rng.integers(1, 200)), int(rng.integers(1, 600))
        yield random_case(rng, batch, outputs, inputs, int(rng.choice(WIDTHS)))


def run_case(case: Case, device: str, **blocks: int) -> np.ndarray:
    """float32 [M, N] by the kernel on `device`; `blocks` as in `linear_w4a8.linear`."""
    import torch

    from headrace.kernels.linear_w4a8 import linear, to_device

    weights = to_device(pack_linear(case.weights), device)
    with np.errstate(all="ignore"):  # the interpreter computes in numpy
        y = linear(weights, torch.from_numpy(case.q).to(device), torch.from_numpy(case.s_a).to(device), **blocks)
    return y.cpu().numpy()


def first_difference(got: np.ndarray, expected: np.ndarray) -> str | None:
    """Where and how two float32 arrays differ in bits; None where they do not."""
    got_bits, expected_bits = np.asarray(got, np.float32).view(np.uint32), np.asarray(expected, np.float32).view(np.uint32)
    if got_bits.shape != expected_bits.shape:
        return f"shape {got_bits.shape}, expected {expected_bits.shape}"
    wrong = np.argwhere(got_bits != expected_bits)
    if not len(wrong):
        return None
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {got_bits.size} differ, first at {list(at)}: 0x{got_bits[at]:08X}, expected 0x{expected_bits[at]:08X}"


def check(seed: int, done: Callable[[], None] = lambda: None) -> list[dict]:
    """Run all cases: ``[{"case", "results", "equal", "difference"}]``."""
    device = "cpu" if backend() == INTERPRETER else "cuda"
    rows = []
    for case in check_cases(seed):
        expected = reference(case)
        difference = first_difference(run_case(case, device), expected)
        rows.append({"case": case.name, "results": expected.size, "equal": difference is None, "difference": difference})
        done()
    return rows


def bench(shapes: list[tuple[str, int, int]], bits: int, batch: int, seed: int) -> list[dict]:
    """Median time of the kernel on a device for named [N, K]: ``[{"name", "outputs", "inputs", "time_s", "bytes", "bytes_per_s"}]``.

    Measured with device events over repeated launches, the cache flushed between them; each result is first held to the contract.
    Raises UserError without a device.
    """
    if backend() == INTERPRETER:
        raise UserError("kernels bench: no CUDA device is present (or TRITON_INTERPRET is set); allowed is a machine with one")
    import torch
    import triton.testing

    from headrace.kernels.linear_w4a8 import linear, to_device

    rng = np.random.default_rng(seed)
    rows = []
    for name, outputs, inputs in shapes:
        case = random_case(rng, batch, outputs, inputs, bits)
        difference = first_difference(run_case(case, "cuda"), reference(case))
        if difference:
            raise RuntimeError(f"kernel of {name} is not equal to the contract: {difference}")
        packed = pack_linear(case.weights)
        weights = to_device(packed, "cuda")
        q, s_a = torch.from_numpy(case.q).cuda(), torch.from_numpy(case.s_a).cuda()
        time_s = triton.testing.do_bench(lambda: linear(weights, q, s_a), return_mode="median") * 1e-3
        bytes_ = packed.nbytes + case.q.nbytes + case.s_a.nbytes + 4 * batch * outputs
        rows.append(
            {"name": name, "outputs": outputs, "inputs": inputs, "time_s": time_s, "bytes": bytes_, "bytes_per_s": bytes_ / time_s}
        )
    return rows
