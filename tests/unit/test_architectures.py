"""Counts from a config.json, against the published classes built without storage (tests/data/hf_counts.json says how)."""

import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.models.architectures import ARCHITECTURES, describe
from headrace.models.architectures.graphs import read_graph
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.formats.hf import read_hf_config
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme, weight_bytes

DATA = Path(__file__).parents[1] / "data"
COUNTS = json.loads((DATA / "hf_counts.json").read_text())["models"]
NAMES = sorted(COUNTS)


def config_of(name: str) -> Path:
    return DATA / "hf_configs" / f"{name}.json"


def test_every_architecture_and_every_config_is_counted():
    stored = {path.stem: json.loads(path.read_text())["architectures"][0] for path in (DATA / "hf_configs").glob("*.json")}
    assert sorted(stored) == NAMES
    assert set(stored.values()) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_exact(name):
    counted = describe(config_of(name)).counted
    assert counted.parameters == COUNTS[name]["parameters"]
    assert COUNTS[name]["published"] in (None, counted.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_macs_are_those_of_the_module_list(name):
    modules = COUNTS[name]["modules"]
    assert describe(config_of(name)).counted.macs_per_token == sum(m["inputs"] * m["outputs"] * m["active"] * m["count"] for m in modules)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("llama-3-8b", 2 * 32 * 8 * 128), ("qwen2.5-0.5b", 2 * 24 * 2 * 64), ("qwen3-0.6b", 2 * 28 * 8 * 128),
        ("gemma-2-2b", 2 * 26 * 4 * 256), ("phi-3-mini", 2 * 32 * 3072), ("gpt2", 2 * 12 * 768), ("bloom-560m", 2 * 24 * 1024),
        ("opt-125m", 2 * 12 * 768), ("falcon-7b", 2 * 32 * 64), ("falcon-40b", 2 * 60 * 8 * 64), ("pythia-160m", 2 * 12 * 768),
    ],
)
def test_kv_bytes(name, elements):
    assert describe(config_of(name)).counted.kv.bytes_per_token(16) == 2 * elements


@pytest.mark.parametrize("name", ["mamba-130m", "rwkv-4-169m", "bert-base-uncased"])
def test_nothing_is_cached(name):
    assert describe(config_of(name)).counted.kv is None


@pytest.mark.parametrize(("name", "ours"), [("llama-2-7b", "llama2-7b"), ("llama-3-8b", "llama3-8b"), ("llama-3.2-1b", "llama3.2-1b")])
@pytest.mark.parametrize("scheme", ["w4a8kv8", "w8a8kv8"])
def test_a_llama_counts_as_its_graph_does(name, ours, scheme):
    counted, config, scheme = describe(config_of(name)).counted, model_config(ours), load_scheme(scheme)
    assert isinstance(config, DecoderConfig)
    assert (counted.parameters, counted.macs_per_token) == (config.parameters, config.macs_per_token)
    assert counted.kv.bytes_per_token(scheme.kv_bits) == config.kv_bytes_per_token(scheme.kv_bits)
    assert counted.weight_bytes(scheme) == weight_bytes(config, scheme)


def test_bits_of_a_linear_that_a_fused_one_hides():
    scheme = load_scheme("w4a8kv8").model_copy(update={"linear_bits": {"q": 8}})
    assert describe(config_of("gpt2")).counted.weight_bytes(scheme) is None
    assert describe(config_of("opt-125m")).counted.weight_bytes(scheme) is not None


def changed(tmp_path: Path, name: str, change: dict) -> Path:
    document = json.loads(config_of(name).read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v != "absent"}))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", {"n_embd": "absent"}, "n_embd"), ("gpt2", {"n_embd": 769}, "n_embd = 769"), ("gpt2", {"n_layer": 0}, "n_layer"),
        ("gpt2", {"vocab_size": "50257"}, "vocab_size"), ("opt-125m", {"ffn_dim": 10**15}, "ffn_dim"),
        ("qwen2.5-7b", {"num_key_value_heads": 3}, "num_key_value_heads = 3"), ("bloom-560m", {"n_layer": True}, "n_layer"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9"), ("mamba-130m", {"time_step_rank": "all"}, "time_step_rank"),
        ("falcon-40b", {"num_kv_heads": 7}, "num_kv_heads = 7"), ("bert-base-uncased", {"hidden_size": None}, "hidden_size"),
        ("gpt2", {"architectures": ["T5ForConditionalGeneration"]}, "GPT2LMHeadModel, GPTNeoXForCausalLM"),
        ("gpt2", {"architectures": "absent"}, "architectures"), ("gpt2", {"architectures": [[]]}, "architectures"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path, name, change, message):
    with pytest.raises(UserError) as caught:
        describe(changed(tmp_path, name, change))
    assert message in str(caught.value) and "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_changes_of_a_config_that_move_the_counts(tmp_path):
    base = describe(config_of("gpt2")).counted
    untied = describe(changed(tmp_path, "gpt2", {"tie_word_embeddings": False})).counted
    assert (untied.parameters - base.parameters, untied.macs_per_token) == (50257 * 768, base.macs_per_token)
    moe = describe(config_of("qwen3-30b-a3b")).counted
    sparser = describe(changed(tmp_path, "qwen3-30b-a3b", {"mlp_only_layers": [0]})).counted
    expert = 3 * 2048 * 768
    assert moe.parameters - sparser.parameters == 128 * expert + 128 * 2048 - 3 * 2048 * 6144
    assert moe.macs_per_token - sparser.macs_per_token == 8 * expert + 128 * 2048 - 3 * 2048 * 6144


GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "vision_config": {"hidden_size": 1152},
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024},
}  # fmt: skip


def test_the_text_part_of_a_model_of_text_and_images(tmp_path, capsys):
    """Gemma 3 4B: 4,300,079,472 parameters are published, of them 419,816,304 of SigLIP and of what joins it."""
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_4B))
    described, graph = describe(tmp_path), read_graph(tmp_path)
    assert (described.architecture, described.part_of) == ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    assert described.counted.parameters == graph.parameters == 4_300_079_472 - 419_816_304
    assert {op.mask.window for op in graph.operators if op.mask is not None} == {1024, None}
    said = "the text part of Gemma3ForConditionalGeneration alone"
    for command in (["models", "show"], ["estimate", "milli"], ["compare", "--gpu", "A100"]):
        where = [*command[:1], str(tmp_path), *command[1:]] if command[0] != "models" else [*command, str(tmp_path)]
        assert main(where) == 0 and said in " ".join(capsys.readouterr().out.split())
    assert describe(config_of("gemma-3-1b")).notes == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": None}, "text_config = 'None'"), ({"text_config": {"hidden_size": 0}}, "config.json: text_config: field 'hidden_size' = 0"),
        ({"text_config": {"num_key_value_heads": 3}}, "config.json: text_config: num_key_value_heads = 3"),
        ({"text_config": {"num_hidden_layers": 2, "layer_types": []}}, "config.json: text_config: layer_types"),
        ({"architectures": ["OtherForConditionalGeneration"]}, "text_config is a config.json of its own"),
    ],
)
def test_a_text_part_that_does_not_fit_is_named(tmp_path, change, message):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_4B | change))
    with pytest.raises(UserError, match=message):
        read_graph(tmp_path)


def test_show_and_what_else_refuses(capsys):
    assert main(["models", "show", str(config_of("mamba-130m")), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    shown = shown.get("result", shown)
    assert (shown["parameters"], shown["kv_bytes_per_token"], shown["architecture"]) == (129135360, None, "MambaForCausalLM")


def test_a_folder_of_another_family_has_no_operators(tmp_path):
    with pytest.raises(UserError, match="MambaForCausalLM.*allowed is.*operators.*models show"):
        read_hf_config(changed(tmp_path, "mamba-130m", {}))


def test_a_config_file_is_no_model_to_run():
    with pytest.raises(UserError, match="gpt2.json: is a JSON file"):
        model_config(config_of("gpt2"))
