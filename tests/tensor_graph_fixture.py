"""Makes the graphs of tests/data/tensor_graphs: two modules through torch.export, and what PyTorch computes with them.

    python tests/tensor_graph_fixture.py

`block` is a small model; `operators` uses every operator of the vocabulary at least once. Needs torch; tests without torch read what it
wrote, and tests/gpu/test_torch_export.py holds the stored graphs to a fresh export.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

from headrace.models.exported.tensor_graph import TensorGraph
from headrace.models.exported.tensor_graph_file import save_graph
from headrace.models.exported.torch_export import export_module

DATA = Path(__file__).parent / "data" / "tensor_graphs"
VOCAB, WIDTH, HEADS = 11, 8, 2


class Block(nn.Module):
    """Tied embedding, causal attention over a padding mask, a convolution, a gated feed-forward; int, bool and float values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.first_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.second_norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("decay", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length = ids.shape
        x = self.embedding(ids)
        q, k, v = self.qkv(self.first_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        padded = (ids == 0).logical_not().cumsum(-1).gt(0)  # leading zeros are padding
        visible = torch.ones(length, length, dtype=torch.bool).tril() & padded[:, None, None, :] | torch.eye(length, dtype=torch.bool)
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).reshape(batch, length, -1)
        x = x + F.gelu(self.mix(x.transpose(1, 2))[..., :length].transpose(1, 2), approximate="tanh") * self.decay
        gate, up = self.gate_up(self.second_norm(x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        logits = self.head(x)
        return F.log_softmax(logits, dim=-1), logits.masked_fill(~padded[..., None], -1e30).amax(dim=1).softmax(-1).argmax(-1)


class Operators(nn.Module):
    """Every operator, with the arguments that are easy to get wrong: negative dimensions, keepdim, steps, parts that do not divide."""

    def forward(self, x: torch.Tensor, n: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [rows, 6] float, n [rows, 6] int from 0 to 5, image [rows, 4, 9, 8] float."""
        rows = x.shape[0]
        positive, flags, square = x.abs() + 0.5, n > 2, x.T @ x
        heads = image.reshape(rows, 4, 9, 8)
        weight = square[:4, :4] / 4
        kernel = torch.stack([square[:4, :3], square[1:5, 3:], square[2:, :3]], dim=1)
        outputs = [function(x) for function in (
            torch.abs, torch.ceil, torch.cos, torch.erf, torch.exp, torch.expm1, torch.floor, torch.isinf, torch.isnan,
            torch.logical_not, torch.neg,
            torch.relu, torch.round, torch.sigmoid, torch.sign, F.silu, torch.sin, torch.tan, torch.tanh, torch.atan, torch.sinh,
            torch.cosh,
            torch.trunc, F.mish, F.hardswish, F.hardsigmoid, F.logsigmoid, F.softplus, F.elu, F.leaky_relu, F.relu6, F.gelu, torch.square,
        )]
        outputs += [function(positive) for function in (torch.log, torch.log1p, torch.log2, torch.log10, torch.reciprocal,
            torch.rsqrt, torch.sqrt)]
        outputs += [function(n, n.flip(0)) for function in (
            torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.eq, torch.ge, torch.gt, torch.le, torch.lt, torch.ne,
            torch.logical_and, torch.logical_or,
            torch.logical_xor, torch.maximum, torch.minimum,
        )]
        outputs += [function(x, x.flip(-1) + 4) for function in (torch.floor_divide, torch.fmod, torch.remainder, torch.mul,
            torch.div, torch.atan2)]
        outputs += [
            torch.add(x, 2, alpha=3), torch.sub(1.5, x, alpha=2), ~flags, ~n, torch.div(x, 0.3, rounding_mode="trunc"),
            torch.div(n, 2, rounding_mode="floor"), n / 4,
            x**3, 2**x, torch.where(flags, x, 0.25), x.masked_fill(flags, -1), x.clamp(min=-0.5),
            torch.clamp(x, -x.mean(), x.amax()), F.gelu(x, approximate="tanh"),
            F.softplus(x, beta=2, threshold=1), F.elu(x, 0.7), square.tril(-1), square.triu(1), (x * 3).to(torch.int64), n.bool(),
            n.float(), x.softmax(0), x.log_softmax(-1),
            F.linear(x, square, x[0]), torch.addmm(x[0], x, square, beta=0.5, alpha=2),
            torch.baddbmm(image[0, :, :8], image[0, :, :8], image[0, :, 1:]), x[0] @ x[0],
            heads @ heads.mT, F.scaled_dot_product_attention(heads, heads[:, :2, 3:], heads[:, 2:, 3:], is_causal=True, enable_gqa=True),
            F.scaled_dot_product_attention(heads, heads, heads, attn_mask=heads @ heads.mT, scale=0.2),
            F.scaled_dot_product_attention(heads, heads, heads, attn_mask=torch.ones(9, 9).tril(-1).bool()),
            F.conv2d(image, kernel[:, :2, None], stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
            F.conv1d(image[0, :, :, 0], weight[..., None]),
            F.embedding(n, square), F.layer_norm(image, (9, 8), eps=1e-3), F.layer_norm(x, (6,), x[0], x[1]),
            F.rms_norm(x, (6,), x[1]), F.group_norm(image, 2, weight[0], weight[1]),
            F.batch_norm(image, weight[0], weight[0].abs() + 1, weight[1], weight[2]), F.max_pool2d(image, 3, stride=2, padding=1),
            F.avg_pool2d(image, (3, 2), padding=1),
            torch.arange(1, 9, 2), torch.arange(0, 1, 0.25), torch.full((2, rows), 7), torch.zeros_like(n), torch.ones(rows, 2),
            F.one_hot(n, 7),
        ]
        outputs += [function(image, dim=(1, -1), keepdim=True) for function in (torch.sum, torch.mean, torch.amax, torch.amin,
            torch.logsumexp, torch.var, torch.std)]
        outputs += [
            x.sum(), n.sum(0), flags.sum(-1), x.mean(), flags.any(), flags.all(-1), x.var(-1, correction=0), x.std(), x.max(),
            x.min(), x.prod(-1), x.argmax(), x.argmin(-1, keepdim=True),
            torch.linalg.vector_norm(x, 3, dim=-1), torch.linalg.vector_norm(x, float("inf")), x.cumsum(0), flags.cumsum(-1),
            x.cumprod(-1), torch.histc(x, 4, -1, 1),
            *x.max(-1), *x.min(0), *x.topk(3), *x.topk(2, dim=0, largest=False), *x.sort(-1, descending=True), *n.sort(stable=True, dim=-1),
        ]
        outputs += [
            image.flatten(1, 2), image.permute(3, 0, 2, 1), x.transpose(0, -1), x.unsqueeze(-1), x[:, None, :1].squeeze(),
            x[:, None].squeeze(1), x[:1].expand(3, -1), x.repeat(2, 1, 3),
            x.repeat_interleave(2, dim=0), image[:, 1::2, -3], torch.cat([x, x[:1]], 0), torch.stack([x, -x], -1),
            *x.split([1, 3, 2], -1), *image.split(4, 2), *image.chunk(3, -1), *x.unbind(-1)[:2],
            x.flip(0, 1), x.roll((1, -2), (0, 1)), x.roll(5), x.unfold(1, 3, 2), F.pad(x, (1, -2, 0, 2), value=9.0),
            torch.diff(x, prepend=x[:, :1]), x[n[:, 0], n[:, 1]], image[:, n[0, :2] % 4, :, n[1, :2]],
            torch.index_put(x, (n[:2, 0] % 2,), x[2], accumulate=True), torch.ops.aten.index_put(x, [None, n[0, :1]], x[0, :1]),
            x.index_select(1, n[0]), x.gather(1, n[:, :3]), x.scatter(1, n[:, :1], 5.0),
            x.scatter(1, n[:, :1], x), x.scatter_add(1, n, x), x.slice_scatter(x[:, :2], 1, 1, 5, 2), x.select_scatter(x[0], 0, 1),
            torch.ops.aten.copy(x, x[0]),
            torch.ops.aten._grouped_mm(torch.cat([n, n[:, :2]], 1)[:5].bfloat16(), (image[0, 1:, :8] > 0).bfloat16(),
                torch.tensor([2, 2, 5], dtype=torch.int32)).float(),
            torch.zeros(rows + 1, rows - 1), torch.zeros(rows * 2, rows // 2 + rows % 3),
            torch.zeros(torch.sym_max(rows, 8) + torch.sym_min(rows, 8)), x[-(rows // 3):],
        ]
        return tuple(outputs)


def block() -> Block:
    torch.manual_seed(3)
    module = Block().eval()
    for parameter in module.parameters():  # norms and biases of their own
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def block_inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(100 * batch + length)),)


def operators_inputs(rows: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, 6, generator=generator), torch.randint(0, 6, (rows, 6), generator=generator),
        torch.randn(rows, 4, 9, 8, generator=generator),
    )


NAMES = ("block", "operators")


def make(name: str) -> tuple[nn.Module, TensorGraph, list[tuple[torch.Tensor, ...]]]:
    """A module, its graph, and inputs to run it with."""
    if name == "block":
        module, runs = block(), [block_inputs(2, 5), block_inputs(1, 3), block_inputs(3, 12)]
        shapes = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", max=64)},)
    else:
        module, runs = Operators().eval(), [operators_inputs(7), operators_inputs(9)]
        shapes = ({0: torch.export.Dim("rows", min=6, max=16)},) * 3
    return module, export_module(module, runs[0], shapes), runs


def outputs(module: nn.Module, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(module(*given))


if __name__ == "__main__":
    for name in NAMES:
        module, graph, runs = make(name)
        shutil.rmtree(DATA / f"{name}.tgraph", ignore_errors=True)
        save_graph(graph, DATA / f"{name}.tgraph")
        arrays = {}
        for index, given in enumerate(runs):
            arrays |= {f"run{index}.input.{key}": value.numpy() for key, value in zip(graph.inputs, given, strict=True)}
            arrays |= {f"run{index}.output.{key}": value.numpy() for key, value in enumerate(outputs(module, given))}
        save_file({key: np.array(value, order="C") for key, value in arrays.items()}, DATA / f"{name}_runs.safetensors")
