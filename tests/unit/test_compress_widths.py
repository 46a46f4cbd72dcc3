"""Widths under a budget: the solver against all combinations, measured losses against their definition."""

from itertools import product

import numpy as np
import pytest

from headrace.models.compress.widths import solve_widths
from headrace.models.errors import UserError
from headrace.models.registry import load_model
from headrace.models.scheme import load_scheme, matrix_bytes, weight_bytes
from headrace.sim.calibrate import Method, calibrated, collect, round_dense
from headrace.sim.float_model import FloatExecutor
from headrace.sim.widths import WIDTHS, choose_widths, given_widths, measure_losses

SEED = 20261130


def least_loss(losses, sizes, budget):
    """(loss, bytes) of the best of all combinations within the budget."""
    names = list(losses)
    best = min(
        (sum(losses[n][b] for n, b in zip(names, bits, strict=True)), sum(sizes[n][b] for n, b in zip(names, bits, strict=True)))
        for bits in product(*(losses[n] for n in names))
        if sum(sizes[n][b] for n, b in zip(names, bits, strict=True)) <= budget
    )
    return best[0]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_the_solver_finds_the_best_of_all_combinations(scale):
    for trial in range(4 if scale == 1 else 1):
        rng = np.random.default_rng([SEED, trial])
        names, widths = [f"layers.0.m{i}" for i in range(4)], (2, 3, 4, 8)
        losses = {n: dict(zip(widths, np.sort(scale * np.exp(2 * rng.standard_normal(4)))[::-1].tolist(), strict=True)) for n in names}
        rows, columns = int(rng.integers(1, 200)), int(rng.integers(1, 4000))
        sizes = {n: {b: matrix_bytes(rows * int(rng.integers(1, 9)), columns, b) for b in widths} for n in names}
        low, high = (sum(f(size.values()) for size in sizes.values()) for f in (min, max))
        exact = sum(sizes[n][int(rng.choice(widths))] for n in names)  # a budget that a combination fills to the byte
        last = np.inf
        for budget in sorted({low, low + 1, exact - 1, exact, exact + 1, (low + high) // 2, high, 2 * high} - set(range(low))):
            found = solve_widths(losses, sizes, budget)
            loss = sum(losses[n][found[n]] for n in names)
            assert set(found) == set(names) and sum(sizes[n][found[n]] for n in names) <= budget
            assert np.isclose(loss, least_loss(losses, sizes, budget), rtol=1e-6), f"seed {SEED}, trial {trial}, budget {budget}"
            assert loss <= last * (1 + 1e-9)  # more room never costs
            last = loss
        with pytest.raises(UserError, match=f"budget of {low - 1} bytes for the linears: at their narrowest they take {low}"):
            solve_widths(losses, sizes, low - 1)


@pytest.mark.parametrize("odd", [0, 1])
def test_budgets_are_kept_to_the_byte_where_sizes_are_large(odd):
    """Tolerances of a solver are shares, here of thousands of bytes. `odd` sizes have no divisor in common."""
    sizes = {f"m{i}": {3: 10**9, 4: 2 * 10**9 + odd * (i + 1)} for i in range(4)}
    losses = {name: {3: 1.0 + i / 10, 4: 0.0} for i, name in enumerate(sizes)}
    for room, wide in ((2 * 10**9 + odd * 7 - 1, 1 + odd), (2 * 10**9 + odd * 7, 2), (10**9 + odd * 3, 1), (10**9 + odd - 1, 0)):
        found = solve_widths(losses, sizes, 4 * 10**9 + room)
        taken = sum(sizes[name][found[name]] for name in sizes)
        assert taken <= 4 * 10**9 + room and sum(bits == 4 for bits in found.values()) == wide, (found, room)


@pytest.fixture(scope="module")
def embedded():
    model = load_model("embedded")
    tokens = np.random.default_rng(SEED).integers(0, model.config.vocab, (4, 24))
    return model, tokens, collect(model, tokens)


@pytest.fixture(scope="module")
def measured(embedded):
    model, tokens, statistics = embedded
    steps = []
    losses = measure_losses(model, load_scheme("w4a8kv8"), Method(rounding="fitted"), statistics, tokens, steps.append)
    assert sum(steps) == len(losses) == 7 * model.config.layers
    return losses


def test_losses_are_divergences_of_one_rounded_linear(embedded, measured):
    model, tokens, statistics = embedded
    method = Method(rounding="fitted")
    for name in ("layers.0.q", f"layers.{model.config.layers - 1}.down"):
        inputs = statistics[name]
        rounded = {bits: round_dense(model.weights[name], inputs, bits, 32, method).dequantised() for bits in WIDTHS}
        logs = []
        for weights in (dict(model.weights), dict(model.weights) | {name: rounded[3]}):
            logits = FloatExecutor(model.config, weights).prefill(tokens, all_positions=True).astype(np.float64)
            logs.append(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
        divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1).mean()
        assert np.isclose(measured[name][3], divergence, rtol=1e-3) and divergence > 0
        for bits in WIDTHS:
            errors = [inputs.output_error(rounded[b] - model.weights[name]) for b in (bits, 3)]
            assert np.isclose(measured[name][bits], divergence * errors[0] / errors[1], rtol=1e-3)
        assert list(measured[name].values()) == sorted(measured[name].values(), reverse=True)


def test_chosen_widths_keep_the_bytes_of_every_weight(embedded, measured):
    model, _, statistics = embedded
    scheme, config = load_scheme("w4a8kv8"), model.config
    last = np.inf
    for budget in (0.55, 0.6, 0.66, 0.75, 0.9, 1.2):
        chosen = choose_widths(model, scheme, measured, budget)
        taken = weight_bytes(config, chosen)
        assert taken <= budget * config.parameters and chosen.tensor_bits.keys() == measured.keys()
        loss = sum(measured[name][bits] for name, bits in chosen.tensor_bits.items())
        assert loss <= last
        last = loss
    assert set(chosen.tensor_bits.values()) == {8} and chosen.name == "w4a8kv8-1.2"
    narrow = choose_widths(model, scheme, measured, 0.6)
    compressed = calibrated(model, narrow, Method(rounding="fitted"), statistics)
    assert compressed.required_bytes == weight_bytes(config, narrow) <= 0.6 * config.parameters
    assert len({layer["q"].bits for layer in compressed.layers} | {layer["down"].bits for layer in compressed.layers}) > 1
    with pytest.raises(UserError, match=r"--bytes-per-weight 0.3: with 3 bits for every linear of embedded its weights take 0\.\d+ bytes each"):
        choose_widths(model, scheme, measured, 0.3)


def test_widths_of_the_scheme_stay(embedded, measured):
    model, tokens, statistics = embedded
    config, given = model.config, {"layers.0.q": 3, "layers.1.down": 2}
    scheme = load_scheme("w4a8kv8", ["linear_bits={k: 8, q: 6}", "tensor_bits={layers.0.q: 3, layers.1.down: 2}"])
    given |= {f"layers.{layer}.{kind}": bits for layer in range(config.layers) for kind, bits in (("k", 8), ("q", 6)) if (layer, kind) != (0, "q")}
    assert given_widths(config, scheme) == given
    steps = []
    losses = measure_losses(model, scheme, Method(rounding="fitted"), statistics, tokens, steps.append)
    assert losses == {name: loss for name, loss in measured.items() if name not in given} and sum(steps) == len(losses)
    for budget in (0.6, 0.75):
        chosen = choose_widths(model, scheme, losses, budget)
        assert chosen.tensor_bits.keys() == measured.keys() and chosen.tensor_bits.items() >= given.items()
        compressed = calibrated(model, chosen, Method(rounding="fitted"), statistics)
        assert compressed.required_bytes == weight_bytes(config, chosen) <= budget * config.parameters
    with pytest.raises(UserError, match=rf"--bytes-per-weight 0.3: .*, but for {len(given)} whose widths scheme w4a8kv8.* gives, its weights take"):
        choose_widths(model, scheme, losses, 0.3)
    everything = scheme.model_copy(update={"linear_bits": dict.fromkeys(config.linear_names, 4)})
    with pytest.raises(UserError, match="gives the width of every linear"):
        choose_widths(model, everything, losses, 0.7)
