"""Small random compressed models, for tests that need weights and no training."""

import numpy as np

from headrace.models.graph import LINEAR_NAMES, NORM_NAMES, LlamaConfig
from headrace.models.quantise import QuantisedModel, quantise_groups, quantise_rows, rope_tables
from headrace.models.scheme import Scheme


def random_model(seed: int, *, bits: int = 4, **sizes) -> QuantisedModel:
    """A QuantisedModel with normal random weights. `sizes` override those of LlamaConfig."""
    rng = np.random.default_rng(seed)
    fields = {
        "vocab": 512, "width": 128, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 320, "max_positions": 64,
        "tie_embeddings": True,
    } | sizes  # fmt: skip
    config = LlamaConfig(name=f"random-{seed}", **fields)

    def linear(name):
        outputs, inputs = config.linear_shape(name)
        weight = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        return quantise_groups(weight, bits) if bits < 8 else quantise_rows(weight)

    def norm():
        return (1 + 0.1 * rng.standard_normal(config.width)).astype(np.float32)

    layers = tuple({n: linear(n) for n in LINEAR_NAMES} | {n: norm() for n in NORM_NAMES} for _ in range(config.layers))
    embedding = quantise_rows(rng.standard_normal((config.vocab, config.width)).astype(np.float32))
    head = embedding
    if not config.tie_embeddings:
        head = quantise_rows(rng.standard_normal((config.vocab, config.width)).astype(np.float32))
    cos, sin = rope_tables(config)
    return QuantisedModel(
        config=config, scheme=Scheme(name=f"w{bits}a8kv8", weight_bits=bits), tokenizer=None, embedding=embedding, layers=layers,
        final_norm=norm(), lm_head=head, rope_cos=cos, rope_sin=sin,
    )  # fmt: skip
