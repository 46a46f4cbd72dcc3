"""A Model from a GGUF file of the llama architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError
from headrace.models.gguf_file import CODE_TYPES, GgufFile
from headrace.models.gguf_tokenizer import read_tokenizer
from headrace.models.graph import LlamaConfig
from headrace.models.model import GroupCodes, LazyMapping, Model

_LAYER_TENSORS = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "mlp_norm": "ffn_norm",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}
_OUTER_TENSORS = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_field = GgufFile.field


def load_gguf(path: str | Path) -> Model:
    """Read sizes, tokenizer and (lazily) weights. Raises UserError naming file, field, value and what is allowed."""
    path = Path(path)
    file = GgufFile(path)
    config = _config(file, path.stem)
    sources = {name: _tensor_name(name) for name in config.weight_shapes()}
    _check_tensors(file, config, sources)

    def reader(name: str) -> Callable[[], np.ndarray]:
        rows = _row_order(config, name)
        return lambda: _take(file.values(sources[name]), rows)

    def code_reader(name: str) -> Callable[[], GroupCodes]:
        def read() -> GroupCodes:
            codes, rows = file.group_codes(sources[name]), _row_order(config, name)
            return GroupCodes(codes=_take(codes.codes, rows), d=_take(codes.d, rows), m=_take(codes.m, rows))

        return read

    coded = [name for name, shape in config.weight_shapes().items() if len(shape) == 2 and file.tensors[sources[name]].type_name in CODE_TYPES]
    return Model(
        config=config, weights=LazyMapping({name: reader(name) for name in sources}),
        codes=LazyMapping({name: code_reader(name) for name in coded}), tokenizer=read_tokenizer(file, config.vocab),
    )


def read_gguf_config(path: str | Path) -> LlamaConfig:
    """Sizes alone, from a GGUF file's header."""
    path = Path(path)
    return _config(GgufFile(path), path.stem)


def half_split_rows(heads: int, head_dim: int) -> np.ndarray:
    """Order of rows, int64 [heads * head_dim], that undoes the file's interleaving of q and k.

    The file stores each head's RoPE pairs side by side (row 2i and 2i + 1); half-split RoPE wants row i and i + head_dim / 2.
    """
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _row_order(config: LlamaConfig, name: str) -> np.ndarray | None:
    kind = name.rpartition(".")[2]
    if kind not in ("q", "k"):
        return None
    return half_split_rows(config.heads if kind == "q" else config.kv_heads, config.head_dim)


def _take(array: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    return array if rows is None else array[rows]


def _tensor_name(name: str) -> str:
    if name in _OUTER_TENSORS:
        return _OUTER_TENSORS[name]
    _, layer, kind = name.split(".")
    return f"blk.{layer}.{_LAYER_TENSORS[kind]}.weight"


def _config(file: GgufFile, name: str) -> LlamaConfig:
    architecture = _field(file, "general.architecture", str)
    if architecture != "llama":
        raise UserError(f"{file.source}: general.architecture = {architecture[:40]!r}; allowed is 'llama'")
    width = _field(file, "llama.embedding_length", int)
    heads = _field(file, "llama.attention.head_count", int)
    if heads < 1 or width < 1:
        raise UserError(f"{file.source}: llama.embedding_length = {width} with llama.attention.head_count = {heads}; allowed is 1 and up")
    if "llama.attention.key_length" not in file.fields and width % heads:
        raise UserError(
            f"{file.source}: llama.embedding_length = {width}; allowed is a multiple of llama.attention.head_count = {heads}"
        )
    head_dim = _field(file, "llama.attention.key_length", int, width // heads)
    for key, allowed in (("llama.attention.value_length", head_dim), ("llama.rope.dimension_count", head_dim), ("llama.expert_count", 0)):
        value = _field(file, key, int, allowed)
        if value != allowed:
            raise UserError(f"{file.source}: {key} = {value}; allowed is {allowed}")
    scaling = _field(file, "llama.rope.scaling.type", str, "none")
    if scaling != "none":
        raise UserError(f"{file.source}: llama.rope.scaling.type = {scaling[:40]!r}; allowed is 'none'")
    embedding = file.tensors.get(_OUTER_TENSORS["embedding"])
    if embedding is None:
        raise UserError(f"{file.source}: tensor {_OUTER_TENSORS['embedding']} is missing")
    bos = file.fields.get("tokenizer.ggml.bos_token_id")
    return LlamaConfig(
        name=name, vocab=embedding.shape[0], width=width, layers=_field(file, "llama.block_count", int), heads=heads,
        kv_heads=_field(file, "llama.attention.head_count_kv", int, heads), head_dim=head_dim,
        ffn=_field(file, "llama.feed_forward_length", int),
        rms_eps=_field(file, "llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=_field(file, "llama.rope.freq_base", float, 10000.0),
        max_positions=_field(file, "llama.context_length", int),
        tie_embeddings=_OUTER_TENSORS["lm_head"] not in file.tensors, bos_token_id=bos, dtype="float16",
    )


def _check_tensors(file: GgufFile, config: LlamaConfig, sources: dict[str, str]) -> None:
    """Every tensor is there in its shape, and none is there that would be left unused."""
    for name, shape in config.weight_shapes().items():
        source = sources[name]
        if source not in file.tensors:
            raise UserError(f"{file.source}: tensor {source} is missing")
        found = file.tensors[source].shape
        if found != shape:
            raise UserError(f"{file.source}: tensor {source} has shape {found}; allowed is {shape} by the file's own sizes")
    for name in sorted(file.tensors.keys() - set(sources.values())):
        raise UserError(f"{file.source}: tensor {name[:60]!r} is not part of a plain llama model; allowed are those of llama without biases")
