"""Masks in closed form against masks written out, and by hand."""

import numpy as np
import pytest

from headrace.models.masks import Mask, visible_keys

CASES = [
    Mask(), Mask(window=1), Mask(window=3), Mask(window=64), Mask(window=3, sinks=2), Mask(window=4, sinks=9), Mask(window=3, stride=4),
    Mask(window=3, stride=2, sinks=3), Mask(window=5, stride=5), Mask(window=2, stride=1), Mask(block=1), Mask(block=4), Mask(block=4, blocks=3),
    Mask(block=3, blocks=2, sinks=4), Mask(block=4, sinks=2), Mask(block=2, blocks=40),
]  # fmt: skip


def written_out(mask: Mask, length: int) -> np.ndarray:
    """[query, key], from the rules' words alone."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    if mask.window is not None:
        near = i - j < mask.window
    elif mask.block is not None:
        near = i // mask.block - j // mask.block < mask.blocks
    else:
        near = np.ones((length, length), bool)
    far = j < mask.sinks
    if mask.stride is not None:
        far = far | ((i - j) % mask.stride == 0)
    return (near | far) & (j <= i)


@pytest.mark.parametrize("mask", CASES, ids=str)
def test_counts_are_those_of_the_mask_written_out(mask):
    length = 41
    full = written_out(mask, length)
    contexts = np.arange(1, length + 1)
    assert list(mask.seen(contexts)) == list(full.sum(axis=1))
    for tokens, context in ((1, 1), (1, 41), (3, 3), (7, 40), (20, 41), (41, 41), (5, 9)):
        rows = full[context - tokens : context]
        assert mask.pairs(tokens, context) == rows.sum()
        assert mask.keys_read(tokens, context) == rows.any(axis=0).sum(), (tokens, context)
    assert sum(int(count * keys) for count, keys in mask.runs(37)) == full[36].sum()


@pytest.mark.parametrize("mask", CASES, ids=str)
def test_booleans_are_those_of_the_mask_written_out_and_show_a_query_itself(mask):
    full = written_out(mask, 41)
    assert np.array_equal(mask.visible(np.arange(41), np.arange(41)), full) and full.diagonal().all()
    for start, end in ((0, 1), (40, 41), (17, 30)):
        assert np.array_equal(mask.visible(np.arange(start, end), np.arange(end)), full[start:end, :end])
        for window in (None, 1, 6, 100):
            own = written_out(Mask(window=window), 41)
            assert np.array_equal(visible_keys(start, end, window, mask), (full & own)[start:end, :end])
            assert np.array_equal(visible_keys(start, end, window, None), own[start:end, :end])
    assert Mask(causal=False).visible([0, 1], [0, 1, 2]).all()


def test_by_hand():
    assert Mask().pairs(4, 4) == 10
    assert Mask(window=2).pairs(4, 4) == 1 + 2 + 2 + 2
    assert Mask(window=2, sinks=1).pairs(4, 4) == 1 + 2 + 3 + 3
    assert Mask(window=1, stride=2).pairs(4, 4) == 1 + 1 + 2 + 2
    assert Mask(block=2).pairs(4, 4) == 1 + 2 + 1 + 2
    assert Mask(causal=False).pairs(3, 3) == 9


def test_a_window_as_long_as_the_context_changes_nothing():
    for context in (1, 7, 64):
        assert Mask(window=context).pairs(context, context) == Mask().pairs(context, context)
        assert Mask(window=context + 1).seen(context) == context


def test_more_of_a_mask_never_sees_less():
    contexts = np.arange(1, 80)
    for a, b in (({"window": 4}, {"window": 5}), ({"window": 4}, {"window": 4, "sinks": 1}), ({"block": 4}, {"block": 4, "blocks": 2}),
                 ({"window": 4, "stride": 8}, {"window": 4, "stride": 4})):  # fmt: skip
        assert (Mask(**a).seen(contexts) <= Mask(**b).seen(contexts)).all()


@pytest.mark.parametrize("wrong", [{"window": 0}, {"stride": 2}, {"window": 2, "block": 2}, {"sinks": -1}, {"causal": False, "window": 2}])
def test_rules_that_contradict_are_refused(wrong):
    with pytest.raises(ValueError, match="mask|stride|window"):
        Mask(**wrong)
