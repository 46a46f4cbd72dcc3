"""Float32 operations of a graph's element-wise functions, counted from their formulas.

Formulas of rmsnorm, quantise, rope, softmax, silu_mul, add, dequantise and argmax, and of the calls exp, recip and rsqrt in all of them, are
those of docs/contract.md, sections 2 and 3. The others are written there in no version yet; docs/workloads.md gives the formula that is
counted here, in the same operations: only add and multiply exist, division is recip, sigmoid(x) = recip(exp(-x) + 1), tanh(x) = 1 - 2 *
recip(exp(2x) + 1). A step is one multiply followed by one add (either may be missing), or a comparison: what a lane does in a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

TREE_ADDS, TREE_STEPS = 15, 7
"""Of the contract's tree over 16 partial sums; a step adds 8 lanes."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Operations of one element or of one row. `sums` of the steps add to a running sum."""

    adds: int = 0
    multiplies: int = 0
    steps: int = 0
    sums: int = 0
    exp: int = 0
    recip: int = 0
    rsqrt: int = 0
    log: int = 0

    def without_calls(self) -> Counts:
        """The same with every call replaced by its operations."""
        adds, multiplies, steps = self.adds, self.multiplies, self.steps
        for name, call in CALLS.items():
            times = getattr(self, name)
            adds, multiplies, steps = adds + times * call.adds, multiplies + times * call.multiplies, steps + times * call.steps
        return Counts(adds=adds, multiplies=multiplies, steps=steps, sums=self.sums)

    def times(self, factor) -> Counts:
        return Counts(**{f.name: getattr(self, f.name) * factor for f in fields(self)})

    def plus(self, other: Counts) -> Counts:
        return Counts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


CALLS = {
    "exp": Counts(adds=11, multiplies=10, steps=12),
    "recip": Counts(adds=3, multiplies=6, steps=6),
    "rsqrt": Counts(adds=3, multiplies=10, steps=11),
    # Cephes logf (S. Moshier, logf.c), as exp is Cephes' expf: z = x*x; 8 Horner steps; y*x*z; e*LN2_LO; -z/2; x + y; e*LN2_HI.
    "log": Counts(adds=13, multiplies=14, steps=15),
}
"""exp, recip, rsqrt: the contract's table, section 3; their steps are those of the microprograms (the seed of rsqrt is one)."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """Operations per element and per row; operands read from, and results written to, the vector buffer, per element."""

    element: Counts
    row: Counts = Counts()
    reads: int = 1
    writes: int = 1

    def counts(self, elements, rows) -> Counts:
        """Of `rows` rows of `elements` elements in all, calls kept apart."""
        return self.element.times(elements).plus(self.row.times(rows))


_SIGMOID = {"exp": 1, "recip": 1}

FUNCTIONS = {
    "rmsnorm": Function(
        element=Counts(adds=1, multiplies=3, steps=3, sums=1), row=Counts(adds=TREE_ADDS + 1, multiplies=1, steps=TREE_STEPS + 2, rsqrt=1),
        reads=4,
    ),
    # mean = sum(x) * (1/d); c = x - mean; v = sum(c * c) * (1/d) + eps; y = (c * rsqrt(v)) * w + b
    "layernorm": Function(
        element=Counts(adds=4, multiplies=3, steps=5, sums=2),
        row=Counts(adds=2 * TREE_ADDS + 1, multiplies=2, steps=2 * TREE_STEPS + 3, rsqrt=1), reads=6, writes=2,
    ),
    "quantise": Function(element=Counts(multiplies=1, steps=2), row=Counts(multiplies=3, steps=3, recip=1), reads=2, writes=0),
    "rope": Function(element=Counts(adds=1, multiplies=2, steps=3), reads=3),
    "softmax": Function(
        element=Counts(adds=2, multiplies=2, steps=5, sums=1, exp=1),
        row=Counts(adds=TREE_ADDS, multiplies=3, steps=TREE_STEPS + 3, recip=2), reads=4, writes=2,
    ),
    "silu_mul": Function(element=Counts(adds=1, multiplies=2, steps=3, **_SIGMOID), reads=3),
    "add": Function(element=Counts(adds=1, steps=2), reads=2),
    "bias": Function(element=Counts(adds=1, steps=2), reads=2),
    "dequantise": Function(element=Counts(multiplies=1, steps=1), row=Counts(steps=1)),
    "argmax": Function(element=Counts(steps=1), row=Counts(steps=1), writes=0),
    "scale": Function(element=Counts(multiplies=1, steps=1)),
    "multiply": Function(element=Counts(multiplies=1, steps=2), reads=2),
    "relu": Function(element=Counts(steps=1)),
    "relu_squared": Function(element=Counts(multiplies=1, steps=2)),
    "silu": Function(element=Counts(adds=1, multiplies=1, steps=2, **_SIGMOID), reads=2),
    "sigmoid_mul": Function(element=Counts(adds=1, multiplies=1, steps=2, **_SIGMOID), reads=2),
    # u = x * x; t = (u * c1 + c0) * x; y = x * sigmoid(t), with c0 = sqrt(8/pi) and c1 = 0.044715 * c0
    "gelu": Function(element=Counts(adds=2, multiplies=4, steps=4, **_SIGMOID), reads=3),
    "gelu_mul": Function(element=Counts(adds=2, multiplies=5, steps=5, **_SIGMOID), reads=4),
    # erf by Abramowitz and Stegun 7.1.26 (5 coefficients, error below 1.5e-7): z = x/sqrt(2); t = recip(p * |z| + 1); 4 Horner steps and
    # a multiply by t; e = exp(-z * z); erf = 1 - poly * e; h = x/2; y = h * erf + h
    "gelu_erf": Function(element=Counts(adds=7, multiplies=11, steps=11, **_SIGMOID), reads=3),
    # cap * tanh(x / cap) = -2 cap * recip(exp(x * 2/cap) + 1) + cap
    "softcap": Function(element=Counts(adds=2, multiplies=2, steps=2, **_SIGMOID)),
    "alibi": Function(element=Counts(adds=1, multiplies=1, steps=2), reads=2),
    "router": Function(element=Counts(adds=2, multiplies=1, steps=4, sums=1, exp=1), row=Counts(adds=TREE_ADDS, steps=TREE_STEPS, recip=1), reads=3),
    "topk": Function(element=Counts(steps=2), row=Counts(steps=1), writes=0),
    "combine": Function(element=Counts(adds=1, multiplies=1, steps=2), reads=2),
    # max(x, 0) + log(1 + exp(-|x|))
    "softplus": Function(element=Counts(adds=2, steps=3, exp=1, log=1)),
    # last + mix * (x - last)
    "token_shift": Function(element=Counts(adds=2, multiplies=1, steps=3), reads=4),
    # h = h * exp(dt * A) + (dt x) * B; y = sum(h * C), a row a channel, of its states; y + D * x
    "selective_scan": Function(
        element=Counts(adds=2, multiplies=4, steps=5, sums=1, exp=1), row=Counts(adds=TREE_ADDS + 1, multiplies=2, steps=TREE_STEPS + 3),
        reads=4,
    ),
    # The numerically stable recurrence with a running maximum: two maxima, four exponentials, one division (docs/workloads.md).
    "wkv": Function(element=Counts(adds=10, multiplies=7, steps=15, exp=4, recip=1), reads=7, writes=4),
    "conv_tap": Function(element=Counts(adds=1, multiplies=1, steps=2), reads=2, writes=0),
}
"""Kind of an operator -> its formula."""
