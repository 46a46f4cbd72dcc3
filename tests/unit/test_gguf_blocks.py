"""Every block type against the gguf package, bit for bit: random bytes, the package's own quantisations, and whole tensors of a file."""

import tracemalloc

import gguf
import numpy as np
import pytest

from headrace.models.errors import UserError
from headrace.models.formats.gguf_blocks import BLOCK_TYPES
from headrace.models.formats.gguf_file import TENSOR_TYPES, GgufFile
from headrace.models.model import GroupCodes
from headrace.models.registry import model_entry, weights_path

SEED = 41
NAMES = {block.name: number for number, block in BLOCK_TYPES.items()}
QUANTISABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # those that the gguf package can write


def random_blocks(rng, number: int, blocks: int) -> np.ndarray:
    """Random bytes, uint8 [blocks, bytes of a block], whose float16 scales are finite: subnormal, zero and negative ones among them."""
    block = BLOCK_TYPES[number]
    raw = rng.integers(0, 256, (blocks, block.block_bytes), dtype=np.uint8)
    for at in block.scales:
        half = raw[:, at : at + 2].copy().view("<u2")
        half[(half >> 10 & 31) == 31] &= 0x83FF
        raw[:, at : at + 2] = half.view(np.uint8)
    return raw


def write(path, tensors: dict[str, tuple[np.ndarray, int]]) -> None:
    writer = gguf.GGUFWriter(path, "none")
    for name, (data, number) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.dtype == theirs.dtype == np.float32 and np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_numbers_and_sizes_are_those_of_ggml():
    for number, (name, elements, block_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, elements, block_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks(name):
    rng = np.random.default_rng(SEED)
    raw = random_blocks(rng, NAMES[name], 2000)
    ours = BLOCK_TYPES[NAMES[name]].values(raw.reshape(-1))
    assert same_bits(ours, gguf.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1)), f"seed {SEED}"


@pytest.mark.parametrize("name", QUANTISABLE)
def test_quantised_weights_come_back(name):
    rng = np.random.default_rng(SEED)
    weight = rng.normal(size=(40, 512)).astype(np.float32)
    raw = gguf.quantize(weight, gguf.GGMLQuantizationType[name])
    ours = BLOCK_TYPES[NAMES[name]].values(raw.reshape(-1)).reshape(weight.shape)
    assert same_bits(ours, gguf.dequantize(raw, gguf.GGMLQuantizationType[name]))
    # A uniform grid of 2**bits points over a block's range errs by at most about a step: 8 sigma / 2**bits here, float16 scales included.
    assert np.abs(ours - weight).max() < 8.5 / 2 ** int(name[1]), f"seed {SEED}"


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", *NAMES])
def test_tensors_of_a_file(name, tmp_path):
    rng = np.random.default_rng(SEED)
    kind = gguf.GGMLQuantizationType[name]
    if name in NAMES:
        raw = random_blocks(rng, NAMES[name], 12).reshape(6, -1)
    else:
        raw = gguf.quantize(rng.normal(size=(6, 256)).astype(np.float32), kind)
    write(tmp_path / "x.gguf", {"t": (raw, kind.value)})
    file = GgufFile(tmp_path / "x.gguf")
    theirs = gguf.dequantize(raw, kind)
    assert file.tensors["t"].shape == theirs.shape and same_bits(file.values("t"), theirs), f"seed {SEED}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_scales_that_are_not_finite_are_refused(name, scale, tmp_path):
    block = BLOCK_TYPES[NAMES[name]]
    for at in block.scales:
        raw = random_blocks(np.random.default_rng(SEED), NAMES[name], 3)
        raw[1, at : at + 2] = np.array([scale], "<f2").view(np.uint8)
        write(tmp_path / "x.gguf", {"t": (raw, NAMES[name])})
        with pytest.raises(UserError, match="tensor t holds a block scale that is not finite"):
            GgufFile(tmp_path / "x.gguf").values("t")


def test_codes_of_q4_0_are_those_of_a_map_with_an_offset(tmp_path):
    raw = random_blocks(np.random.default_rng(SEED), NAMES["Q4_0"], 64).reshape(8, -1)
    write(tmp_path / "x.gguf", {"t": (raw, NAMES["Q4_0"])})
    file = GgufFile(tmp_path / "x.gguf")
    codes = file.group_codes("t")
    assert isinstance(codes, GroupCodes) and codes.codes.shape == (8, 256) and codes.d.shape == codes.m.shape == (8, 8)
    assert np.array_equal(codes.values(), file.values("t")), f"seed {SEED}"


def test_memory_stays_near_the_result():
    raw = random_blocks(np.random.default_rng(SEED), NAMES["Q4_K"], 16384).reshape(-1)
    tracemalloc.start()
    result = BLOCK_TYPES[NAMES["Q4_K"]].values(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.nbytes == 1 << 24 and peak < 1.6 * result.nbytes


@pytest.mark.nightly
@pytest.mark.skipif(weights_path(model_entry("gemma3-270m")) is None, reason="run `headrace models pull gemma3-270m` first")
def test_every_tensor_of_gemma():
    path = weights_path(model_entry("gemma3-270m"))
    file, theirs = GgufFile(path), {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(file.tensors) == len(theirs) == 236 and {t.type_name for t in file.tensors.values()} == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
    for name, tensor in theirs.items():
        ours = file.values(name)
        rows = slice(0, 4096)  # of the embedding's 262,144
        assert same_bits(ours[rows].reshape(-1), gguf.dequantize(tensor.data[rows], tensor.tensor_type).reshape(-1)), name
