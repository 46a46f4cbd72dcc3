"""The Triton linear kernel against the contract, bit for bit: in the CPU interpreter, or on a device where there is one."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from headrace.kernels import check as kernels_check
from headrace.kernels.check import (
    INTERPRETER, backend, check_cases, extreme_case, first_difference, flush_case, random_case, reference, run_case,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu" if backend() == INTERPRETER else "cuda"


def fresh_seed() -> int:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return seed


@pytest.mark.parametrize("case", list(check_cases(seed=1, random_cases=2)), ids=lambda case: case.name)
def test_corner_or_fixed_case(case, device):
    assert first_difference(run_case(case, device), reference(case)) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("batch", [1, 3, 19])
def test_random_case(bits, batch, device):
    rng = np.random.default_rng(fresh_seed())
    case = random_case(rng, batch, int(rng.integers(1, 150)), int(rng.integers(1, 400)), bits)
    print(case.name)
    assert first_difference(run_case(case, device), reference(case)) is None


@pytest.mark.parametrize("blocks", [{"block_m": 1}, {"block_m": 32, "block_n": 16}, {"block_n": 128, "block_bytes": 32}, {"block_bytes": 128}])
def test_blocks_change_no_bit(blocks, device):
    case = random_case(np.random.default_rng(5), 5, 70, 130, 4)
    assert first_difference(run_case(case, device, **blocks), reference(case)) is None


def test_batch_equals_single_rows(device):
    case = random_case(np.random.default_rng(6), 4, 40, 96, 4)
    together = run_case(case, device)
    for row in range(4):
        alone = kernels_check.Case(name="row", weights=case.weights, q=case.q[row : row + 1], s_a=case.s_a[row : row + 1])
        assert first_difference(run_case(alone, device), together[row : row + 1]) is None


def test_corners_bite():
    """The corners reach what they are for: accumulators that conversion rounds, products on both sides of the flush, the one NaN."""
    extreme = extreme_case(4133, 8, 1)
    acc = extreme.q.astype(np.int64) @ extreme.weights.codes.astype(np.int64).T
    assert (acc.astype(np.float32).astype(np.int64) != acc).any()
    tiny = flush_case(np.random.default_rng(1), 4)
    with np.errstate(invalid="ignore"):
        plain = np.abs(tiny.s_a[:, None].astype(np.float64) * tiny.weights.row_scale)
    rounds_up = (plain < 2.0**-126) & (plain.astype(np.float32) == np.float32(2.0**-126))
    assert rounds_up.any() and (reference(tiny).view(np.uint32) == 0x7FC00000).any()


@pytest.mark.parametrize("blocks", [{"block_m": 8}, {"block_n": 48}, {"block_bytes": 16}])
def test_illegal_blocks_are_refused(blocks, device):
    with pytest.raises(ValueError, match="needed is a power of two"):
        run_case(random_case(np.random.default_rng(0), 2, 8, 8, 4), device, **blocks)


def test_planted_fault_is_found(device, monkeypatch):
    case = random_case(np.random.default_rng(7), 2, 20, 64, 4)
    got = run_case(case, device)
    case.weights.codes[11, 40] ^= 1
    assert case.weights.mult[11, 1] > 8  # so that the code counts
    found = first_difference(got, reference(case))
    assert found is not None and "first at [0, 11]" in found


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from headrace.kernels.linear_w4a8 import linear_kernel
pointers = dict(q_ptr="*i8", s_a_ptr="*fp32", codes_ptr="*u8", mult_ptr="*u8", off_ptr="*i16", s_w_ptr="*fp32", y_ptr="*fp32")
sizes = dict.fromkeys(("M", "N", "K", "row_bytes", "groups"), "i32")
dot = sys.argv[1] == "dot"
constants = dict(BITS=4, DOT=dot, BLOCK_M=16 if dot else 1, BLOCK_N=64, BLOCK_BYTES=64)
source = ASTSource(fn=linear_kernel, signature=pointers | sizes | dict.fromkeys(constants, "constexpr"), constexprs=constants)
print(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"])
"""


@pytest.mark.parametrize("how", ["dot", "plain"])
def test_compiled_code_keeps_the_contract(how, tmp_path):
    """Compiled for a device (none is needed): no float32 arithmetic that could be fused or flushed, integer sums on matrix units."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE, how], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    for instruction in ("fma.", "mul.f32", "mul.rn.f32", "add.f32", "add.rn.f32", "mul.ftz", "add.ftz"):
        assert instruction not in ran.stdout
    assert "cvt.rn.f32.s32" in ran.stdout and "cvt.rn.f32.f64" in ran.stdout
    assert ("mma.sync" in ran.stdout and "s32.s8.s8.s32" in ran.stdout) == (how == "dot")
