"""Compression: the grid map by hand, errors within their bounds, exactness where it is promised."""

import numpy as np
import pytest

from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig
from headrace.models.model import GroupCodes, Model
from headrace.models.quantise import (
    QuantisedLinear, quantise_codes, quantise_groups, quantise_model, quantise_rows, rope_tables,
)
from headrace.models.scheme import load_scheme

SEED = 20251


def random_codes(rng, n=48, k=96, scale=0.01) -> GroupCodes:
    d = (rng.uniform(0.2, 1.0, (n, k // 32)) * scale).astype(np.float16).astype(np.float32)
    m = (-7.5 * d * rng.uniform(0.7, 1.3, d.shape)).astype(np.float16).astype(np.float32)
    return GroupCodes(codes=rng.integers(0, 16, (n, k), dtype=np.uint8), d=d, m=m)


def test_int8_is_the_contracts_map_code_by_code():
    rng = np.random.default_rng(SEED)
    for bits, shift in {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}.items():
        codes = rng.integers(0, 1 << bits, (6, 70), dtype=np.uint8)
        mult = rng.integers(0, 256, (6, 3), dtype=np.uint8)
        off = rng.integers(-2048, 2048, (6, 3), dtype=np.int16)
        linear = QuantisedLinear(codes=codes, mult=mult, off=off, shift=shift, bits=bits, row_scale=np.ones(6, np.float32))
        grid = linear.int8()
        for row in range(6):
            for k in range(70):
                raw = int(codes[row, k]) * int(mult[row, k // 32]) + int(off[row, k // 32]) + (1 << (shift - 1))
                assert grid[row, k] == max(-127, min(127, raw >> shift)), f"seed {SEED} bits {bits}"


def test_eight_bits_per_row():
    rng = np.random.default_rng(SEED)
    weight = rng.normal(size=(40, 100)).astype(np.float32)
    weight[3] = 0
    weight[4] = 1e-40
    q = quantise_rows(weight)
    assert q.codes.dtype == np.int8 and q.codes.min() >= -127 and q.mult.shape == (40, 0)
    live = [row for row in range(40) if row not in (3, 4)]
    assert (np.abs(q.codes[live]).max(axis=1) == 127).all()
    assert np.array_equal(q.row_scale[live], np.abs(weight[live]).max(axis=1) / np.float32(127))
    assert not q.codes[3:5].any() and not q.row_scale[3:5].any()
    assert np.abs(q.dequantised() - weight)[live].max() <= 0.5001 * q.row_scale.max()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("columns", [64, 70])
def test_round_to_nearest_in_groups(bits, columns):
    rng = np.random.default_rng(SEED)
    weight = rng.normal(size=(24, columns)).astype(np.float32)
    q = quantise_groups(weight, bits)
    assert q.codes.shape == weight.shape and q.codes.max() < 1 << bits
    assert q.mult.shape == q.off.shape == (24, -(-columns // 32))
    assert -2048 <= q.off.min() and q.off.max() <= 2047
    for group in range(q.mult.shape[1]):
        part = slice(32 * group, 32 * group + 32)
        step = np.ptp(weight[:, part], axis=1) / ((1 << bits) - 1)
        error = np.abs(q.dequantised()[:, part] - weight[:, part]).max(axis=1)
        # Half a step, and the grid's own rounding: half a unit of w8 plus what rounding mult moves at the ends.
        assert (error <= 0.5 * step + 1.5 * q.row_scale).all(), f"seed {SEED}"


def test_constant_rows_survive():
    weight = np.full((2, 64), 0.25, np.float32)
    weight[1] = -0.5
    assert np.allclose(quantise_groups(weight, 4).dequantised(), weight, rtol=0.01)


def test_codes_pass_through():
    source = random_codes(np.random.default_rng(SEED))
    q = quantise_codes(source)
    assert np.array_equal(q.codes, source.codes)
    values = source.values()
    error = q.dequantised() - values
    assert np.sqrt((error**2).mean()) < 0.01 * np.abs(values).max(axis=1).mean()
    assert np.abs(error / q.row_scale[:, None]).max() < 1.6  # the grid's half unit, off's 1/16 and mult's 1/16 of 15 codes
    assert np.abs(q.int8()).max() == 127


def test_negative_steps_complement_the_codes():
    source = random_codes(np.random.default_rng(SEED))
    flipped = GroupCodes(codes=15 - source.codes, d=-source.d, m=source.m + 15 * source.d)
    a, b = quantise_codes(source), quantise_codes(flipped)
    assert np.array_equal(a.codes, b.codes) and np.array_equal(a.mult, b.mult)
    assert np.abs(a.int8().astype(int) - b.int8()).max() <= 1


def test_blocks_out_of_reach_widen_the_row_scale():
    """Codes that use only the top of a block with a huge offset would need |off| > 2047: the scale gives way, not the value."""
    codes = np.full((1, 32), 15, np.uint8)
    source = GroupCodes(codes=codes, d=np.full((1, 1), 1.0, np.float32), m=np.full((1, 1), -14.9375, np.float32))
    q = quantise_codes(source)
    assert q.off.min() >= -2048 and q.mult.max() <= 255
    assert np.abs(q.dequantised() - source.values()).max() <= 1.0 * q.row_scale[0]


def tiny_model(**weights) -> Model:
    config = LlamaConfig(name="tiny", vocab=40, width=32, layers=1, heads=2, kv_heads=1, head_dim=16, ffn=48, tie_embeddings=True)
    rng = np.random.default_rng(SEED)
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in config.weight_shapes().items()}
    return Model(config=config, weights={**values, **weights})


def test_model_under_both_schemes():
    model = tiny_model()
    for name, bits in (("w4a8kv8", 4), ("w8a8kv8", 8)):
        q = quantise_model(model, load_scheme(name))
        assert {q.layers[0][linear].bits for linear in ("q", "down")} == {bits}
        assert q.embedding.bits == 8 and q.lm_head is q.embedding
        assert np.array_equal(q.layers[0]["attn_norm"], model.weights["layers.0.attn_norm"])
    mixed = quantise_model(model, load_scheme("w4a8kv8", ["linear_bits={down: 3}"]))
    assert mixed.layers[0]["down"].bits == 3 and mixed.layers[0]["up"].bits == 4


def test_what_is_not_built_is_refused():
    model = tiny_model()
    with pytest.raises(UserError, match="kv_bits = 16; allowed by the numeric contract is 4 or 8"):
        quantise_model(model, load_scheme("w4a8kv8", ["kv_bits=16"]))
    with pytest.raises(UserError, match="sparsity.n = 8"):
        quantise_model(model, load_scheme("w4a8kv8", ["sparsity={n: 8}"]))
    with pytest.raises(UserError, match="weight_bits"):
        load_scheme("w4a8kv8", ["weight_bits=7"])
    with pytest.raises(UserError, match="'gat' is not a linear"):
        load_scheme("w4a8kv8", ["linear_bits={gat: 4}"])
    bad = model.weights["layers.0.q"].copy()
    bad[0, 0] = np.nan
    with pytest.raises(UserError, match="layers.0.q holds a NaN"):
        quantise_model(tiny_model(**{"layers.0.q": bad}), load_scheme("w8a8kv8"))


def test_rope_tables():
    config = tiny_model().config
    cos, sin = rope_tables(config)
    assert cos.shape == sin.shape == (2048, 8) and cos.dtype == np.float32
    assert sin[100, 3] == np.float32(np.sin(100 * 10000.0 ** (-6 / 16)))
    assert (cos[0] == 1).all() and (sin[0] == 0).all()
