"""A Model from a Hugging Face folder: config.json, model.safetensors (one or sharded), tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig
from headrace.models.hf_families import config_of, read_family
from headrace.models.model import LazyMapping, Model
from headrace.models.safetensors_file import StoredTensor, open_folder, read_json
from headrace.models.tokenizer import Tokenizer

_LLAMA_LAYER = {
    "attn_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}
_GEMMA_LAYER = _LLAMA_LAYER | {
    "post_attn_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm", "post_mlp_norm": "post_feedforward_layernorm",
}
_GPT2_LAYER = {
    "attn_norm": "ln_1", "q": "attn.c_attn", "k": "attn.c_attn", "v": "attn.c_attn", "o": "attn.c_proj", "mlp_norm": "ln_2",
    "up": "mlp.c_fc", "down": "mlp.c_proj",
}
_OPT_LAYER = {
    "attn_norm": "self_attn_layer_norm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.out_proj", "mlp_norm": "final_layer_norm", "up": "fc1", "down": "fc2",
}


@dataclass(frozen=True, kw_only=True)
class _Names:
    """How a family names its tensors. `prefix` stands before all but the LM head; some exports of a bare model leave it out."""

    prefix: str
    outer: dict[str, str]
    layers: str
    layer: dict[str, str]

    def of(self, name: str) -> str:
        """The stored tensor that holds our tensor `name`."""
        if name == "lm_head":
            return "lm_head.weight"
        base, suffix = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
        if not base.startswith("layers."):
            return f"{self.prefix}{self.outer[base]}.{suffix}"
        _, layer, kind = base.split(".")
        return f"{self.prefix}{self.layers}.{layer}.{self.layer[kind]}.{suffix}"


_LLAMA_OUTER = {"embedding": "embed_tokens", "final_norm": "norm"}
_NAMES = {
    "llama": _Names(prefix="model.", outer=_LLAMA_OUTER, layers="layers", layer=_LLAMA_LAYER),
    "gemma": _Names(prefix="model.", outer=_LLAMA_OUTER, layers="layers", layer=_GEMMA_LAYER),
    "gpt2": _Names(prefix="transformer.", outer={"embedding": "wte", "positions": "wpe", "final_norm": "ln_f"}, layers="h", layer=_GPT2_LAYER),
    "opt": _Names(
        prefix="model.", layers="decoder.layers", layer=_OPT_LAYER,
        outer={"embedding": "decoder.embed_tokens", "positions": "decoder.embed_positions", "final_norm": "decoder.final_layer_norm"},
    ),
}
# Stored by some exporters although they follow from the config: RoPE's frequencies, GPT-2's causal mask.
_SPARE_ENDINGS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def load_hf(folder: str | Path) -> Model:
    """Read sizes, tokenizer and (lazily) weights of a folder. Raises UserError naming file, field, value and what is allowed."""
    folder = Path(folder)
    config_path = folder / "config.json"
    document = read_json(config_path)
    family, config = read_family(config_path, document), config_of(config_path, document, folder.resolve().name)
    stored, names = open_folder(folder), _NAMES[family.tensors]
    prefix = names.prefix if any(name.startswith(names.prefix) for name in stored) else ""
    sources = {name: prefix + names.of(name).removeprefix(names.prefix) if name != "lm_head" else names.of(name) for name in config.weight_shapes()}
    readers = {}
    for name, shape in config.weight_shapes().items():
        source = sources[name]
        if source not in stored:
            raise UserError(f"{folder}: tensor {source} is missing from the safetensors files")
        wanted, take = _stored_as(family.tensors, config, name, shape)
        if stored[source].shape != wanted:
            raise UserError(f"{folder}: tensor {source} has shape {stored[source].shape}; allowed is {wanted} by config.json")
        readers[name] = _reader(stored[source], take)
    spare = {name for name in stored if name.endswith(_SPARE_ENDINGS)} | ({"lm_head.weight"} if config.tie_embeddings else set())
    for source in sorted(stored.keys() - set(sources.values()) - spare):
        raise UserError(f"{folder}: tensor {source[:80]!r} is not part of the {family.model_type} that config.json describes; allowed are its weights")
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(path) if path.is_file() else None
    if tokenizer is not None and tokenizer.vocab > config.vocab:
        raise UserError(f"{path}: has {tokenizer.vocab} tokens; allowed are up to vocab_size = {config.vocab} of config.json")
    return Model(config=config, weights=LazyMapping(readers), tokenizer=tokenizer)


def read_hf_config(folder: str | Path) -> LlamaConfig:
    """Sizes from a folder's config.json (or the file itself); refuses what is not built, naming field and value."""
    folder = Path(folder)
    path = folder if folder.is_file() else folder / "config.json"
    return config_of(path, read_json(path), folder.resolve().name.removesuffix(".json"))


Take = Callable[[np.ndarray], np.ndarray]


def _reader(tensor: StoredTensor, take: Take) -> Callable[[], np.ndarray]:
    return lambda: take(tensor.values())


def _stored_as(tensors: str, config: LlamaConfig, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Take]:
    """(shape in the file, what makes our tensor of it).

    Gemma stores a norm's weight less 1. GPT-2 stores linears as [inputs, outputs], query, key and value side by side.
    """
    kind = name.removesuffix(".bias").rpartition(".")[2]
    if tensors == "gemma" and kind.endswith("_norm"):
        return shape, lambda array: np.float32(1) + array
    if tensors == "gpt2" and kind in config.linear_names:
        if kind not in ("q", "k", "v"):
            return shape[::-1], lambda array: np.ascontiguousarray(array.T)
        first = "qkv".index(kind) * config.width
        part = slice(first, first + config.width)
        return (*shape[:0:-1], 3 * config.width), lambda array: np.ascontiguousarray(array[..., part].T)
    return shape, lambda array: array
