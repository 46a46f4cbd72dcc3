"""The assembler of the SFU's microprograms: sources as programs write them, and the waits, derived from hazards."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.hw.sfu_ucode import (
    A_MEMORY, A_REGISTER, A_COMMON, B_COMMON, B_CONSTANTS, B_MEMORY, B_REGISTER, COMMON_BEST, COMMON_LANE, C_COMMON,
    C_CONSTANTS, C_REGISTER, DEPENDENT, FLAT, POST_NONE, PRE_EXP, PRE_NONE, QUIET, REPS, TAP_ABSMAX, TAP_MAX,
    TAP_NONE, WAIT_AGE1, WAIT_AGE3, WAIT_NONE, WAIT_OPERAND_REDUCTION, WAIT_REDUCTION, WAIT_RESULT, WAIT_STORE, Uop,
)  # fmt: skip

# ---- sources ----


@dataclass(frozen=True)
class Register:
    """A vector register: row i of it for row i; `per_rep`: the rep's row, for FLAT uops that use a value of the rep."""

    number: int
    per_rep: bool = False
    negated: bool = False
    swapped: int = 0
    """Lane i reads lane i xor `swapped` (1, 2 or 4); source c only."""

    def __neg__(self):
        return replace(self, negated=not self.negated)

    def swap(self, distance: int):
        return replace(self, swapped=distance)

    @property
    def of_rep(self):
        return replace(self, per_rep=True)


@dataclass(frozen=True)
class Memory:
    """A row of VB through pointer P`pointer`, or of 8 INT8 values of AB (`int8`), or one lane of it in all lanes."""

    pointer: int
    offset: int = 0
    int8: bool = False
    one_lane: bool = False
    negated: bool = False

    def __neg__(self):
        return replace(self, negated=not self.negated)


@dataclass(frozen=True)
class Best:
    """The maximum that the last reduction left for the rep."""

    negated: bool = False

    def __neg__(self):
        return replace(self, negated=not self.negated)


BEST = Best()


class Assembler:
    """Collects the uops of one program and derives every wait from the hazards between them.

    Hazards are on vector registers (written by an earlier uop), on the running maxima and on VB rows that the
    program itself stored. A read before a later write is never a hazard: rows issue in order and are read at issue.
    """

    def __init__(self):
        self.uops: list[Uop] = []
        self._loop_of: list[int] = []
        self._loops = 0
        self._in_loop = False

    @contextmanager
    def loop(self):
        """The uops emitted inside run block by block over the flat rows. At least two, the sequencer's prefetch needs it."""
        if self._in_loop:
            raise ValueError("loops do not nest")
        first = len(self.uops)
        self._in_loop, self._loops = True, self._loops + 1
        yield
        self._in_loop = False
        if len(self.uops) - first < 2:
            raise ValueError("a loop has at least two uops")
        self.uops[first] = replace(self.uops[first], loop_start=1)
        self.uops[-1] = replace(self.uops[-1], loop_end=1)

    def flat(self, **fields) -> None:
        """A FLAT uop: of the current loop, or over all rows at once where there is none."""
        self._emit(FLAT, fields)

    def reps(self, **fields) -> None:
        """A REPS uop: one row per rep."""
        if self._in_loop:
            raise ValueError("a REPS uop cannot stand in a loop")
        self._emit(REPS, fields)

    def finish(self) -> tuple[Uop, ...]:
        """The program."""
        if self._in_loop or not self.uops:
            raise ValueError("an empty program or an open loop")
        self.uops[-1] = replace(self.uops[-1], last=1)
        return tuple(self.uops)

    def _emit(self, mode, fields):
        uop = _uop(mode, not self._in_loop and mode == FLAT, **fields)
        loop = self._loops if self._in_loop else 0
        self.uops.append(replace(uop, wait=self._wait(uop, loop)))
        self._loop_of.append(loop)

    def _wait(self, uop: Uop, loop: int) -> int:
        """The wait code of `uop`, about to be appended, from all hazards that the program so far does not cover."""
        age, quiet = 0, WAIT_NONE
        here = len(self.uops)

        def need(code, writer):
            nonlocal quiet
            if self._elapsed(writer, loop, from_start=False) < QUIET[code] and (
                quiet == WAIT_NONE or QUIET[code] > QUIET[quiet]
            ):
                quiet = code

        for register, per_rep in _registers_read(uop):
            writer = self._latest(lambda w, r=register: w.store_register and r in _registers_written(w))
            if writer is None:
                continue
            w = self.uops[writer]
            together = self._loop_of[writer] == loop
            by_row = together and w.mode == uop.mode and not per_rep and not w.accumulate and not uop.whole
            if by_row:
                if self._elapsed(writer, loop, from_start=True) < DEPENDENT:
                    distance = min(here - writer, 3)
                    age = min(age, distance) if age else distance
            elif together and loop:
                raise ValueError(f"uop {here} reads a value of the rep that its own loop still computes")
            else:
                need(WAIT_RESULT, writer)
        if COMMON_BEST in _common_sources(uop) or uop.gate:
            writer = self._latest(lambda w: w.tap in (TAP_ABSMAX, TAP_MAX))
            if writer is None or (loop and self._loop_of[writer] == loop):
                raise ValueError(f"uop {here} reads a maximum that nothing before it, outside its loop, has computed")
            need(WAIT_REDUCTION if self.uops[writer].tap_result else WAIT_OPERAND_REDUCTION, writer)
        if uop.memory and not uop.int8:
            writer = self._latest(lambda w: w.store_vb and w.store_pointer == uop.pointer)
            if writer is not None and not (loop and self._loop_of[writer] == loop):
                need(WAIT_STORE, writer)
        if quiet and age:
            if loop:
                raise ValueError(f"uop {here} of a loop needs two kinds of wait")
            if QUIET[quiet] < DEPENDENT:
                quiet = WAIT_RESULT
        return quiet or age

    def _latest(self, condition) -> int | None:
        """Index of the last uop for which `condition` holds."""
        return next((i for i in reversed(range(len(self.uops))) if condition(self.uops[i])), None)

    def _elapsed(self, writer: int, loop: int, *, from_start: bool) -> int:
        """Cycles that have surely passed, when a uop appended now starts, since `writer` started or issued its last row."""
        bound = {writer: 0}
        for j in range(writer + 1, len(self.uops)):
            wait, its_loop = self.uops[j].wait, self._loop_of[j]
            bound[j] = bound[j - 1] + 1
            if WAIT_AGE1 <= wait <= WAIT_AGE3:
                # An age counts from a start: the writer's own start says nothing about its last row.
                if j - wait > writer or (from_start and j - wait == writer):
                    bound[j] = max(bound[j], bound[j - wait] + DEPENDENT)
            elif wait and (not its_loop or (its_loop != self._loop_of[writer] and its_loop == loop)):
                # In a loop this wait holds for the first block only, which is the one that a reader inside needs.
                bound[j] = max(bound[j], bound[j - 1] + QUIET[wait])
        return bound[len(self.uops) - 1] + 1


def _registers_read(uop: Uop):
    if uop.a_select == A_REGISTER:
        yield uop.a_register, uop.a_scalar
    if uop.b_select == B_REGISTER:
        yield uop.b_register, uop.b_scalar
    if uop.c_select == C_REGISTER or uop.pre == PRE_EXP:
        yield uop.c_register, 0


def _registers_written(uop: Uop):
    return (uop.register, uop.register | 1) if uop.accumulate else (uop.register,)


def _common_sources(uop: Uop):
    if uop.a_select == A_COMMON:
        yield uop.a_common
    if uop.b_select == B_COMMON:
        yield uop.b_common
    if uop.c_select == C_COMMON:
        yield uop.c_common


def _uop(mode, whole, *, a, b="1.0", c="-0.0", pre=PRE_NONE, exponent=None, to=None, accumulate=None, vb=None, ab=None,
         post=POST_NONE, tap=TAP_NONE, tap_result=False, gate=False) -> Uop:  # fmt: skip
    """The uop of  to, vb or ab = post((a * pre(b)) + c).

    a, b, c: Register, Memory, Best or the name of a constant (a: "1.0" only); `exponent`: the Register that PRE_EXP
    shifts into the exponent of b. to: number of a register. accumulate: even register number, sums of even and odd
    rows go to it and the next. vb, ab: pointer of the store.
    """
    f: dict[str, int] = {"mode": mode, "whole": int(whole), "pre": pre, "post": post, "tap": tap}
    f |= {"tap_result": int(tap_result), "gate": int(gate)}
    memories = []
    if isinstance(a, Register):
        f |= {"a_select": A_REGISTER, "a_register": a.number, "a_scalar": int(a.per_rep), "a_negate": int(a.negated)}
    elif isinstance(a, Memory):
        memories.append(a)
        select = {"a_common": COMMON_LANE} if a.one_lane else {"a_select": A_MEMORY}
        f |= select | {"a_negate": int(a.negated)}
    elif isinstance(a, Best):
        f |= {"a_common": COMMON_BEST, "a_negate": int(a.negated)}
    elif a != "1.0":
        raise ValueError(f"source a = {a!r}: the only constant is 1.0")
    if isinstance(b, Register):
        f |= {"b_select": B_REGISTER, "b_register": b.number, "b_scalar": int(b.per_rep)}
    elif isinstance(b, Memory):
        memories.append(b)
        f |= {"b_select": B_MEMORY}
    elif isinstance(b, Best):
        f |= {"b_common": COMMON_BEST}
    else:
        f |= {"b_constant": list(B_CONSTANTS).index(b)}
    if not isinstance(b, str) and getattr(b, "negated", False):
        raise ValueError("source b cannot be negated: negate a")
    if isinstance(b, Memory) and pre != PRE_NONE:
        raise ValueError("`pre` does not reach a memory source")
    if isinstance(c, Register):
        if c.per_rep:
            raise ValueError("source c has no row of the rep")
        f |= {"c_select": C_REGISTER, "c_register": c.number, "c_negate": int(c.negated)}
        f |= {"swap": (0, 1, 2, 0, 3)[c.swapped]}
    elif isinstance(c, Best):
        f |= {"c_common": COMMON_BEST, "c_negate": int(c.negated)}
    elif isinstance(c, Memory):
        raise ValueError("source c cannot be memory: make it a, with b = 1.0")
    else:
        f |= {"c_constant": list(C_CONSTANTS).index(c)}
    if exponent is not None:
        if pre != PRE_EXP or isinstance(c, Register):
            raise ValueError("`exponent` belongs to PRE_EXP and uses the register port of source c")
        f |= {"c_register": exponent.number}
    if memories:
        if len({(x.pointer, x.offset, x.int8) for x in memories}) > 1:
            raise ValueError("a uop reads one row of memory")
        x = memories[0]
        f |= {"memory": 1, "pointer": x.pointer, "offset": x.offset, "int8": int(x.int8)}
    if accumulate is not None:
        if accumulate % 2 or c != "-0.0" or to is not None:
            raise ValueError("a sum goes to an even register and the next one, and has no other addend")
        f |= {"accumulate": 1, "store_register": 1, "register": accumulate}
    if to is not None:
        f |= {"store_register": 1, "register": to}
    if vb is not None and ab is not None:
        raise ValueError("a uop stores to VB or to AB")
    if vb is not None:
        f |= {"store_vb": 1, "store_pointer": vb}
    if ab is not None:
        f |= {"store_ab": 1, "store_pointer": ab}
    return Uop(**f)
