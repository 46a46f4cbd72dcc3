"""A Model from a Hugging Face folder of the Llama family: config.json, model.safetensors (one or sharded), tokenizer.json."""

from __future__ import annotations

from pathlib import Path

from headrace.models.errors import UserError
from headrace.models.graph import DTYPE_BYTES, LlamaConfig
from headrace.models.model import LazyMapping, Model
from headrace.models.safetensors_file import open_folder, read_json
from headrace.models.tokenizer import Tokenizer

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_OUTER_TENSORS = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
# Fields that would change the numbers, with the one value under which they do not.
_ONLY = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None, "quantization_config": None,
    "partial_rotary_factor": 1.0,
}


def load_hf(folder: str | Path) -> Model:
    """Read sizes, tokenizer and (lazily) weights of a folder. Raises UserError naming file, field, value and what is allowed."""
    folder = Path(folder)
    config = read_hf_config(folder)
    stored = open_folder(folder)
    sources = {name: _tensor_name(name) for name in config.weight_shapes()}
    for name, shape in config.weight_shapes().items():
        source = sources[name]
        if source not in stored:
            raise UserError(f"{folder}: tensor {source} is missing from the safetensors files")
        if stored[source].shape != shape:
            raise UserError(f"{folder}: tensor {source} has shape {stored[source].shape}; allowed is {shape} by config.json")
    # A tied head may be stored all the same; old exporters store RoPE's frequencies, which follow from rope_theta.
    spare = {name for name in stored if name.endswith("rotary_emb.inv_freq")} | ({"lm_head.weight"} if config.tie_embeddings else set())
    for source in sorted(stored.keys() - set(sources.values()) - spare):
        raise UserError(f"{folder}: tensor {source[:80]!r} is not part of LlamaForCausalLM; allowed are its weights without biases")
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(path) if path.is_file() else None
    if tokenizer is not None and tokenizer.vocab > config.vocab:
        raise UserError(f"{path}: has {tokenizer.vocab} tokens; allowed are up to vocab_size = {config.vocab} of config.json")
    return Model(
        config=config, weights=LazyMapping({name: stored[source].values for name, source in sources.items()}),
        tokenizer=tokenizer,
    )


def read_hf_config(folder: str | Path) -> LlamaConfig:
    """Sizes from a folder's config.json (or the file itself); refuses what is not a plain Llama, naming field and value."""
    folder = Path(folder)
    path = folder if folder.is_file() else folder / "config.json"
    document = read_json(path)

    def refuse(field: str, value: object, allowed: str) -> UserError:
        return UserError(f"{path}: {field} = {str(value)[:60]!r}; allowed is {allowed}")

    architectures = document.get("architectures")
    if architectures is not None and architectures != ["LlamaForCausalLM"]:
        raise refuse("architectures", architectures, "['LlamaForCausalLM']: operators of others are not built (`models show` counts some)")
    if document.get("model_type") != "llama":
        raise refuse("model_type", document.get("model_type"), "'llama'")
    for field, allowed in _ONLY.items():
        if document.get(field, allowed) != allowed:
            raise refuse(field, document[field], repr(allowed))

    def integer(field: str, default: int | None = None) -> int:
        value = document.get(field)
        value = default if value is None else value
        if value is None:
            raise UserError(f"{path}: field {field} is missing")
        if type(value) is not int:
            raise refuse(field, value, "a whole number")
        return value

    heads, width = integer("num_attention_heads"), integer("hidden_size")
    if document.get("head_dim") is None and (heads < 1 or width % heads):
        raise refuse("hidden_size", width, f"a multiple of num_attention_heads = {heads}")
    # Newer exporters put theta into rope_parameters.
    rope = document.get("rope_parameters") or {}
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise refuse("rope_parameters", rope, "an object with rope_type 'default'")
    tie = document.get("tie_word_embeddings", False)
    if type(tie) is not bool:
        raise refuse("tie_word_embeddings", tie, "true or false")
    dtype = document.get("torch_dtype") or document.get("dtype") or "float32"
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise refuse("torch_dtype", dtype, ", ".join(DTYPE_BYTES))
    return LlamaConfig(
        name=folder.resolve().name.removesuffix(".json"), vocab=integer("vocab_size"), width=width, layers=integer("num_hidden_layers"), heads=heads,
        kv_heads=integer("num_key_value_heads", heads), head_dim=integer("head_dim", width // max(heads, 1)),
        ffn=integer("intermediate_size"), rms_eps=document.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", document.get("rope_theta", 10000.0)),
        max_positions=integer("max_position_embeddings", 2048), tie_embeddings=tie,
        bos_token_id=document.get("bos_token_id"), dtype=dtype,
    )


def _tensor_name(name: str) -> str:
    if name in _OUTER_TENSORS:
        return _OUTER_TENSORS[name]
    _, layer, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_TENSORS[kind]}.weight"
