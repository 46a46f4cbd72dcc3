"""The float32 units in Verilator against two references: the contract's numpy twin, and exact Python integers.

The integer reference here shares no code and no method with the twin, which relies on the host's float unit.
"""

import os
import subprocess
from importlib.resources import files

import numpy as np
import pytest
from amaranth.hdl import Const

from headrace.hw import f32_add, f32_bits, f32_from_int, f32_mul
from headrace.hw.emit import to_verilog
from headrace.kernels.contract import f32, vectors
from headrace.sim.verilate import build_executable

pytestmark = pytest.mark.cosim

UNITS = {"mul": f32_mul.F32Mul, "add": f32_add.F32Add, "from_int32": f32_from_int.F32FromInt32}
NIGHTLY_PAIRS = 10_000_000
CHUNK = 1_000_000


# ---- the bench ----


def build(name: str):
    """The executable that runs unit `name` one operand set per cycle."""
    top = f"f32_{name}"
    shape = "UNARY" if name == "from_int32" else "BINARY"
    main = files("headrace.sim").joinpath("cpp/pipe_bench.cpp").read_text()
    return build_executable({f"{top}.v": to_verilog(UNITS[name](), top)}, top, main, ["-CFLAGS", f"-D{shape}"])


def simulate(executable, operands, folder, latency: int) -> np.ndarray:
    """Results (uint32) of the unit for `operands`, one or two uint32 vectors."""
    np.stack(operands, axis=1).astype(np.uint32).tofile(folder / "in.bin")
    subprocess.run([executable, str(latency), folder / "in.bin", folder / "out.bin"], check=True)
    return np.fromfile(folder / "out.bin", np.uint32)


def twin(name: str, operands) -> np.ndarray:
    """The contract's bits."""
    if name == "from_int32":
        return f32.bits(f32.from_int32(operands[0].view(np.int32)))
    operation = f32.mul if name == "mul" else f32.add
    return f32.bits(operation(*(f32.from_bits(x) for x in operands)))


def mismatches(got, want, operands) -> list[str]:
    """Up to five differing cases, as text."""
    bad = np.flatnonzero(got != want)
    return [f"{[hex(x[i]) for x in operands]} gave {got[i]:#010x}, not {want[i]:#010x}" for i in bad[:5]]


def integers(count: int, seed: int) -> np.ndarray:
    """uint32 patterns of int32: edges, ties of every length, and magnitudes spread over all binades."""
    rng = np.random.default_rng(seed)
    powers = np.arange(32, dtype=np.int64)
    edges = np.concatenate([(1 << powers) + d for d in (-1, 0, 1)])
    length = rng.integers(1, 32, count)
    values = rng.integers(0, 2**31, count) >> (31 - length)
    # Every fourth: 24 significant bits, then exactly a half.
    drop = np.maximum(length - 24, 0)
    values = np.where(rng.integers(0, 4, count) == 0, ((values >> drop) << drop) | ((1 << drop) >> 1), values)
    values = np.where(rng.integers(0, 2, count) == 0, values, -values)
    return np.concatenate([edges, -edges, [-(2**31)], values]).astype(np.int64).astype(np.uint32)


def operands_of(name: str, count: int, seed: int):
    if name == "from_int32":
        return (integers(count, seed),)
    return vectors.special_and_random_pairs(count, name, seed)


# ---- the exact reference ----


def exact_round(sign: int, magnitude: int, scale: int) -> int:
    """float32 bits of (-1)**sign * magnitude * 2**scale for magnitude > 0; Python integers only."""
    exponent = magnitude.bit_length() - 1 + scale
    if exponent < -126:
        return sign << 31
    drop = exponent - 23 - scale
    if drop <= 0:
        significand = magnitude << -drop
    else:
        significand, rest = divmod(magnitude, 1 << drop)
        significand += 2 * rest > 1 << drop or (2 * rest == 1 << drop and significand & 1)
    if significand == 1 << 24:
        significand, exponent = 1 << 23, exponent + 1
    if exponent > 127:
        return sign << 31 | 0x7F800000
    return sign << 31 | (exponent + 127) << 23 | (significand - (1 << 23))


def unpack(u: int) -> tuple[str, int, int, int]:
    """(kind, sign, significand, scale) of float32 bits, a subnormal being a zero."""
    sign, exponent, fraction = u >> 31, u >> 23 & 255, u & 0x7FFFFF
    if exponent == 255:
        return ("nan" if fraction else "inf"), sign, 0, 0
    return ("zero", sign, 0, 0) if exponent == 0 else ("number", sign, fraction | 1 << 23, exponent - 150)


def exact(name: str, a: int, b: int = 0) -> int:
    if name == "from_int32":
        value = a - (1 << 32) if a >> 31 else a
        return exact_round(int(value < 0), abs(value), 0) if value else 0
    (kind_a, sign_a, m_a, e_a), (kind_b, sign_b, m_b, e_b) = unpack(a), unpack(b)
    kinds = {kind_a, kind_b}
    if "nan" in kinds:
        return 0x7FC00000
    if name == "mul":
        sign = sign_a ^ sign_b
        if "inf" in kinds:
            return 0x7FC00000 if "zero" in kinds else sign << 31 | 0x7F800000
        return sign << 31 if "zero" in kinds else exact_round(sign, m_a * m_b, e_a + e_b)
    if "inf" in kinds:
        if kind_a == kind_b and sign_a != sign_b:
            return 0x7FC00000
        return (sign_a if kind_a == "inf" else sign_b) << 31 | 0x7F800000
    if kinds == {"zero"}:
        return (sign_a & sign_b) << 31
    scale = min(e_a, e_b) if kinds == {"number"} else e_a if kind_a == "number" else e_b
    total = 0
    for kind, sign, significand, own in ((kind_a, sign_a, m_a, e_a), (kind_b, sign_b, m_b, e_b)):
        if kind == "number":
            total += (-1) ** sign * (significand << (own - scale))
    return exact_round(int(total < 0), abs(total), scale) if total else 0


def exact_all(name: str, operands) -> np.ndarray:
    return np.array([exact(name, *case) for case in zip(*(x.tolist() for x in operands))], np.uint32)


# ---- tests ----


@pytest.mark.parametrize("name", UNITS)
def test_unit_equals_twin_and_exact_reference(name, tmp_path):
    seed = int(os.environ.get("HEADRACE_SEED", "20260101"))
    print(f"seed {seed}")
    operands = operands_of(name, 200_000, seed)
    got = simulate(build(name), operands, tmp_path, UNITS[name].LATENCY)
    assert not mismatches(got, twin(name, operands), operands)
    # All special values crossed come first; after them a share of the random ones, as Python is slow.
    part = [x[:60_000] for x in operands]
    assert not mismatches(got[:60_000], exact_all(name, part), part)


@pytest.mark.nightly
@pytest.mark.parametrize("name", UNITS)
def test_unit_equals_twin_ten_million(name, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"first seed {seed}")
    executable, done = build(name), 0
    while done < NIGHTLY_PAIRS:
        operands = operands_of(name, CHUNK, seed)
        got = simulate(executable, operands, tmp_path, UNITS[name].LATENCY)
        assert not mismatches(got, twin(name, operands), operands), f"seed {seed}"
        done, seed = done + len(got), seed + 1
    print(f"{name}: {done} results equal")


@pytest.mark.parametrize("name", UNITS)
def test_latency_is_the_stated_one(name, tmp_path):
    """One cycle earlier the results are others: the stated latency is exact, not an upper bound."""
    operands = operands_of(name, 1000, 1)
    got = simulate(build(name), operands, tmp_path, UNITS[name].LATENCY - 1)
    assert mismatches(got, twin(name, operands), operands)
    assert UNITS[name].INITIATION_INTERVAL == 1


def ties_up(lsb, guard, sticky):
    return guard


def truncates(lsb, guard, sticky):
    return Const(0, 1)


def pack_flushing_after_rounding(*, rounded, zero, **rest):
    return f32_bits.pack(rounded=rounded, zero=zero & ~((rounded[23:32] == 1) & ~rounded[:23].any()), **rest)


@pytest.mark.parametrize(
    "name, module, attribute, fault",
    [
        ("mul", f32_mul, "rounds_up", ties_up),
        ("mul", f32_mul, "pack", pack_flushing_after_rounding),
        ("add", f32_add, "rounds_up", ties_up),
        ("from_int32", f32_from_int, "rounds_up", truncates),
    ],
)
def test_planted_fault_is_caught(name, module, attribute, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(module, attribute, fault)
    operands = operands_of(name, 50_000, 7)
    got = simulate(build(name), operands, tmp_path, UNITS[name].LATENCY)
    bad = got != twin(name, operands)
    assert bad.any() and not bad.all()
    if fault is ties_up:
        # Only exact ties differ, by one unit in the last place.
        assert (got[bad] - twin(name, operands)[bad] == 1).all()
    if fault is pack_flushing_after_rounding:
        # What it lets through is 2**-126 of either sign.
        assert set(got[bad].tolist()) <= {0x00800000, 0x80800000}
        normal = [(x[bad] & 0x7F800000) != 0 for x in operands]
        assert (normal[0] & normal[1]).any()
