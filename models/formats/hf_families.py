"""Fields of a Hugging Face config.json, family by family, as a `DecoderConfig`; defaults are those of the published classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.models.errors import UserError
from headrace.models.decoder import DTYPE_BYTES, LINEAR_NAMES, SIZE_LIMITS, DecoderConfig

_ACTIVATION_NAMES = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu"}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


class ConfigFields:
    """A config.json's fields, checked one by one as they are asked for. Every failure is a UserError that names file and field."""

    def __init__(self, path: Path, document: dict):
        self.path, self.document = path, document

    def refuse(self, field: str, value: object, allowed: str) -> UserError:
        return UserError(f"{self.path}: {field} = {str(value)[:60]!r}; allowed is {allowed}")

    def get(self, field: str, default: object = None) -> object:
        """The value, `default` where the field is absent or null."""
        value = self.document.get(field)
        return default if value is None else value

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.get(field, default)
        if value is None:
            raise UserError(f"{self.path}: field {field} is missing")
        if type(value) is not int:
            raise self.refuse(field, value, "a whole number")
        return value

    def number(self, field: str, default: float | None) -> float | None:
        value = self.get(field, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)):
            raise self.refuse(field, value, "a number")
        return value

    def boolean(self, field: str, default: bool) -> bool:
        value = self.document.get(field, default)
        if type(value) is not bool:
            raise self.refuse(field, value, "true or false")
        return value

    def only(self, field: str, allowed: object) -> None:
        """Refuse a field that would change the numbers, unless it has the one value under which it does not."""
        if self.document.get(field, allowed) != allowed:
            raise self.refuse(field, self.document[field], repr(allowed))

    def activation(self, field: str, default: str) -> str:
        value = self.get(field, default)
        if not isinstance(value, str) or value not in _ACTIVATION_NAMES:
            raise self.refuse(field, value, " or ".join(repr(name) for name in _ACTIVATION_NAMES))
        return _ACTIVATION_NAMES[value]

    def head_dim(self, width: int, heads: int, *, field: str, heads_field: str, default: int | None = None) -> int:
        if self.get("head_dim") is None and default is None:
            if heads < 1 or width % heads:
                raise self.refuse(field, width, f"a multiple of {heads_field} = {heads}")
            return width // heads
        return self.integer("head_dim", default)

    def all_layers(self, layers: int) -> tuple[int, ...]:
        if not 1 <= layers <= SIZE_LIMITS["layers"]:
            raise self.refuse("num_hidden_layers", layers, f"1 to {SIZE_LIMITS['layers']}")
        return tuple(range(layers))

    def layer_types(self, layers: int, default: Callable[[int], bool]) -> tuple[int, ...]:
        """The layers that have the sliding window: those that `layer_types` says, else where `default(layer)` is true."""
        every, types = self.all_layers(layers), self.get("layer_types")
        if types is None:
            return tuple(layer for layer in every if default(layer))
        if not isinstance(types, list) or len(types) != layers or any(kind not in (_LOCAL, _GLOBAL) for kind in types):
            raise self.refuse("layer_types", types, f"a list of {layers}, each {_LOCAL!r} or {_GLOBAL!r}")
        return tuple(layer for layer, kind in enumerate(types) if kind == _LOCAL)

    def common(self) -> dict[str, object]:
        """What every family's config.json says in the same words."""
        self.only("quantization_config", None)
        dtype = self.get("torch_dtype") or self.get("dtype") or "float32"
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise self.refuse("torch_dtype", dtype, ", ".join(DTYPE_BYTES))
        return {"vocab": self.integer("vocab_size"), "bos_token_id": self.get("bos_token_id"), "dtype": dtype}


@dataclass(frozen=True, kw_only=True)
class _Rope:
    theta: float
    divisors: tuple[float, ...]


def _rope(fields: ConfigFields, head_dim: int, theta: float = 10000.0) -> _Rope:
    """RoPE's theta and divisors: newer exporters put both into rope_parameters, older ones into rope_theta and rope_scaling."""
    fields.only("partial_rotary_factor", 1.0)
    newer = fields.get("rope_parameters", {})
    if newer and fields.get("rope_scaling", {}):
        raise fields.refuse("rope_scaling", fields.get("rope_scaling", {}), "none beside rope_parameters")
    if newer:
        return _rope_of(fields, "rope_parameters", newer, head_dim, fields.get("rope_theta", theta))
    # `rope_theta: null` is no theta, and is refused with the other values that are none.
    return _rope_of(fields, "rope_scaling", fields.get("rope_scaling", {}), head_dim, fields.document.get("rope_theta", theta))


def _rope_of(fields: ConfigFields, field: str, scaling: object, head_dim: int, theta: object) -> _Rope:
    allowed = "an object with rope_type 'default', 'linear' or 'llama3'"
    if not isinstance(scaling, dict):
        raise fields.refuse(field, scaling, allowed)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3") or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse(field, scaling, f"{allowed}, over whole heads")
    theta = scaling.get("rope_theta", theta)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 1.0 <= theta <= 1e9:
        raise fields.refuse("rope_theta", theta, "a number from 1 to 1e+09")
    if kind == "default" or not 2 <= head_dim <= SIZE_LIMITS["head_dim"]:  # such a head_dim is refused with the sizes
        return _Rope(theta=theta, divisors=())

    def number(name: str) -> float:
        value = scaling.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-3 <= value <= 1e6:
            raise fields.refuse(f"{field}.{name}", value, "a number from 0.001 to 1e+06")
        return float(value)

    factor = number("factor")
    if kind == "linear":
        return _Rope(theta=theta, divisors=(factor,) * (head_dim // 2))
    low, high, original = number("low_freq_factor"), number("high_freq_factor"), number("original_max_position_embeddings")
    if not low < high:
        raise fields.refuse(f"{field}.high_freq_factor", high, f"more than low_freq_factor = {low:g}")
    return _Rope(theta=theta, divisors=tuple(_llama3_divisors(head_dim, theta, factor, low, high, original)))


def _llama3_divisors(head_dim: int, theta: float, factor: float, low: float, high: float, original: float) -> list[float]:
    """Llama 3.1's stretching of positions: frequencies that turn less than `low` times in the original context are divided by
    `factor`, those of more than `high` turns are kept, and between them the frequency itself is interpolated linearly."""
    divisors = []
    for pair in range(head_dim // 2):
        turns = original * theta ** (-2.0 * pair / head_dim) / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - kept) / factor + kept))
    return divisors


def _windowed(window: int | None, layers: tuple[int, ...]) -> dict[str, object]:
    return {"window": window, "window_layers": layers} if window is not None and layers else {}


def _llama_like(fields: ConfigFields, *, kv_heads: int | None = None, head_dim: int | None = None, max_positions: int = 2048,
                activation: str | None = None, tie: bool = False, rope: bool = True) -> dict[str, object]:
    """Sizes of a decoder with RMS norms and a gated MLP, in the words of the Llama class."""
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    per_head = fields.head_dim(width, heads, field="hidden_size", heads_field="num_attention_heads", default=head_dim)
    result = fields.common() | {
        "width": width, "layers": fields.integer("num_hidden_layers"), "heads": heads, "head_dim": per_head,
        "kv_heads": fields.integer("num_key_value_heads", heads if kv_heads is None else kv_heads),
        "ffn": fields.integer("intermediate_size"), "rms_eps": fields.get("rms_norm_eps", 1e-6),
        "activation": fields.activation("hidden_act", "silu") if activation is None else activation,
        "max_positions": fields.integer("max_position_embeddings", max_positions), "tie_embeddings": fields.boolean("tie_word_embeddings", tie),
    }
    if rope:
        turned = _rope(fields, per_head)
        result |= {"rope_theta": turned.theta, "rope_divisors": turned.divisors}
    return result


def _llama(fields: ConfigFields) -> dict[str, object]:
    biases = ("q", "k", "v", "o") if fields.boolean("attention_bias", False) else ()
    biases += ("gate", "up", "down") if fields.boolean("mlp_bias", False) else ()
    return _llama_like(fields) | {"biases": biases}


def _mistral(fields: ConfigFields) -> dict[str, object]:
    result = _llama_like(fields, kv_heads=8, max_positions=131072)
    # An absent field is the class's 4096, null is no window.
    window = fields.integer("sliding_window", 4096) if fields.document.get("sliding_window", 4096) is not None else None
    return result | _windowed(window, fields.all_layers(result["layers"]))  # the class does not ask for layer_types


def _qwen(fields: ConfigFields, result: dict[str, object]) -> dict[str, object]:
    """The window of Qwen 2 and 3: off unless use_sliding_window, then in the layers from max_window_layers on."""
    fields.only("mlp_bias", False)
    used = fields.boolean("use_sliding_window", False)
    if not used or fields.document.get("sliding_window", 4096) is None:
        return result
    first = fields.integer("max_window_layers", 28)
    return result | _windowed(fields.integer("sliding_window", 4096), fields.layer_types(result["layers"], lambda layer: layer >= first))


def _qwen2(fields: ConfigFields) -> dict[str, object]:
    return _qwen(fields, _llama_like(fields, kv_heads=32, max_positions=32768) | {"biases": ("q", "k", "v")})


def _qwen3(fields: ConfigFields) -> dict[str, object]:
    biases = ("q", "k", "v", "o") if fields.boolean("attention_bias", False) else ()
    return _qwen(fields, _llama_like(fields, kv_heads=32, head_dim=128, max_positions=32768) | {"biases": biases, "qk_norm": True})


def _gemma(fields: ConfigFields, *, rope: bool, max_positions: int) -> dict[str, object]:
    """What Gemma 2 and 3 share: norms after both halves of a layer, scaled embeddings, a score factor of their own."""
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    result = _llama_like(fields, kv_heads=4, head_dim=256, max_positions=max_positions, activation=activation, tie=True, rope=rope)
    scalar = fields.number("query_pre_attn_scalar", 256)
    if not 1e-3 <= scalar <= 1e6:
        raise fields.refuse("query_pre_attn_scalar", scalar, "a number from 0.001 to 1e+06")
    return result | {
        "biases": ("q", "k", "v", "o") if fields.boolean("attention_bias", False) else (), "post_norms": True,
        "embedding_scale": math.sqrt(max(result["width"], 1)), "score_factor": scalar**-0.5,
    }


def _gemma2(fields: ConfigFields) -> dict[str, object]:
    result = _gemma(fields, rope=True, max_positions=8192)
    caps = {
        "score_cap": fields.number("attn_logit_softcapping", None if "attn_logit_softcapping" in fields.document else 50.0),
        "logit_cap": fields.number("final_logit_softcapping", None if "final_logit_softcapping" in fields.document else 30.0),
    }
    layers = fields.layer_types(result["layers"], lambda layer: layer % 2 == 0)
    return result | caps | _windowed(fields.integer("sliding_window", 4096), layers)


def _gemma3(fields: ConfigFields) -> dict[str, object]:
    """Gemma 3's text model: every sixth layer sees everything, with a theta of its own and stretched positions."""
    fields.only("use_bidirectional_attention", False)
    result = _gemma(fields, rope=False, max_positions=131072)
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    if pattern < 1:
        raise fields.refuse("sliding_window_pattern", pattern, "1 and up")
    layers = fields.layer_types(result["layers"], lambda layer: (layer + 1) % pattern != 0)
    per_head, newer = result["head_dim"], fields.get("rope_parameters", {})
    if isinstance(newer, dict) and (_LOCAL in newer or _GLOBAL in newer):
        whole, local = (_rope_of(fields, "rope_parameters", newer.get(kind, {}), per_head, theta) for kind, theta in
                        ((_GLOBAL, 1_000_000.0), (_LOCAL, 10_000.0)))  # fmt: skip
        if local.divisors:
            raise fields.refuse(f"rope_parameters.{_LOCAL}", newer[_LOCAL], "rope_type 'default'")
        local_theta = local.theta
    else:
        whole, local_theta = _rope(fields, per_head, 1_000_000.0), fields.number("rope_local_base_freq", 10_000.0)
    return result | _windowed(fields.integer("sliding_window", 4096), layers) | {
        "qk_norm": True, "rope_theta": whole.theta, "rope_divisors": whole.divisors, "window_rope_theta": local_theta,
        # The published class stores attn_logit_softcapping and does not use it.
        "logit_cap": fields.number("final_logit_softcapping", None),
    }


def _plain_mlp(width: int, heads: int, head_dim: int) -> dict[str, object]:
    """What GPT-2 and OPT share."""
    return {
        "width": width, "heads": heads, "kv_heads": heads, "head_dim": head_dim, "norm": "layernorm", "gated": False, "positions": "learned",
        "biases": tuple(name for name in LINEAR_NAMES if name != "gate"),
    }


def _gpt2(fields: ConfigFields) -> dict[str, object]:
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    heads, width = fields.integer("n_head"), fields.integer("n_embd")
    per_head = fields.head_dim(width, heads, field="n_embd", heads_field="n_head")
    return fields.common() | _plain_mlp(width, heads, per_head) | {
        "layers": fields.integer("n_layer"), "ffn": fields.integer("n_inner", 4 * width), "rms_eps": fields.get("layer_norm_epsilon", 1e-5),
        "activation": fields.activation("activation_function", "gelu_new"), "max_positions": fields.integer("n_positions", 1024),
        "tie_embeddings": fields.boolean("tie_word_embeddings", True),
    }


def _opt(fields: ConfigFields) -> dict[str, object]:
    for field in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        fields.only(field, True)
    fields.only("_remove_final_layer_norm", False)
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if fields.integer("word_embed_proj_dim", width) != width:
        raise fields.refuse("word_embed_proj_dim", fields.get("word_embed_proj_dim"), f"hidden_size = {width}")
    per_head = fields.head_dim(width, heads, field="hidden_size", heads_field="num_attention_heads")
    return fields.common() | _plain_mlp(width, heads, per_head) | {
        "layers": fields.integer("num_hidden_layers"), "ffn": fields.integer("ffn_dim"), "rms_eps": 1e-5, "position_offset": 2,
        "activation": fields.activation("activation_function", "relu"), "max_positions": fields.integer("max_position_embeddings", 2048),
        "tie_embeddings": fields.boolean("tie_word_embeddings", True),
    }


@dataclass(frozen=True, kw_only=True)
class Family:
    """One class of `architectures`: its model_type, its fields, and how its tensors are named (see models/formats/hf.py)."""

    model_type: str
    read: Callable[[ConfigFields], dict[str, object]]
    tensors: str


FAMILIES = {
    "LlamaForCausalLM": Family(model_type="llama", read=_llama, tensors="llama"),
    "MistralForCausalLM": Family(model_type="mistral", read=_mistral, tensors="llama"),
    "Qwen2ForCausalLM": Family(model_type="qwen2", read=_qwen2, tensors="llama"),
    "Qwen3ForCausalLM": Family(model_type="qwen3", read=_qwen3, tensors="llama"),
    "Gemma2ForCausalLM": Family(model_type="gemma2", read=_gemma2, tensors="gemma"),
    "Gemma3ForCausalLM": Family(model_type="gemma3_text", read=_gemma3, tensors="gemma"),
    "GPT2LMHeadModel": Family(model_type="gpt2", read=_gpt2, tensors="gpt2"),
    "OPTForCausalLM": Family(model_type="opt", read=_opt, tensors="opt"),
}


def read_family(path: Path, document: dict) -> Family:
    """The family that a config.json names, by `architectures` or, without it, by `model_type`."""
    fields = ConfigFields(path, document)
    architectures, model_type = document.get("architectures"), document.get("model_type")
    if architectures is None:
        found = [family for family in FAMILIES.values() if family.model_type == model_type]
        if not found:
            raise fields.refuse("model_type", model_type, " or ".join(repr(family.model_type) for family in FAMILIES.values()))
        return found[0]
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if not isinstance(name, str) or name not in FAMILIES:
        raise fields.refuse("architectures", architectures, f"a list of one of {', '.join(FAMILIES)}: operators of others are not built (`models show` counts some)")
    if model_type != FAMILIES[name].model_type:
        raise fields.refuse("model_type", model_type, f"{FAMILIES[name].model_type!r} for {name}")
    return FAMILIES[name]


def config_of(path: Path, document: dict, name: str) -> DecoderConfig:
    """The decoder that a config.json describes. `path` names the file in messages."""
    return DecoderConfig(name=name, **read_family(path, document).read(ConfigFields(path, document)))
