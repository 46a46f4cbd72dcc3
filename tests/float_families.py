"""Tiny random float models of every family that the executors run."""

import numpy as np

from headrace.models.decoder import DecoderConfig
from headrace.models.model import Model

SEED = 20261130
SIZES = dict(vocab=40, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, max_positions=32)
FAMILIES = {
    "llama": {}, "multi-query": {"kv_heads": 1}, "no grouping": {"kv_heads": 4}, "wide heads": {"head_dim": 16},
    "gpt2": {"norm": "layernorm", "gated": False, "activation": "gelu_tanh", "positions": "learned", "biases": ("q", "k", "v", "o", "up", "down"), "kv_heads": 4},
    "opt": {"norm": "layernorm", "gated": False, "activation": "relu", "positions": "learned", "position_offset": 2, "biases": ("q", "k", "v", "o", "up", "down")},
    "qwen2": {"biases": ("q", "k", "v")}, "qwen3": {"qk_norm": True, "tie_embeddings": True},
    "gemma2": {"activation": "gelu_tanh", "post_norms": True, "score_cap": 5.0, "logit_cap": 3.0, "embedding_scale": 5.6, "window": 4, "window_layers": (0,), "score_factor": 0.3},
    "gemma3": {"activation": "gelu_tanh", "post_norms": True, "qk_norm": True, "window": 4, "window_layers": (0,), "window_rope_theta": 500.0},
    "gated relu, all biases": {"activation": "relu", "biases": ("q", "k", "v", "o", "gate", "up", "down")},
}


def family(name, **changes):
    config = DecoderConfig(name=name.replace(" ", "-"), **SIZES | FAMILIES[name] | changes)
    rng = np.random.default_rng([SEED, *name.encode()])
    weights = {}
    for tensor, shape in config.weight_shapes().items():
        value = rng.standard_normal(shape) / (1 if len(shape) == 1 or tensor == "embedding" else np.sqrt(shape[1]))
        weights[tensor] = (value + (1 if tensor.endswith("norm") else 0)).astype(np.float32)
    return Model(config=config, weights=weights)
