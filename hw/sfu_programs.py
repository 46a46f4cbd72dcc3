"""The microprograms of the SFU: one per VEC program of docs/machine.md, section 4, in the arithmetic of docs/contract.md.

Every line is one operation of the contract, `(a (*) b) (+) c`; reading them beside section 3 of the contract is the
way to check them. The only steps merged are exact: a multiply by 1.0 (an add alone), an added -0.0 (a multiply alone).
"""

from dataclasses import dataclass
from functools import cache

from headrace.hw.sfu_assembler import BEST, Assembler, Memory, Register
from headrace.hw.sfu_ucode import (
    POST_CLAMP, POST_INDEX, POST_QUANT, PRE_EXP, PRE_RECIP, PRE_RSQRT, TAP_ABSMAX, TAP_ARGMAX, TAP_MAX, Uop,
)  # fmt: skip

RMSNORM, QUANT, ROPE, SOFTMAX, SILU_MUL, ADD, DEQUANT, ARGMAX = range(8)
"""Program numbers, as `headrace.hw.isa.Program`."""

# How a pointer moves from one rep to the next.
STAY, ROWS, TWICE_ROWS, GROUPED = range(4)
"""Not at all; by the rows RN of a rep; by 2*RN; by o7[15:0] rows after every o7[23:16] reps."""


@dataclass(frozen=True, kw_only=True)
class Microprogram:
    """A program's uops and what the sequencer must know of its operands."""

    name: str
    uops: tuple[Uop, ...]
    has_reps: bool = False
    """False: operand o6 is not used and there is one rep."""
    whole_blocks: bool = False
    """n must be a multiple of 16."""
    steps: tuple[int, int, int, int] = (STAY, STAY, STAY, STAY)
    """Of P0..P3; docs/machine.md's rep strides."""
    ab_pointer: int | None = None
    """The pointer that counts AB slices (the sequencer holds it in half slices)."""
    second_half: bool = False
    """P3 is not an operand but P0 + RN."""

    @property
    def pointers(self) -> tuple[int, ...]:
        """Pointers that the uops use, in ascending order."""
        used = {u.pointer for u in self.uops if u.memory} | {u.store_pointer for u in self.uops if u.store_vb or u.store_ab}
        return tuple(sorted(used - ({3} if self.second_half else set())))



def _reciprocal(emit, x, e: int, y: int) -> None:
    """recip(x) -> register y, with e as scratch. The seed is made anew where it is used, instead of being stored."""
    emit(a=-x, b=x, pre=PRE_RECIP, c="2.0", to=e)
    emit(a=Register(e), b=x, pre=PRE_RECIP, to=y)
    for _ in range(2):
        emit(a=-x, b=Register(y), c="2.0", to=e)
        emit(a=Register(y), b=Register(e), to=y)


def _collected(routine, *arguments) -> list[dict]:
    """The operations that `routine` would emit, to be interleaved with others."""
    operations: list[dict] = []
    routine(lambda **fields: operations.append(fields), *arguments)
    return operations


def _exponential(emit, x: int, t: int, r: int, p: int) -> None:
    """exp of register x up to its last step: the result is  float(bits(p) + (bits(t) << 23)), PRE_EXP of p and t."""
    emit(a=Register(x), b="LOG2E", c="MAGIC", to=t)
    emit(a=Register(t), c="-MAGIC", to=p)
    emit(a=Register(p), b="-LN2_HI", c=Register(x), to=r)
    emit(a=Register(p), b="-LN2_LO", c=Register(r), to=r)
    emit(a=Register(r), b="C7", c="C6", to=p)
    for constant in ("C5", "C4", "C3", "C2", "1.0", "1.0"):
        emit(a=Register(p), b=Register(r), c=constant, to=p)


def _tree(emit, even: int, to: int) -> None:
    """The contract's tree over the 16 partials in the lanes of registers `even` and `even + 1`; sum in all lanes of `to`."""
    for distance in (1, 2, 4):
        for half in (even, even + 1):
            emit(a=Register(half), c=Register(half).swap(distance), to=half)
    emit(a=Register(even), c=Register(even + 1), to=to)


def _rmsnorm() -> Microprogram:
    p = Assembler()
    s0, eps, v, h, u, e, y = 0, 2, 3, 4, 5, 6, 7
    p.flat(a=Memory(0), b=Memory(0), accumulate=s0)
    p.reps(a=Memory(3, offset=1), to=eps)
    _tree(p.reps, s0, v)
    p.reps(a=Register(v), b=Memory(3), c=Register(eps), to=v)
    p.reps(a="1.0", b=Register(v), pre=PRE_RSQRT, to=y)
    p.reps(a=Register(v), b="-0.5", to=h)
    for _ in range(3):
        p.reps(a=Register(y), b=Register(y), to=u)
        p.reps(a=Register(h), b=Register(u), c="1.5", to=e)
        p.reps(a=Register(y), b=Register(e), to=y)
    with p.loop():
        p.flat(a=Memory(0), b=Register(y).of_rep, to=u)
        p.flat(a=Register(u), b=Memory(1), vb=2)
    return Microprogram(name="RMSNORM", uops=p.finish())


def _quant() -> Microprogram:
    p = Assembler()
    e, y, s = 0, 1, 2
    p.flat(a=Memory(0), tap=TAP_ABSMAX)
    chain = _collected(_reciprocal, BEST, e, y)
    p.reps(**chain[0])
    p.reps(a=BEST, b="1/127", gate=True, to=s)
    p.reps(**chain[1])
    p.reps(a=Register(s), b=Memory(3), vb=2)
    for operation in chain[2:]:
        p.reps(**operation)
    p.reps(a=Register(y), b="127.0", gate=True, to=y)
    p.flat(a=Memory(0), b=Register(y).of_rep, c="MAGIC", post=POST_QUANT, ab=1)
    return Microprogram(name="QUANT", uops=p.finish(), has_reps=True, steps=(ROWS, ROWS, STAY, STAY), ab_pointer=1)


def _rope() -> Microprogram:
    p = Assembler()
    cos, sin, t0, t1 = 0, 1, 2, 3
    x0, x1 = Memory(0), Memory(3)
    with p.loop():
        p.flat(a=Memory(2), to=sin)
        p.flat(a=Memory(1), to=cos)
        p.flat(a=-x1, b=Register(sin), to=t0)
        p.flat(a=x0, b=Register(sin), to=t1)
        p.flat(a=x0, b=Register(cos), c=Register(t0), vb=0)
        p.flat(a=x1, b=Register(cos), c=Register(t1), vb=3)
    return Microprogram(
        name="ROPE", uops=p.finish(), has_reps=True, whole_blocks=True, steps=(TWICE_ROWS, STAY, STAY, TWICE_ROWS),
        second_half=True,
    )  # fmt: skip


def _softmax() -> Microprogram:
    p = Assembler()
    z, x, t, r, q, e = 0, 2, 3, 4, 5, 6
    p.flat(a=Memory(0), tap=TAP_MAX)
    with p.loop():
        p.flat(a=Memory(0), c=-BEST, post=POST_CLAMP, to=x)
        _exponential(p.flat, x, t, r, q)
        p.flat(a="1.0", b=Register(q), pre=PRE_EXP, exponent=Register(t), to=e, vb=0)
        # The maximum of a rep's products replaces that of its scores: the rep's rows have all been read by then.
        p.flat(a=Register(e), b=Memory(1), vb=0, tap=TAP_ABSMAX, tap_result=True)
        p.flat(a=Register(e), accumulate=z)
    e1, y1, e2, y2, s = 2, 3, 4, 5, 6
    _tree(p.reps, z, z)
    p.reps(a=BEST, b="1/127", gate=True, to=s)
    of_best, of_z = _collected(_reciprocal, BEST, e2, y2), _collected(_reciprocal, Register(z), e1, y1)
    for pair in zip(of_best, of_z, strict=True):  # two chains side by side: each hides the latency of the other
        for operation in pair:
            p.reps(**operation)
    p.reps(a=Register(y2), b="127.0", gate=True, to=y2)
    p.reps(a=Register(s), b=Register(y1), vb=3)
    p.flat(a=Memory(0), b=Register(y2).of_rep, c="MAGIC", post=POST_QUANT, ab=2)
    return Microprogram(name="SOFTMAX", uops=p.finish(), has_reps=True, steps=(ROWS, GROUPED, ROWS, STAY), ab_pointer=2)


def _silu_mul() -> Microprogram:
    p = Assembler()
    x, t, r, q, d, e, y = range(7)
    with p.loop():
        p.flat(a=-Memory(0), post=POST_CLAMP, to=x)
        _exponential(p.flat, x, t, r, q)
        p.flat(a="1.0", b=Register(q), pre=PRE_EXP, exponent=Register(t), c="1.0", to=d)
        _reciprocal(p.flat, Register(d), e, y)
        p.flat(a=Memory(0), b=Register(y), to=x)
        p.flat(a=Register(x), b=Memory(1), vb=2)
    return Microprogram(name="SILU_MUL", uops=p.finish())


def _add() -> Microprogram:
    p = Assembler()
    with p.loop():
        p.flat(a=Memory(0), to=0)
        p.flat(a=Memory(1), c=Register(0), vb=2)
    return Microprogram(name="ADD", uops=p.finish())


def _dequant() -> Microprogram:
    p = Assembler()
    p.reps(a=Memory(1, one_lane=True), to=0)
    p.flat(a=Memory(0, int8=True), b=Register(0).of_rep, vb=2)
    return Microprogram(name="DEQUANT", uops=p.finish(), ab_pointer=0)


def _argmax() -> Microprogram:
    p = Assembler()
    p.flat(a=Memory(0), tap=TAP_ARGMAX)
    p.reps(a="1.0", post=POST_INDEX, vb=2)
    return Microprogram(name="ARGMAX", uops=p.finish())


@cache
def microprograms() -> tuple[Microprogram, ...]:
    """All programs, by number."""
    return (_rmsnorm(), _quant(), _rope(), _softmax(), _silu_mul(), _add(), _dequant(), _argmax())
