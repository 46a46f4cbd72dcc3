"""Graphs of every architecture against the counts of `models.architectures`, and against published arithmetic."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from headrace.cli import main
from headrace.models.architectures import ARCHITECTURES, describe
from headrace.models.architectures.graph_of_config import graph_of_config
from headrace.models.architectures.graphs import GRAPHS, read_graph
from headrace.models.errors import UserError
from headrace.models.functions import FUNCTIONS
from headrace.models.graph import build_graph
from headrace.models.formats.hf import read_hf_config
from headrace.models.operators import KINDS, Lengths, Op, distinct_experts, weight_elements
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
SCHEME = load_scheme("w4a8kv8")


@cache
def graph_of(name: str):
    return read_graph(CONFIGS / f"{name}.json")


def changed(tmp_path: Path, name: str, **change) -> Path:
    document = json.loads((CONFIGS / f"{name}.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in document.items() if value != "absent"}))
    return tmp_path


def ops(graph, *kinds: str) -> list[Op]:
    return [op for op in graph.operators if op.kind in kinds]


def test_every_architecture_has_a_graph():
    assert set(GRAPHS) == set(ARCHITECTURES)
    for architecture, (fields, _) in GRAPHS.items():
        assert issubclass(fields, ARCHITECTURES[architecture].fields)


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_multiplications_are_those_counted(name):
    counted, graph = describe(CONFIGS / f"{name}.json").counted, graph_of(name)
    tensors: dict[str, int] = {}
    for tensor in counted.tensors:
        tensors[tensor.name] = tensors.get(tensor.name, 0) + tensor.parameters
    assert weight_elements(graph) == tensors
    assert graph.parameters == counted.parameters
    at = Lengths(context=7)
    assert sum(op.macs(at) for op in ops(graph, "linear", "lm_head", "conv")) == counted.macs_per_token
    assert graph.counted.weight_bytes(SCHEME) == counted.weight_bytes(SCHEME)
    for bits in (4, 8, 16):
        assert graph.kv_bytes_per_token(bits) == (counted.kv.bytes_per_token(bits) if counted.kv else 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_activation_is_made_once_and_before_it_is_read(name):
    made = {"tokens"}
    for op in graph_of(name).operators:
        assert op.kind in KINDS
        assert set(op.inputs) <= made, op
        assert op.output not in made, op
        made.add(op.output)


@pytest.mark.parametrize("field", ["num_key_value_heads", "head_dim", "tie_word_embeddings"])
@pytest.mark.parametrize("name", ["mistral-7b", "qwen3-0.6b", "gemma-2-2b", "mixtral-8x7b"])
def test_defaults_are_those_of_the_counts(tmp_path, name, field):
    change = {"num_attention_heads": 32, "hidden_size": 4096, field: "absent"}
    path = changed(tmp_path, name, **change)
    assert read_graph(path).parameters == describe(path).counted.parameters


@pytest.mark.parametrize(("name", "ours"), [("llama-2-7b", "llama2-7b"), ("llama-3-8b", "llama3-8b"), ("llama-3.2-1b", "llama3.2-1b")])
def test_a_llama_multiplies_as_its_detailed_graph_does(name, ours):
    config = model_config(ours)
    detailed = build_graph(config)
    for graph in (graph_of(name), graph_of_config(config)):
        for tokens, context, logits in ((1, 1, 1), (1, 300, 1), (5, 9, 0), (8, 8, 1), (6, 20, 6)):
            expected = detailed.macs(tokens=tokens, context=context, logits=logits)
            assert graph.macs(Lengths(tokens=tokens, context=context, logits=logits)) == expected
        assert graph.missing == ()


@pytest.mark.parametrize("name", ["mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-2-2b", "gemma-3-270m", "gpt2", "opt-125m", "llama-3.2-1b"])
def test_the_graph_of_a_decoders_config_counts_as_that_of_its_file(tmp_path, name):
    """GPT-2's query, key and value are one linear in the file and three in the config."""
    path = changed(tmp_path, name)
    config = read_hf_config(path)
    one, other, at = read_graph(path), graph_of_config(config), Lengths(context=5000)
    assert other.parameters == one.parameters == config.parameters
    assert other.macs(at) == one.macs(at)
    assert other.required_bytes(SCHEME, at) == one.required_bytes(SCHEME, at)
    assert other.kv_cache_bytes(5000, 8) == one.kv_cache_bytes(5000, 8)
    assert {op.kind for op in other.operators} == {op.kind for op in one.operators}
    assert (other.missing == ()) == (name == "llama-3.2-1b")


# Published arithmetic, a check for each family.


def test_llama_2_7b_keeps_512_kib_a_token_in_fp16():
    assert graph_of("llama-2-7b").kv_bytes_per_token(16) == 512 * 1024


def test_mixtral_has_12_9_of_46_7_billion_active_parameters():
    """Jiang et al. 2024, Mixtral of Experts, table 2: 13B active; 46.7B in all (Mistral AI)."""
    graph = graph_of("mixtral-8x7b")
    idle = sum(op.matrix.parameters * (1 - op.matrix.active / op.matrix.experts) for op in ops(graph, "linear"))
    assert round(graph.parameters / 1e9, 1) == 46.7
    assert round((graph.parameters - idle) / 1e9, 1) == 12.9


def test_qwen3_30b_a3b_is_30_5_and_3_3_billion():
    """Qwen3 technical report (2025), section 2: 30.5 B and, rounded down, 3.3 B."""
    graph = graph_of("qwen3-30b-a3b")
    idle = sum(op.matrix.parameters * (1 - op.matrix.active / op.matrix.experts) for op in ops(graph, "linear"))
    assert (round(graph.parameters / 1e9, 1), int((graph.parameters - idle) / 1e8)) == (30.5, 33)


def test_experts_that_a_batch_reads():
    assert distinct_experts(8, 2, 1) == pytest.approx(2)
    assert distinct_experts(8, 2, 2) == pytest.approx(8 * (1 - 0.75**2))
    assert distinct_experts(4, 4, 3) == 4
    counts = [distinct_experts(8, 2, batch) for batch in range(1, 40)]
    assert all(a < b < 8 for a, b in zip(counts, counts[1:], strict=False))
    op = next(op for op in ops(graph_of("mixtral-8x7b"), "linear") if op.name == "experts.up")
    one, two = (op.weight_bytes(SCHEME, Lengths(sequences=n)) for n in (1, 2))
    assert two / one == pytest.approx(3.5 / 2)


def test_mistral_sees_4096_keys_and_keeps_no_more():
    """Jiang et al. 2023, Mistral 7B, section 2: window and rolling buffer of 4096."""
    graph = graph_of("mistral-7b")
    score = ops(graph, "attention_qk")[0]
    assert [int(score.pairs(Lengths(context=n))) for n in (100, 4096, 4097, 9000)] == [100, 4096, 4096, 4096]
    assert graph.kv_cache_bytes(9000, 16) == 4096 * graph.kv_bytes_per_token(16)


def test_gemma_3_has_five_local_layers_to_a_global_one(tmp_path):
    """Gemma 3 report, section 2: 5 to 1, window 512 in the 1B model."""
    graph = read_graph(changed(tmp_path, "gemma-3-1b", sliding_window=512))
    windows = [op.mask.window for op in ops(graph, "attention_qk")]
    assert windows[:12] == ([512] * 5 + [None]) * 2 and len(windows) == 26
    types = ["full_attention"] * 25 + ["sliding_attention"]
    graph = read_graph(changed(tmp_path, "gemma-3-1b", layer_types=types))
    assert [op.mask.window for op in ops(graph, "attention_qk")] == [None] * 25 + [4096]
    for field in ("sliding_window_pattern", "_sliding_window_pattern"):
        other = read_graph(changed(tmp_path, "gemma-3-1b", **{field: 2}))
        assert [op.mask.window for op in ops(other, "attention_qk")][:4] == [4096, None] * 2
    assert [op.mask.window for op in ops(graph_of("gemma-2-2b"), "attention_qk")][:4] == [4096, None, 4096, None]


def test_qwen_slides_only_where_it_is_told(tmp_path):
    assert {op.mask.window for op in ops(graph_of("qwen2.5-7b"), "attention_qk")} == {None}
    graph = read_graph(changed(tmp_path, "qwen2.5-7b", use_sliding_window=True, sliding_window=64, max_window_layers=20))
    assert [op.mask.window for op in ops(graph, "attention_qk")] == [None] * 20 + [64] * 8


@pytest.mark.parametrize("name", ["mistral-7b", "mixtral-8x7b", "phi-3-mini", "qwen3-30b-a3b"])
def test_classes_that_do_not_read_layer_types(tmp_path, name):
    graph = read_graph(changed(tmp_path, name, layer_types=["full_attention"] * 3, sliding_window=64, use_sliding_window=True))
    assert "layer_types is not read" in "; ".join(graph.notes)
    assert {op.mask.window for op in ops(graph, "attention_qk")} == {64}


def test_phi_3_and_falcon_multiply_in_fused_linears():
    assert next(op for op in graph_of("phi-3-mini").operators if op.name == "qkv").matrix.shape == (9216, 3072)
    assert next(op for op in graph_of("falcon-7b").operators if op.name == "qkv").matrix.shape == (4544 + 2 * 64, 4544)


def test_falcon_7b_caches_two_vectors_of_64_a_layer():
    """Multi-query attention: 8 KiB a token in fp16."""
    assert graph_of("falcon-7b").kv_bytes_per_token(16) == 8 * 1024


def test_gpt2_flops_a_token_are_twice_its_multiplied_weights():
    """GPT-2 small: 85.0 M in blocks (12 d^2 a layer) and 38.6 M in the head."""
    graph = graph_of("gpt2")
    assert sum(op.macs(Lengths()) for op in ops(graph, "linear")) == 12 * 12 * 768**2
    assert sum(op.macs(Lengths()) for op in ops(graph, "lm_head")) == 50257 * 768


def test_gpt_neox_turns_a_quarter_of_a_head_and_bloom_has_slopes():
    assert {op.shape[-1] for op in ops(graph_of("gpt-neox-20b"), "rope")} == {24}
    bloom = graph_of("bloom-560m")
    assert not ops(bloom, "rope") and len(ops(bloom, "alibi")) == 24


def test_opt_350m_projects_its_embedding():
    names = [op.name for op in graph_of("opt-350m").operators]
    assert names.count("project_in") == names.count("project_out") == 1 and "final_norm" not in names


def test_bert_sees_all_positions():
    graph = graph_of("bert-base-uncased")
    assert graph.encoder
    at = Lengths(tokens=128, context=128, logits=128)
    # 12 layers: 12 d^2 a token in linears; 2 n^2 d in attention; the head on each token.
    linears, attention, head = 12 * 12 * 768**2 * 128, 12 * 2 * 128**2 * 768, (768**2 + 30522 * 768) * 128
    assert graph.macs(at) == linears + attention + head


def test_mamba_130m_has_a_state_of_16_a_channel():
    """Gu and Dao 2023: N = 16, E = 2, a convolution of 4; 24 layers of 1536 channels."""
    graph = graph_of("mamba-130m")
    assert graph.state_bytes == 4 * 24 * 1536 * (16 + 3)
    assert graph.kv_bytes_per_token(8) == graph.kv_cache_bytes(10**6, 8) == 0
    assert graph.macs(Lengths(context=10)) == graph.macs(Lengths(context=10**5))


def test_rwkv_keeps_five_vectors_a_layer():
    """Peng et al. 2023, section 3.4 and appendix: numerator, denominator, maximum, and the token before of both mixings."""
    assert graph_of("rwkv-4-169m").state_bytes == 4 * 12 * 5 * 768


def test_float_operations_by_hand():
    """rmsnorm of 8: 8 squares, 8 products with r, 8 with the weight, 1 by 1/d; 8 sums, a tree of 15, eps; one rsqrt (3 adds, 10 multiplies)."""
    counts = FUNCTIONS["rmsnorm"].counts(8, 1)
    assert (counts.multiplies, counts.adds, counts.rsqrt) == (25, 24, 1)
    resolved = counts.without_calls()
    assert (resolved.multiplies, resolved.adds) == (35, 27)
    silu = FUNCTIONS["silu_mul"].counts(2, 1).without_calls()  # exp 11 + 10, recip 3 + 6, +1.0, two products
    assert (silu.adds, silu.multiplies) == (2 * (11 + 3 + 1), 2 * (10 + 6 + 2))
    softmax = next(op for op in graph_of("llama-2-7b").operators if op.kind == "softmax")
    assert softmax.sfu(Lengths(context=5)).exp == 32 * 5
    assert softmax.sfu(Lengths(tokens=3, context=5)).exp == 32 * (3 + 4 + 5)


@pytest.mark.parametrize(
    ("kind", "adds", "multiplies"),
    [
        # exp takes 11 adds and 10 multiplies, recip 3 and 6, log 13 and 14.
        ("gelu", 11 + 3 + 2, 10 + 6 + 4), ("gelu_mul", 11 + 3 + 2, 10 + 6 + 5), ("silu", 11 + 3 + 1, 10 + 6 + 1), ("softcap", 11 + 3 + 2, 10 + 6 + 2),
        ("gelu_erf", 11 + 3 + 7, 10 + 6 + 11), ("softplus", 11 + 13 + 2, 10 + 14), ("wkv", 4 * 11 + 3 + 10, 4 * 10 + 6 + 7), ("relu", 0, 0),
        ("relu_squared", 0, 1), ("sigmoid_mul", 11 + 3 + 1, 10 + 6 + 1), ("token_shift", 2, 1), ("alibi", 1, 1), ("combine", 1, 1),
    ],
)
def test_element_wise_functions_by_hand(kind, adds, multiplies):
    counts = FUNCTIONS[kind].counts(3, 1).without_calls()
    assert (counts.adds, counts.multiplies) == (3 * adds, 3 * multiplies)
    assert counts.steps >= max(counts.adds, counts.multiplies), "a step has one add and one multiply at most"


def test_a_layer_norm_by_hand():
    """Of 8: sum, less the mean, sum of squares, offset: 4 adds each, 2 trees and eps; square, times r, times w: 3 each, twice 1/d; rsqrt 3 and 10."""
    counts = FUNCTIONS["layernorm"].counts(8, 1).without_calls()
    assert (counts.adds, counts.multiplies) == (8 * 4 + 2 * 15 + 1 + 3, 8 * 3 + 2 + 10)


def test_a_scan_by_hand():
    """One channel of 4 states: 4 each of dt * A, exp, (dt x) * B, h * dA + ., h * C and its sum, whose tree has 15 adds; dt * x and D * x + y."""
    counts = FUNCTIONS["selective_scan"].counts(4, 1)
    assert (counts.exp, counts.multiplies, counts.adds) == (4, 4 * 4 + 2, 2 * 4 + 15 + 1)


def test_contexts_may_be_arrays():
    graph, contexts = graph_of("mistral-7b"), np.array([5, 4096, 7000])
    each = [graph.required_bytes(SCHEME, Lengths(context=int(n))) for n in contexts]
    assert list(graph.required_bytes(SCHEME, Lengths(context=contexts))) == each


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mistral-7b", {"sliding_window": 0}, "sliding_window"), ("gemma-3-1b", {"layer_types": ["full_attention"]}, "1 entries"),
        ("gemma-2-2b", {"layer_types": ["linear_attention"] * 26}, "layer_types"), ("gpt2", {"activation_function": "swiglu"}, "activation_function"),
        ("pythia-160m", {"rotary_pct": 2.0}, "rotary_pct"), ("falcon-7b", {"alibi": "yes"}, "alibi"),
        ("mixtral-8x7b", {"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path, name, change, message):
    with pytest.raises(UserError) as caught:
        read_graph(changed(tmp_path, name, **change))
    assert message in str(caught.value) and "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_show_checks_what_only_the_graph_reads(tmp_path, capsys):
    path = changed(tmp_path, "gemma-3-1b", layer_types=["full_attention"])
    assert main(["models", "show", str(path)]) == 2 and "layer_types" in capsys.readouterr().err
