"""How PyTorch's operators are said in the vocabulary of tensor graphs: names, arguments, and which uses of them are not taken.

Plain data in and out; torch itself is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.models.exported.tensor_graph import Argument, Ref, TensorType
from headrace.models.exported.tensor_operators import OPERATORS

Arguments = dict[str, Argument]

# Arguments that change no value here: where and how a tensor lies, how gradients flow. A dtype is that of the recorded result.
_NO_MEANING = frozenset({
    "dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit", "sparse_grad", "cudnn_enable",
    "cudnn_enabled", "padding_idx", "output_size", "scale_grad_by_freq", "sparse", "stable", "half_to_float", "momentum",
})
_RENAMED_ARGUMENTS = {"split_sizes": "split_size", "batch1": "mat1", "batch2": "mat2", "mat2": "other", "vec": "other", "tensor": "other"}
_RENAMED_OF = {"reshape": {"size": "shape"}, "grouped_matmul": {"mat2": "weight", "offs": "offsets"}}
_MISSING: Arguments = {"dim": None, "keepdim": False, "alpha": 1, "min": None, "max": None, "rounding_mode": None}
"""What an overload that lacks an argument means by it."""

# ATen's name, or name and overload, where the vocabulary has another.
ALIASES = {
    "mm": "matmul", "bmm": "matmul", "mv": "matmul", "dot": "matmul", "baddbmm": "addmm", "_grouped_mm": "grouped_matmul",
    "transformers.grouped_mm_fallback": "grouped_matmul", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "clamp_min": "clamp", "clamp_max": "clamp", "true_divide": "div", "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor",
    "max.default": "amax", "max.dim": "max_and_index", "max.other": "maximum", "linalg_vector_norm": "vector_norm",
    "min.default": "amin", "min.dim": "min_and_index", "min.other": "minimum",
    "view": "reshape", "_unsafe_view": "reshape", "swapaxes": "transpose", "concat": "cat", "constant_pad_nd": "pad", "sym_size.int": "size",
    "split.Tensor": "split_equal", "split.default": "split", "split.sizes": "split", "split_with_sizes": "split",
}
# Several results, of which inference uses the first alone.
FIRST_RESULT = {
    "_native_batch_norm_legit_no_training": "batch_norm", "native_layer_norm": "layer_norm", "max_pool2d_with_indices": "max_pool",
    "_fused_rms_norm": "rms_norm",
}
SAME_VALUES = frozenset({"contiguous", "clone", "detach", "detach_", "alias", "lift_fresh", "lift_fresh_copy"})
CHECKS_ONLY = frozenset({
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size",
})
# Python's functions on lengths.
LENGTH_FUNCTIONS = {
    "add": "add", "sub": "sub", "mul": "mul", "floordiv": "floordiv", "mod": "mod", "sym_max": "max", "sym_min": "min", "max": "max", "min": "min",
}


class Unknown(Exception):
    """An operator, or a use of one, that the vocabulary lacks."""


def in_vocabulary(
    packet: str, full: str, given: Arguments, schema: Any, result: TensorType | tuple[TensorType, ...], types: Mapping[str, TensorType]
) -> tuple[str, Arguments]:
    """(operator, arguments) of one call of an ATen operator.

    `packet` is its name and `full` that with the overload; `given` holds every argument by its name in `schema`, `self` as `input`; `types`
    are those of the values that arguments refer to. Raises Unknown.
    """
    rule = _RULES.get(packet)
    if rule is not None:
        return rule(given, result, types)
    operator = ALIASES.get(full) or ALIASES.get(packet) or FIRST_RESULT.get(packet) or packet
    return operator, _fitted(operator, given, schema)


def _fitted(operator: str, given: Arguments, schema: Any) -> Arguments:
    """`given` under the names and kinds of the vocabulary. Raises Unknown for an argument that has a meaning which the vocabulary lacks."""
    signature = OPERATORS.get(operator)
    if signature is None:
        raise Unknown("")
    renamed = _RENAMED_ARGUMENTS | _RENAMED_OF.get(operator, {})
    given = {name if name in signature else renamed.get(name, name): value for name, value in given.items()}
    arguments: Arguments = {}
    for name, kind in signature.items():
        value = given.pop(name, _MISSING.get(name))
        if value is None and not kind.partition(":")[0].endswith("?"):
            value = _MISSING.get(name)
        if kind.startswith("ints") and (type(value) is int or isinstance(value, Ref)):
            value = (value,)
        if kind == "ints?" and value == () and operator != "squeeze":
            value = None
        arguments[name] = value
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    for name, value in given.items():
        if name not in _NO_MEANING and value != defaults.get(name):
            raise Unknown(f" with {name} = {str(value)[:40]}")
    return arguments


_Rule = Callable[[Arguments, TensorType, Mapping[str, TensorType]], tuple[str, Arguments]]


def _cast(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    return "cast", {"input": given["input"], "dtype": result.dtype}


def _filled(fill: float | None, *, like: bool = False) -> _Rule:
    """fill None: the value is an argument. like: of the size of another tensor."""
    operator, size = ("full_like", "input") if like else ("full", "size")
    return lambda given, result, types: (
        operator, {size: given[size], "fill_value": given["fill_value"] if fill is None else fill, "dtype": result.dtype}
    )


def _arange(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    return "arange", {"start": given.get("start", 0), "end": given["end"], "step": given.get("step", 1), "dtype": result.dtype}


def _spread(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    """var and std: `unbiased` of the old overloads is a correction of 1."""
    dim = given.get("dim")
    correction = given["correction"] if "correction" in given else int(given["unbiased"])
    return "var", {"input": given["input"], "dim": dim or None, "correction": correction, "keepdim": given.get("keepdim", False)}


def _convolution(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if given.get("transposed") or isinstance(given["padding"], str):
        raise Unknown(" (transposed, or with padding in words)")
    spatial = len(types[given["weight"].name].shape) - 2
    wide = {name: given[name] * spatial if len(given[name]) == 1 else given[name] for name in ("stride", "padding", "dilation")}
    return "convolution", {"input": given["input"], "weight": given["weight"], "bias": given["bias"], **wide, "groups": given["groups"]}


def _pool(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if given["ceil_mode"] or not given.get("count_include_pad", True) or given.get("divisor_override") is not None:
        raise Unknown(" with ceil_mode, or averages that leave the padding out")
    operator = "max_pool" if "dilation" in given else "avg_pool"
    spatial = len(types[given["input"].name].shape) - 2 if len(given["kernel_size"]) == 1 else len(given["kernel_size"])
    given = {**given, "stride": given["stride"] or given["kernel_size"]}
    lists = {name: given[name] * spatial if len(given[name]) == 1 else given[name] for name in OPERATORS[operator] if name != "input"}
    return operator, {"input": given["input"], **lists}


def _batch_norm(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if given.get("training") or given["running_mean"] is None:
        raise Unknown(" in training, or without running statistics")
    return "batch_norm", {name: given[name] for name in OPERATORS["batch_norm"]}


def _pad(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if given["mode"] != "constant":
        raise Unknown(f" with mode = {given['mode']}")
    return "pad", {"input": given["input"], "pad": given["pad"], "value": given["value"] or 0}


def _scatter(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if "reduce" in given:
        raise Unknown(f" with reduce = {given['reduce']}")
    return "scatter", {"input": given["input"], "dim": given["dim"], "index": given["index"],
        "src": given["src"] if "src" in given else given["value"]}


def _chunk(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    length = types[given["input"].name].shape[given["dim"]]
    if isinstance(length, str):
        raise Unknown(" along a symbolic length")
    return "split_equal", {"input": given["input"], "split_size": max(1, -(-length // given["chunks"])), "dim": given["dim"]}


def _transpose(given: Arguments, result: TensorType, types: Mapping[str, TensorType]) -> tuple[str, Arguments]:
    if len(result.shape) < 2:
        raise Unknown(" of fewer than two dimensions")
    return "transpose", {"input": given["input"], "dim0": -2, "dim1": -1}


_RULES: dict[str, _Rule] = {
    "to": _cast, "_to_copy": _cast, "type_as": _cast, "chunk": _chunk, "arange": _arange, "pad": _pad, "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "t": _transpose, "mT": _transpose,
    "var": _spread, "std": lambda given, result, types: ("std", _spread(given, result, types)[1]),
    **dict.fromkeys(("empty", "empty_permuted", "new_empty"), _filled(0)), "empty_like": _filled(0, like=True),  # whatever memory held
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"), _pool),
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution, "convolution": _convolution,
    "full": _filled(None), "ones": _filled(1), "zeros": _filled(0), "new_full": _filled(None), "new_ones": _filled(1),
    "new_zeros": _filled(0),
    "full_like": _filled(None, like=True), "ones_like": _filled(1, like=True), "zeros_like": _filled(0, like=True),
    "scalar_tensor": lambda given, result, types: ("full", {"size": (), "fill_value": given["s"], "dtype": result.dtype}),
    "rsub": lambda given, result, types: ("sub", {"input": given["other"], "other": given["input"], "alpha": given["alpha"]}),
    "square": lambda given, result, types: ("pow", {"input": given["input"], "exponent": 2}),
    "hardtanh": lambda given, result, types: ("clamp", {"input": given["input"], "min": given["min_val"], "max": given["max_val"]}),
    "relu6": lambda given, result, types: ("clamp", {"input": given["input"], "min": 0, "max": 6}),
    "scatter": _scatter,
}
