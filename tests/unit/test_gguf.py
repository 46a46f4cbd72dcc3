"""GGUF import: against the gguf package as an independent writer and dequantiser, and with files that lie."""

import struct

import gguf
import numpy as np
import pytest

from headrace.models.errors import UserError
from headrace.models.formats.gguf_file import GgufFile
from headrace.models.formats.gguf_decoder import half_split_rows, load_gguf, read_gguf_config
from headrace.models.quantise import quantise_model
from headrace.models.scheme import load_scheme

SEED = 7
WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
TOKENS = ["<|endoftext|>", "<s>", *"abcdehlorw", "\u0120", "he", "ll", "hell", "hello", "\u0120w", *"123"]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The permutation that converters to GGUF apply to q and k: pair i moves from (i, i + d/2) to (2i, 2i + 1)."""
    n, k = weight.shape
    return weight.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k)


def q4_1_bytes(rng, n, k) -> np.ndarray:
    blocks = np.zeros((n, k // 32, 20), np.uint8)
    scales = np.stack([rng.uniform(-0.02, 0.02, (n, k // 32)), rng.uniform(-0.2, 0.2, (n, k // 32))], axis=-1)
    blocks[:, :, :4] = scales.astype(np.float16).view(np.uint8)
    blocks[:, :, 4:] = rng.integers(0, 256, (n, k // 32, 16))
    return blocks.reshape(n, -1)


def write(path, *, fields=None, extra=None, drop=(), linear="Q4_1"):
    """A whole tiny llama model. Returns tensor name -> (raw data, type)."""
    rng = np.random.default_rng(SEED)
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": FFN, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "context_length": 256,
    } | {k: v for k, v in (fields or {}).items() if not k.startswith(("tokenizer", "rope.scaling"))}
    for key, value in numbers.items():
        if value is not None:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    if "rope.scaling.type" in (fields or {}):
        writer.add_string("llama.rope.scaling.type", fields["rope.scaling.type"])
    writer.add_string("tokenizer.ggml.model", (fields or {}).get("tokenizer.model", "gpt2"))
    writer.add_string("tokenizer.ggml.pre", (fields or {}).get("tokenizer.pre", "smollm"))
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_array("tokenizer.ggml.merges", ["h e", "l l", "he ll", "hell o", "\u0120 w"])
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_bool("tokenizer.ggml.add_bos_token", (fields or {}).get("tokenizer.add_bos", False))
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm": (WIDTH,), f"blk.{i}.ffn_norm": (WIDTH,), f"blk.{i}.attn_q": (64, WIDTH),
            f"blk.{i}.attn_k": (32, WIDTH), f"blk.{i}.attn_v": (32, WIDTH), f"blk.{i}.attn_output": (WIDTH, 64),
            f"blk.{i}.ffn_gate": (FFN, WIDTH), f"blk.{i}.ffn_up": (FFN, WIDTH), f"blk.{i}.ffn_down": (WIDTH, FFN),
        }
    stored = {}
    for name, shape in (shapes | (extra or {})).items():
        if name in drop:
            continue
        kind = gguf.GGMLQuantizationType
        if len(shape) == 1:
            data, dtype = rng.normal(size=shape).astype(np.float32), kind.F32
        elif name == "token_embd":
            data, dtype = gguf.quantize(rng.normal(size=shape).astype(np.float32), kind.Q8_0), kind.Q8_0
        elif linear == "Q4_1":
            data, dtype = q4_1_bytes(rng, *shape), kind.Q4_1
        elif linear == "F16":
            data, dtype = rng.normal(size=shape).astype(np.float16), kind.F16
        else:
            data, dtype = gguf.quantize(rng.normal(size=shape).astype(np.float32), kind[linear]), kind[linear]
        writer.add_tensor(name + ".weight", data, raw_dtype=dtype)
        stored[name] = (data, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize("linear", ["Q4_1", "Q4_0", "Q5_0", "Q8_0", "F16", "BF16"])
def test_values_equal_the_gguf_packages(path, linear):
    stored = write(path, linear=linear)
    model = load_gguf(path)
    assert model.config.tie_embeddings and model.config.ffn == FFN and model.config.head_dim == HEAD_DIM
    assert bool(model.codes) == (linear in ("Q4_0", "Q4_1"))

    def reference(name):
        data, dtype = stored[name]
        return gguf.dequantize(data, dtype).astype(np.float32)

    assert np.array_equal(model.weights["embedding"], reference("token_embd"))
    assert np.array_equal(model.weights["layers.1.attn_norm"], reference("blk.1.attn_norm"))
    for ours, theirs in (("v", "attn_v"), ("o", "attn_output"), ("down", "ffn_down"), ("gate", "ffn_gate")):
        assert np.array_equal(model.weights[f"layers.1.{ours}"], reference(f"blk.1.{theirs}")), f"seed {SEED}"
    for ours, theirs, heads in (("q", "attn_q", HEADS), ("k", "attn_k", KV_HEADS)):
        half_split = model.weights[f"layers.0.{ours}"]
        assert np.array_equal(interleaved(half_split, heads), reference(f"blk.0.{theirs}"))
        assert not np.array_equal(half_split, reference(f"blk.0.{theirs}"))


@pytest.mark.parametrize("linear", ["Q4_1", "Q4_0"])
def test_codes_follow_their_rows(path, linear):
    write(path, linear=linear)
    model = load_gguf(path)
    for name in ("layers.0.q", "layers.1.k", "layers.1.down"):
        assert np.array_equal(model.codes[name].values(), model.weights[name])
    assert sorted(half_split_rows(2, 8)) == list(range(16))
    q = quantise_model(model, load_scheme("w4a8kv8"))
    step = np.repeat(model.codes["layers.0.q"].d, 32, axis=1)
    expected = np.where(step < 0, 15 - model.codes["layers.0.q"].codes, model.codes["layers.0.q"].codes)
    assert (step < 0).any() and np.array_equal(q.layers[0]["q"].codes, expected)


def test_tokenizer(path):
    write(path)
    tokenizer = load_gguf(path).tokenizer
    assert [TOKENS[t] for t in tokenizer.encode("hello world")] == ["hello", "\u0120w", "o", "r", "l", "d"]
    assert [TOKENS[t] for t in tokenizer.encode("a123")] == ["a", "1", "2", "3"]
    assert tokenizer.decode(tokenizer.encode("hello hello 12")) == "hello hello 12"
    assert not tokenizer.add_bos
    write(path, fields={"tokenizer.add_bos": True})
    tokenizer = load_gguf(path).tokenizer
    assert tokenizer.add_bos and tokenizer.encode("he")[0] == 1 and tokenizer.decode(tokenizer.encode("he")) == "he"


def test_untied_head(path):
    write(path, extra={"output": (len(TOKENS), WIDTH)})
    model = load_gguf(path)
    assert not model.config.tie_embeddings and model.weights["lm_head"].shape == (len(TOKENS), WIDTH)


def test_truncation_anywhere_is_one_clear_line(path, tmp_path):
    write(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(SEED)
    cut = tmp_path / "cut.gguf"
    lengths = {0, 1, 3, 4, 8, 20, len(whole) - 1, *rng.integers(24, len(whole) - 32, 150).tolist()}
    for length in sorted(lengths):
        cut.write_bytes(whole[:length])
        with pytest.raises(UserError) as caught:
            load_gguf(cut)
        assert "cut.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_damage_anywhere_never_escapes(path, tmp_path):
    """Random bytes in the header: either still a model, or a UserError; no other exception, no large allocation."""
    write(path)
    whole = bytearray(path.read_bytes())
    header = whole.index(b"blk.1.ffn_down.weight") + 60
    rng = np.random.default_rng(SEED)
    hurt = tmp_path / "hurt.gguf"
    for _ in range(400):
        data = bytearray(whole)
        for at in rng.integers(4, header, rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        hurt.write_bytes(data)
        try:
            model = load_gguf(hurt)
            model.weights["layers.0.q"]
        except UserError as error:
            assert "\n" not in str(error)


def patched(path, find: bytes, at: int, value: bytes):
    data = bytearray(path.read_bytes())
    start = data.index(find) + len(find) + at
    data[start : start + len(value)] = value
    path.write_bytes(data)


def test_lying_counts_are_refused_before_memory_is_taken(path):
    write(path)
    data = bytearray(path.read_bytes())
    data[8:16] = struct.pack("<Q", 1 << 60)
    path.write_bytes(data)
    with pytest.raises(UserError, match="tensor count"):
        GgufFile(path)
    write(path)
    patched(path, b"tokenizer.ggml.tokens", 8, struct.pack("<Q", 1 << 50))
    with pytest.raises(UserError, match="tokenizer.ggml.tokens claims"):
        GgufFile(path)
    write(path)
    patched(path, b"blk.0.ffn_up.weight", 4, struct.pack("<Q", 1 << 40))
    with pytest.raises(UserError, match="blk.0.ffn_up.weight claims bytes"):
        GgufFile(path)


def test_unsupported_tensor_type_is_named(path):
    write(path)
    patched(path, b"blk.0.ffn_up.weight", 4 + 16, struct.pack("<I", 15))
    with pytest.raises(UserError, match="blk.0.ffn_up.weight has type Q8_K; allowed are F32, F16, BF16, Q4_0, Q4_1"):
        load_gguf(path)


def test_block_scale_that_is_not_finite(path):
    stored = write(path)
    data = path.read_bytes()
    block = stored["blk.0.ffn_up"][0].tobytes()
    start = data.index(block)
    path.write_bytes(data[:start] + np.float16(np.inf).tobytes() + data[start + 2 :])
    with pytest.raises(UserError, match="not finite"):
        load_gguf(path).codes["layers.0.up"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"embedding_length": 72}, "shape"), ({"attention.head_count": 5}, "multiple of llama.attention.head_count"),
        ({"attention.head_count": 0}, "head_count"), ({"expert_count": 8}, "llama.expert_count = 8; allowed is 0"),
        ({"block_count": 3}, "blk.2.attn_norm.weight is missing"), ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 1}, "not part of this llama model"), ({"rope.dimension_count": 8}, "rope.dimension_count = 8"),
        ({"rope.scaling.type": "yarn"}, "scaling.type = 'yarn'"), ({"tokenizer.model": "bert"}, "allowed are 'gpt2'"),
        ({"tokenizer.pre": "default"}, "'default' is not supported; allowed: gpt-2, llama-bpe, qwen2, smollm"), ({"block_count": 1 << 31}, "layers"),
    ],
)
def test_fields_that_do_not_fit_are_named(path, fields, message):
    write(path, fields=fields)
    with pytest.raises(UserError, match=message):
        load_gguf(path)


def test_missing_and_extra_tensors(path):
    write(path, drop=("blk.1.attn_v",))
    with pytest.raises(UserError, match="blk.1.attn_v.weight is missing"):
        load_gguf(path)
    write(path, extra={"rope_factors_long": (8,)})
    with pytest.raises(UserError, match="rope_factors_long.weight"):
        load_gguf(path)
    assert read_gguf_config(path).layers == LAYERS


def test_other_files_and_architectures(tmp_path, path):
    (tmp_path / "x.gguf").write_bytes(b"not a model at all")
    with pytest.raises(UserError, match="is not a GGUF file"):
        load_gguf(tmp_path / "x.gguf")
    with pytest.raises(UserError, match="cannot be read"):
        load_gguf(tmp_path / "absent.gguf")
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match="general.architecture = 'mamba'; allowed are llama, qwen2, qwen3, gpt2, gemma2, gemma3"):
        load_gguf(path)
