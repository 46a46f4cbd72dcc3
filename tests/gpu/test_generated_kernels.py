"""Generated kernels: they stand alone, and give the contract's bits for every linear of a model."""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from headrace.kernels.check import INTERPRETER, Case, backend, first_difference, random_weights, reference
from headrace.kernels.generate import CONSTANTS, generate, linear_shapes
from headrace.kernels.packing import pack_linear
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme

pytestmark = pytest.mark.gpu

EMBEDDED = model_config("embedded")
ODD = dataclasses.replace(EMBEDDED, width=80, heads=5, kv_heads=1, head_dim=16, ffn=104, vocab=70)
"""Rows that no block divides, groups that are not full."""


def write(folder, config, scheme, **blocks):
    shapes = linear_shapes(config, scheme, **blocks)
    path = folder / f"{config.width}_{scheme.name}.py"
    path.write_text(generate(config, scheme, shapes, version="test"))
    return path, shapes


def imported(path):
    backend()  # chooses the interpreter where there is no device
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case_of(shape, rows, rng):
    q = rng.integers(-127, 128, (rows, shape.inputs)).astype(np.int8)
    s_a = np.exp2(rng.uniform(-40, 10, rows)).astype(np.float32)
    return Case(name=shape.name, weights=random_weights(rng, shape.outputs, shape.inputs, shape.bits), q=q, s_a=s_a)


def result(module, case):
    device = "cpu" if backend() == INTERPRETER else "cuda"
    w = case.weights
    packed = pack_linear(w)
    codes, mult, off, row_scale, q, s_a = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (w.codes, packed.mult, packed.off, w.row_scale, case.q, case.s_a))
    with np.errstate(all="ignore"):  # the interpreter computes in numpy
        packed_codes = module.pack(case.name, codes)
        assert np.array_equal(packed_codes.cpu().numpy(), packed.codes)
        return module.linear(case.name, packed_codes, mult, off, row_scale, q, s_a).cpu().numpy()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("scheme", ["w4a8kv8", "w8a8kv8"])
@pytest.mark.parametrize("config", [EMBEDDED, ODD], ids=["embedded", "odd"])
def test_every_linear_equals_the_contract(config, scheme, rows, tmp_path):
    path, shapes = write(tmp_path, config, load_scheme(scheme))
    module = imported(path)
    rng = np.random.default_rng(rows)
    assert list(module.LINEARS) == ["q", "k", "v", "o", "gate", "up", "down", "lm_head"]
    for shape in shapes:
        case = case_of(shape, rows, rng)
        assert first_difference(result(module, case), reference(case)) is None, shape.name


def test_blocks_are_the_users_and_change_no_bit(tmp_path):
    path, shapes = write(tmp_path, ODD, load_scheme("w4a8kv8"), block_n=32, block_bytes=32)
    module = imported(path)
    assert {(linear.block_n, linear.block_bytes) for linear in module.LINEARS.values()} == {(32, 32)}
    case = case_of(shapes[6], 5, np.random.default_rng(9))
    assert first_difference(result(module, case), reference(case)) is None


def test_a_wrong_tensor_is_named(tmp_path):
    path, shapes = write(tmp_path, EMBEDDED, load_scheme("w4a8kv8"))
    case = case_of(shapes[0], 2, np.random.default_rng(1))
    with pytest.raises(ValueError, match="q: q is torch.int8"):
        result(imported(path), dataclasses.replace(case, q=np.ascontiguousarray(case.q[:, :-1])))


def test_stands_alone(tmp_path):
    """Imported where no headrace is."""
    path, _ = write(tmp_path, EMBEDDED, load_scheme("w4a8kv8"))
    code = "import sys; sys.modules['headrace'] = None; import runpy; m = runpy.run_path(sys.argv[1]); print(m['MODEL'], m['SCHEME'], len(m['LINEARS']))"
    ran = subprocess.run([sys.executable, "-c", code, str(path)], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.stdout == "embedded w4a8kv8 8\n", ran.stderr


def test_constants_are_the_kernels():
    backend()
    from headrace.kernels import linear_w4a8

    assert {name: getattr(linear_w4a8, name).value for name in CONSTANTS} == CONSTANTS


COMPILE = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("generated", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["generated"] = module
spec.loader.exec_module(module)
shape = module.LINEARS["down"]
pointers = dict(q_ptr="*i8", s_a_ptr="*fp32", codes_ptr="*u8", mult_ptr="*u8", off_ptr="*i16", s_w_ptr="*fp32", y_ptr="*fp32")
constants = dict(
    N=shape.outputs, K=shape.inputs, row_bytes=shape.row_bytes, groups=shape.groups, BITS=shape.bits, DOT=True, BLOCK_M=16, BLOCK_N=shape.block_n,
    BLOCK_BYTES=shape.block_bytes,
)
source = ASTSource(fn=module.linear_kernel, signature=pointers | {"M": "i32"} | dict.fromkeys(constants, "constexpr"), constexprs=constants)
print(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"])
"""


def test_compiles_for_a_device_with_its_sizes_folded(tmp_path):
    """No device is needed: of the sizes only M is left as an argument, and sums are int32 on matrix units."""
    path, _ = write(tmp_path, EMBEDDED, load_scheme("w4a8kv8"))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE, str(path)], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    header = ran.stdout[ran.stdout.index(".entry") : ran.stdout.index("{", ran.stdout.index(".entry"))]
    assert header.count(".param .u32") == 1
    assert "mma.sync" in ran.stdout and "s32.s8.s8.s32" in ran.stdout
