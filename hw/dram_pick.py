"""Choosing the oldest of several candidates with an age matrix, for the queues and the slots of the memory model."""

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Signal, Value


def oldest(m: Module, candidates: Value, older: Sequence[Signal], *, name: str) -> Signal:
    """One-hot choice among `candidates` of the one that has no other candidate in its mask `older[i]`; 0 if none.

    Bit j of `older[i]` says that j is older than i. The condition is for the simulator, which skips the rest.
    """
    chosen = Signal(len(candidates), name=name)
    with m.If(candidates.any()):
        m.d.comb += chosen.eq(Cat(candidates[i] & ~(mask & candidates).any() for i, mask in enumerate(older)))
    return chosen


def index_of(one_hot: Value) -> Value:
    """Number of the only bit that is set in `one_hot`; 0 for none."""
    bits = max(1, (len(one_hot) - 1).bit_length())
    masks = [sum(1 << i for i in range(len(one_hot)) if i >> bit & 1) for bit in range(bits)]
    return Cat((one_hot & mask).any() for mask in masks)


def selected(mask: Value, words: Sequence[Value]) -> Value:
    """OR of `words[i]` over the bits i that are set in `mask`."""
    result = mask[0].replicate(len(words[0])) & words[0]
    for i, word in enumerate(words[1:], 1):
        result = result | (mask[i].replicate(len(word)) & word)
    return result
