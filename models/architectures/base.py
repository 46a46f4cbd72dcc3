"""Tensors of an architecture, what follows from them, and the checked fields of a config.json that they are made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.models.cache_size import cache_bytes
from headrace.models.scheme import Scheme, matrix_bytes, refuse_sparse

Kind = Literal["linear", "embedding", "norm", "bias", "conv", "other"]

Size = Annotated[int, Field(ge=1, le=1 << 20)]
Vocab = Annotated[int, Field(ge=1, le=1 << 22)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Heads = Annotated[int, Field(ge=1, le=4096)]


class Fields(BaseModel):
    """The fields of a config.json that decide sizes. Others are ignored; names and defaults are those of the published class."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, populate_by_name=True)


class DoesNotFit(Exception):
    """A field whose value does not go with the others: `field`, `value`, `allowed`."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(field)
        self.field, self.value, self.allowed = field, value, allowed


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """`copies` tensors (one a layer) of `experts` slices of `shape`; a linear's shape is [outputs, inputs], however it is stored.

    A token multiplies `active` of the `experts`. A `tied` tensor is another one's storage: multiplied, not counted.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    copies: int = 1
    experts: int = 1
    active: int = 1
    tied: bool = False

    @property
    def parameters(self) -> int:
        return 0 if self.tied else self.copies * self.experts * math.prod(self.shape)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one token: linears, and convolutions (every tap once)."""
        return self.copies * self.active * math.prod(self.shape) if self.kind in ("linear", "conv") else 0


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """What one token adds to the cache: a key and a value of `kv_heads` x `head_dim` in each of `layers`."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, kv_bits: int) -> int:
        """Codes, and at up to 8 bits one float32 scale per token, KV head and tensor; at 4 bits mult and off of each group too. A
        layer with a sliding window gives back as much once its window is full."""
        return cache_bytes(self.layers, self.kv_heads, self.head_dim, kv_bits)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A model's tensors and its cache (None: a state of fixed size, or an encoder)."""

    tensors: tuple[Tensor, ...]
    kv: KvCache | None

    @property
    def parameters(self) -> int:
        """Every tensor of the class once, norms and biases included."""
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def macs_per_token(self) -> int:
        """Weights that one token multiplies: LM head in, embedding look-up and attention scores out, active experts only."""
        return sum(tensor.macs for tensor in self.tensors)

    def weight_bytes(self, scheme: Scheme) -> int | None:
        """Required bytes of all weights, linears by the scheme, embeddings and LM head at its bits for them, the rest in
        float32. None where the scheme gives bits to a linear that this architecture lacks (a fused one has no bits of its own)."""
        refuse_sparse(scheme)
        names = {tensor.name.rsplit(".", 1)[-1] for tensor in self.tensors}
        if scheme.tensor_bits or scheme.linear_bits.keys() - names:
            return None
        total = 0
        for tensor in self.tensors:
            if tensor.tied:
                continue
            if tensor.kind == "embedding":
                one = matrix_bytes(*tensor.shape, scheme.embedding_bits)
            elif tensor.kind == "linear":
                short = tensor.name.rsplit(".", 1)[-1]
                bits = scheme.lm_head_bits if tensor.name == "lm_head" else scheme.bits_of(short)
                one = matrix_bytes(*tensor.shape, bits, scheme.group)
            else:
                one = 4 * math.prod(tensor.shape)
            total += tensor.copies * tensor.experts * one
        return total


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One class of `architectures`: its fields, and the tensors that they make."""

    fields: type[Fields]
    count: Callable[..., Counted]


def linear(name: str, outputs: int, inputs: int, *, copies: int = 1, bias: bool = False) -> list[Tensor]:
    """A linear layer, and its bias."""
    weight = Tensor(name=name, shape=(outputs, inputs), kind="linear", copies=copies)
    return [weight, Tensor(name=f"{name}.bias", shape=(outputs,), kind="bias", copies=copies)] if bias else [weight]


def rms_norm(name: str, width: int, *, copies: int = 1) -> list[Tensor]:
    return [Tensor(name=name, shape=(width,), kind="norm", copies=copies)]


def layer_norm(name: str, width: int, *, copies: int = 1) -> list[Tensor]:
    """Gain and offset."""
    return rms_norm(name, width, copies=copies) + [Tensor(name=f"{name}.bias", shape=(width,), kind="bias", copies=copies)]


def embedding(name: str, rows: int, width: int) -> list[Tensor]:
    return [Tensor(name=name, shape=(rows, width), kind="embedding")]


def lm_head(vocab: int, width: int, tied: bool) -> list[Tensor]:
    return [Tensor(name="lm_head", shape=(vocab, width), kind="linear", tied=tied)]


def split_heads(width: int, heads: int, field: str = "hidden_size") -> int:
    """width / heads, which must be whole."""
    if width % heads:
        raise DoesNotFit(field, width, f"a multiple of the {heads} attention heads")
    return width // heads
