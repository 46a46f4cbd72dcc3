"""Changes of a model that make inference cheaper, as changes of its operator graph. Nothing is retrained and no accuracy is claimed.

Each takes a graph and gives another one, whose operators are then counted and costed like any other's. UserError says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from headrace.models.architectures.graph_state_space import mamba_mixer
from headrace.models.errors import UserError
from headrace.models.masks import Mask
from headrace.models.operators import Builder, Op, OperatorGraph

GATED = {"silu_mul": "silu", "gelu_mul": "gelu"}


def _refuse(graph: OperatorGraph, what: str, value: object, allowed: str) -> UserError:
    return UserError(f"model {graph.name}: {what} = {value}; allowed is {allowed}")


def _needs_attention(graph: OperatorGraph, transform: str) -> None:
    if not any(op.kind == "kv_append" for op in graph.operators) or graph.encoder:
        raise UserError(f"model {graph.name}: transform {transform} needs a decoder with attention; {graph.architecture} is none")


FACTORS, PRUNING = "linears in two factors", "token pruning"


def _comes_first(graph: OperatorGraph, transform: str, *labels: str) -> None:
    """Refuse what would have to rewrite what an earlier transform made."""
    for label, name in ((FACTORS, "low-rank"), (PRUNING, "token-pruning")):
        if label in labels and label in graph.added:
            raise UserError(f"model {graph.name}: transform {transform} comes after {name}; allowed is before it")


def _runs(graph: OperatorGraph) -> list[tuple[int, list[Op]]]:
    """(layer, its operators) in order; layer -1 comes before the layers and after them."""
    return [(layer, list(ops)) for layer, ops in groupby(graph.operators, key=lambda op: op.layer)]


def _resized(op: Op, outputs: int) -> Op:
    """A linear or its bias with other outputs."""
    tensor = op.tensors[0]
    return replace(op, shape=(*op.shape[:-1], outputs), tensors=(replace(tensor, shape=(outputs, *tensor.shape[1:])), *op.tensors[1:]))


def _spliced(graph: OperatorGraph, layer_ops: list[Op], removed: set[str], build: Callable[[Builder], str]) -> list[Op]:
    """`layer_ops` with the operators of names `removed` replaced by what `build` writes; readers of the last removed output read build's."""
    gone = [op for op in layer_ops if op.name in removed]
    b = Builder(graph.name, graph.architecture)
    b.layer = gone[0].layer
    b.quantised = {op.inputs[0]: op.output for op in layer_ops if op.kind == "quantise" and op.name not in removed}
    output = build(b)
    place = layer_ops.index(gone[-1])
    before = [op for op in layer_ops[: place + 1] if op.name not in removed]
    after = [replace(op, inputs=tuple(output if name == gone[-1].output else name for name in op.inputs)) for op in layer_ops[place + 1 :]]
    return [*before, *b.operators, *after]


def with_kv_heads(graph: OperatorGraph, kv_heads: int) -> OperatorGraph:
    """Grouped-query attention (Ainslie et al. 2023, GQA, section 2.2), with one head multi-query (Shazeer 2019): query heads share keys and
    values, so that the cache and the key and value linears shrink."""
    _needs_attention(graph, "gqa")
    _comes_first(graph, "gqa", FACTORS)
    sizes = {op.layer: op for op in graph.operators if op.kind == "kv_append"}
    found = []
    for op in graph.operators:
        at = sizes.get(op.layer)
        if at is None:
            found.append(op)
            continue
        if at.heads % kv_heads:
            raise _refuse(graph, "kv_heads", kv_heads, f"a divisor of the {at.heads} heads")
        if op.kv_heads:
            op = replace(op, kv_heads=kv_heads)
        base = op.name.removesuffix(".bias")
        if base in ("k", "v") and op.kind in ("linear", "bias"):
            op = _resized(op, kv_heads * at.head_dim)
        elif base == "qkv" and op.kind in ("linear", "bias"):
            op = _resized(op, (at.heads + 2 * kv_heads) * at.head_dim)
        elif op.name in ("k_norm", "rope_k", "quantise_k", "quantise_v", "kv_append"):
            op = replace(op, shape=(kv_heads, *op.shape[1:]))
        found.append(op)
    return graph.with_operators(found)


def with_experts(graph: OperatorGraph, experts: int, active: int, ffn: int | None = None) -> OperatorGraph:
    """A mixture of experts in every layer's gated MLP (Shazeer et al. 2017; Fedus et al. 2022, Switch Transformers, section 2): `experts`
    MLPs of inner width `ffn` (None: the model's), of which a token takes `active`."""
    _comes_first(graph, "moe", FACTORS, PRUNING)
    if not 1 <= active <= experts:
        raise _refuse(graph, "active", active, f"1 to the {experts} experts")
    found: list[Op] = []
    for layer, ops in _runs(graph):
        inner = next((op for op in ops if op.kind in GATED and op.name == op.kind), None)
        down = next((op for op in ops if op.name == "down"), None)
        if layer < 0:
            found += ops
            continue
        if inner is None or down is None:
            raise UserError(f"model {graph.name}: transform moe needs a gated MLP (silu, or gelu by tanh) in every layer; layer {layer} has none")
        width, wide = down.matrix.shape
        first = next(op for op in ops if op.name in ("up", "gate_up"))
        source = next((op.inputs[0] for op in ops if op.output == first.inputs[0]), first.inputs[0])
        removed = {"up", "gate", "gate_up", "up.bias", "gate.bias", inner.name, f"quantise_{inner.name}", "down", "down.bias"}
        found += _spliced(
            graph, ops, removed, lambda b, x=source, w=width, f=ffn or wide, a=GATED[inner.kind]: b.experts(x, w, f, experts, active, a)
        )  # fmt: skip
    return graph.with_operators(found)


def quantised_cache(graph: OperatorGraph, bits: int, group: int | None = None) -> OperatorGraph:
    """Keys and values of `bits` bits with a float32 scale for each `group` elements of a head (None: the whole head), as in KIVI (Liu et al.
    2024, section 3) and KVQuant (Hooper et al. 2024), whose groups lie along tokens for keys; here both lie along the head. 4 bits without
    `group` are the contract's cache (section 6), with mult and off of each 32 codes."""
    _needs_attention(graph, "kv-quantisation")
    return replace(graph, kv_bits=bits, kv_group=group, added=(*graph.added, f"a cache of {bits} bits") if bits != 8 or group else graph.added)


def sparse_attention(graph: OperatorGraph, mask: Mask) -> OperatorGraph:
    """A static mask in every layer; a layer that has a window keeps the shorter one. Sources: `models.masks`."""
    _needs_attention(graph, "sparse-attention")
    found = []
    for op in graph.operators:
        if op.mask is not None:
            own = op.mask
            if own.dense:
                op = replace(op, mask=mask)
            elif mask.window is not None and own.block is None and mask.stride is None and not mask.sinks:
                op = replace(op, mask=replace(own, window=min(mask.window, own.window)))
            else:
                raise _refuse(graph, "mask", mask, "a window alone where the model has one, which hides sinks and strides")
        found.append(op)
    return graph.with_operators(found)


def pruned_tokens(graph: OperatorGraph, keep: float, first: int) -> OperatorGraph:
    """Cascade token pruning (Wang et al. 2021, SpAtten, section III-A): each layer from `first` on keeps the share `keep` of the tokens that
    the layer before it kept, for itself and all after it."""
    _needs_attention(graph, "token-pruning")
    if not 0 <= first < graph.layers:
        raise _refuse(graph, "from", first, f"0 to {graph.layers - 1}")
    found = [replace(op, keep=keep ** (op.layer - first + 1)) if op.layer >= first else op for op in graph.operators]
    return graph.with_operators(found, added=(*graph.added, PRUNING))


def low_rank(graph: OperatorGraph, names: Iterable[str], rank: int) -> OperatorGraph:
    """W [N, K] = B [N, rank] A [rank, K] for linears of those names (Hu et al. 2022, LoRA, section 4, of the weights themselves; ASVD, Yuan et
    al. 2023): bytes and multiplications of a token become rank (N + K). Refused where that is no less than N K."""
    names = tuple(names)
    present = sorted({op.name for op in graph.operators if op.kind == "linear" and op.matrix.experts == 1})
    for name in names:
        if name not in present:
            raise _refuse(graph, "linears", name, f"one of {', '.join(present)}")
    found: list[Op] = []
    for op in graph.operators:
        if op.kind != "linear" or op.name not in names:
            found.append(op)
            continue
        outputs, inputs = op.matrix.shape
        if rank * (outputs + inputs) >= outputs * inputs:
            allowed = f"below {outputs * inputs / (outputs + inputs):g}, where two factors cost less than {op.name} of {outputs} x {inputs}"
            raise _refuse(graph, "rank", rank, allowed)
        short = op.matrix.name.rsplit(".", 1)[-1]
        prefix = op.matrix.name[: -len(short)]
        a, b = (replace(op.matrix, name=f"{prefix}low_rank_{part}.{short}", shape=shape)
                for part, shape in (("a", (rank, inputs)), ("b", (outputs, rank))))  # fmt: skip
        inner = (op.shape[0], rank)
        found += [
            replace(op, name=f"{op.name}.a", output=f"{op.output}.a", shape=inner, tensors=(a,)),
            Op(kind="quantise", name=f"quantise_{op.name}.a", layer=op.layer, inputs=(f"{op.output}.a",), output=f"{op.output}.aq", shape=inner),
            replace(op, name=f"{op.name}.b", inputs=(f"{op.output}.aq", *op.inputs[1:]), tensors=(b,)),
        ]
    return graph.with_operators(found, added=(*graph.added, FACTORS))


ATTENTION_NAMES = frozenset({
    "q", "k", "v", "qkv", "q.bias", "k.bias", "v.bias", "qkv.bias", "q_norm", "k_norm", "rope_q", "rope_k", "quantise_q", "quantise_k",
    "quantise_v", "kv_append", "scores", "score_cap", "alibi", "softmax", "values", "quantise_values", "o", "o.bias",
})  # fmt: skip


def with_state_space(graph: OperatorGraph, attention_every: int, state: int = 16, expand: int = 2, kernel: int = 4) -> OperatorGraph:
    """Mamba mixers (Gu and Dao 2023, section 3.4) in the place of attention, but in every `attention_every`-th layer (0: in all), as in Jamba
    (Lieber et al. 2024, section 3): their state does not grow with the context."""
    _needs_attention(graph, "state-space")
    _comes_first(graph, "state-space", FACTORS, PRUNING)
    found: list[Op] = []
    for layer, ops in _runs(graph):
        if layer < 0 or (attention_every and (layer + 1) % attention_every == 0):
            found += ops
            continue
        first = next(op for op in ops if op.name in ("q", "qkv"))
        source = next((op.inputs[0] for op in ops if op.output == first.inputs[0]), first.inputs[0])
        width = next(op for op in ops if op.name == "o").matrix.shape[0]
        removed = set(ATTENTION_NAMES)
        found += _spliced(
            graph, ops, removed, lambda b, x=source, w=width: mamba_mixer(b, x, w, expand * w, state, kernel, -(-w // 16))
        )  # fmt: skip
    return graph.with_operators(found)


def exit_after(graph: OperatorGraph, layers: int, tried: Iterable[int] = ()) -> OperatorGraph:
    """The pass of a token that leaves after `layers` layers (Schuster et al. 2022, CALM, section 3.2): the later layers compute its keys and
    values alone, from the state at the exit, so that later tokens find them. At each exit of `tried`, and at its own, the token pays norm,
    LM head and argmax, which the confidence is read from (softmax response, section 3.3)."""
    _needs_attention(graph, "early-exit")
    if not 1 <= layers <= graph.layers:
        raise _refuse(graph, "exits", layers, f"1 to {graph.layers} layers")
    groups = dict(run for run in _runs(graph) if run[0] >= 0)
    for layer in range(layers, graph.layers):
        if not any(op.kind == "kv_append" for op in groups[layer]):
            raise UserError(f"model {graph.name}: transform early-exit needs attention in every layer after an exit; layer {layer} has none")
    last = max(place for place, op in enumerate(graph.operators) if op.layer >= 0)
    before = [op for op in graph.operators[:last] if op.layer < 0]
    head = list(graph.operators[last + 1 :])
    found = list(before)
    tried = sorted(set(tried) | {layers})
    for layer in range(graph.layers):
        ops = groups[layer]
        if layer < layers:
            found += ops
            state = _layer_output(graph, layer)
        else:
            found += _cached_alone(ops, state)
        if layer + 1 in tried and layer + 1 < graph.layers and layer < layers:
            found += _head_at(head, graph, state, f"#{layer + 1}")
    if layers == graph.layers:
        found += head
    return graph.with_operators(found, added=(*graph.added, "early exit"))


def _layer_output(graph: OperatorGraph, layer: int) -> str:
    """The activation that the next layer, or the head, starts from."""
    made = {op.output for op in graph.operators if op.layer == layer}
    return next(name for op in graph.operators if op.layer != layer for name in op.inputs if name in made)


def _head_at(head: list[Op], graph: OperatorGraph, state: str, suffix: str) -> list[Op]:
    made = {op.output for op in head}
    return [
        replace(op, inputs=tuple(name + suffix if name in made else state for name in op.inputs), output=op.output + suffix) for op in head
    ]


def _cached_alone(ops: list[Op], state: str) -> list[Op]:
    """Of a layer what its cache needs, from `state`. A fused linear gives its key and value rows alone."""
    made = {op.output: op for op in ops}
    append = next(op for op in ops if op.kind == "kv_append")
    needed, todo = set(), [append.output]
    while todo:
        name = todo.pop()
        if name in made and name not in needed:
            needed.add(name)
            todo += made[name].inputs
    found = []
    for op in ops:
        if op.output not in needed:
            continue
        if op.name in ("qkv", "qkv.b", "qkv.bias"):
            op = _resized(op, 2 * append.kv_heads * append.head_dim)
        found.append(replace(op, inputs=tuple(name if name in made else state for name in op.inputs)))
    return found
