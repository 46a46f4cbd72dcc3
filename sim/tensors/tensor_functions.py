"""What the operators of a tensor graph compute, in numpy: one function for each name of `headrace.models.exported.tensor_operators.OPERATORS`.

Meanings are those of PyTorch's documentation of the ATen operator of that name. Arguments come by the vocabulary's names: arrays of
float32, int64 or bool, numbers, tuples, None. The executor turns every result into its recorded dtype, so a function may return a wider
one. A function that could make a result larger than its inputs checks the size first and raises ValueError above `MAX_ELEMENTS`.
"""

from headrace.models.exported.tensor_operators import OPERATORS
from headrace.sim.tensors import tensor_elementwise, tensor_matrices, tensor_shapes
from headrace.sim.tensors.tensor_registry import REGISTERED, Function

PARTS = (tensor_elementwise, tensor_matrices, tensor_shapes)
"""The modules whose functions these are; importing them registers the functions."""

FUNCTIONS: dict[str, Function] = {name: REGISTERED[name] for name in OPERATORS}
"""Operator -> its function; the vocabulary is complete, or this import fails."""
