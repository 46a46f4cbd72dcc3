"""Tiny configurations of every decoder family that is built, for tests against the published classes and without them.

`CASES` maps a name to (class, fields of its configuration). Weights come from `weight`, which depends on the tensor's name and
shape alone, so that a test without torch makes the same ones.
"""

import zlib

import numpy as np

TOKENS = 40
"""Longer than every window below and than two of them."""

_LLAMA = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}
_GEMMA = _LLAMA | {"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 7}
_GPT2 = {"vocab_size": 61, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
_OPT = {
    "vocab_size": 61, "hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "word_embed_proj_dim": 48, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

CASES: dict[str, tuple[str, dict]] = {
    "llama": ("LlamaForCausalLM", _LLAMA),
    "llama-biases-tied": ("LlamaForCausalLM", _LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 12}),
    "llama3-rope": ("LlamaForCausalLM", _LLAMA | {"rope_parameters": _LLAMA3 | {"rope_theta": 300.0}}),
    "llama-linear-rope": ("LlamaForCausalLM", _LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0}}),
    "mistral": ("MistralForCausalLM", _LLAMA | {"sliding_window": 9}),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "qwen2-tied-window": (
        "Qwen2ForCausalLM", _LLAMA | {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", _LLAMA | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biases": ("Qwen3ForCausalLM", _LLAMA | {"head_dim": 10, "attention_bias": True, "num_key_value_heads": 6}),
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2-untied": ("GPT2LMHeadModel", _GPT2 | {"tie_word_embeddings": False, "n_inner": 100}),
    "opt": ("OPTForCausalLM", _OPT),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0}),
    "gemma2-uncapped": ("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
    "gemma3": ("Gemma3ForCausalLM", _GEMMA | {"num_hidden_layers": 7, "num_key_value_heads": 1}),
    "gemma3-stretched": (
        "Gemma3ForCausalLM",
        _GEMMA | {"layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}},
    ),
}  # fmt: skip


def uniform(name: str, count: int) -> np.ndarray:
    """float32 [count] in -1 .. 1, multiples of 2**-23, from a bit generator whose stream is fixed for ever."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return ((raw >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32)


def weight(name: str, shape: tuple[int, ...], *, gemma: bool = False) -> np.ndarray:
    """Weights of a stored tensor, float32: matrices of about unit gain, norms near 1 (Gemma stores them less 1), biases that count."""
    values = uniform(name, int(np.prod(shape))).reshape(shape)
    if len(shape) == 2:
        embedding = any(part in name for part in ("embed", "wte", "wpe"))
        return values if embedding else values * np.float32(np.sqrt(3.0 / min(shape)))
    if name.endswith("bias"):
        return values * np.float32(0.3)
    return values * np.float32(0.4) + np.float32(0 if gemma else 1)


def tokens() -> np.ndarray:
    """int64 [TOKENS], below the 61 of every configuration."""
    return (np.random.PCG64(5).random_raw(TOKENS) % np.uint64(61)).astype(np.int64)


def stored_weights(class_name: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Name -> seeded weight of the tensors of one of `CASES`."""
    return {name: weight(name, tuple(shape), gemma=class_name.startswith("Gemma")) for name, shape in shapes.items()}
