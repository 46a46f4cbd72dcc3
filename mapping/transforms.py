"""Transforms of a workload by name: `--transform NAME:key=value,...`, and the passes that a schedule of them makes of a decode step.

Those of `models.transforms` change the graph. The others change which passes run: batch, early exit, speculative decoding, chunked prefill.
Everything is costed pass by pass on the machine as it is: machines of version 1 take one position of one sequence a pass, so that a batch,
a chunk or a verification reads the weights once for each of its positions; `required_bytes` counts them once, and so do GPU rooflines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from headrace.mapping.required import Held
from headrace.models import transforms
from headrace.models.architectures.graphs import load_graph
from headrace.models.configfile import StrictModel, validate
from headrace.models.errors import UserError
from headrace.models.operators import HALF_BYTES, Lengths, OperatorGraph
from headrace.models.scheme import Scheme, StaticMask

Count = Annotated[int, Field(ge=1, le=1 << 20)]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft model that proposes `proposed` tokens, each of which the target accepts with probability `acceptance`."""

    graph: OperatorGraph
    proposed: int
    acceptance: float

    @property
    def tokens_per_verification(self) -> float:
        """Expected: accepted proposals and one token of the target, (1 - a**(k+1)) / (1 - a) (Leviathan et al. 2023, equation 1)."""
        return sum(self.acceptance**i for i in range(self.proposed + 1))


@dataclass(frozen=True, kw_only=True)
class Work:
    """A graph, and how its passes are scheduled.

    exits: (layers, share of tokens that leave after them); the rest leaves at the end. chunk: positions of a chunk of the prefill, after each of
    which, but the last, `interleaved` decode steps of other sequences run.
    """

    graph: OperatorGraph
    batch: int = 1
    exits: tuple[tuple[int, float], ...] = ()
    draft: Draft | None = None
    chunk: int | None = None
    interleaved: int = 0

    @cached_property
    def decode_passes(self) -> list[Pass]:
        """The passes that a decoded token takes on average, on a machine of one position a pass."""
        if self.draft is not None:
            share = 1 / self.draft.tokens_per_verification
            proposals = [Pass(self.draft.graph, share, j, "draft.") for j in range(self.draft.proposed)]
            return proposals + [Pass(self.graph, share, j) for j in range(self.draft.proposed + 1)]
        if not self.exits:
            return [Pass(self.graph)]
        early = [layers for layers, _ in self.exits]
        staying = max(0.0, 1 - sum(share for _, share in self.exits))
        passes = [
            Pass(transforms.exit_after(self.graph, layers, [other for other in early if other < layers]), share) for layers, share in self.exits
        ]
        # What stays to the end has tried every exit.
        return passes + ([Pass(transforms.exit_after(self.graph, self.graph.layers, early), staying)] if staying > 1e-12 else [])

    @property
    def graphs(self) -> list[OperatorGraph]:
        """Those whose weights must be held: the model's, and the draft's."""
        return [self.graph] + ([self.draft.graph] if self.draft else [])

    def held_bytes(self, scheme: Scheme | None, context: int) -> Held:
        """At `context`. scheme None: in 16 bits."""
        weights = sum(HALF_BYTES * graph.parameters if scheme is None else graph.counted.weight_bytes(scheme) for graph in self.graphs)
        caches = sum(graph.kv_cache_bytes(context, graph.bits_of_cache(scheme)) + graph.state_bytes for graph in self.graphs)
        return Held(weights, self.batch * caches)

    @property
    def missing(self) -> tuple[str, ...]:
        """What machines of version 1 lack for any of its passes."""
        return tuple(dict.fromkeys(text for part in self.decode_passes for text in part.graph.missing))

    def _exit_bytes(self, scheme: Scheme | None, at: Lengths):
        """With early exits: caches and states by the share of tokens that reaches them; weights down to the deepest exit of the batch, whose
        distribution is that of the largest of `batch` independent draws."""
        total, before = 0.0, 0.0
        for part in self.decode_passes:
            reached = min(1.0, before + part.share)
            deepest = reached**self.batch - before**self.batch
            weights = sum(op.weight_bytes(scheme, at) for op in part.graph.operators)
            total = total + deepest * weights + part.share * (part.graph.required_bytes(scheme, at) - weights)
            before = reached
        return total

    def decode_bytes(self, scheme: Scheme | None, context) -> np.ndarray:
        """Required bytes of a decode step of the batch at `context`: weights once, for all positions of a verification too. scheme None: of a
        model in 16 bits."""
        if self.draft is None:
            at = Lengths(context=context, sequences=self.batch)
            return _like(context, self._exit_bytes(scheme, at) if self.exits else self.graph.required_bytes(scheme, at))
        draft, width = self.draft, self.draft.proposed + 1
        total = 0.0
        for j in range(draft.proposed):
            total = total + draft.graph.required_bytes(scheme, Lengths(context=np.asarray(context) + j, sequences=self.batch))
        contexts = np.atleast_1d(context) + draft.proposed
        verified = np.array([
            float(self.graph.required_bytes(scheme, Lengths(tokens=width, context=int(at), logits=width, sequences=self.batch)))
            for at in contexts
        ])  # fmt: skip
        return _like(context, (total + (verified if np.ndim(context) else verified[0])) / draft.tokens_per_verification)

    def decode_macs(self, context) -> np.ndarray:
        """Multiply-accumulates of a decode step of the batch, rejected tokens included."""
        at = np.asarray(context)
        macs = sum(part.share * part.graph.macs(Lengths(context=at + part.offset, sequences=self.batch)) for part in self.decode_passes)
        return _like(context, macs)

    def chunks(self, tokens: int) -> list[tuple[int, int]]:
        """(positions, context at its end) of each chunk of a prefill; one where it is not chunked."""
        size = min(self.chunk or tokens, tokens)
        ends = [*range(size, tokens, size), tokens]
        return [(end - start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def prefill_bytes(self, scheme: Scheme, tokens: int) -> float:
        """Required bytes of a prefill: weights once a chunk, the keys before and in it once a chunk; the draft model's prefill too."""
        logits = tokens if self.graph.encoder else 1
        return float(sum(
            graph.required_bytes(scheme, Lengths(tokens=size, context=end, logits=logits if end == tokens else 0, sequences=self.batch))
            for graph in self.graphs for size, end in self.chunks(tokens)
        ))  # fmt: skip


def _like(context, value) -> np.ndarray:
    """One value for each context, where the graph does not depend on it."""
    return np.broadcast_to(np.asarray(value, float), np.shape(context))


@dataclass(frozen=True)
class Pass:
    """One position through a graph: how often a decoded token takes it, how far behind the token's context it lies."""

    graph: OperatorGraph
    share: float = 1.0
    offset: int = 0
    label: str = ""


class Transform(StrictModel):
    """Keys of one transform. `what` is for --help, `source` for the document."""

    what: ClassVar[str]
    source: ClassVar[str]

    def apply(self, work: Work) -> Work:
        raise NotImplementedError


class Batch(Transform):
    what = "size=B: sequences decoded together"
    source = "definition"
    size: Annotated[int, Field(ge=1, le=1 << 20)]

    def apply(self, work: Work) -> Work:
        return replace(work, batch=self.size)


class Gqa(Transform):
    what = "kv_heads=G: query heads share G key and value heads (1: multi-query)"
    source = "Ainslie et al. 2023, GQA, section 2.2; Shazeer 2019"
    kv_heads: Count

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.with_kv_heads(work.graph, self.kv_heads))


class Moe(Transform):
    what = "experts=E,active=K[,ffn=F]: experts in the place of gated MLPs"
    source = "Shazeer et al. 2017; Fedus et al. 2022, Switch Transformers, section 2"
    experts: Annotated[int, Field(ge=1, le=4096)]
    active: Annotated[int, Field(ge=1, le=4096)]
    ffn: Count | None = None

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.with_experts(work.graph, self.experts, self.active, self.ffn))


class KvQuantisation(Transform):
    what = "bits=2|4|8|16[,group=G]: elements of the cache; a float32 scale for G of them up to 8 bits (default: a head; at 4 bits the contract's)"
    source = "Liu et al. 2024, KIVI, section 3; Hooper et al. 2024, KVQuant"
    bits: int
    group: Count | None = None

    @model_validator(mode="after")
    def _check(self):
        if self.bits not in (2, 4, 8, 16):
            raise ValueError(f"bits = {self.bits}; allowed are 2, 4, 8 and 16.")
        return self

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.quantised_cache(work.graph, self.bits, self.group))


class SparseAttention(StaticMask, Transform):
    what = "window=W[,sinks=G][,stride=S] or block=B[,blocks=N][,sinks=G]: a static mask"
    source = "Child et al. 2019, section 4.2; Beltagy et al. 2020, section 3.1; Xiao et al. 2024, section 3"

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.sparse_attention(work.graph, self.mask))


class TokenPruning(Transform):
    what = "keep=R,from=L: each layer from L on (the first is 0) keeps the share R of the tokens of the layer before"
    source = "Wang et al. 2021, SpAtten, section III-A"
    keep: Share
    first: Annotated[int, Field(ge=0, le=1024)] = Field(alias="from")

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.pruned_tokens(work.graph, self.keep, self.first))


class LowRank(Transform):
    what = "linears=q+k+...,rank=R: each weight in two factors"
    source = "Hu et al. 2022, LoRA, section 4; Yuan et al. 2023, ASVD"
    linears: Annotated[str, Field(min_length=1, max_length=200)]
    rank: Count

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.low_rank(work.graph, self.linears.split("+"), self.rank))


class StateSpace(Transform):
    what = "attention_every=N[,state=S][,expand=E][,kernel=K]: Mamba mixers, but attention in every N-th layer (0: in none)"
    source = "Gu and Dao 2023, section 3.4; Lieber et al. 2024, Jamba, section 3"
    attention_every: Annotated[int, Field(ge=0, le=1024)]
    state: Annotated[int, Field(ge=1, le=1024)] = 16
    expand: Annotated[int, Field(ge=1, le=16)] = 2
    kernel: Annotated[int, Field(ge=1, le=64)] = 4

    def apply(self, work: Work) -> Work:
        return replace(work, graph=transforms.with_state_space(work.graph, **self.model_dump()))


class EarlyExit(Transform):
    what = "exits=L:P+...: the share P of tokens leaves after L layers; each exit tried costs a norm and the LM head"
    source = "Schuster et al. 2022, CALM, sections 3.2 and 3.3"
    exits: Annotated[str, Field(min_length=1, max_length=1000)]

    def apply(self, work: Work) -> Work:
        found: dict[int, float] = {}
        for item in self.exits.split("+"):
            layers, colon, share = item.partition(":")
            try:
                layer, part = int(layers), float(share)
            except ValueError:
                raise UserError(f"--transform early-exit: exits = {item[:40]!r}; allowed is LAYERS:SHARE, several of them with +") from None
            if layer in found or not 0 <= part <= 1 or not 1 <= layer < work.graph.layers:
                raise UserError(
                    f"--transform early-exit: exits = {item[:40]!r}; allowed are different numbers of layers from 1 to {work.graph.layers - 1}, "
                    "with shares from 0 to 1"
                )
            found[layer] = part
        if sum(found.values()) > 1 + 1e-12:
            raise UserError(f"--transform early-exit: exits = {self.exits[:60]}: the shares sum to {sum(found.values()):g}; allowed is up to 1")
        if work.draft is not None:
            raise UserError("--transform early-exit: does not go with speculative decoding, whose verification needs every layer")
        for layers in found:
            transforms.exit_after(work.graph, layers)  # refuses a graph that cannot be left there
        return replace(work, exits=tuple(sorted(found.items())))


class Speculative(Transform):
    what = "draft=MODEL,k=K,acceptance=A: MODEL proposes K tokens, each accepted with probability A"
    source = "Leviathan et al. 2023, Fast inference from transformers via speculative decoding, equation 1"
    draft: Annotated[str, Field(min_length=1, max_length=4096)]
    k: Annotated[int, Field(ge=1, le=64)]
    acceptance: Annotated[float, Field(ge=0, le=1)]

    def apply(self, work: Work) -> Work:
        graph = load_graph(self.draft)
        for what, one in (("draft", graph), ("model", work.graph)):
            if one.encoder:
                raise UserError(f"--transform speculative: {what} = {one.name} is an encoder; allowed is a decoder")
        vocabularies = [next(op.matrix.shape[0] for op in one.operators if op.kind == "lm_head") for one in (graph, work.graph)]
        if vocabularies[0] != vocabularies[1]:
            raise UserError(
                f"--transform speculative: draft = {graph.name} has {vocabularies[0]} tokens; allowed is the {vocabularies[1]} of {work.graph.name}"
            )
        if work.exits:
            raise UserError("--transform speculative: does not go with early-exit: a verification needs every layer")
        work = replace(work, draft=Draft(graph=graph, proposed=self.k, acceptance=self.acceptance))
        return replace(work, graph=replace(work.graph, added=(*work.graph.added, "speculative decoding")))


class ChunkedPrefill(Transform):
    what = "chunk=C[,decodes=D]: a prompt in chunks of C, with D decode steps of other sequences after each but the last"
    source = "Agrawal et al. 2023, SARATHI, section 4"
    chunk: Count
    decodes: Annotated[int, Field(ge=0, le=1 << 20)] = 0

    def apply(self, work: Work) -> Work:
        if work.graph.encoder:
            raise UserError(f"--transform chunked-prefill: model {work.graph.name} is an encoder, whose positions need one another")
        return replace(work, chunk=self.chunk, interleaved=self.decodes)


TRANSFORMS: dict[str, type[Transform]] = {
    "batch": Batch, "gqa": Gqa, "moe": Moe, "kv-quantisation": KvQuantisation, "sparse-attention": SparseAttention,
    "token-pruning": TokenPruning, "low-rank": LowRank, "state-space": StateSpace, "early-exit": EarlyExit, "speculative": Speculative,
    "chunked-prefill": ChunkedPrefill,
}  # fmt: skip


ONCE = ("batch", "state-space", "kv-quantisation", "sparse-attention", "token-pruning", "early-exit", "speculative", "chunked-prefill")
"""A second one would put the first out of use."""


def parse_transform(text: str) -> tuple[str, Transform]:
    """(name, transform) of ``NAME:key=value,...``. UserError naming what is allowed."""
    name, _, rest = text.partition(":")
    if name not in TRANSFORMS:
        raise UserError(f"--transform {name[:60]!r} is unknown; allowed: {', '.join(TRANSFORMS)}")
    model = TRANSFORMS[name]
    names = {field.alias or key: field.annotation for key, field in model.model_fields.items()}
    document: dict[str, object] = {}
    for item in rest.split(",") if rest else []:
        key, equals, value = item.partition("=")
        if not equals or key in document:
            raise UserError(f"--transform {name}: {item[:60]!r} is not a key=value given once; allowed keys: {', '.join(names)}")
        if key not in names:
            raise UserError(f"--transform {name}: key {key[:60]!r} is unknown; allowed: {', '.join(names)}")
        document[key] = value if names[key] is str else _number(value)
    return name, validate(model, document, source=f"--transform {name}")


def _number(text: str) -> object:
    """A number where it reads like one; pydantic refuses the text otherwise."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def apply_transforms(graph: OperatorGraph, texts, batch: int = 1) -> tuple[Work, list[dict[str, object]]]:
    """(the work, the document's list of transforms): applied in the order given. batch: of `--batch`."""
    work, applied = Work(graph=graph, batch=batch), []
    for text in texts:
        name, transform = parse_transform(text)
        if name in ONCE and any(name == earlier["name"] for earlier in applied):
            raise UserError(f"--transform {name}: is given twice; allowed is once")
        if name == "batch" and batch not in (1, transform.size):
            raise UserError(f"--transform batch: size = {transform.size}, but --batch {batch}; allowed is one of them")
        work = transform.apply(work)
        applied.append({"name": name, **transform.model_dump(by_alias=True), "source": type(transform).source})
    return work, applied
