"""Transforms of a workload: arithmetic by hand on a small model, bounds, monotonicity, and what is refused.

The model: 4 layers of width 32, 4 heads of 16 (so 64 wide), inner width 96, 64 tokens, in 8-bit weights: a matrix [N, K] takes N K + 4 N bytes.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from headrace.hw.machine import load_machine
from headrace.mapping.analytic_graph import step
from headrace.mapping.graph_events import step_events
from headrace.mapping.transforms import TRANSFORMS, Work, apply_transforms, parse_transform
from headrace.models.architectures.graph_of_config import graph_of_config
from headrace.models.architectures.graphs import read_graph
from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig
from headrace.models.operators import Lengths
from headrace.models.scheme import load_scheme
from headrace.models.transforms import exit_after

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
SCHEME = load_scheme("w8a8kv8")
SIZES = LlamaConfig(name="tiny", vocab=64, width=32, layers=4, heads=4, kv_heads=4, head_dim=16, ffn=96)
TINY = graph_of_config(SIZES)
NANO = load_machine("nano")


def matrix(outputs: int, inputs: int) -> int:
    return outputs * inputs + 4 * outputs


LAYER = 3 * matrix(64, 32) + matrix(32, 64) + 2 * matrix(96, 32) + matrix(32, 96)
HEAD, ROW = matrix(64, 32), 32 + 4
KEY = 16 + 4  # a key or value of one head


def work(*texts: str, graph=TINY, batch: int = 1) -> Work:
    return apply_transforms(graph, texts, batch)[0]


def bytes_at(w: Work, context: int) -> float:
    return float(w.decode_bytes(SCHEME, context))


def cycles(w: Work, context: int, machine=NANO) -> float:
    """Of a decoded token."""
    at = np.array([context])
    return sum(float(part.share * step(part.graph, SCHEME, machine, at + part.offset, logits=True).cycles[0]) for part in w.decode_passes)


def test_the_model_without_transforms_by_hand():
    assert bytes_at(work(), 10) == 4 * LAYER + HEAD + ROW + 4 * 2 * 4 * KEY * 10
    assert float(work().decode_macs(10)) == 4 * (4 * 64 * 32 + 3 * 96 * 32 + 2 * 64 * 10) + 64 * 32


def test_a_batch_reads_weights_once_and_caches_each():
    assert bytes_at(work("batch:size=3"), 10) == 4 * LAYER + HEAD + 3 * (ROW + 4 * 2 * 4 * KEY * 10)
    assert work("batch:size=3").batch == work(batch=3).batch == 3


def test_shared_heads_shrink_cache_and_linears():
    w = work("gqa:kv_heads=1")
    saved = 4 * 2 * (matrix(64, 32) - matrix(16, 32))
    assert bytes_at(w, 10) == bytes_at(work(), 10) - saved - 4 * 2 * 3 * KEY * 10
    assert w.graph.kv_bytes_per_token(16) == 4 * 2 * 16 * 2
    assert TINY.parameters - w.graph.parameters == 4 * 2 * 48 * 32
    assert w.graph.operators == graph_of_config(LlamaConfig(**{**SIZES.to_dict(), "kv_heads": 1})).operators
    assert cycles(w, 200) < cycles(work("gqa:kv_heads=2"), 200) < cycles(work(), 200)
    assert work("gqa:kv_heads=4").graph.operators == TINY.operators


def test_shared_heads_of_a_fused_linear():
    graph = work("gqa:kv_heads=2", graph=read_graph(CONFIGS / "gpt2.json")).graph
    qkv = next(op for op in graph.operators if op.name == "qkv")
    bias = next(op for op in graph.operators if op.name == "qkv.bias")
    assert qkv.matrix.shape == (768 + 2 * 2 * 64, 768) and bias.tensors[0].shape == (1024,)


def test_experts_by_hand():
    """4 experts of which a token takes 2: two tokens read 4 (1 - (1/2)**2) = 3 of them."""
    w = work("moe:experts=4,active=2")
    expert, router = 2 * matrix(96, 32) + matrix(32, 96), matrix(4, 32)
    dense = LAYER - expert
    assert bytes_at(w, 10) == 4 * (dense + router + 2 * expert) + HEAD + ROW + 4 * 2 * 4 * KEY * 10
    assert bytes_at(work("moe:experts=4,active=2", "batch:size=2"), 10) == 4 * (dense + router + 3 * expert) + HEAD + 2 * (ROW + 320 * KEY)
    assert w.graph.parameters - TINY.parameters == 4 * (3 * 3 * 96 * 32 + 4 * 32)
    assert float(w.decode_macs(10) - work().decode_macs(10)) == 4 * (3 * 96 * 32 + 4 * 32)
    narrow = work("moe:experts=4,active=2,ffn=48").graph
    assert next(op for op in narrow.operators if op.name == "experts.up").matrix.shape == (48, 32)
    assert cycles(w, 10) < cycles(work("moe:experts=4,active=3"), 10) < cycles(work("moe:experts=4,active=4"), 10)


def test_a_cache_of_other_bits_by_hand():
    """A key of 16 elements: 4 bits and a scale 8 + 4 bytes, in groups of 8 elements 8 + 8; 16 bits 32; 2 bits 4 + 4."""
    rest = 4 * LAYER + HEAD + ROW
    for keys, text in ((14.5, "bits=4"), (16, "bits=4,group=8"), (32, "bits=16"), (8, "bits=2"), (20, "bits=8")):
        assert bytes_at(work(f"kv-quantisation:{text}"), 10) == rest + 4 * 2 * 4 * keys * 10
    found = [cycles(work(f"kv-quantisation:bits={bits}"), 500) for bits in (2, 4, 8, 16)]
    assert found == sorted(found) and found[0] < found[3]
    assert cycles(work("kv-quantisation:bits=8"), 500) == cycles(work(), 500)


def test_sparse_attention_by_hand():
    """At context 10: a window of 4 sees 4, with 2 global tokens 6; every third key before a window of 4 is 7 - 6 = distance 6 and 9: 2 more;
    blocks of 4: the tenth position is the second of the third block, and sees 2, or 6 with the block before."""
    for keys, text in ((4, "window=4"), (6, "window=4,sinks=2"), (6, "window=4,stride=3"), (2, "block=4"), (6, "block=4,blocks=2"), (10, "window=10")):
        w = work(f"sparse-attention:{text}")
        assert bytes_at(w, 10) == 4 * LAYER + HEAD + ROW + 4 * 2 * 4 * KEY * keys, text
        assert float(w.decode_macs(10)) == float(work().decode_macs(10)) - 4 * 2 * 64 * (10 - keys), text
        softmax = next(op for op in w.graph.operators if op.kind == "softmax")
        assert softmax.sfu(Lengths(context=10)).exp == 4 * keys
    assert cycles(work("sparse-attention:window=64"), 500) < cycles(work("sparse-attention:window=256"), 500) < cycles(work(), 500)
    assert cycles(work("sparse-attention:window=500"), 500) == cycles(work(), 500)
    # A stripe of 8 keys is loaded for a single one of them: with a stride of 4 the machine reads more than without a mask.
    beats = [
        step_events(work(*texts).graph, SCHEME, NANO, 500, logits=True)["read_beats"] for texts in ([], ["sparse-attention:window=64,stride=4"])
    ]
    assert beats[1] > beats[0]
    assert work("sparse-attention:window=64").graph.kv_cache_bytes(500, 8) == 4 * 2 * 4 * KEY * 64


def test_a_models_own_window_stays_where_it_is_shorter():
    mistral = read_graph(CONFIGS / "mistral-7b.json")
    assert {op.mask.window for op in work("sparse-attention:window=9000", graph=mistral).graph.operators if op.mask} == {4096}
    assert {op.mask.window for op in work("sparse-attention:window=90", graph=mistral).graph.operators if op.mask} == {90}


def test_token_pruning_by_hand():
    """keep 1/2 from layer 1: of 8 tokens the layers have 8, 4, 2, 1, of 9 they have 9, 5, 3, 2."""
    w = work("token-pruning:keep=0.5,from=1")
    for context, alive in ((8, 8 + 4 + 2 + 1), (9, 9 + 5 + 3 + 2), (1, 4)):
        assert bytes_at(w, context) == 4 * LAYER + HEAD + ROW + 2 * 4 * KEY * alive
        assert float(w.decode_macs(context) - work().decode_macs(context)) == -2 * 64 * (4 * context - alive)
    # A whole prompt in one pass: linears of the layers see 8, 4, 2, 1 rows; attention n (n + 1) / 2 pairs each.
    at = Lengths(tokens=8, context=8, logits=1)
    linears = 4 * 64 * 32 + 3 * 96 * 32
    assert w.graph.macs(at) == linears * 15 + 2 * 64 * (36 + 10 + 3 + 1) + 64 * 32
    assert work("token-pruning:keep=1.0,from=0").decode_macs(8) == work().decode_macs(8)
    assert cycles(w, 500) < cycles(work("token-pruning:keep=0.9,from=1"), 500) < cycles(work(), 500)
    assert cycles(work("token-pruning:keep=0.5,from=0"), 500) < cycles(w, 500)


def test_low_rank_by_hand():
    """q is 64 x 32: at rank 8 it becomes 8 x 32 and 64 x 8, 768 weights in the place of 2048."""
    w = work("low-rank:linears=q,rank=8")
    assert TINY.parameters - w.graph.parameters == 4 * (2048 - 768)
    assert bytes_at(w, 10) == bytes_at(work(), 10) - 4 * (matrix(64, 32) - matrix(8, 32) - matrix(64, 8))
    assert float(work().decode_macs(10) - w.decode_macs(10)) == 4 * (2048 - 768)
    two = work("low-rank:linears=q+down,rank=8").graph
    assert w.graph.parameters - two.parameters == 4 * (32 * 96 - 8 * (32 + 96))
    for rank in (22, 64):  # 64 * 32 / 96 = 21.3
        with pytest.raises(UserError, match=f"rank = {rank}; allowed is below 21.3"):
            work(f"low-rank:linears=q,rank={rank}")
    assert work("low-rank:linears=q,rank=21").graph.parameters < TINY.parameters
    large = read_graph(CONFIGS / "gpt2.json")
    found = [cycles(work(f"low-rank:linears=up+down,rank={rank}", graph=large), 10) for rank in (32, 128, 512)]
    assert found == sorted(found) and found[-1] < cycles(work(graph=large), 10)


def test_the_bits_of_a_factor_are_those_of_its_linear():
    scheme = load_scheme("w4a8kv8").model_copy(update={"linear_bits": {"q": 8}})
    factors = [op for op in work("low-rank:linears=q+up,rank=8").graph.operators if op.name in ("q.a", "q.b", "up.a", "up.b")]
    assert {op.name: op.bits(scheme) for op in factors} == {"q.a": 8, "q.b": 8, "up.a": 4, "up.b": 4}


def test_early_exit_by_hand():
    """A quarter leaves after 1 of 4 layers, half after 3. Layers that are left out compute keys and values; each exit costs the head."""
    w = work("early-exit:exits=3:0.5+1:0.25")
    cached = 2 * matrix(64, 32)
    cache = 2 * 4 * KEY * 10

    def of(layers: int, heads: int) -> int:
        return layers * (LAYER + cache) + (4 - layers) * cached + heads * HEAD + ROW

    expected = Fraction(1, 4) * of(1, 1) + Fraction(1, 2) * of(3, 2) + Fraction(1, 4) * of(4, 3)
    assert bytes_at(w, 10) == expected
    macs = 4 * 64 * 32 + 3 * 96 * 32 + 2 * 64 * 10

    def macs_of(layers: int, heads: int) -> int:
        return layers * macs + (4 - layers) * 2 * 64 * 32 + heads * 64 * 32

    assert float(w.decode_macs(10)) == macs_of(1, 1) / 4 + macs_of(3, 2) / 2 + macs_of(4, 3) / 4
    # Nobody leaves: the heads that were tried are paid for nothing.
    assert bytes_at(work("early-exit:exits=2:0"), 10) == bytes_at(work(), 10) + HEAD
    assert cycles(work("early-exit:exits=2:0"), 10) > cycles(work(), 10)
    assert cycles(work("early-exit:exits=1:1"), 100) < cycles(work("early-exit:exits=1:0.5"), 100) < cycles(work("early-exit:exits=1:0.25"), 100)
    assert cycles(work("early-exit:exits=1:1"), 100) < cycles(work("early-exit:exits=3:1"), 100) < cycles(work(), 100)


def draft_path(tmp_path: Path, **change) -> str:
    """A draft of one layer of the same width and vocabulary."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 96,
              "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16} | change  # fmt: skip
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_speculative_decoding_by_hand(tmp_path):
    """k = 3, a = 1/2: 1 + 1/2 + 1/4 + 1/8 = 15/8 tokens a verification, for 3 passes of the draft and a verification of 4 positions."""
    draft = draft_path(tmp_path)
    w = work(f"speculative:draft={draft},k=3,acceptance=0.5")
    assert w.draft.tokens_per_verification == 15 / 8
    one_draft = [LAYER + HEAD + ROW + 2 * 4 * KEY * context for context in (10, 11, 12)]
    verification = 4 * LAYER + HEAD + 4 * ROW + 4 * 2 * 4 * KEY * 13
    assert bytes_at(w, 10) == pytest.approx((sum(one_draft) + verification) / (15 / 8))
    assert [(part.graph.name, part.offset) for part in w.decode_passes] == [("draft", j) for j in range(3)] + [("tiny", j) for j in range(4)]
    assert all(part.share == 8 / 15 for part in w.decode_passes)
    assert work(f"speculative:draft={draft},k=3,acceptance=1.0").draft.tokens_per_verification == 4
    assert work(f"speculative:draft={draft},k=3,acceptance=0.0").draft.tokens_per_verification == 1
    for k in (1, 4, 9):
        found = [work(f"speculative:draft={draft},k={k},acceptance={a}").draft.tokens_per_verification for a in (0.0, 0.3, 0.9, 1.0)]
        assert found == sorted(found) and max(found) == k + 1


def test_a_verification_helps_where_weights_are_read_once_and_not_on_the_machine(tmp_path):
    w = work(f"speculative:draft={draft_path(tmp_path)},k=4,acceptance=0.9")
    assert bytes_at(w, 10) < bytes_at(work(), 10)
    assert cycles(w, 10) > cycles(work(), 10)
    better = work(f"speculative:draft={draft_path(tmp_path)},k=4,acceptance=0.95")
    assert cycles(better, 10) < cycles(w, 10) and bytes_at(better, 10) < bytes_at(w, 10)


def test_a_chunked_prefill_by_hand():
    """10 positions in chunks of 4: 4, 4 and 2, which read weights three times, and the keys of 4, 8 and 10 positions."""
    w = work("chunked-prefill:chunk=4,decodes=2")
    assert w.chunks(10) == [(4, 4), (4, 8), (2, 10)]
    keys = 4 * 2 * 4 * KEY
    assert w.prefill_bytes(SCHEME, 10) == 3 * 4 * LAYER + HEAD + 10 * ROW + keys * (4 + 8 + 10)
    assert work().prefill_bytes(SCHEME, 10) == 4 * LAYER + HEAD + 10 * ROW + keys * 10
    found = [work(f"chunked-prefill:chunk={chunk}").prefill_bytes(SCHEME, 10) for chunk in (1, 2, 5, 10, 99)]
    assert found == sorted(found, reverse=True) and found[-1] == found[-2] == work().prefill_bytes(SCHEME, 10)


def test_state_space_layers_by_hand():
    """Mixers in all layers: no cache; 64 channels of 16 values and 3 earlier inputs each."""
    w = work("state-space:attention_every=0")
    assert w.graph.kv_bytes_per_token(8) == 0 and w.graph.state_bytes == 4 * 4 * 64 * (16 + 3)
    assert float(w.decode_bytes(SCHEME, 10)) == float(w.decode_bytes(SCHEME, 10**5))
    assert cycles(w, 10) == cycles(w, 10**5)
    hybrid = work("state-space:attention_every=2").graph
    assert hybrid.kv_bytes_per_token(8) == TINY.kv_bytes_per_token(8) / 2
    assert hybrid.state_bytes == w.graph.state_bytes / 2
    # Weights of a mixer: 128 x 32 in, 64 x 4 and 64 of the convolution, (2 + 32) x 64, 64 x 2 and 64, 64 x 16, 64, 32 x 64 out.
    mixer = 4096 + 256 + 64 + 34 * 64 + 128 + 64 + 1024 + 64 + 2048
    assert w.graph.parameters - TINY.parameters == 4 * (mixer - 4 * 64 * 32)


def test_the_order_is_kept():
    first = work("gqa:kv_heads=2", "low-rank:linears=k,rank=8").graph
    assert next(op for op in first.operators if op.name == "k.b").matrix.shape == (32, 8)
    with pytest.raises(UserError, match="linears = k"):
        work("low-rank:linears=k,rank=8", "low-rank:linears=k,rank=4")
    low_rank, pruning = "low-rank:linears=k,rank=8", "token-pruning:keep=0.5,from=0"
    for first, second in ((low_rank, "gqa:kv_heads=2"), (low_rank, "moe:experts=2,active=1"), (low_rank, "state-space:attention_every=0"),
                          (pruning, "moe:experts=2,active=1"), (pruning, "state-space:attention_every=0")):  # fmt: skip
        with pytest.raises(UserError, match="allowed is before it"):
            work(first, second)


def test_a_fused_factor_is_cut_to_keys_and_values_where_a_layer_is_left_out():
    graph = work("low-rank:linears=qkv,rank=64", graph=read_graph(CONFIGS / "gpt2.json")).graph
    left = exit_after(graph, 11)
    outputs = [op.matrix.shape[0] for op in left.operators if op.name == "qkv.b"]
    assert outputs == [3 * 768] * 11 + [2 * 768]


EXAMPLES = {
    "batch": "size=2", "gqa": "kv_heads=2", "moe": "experts=4,active=2", "kv-quantisation": "bits=4", "sparse-attention": "window=8,sinks=2",
    "token-pruning": "keep=0.9,from=1", "low-rank": "linears=up,rank=4", "state-space": "attention_every=2", "early-exit": "exits=2:0.5",
    "chunked-prefill": "chunk=4",
}  # fmt: skip


@pytest.mark.parametrize("name", [*EXAMPLES, "speculative"])
def test_every_transform_stays_inside_the_machines_bounds(name, tmp_path):
    w = work(f"{name}:{EXAMPLES.get(name) or f'draft={draft_path(tmp_path)},k=2,acceptance=0.5'}")
    made = {"tokens"}
    for part in w.decode_passes:
        names = [op.output for op in part.graph.operators]
        assert len(names) == len(set(names))
    for op in w.decode_passes[0].graph.operators:
        assert set(op.inputs) <= made, op
        made.add(op.output)
    taken = w.batch * cycles(w, 100)
    assert taken >= float(w.decode_macs(100)) / NANO.array.macs_per_cycle
    assert taken >= bytes_at(w, 100) / NANO.word_bytes


def test_every_transform_is_tried():
    assert set(EXAMPLES) | {"speculative"} == set(TRANSFORMS)
    for transform in TRANSFORMS.values():
        assert transform.what and transform.source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gq", "is unknown; allowed: batch, gqa"), ("gqa:heads=2", "key 'heads' is unknown; allowed: kv_heads"), ("gqa", "'kv_heads' is missing"),
        ("gqa:kv_heads=2,kv_heads=2", "given once"), ("gqa:kv_heads=3", "kv_heads = 3; allowed is a divisor of the 4 heads"),
        ("gqa:kv_heads=two", "kv_heads"), ("gqa:kv_heads=0", "kv_heads"), ("moe:experts=2,active=3", "active = 3; allowed is 1 to the 2"),
        ("kv-quantisation:bits=5", "2, 4, 8 and 16"), ("sparse-attention:window=4,block=2", "not both"), ("sparse-attention:sinks=1", "must be given"),
        ("sparse-attention:block=4,stride=2", "stride goes with window"), ("sparse-attention:window=4,blocks=2", "blocks goes with block"),
        ("token-pruning:keep=1.5,from=0", "keep"), ("token-pruning:keep=0.5,from=4", "from = 4; allowed is 0 to 3"), ("token-pruning:keep=nan,from=0", "keep"),
        ("low-rank:linears=router,rank=2", "linears = router; allowed is one of"), ("low-rank:linears=q,rank=1e3", "rank"),
        ("early-exit:exits=4:0.5", "from 1 to 3"), ("early-exit:exits=1:0.7+2:0.7", "sum to 1.4"), ("early-exit:exits=1:0.5+1:0.1", "different"),
        ("early-exit:exits=half", "LAYERS:SHARE"), ("early-exit:exits=1:nan", "shares from 0 to 1"), ("chunked-prefill:chunk=0", "chunk"),
        ("speculative:draft=no-such-model,k=2,acceptance=0.5", "no-such-model"), ("speculative:draft=embedded,k=2,acceptance=0.5", "tokens; allowed is the 64"),
        ("state-space:attention_every=-1", "attention_every"), ("batch:size=", "size"),
    ],
)
def test_a_mistake_is_one_line(text, words):
    with pytest.raises(UserError) as caught:
        work(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gqa:kv_heads=1", "kv-quantisation:bits=4", "sparse-attention:window=8", "token-pruning:keep=0.5,from=0",
                                  "early-exit:exits=2:0.5", "state-space:attention_every=0"])
@pytest.mark.parametrize("model", ["mamba-130m", "bert-base-uncased"])
def test_what_needs_cached_attention_says_so(name, model):
    with pytest.raises(UserError, match="needs a decoder with attention"):
        work(name, graph=read_graph(CONFIGS / f"{model}.json"))


def test_what_does_not_go_together(tmp_path):
    draft = f"speculative:draft={draft_path(tmp_path)},k=2,acceptance=0.5"
    for texts in (("early-exit:exits=2:0.5", draft), (draft, "early-exit:exits=2:0.5")):
        with pytest.raises(UserError, match="verification needs every layer"):
            work(*texts)
    with pytest.raises(UserError, match="early-exit needs attention in every layer after an exit"):
        work("state-space:attention_every=2", "early-exit:exits=1:0.5")
    with pytest.raises(UserError, match="gated MLP"):
        work("moe:experts=2,active=1", graph=read_graph(CONFIGS / "gpt2.json"))


def test_contradictions_are_refused():
    with pytest.raises(UserError, match="given twice"):
        work("kv-quantisation:bits=4", "kv-quantisation:bits=2")
    with pytest.raises(UserError, match="size = 2, but --batch 3"):
        work("batch:size=2", batch=3)
    assert work("batch:size=3", batch=3).batch == 3


def test_parsed_values_keep_their_types():
    assert parse_transform("token-pruning:keep=0.5,from=3")[1].model_dump(by_alias=True) == {"keep": 0.5, "from": 3}
