"""GGUF files of every architecture that is built: written with the gguf package as converters write them (its writer names the fields,
its map the tensors), and equal to the Hugging Face folder that they come from."""

import dataclasses
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hf_families import CASES, stored_weights, tokens

from headrace.models.errors import UserError
from headrace.models.formats.gguf_decoder import ARCHITECTURES, load_gguf, read_gguf_config
from headrace.models.formats.hf_families import config_of
from headrace.models.quantise import quantise_model
from headrace.models.scheme import load_scheme
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor

LOGITS = Path(__file__).parents[1] / "data" / "hf_logits"
ARCHITECTURE_OF = {
    "llama": "llama", "llama-biases-tied": "llama", "llama3-rope": "llama", "llama-linear-rope": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "gpt2": "gpt2", "gpt2-untied": "gpt2", "gemma2": "gemma2", "gemma3": "gemma3",
}  # fmt: skip
CHANGES = {"gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16}}
"""A GGUF has no field for this scalar: all sizes but the 27B have the head's."""


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The permutation of q and k, and of their biases, in files of the llama architecture."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def document_of(name: str) -> dict:
    document = json.loads((LOGITS / f"{name}.json").read_text())
    return document | {"config": document["config"] | CHANGES.get(name, {})}


def write(path: Path, name: str, *, fields: dict | None = None, drop: tuple[str, ...] = (), extra: dict | None = None) -> None:
    """What a converter makes of a case. `fields` are added or, where the value is None, left out."""
    document, arch = document_of(name), ARCHITECTURE_OF[name]
    config = config_of(path, document["config"], name)
    names = gguf.get_tensor_name_map({value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[arch], config.layers)
    keys = {
        "context_length": config.max_positions, "embedding_length": config.width, "block_count": config.layers,
        "feed_forward_length": config.ffn, "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
        "attention.layer_norm_epsilon" if arch == "gpt2" else "attention.layer_norm_rms_epsilon": float(config.rms_eps),
    }
    if arch != "gpt2":
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim, "rope.freq_base": float(config.rope_theta)}
    if config.window is not None:
        keys["attention.sliding_window"] = config.window
    if name == "llama-linear-rope":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    for key, value in (("attn_logit_softcapping", config.score_cap), ("final_logit_softcapping", config.logit_cap)):
        keys |= {key: value} if value is not None else {}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (keys | (fields or {})).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}.get(type(value))
        if add is not None:
            add(f"{arch}.{key}", value)
    tensors = {}
    for stored, values in stored_weights(CASES[name][0], document["tensors"]).items():
        if arch == "llama" and ".q_proj." in stored or arch == "llama" and ".k_proj." in stored:
            values = interleaved(values, config.heads if ".q_proj." in stored else config.kv_heads)
        if arch.startswith("gemma") and stored.endswith("norm.weight"):
            values = values + np.float32(1)
        if arch == "gpt2" and ".c_" in stored and stored.endswith(".weight"):
            values = values.T.copy()
        tensors[names.get_name(stored, try_suffixes=(".weight", ".bias"))] = values
    if name == "llama3-rope":
        tensors["rope_freqs.weight"] = np.array(config.rope_divisors, np.float32)
    for tensor, values in (tensors | (extra or {})).items():
        if tensor not in drop:
            writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_a_file_is_the_folder_that_it_comes_from(tmp_path, name):
    write(tmp_path / "x.gguf", name)
    model, expected = load_gguf(tmp_path / "x.gguf"), config_of(tmp_path, document_of(name)["config"], name)
    same = {"name": name, "dtype": expected.dtype, "bos_token_id": expected.bos_token_id}
    close = {field: getattr(expected, field) for field in ("rms_eps", "rope_divisors")}  # float32 in the file
    assert np.allclose(model.config.rope_divisors, expected.rope_divisors, rtol=1e-6) and np.isclose(model.config.rms_eps, expected.rms_eps)
    assert dataclasses.replace(model.config, **same, **close) == expected
    logits = {int(at): np.array(row) for at, row in document_of(name)["logits"].items()}
    got = FloatExecutor.from_model(model).prefill(tokens(), all_positions=True)
    if name not in CHANGES:
        assert all(np.allclose(got[at], row, rtol=1e-4, atol=1e-4) for at, row in logits.items())
    golden = GoldenExecutor(quantise_model(model, load_scheme("w8a8kv8"))).prefill(tokens().tolist(), all_positions=True)
    assert np.corrcoef(golden.ravel(), got.ravel())[0, 1] > 0.998


def test_every_architecture_is_here():
    assert set(ARCHITECTURE_OF.values()) == set(ARCHITECTURES)


def test_sizes_that_only_their_layers_tell(tmp_path):
    write(tmp_path / "x.gguf", "gemma2", fields={"block_count": 46})
    assert read_gguf_config(tmp_path / "x.gguf").score_factor == (48 / 4) ** -0.5
    write(tmp_path / "x.gguf", "gemma3", fields={"attention.sliding_window": None})
    plain = read_gguf_config(tmp_path / "x.gguf")
    assert (plain.window, plain.window_layers) == (None, ())
    write(tmp_path / "x.gguf", "gemma2", fields={"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention.sliding_window": None})
    absent = read_gguf_config(tmp_path / "x.gguf")
    assert (absent.score_cap, absent.logit_cap, absent.window, absent.window_layers) == (50.0, 30.0, 4096, (0, 2))


def test_codes_of_a_fused_tensor_are_cut_with_it(tmp_path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    for key, value in {"context_length": 8, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 2}.items():
        writer.add_uint32(f"gpt2.{key}", value)
    writer.add_float32("gpt2.attention.layer_norm_epsilon", 1e-5)
    rng = np.random.default_rng(3)
    vectors = {"blk.0.attn_qkv.bias": 96, **{f"blk.0.{t}.bias": 32 for t in ("attn_output", "ffn_up", "ffn_down")}}
    vectors |= {f"{norm}.{part}": 32 for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm") for part in ("weight", "bias")}
    for tensor, length in vectors.items():
        writer.add_tensor(tensor, rng.normal(size=length).astype(np.float32))
    for tensor, rows in (("token_embd", 9), ("position_embd", 8), ("blk.0.attn_output", 32), ("blk.0.ffn_up", 32), ("blk.0.ffn_down", 32)):
        writer.add_tensor(f"{tensor}.weight", rng.normal(size=(rows, 32)).astype(np.float32))
    fused = gguf.quantize(rng.normal(size=(96, 32)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("blk.0.attn_qkv.weight", fused, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model, whole = load_gguf(path), gguf.dequantize(fused, gguf.GGMLQuantizationType.Q4_1)
    for at, name in enumerate("qkv"):
        assert np.array_equal(model.weights[f"layers.0.{name}"], whole[32 * at : 32 * at + 32]), "seed 3"
        assert np.array_equal(model.codes[f"layers.0.{name}"].values(), whole[32 * at : 32 * at + 32])
        assert model.weights[f"layers.0.{name}.bias"].shape == (32,)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gemma3", {"drop": ("blk.2.post_ffw_norm.weight",)}, "blk.2.post_ffw_norm.weight is missing"),
        ("qwen3", {"drop": ("blk.1.attn_k_norm.weight",)}, "blk.1.attn_k_norm.weight is missing"),
        ("qwen2", {"drop": ("blk.1.attn_k.bias",)}, "blk.1.attn_k.bias is missing"),
        ("qwen2", {"extra": {"blk.0.attn_output.bias": np.zeros(48, np.float32)}}, "blk.1.attn_output.bias is missing"),
        ("qwen2", {"extra": {"blk.1.attn_output.bias": np.zeros(48, np.float32)}}, "'blk.1.attn_output.bias' is not part of this qwen2 model"),
        ("gpt2", {"extra": {"blk.0.attn_qkv.bias": np.zeros(48, np.float32)}}, r"attn_qkv.bias has shape \(48,\); allowed is \(144,\)"),
        ("gpt2", {"fields": {"context_length": 32}}, r"position_embd.weight has shape \(64, 48\)"), ("gpt2", {"drop": ("blk.0.ffn_up.bias",)}, "ffn_up.bias"),
        ("llama", {"extra": {"rope_freqs.weight": np.ones(5, np.float32)}}, r"rope_freqs.weight has shape \(5,\)"),
        ("llama", {"extra": {"rope_freqs.weight": np.zeros(4, np.float32)}}, "rope_divisors"),
        ("llama", {"fields": {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}}, "rope_divisors"),
        ("gemma3", {"fields": {"attention.sliding_window": 1 << 30}}, "window = 1073741824"), ("gemma3", {"fields": {"rope.freq_base_swa": 0.0}}, "window_rope_theta"),
        ("gemma2", {"fields": {"attn_logit_softcapping": -5.0}}, "score_cap"), ("qwen3", {"fields": {"expert_count": 8}}, "qwen3.expert_count = 8"),
        ("gemma3", {"fields": {"attention.sliding_window_pattern": "x"}}, "sliding_window_pattern = 'x'"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_named(tmp_path, name, arguments, message):
    write(tmp_path / "x.gguf", name, **arguments)
    with pytest.raises(UserError, match=message) as caught:
        load_gguf(tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_damage_anywhere_never_escapes(tmp_path, name):
    path = tmp_path / "x.gguf"
    write(path, name)
    whole = bytearray(path.read_bytes())
    header = whole.index(b"blk.1.ffn_down.weight") + 60
    rng = np.random.default_rng(17)
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.integers(4, header, rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            load_gguf(path).weights["layers.0.q"]
        except UserError as error:
            assert "\n" not in str(error), "seed 17"
