"""The graph's sizes and counts, against published numbers and sums written out here."""

import math

import pytest

from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.graph import KINDS, build_graph, resolve, visible_pairs
from headrace.models.registry import list_models, model_config
from headrace.models.scheme import load_scheme, weight_bytes

SMALL = {"vocab": 96, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 160}


def small(**changes) -> DecoderConfig:
    return DecoderConfig(name="small", **{**SMALL, **changes})


# Counts of the published checkpoints.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008), ("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320),
        ("llama3-8b", 8_030_261_248), ("llama3.2-1b", 1_235_814_400), ("tinyllama-1.1b", 1_100_048_384),
    ],
)
def test_parameters_are_the_published_ones(name, parameters):
    config = model_config(name)
    assert config.parameters == parameters
    assert config.parameters == sum(math.prod(shape) for shape in config.weight_shapes().values())


def test_macs_per_token_counts_the_head_and_not_the_embedding():
    config = model_config("llama2-7b")
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert config.macs_per_token == 32 * layer + 32000 * 4096
    assert model_config("smollm2-135m").macs_per_token == 134_515_008 - 61 * 576  # tied: all but the norms


def test_kv_bytes():
    config = model_config("llama2-7b")
    assert config.kv_bytes_per_token() == 2 * 32 * 4096 * 2
    assert config.kv_bytes_per_token(8) == 2 * 32 * (4096 + 32 * 4)


def test_graph_counts_match_a_loop_over_positions():
    config = small()
    graph = build_graph(config)
    tokens, context = 5, 12
    pairs = sum(context - tokens + 1 + i for i in range(tokens))
    assert visible_pairs(tokens, context) == pairs
    attention = 2 * config.layers * config.heads * config.head_dim * pairs
    linears = tokens * (config.macs_per_token - config.vocab * config.width)
    assert graph.macs(tokens=tokens, context=context) == linears + config.vocab * config.width + attention


def test_prefill_equals_the_sum_of_its_decode_steps():
    graph = build_graph(small())
    steps = sum(graph.macs(tokens=1, context=c, logits=1) for c in range(1, 10))
    assert graph.macs(tokens=9, context=9, logits=9) == steps


def test_graph_reads_every_weight_once_and_chains():
    config = small(tie_embeddings=False)
    graph = build_graph(config)
    used = [name for op in graph.operators for name in op.weights]
    assert sorted(used) == sorted(config.weight_shapes())
    assert {op.kind for op in graph.operators} == set(KINDS[:12])
    ready = {"tokens", "v_cache"}
    for op in graph.operators:
        assert set(op.inputs) <= ready, op.name
        ready.add(op.output)
        assert op.output_elements(tokens=3, context=7, logits=2) > 0
    tied = build_graph(small(tie_embeddings=True))
    assert [op.weights for op in tied.operators if op.kind == "lm_head"] == [{"embedding": (96, 64)}]


def test_kv_traffic():
    ops = {(op.layer, op.name): op for op in build_graph(small()).operators}
    assert ops[1, "attention_qk"].kv_elements(tokens=1, context=9) == 2 * 9 * 16
    assert ops[1, "kv_append"].kv_elements(tokens=3, context=9) == 2 * 2 * 3 * 16
    assert ops[1, "gate"].kv_elements(tokens=3, context=9) == 0
    assert resolve("context", tokens=3, context=9) == 9


def test_lengths_out_of_order_are_refused():
    with pytest.raises(ValueError, match="logits <= tokens <= context"):
        build_graph(small()).macs(tokens=5, context=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 0), ("layers", 5000), ("heads", True), ("kv_heads", 3), ("head_dim", 15), ("rms_eps", float("nan")),
        ("rope_theta", -1.0), ("dtype", "int4"), ("bos_token_id", 96), ("ffn", 1.5), ("norm", "batchnorm"), ("gated", 1), ("activation", []),
        ("biases", ["q"]), ("biases", ("q", "q")), ("biases", ("router",)), ("positions", "alibi"), ("position_offset", 99), ("qk_norm", None),
        ("window", 4), ("window_layers", (1,)), ("window_layers", (2,)), ("rope_divisors", (1.0,)), ("rope_divisors", (0.0,) * 8),
        ("embedding_scale", 0.0), ("score_factor", float("inf")), ("score_cap", 0), ("logit_cap", "x"), ("window_rope_theta", 0.5),
    ],
)
def test_bad_sizes_are_named(field, value):
    with pytest.raises(UserError, match="window" if field == "window_layers" else field):
        small(**{field: value})


def test_weight_bytes_of_the_default_scheme():
    config, scheme = model_config("smollm2-135m"), load_scheme("w4a8kv8")
    linears = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 576 * 1536)
    rows = 30 * (576 + 192 + 192 + 576 + 1536 + 1536 + 576) + 49152
    assert weight_bytes(config, scheme) == linears * 37 // 64 + 49152 * 576 + 4 * rows + 4 * 61 * 576


def test_every_shipped_model_builds():
    for entry in list_models():
        graph = build_graph(entry.config)
        assert len(graph.operators) == (18 if entry.config.plain_llama else 22) * entry.config.layers + 4
