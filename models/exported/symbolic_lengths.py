"""Lengths that are not known until a graph runs: integer expressions in named dimensions, like ``tokens*heads + 1``.

Expressions come from files, so they are parsed by a grammar of their own (never `eval`) and every intermediate value is bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from headrace.models.errors import UserError

Length = int | str
"""A number, or an expression: names, whole numbers, ``+ - * // % **``, ``Max``, ``Min``, ``FloorDiv``, ``Mod``."""

MAX_CHARACTERS = 400
MAX_LENGTH = 1 << 48
MAX_EXPONENT = 8

_BINARY = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_CALLS = {"Max": max, "Min": min, "FloorDiv": lambda a, b: a // b, "Mod": lambda a, b: a % b}


def names_of(length: Length) -> frozenset[str]:
    """Names of the dimensions in a length. Raises UserError for text that is not an expression of the grammar."""
    if isinstance(length, int):
        return frozenset()
    called = {id(node.func) for node in ast.walk(_parsed(length)) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(_parsed(length)) if isinstance(node, ast.Name) and id(node) not in called)


def evaluate(length: Length, lengths: Mapping[str, int]) -> int:
    """The number that a length stands for. Raises UserError for a dimension without a length, and beyond +-2**48."""
    return length if isinstance(length, int) else _value(_parsed(length), lengths, length)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"length {text[:60]!r}... has {len(text)} characters; allowed are {MAX_CHARACTERS}")
    try:
        root = ast.parse(text, mode="eval").body
        _check(root, text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UserError(f"length {text[:60]!r} is not an expression of names and whole numbers") from None
    return root


def _check(node: ast.expr, text: str) -> None:
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            exponent = getattr(node.right, "value", None)
            if type(exponent) is not int or not 0 <= exponent <= MAX_EXPONENT:
                raise UserError(f"length {text[:60]!r}: allowed is an exponent from 0 to {MAX_EXPONENT}")
        elif type(node.op) not in _BINARY:
            raise UserError(f"length {text[:60]!r}: allowed are + - * // % ** of names and whole numbers")
        _check(node.left, text)
        _check(node.right, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, text)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        pair = name in ("Max", "Min") and len(node.args) >= 2 or len(node.args) == 2
        if name not in _CALLS or node.keywords or not pair:
            raise UserError(f"length {text[:60]!r}: allowed are the functions {', '.join(_CALLS)}")
        for argument in node.args:
            _check(argument, text)
    elif not isinstance(node, ast.Name) and not (isinstance(node, ast.Constant) and type(node.value) is int):
        raise UserError(f"length {text[:60]!r} is not an expression of names and whole numbers")


def _value(node: ast.expr, lengths: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        if node.id not in lengths:
            raise UserError(f"length {text!r} needs a number for {node.id!r}; given: {', '.join(lengths) or 'none'}")
        value = lengths[node.id]
    elif isinstance(node, ast.UnaryOp):
        value = -_value(node.operand, lengths, text)
    else:
        parts = node.args if isinstance(node, ast.Call) else (node.left, node.right)
        values = [_value(part, lengths, text) for part in parts]
        try:
            if isinstance(node, ast.Call):
                value = _CALLS[node.func.id](*values)
            else:
                value = values[0] ** values[1] if isinstance(node.op, ast.Pow) else _BINARY[type(node.op)](*values)
        except ZeroDivisionError:
            raise UserError(f"length {text!r} divides by 0 with {dict(lengths)}") from None
    if abs(value) > MAX_LENGTH:
        raise UserError(f"length {text!r} is beyond {MAX_LENGTH} with {dict(lengths)}")
    return value
