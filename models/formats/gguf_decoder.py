"""A Model from a GGUF file of the architectures llama, qwen2, qwen3, gpt2, gemma2 or gemma3.

Names of fields and tensors: gguf-py's constants.py in llama.cpp; what they mean, and the defaults of absent ones: src/llama-model.cpp
there. A file holds Gemma's norm weights with the 1 added, and GPT-2's linears as [outputs, inputs].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError
from headrace.models.formats.gguf_file import CODE_TYPES, GgufFile
from headrace.models.formats.gguf_tokenizer import read_tokenizer
from headrace.models.decoder import LINEAR_NAMES, SIZE_LIMITS, DecoderConfig
from headrace.models.model import GroupCodes, LazyMapping, Model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3")
_LAYER_TENSORS = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "post_attn_norm": "post_attention_norm", "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up",
    "down": "ffn_down", "post_mlp_norm": "post_ffw_norm",
}
_OUTER_TENSORS = {"embedding": "token_embd", "positions": "position_embd", "final_norm": "output_norm", "lm_head": "output"}
_FUSED = dict.fromkeys("qkv", "attn_qkv")
_FREQUENCIES = "rope_freqs.weight"
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The one size of each whose scores are divided by sqrt(width / heads) and not by sqrt(head_dim); no field says so."""


def load_gguf(path: str | Path) -> Model:
    """Read sizes, tokenizer and (lazily) weights. Raises UserError naming file, field, value and what is allowed."""
    path = Path(path)
    file = GgufFile(path)
    config = _config(file, path.stem)
    architecture = file.fields["general.architecture"]
    sources = {name: _tensor_name(architecture, name) for name in config.weight_shapes()}
    rows = {name: _rows(architecture, config, name) for name in sources}
    _check_tensors(file, config, sources)

    def reader(name: str) -> Callable[[], np.ndarray]:
        return lambda: _take(file.values(sources[name]), rows[name])

    def code_reader(name: str) -> Callable[[], GroupCodes]:
        def read() -> GroupCodes:
            codes = file.group_codes(sources[name])
            return GroupCodes(codes=_take(codes.codes, rows[name]), d=_take(codes.d, rows[name]), m=_take(codes.m, rows[name]))

        return read

    coded = [name for name, shape in config.weight_shapes().items() if len(shape) == 2 and file.tensors[sources[name]].type_name in CODE_TYPES]
    return Model(
        config=config, weights=LazyMapping({name: reader(name) for name in sources}),
        codes=LazyMapping({name: code_reader(name) for name in coded}), tokenizer=read_tokenizer(file, config.vocab),
    )


def read_gguf_config(path: str | Path) -> DecoderConfig:
    """Sizes alone, from a GGUF file's header."""
    path = Path(path)
    return _config(GgufFile(path), path.stem)


def half_split_rows(heads: int, head_dim: int) -> np.ndarray:
    """Order of rows, int64 [heads * head_dim], that undoes the file's interleaving of q and k (of the llama architecture alone).

    The file stores each head's RoPE pairs side by side (row 2i and 2i + 1); half-split RoPE wants row i and i + head_dim / 2.
    """
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _rows(architecture: str, config: DecoderConfig, name: str) -> np.ndarray | slice | None:
    """The rows of the stored tensor that are ours, in our order; None for all as they are."""
    kind = name.removesuffix(".bias").rpartition(".")[2]
    if architecture == "llama" and kind in ("q", "k"):
        return half_split_rows(config.heads if kind == "q" else config.kv_heads, config.head_dim)
    if architecture == "gpt2" and kind in _FUSED:
        first = "qkv".index(kind) * config.width
        return slice(first, first + config.width)
    return None


def _take(array: np.ndarray, rows: np.ndarray | slice | None) -> np.ndarray:
    return array if rows is None else array[rows]


def _tensor_name(architecture: str, name: str) -> str:
    base, suffix = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
    if base in _OUTER_TENSORS:
        return f"{_OUTER_TENSORS[base]}.{suffix}"
    _, layer, kind = base.split(".")
    return f"blk.{layer}.{(_FUSED if architecture == 'gpt2' else {}).get(kind, _LAYER_TENSORS[kind])}.{suffix}"


def _config(file: GgufFile, name: str) -> DecoderConfig:
    arch = file.field("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise UserError(f"{file.source}: general.architecture = {arch[:40]!r}; allowed are {', '.join(ARCHITECTURES)}")

    def field(key: str, kind: type, default: object = None) -> object:
        return file.field(f"{arch}.{key}", kind, default)

    width, heads = field("embedding_length", int), field("attention.head_count", int)
    if heads < 1 or width < 1:
        raise UserError(f"{file.source}: {arch}.embedding_length = {width} with {arch}.attention.head_count = {heads}; allowed is 1 and up")
    if f"{arch}.attention.key_length" not in file.fields and width % heads:
        raise UserError(f"{file.source}: {arch}.embedding_length = {width}; allowed is a multiple of {arch}.attention.head_count = {heads}")
    head_dim = field("attention.key_length", int, width // heads)
    only = [("attention.value_length", head_dim), ("expert_count", 0)] + ([] if arch == "gpt2" else [("rope.dimension_count", head_dim)])
    for key, allowed in only:
        value = field(key, int, allowed)
        if value != allowed:
            raise UserError(f"{file.source}: {arch}.{key} = {value}; allowed is {allowed}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UserError(f"{file.source}: tensor token_embd.weight is missing")
    layers = field("block_count", int)
    if not 1 <= layers <= SIZE_LIMITS["layers"]:
        raise UserError(f"{file.source}: {arch}.block_count = {layers}; allowed for layers are 1 to {SIZE_LIMITS['layers']}")
    norm = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    sizes = {
        "name": name, "vocab": embedding.shape[0], "width": width, "layers": layers, "heads": heads,
        "kv_heads": field("attention.head_count_kv", int, heads), "head_dim": head_dim, "ffn": field("feed_forward_length", int),
        "rms_eps": field(f"attention.{norm}", float), "max_positions": field("context_length", int),
        "tie_embeddings": "output.weight" not in file.tensors, "bos_token_id": file.fields.get("tokenizer.ggml.bos_token_id"),
        "dtype": "float16", "biases": tuple(linear for linear in LINEAR_NAMES if _tensor_name(arch, f"layers.0.{linear}.bias") in file.tensors),
    }
    if arch == "gpt2":
        return DecoderConfig(**sizes, norm="layernorm", gated=False, activation="gelu_tanh", positions="learned")
    sizes |= {"rope_theta": field("rope.freq_base", float, 10000.0), "rope_divisors": _divisors(file, arch, head_dim)}
    if arch in ("gemma2", "gemma3"):
        sizes |= _gemma(file, arch, sizes)
    return DecoderConfig(**sizes, qk_norm=arch in ("qwen3", "gemma3"))


def _divisors(file: GgufFile, arch: str, head_dim: int) -> tuple[float, ...]:
    """RoPE's divisors: one factor for all pairs, or the tensor that converters make of Llama 3.1's scaling."""
    key = f"{arch}.rope.scaling.type"
    scaling = file.field(key, str, "none")
    if scaling not in ("none", "linear"):
        raise UserError(f"{file.source}: {key} = {scaling[:40]!r}; allowed are 'none' and 'linear'")
    pairs = head_dim // 2
    if not 1 <= pairs <= SIZE_LIMITS["head_dim"]:
        return ()  # such a head_dim is refused with the sizes
    if _FREQUENCIES in file.tensors:
        shape = file.tensors[_FREQUENCIES].shape
        if shape != (pairs,) or scaling != "none":
            raise UserError(f"{file.source}: tensor {_FREQUENCIES} has shape {shape}, {key} = {scaling!r}; allowed are {(pairs,)} and 'none'")
        return tuple(file.values(_FREQUENCIES).tolist())
    factor = file.field(f"{arch}.rope.scaling.factor", float, 1.0)
    return (factor,) * pairs if scaling == "linear" and factor != 1.0 else ()


def _gemma(file: GgufFile, arch: str, sizes: dict) -> dict[str, object]:
    """What Gemma 2 and 3 have beyond a Llama. Every second or sixth layer sees all positions."""
    pattern = file.field(f"{arch}.attention.sliding_window_pattern", int, 2 if arch == "gemma2" else 6)
    window = file.field(f"{arch}.attention.sliding_window", int, 4096 if arch == "gemma2" else 0)
    local = tuple(layer for layer in range(sizes["layers"]) if (layer + 1) % pattern) if pattern >= 1 and window else ()
    per_head = sizes["width"] / sizes["heads"] if sizes["layers"] == _LAYERS_OF_27B[arch] else max(sizes["head_dim"], 1)
    result = {
        "post_norms": True, "activation": "gelu_tanh", "embedding_scale": math.sqrt(sizes["width"]), "score_factor": per_head**-0.5,
        "window": window if local else None, "window_layers": local,
    }
    if arch == "gemma3":
        result["window_rope_theta"] = file.field(f"{arch}.rope.freq_base_swa", float, 10000.0)
    for ours, key, default in (("score_cap", "attn_logit_softcapping", 50.0), ("logit_cap", "final_logit_softcapping", 30.0)):
        key = f"{arch}.{key}"
        if arch == "gemma2" or key in file.fields:
            result[ours] = file.field(key, float, default)
    return result


def _check_tensors(file: GgufFile, config: DecoderConfig, sources: dict[str, str]) -> None:
    """Every tensor is there in its shape, and none is there that would be left unused."""
    for name, shape in config.weight_shapes().items():
        source = sources[name]
        if source not in file.tensors:
            raise UserError(f"{file.source}: tensor {source} is missing")
        found = file.tensors[source].shape
        if ".attn_qkv." in source:
            shape = (3 * config.width, *shape[1:])
        if found != shape:
            raise UserError(f"{file.source}: tensor {source} has shape {found}; allowed is {shape} by the file's own sizes")
    for name in sorted(file.tensors.keys() - set(sources.values()) - {_FREQUENCIES}):
        raise UserError(f"{file.source}: tensor {name[:60]!r} is not part of this {file.fields['general.architecture']} model; allowed are its weights")
