"""The vocabulary of a tensor graph: every operator with its arguments and their kinds.

Names and meanings are those of PyTorch's ATen operators, several overloads under one name; what differs stands in a comment.
Kinds of argument: `tensor`; `tensors`, a list; `indices`, a list of tensors or null; `number`, an integer or a float; `operand`, a tensor
or a number; `int`; `ints`; `bool`; `dtype`, one of `DTYPES`; `parts`, the results of a node that has several; `text:A|B`, one of these
words. A `?` says that null is taken too. An `int`, any of `ints` and a `number` may be a reference to a node of dtype `number`, which is
how lengths that are not known before a run enter.
"""

from __future__ import annotations

DTYPES = ("float32", "int64", "bool")
"""What values are computed in: every float type in float32, every integer type in int64."""

NUMBER = "number"
"""The dtype of a node that gives a plain integer, not a tensor: a length, or arithmetic on lengths."""

_UNARY = (
    "abs", "bitwise_not", "ceil", "cos", "erf", "exp", "expm1", "floor", "isinf", "isnan", "log", "log1p", "log2", "log10",
    "logical_not", "neg", "reciprocal",
    "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "tan", "tanh", "atan", "sinh", "cosh", "trunc", "mish",
    "hardswish", "hardsigmoid", "log_sigmoid",
)
_BINARY = (
    "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "floor_divide", "fmod", "ge", "gt", "le", "logical_and", "logical_or",
    "logical_xor", "lt",
    "maximum", "minimum", "mul", "ne", "remainder", "atan2",
)
_LENGTHS = ("add", "sub", "mul", "floordiv", "mod", "max", "min")

_SIGNATURES = {
    # Matrices. matmul is also mm, bmm, mv and dot; addmm is also baddbmm.
    "linear": "input:tensor weight:tensor bias:tensor?",
    "matmul": "input:tensor other:tensor",
    "addmm": "input:tensor mat1:tensor mat2:tensor beta:number alpha:number",
    "scaled_dot_product_attention": "query:tensor key:tensor value:tensor attn_mask:tensor? is_causal:bool scale:number? enable_gqa:bool",
    # One, two or three spatial dimensions; padding is a number for each, on both sides.
    "convolution": "input:tensor weight:tensor bias:tensor? stride:ints padding:ints dilation:ints groups:int",
    # Rows of input belong to one of weight's matrices [groups, inputs, outputs]: group g takes the rows up to offsets[g]; the mixture of experts.
    "grouped_matmul": "input:tensor weight:tensor offsets:tensor",
    "embedding": "weight:tensor indices:tensor",
    # Norms. batch_norm is that of inference.
    "layer_norm": "input:tensor normalized_shape:ints weight:tensor? bias:tensor? eps:number",
    "rms_norm": "input:tensor normalized_shape:ints weight:tensor? eps:number?",
    "group_norm": "input:tensor num_groups:int weight:tensor? bias:tensor? eps:number",
    "batch_norm": "input:tensor weight:tensor? bias:tensor? running_mean:tensor running_var:tensor eps:number",
    # Padding of max_pool counts as -infinity, that of avg_pool as 0, which is averaged too.
    "max_pool": "input:tensor kernel_size:ints stride:ints padding:ints dilation:ints",
    "avg_pool": "input:tensor kernel_size:ints stride:ints padding:ints",
    # Activations with attributes; the others are unary.
    "gelu": "input:tensor approximate:text:none|tanh",
    "softmax": "input:tensor dim:int",
    "log_softmax": "input:tensor dim:int",
    "softplus": "input:tensor beta:number threshold:number",
    "leaky_relu": "input:tensor negative_slope:number",
    "elu": "input:tensor alpha:number scale:number input_scale:number",
    "clamp": "input:tensor min:operand? max:operand?",
    # Elementwise with attributes.
    "add": "input:operand other:operand alpha:number",
    "sub": "input:operand other:operand alpha:number",
    "div": "input:operand other:operand rounding_mode:text?:trunc|floor",
    "pow": "input:operand exponent:operand",
    "where": "condition:tensor input:operand other:operand",
    "masked_fill": "input:tensor mask:tensor value:operand",
    "tril": "input:tensor diagonal:int",
    "triu": "input:tensor diagonal:int",
    "cast": "input:tensor dtype:dtype",
    # New tensors: shape and values are said in full.
    "arange": "start:number end:number step:number dtype:dtype",
    "full": "size:ints fill_value:number dtype:dtype",
    "full_like": "input:tensor fill_value:number dtype:dtype",
    # Reductions; a dim of null is all of them.
    "sum": "input:tensor dim:ints? keepdim:bool",
    "mean": "input:tensor dim:ints? keepdim:bool",
    "amax": "input:tensor dim:ints? keepdim:bool",
    "amin": "input:tensor dim:ints? keepdim:bool",
    "any": "input:tensor dim:ints? keepdim:bool",
    "all": "input:tensor dim:ints? keepdim:bool",
    "logsumexp": "input:tensor dim:ints? keepdim:bool",
    "var": "input:tensor dim:ints? correction:number? keepdim:bool",
    "std": "input:tensor dim:ints? correction:number? keepdim:bool",
    "vector_norm": "input:tensor ord:number dim:ints? keepdim:bool",
    "prod": "input:tensor dim:int? keepdim:bool",
    "argmax": "input:tensor dim:int? keepdim:bool",
    "argmin": "input:tensor dim:int? keepdim:bool",
    "histc": "input:tensor bins:int min:number max:number",
    "cumsum": "input:tensor dim:int",
    "cumprod": "input:tensor dim:int",
    # Two results each: values and indices.
    "max_and_index": "input:tensor dim:int keepdim:bool",
    "min_and_index": "input:tensor dim:int keepdim:bool",
    "topk": "input:tensor k:int dim:int largest:bool sorted:bool",
    "sort": "input:tensor dim:int descending:bool",
    # Shapes. reshape is also view and unflatten; split_equal is also chunk; squeeze of null takes every dimension of length 1.
    "reshape": "input:tensor shape:ints",
    "flatten": "input:tensor start_dim:int end_dim:int",
    "permute": "input:tensor dims:ints",
    "transpose": "input:tensor dim0:int dim1:int",
    "unsqueeze": "input:tensor dim:int",
    "squeeze": "input:tensor dim:ints?",
    "expand": "input:tensor size:ints",
    "repeat": "input:tensor repeats:ints",
    "repeat_interleave": "input:tensor repeats:int dim:int?",
    "slice": "input:tensor dim:int start:int? end:int? step:int",
    "select": "input:tensor dim:int index:int",
    "cat": "tensors:tensors dim:int",
    "stack": "tensors:tensors dim:int",
    "split": "input:tensor split_size:ints dim:int",
    "split_equal": "input:tensor split_size:int dim:int",
    "unbind": "input:tensor dim:int",
    "flip": "input:tensor dims:ints",
    "roll": "input:tensor shifts:ints dims:ints",
    "unfold": "input:tensor dimension:int size:int step:int",
    "pad": "input:tensor pad:ints value:number",
    "diff": "input:tensor n:int dim:int prepend:tensor? append:tensor?",
    # Indexing.
    "index": "input:tensor indices:indices",
    "index_put": "input:tensor indices:indices values:tensor accumulate:bool",
    "index_select": "input:tensor dim:int index:tensor",
    "gather": "input:tensor dim:int index:tensor",
    "scatter": "input:tensor dim:int index:tensor src:operand",
    "scatter_add": "input:tensor dim:int index:tensor src:tensor",
    # copy: src in the shape of input. The others: input with a part replaced by src.
    "copy": "input:tensor src:tensor",
    "slice_scatter": "input:tensor src:tensor dim:int start:int? end:int? step:int",
    "select_scatter": "input:tensor src:tensor dim:int index:int",
    "one_hot": "input:tensor num_classes:int",
    # Results that are numbers, and one of several results.
    "size": "input:tensor dim:int",
    "length_neg": "input:int",
    "part": "input:parts index:int",
}
_SIGNATURES |= {name: "input:tensor" for name in _UNARY}
_SIGNATURES |= {name: "input:operand other:operand" for name in _BINARY}
_SIGNATURES |= {f"length_{name}": "input:int other:int" for name in _LENGTHS}

OPERATORS: dict[str, dict[str, str]] = {
    name: dict(argument.split(":", 1) for argument in signature.split()) for name, signature in _SIGNATURES.items()
}
"""Operator -> argument -> kind."""

SEVERAL_RESULTS = frozenset({"max_and_index", "min_and_index", "topk", "sort", "split", "split_equal", "unbind"})
GIVES_NUMBER = frozenset({"size", "length_neg", *(f"length_{name}" for name in _LENGTHS)})
