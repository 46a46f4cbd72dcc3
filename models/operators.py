"""The operators of any architecture, with symbolic lengths: what a pass multiplies, reads and computes in float.

Lengths are those of `models.graph`: TOKENS positions of a pass, CONTEXT keys at its end, LOGITS positions with logits. Here a layer's
attention may see fewer keys than CONTEXT (`mask`), a linear may have experts, and a layer may have a state of fixed size instead of a
cache. A graph counts; it holds no weights, and most graphs run on no machine of version 1: `missing` says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.models.architectures.base import Counted, KvCache, Tensor
from headrace.models.cache_size import SCALE_BITS, code_bits
from headrace.models.functions import FUNCTIONS, Counts
from headrace.models.graph import CONTEXT, LOGITS, TOKENS, Length, Shape
from headrace.models.masks import Mask
from headrace.models.scheme import Scheme, matrix_bytes

STATE_BYTES = 4
"""Of an element of a recurrent state: float32, as the contract keeps all that is not quantised."""

HALF_BYTES = 2
"""Of an element without a compression scheme."""

MATRIX_KINDS = ("linear", "lm_head")
ATTENTION_KINDS = ("attention_qk", "attention_pv")
KINDS = ("embedding", *MATRIX_KINDS, *ATTENTION_KINDS, "kv_append", "conv", "state", *FUNCTIONS)
"""Beside the functions: conv is a causal convolution of each channel; state carries a recurrent state from token to token."""

VERSION_1_KINDS = frozenset({
    "embedding", "linear", "lm_head", "attention_qk", "attention_pv", "kv_append", "rmsnorm", "quantise", "rope", "softmax", "silu_mul",
    "add", "dequantise", "argmax",
})  # fmt: skip
"""What the compiler of version 1 has programs for."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Of one pass: of each of `sequences` sequences `tokens` positions, the last at context `context` (an array where tokens is 1)."""

    tokens: int = 1
    context: object = 1
    logits: int = 1
    sequences: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= np.min(self.context) or not 0 <= self.logits <= self.tokens or self.sequences < 1:
            raise ValueError(f"lengths {self}: need 0 <= logits <= tokens <= context, and a sequence")


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator.

    `inputs` and `output` name activations, each name given once; `shape` is the output's. `tensors` are the weights read, one copy each.
    `heads`, `kv_heads`, `head_dim`, `mask`: of attention, softmax and kv_append. `state`: float32 elements carried from token to token
    of a sequence. `keep`: share of the tokens that are alive here (token pruning).
    """

    kind: str
    name: str
    layer: int
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    tensors: tuple[Tensor, ...] = ()
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    mask: Mask | None = None
    state: int = 0
    keep: float = 1.0

    @property
    def matrix(self) -> Tensor:
        """The weight of a linear: [outputs, inputs], of each expert."""
        return self.tensors[0]

    def alive(self, length):
        """Of `length` tokens those that pruning leaves, one at least."""
        return length if self.keep == 1 else np.maximum(1, np.ceil(np.asarray(length) * self.keep - 1e-9).astype(int))

    def rows(self, at: Lengths) -> int:
        """Positions that the operator computes in a sequence."""
        if LOGITS in self.shape:
            return at.logits
        return int(self.alive(at.tokens)) if TOKENS in self.shape else 1

    def pairs(self, at: Lengths):
        """Query-key pairs of one head and sequence, as float64: exact, and products with them do not wrap around."""
        return np.asarray(self.mask.pairs(int(self.alive(at.tokens)), self.alive(at.context)), float)

    def elements(self, at: Lengths):
        """Of the output, over all sequences; where CONTEXT is a length, only keys that the mask lets through."""
        count = at.sequences
        for length in self.shape:
            if not isinstance(length, str):
                count = count * length
        if CONTEXT in self.shape:
            return count * self.pairs(at)
        return count * (self.rows(at) if TOKENS in self.shape or LOGITS in self.shape else 1)

    def row_length(self, context):
        """Elements of a row of the output (its last dimension), of a pass of one token at KV length `context`."""
        return self.mask.pairs(1, self.alive(context)) if self.shape[-1] == CONTEXT else self.shape[-1]

    def row_count(self, at: Lengths) -> int:
        """Rows of the output, over all sequences."""
        count = at.sequences * self.rows(at)
        for length in self.shape[:-1]:
            if not isinstance(length, str):
                count *= length
        return count

    def kept(self, context: int) -> int:
        """Keys that the cache must keep at `context`: all, or where a window alone decides its keys and the global ones."""
        alive = int(self.alive(context))
        bounded = self.mask.window is not None and self.mask.stride is None
        return min(alive, self.mask.window + self.mask.sinks) if bounded else alive

    def macs(self, at: Lengths):
        """Useful multiply-accumulates: linears by the experts that a token takes, convolutions every tap, attention visible pairs."""
        if self.kind in MATRIX_KINDS or self.kind == "conv":
            return at.sequences * self.rows(at) * self.tensors[0].macs
        if self.kind in ATTENTION_KINDS:
            return at.sequences * self.heads * self.head_dim * self.pairs(at)
        return 0

    def sfu(self, at: Lengths) -> Counts:
        """Float32 operations, calls of exp, recip, rsqrt and log kept apart (`Counts.without_calls` resolves them)."""
        if self.kind == "conv":
            return FUNCTIONS["conv_tap"].counts(self.elements(at) * self.tensors[0].shape[-1], 0)
        if self.kind not in FUNCTIONS:
            return Counts()
        return FUNCTIONS[self.kind].counts(self.elements(at), self.row_count(at))

    def weight_bytes(self, scheme: Scheme | None, at: Lengths) -> float:
        """Required bytes of matrices that a pass reads once: linears, LM head, and a row of an embedding for each token. Without a scheme
        all tensors, of 16 bits.

        Of a linear with experts the expected number of distinct ones, where every token takes `active` of them uniformly and independently of the
        others: E (1 - (1 - k/E)^tokens). Real routers are less even, so that fewer are read."""
        if self.kind == "embedding":
            row = HALF_BYTES * self.matrix.shape[1] if scheme is None else matrix_bytes(1, self.matrix.shape[1], scheme.embedding_bits)
            return at.sequences * self.rows(at) * row
        if self.kind not in MATRIX_KINDS:
            return HALF_BYTES * sum(math.prod(tensor.shape) for tensor in self.tensors) if scheme is None else 0
        used = distinct_experts(self.matrix.experts, self.matrix.active, at.sequences * self.rows(at))
        if scheme is None:
            one = HALF_BYTES * math.prod(self.matrix.shape)
        else:
            one = matrix_bytes(*self.matrix.shape, self.bits(scheme), scheme.group)
        return used * one if self.rows(at) else 0

    def bits(self, scheme: Scheme) -> int:
        """Code bits of a linear's weight."""
        return scheme.lm_head_bits if self.kind == "lm_head" else scheme.bits_of(self.matrix.name.rsplit(".", 1)[-1])

    def kv_bytes(self, at: Lengths, bits: int, group: int | None = None):
        """Of the cache: keys read by attention_qk and values read by attention_pv, once per KV head and distinct key; both written by
        kv_append. Codes of up to 8 bits have a float32 scale per key and `group` elements (None: per key, and at 4 bits the contract's mult and
        off)."""
        if self.kind in ATTENTION_KINDS:
            keys = self.mask.keys_read(int(self.alive(at.tokens)), self.alive(at.context))
        elif self.kind == "kv_append":
            keys = 2 * self.rows(at)
        else:
            return 0
        return at.sequences * self.kv_heads * keys * key_bytes(self.head_dim, bits, group)

    def state_bytes(self, at: Lengths) -> int:
        """Of a recurrent state: read and written once a pass (a pass of many tokens keeps it meanwhile)."""
        return 2 * at.sequences * self.state * STATE_BYTES


def key_bytes(head_dim: int, bits: int, group: int | None = None) -> float:
    """Of one key or value of one head; bits above 8 have no scales. `group` elements share one (None: all, as in the contract)."""
    scales = SCALE_BITS * -(-head_dim // (group or head_dim)) if bits <= 8 else 0
    return (head_dim * element_bits(head_dim, bits, group) + scales) / 8


def element_bits(head_dim: int, bits: int, group: int | None = None) -> float:
    """Mean bits that an element of the cache takes beside its scale: with a scale for each `group` elements its own alone, else as the
    contract codes it."""
    return bits if group else code_bits(head_dim, bits) / head_dim


def distinct_experts(experts: int, active: int, tokens: int) -> float:
    """Expected number of `experts` that `tokens` tokens take, `active` each, under uniform independent routing."""
    return experts if experts == active else experts * (1 - (1 - active / experts) ** tokens)


@dataclass(frozen=True, kw_only=True)
class OperatorGraph:
    """The operators of one pass in an order that respects their data.

    `encoder`: positions see all others, there is no decode. `kv_bits`, `kv_group`: of the cache, where they are not the scheme's and one
    scale a key. `notes` say what a user must know of the count.
    """

    name: str
    architecture: str
    layers: int
    operators: tuple[Op, ...]
    encoder: bool = False
    max_positions: int | None = None
    kv_bits: int | None = None
    kv_group: int | None = None
    notes: tuple[str, ...] = ()
    added: tuple[str, ...] = field(default=())
    """What transforms put in that machines of version 1 have no schedule for."""

    def with_operators(self, operators, **changes) -> OperatorGraph:
        return replace(self, operators=tuple(operators), **changes)

    def bits_of_cache(self, scheme: Scheme | None) -> int:
        if self.kv_bits is not None:
            return self.kv_bits
        return 8 * HALF_BYTES if scheme is None else scheme.kv_bits

    @property
    def counted(self) -> Counted:
        """All tensors, tied ones once."""
        return Counted(tensors=tuple(tensor for op in self.operators for tensor in op.tensors), kv=self.kv)

    @property
    def kv(self) -> KvCache | None:
        """What a token adds, where all layers are alike; None without a cache or where they differ."""
        appends = [op for op in self.operators if op.kind == "kv_append"]
        if not appends or len({(op.kv_heads, op.head_dim) for op in appends}) > 1:
            return None
        return KvCache(layers=len(appends), kv_heads=appends[0].kv_heads, head_dim=appends[0].head_dim)

    @property
    def parameters(self) -> int:
        return self.counted.parameters

    def kv_bytes_per_token(self, bits: int) -> float:
        """That a token adds to the cache over all layers; an encoder keeps nothing past its pass."""
        if self.encoder:
            return 0
        at = Lengths()
        return sum(op.kv_bytes(at, bits, self.kv_group) for op in self.operators if op.kind == "kv_append")

    def kv_cache_bytes(self, context: int, bits: int) -> float:
        """Of one sequence's cache at `context`: layers with a window keep no more than it (and their global tokens)."""
        total = 0.0
        for op in self.operators:
            if op.kind == "kv_append" and not self.encoder:
                total += 2 * op.kv_heads * float(op.kept(context)) * key_bytes(op.head_dim, bits, self.kv_group)
        return total

    @property
    def state_bytes(self) -> int:
        """Of one sequence's recurrent state."""
        return sum(op.state for op in self.operators) * STATE_BYTES

    def macs(self, at: Lengths):
        return sum(op.macs(at) for op in self.operators)

    def required_bytes(self, scheme: Scheme | None, at: Lengths) -> float:
        """Weights, cache and state of one pass, each once. Not: norms, biases (but without a scheme), tables, logits."""
        bits = self.bits_of_cache(scheme)
        return sum(self.op_bytes(op, scheme, bits, at) for op in self.operators)

    def op_bytes(self, op: Op, scheme: Scheme | None, bits: int, at: Lengths):
        """Required bytes of one operator; what kv_append writes is not required to be read."""
        cache = op.kv_bytes(at, bits, self.kv_group) if op.kind in ATTENTION_KINDS else 0
        return op.weight_bytes(scheme, at) + cache + op.state_bytes(at)

    @property
    def missing(self) -> tuple[str, ...]:
        """What machines and compiler of version 1 lack for this graph; empty for a plain Llama."""
        kinds = dict.fromkeys(op.kind for op in self.operators if op.kind not in VERSION_1_KINDS)
        found = list(kinds)
        if any(op.tensors and op.tensors[0].experts > 1 for op in self.operators):
            found.append("experts")
        if any(op.mask is not None and not op.mask.dense for op in self.operators):
            found.append("sparse attention")
        if any(op.mask is not None and not op.mask.causal for op in self.operators):
            found.append("bidirectional attention")
        found += [text for text in self.added if text not in found]
        if not found and self.architecture != "LlamaForCausalLM":
            found.append(f"a schedule of {self.architecture}: its compiler lays out plain Llama layers alone")
        return tuple(found)


class Builder:
    """Writes a graph operator by operator. Activations get names of their own; a quantised activation is made once and shared
    (`quantised`: activation -> its quantised one)."""

    def __init__(self, name: str, architecture: str):
        self.name, self.architecture = name, architecture
        self.operators: list[Op] = []
        self.layer = -1
        self.quantised: dict[str, str] = {}

    def add(self, kind: str, name: str, inputs: tuple[str, ...], shape: Shape, tensors: tuple[Tensor, ...] = (), **more) -> str:
        """Returns the name of the output."""
        output = f"{name}@{self.layer}" if self.layer >= 0 else name
        self.operators.append(Op(
            kind=kind, name=name, layer=self.layer, inputs=inputs, output=output, shape=shape, tensors=tensors, **more,
        ))  # fmt: skip
        return output

    def tensor(self, name: str, *shape: int, kind="other", **more) -> Tensor:
        return Tensor(name=f"layers.{name}" if self.layer >= 0 else name, shape=shape, kind=kind, **more)

    def norm(self, name: str, x: str, width: int, *, layer_norm: bool = False, affine: bool = True, rows: Length = TOKENS) -> str:
        tensors = (self.tensor(name, width, kind="norm"),) if affine else ()
        if layer_norm and affine:
            tensors += (self.tensor(f"{name}.bias", width, kind="bias"),)
        return self.add("layernorm" if layer_norm else "rmsnorm", name, (x,), (rows, width), tensors)

    def head_norm(self, name: str, x: str, heads: int, head_dim: int) -> str:
        """An RMS norm of each head of a query or key, all by the same weights."""
        return self.add("rmsnorm", name, (x,), (heads, TOKENS, head_dim), (self.tensor(name, head_dim, kind="norm"),))

    def gated(self, function: str, gate: str, up: str, ffn: int) -> str:
        """function(gate) * up: one operator where the function has such a one."""
        if function in ("silu", "gelu"):
            return self.vector(f"{function}_mul", f"{function}_mul", (gate, up), ffn)
        return self.vector("multiply", "multiply", (self.vector(function, function, (gate,), ffn), up), ffn)

    def quantise(self, x: str, shape: Shape) -> str:
        """Once per token, over the whole of `shape` (or per head, where it has heads)."""
        if x not in self.quantised:
            self.quantised[x] = self.add("quantise", f"quantise_{x.split('@')[0]}", (x,), shape)
        return self.quantised[x]

    def linear(self, name: str, x: str, outputs: int, inputs: int, *, bias: bool = False, rows: Length = TOKENS) -> str:
        h = self.quantise(x, (rows, inputs))
        y = self.add("linear", name, (h,), (rows, outputs), (self.tensor(name, outputs, inputs, kind="linear"),))
        return self.bias(name, y, outputs, rows) if bias else y

    def bias(self, name: str, y: str, outputs: int, rows: Length = TOKENS) -> str:
        return self.add("bias", f"{name}.bias", (y,), (rows, outputs), (self.tensor(f"{name}.bias", outputs, kind="bias"),))

    def vector(self, kind: str, name: str, inputs: tuple[str, ...], width: int, rows: Length = TOKENS) -> str:
        return self.add(kind, name, inputs, (rows, width))

    def embedding(self, name: str, rows: int, width: int) -> str:
        codes = self.add("embedding", name, ("tokens",), (TOKENS, width), (self.tensor(name, rows, width, kind="embedding"),))
        return self.add("dequantise", f"dequantise_{name}", (codes,), (TOKENS, width))

    def attention(
        self, q: str, k: str, v: str, *, heads: int, kv_heads: int, head_dim: int, mask: Mask, rope: int = 0, alibi: bool = False,
        softcap: bool = False, cached: bool = True,
    ) -> str:
        """Scores to values of `heads` heads. rope: elements of a head that are turned. cached: keys are kept for later passes."""
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "mask": mask}
        if rope:
            q, k = (self.add("rope", f"rope_{name}", (x,), (count, TOKENS, rope)) for name, x, count in (("q", q, heads), ("k", k, kv_heads)))
        kq = self.add("quantise", "quantise_k", (k,), (kv_heads, TOKENS, head_dim))
        vq = self.add("quantise", "quantise_v", (v,), (kv_heads, TOKENS, head_dim))
        qq = self.add("quantise", "quantise_q", (q,), (heads, TOKENS, head_dim))
        cache = self.add("kv_append", "kv_append", (kq, vq), (kv_heads, TOKENS, head_dim), **sizes) if cached else kq
        scores = self.add("attention_qk", "scores", (qq, cache), (heads, TOKENS, CONTEXT), **sizes)
        if softcap:
            scores = self.add("softcap", "score_cap", (scores,), (heads, TOKENS, CONTEXT), **sizes)
        if alibi:
            scores = self.add("alibi", "alibi", (scores,), (heads, TOKENS, CONTEXT), **sizes)
        p = self.add("softmax", "softmax", (scores, cache), (heads, TOKENS, CONTEXT), **sizes)
        return self.add("attention_pv", "values", (p, cache), (TOKENS, heads * head_dim), **sizes)

    def experts(self, x: str, width: int, ffn: int, experts: int, active: int, act: str) -> str:
        """A router over `experts` gated MLPs, of which a token takes `active`; their outputs are weighted and added."""
        scores = self.linear("router", x, experts, width)
        weights = self.add("router", "router_softmax", (scores,), (TOKENS, experts))
        chosen = self.add("topk", "topk", (weights,), (active, TOKENS, experts))
        h = self.quantise(x, (TOKENS, width))

        def expert(name: str, y: str, outputs: int, inputs: int) -> str:
            weight = self.tensor(f"experts.{name}", outputs, inputs, kind="linear", experts=experts, active=active)
            return self.add("linear", f"experts.{name}", (y, chosen), (active, TOKENS, outputs), (weight,))

        up, gate = expert("up", h, ffn, width), expert("gate", h, ffn, width)
        inner = self.add(f"{act}_mul", f"experts.{act}_mul", (gate, up), (active, TOKENS, ffn))
        down = expert("down", self.add("quantise", "quantise_experts", (inner,), (active, TOKENS, ffn)), width, ffn)
        return self.add("combine", "combine", (down, weights), (active, TOKENS, width))

    def head(self, x: str, width: int, vocab: int, *, tied: bool, softcap: bool = False) -> None:
        """LM head on normed activations, and the next token."""
        h = self.quantise(x, (LOGITS, width))
        weight = Tensor(name="lm_head", shape=(vocab, width), kind="linear", tied=tied)
        logits = self.add("lm_head", "lm_head", (h,), (LOGITS, vocab), (weight,))
        if softcap:
            logits = self.vector("softcap", "logit_cap", (logits,), vocab, LOGITS)
        self.add("argmax", "argmax", (logits,), (LOGITS, vocab))

    def finish(self, layers: int, **more) -> OperatorGraph:
        return OperatorGraph(
            name=self.name, architecture=self.architecture, layers=layers, operators=tuple(self.operators), **more,
        )  # fmt: skip


def weight_elements(graph: OperatorGraph) -> dict[str, int]:
    """Elements of every tensor by name, over all layers; a tied one counts none."""
    total: dict[str, int] = {}
    for op in graph.operators:
        for tensor in op.tensors:
            size = 0 if tensor.tied else tensor.experts * math.prod(tensor.shape)
            total[tensor.name] = total.get(tensor.name, 0) + size
    return total
