"""The golden executor on small random models: one answer for every way of cutting the tokens, and close to float."""

import dataclasses

import numpy as np
import pytest

from headrace.kernels.contract import f32, functions, kv4
from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig, build_graph
from headrace.models.model import Model
from headrace.models.quantise import quantise_model
from headrace.models.scheme import load_scheme
from headrace.sim import golden as golden_module
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor

SEED = 20240604
CONFIG = LlamaConfig(
    name="tiny", vocab=97, width=48, layers=2, heads=6, kv_heads=2, head_dim=16, ffn=80, max_positions=200, tie_embeddings=True
)


def random_model(config: LlamaConfig, seed: int = SEED) -> Model:
    print("seed", seed)
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.weight_shapes().items():
        if len(shape) == 1:
            weights[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            weights[name] = (rng.standard_normal(shape) * (1.0 if name == "embedding" else shape[1] ** -0.5)).astype(np.float32)
    return Model(config=config, weights=weights)


@pytest.fixture(scope="module", params=["w4a8kv8", "w8a8kv8"])
def qmodel(request):
    return quantise_model(random_model(CONFIG), load_scheme(request.param))


def tokens_of(count: int) -> list[int]:
    return np.random.default_rng(SEED).integers(0, CONFIG.vocab, count).tolist()


def test_prefill_in_any_cut_equals_stepping_bit_for_bit(qmodel):
    tokens = tokens_of(140)  # more than two passes of 64, and past a doubling of the cache
    stepped = GoldenExecutor(qmodel)
    reference = np.stack([stepped.step(token) for token in tokens])
    whole = GoldenExecutor(qmodel)
    assert np.array_equal(f32.bits(whole.prefill(tokens, all_positions=True)), f32.bits(reference))
    for cut in (1, 70):
        mixed = GoldenExecutor(qmodel)
        mixed.prefill(tokens[:cut])
        assert np.array_equal(f32.bits(mixed.prefill(tokens[cut:])), f32.bits(reference[-1]))
    for layer in range(CONFIG.layers):
        for field in ("k8", "v8"):
            assert np.array_equal(getattr(whole.cache[layer], field)[:, :140], getattr(stepped.cache[layer], field)[:, :140])
        for field in ("s_k", "s_v"):
            assert np.array_equal(getattr(whole.cache[layer], field)[:, :140], getattr(stepped.cache[layer], field)[:, :140])


def test_the_size_of_a_pass_and_how_weights_are_kept_change_no_bit(qmodel, monkeypatch):
    tokens = tokens_of(40)
    reference = f32.bits(GoldenExecutor(qmodel).prefill(tokens, all_positions=True))
    monkeypatch.setattr(golden_module, "FLOAT32_ELEMENTS", 0)
    for positions in (1, 3, 9):  # the compiled int8 kernel up to GEMV_POSITIONS, conversion above
        monkeypatch.setattr(golden_module, "POSITIONS_PER_PASS", positions)
        assert np.array_equal(f32.bits(GoldenExecutor(qmodel).prefill(tokens, all_positions=True)), reference)


def test_the_compiled_kernel_is_exact_at_the_limit():
    from headrace.sim.int8_gemv import int8_gemv

    matrix = np.full((2, 133_144), 127, np.int8)
    matrix[1] = -127
    result = np.empty(2, np.int32)
    int8_gemv(np.full(133_144, 127, np.int16), matrix, result)
    assert result.tolist() == [133_144 * 127**2, -133_144 * 127**2]


def test_reset_forgets(qmodel):
    executor = GoldenExecutor(qmodel)
    first = executor.prefill([1, 2, 3])
    assert not np.array_equal(executor.step(4), first)
    executor.reset()
    assert executor.position == 0 and np.array_equal(executor.prefill([1, 2, 3]), first)


def test_rows_past_the_length_are_never_read_as_data(qmodel):
    clean, dirty = GoldenExecutor(qmodel), GoldenExecutor(qmodel)
    for executor in (clean, dirty):
        executor.prefill([5, 6, 7])
    for cache in dirty.cache:
        cache.k8[:, 3:], cache.v8[:, 3:] = 55, -99
        cache.s_k[:, 3:], cache.s_v[:, 3:] = np.inf, -1.0
    assert np.array_equal(clean.prefill([8, 9]), dirty.prefill([8, 9]))
    dirty.cache[0].k8[:, 0] += 1  # a row within the length does matter
    assert not np.array_equal(clean.step(10), dirty.step(10))


def test_golden_is_near_the_float_model_on_the_same_grid(qmodel):
    tokens = tokens_of(60)
    got = GoldenExecutor(qmodel).prefill(tokens, all_positions=True).astype(np.float64)
    exact = FloatExecutor.from_quantised(qmodel).prefill(tokens, all_positions=True).astype(np.float64)
    error = np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean())
    assert error < 0.05
    # A model that differs in one matrix is farther away than that.
    layers = ({**qmodel.layers[0], "v": qmodel.layers[0]["k"]}, *qmodel.layers[1:])
    wrong = GoldenExecutor(dataclasses.replace(qmodel, layers=layers)).prefill(tokens, all_positions=True)
    assert np.sqrt(((wrong - exact) ** 2).mean() / (exact**2).mean()) > 0.2


def test_float_model_steps_like_its_prefill_and_rotates_like_the_contract(qmodel):
    model = FloatExecutor.from_quantised(qmodel)
    tokens = tokens_of(70)
    whole = model.prefill(tokens, all_positions=True)
    model.reset()
    stepped = np.stack([model.step(token) for token in tokens])
    assert np.allclose(whole, stepped, rtol=1e-3, atol=1e-3)


def sees(rules, query: int, key: int) -> bool:
    """Contract section 7 in words; `rules`: a scheme's attention or None."""
    if rules is None:
        return True
    near = query - key < rules.window if rules.window else query // rules.block - key // rules.block < rules.blocks
    return near or key < rules.sinks or (rules.stride is not None and (query - key) % rules.stride == 0)


def naive_step(qmodel, tokens) -> np.ndarray:
    """Logits after `tokens`, every operation of the contract written out with loops over heads and positions."""
    c, fn = qmodel.config, functions

    def kept(head):
        q, s = fn.quantise(head)
        return (q, s) if qmodel.scheme.kv_bits == 8 else (kv4.decode(*kv4.encode(q)), s)

    def linear(weight, q, s):
        acc = (weight.int8().astype(np.int64) @ q.astype(np.int64)).astype(np.int32)
        return f32.mul(f32.from_int32(acc), f32.mul(s, weight.row_scale))

    cache = [[] for _ in range(c.layers)]
    for position, token in enumerate(tokens):
        x = f32.mul(qmodel.embedding.int8()[token].astype(np.float32), qmodel.embedding.row_scale[token])
        cos, sin = qmodel.rope_cos[position], qmodel.rope_sin[position]
        for i, layer in enumerate(qmodel.layers):
            hq, s = fn.quantise(fn.rmsnorm(x, layer["attn_norm"], c.rms_eps))
            q, k, v = (linear(layer[name], hq, s).reshape(-1, c.head_dim) for name in "qkv")
            keys = [kept(fn.rope(head, cos, sin)) for head in k]
            values = [kept(head) for head in v]
            seen = [sees(qmodel.scheme.attention, position, key) for key in range(position + 1)]
            cache[i].append((keys, values))
            outs = []
            for head in range(c.heads):
                g = head // (c.heads // c.kv_heads)
                q8, s_q = fn.quantise(fn.rope(q[head], cos, sin))
                s_q = f32.mul(s_q, np.float32(1 / np.sqrt(c.head_dim)))
                scores = []
                for past_keys, _ in cache[i]:
                    acc = np.int32(sum(int(a) * int(b) for a, b in zip(q8, past_keys[g][0])))
                    scores.append(f32.mul(f32.from_int32(acc), f32.mul(s_q, past_keys[g][1])))
                m = None
                for score, shown in zip(scores, seen, strict=True):
                    if shown:
                        m = score if m is None else f32.maximum(m, score)
                e = np.where(seen, fn.exp(np.array([f32.sub(score, m) for score in scores], np.float32)), np.float32(0))
                s_v = np.array([past[1][g][1] for past in cache[i]], np.float32)
                p8, s_p = fn.quantise(f32.mul(e, s_v))
                s_out = f32.mul(s_p, fn.recip(f32.sum16(e)))
                v8 = np.stack([past[1][g][0] for past in cache[i]]).astype(np.int64)
                outs.append(f32.mul(f32.from_int32((p8.astype(np.int64) @ v8).astype(np.int32)), s_out))
            x = f32.add(x, linear(layer["o"], *fn.quantise(np.concatenate(outs))))
            hq, s = fn.quantise(fn.rmsnorm(x, layer["mlp_norm"], c.rms_eps))
            gate, up = linear(layer["gate"], hq, s), linear(layer["up"], hq, s)
            sigmoid = fn.recip(f32.add(fn.exp(f32.neg(gate)), np.float32(1)))
            x = f32.add(x, linear(layer["down"], *fn.quantise(f32.mul(f32.mul(gate, sigmoid), up))))
    return linear(qmodel.lm_head, *fn.quantise(fn.rmsnorm(x, qmodel.final_norm, c.rms_eps)))


def test_golden_equals_the_contract_written_out_head_by_head(qmodel):
    tokens = tokens_of(5)
    assert np.array_equal(f32.bits(GoldenExecutor(qmodel).prefill(tokens)), f32.bits(naive_step(qmodel, tokens)))


OPTIONS = [
    ["kv_bits=4"], ["attention={window: 3}"], ["attention={window: 2, sinks: 1}"], ["attention={window: 2, stride: 3}"],
    ["attention={window: 1, stride: 4, sinks: 2}"], ["attention={block: 3}"], ["attention={block: 3, blocks: 2, sinks: 1}"],
    ["kv_bits=4", "attention={window: 5, sinks: 2}"],
]  # fmt: skip


@pytest.fixture(scope="module", params=OPTIONS, ids=" ".join)
def optional(request):
    return quantise_model(random_model(dataclasses.replace(CONFIG, head_dim=40)), load_scheme("w4a8kv8", request.param))


def test_caches_of_4_bits_and_masks_equal_the_contract_written_out(optional):
    tokens = tokens_of(11)
    got = f32.bits(GoldenExecutor(optional).prefill(tokens))
    assert np.array_equal(got, f32.bits(naive_step(optional, tokens)))
    dense = dataclasses.replace(optional, scheme=load_scheme("w4a8kv8"))
    assert not np.array_equal(got, f32.bits(GoldenExecutor(dense).prefill(tokens)))


def test_caches_of_4_bits_and_masks_know_no_passes(optional):
    tokens = tokens_of(80)
    stepped = GoldenExecutor(optional)
    reference = np.stack([stepped.step(token) for token in tokens])
    assert np.array_equal(f32.bits(GoldenExecutor(optional).prefill(tokens, all_positions=True)), f32.bits(reference))
    for cut in (7, 70):
        mixed = GoldenExecutor(optional)
        first = mixed.prefill(tokens[:cut], all_positions=True)
        assert np.array_equal(f32.bits(np.concatenate([first, mixed.prefill(tokens[cut:], all_positions=True)])), f32.bits(reference))


def test_caches_of_4_bits_and_masks_are_near_the_float_model(optional):
    tokens = tokens_of(40)
    got = GoldenExecutor(optional).prefill(tokens, all_positions=True).astype(np.float64)
    executor = FloatExecutor.from_quantised(optional)
    exact = executor.prefill(tokens, all_positions=True).astype(np.float64)
    assert np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean()) < (0.05 if optional.scheme.kv_bits == 8 else 0.15)
    executor.reset()
    stepped = np.stack([executor.step(token) for token in tokens])
    assert np.allclose(exact, stepped, rtol=1e-3, atol=1e-3)
    if optional.scheme.attention is not None:
        dense = FloatExecutor.from_quantised(dataclasses.replace(optional, scheme=load_scheme("w4a8kv8")))
        far = dense.prefill(tokens, all_positions=True)
        assert np.sqrt(((far - exact) ** 2).mean() / (exact**2).mean()) > 0.2


@pytest.mark.parametrize("rules", ["{window: 90}", "{block: 90}", "{window: 1, stride: 1}", "{window: 1, sinks: 90}", "{block: 1, blocks: 90}"])
def test_a_mask_that_hides_nothing_changes_no_bit(qmodel, rules):
    tokens = tokens_of(90)
    masked = dataclasses.replace(qmodel, scheme=load_scheme("w4a8kv8", [f"attention={rules}"]))
    for executor in (GoldenExecutor, FloatExecutor.from_quantised):
        dense, other = (executor(model).prefill(tokens, all_positions=True) for model in (qmodel, masked))
        assert np.array_equal(dense.view(np.uint32), other.view(np.uint32))


def test_hidden_rows_are_never_read_as_data(qmodel):
    masked = dataclasses.replace(qmodel, scheme=load_scheme("w4a8kv8", ["attention={window: 4, sinks: 2}"]))
    clean, dirty = GoldenExecutor(masked), GoldenExecutor(masked)
    for executor in (clean, dirty):
        executor.prefill(tokens_of(20))
    for cache in dirty.cache:  # position 20 sees 0, 1 and 17 to 20
        cache.k8[:, 2:17], cache.v8[:, 2:17], cache.s_k[:, 2:17], cache.s_v[:, 2:17] = 55, -99, np.nan, np.inf
    assert np.array_equal(f32.bits(clean.prefill([8, 9])), f32.bits(dirty.prefill([8, 9])))
    dirty.cache[0].k8[:, 1] += 1
    assert not np.array_equal(clean.step(10), dirty.step(10))


def test_untied_head_single_head_and_odd_sizes():
    config = dataclasses.replace(CONFIG, heads=3, kv_heads=3, head_dim=10, ffn=37, width=33, tie_embeddings=False)
    model = quantise_model(random_model(config), load_scheme("w4a8kv8"))
    tokens = tokens_of(4)
    assert np.array_equal(f32.bits(GoldenExecutor(model).prefill(tokens)), f32.bits(naive_step(model, tokens)))


def test_trace_names_the_operators_and_gives_the_same_values_in_prefill_and_decode(qmodel):
    seen: dict[tuple[int, str], list] = {}

    def trace(layer, name, array):
        seen.setdefault((layer, name), []).append(array.copy())

    tokens = tokens_of(6)
    GoldenExecutor(qmodel, trace=trace).prefill(tokens, all_positions=True)
    whole = {key: values[0] for key, values in seen.items()}
    seen.clear()
    stepped = GoldenExecutor(qmodel, trace=trace)
    for token in tokens:
        stepped.step(token)
    assert whole.keys() == seen.keys()
    operators = {op.name for op in build_graph(CONFIG).operators} - {"kv_append", "argmax"}
    names = {name.split(".")[0] for _, name in whole}
    assert names == operators
    for (layer, name), values in seen.items():
        assert whole[layer, name].dtype in (np.float32, np.int8)
        for position, value in enumerate(values):
            expected = whole[layer, name][position]
            if name in ("attention_qk", "softmax.q8"):
                expected = expected[:, : position + 1]
            assert np.array_equal(value[0], expected), (layer, name, position)


def test_refusals(qmodel):
    executor = GoldenExecutor(qmodel)
    with pytest.raises(UserError, match="at least one"):
        executor.prefill([])
    with pytest.raises(UserError, match="token 97 is unknown; allowed are 0 to 96"):
        executor.step(97)
    with pytest.raises(UserError, match="allowed are max_positions = 200"):
        executor.prefill([1] * 201)
    executor.prefill([1] * 200)
    with pytest.raises(UserError, match="201 positions"):
        executor.step(1)


def test_grids_and_tables_of_the_model_are_those_of_the_contract(qmodel):
    for layer in qmodel.layers:
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            assert np.array_equal(golden_module.weight_grid(layer[name], name), layer[name].int8())
    cos, sin = functions.rope_tables(range(CONFIG.max_positions), CONFIG.head_dim, CONFIG.rope_theta)
    assert np.array_equal(cos, qmodel.rope_cos) and np.array_equal(sin, qmodel.rope_sin)
