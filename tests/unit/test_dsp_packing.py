"""Two weights in one DSP: the packed cascade's sums against plain dot products, garbage rows included (numpy only)."""

import numpy as np
import pytest

from headrace.hw.dsp_chain import chain_twin

SIZE = 16


def check(w0, w1, b, *, low_exact=True, high_exact=True):
    low, high = chain_twin(w0, w1, b)
    w0, w1, b = (np.asarray(x, np.int64) for x in (w0, w1, b))
    assert not low_exact or (low == (w0 * b).sum(-1)).all()
    assert not high_exact or (high == (w1 * b).sum(-1)).all()


@pytest.mark.parametrize("w0", [-127, 127])
@pytest.mark.parametrize("w1", [-127, 127])
@pytest.mark.parametrize("b", [-127, 127])
def test_extremes(w0, w1, b):
    check(np.full(SIZE, w0), np.full(SIZE, w1), np.full(SIZE, b))


def test_mixed_extremes():
    """Every product +-127 * 127, in every mixture of signs along the cascade (2 x 2**16 sign patterns)."""
    signs = ((np.arange(1 << SIZE)[:, None] >> np.arange(SIZE)) & 1) * 254 - 127
    ones = np.full(SIZE, 127)
    check(signs, ones[None, :], ones[None, :])
    check(ones[None, :], signs, ones[None, :])
    check(signs, -signs, ones[None, :])


def test_garbage_never_disturbs_the_partner_row():
    """-128 and any other byte in one row of the pair leaves the other row exact, in either position."""
    seed = 3
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    shape = (50_000, SIZE)
    valid = rng.integers(-127, 128, shape)
    b = rng.integers(-127, 128, shape)
    garbage = np.where(rng.random(shape) < 0.5, -128, rng.integers(-128, 128, shape))
    check(valid, garbage, b, high_exact=False)
    check(garbage, valid, b, low_exact=False)
    # The worst cases: all -128 against all +-127.
    for x in (-127, 127):
        for value in (-127, 127):
            check(np.full(SIZE, value), np.full(SIZE, -128), np.full(SIZE, x), high_exact=False)
            check(np.full(SIZE, -128), np.full(SIZE, value), np.full(SIZE, x), low_exact=False)


def test_seventeen_would_overflow():
    """The checker sees an overflow: the field is exact for a cascade of 16 and no longer."""
    ones = np.full(17, 127)
    low, _ = chain_twin(ones, ones, ones)
    assert low != 17 * 127 * 127
