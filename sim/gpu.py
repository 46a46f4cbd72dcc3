"""GPUs beside the machine: rooflines and measured-stack bounds for a model, and what others measured.

Three kinds of rows, none of them a prediction of what a GPU will do:

- roofline (kind "bound", stack "roofline"): no step is faster than its required bytes over peak bandwidth, nor than its operations over
  the compute peak. For fp16, and for the scheme's own bytes. A model that fits the L2 cache is bound by compute alone.
- measured stack (kind "bound"): the roofline with peak bandwidth replaced by the share of it that batch-1 decode of a 7B-class model
  reached on that stack; at batch 1 only. Smaller models reach a smaller share: launches and synchronisation weigh more.
- measured (kind "measured"): rates and board power of another model, as context, never scaled to this one.

Energy is board power times time where a source measured both, else null; never TDP. No price per token: no source gives one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from headrace.mapping.required import Held, held_bytes, required_bytes, useful_macs
from headrace.models.configfile import StrictModel, find_config, list_configs, load_model
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.scheme import Scheme

DEFAULT_VARIANTS = {"A100": "A100-SXM-80", "V100": "V100-SXM2-32", "H100": "H100-SXM-80", "H200": "H200-SXM-141"}
"""What a bare name means: the variant with the most bandwidth whose decode was measured, or the only one."""

ROOFLINE = "roofline"
FP16_BYTES = 2
CODE_DTYPES = {"int4": 4, "int8": 8}
"""Weight bits of integer data types of measured stacks; activations are 16 bits in all of them."""
FLOAT_DTYPES = ("fp16", "bf16", "f16")


class BandwidthFraction(StrictModel):
    """Share of peak bandwidth of batch-1 decode, as weights read per second over the peak."""

    stack: str = Field(min_length=1)
    dtype: str
    fraction: float = Field(gt=0, le=1)
    src: str
    r: Literal["read", "derived", "recall"]


class Measured(StrictModel):
    """One published measurement on one GPU. `device` is the GPU as the source names it."""

    device: str
    stack: str
    model: str
    dtype: str | None = None
    batch: int = Field(ge=1)
    prefill: int | None = Field(default=None, ge=1)
    decode: int | None = Field(default=None, ge=1)
    tokens_per_s: float = Field(gt=0)
    power_w: float | None = Field(default=None, gt=0)
    energy_j_per_token: float | None = Field(default=None, gt=0)
    cap_w: float | None = Field(default=None, gt=0)
    """Power limit that was set."""
    src: str
    r: Literal["read", "derived", "recall"]
    note: str | None = None

    @property
    def energy(self) -> float | None:
        """J per token: as published, else measured board power over measured rate."""
        if self.energy_j_per_token is not None or self.power_w is None:
            return self.energy_j_per_token
        return self.power_w / self.tokens_per_s


class Gpu(StrictModel):
    """One GPU: dense peaks of the data sheet (0: not supported, null: not known), board power, and what was measured on it."""

    name: str = Field(min_length=1)
    process_nm: int = Field(gt=0)
    die_mm2: float = Field(gt=0)
    sm: int = Field(gt=0)
    boost_hz: float = Field(gt=0)
    memory: str | None = None
    memory_bytes: int = Field(gt=0)
    memory_bytes_per_s: float = Field(gt=0)
    l2_bytes: int | None = Field(default=None, gt=0)
    tdp_w: float = Field(gt=0)
    fp16_flops_per_s: float | None = Field(default=None, ge=0)
    bf16_flops_per_s: float | None = Field(default=None, ge=0)
    int8_ops_per_s: float | None = Field(default=None, ge=0)
    int4_ops_per_s: float | None = Field(default=None, ge=0)
    fp8_flops_per_s: float | None = Field(default=None, ge=0)
    idle_w: float | None = Field(default=None, ge=0)
    price_usd: float | None = Field(default=None, gt=0)
    src: str = Field(min_length=1)
    r: Literal["read", "derived", "recall"]
    recall: tuple[str, ...] = Field(default=(), strict=False)
    """Fields that nobody has checked."""
    note: str | None = None
    bandwidth_fractions: tuple[BandwidthFraction, ...] = Field(default=(), strict=False)
    measured: tuple[Measured, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _check(self):
        for name in self.recall:
            if name not in type(self).model_fields:
                raise ValueError(f"recall names {name!r}, which is not a field of a GPU.")
        return self

    @property
    def stacks(self) -> list[str]:
        """Software stacks of which something was measured, in the order of the file."""
        return list(dict.fromkeys([row.stack for row in self.bandwidth_fractions] + [row.stack for row in self.measured]))


class Source(StrictModel):
    """What a source key stands for, and how that is known (configs/published/sources.yaml)."""

    what: str = Field(min_length=1)
    found: Literal["checked", "named", "likely"]


class Sources(StrictModel):
    name: str
    sources: dict[str, Source]


def sources_of(texts: Iterable[str]) -> dict[str, Source]:
    """The known source keys that stand as words in `src` texts, in the order of the file."""
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return {key: source for key, source in load_model(Sources, "published", "sources").sources.items() if key in words}


@dataclass(frozen=True)
class GpuChoice:
    """What ``--gpu G[/STACK]`` names. stack None: all."""

    gpu: Gpu
    stack: str | None


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A GPU of configs/gpus, a bare name of `DEFAULT_VARIANTS`, or a file."""
    text = str(name_or_path)
    for short, variant in DEFAULT_VARIANTS.items():
        if text.lower() == short.lower():
            text = variant
    return load_model(Gpu, "gpus", text)


def parse_gpu(text: str) -> GpuChoice:
    """``G`` or ``G/STACK``; G is a name, a bare name or a path that ends in .yaml or .yml. UserError naming what is allowed."""
    for ending in (".yaml/", ".yml/"):
        if ending in text.lower():
            cut = text.lower().index(ending) + len(ending) - 1
            name, stack = text[:cut], text[cut + 1 :]
            break
    else:
        is_path = text.lower().endswith((".yaml", ".yml"))
        name, slash, stack = (text, "", "") if is_path else text.partition("/")
        if slash and not stack:
            raise UserError(f"--gpu {text!r}: a stack is missing after '/'; allowed: G or G/STACK")
        if not is_path and name.lower() not in {known.lower() for known in (*DEFAULT_VARIANTS, *list_configs("gpus"))}:
            find_config("gpus", name)  # raises, listing the names
    gpu = load_gpu(name)
    if not stack:
        return GpuChoice(gpu, None)
    allowed = [ROOFLINE, *gpu.stacks]
    for known in allowed:
        if known.lower() == stack.lower():
            return GpuChoice(gpu, known)
    raise UserError(f"--gpu {text}: nothing is known of stack {stack!r} on {gpu.name}; allowed: {', '.join(allowed)}")


def fp16_bytes(config: DecoderConfig, context, *, batch: int = 1) -> np.ndarray:
    """Bytes that one step must read with 16-bit weights and cache: every matrix and norm once, an embedding row and the cache at KV
    length `context` per sequence."""
    weights = config.layers * sum(n * k for n, k in map(config.linear_shape, LINEAR_NAMES)) + config.vocab * config.width
    norms = (2 * config.layers + 1) * config.width
    cache = np.asarray(context) * config.kv_bytes_per_token(8 * FP16_BYTES)
    return FP16_BYTES * (weights + norms) + batch * (FP16_BYTES * config.width + cache)


@dataclass(frozen=True)
class Bound:
    """Highest tokens/s over decode steps, and what sets it: "memory" or "compute"."""

    tokens_per_s: float
    limit: str


def roofline(step_bytes, step_macs, bytes_per_s: float, ops_per_s: float | None, batch: int = 1) -> Bound:
    """Steps that read `step_bytes` and do `step_macs` each, at two operations a multiply-accumulate, reading and computing at once.

    Arrays [steps] or numbers. ops_per_s None: unknown, only the memory bounds.
    """
    memory_s = np.atleast_1d(np.asarray(step_bytes, float)) / bytes_per_s
    compute_s = np.zeros_like(memory_s) if not ops_per_s else 2.0 * np.asarray(step_macs, float) / ops_per_s
    step_s = np.maximum(memory_s, compute_s)
    limit = "memory" if float(memory_s.sum()) >= float(np.sum(compute_s)) else "compute"
    return Bound(len(memory_s) * batch / float(step_s.sum()), limit)


def gpu_rows(choice: GpuChoice, config: DecoderConfig, scheme: Scheme, *, prefill: int, decode: int, batch: int = 1) -> list[dict]:
    """Rows of `headrace compare` for one GPU and decode steps at contexts prefill + 1 .. prefill + decode.

    The roofline first, then measured stacks (all, or the one chosen), then measurements at that batch. Beside the keys of the design: "model" (whose tokens), "batch", "limit", "src", "note".
    Raises UserError when the model does not fit the memory even at the scheme's widths; rows in fp16 that do not are those of `rows_left_out`.
    """
    contexts = np.arange(prefill + 1, prefill + decode + 1)
    macs = useful_macs(config, contexts) * batch
    half, packed = fp16_bytes(config, contexts, batch=batch), required_bytes(config, scheme, contexts, batch=batch)
    held = tuple(held_bytes(config, one, prefill + decode, batch=batch) for one in (None, scheme))
    return rows_of_steps(choice, config.name, scheme, half, packed, macs, batch, held=held)


def rows_of_steps(
    choice: GpuChoice, model: str, scheme: Scheme, half: np.ndarray, packed: np.ndarray, macs: np.ndarray, batch: int, *,
    held: tuple[Held, Held],
) -> list[dict]:
    """`gpu_rows` of steps that read `half` bytes in fp16 or `packed` under the scheme, and do `macs`: arrays [steps], of the whole batch.
    held: in fp16 and under the scheme."""
    gpu = choice.gpu
    wide_ops = gpu.fp16_flops_per_s
    narrow_ops = max(wide_ops or 0.0, gpu.int8_ops_per_s or 0.0) or None
    if scheme.name == "fp16":
        raise UserError("scheme fp16: has the name of the uncompressed rows; allowed is another")
    if scheme.attention is not None:
        raise UserError(f"scheme {scheme.name}: attention: GPU bounds read every key; cost a mask with --transform sparse-attention")
    variants = {"fp16": (half, wide_ops), scheme.name: (packed, narrow_ops)}
    if held[1].total > gpu.memory_bytes:
        raise UserError(
            f"--gpu {gpu.name}: model {model} needs {held[1].total / 1e9:.4g} GB under {scheme.name}; "
            f"it holds {gpu.memory_bytes / 1e9:.4g} GB"
        )
    fits = {name: size.total <= gpu.memory_bytes for name, size in zip(variants, held, strict=True)}
    # By what a step reads: an embedding table lies in memory as a whole, but the cache needs a row of it.
    cached = {name: float(step_bytes[-1]) <= (gpu.l2_bytes or 0) for name, (step_bytes, _) in variants.items()}

    rows = []
    for dtype, (step_bytes, ops) in variants.items():
        if fits[dtype] and not (cached[dtype] and ops is None):
            bound = roofline(0 * step_bytes if cached[dtype] else step_bytes, macs, gpu.memory_bytes_per_s, ops, batch)
            note = "peak bandwidth and compute of the data sheet; nothing is kept in the L2 cache between steps"
            if cached[dtype]:
                note = (
                    f"compute peak of the data sheet alone: what a step reads fits the L2 cache of {gpu.l2_bytes / 1e6:.3g} MB, so bandwidth bounds "
                    "nothing; launch times, which dominate such a model, are not in it"
                )
            rows.append(_bound_row(gpu, model, dtype, ROOFLINE, batch, bound, gpu.src, note))
    for share, dtype in _shares(choice, scheme, batch):
        if not fits[dtype] or cached[dtype]:
            continue
        step_bytes, ops = variants[dtype]
        bound = roofline(step_bytes, macs, gpu.memory_bytes_per_s * share.fraction, ops, batch)
        note = f"{share.fraction:.1%} of peak bandwidth, measured with {share.dtype} models of 7B class at batch 1 ({share.r})"
        rows.append(_bound_row(gpu, model, dtype, share.stack, batch, bound, share.src, note))
    rows += [_measured_row(gpu, row) for row in gpu.measured if choice.stack in (None, row.stack) and row.batch == batch]
    return rows


def _shares(choice: GpuChoice, scheme: Scheme, batch: int) -> list[tuple[BandwidthFraction, str]]:
    """(share of bandwidth, dtype of its row) of the stacks chosen; those that serve neither fp16 nor the scheme's codes are left out."""
    found = []
    for share in choice.gpu.bandwidth_fractions if batch == 1 else ():  # the shares are those of batch 1
        wide = share.dtype in FLOAT_DTYPES
        if choice.stack in (None, share.stack) and (wide or CODE_DTYPES.get(share.dtype) == scheme.weight_bits):
            found.append((share, "fp16" if wide else scheme.name))
    return found


def rows_left_out(choice: GpuChoice, scheme: Scheme, held: Held, batch: int) -> list[dict]:
    """The fp16 rows that `gpu_rows` does not give because `held` (of fp16) is more than the GPU's memory: one item for all stacks, or none."""
    gpu = choice.gpu
    if held.total <= gpu.memory_bytes:
        return []
    stacks = [ROOFLINE, *(share.stack for share, dtype in _shares(choice, scheme, batch) if dtype == "fp16")]
    return [{
        "name": gpu.name, "dtype": "fp16", "stacks": list(dict.fromkeys(stacks)), "weight_bytes": held.weights, "cache_bytes": held.cache,
        "memory_bytes": gpu.memory_bytes,
    }]  # fmt: skip


def break_even_batch(gpu: Gpu, config: DecoderConfig, tokens_per_s: float, *, prefill: int, decode: int, limit: int = 1024) -> int | None:
    """Smallest batch at which the fp16 roofline of `gpu` reaches `tokens_per_s`: below it the machine is faster for certain. None where
    no batch up to `limit` that fits the memory does."""
    contexts = np.arange(prefill + 1, prefill + decode + 1)
    macs = useful_macs(config, contexts)
    for batch in range(1, limit + 1):
        if held_bytes(config, None, prefill + decode, batch=batch).total > gpu.memory_bytes:
            return None
        step_bytes = fp16_bytes(config, contexts, batch=batch)
        if float(step_bytes[-1]) <= (gpu.l2_bytes or 0):
            step_bytes = 0 * step_bytes
        if roofline(step_bytes, macs * batch, gpu.memory_bytes_per_s, gpu.fp16_flops_per_s, batch).tokens_per_s >= tokens_per_s:
            return batch
    return None


def break_even_measured(gpu: Gpu, model: str, energy_j_per_token: float) -> dict | None:
    """The measurement of `model` with the smallest batch whose energy per token is at most `energy_j_per_token`; None where none is.
    Names are compared without their dashes and dots."""
    rows = [row for row in gpu.measured if _plain(row.model) == _plain(model) and row.energy is not None and row.energy <= energy_j_per_token]
    if not rows:
        return None
    best = min(rows, key=lambda row: (row.batch, row.energy))
    return {"batch": best.batch, "stack": best.stack, "energy_j_per_token": best.energy, "src": best.src}


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _bound_row(gpu: Gpu, model: str, dtype: str, stack: str, batch: int, bound: Bound, src: str, note: str) -> dict:
    return {
        "name": gpu.name, "kind": "bound", "dtype": dtype, "stack": stack, "tokens_per_s": bound.tokens_per_s,
        "energy_j_per_token": None, "energy_j_per_token_range": None, "energy_scope": None, "usd_per_mtok": None,
        "model": model, "batch": batch, "limit": bound.limit, "src": src, "note": note,
    }  # fmt: skip


def _measured_row(gpu: Gpu, row: Measured) -> dict:
    notes = [] if row.device == gpu.name else [f"the source says {row.device}, not which variant"]
    notes += [f"prompt {row.prefill or 'not stated'}, output {row.decode or 'not stated'}"]
    notes += [f"power limit {row.cap_w:g} W"] if row.cap_w else []
    notes += [row.note] if row.note else []
    energy = row.energy
    return {
        "name": gpu.name, "kind": "measured", "dtype": row.dtype, "stack": row.stack, "tokens_per_s": row.tokens_per_s,
        "energy_j_per_token": energy, "energy_j_per_token_range": None, "energy_scope": "board" if energy is not None else None,
        "usd_per_mtok": None, "model": row.model, "batch": row.batch, "limit": None, "src": row.src, "note": "; ".join(notes),
    }  # fmt: skip
