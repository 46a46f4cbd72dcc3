"""Modules through torch.export: the numpy executor against PyTorch, counts against PyTorch's own counter, and what is refused."""

import inspect
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import nn
from torch.export import Dim
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import headrace.models
import tensor_graph_fixture
from headrace.models.errors import UserError
from headrace.models.registry import load_model
from headrace.models.exported.tensor_graph import TensorGraph
from headrace.models.exported.tensor_graph_file import load_graph
from headrace.models.exported.torch_export import export_module, from_exported
from headrace.sim.float_model import FloatExecutor
from headrace.sim.tensors.tensor_executor import bind_lengths, run

pytestmark = pytest.mark.gpu

VOCAB, WIDTH, FFN, LAYERS, HEADS, KV_HEADS, POSITIONS = 100, 32, 64, 2, 4, 2, 64
LLAMA_SIZES = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": POSITIONS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
BATCH, TOKENS, SOURCE = Dim("batch", max=64), Dim("tokens", max=POSITIONS), Dim("source", max=POSITIONS)


class First(nn.Module):
    """Only the first output of a model, without its cache."""

    def __init__(self, model: nn.Module, **options):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x):
        return self.model(x, **self.options)[0]


class EncoderDecoder(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source, target):
        return self.model(input_ids=source, decoder_input_ids=target, use_cache=False)[0]


def decoder(name: str, **sizes) -> nn.Module:
    config = getattr(transformers, f"{name}{'TextConfig' if name == 'Gemma3' else 'Config'}")(**{**LLAMA_SIZES, **sizes})
    return First(getattr(transformers, f"{name}ForCausalLM")(config), use_cache=False)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=1, eos_token_id=2)
    return First(transformers.GPT2LMHeadModel(config), use_cache=False)


def bert() -> nn.Module:
    return First(transformers.BertForMaskedLM(transformers.BertConfig(**{key: value for key,
        value in LLAMA_SIZES.items() if key != "num_key_value_heads"})))


def vit() -> nn.Module:
    return First(transformers.ViTModel(transformers.ViTConfig(
        hidden_size=WIDTH, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, image_size=32, patch_size=8
    ), add_pooling_layer=False))


def t5() -> nn.Module:
    return EncoderDecoder(transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=FFN, num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0
    )))


def mamba() -> nn.Module:
    return First(transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=VOCAB, hidden_size=WIDTH,
        num_hidden_layers=LAYERS, state_size=8)), use_cache=False)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, batch_first=True, norm_first=True), LAYERS,
        enable_nested_tensor=False)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(sum(shape)))


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


TEXT = ((tokens(2, 9),), (tokens(3, 17),), ({0: BATCH, 1: TOKENS},))
CASES = {
    "llama": (lambda: decoder("Llama"), *TEXT), "gpt2": (gpt2, *TEXT), "bert": (bert, *TEXT),
    "qwen3": (lambda: decoder("Qwen3", head_dim=8), *TEXT),
    "gemma3": (lambda: decoder("Gemma3", head_dim=8, sliding_window=4), *TEXT), "phi3": (lambda: decoder("Phi3"), *TEXT),
    "vit": (vit, (images(2, 3, 32, 32),), (images(5, 3, 32, 32),), ({0: BATCH},)), "mamba": (mamba, (tokens(2, 9),), (tokens(2, 9),), None),
    "t5": (t5, (tokens(2, 9), tokens(2, 5)), (tokens(3, 4), tokens(3, 11)), ({0: BATCH, 1: SOURCE}, {0: BATCH, 1: TOKENS})),
    "encoder": (encoder, (images(2, 9, WIDTH),), (images(1, 21, WIDTH),), ({0: BATCH, 1: TOKENS},)),
}


def seeded(make) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def difference(module: nn.Module, graph: TensorGraph, given: tuple[torch.Tensor, ...]) -> float:
    with torch.no_grad():
        expected = module(*given).numpy()
    (found,) = run(graph, {name: value.numpy() for name, value in zip(graph.inputs, given, strict=True)})
    assert found.shape == expected.shape and np.abs(expected).max() > 1e-2
    return float(np.abs(found - expected).max())


def macs(graph: TensorGraph, given: tuple[torch.Tensor, ...]) -> int:
    return graph.macs(bind_lengths(graph, {name: tuple(value.shape) for name, value in zip(graph.inputs, given, strict=True)}))


def pytorch_macs(module: nn.Module, given: tuple[torch.Tensor, ...]) -> int:
    """Half of the FLOPs that PyTorch's own counter sees, with attention as two matrix products (it does not count the CPU's fused kernel)."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(*given)
    return counter.get_total_flops() // 2


QUICK = ("llama", "gpt2", "bert")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.nightly) for name in CASES if name not in QUICK)])
def test_a_model_of_transformers(name):
    make, example, other, shapes = CASES[name]
    module = seeded(make)
    graph = export_module(module, example, shapes, name=name)
    assert graph.parameters == sum(parameter.numel() for parameter in module.parameters())
    for given in (example, other):
        error = difference(module, graph, given)
        print(f"{name}: {error:.1e}")
        assert error <= 1e-4
        assert macs(graph, given) == pytorch_macs(module, given) > 0
    used = graph.operators()
    assert used["linear"] + used["addmm"] >= LAYERS and (name == "mamba" or used["scaled_dot_product_attention"] >= LAYERS)  # not taken apart


@pytest.mark.nightly
def test_mixture_of_experts():
    """Two of four experts for each token; PyTorch's counter does not see the grouped product, so its share is a formula."""
    module = seeded(lambda: decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2))
    _, example, other, shapes = CASES["llama"]
    graph = export_module(module, example, shapes)
    for given in (example, other):
        assert difference(module, graph, given) <= 1e-4
        rows = 2 * given[0].numel()
        assert graph.macs_by_operator(dict(zip(("batch", "tokens"), given[0].shape)))["grouped_matmul"] == LAYERS * rows * 3 * WIDTH * FFN


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly if name == "operators" else ()) for name in tensor_graph_fixture.NAMES])
def test_stored_graphs_are_those_of_a_fresh_export(name):
    module, graph, runs = tensor_graph_fixture.make(name)
    stored = load_graph(tensor_graph_fixture.DATA / f"{name}.tgraph")
    assert (graph.nodes, graph.symbols, graph.inputs, graph.outputs) == (stored.nodes, stored.symbols, stored.inputs, stored.outputs)
    assert all(np.array_equal(stored.tensors[key].values, tensor.values) for key, tensor in graph.tensors.items())
    for given in runs:
        found = run(graph, {key: value.numpy() for key, value in zip(graph.inputs, given, strict=True)})
        for one, expected in zip(found, tensor_graph_fixture.outputs(module, given), strict=True):
            np.testing.assert_allclose(one, expected.numpy(), rtol=1e-5, atol=1e-5)


class Plain(nn.Module):
    """A module of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x):
        return self.function(self, x)


def refusal(function, *given: torch.Tensor, **options) -> str:
    with pytest.raises(UserError) as error:
        export_module(Plain(function).eval(), given or (torch.ones(4, 3),), **options)
    assert "\n" not in str(error.value)
    return str(error.value)


class Spectrum(nn.Module):
    def forward(self, x):
        x = torch.relu(x) + 1
        return torch.fft.rfft(x).abs()


def test_an_unknown_operator_is_named_with_its_line():
    line = inspect.getsourcelines(Spectrum)[1] + 3
    with pytest.raises(UserError) as error:
        export_module(nn.Sequential(nn.Linear(3, 3), Spectrum()).eval(), (torch.ones(4, 3),))
    assert str(error.value) == (
        "module Sequential: operator aten.fft_rfft.default is not known (nor is aten._fft_r2c.default, which it is made of) (complex numbers), "
        f"asked for at {Path(__file__)}:{line} in forward"
    )


@pytest.mark.parametrize(("function", "words"), [
    (lambda self, x: x[x > 0], "depends on data"), (lambda self, x: torch.linalg.qr(x)[0], "aten.linalg_qr.default is not known"),
    (lambda self, x: self.state.add_(x[0]) * 2, "changes state"),
    (lambda self, x: x.add_(1), "changes x"), (lambda self, x: x * 2 if x.sum() > 0 else x, "torch.export: "),
    (lambda self, x: torch.rand_like(x), "aten.rand_like.default is not known"),
    (lambda self, x: torch.view_as_complex(x[:, :2].clone()).abs(), "complex numbers"), (lambda self, x: 3, "gives no tensor"),
    (lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond is not known"),
    (lambda self, x: nn.functional.pad(x[None], (1, 1), mode="reflect").median(), "aten.median.default is not known"),
])
def test_what_is_refused(function, words):
    assert words in refusal(function)


def test_what_pytorch_says_of_a_rule_that_fails_is_told(monkeypatch):
    def broken(program, table):
        raise NotImplementedError("no rule\nfor this")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", broken)
    told = refusal(lambda self, x: torch.linalg.qr(x)[0])
    assert "aten.linalg_qr.default is not known" in told and told.endswith("; PyTorch's rules to take it apart: NotImplementedError: no rule for this")


def test_a_module_in_training_is_refused():
    with pytest.raises(UserError, match=r"training mode; allowed is one after module.eval\(\)"):
        export_module(nn.Linear(2, 2), (torch.ones(1, 2),))


def test_lengths_have_the_names_of_their_dims():
    module = Plain(lambda self, x: x.sum(-1))
    graph = export_module(module.eval(), (torch.ones(4, 3),), {"x": {0: Dim("rows", min=2, max=9)}})
    assert graph.symbols == {"rows": (2, 9)} and graph.inputs["x"].shape == ("rows", 3)
    program = torch.export.export(module, (torch.ones(4, 3),), dynamic_shapes=({0: Dim.AUTO},))
    graph = from_exported(program)
    assert list(graph.symbols) == ["x_0"] and graph.inputs["x"].shape == ("x_0", 3)
    assert run(graph, {"x": np.ones((7, 3))})[0].tolist() == [3] * 7


def test_tied_and_unused_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head, self.unused = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Parameter(torch.zeros(5))
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    graph = export_module(Tied().eval(), (torch.zeros(2, 3, dtype=torch.long),))
    assert graph.parameters == 7 * 4 + 5 and graph.macs() == 2 * 3 * 4 * 7


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_weights_is_counted(tied):
    """On the meta device: Llama-2-7B's sizes with two layers; the count of MACs is a formula, that of parameters PyTorch's."""
    width, ffn, vocab, length = 4096, 11008, 32000, 128
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=ffn, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=32, tie_word_embeddings=tied
    )
    with torch.device("meta"):
        module = First(transformers.LlamaForCausalLM(config), use_cache=False).eval()
        graph = export_module(module, (torch.zeros(1, 8, dtype=torch.long),), ({1: Dim("tokens", max=2048)},))
    assert graph.parameters == sum(parameter.numel() for parameter in module.parameters()) > 5e8
    layer = 4 * width * width + 3 * width * ffn + 2 * length * width
    assert graph.macs({"tokens": length}) == length * (2 * layer + vocab * width)
    with pytest.raises(UserError, match="has no values"):
        run(graph, {"x": np.zeros((1, 8), np.int64)})


def test_the_embedded_model_is_the_one_that_headrace_reads_itself():
    """The same folder through transformers and torch.export, and through headrace's own reader and float executor."""
    model = load_model("embedded")
    config = model.config
    module = transformers.LlamaForCausalLM.from_pretrained(Path(headrace.models.__file__).parent / "embedded", dtype=torch.float32, use_cache=False)
    graph = export_module(First(module, use_cache=False).eval(), (tokens(1, 8),), ({1: TOKENS},))
    assert graph.parameters == config.parameters
    given = tokens(1, 33)
    attention = 2 * config.layers * config.q_width * 33 * 33
    assert macs(graph, (given,)) == 33 * config.macs_per_token + attention
    expected = FloatExecutor.from_model(model).prefill(given[0].tolist(), all_positions=True)
    (found,) = run(graph, {"x": given.numpy()})
    assert np.abs(found[0] - expected).max() <= 1e-4 < np.abs(expected).max()
