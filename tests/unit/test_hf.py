"""Hugging Face folders: files written with the safetensors package, sharded or not, and folders that do not fit."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from headrace.models.errors import UserError
from headrace.models.formats.hf import load_hf, read_hf_config
from headrace.models.quantise import quantise_model
from headrace.models.scheme import load_scheme
from headrace.sim.float_model import FloatExecutor

SEED = 11
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "rope_theta": 5000.0, "tie_word_embeddings": False, "bos_token_id": 1, "torch_dtype": "float16",
}


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    shapes = {"model.embed_tokens": (40, 32), "lm_head": (40, 32), "model.norm": (32,)}
    for i in range(2):
        p = f"model.layers.{i}."
        shapes |= {
            p + "self_attn.q_proj": (32, 32), p + "self_attn.k_proj": (16, 32), p + "self_attn.v_proj": (16, 32),
            p + "self_attn.o_proj": (32, 32), p + "mlp.gate_proj": (48, 32), p + "mlp.up_proj": (48, 32),
            p + "mlp.down_proj": (32, 48), p + "input_layernorm": (32,), p + "post_attention_layernorm": (32,),
        }
    return {name + ".weight": rng.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}


def write(folder, config=CONFIG, weights=None):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors() if weights is None else weights, folder / "model.safetensors")


def test_weights_and_sizes(tmp_path):
    write(tmp_path)
    model = load_hf(tmp_path)
    assert (model.config.rope_theta, model.config.head_dim, model.config.kv_heads) == (5000.0, 8, 2)
    stored = tensors()
    for ours, theirs in (("layers.1.q", "model.layers.1.self_attn.q_proj"), ("lm_head", "lm_head"), ("final_norm", "model.norm")):
        assert model.weights[ours].dtype == np.float32
        assert np.array_equal(model.weights[ours], stored[theirs + ".weight"].astype(np.float32)), f"seed {SEED}"
    assert model.tokenizer is None and not model.codes and set(model.weights) == set(model.config.weight_shapes())


def test_tied_head_and_newer_rope_field(tmp_path):
    weights = tensors()
    config = {k: v for k, v in CONFIG.items() if k != "rope_theta"}
    config |= {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    write(tmp_path, config, weights)
    assert load_hf(tmp_path).config.rope_theta == 7.0
    del weights["lm_head.weight"]
    write(tmp_path, config, weights)
    assert "lm_head" not in load_hf(tmp_path).weights


def test_shards(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    stored = tensors()
    names = sorted(stored)
    files = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for file, part in files.items():
        save_file({name: stored[name] for name in part}, tmp_path / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert np.array_equal(load_hf(tmp_path).weights["layers.1.up"], stored["model.layers.1.mlp.up_proj.weight"].astype(np.float32))
    index.write_text(json.dumps({"weight_map": weight_map | {names[0]: "../model-1.safetensors"}}))
    with pytest.raises(UserError, match="allowed is a .safetensors file of this folder"):
        load_hf(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map | {names[0]: "model-2.safetensors"}}))
    with pytest.raises(UserError, match="though the index says"):
        load_hf(tmp_path)


def raw_safetensors(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_bfloat16(tmp_path):
    write(tmp_path, CONFIG | {"torch_dtype": "bfloat16"})
    values = np.array([1.5, -2.0, 0.0, 3.140625] * 8, np.float32)
    stored = {name: array.astype(np.float32) for name, array in tensors().items()} | {"model.norm.weight": values}
    header, data = {}, b""
    for name, array in stored.items():
        raw = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors(header, data))
    assert np.array_equal(load_hf(tmp_path).weights["final_norm"], values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "model_type = 'llama'; allowed is 'qwen2'"), ({"model_type": "opt"}, "model_type = 'opt'; allowed is 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act"), ({"attention_bias": True}, "q_proj.bias is missing"),
        ({"attention_bias": "x"}, "attention_bias"), ({"architectures": ["MambaForCausalLM"]}, "architectures"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling"), ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters"), ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size is missing"), ({"hidden_size": 34}, "multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "kv_heads"), ({"torch_dtype": "int8"}, "torch_dtype"), ({"tie_word_embeddings": 1}, "tie_word"),
        ({"intermediate_size": 64}, "has shape"), ({"num_hidden_layers": 3}, "is missing"), ({"num_hidden_layers": 1}, "not part of"),
        ({"rms_norm_eps": "x"}, "rms_eps"), ({"num_hidden_layers": 10**12}, "layers"), ({"rope_theta": None}, "rope_theta"),
    ],
)
def test_a_folder_that_does_not_fit_is_named(tmp_path, change, message):
    write(tmp_path, CONFIG | change)
    with pytest.raises(UserError, match=message):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"), (struct.pack("<Q", 1 << 62), "header claims"), (struct.pack("<Q", 4) + b"nope", "JSON"),
        (raw_safetensors([1]), "allowed is an object"), (raw_safetensors({"a": 1}), "lacks a shape"),
        (raw_safetensors({"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}), "truncated"),
        (raw_safetensors({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"), "dtype 'I64'"),
        (raw_safetensors({"a": {"dtype": "F16", "shape": [9], "data_offsets": [0, 8]}}, b"12345678"), "does not fill"),
        (raw_safetensors({"a": {"dtype": "F16", "shape": [-4], "data_offsets": [0, 8]}}, b"12345678"), "lacks a shape"),
        (raw_safetensors({"a": {"dtype": "F16", "shape": [4], "data_offsets": [8, 0]}}, b"12345678"), "data_offsets"),
    ],
)
def test_lying_safetensors(tmp_path, content, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_hf(tmp_path)
    assert "model.safetensors" in str(caught.value)


def test_json_that_is_none(tmp_path):
    for text in ("{", "[]", "[" * 100_000, "\x00"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match="config.json"):
            read_hf_config(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_hf_config(tmp_path / "absent")


def test_tokenizer_file(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="field model.type = 'None'"):
        load_hf(tmp_path)
    Tokenizer(models.WordLevel({str(n): n for n in range(50)}, unk_token="0")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="has 50 tokens; allowed are up to vocab_size = 40"):
        load_hf(tmp_path)


@pytest.mark.parametrize("dtype", ["[]", "{}", "[1]"])
def test_a_dtype_that_is_no_text(tmp_path, dtype):
    header = f'{{"a": {{"shape": [1], "data_offsets": [0, 4], "dtype": {dtype}}}}}'.encode()
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(UserError, match="has dtype"):
        load_hf(tmp_path)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(tmp_path, name, value):
    weights = tensors()
    weights[name].reshape(-1)[3] = value
    write(tmp_path, weights=weights)
    model = load_hf(tmp_path)
    for run in (FloatExecutor.from_model, lambda m: quantise_model(m, load_scheme("w4a8kv8"))):
        with pytest.raises(UserError, match="holds a NaN or an infinity"):
            run(model)
