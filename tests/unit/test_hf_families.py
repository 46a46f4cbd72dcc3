"""Decoder families from folders in the published layout: logits against those of transformers (tests/hf_reference.py stored them),
and the golden executor against the float one, the contract written out, and itself."""

import dataclasses
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hf_families import CASES, stored_weights, tokens
from safetensors.numpy import save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as models_of_tokenizers

from headrace.kernels.contract import decoders, f32, functions
from headrace.models.architectures import describe
from headrace.models.architectures.graphs import read_graph
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.graph import KINDS, build_graph, visible_pairs
from headrace.models.formats.hf import load_hf, read_hf_config
from headrace.models.model import Model
from headrace.models.quantise import quantise_model
from headrace.models.scheme import load_scheme, weight_bytes
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor

DATA = Path(__file__).parents[1] / "data"
ALL = pytest.mark.parametrize("name", CASES)
GAINS = ("embedding_scale", "score_factor")


def write(folder: Path, name: str, *, change: dict | None = None, drop: tuple[str, ...] = (), rename=lambda tensor: tensor) -> Path:
    """A folder of one case; fields of its config.json changed, tensors dropped or renamed."""
    document = json.loads((DATA / "hf_logits" / f"{name}.json").read_text())
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document["config"] | (change or {})))
    weights = stored_weights(CASES[name][0], document["tensors"])
    save_file({rename(key): array for key, array in weights.items() if key not in drop}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Name of a case -> its Model, and the logits stored for it: position -> float32 [vocab]."""

    @cache
    def load(name: str) -> tuple[Model, dict[int, np.ndarray]]:
        loaded = load_hf(write(tmp_path_factory.mktemp(name), name))
        logits = json.loads((DATA / "hf_logits" / f"{name}.json").read_text())["logits"]
        weights = {key: loaded.weights[key] for key in loaded.weights}
        return dataclasses.replace(loaded, weights=weights), {int(at): np.array(row, np.float32) for at, row in logits.items()}

    return load


@pytest.fixture(scope="module")
def compressed(models):
    return cache(lambda name: quantise_model(models(name)[0], load_scheme("w8a8kv8")))


@ALL
def test_float_logits_are_those_of_the_published_class(models, name):
    model, logits = models(name)
    executor = FloatExecutor.from_model(model)
    whole = executor.prefill(tokens(), all_positions=True)
    for position, expected in logits.items():
        assert np.allclose(whole[position], expected, rtol=1e-4, atol=1e-4), position
    executor.reset()
    executor.prefill(tokens()[:11])
    for position in range(11, len(tokens())):
        assert np.allclose(executor.step(int(tokens()[position])), whole[position], rtol=1e-3, atol=1e-3), position


@ALL
def test_every_difference_from_a_llama_counts(models, name):
    """Each field set back to Llama's value, and each tensor that Llama lacks zeroed, moves the logits: none is read and ignored."""
    model, logits = models(name)
    c, last = model.config, max(logits)

    def moved(config: DecoderConfig, weights) -> float:
        return np.abs(FloatExecutor(config, weights).prefill(tokens()) - logits[last]).max()

    for field in c.differences.keys() - {"norm", "gated", "positions", "window_layers", "biases", "qk_norm", "post_norms", "rope_divisors"}:
        default = DecoderConfig.__dataclass_fields__[field].default
        change = {"window": None, "window_layers": ()} if field == "window" else {field: default}
        assert moved(dataclasses.replace(c, **change), model.weights) > 1e-3, field
    if c.rope_divisors:
        assert moved(dataclasses.replace(c, rope_divisors=()), model.weights) > 1e-3
    for tensor in c.layer_shapes():
        # A key's bias shifts a query's scores all alike where nothing turns or norms it, and the softmax takes that out.
        if tensor == "k.bias" and c.positions == "learned":
            continue
        whole = f"layers.{c.layers - 1}.{tensor}"
        assert moved(c, model.weights | {whole: np.zeros_like(model.weights[whole])}) > 1e-3, tensor


@ALL
def test_prefill_in_any_cut_equals_stepping_bit_for_bit(compressed, name):
    qmodel, text = compressed(name), tokens().tolist()
    stepped = GoldenExecutor(qmodel)
    reference = f32.bits(np.stack([stepped.step(token) for token in text]))
    assert np.array_equal(f32.bits(GoldenExecutor(qmodel).prefill(text, all_positions=True)), reference)
    for cut in (1, 8, 23):
        mixed = GoldenExecutor(qmodel)
        first = mixed.prefill(text[:cut], all_positions=True)
        rest = mixed.prefill(text[cut:], all_positions=True)
        assert np.array_equal(f32.bits(np.concatenate([first, rest])), reference), cut


@ALL
def test_golden_is_near_the_float_model(models, compressed, name):
    """8-bit weights, activations, keys, values and probabilities each round by up to 1/254 of a vector's maximum; over a few layers of
    unit gain the errors add in quadrature to some percent of the logits. A wrong operator is off by a whole term."""
    text = tokens()
    exact = FloatExecutor.from_model(models(name)[0]).prefill(text, all_positions=True).astype(np.float64)
    got = GoldenExecutor(compressed(name)).prefill(text.tolist(), all_positions=True)
    error = np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean())
    print(name, "relative error", error)
    assert error < 0.045
    assert np.corrcoef(got.ravel(), exact.ravel())[0, 1] > 0.998


def naive_logits(qmodel, text) -> np.ndarray:
    """Logits after `text`, sections 3 to 5 of docs/contract.md written out with loops over heads and positions."""
    c, fn = qmodel.config, functions

    def linear(layer, name, q, s):
        matrix = layer[name]
        y = f32.mul(f32.from_int32((matrix.int8().astype(np.int64) @ q.astype(np.int64)).astype(np.int32)), f32.mul(s, matrix.row_scale))
        return f32.add(y, layer[name + ".bias"]) if name in c.biases else y

    def norm(layer, name, x):
        if c.norm == "layernorm":
            return decoders.layernorm(x, layer[name], layer[name + ".bias"], c.rms_eps)
        return fn.rmsnorm(x, layer[name], c.rms_eps)

    def row(table, index, scale):
        return f32.mul(table.int8()[index].astype(np.float32), f32.mul(table.row_scale[index], np.float32(scale)))

    cache = [[] for _ in range(c.layers)]
    for t, token in enumerate(text):
        x = row(qmodel.embedding, token, c.embedding_scale)
        if c.positions == "learned":
            x = f32.add(x, row(qmodel.positions, t + c.position_offset, 1.0))
        for i, layer in enumerate(qmodel.layers):
            local = i in c.window_layers
            cos, sin = qmodel.window_rope if local and c.window_rope_theta else (qmodel.rope_cos, qmodel.rope_sin)

            def head(vector, norm_name):
                vector = norm(layer, norm_name, vector) if c.qk_norm else vector
                return fn.quantise(fn.rope(vector, cos[t], sin[t]) if c.positions == "rope" else vector)

            hq, s = fn.quantise(norm(layer, "attn_norm", x))
            q, k, v = (linear(layer, n, hq, s).reshape(-1, c.head_dim) for n in "qkv")
            cache[i].append(([head(part, "k_norm") for part in k], [fn.quantise(part) for part in v]))
            seen = [at for at in range(t + 1) if not local or t - at < c.window]
            outs = []
            for number in range(c.heads):
                g = number // (c.heads // c.kv_heads)
                q8, s_q = head(q[number], "q_norm")
                s_q = f32.mul(s_q, np.float32(c.score_multiplier))
                scores = {}
                for at in seen:
                    k8, s_k = cache[i][at][0][g]
                    scores[at] = f32.mul(f32.from_int32(np.int32(int(q8.astype(int) @ k8.astype(int)))), f32.mul(s_q, s_k))
                    if c.score_cap is not None:
                        scores[at] = decoders.softcap(scores[at], c.score_cap)
                largest = max(scores.values())
                e, p = np.zeros(t + 1, np.float32), np.zeros(t + 1, np.float32)  # rows outside the window keep their place in the sum
                for at in seen:
                    e[at] = fn.exp(f32.sub(scores[at], largest))
                    p[at] = f32.mul(e[at], cache[i][at][1][g][1])
                p8, s_p = fn.quantise(p)
                acc = sum(int(p8[at]) * cache[i][at][1][g][0].astype(np.int64) for at in seen).astype(np.int32)
                outs.append(f32.mul(f32.from_int32(acc), f32.mul(s_p, fn.recip(f32.sum16(e)))))
            delta = linear(layer, "o", *fn.quantise(np.concatenate(outs)))
            x = f32.add(x, norm(layer, "post_attn_norm", delta) if c.post_norms else delta)
            hq, s = fn.quantise(norm(layer, "mlp_norm", x))
            act = decoders.ACTIVATIONS[c.activation]
            inner = f32.mul(act(linear(layer, "gate", hq, s)), linear(layer, "up", hq, s)) if c.gated else act(linear(layer, "up", hq, s))
            delta = linear(layer, "down", *fn.quantise(inner))
            x = f32.add(x, norm(layer, "post_mlp_norm", delta) if c.post_norms else delta)
    last = {"final_norm": qmodel.final_norm, "final_norm.bias": qmodel.final_norm_bias, "lm_head": qmodel.lm_head}
    logits = linear(last, "lm_head", *fn.quantise(norm(last, "final_norm", x)))
    return logits if c.logit_cap is None else decoders.softcap(logits, c.logit_cap)


@pytest.mark.parametrize("name", ["llama-biases-tied", "mistral", "qwen3-biases", "gpt2-untied", "opt", "gemma2", "gemma3", "gemma3-stretched"])
def test_golden_equals_the_contract_written_out(compressed, name):
    text = tokens()[:12].tolist()  # past the windows of 7 and 9
    assert np.array_equal(f32.bits(GoldenExecutor(compressed(name)).prefill(text)), f32.bits(naive_logits(compressed(name), text)))


def test_rows_outside_the_window_are_never_read_as_data(compressed):
    qmodel = compressed("mistral")
    clean, dirty = GoldenExecutor(qmodel), GoldenExecutor(qmodel)
    for executor in (clean, dirty):
        executor.prefill(tokens()[:20].tolist())
    for kept in dirty.cache:  # position 20 sees 12 to 20
        kept.k8[:, :12], kept.v8[:, :12], kept.s_k[:, :12], kept.s_v[:, :12] = 55, -99, np.nan, np.inf
    assert np.array_equal(f32.bits(clean.prefill([8, 9])), f32.bits(dirty.prefill([8, 9])))
    dirty.cache[1].k8[:, 14] += 1
    assert not np.array_equal(clean.step(10), dirty.step(10))


@ALL
def test_operators_of_the_graph_are_those_that_run(compressed, name):
    qmodel = compressed(name)
    graph = build_graph(qmodel.config)
    seen = set()
    GoldenExecutor(qmodel, trace=lambda layer, operator, array: seen.add((layer, operator.split(".")[0]))).prefill([1, 2, 3])
    assert seen == {(op.layer, op.name) for op in graph.operators if op.name not in ("kv_append", "argmax")}
    assert {op.kind for op in graph.operators} <= set(KINDS)
    used = [tensor for op in graph.operators for tensor in op.weights]
    assert sorted(used) == sorted([*qmodel.config.weight_shapes()] + ["embedding"] * qmodel.config.tie_embeddings)
    assert qmodel.required_bytes == weight_bytes(qmodel.config, load_scheme("w8a8kv8"))


def test_pairs_within_a_window():
    for tokens_, context, window in ((1, 1, 1), (1, 9, 4), (5, 9, 4), (9, 9, 4), (9, 9, 9), (9, 9, 20), (3, 30, 28), (3, 30, 29)):
        pairs = sum(min(window, context - tokens_ + 1 + i) for i in range(tokens_))
        assert visible_pairs(tokens_, context, window) == pairs
    config = read_hf_config_of("gemma3")
    macs = {op.layer: op.macs(tokens=1, context=30) for op in build_graph(config).operators if op.kind == "attention_qk"}
    assert macs == {layer: 4 * 16 * (30 if layer == 5 else 7) for layer in range(7)}


def read_hf_config_of(name: str) -> DecoderConfig:
    from headrace.models.formats.hf_families import config_of

    path = DATA / "hf_logits" / f"{name}.json"
    return config_of(path, json.loads(path.read_text())["config"], name)


def published(tmp_path: Path, name: str) -> DecoderConfig:
    (tmp_path / "config.json").write_text((DATA / "hf_configs" / f"{name}.json").read_text())
    return read_hf_config(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["llama-2-7b", "llama-2-70b", "llama-3-8b", "llama-3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b", "gemma-2-2b", "gemma-3-1b",
     "gemma-3-270m", "gpt2", "gpt2-xl", "opt-125m", "opt-6.7b"],
)  # fmt: skip
def test_counts_of_published_models_are_those_of_their_description(tmp_path, name):
    counted, config = describe(DATA / "hf_configs" / f"{name}.json").counted, published(tmp_path, name)
    assert (config.parameters, config.macs_per_token) == (counted.parameters, counted.macs_per_token)
    assert config.kv_bytes_per_token(8) == counted.kv.bytes_per_token(8)
    assert weight_bytes(config, load_scheme("w4a8kv8")) == counted.weight_bytes(load_scheme("w4a8kv8"))


@pytest.mark.parametrize("name", ["mistral-7b", "qwen2.5-7b"])
def test_layer_types_count_where_the_published_class_reads_them(tmp_path, name):
    document = json.loads((DATA / "hf_configs" / f"{name}.json").read_text())
    types = ["full_attention"] * (document["num_hidden_layers"] - 1) + ["sliding_attention"]
    changes = {"layer_types": types, "sliding_window": 64, "use_sliding_window": True}
    (tmp_path / "config.json").write_text(json.dumps(document | changes))
    config, graph = read_hf_config(tmp_path), read_graph(tmp_path)
    every = tuple(range(len(types)))
    assert config.window_layers == (every if name == "mistral-7b" else every[-1:])
    assert tuple(op.layer for op in graph.operators if op.kind == "attention_qk" and op.mask.window == 64) == config.window_layers
    (tmp_path / "config.json").write_text(json.dumps(document | changes | {"num_hidden_layers": 10**9}))
    with pytest.raises(UserError, match="num_hidden_layers = '1000000000'"):
        read_hf_config(tmp_path)


def test_published_models_in_words(tmp_path):
    gemma = published(tmp_path, "gemma-3-270m")
    assert (gemma.window, gemma.rope_theta, gemma.window_rope_theta, gemma.score_factor) == (4096, 1e6, 1e4, 1 / 16)
    assert [layer for layer in range(gemma.layers) if gemma.window_of(layer) is None] == [5, 11, 17]
    assert published(tmp_path, "gemma-2-2b").window_layers == tuple(range(0, 26, 2))
    assert published(tmp_path, "mistral-7b").window_layers == tuple(range(32))
    assert published(tmp_path, "qwen2.5-7b").window is None and published(tmp_path, "qwen2.5-7b").biases == ("q", "k", "v")
    stretched = published(tmp_path, "llama-3.2-1b")  # its tables are in the image, so a machine of version 1 runs it
    assert stretched.plain_llama and stretched.rope_divisors[0] == 1.0 and stretched.rope_divisors[-1] == 32.0
    assert published(tmp_path, "gpt2").differences.keys() == {"norm", "gated", "activation", "biases", "positions"}


def test_older_fields_of_rope_mean_the_same(tmp_path):
    for name, older in (
        ("gemma3-stretched", {"rope_theta": 1000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"type": "linear", "factor": 8.0}}),
        ("llama3-rope", {"rope_theta": 300.0, "rope_scaling": CASES["llama3-rope"][1]["rope_parameters"]}),
    ):
        newer = load_hf(write(tmp_path / name, name)).config
        assert load_hf(write(tmp_path / name, name, change={"rope_parameters": None} | older)).config == newer
    pattern = {"layer_types": None, "sliding_window_pattern": 2}
    assert load_hf(write(tmp_path / "p", "gemma3-stretched", change=pattern)).config.window_layers == (0, 2)


@pytest.mark.parametrize("name", ["opt-350m", "mixtral-8x7b", "qwen3-30b-a3b", "phi-3-mini", "bloom-560m", "mamba-130m"])
def test_what_has_no_operators_is_refused_in_one_line(tmp_path, name):
    with pytest.raises(UserError) as caught:
        published(tmp_path, name)
    assert "allowed is" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types"), ("gemma3", {"layer_types": [1] * 7}, "layer_types"),
        ("gemma3", {"num_hidden_layers": 10**9, "layer_types": None}, "num_hidden_layers"), ("gemma3", {"sliding_window": 0}, "window = 0"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"), ("gemma3", {"query_pre_attn_scalar": "x"}, "query_pre_attn_scalar"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional"), ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma3", {"rope_parameters": {"full_attention": 3}}, "rope_parameters"), ("gemma3", {"hidden_size": 0}, "width"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "logit_cap"), ("gemma2", {"attn_logit_softcapping": True}, "attn_logit_softcapping"),
        ("mistral", {"sliding_window": 1.5}, "sliding_window"), ("mistral", {"attention_bias": 1}, None),
        ("qwen2", {"use_sliding_window": "yes"}, "use_sliding_window"), ("qwen2", {"model_type": "qwen3"}, "model_type = 'qwen3'; allowed is 'qwen2'"),
        ("qwen3", {"head_dim": 15}, "head_dim"), ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters"),
        ("llama3-rope", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters.low_freq_factor"),
        ("llama-linear-rope", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor"),
        ("llama-linear-rope", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, "whole heads"),
        ("gpt2", {"n_embd": 50}, "n_embd = '?50'?; allowed is a multiple of n_head"), ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2", {"activation_function": ["relu"]}, "activation_function"), ("gpt2", {"n_inner": 10**9}, "ffn"), ("gpt2", {"n_head": 0}, "n_head = 0"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"), ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"), ("opt", {"max_position_embeddings": 32}, "embed_positions.weight has shape"),
        ("gemma2", {"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures"), ("opt", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("gpt2", {"n_layer": 1}, "h.1.attn.c_attn.bias' is not part of the gpt2"), ("qwen2-tied-window", {"max_window_layers": None, "layer_types": 7}, "layer_types"),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_named(tmp_path, name, change, message):
    folder = write(tmp_path, name, change=change)
    if message is None:  # a field that the family does not know
        load_hf(folder)
        return
    with pytest.raises(UserError, match=message) as caught:
        load_hf(folder)
    assert "\n" not in str(caught.value)


def test_tensors_under_the_names_of_a_bare_model_and_missing_ones(tmp_path, models):
    for name, prefix in (("gpt2", "transformer."), ("opt", "model.")):
        model = load_hf(write(tmp_path / name, name, rename=lambda tensor, prefix=prefix: tensor.removeprefix(prefix)))
        assert all(np.array_equal(model.weights[key], models(name)[0].weights[key]) for key in model.weights)
    for name, tensor in (("gpt2", "transformer.h.1.mlp.c_fc.bias"), ("gemma3", "model.layers.2.self_attn.k_norm.weight"), ("opt", "model.decoder.embed_positions.weight")):
        with pytest.raises(UserError, match=f"tensor {tensor} is missing"):
            load_hf(write(tmp_path / tensor, name, drop=(tensor,)))


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "qwen2"])
def test_observe_sees_the_input_of_every_linear(models, name):
    model, _ = models(name)
    seen: dict[str, list] = {}
    executor = FloatExecutor.from_model(model, observe=lambda weight, x: seen.setdefault(weight, []).append(x.copy()))
    expected = {f"layers.{i}.{linear}" for i in range(model.config.layers) for linear in model.config.linear_names} | {"lm_head"}
    whole = executor.prefill(tokens(), all_positions=True)
    assert seen.keys() == expected
    for weight, inputs in seen.items():
        matrix = model.weights["embedding" if weight == "lm_head" and model.config.tie_embeddings else weight]
        assert [(x.shape, x.dtype) for x in inputs] == [((len(tokens()), matrix.shape[1]), np.dtype(np.float32))], weight
    head = model.weights["embedding" if model.config.tie_embeddings else "lm_head"]
    assert np.allclose(seen["lm_head"][0] @ head.T, whole, atol=1e-4)
    assert np.array_equal(seen["layers.0.q"][0], seen["layers.0.v"][0])


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "llama"])
def test_a_batch_is_its_texts_one_by_one(models, name):
    executor = FloatExecutor.from_model(models(name)[0])
    texts = np.stack([np.roll(tokens(), shift) for shift in (0, 3, 11)])
    whole = executor.prefill(texts[:, :30], all_positions=True)
    steps = np.stack([executor.step(texts[:, position]) for position in range(30, 40)], axis=1)
    assert whole.shape == (3, 30, 61) and steps.shape == (3, 10, 61)
    with pytest.raises(UserError, match="are of 2 texts; allowed are those of the 3 begun"):
        executor.step(texts[:2, 0])
    for text, prefill, stepped in zip(texts, whole, steps, strict=True):
        executor.reset()
        one = executor.prefill(text, all_positions=True)
        assert np.allclose(one, np.concatenate([prefill, stepped]), rtol=1e-3, atol=1e-3)
    executor.reset()
    assert np.allclose(executor.prefill(texts), [FloatExecutor.from_model(models(name)[0]).prefill(text) for text in texts], rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match="whole numbers"):
        executor.prefill(np.zeros((2, 2, 2), int))


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "qwen3", "mistral"])
@pytest.mark.parametrize(
    "command",
    [
        ("cosim", "MODEL", "nano", "--prompt", "a", "--tokens", "1"), ("rtl", "nano", "--model", "MODEL", "--prompt", "a", "--tokens", "1", "-o", "OUT"),
        ("kernels", "generate", "MODEL", "-o", "OUT.py"), ("kernels", "bench", "--model", "MODEL"),
    ],
    ids=lambda command: " ".join(command[:2]),
)  # fmt: skip
def test_what_goes_to_hardware_takes_plain_llama_alone(tmp_path, capsys, name, command):
    from headrace.cli import main

    folder = write(tmp_path / "model", name)
    Tokenizer(models_of_tokenizers.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    words = {"MODEL": str(folder), "OUT": str(tmp_path / "out"), "OUT.py": str(tmp_path / "out.py")}
    assert main([words.get(word, word) for word in command]) == 2
    error = capsys.readouterr().err.strip()
    assert "takes plain Llama models alone" in error.splitlines()[-1]


@pytest.mark.parametrize("backend", ["golden", "float"])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "opt", "qwen3"])
def test_generate_and_perplexity_run(tmp_path, capsys, name, backend):
    from headrace.cli import main

    folder = write(tmp_path / "model", name)
    words = Tokenizer(models_of_tokenizers.WordLevel({f"w{n}": n for n in range(61)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    assert main(["generate", str(folder), "--backend", backend, "--prompt", "w3 w1 w4 w1 w5", "--tokens", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 4
    (tmp_path / "text").write_text(" ".join(f"w{n}" for n in tokens()))
    assert main(["perplexity", str(folder), "--backend", backend, "--text", str(tmp_path / "text"), "--json"]) == 0
    assert 1 < json.loads(capsys.readouterr().out)["perplexity"] < 1e9
