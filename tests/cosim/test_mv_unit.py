"""The matrix-vector engine in Verilator, bit for bit against docs/machine.md and the numeric contract.

Random commands with random pauses on every stream; the array's full rate; errors; planted faults.
"""

import mv_bench as bench
import numpy as np
import pytest

from headrace.hw.isa import ErrorCode, Op
from headrace.hw.machine import load_machine
from headrace.hw.mv_unit import MAX_SLICES, MvUnit
from headrace.hw.mv_writer import MvWriter
from headrace.hw.scale_unit import ScaleUnit
from headrace.hw.weight_fifo import WeightFifo
from headrace.kernels.contract import f32

pytestmark = pytest.mark.cosim

NANO = load_machine("nano").buffers

# Per 1000 cycles: commands, weights, vector-buffer reads, vector-buffer writes.
PAUSES = {
    "none": (0, 0, 0, 0),
    "weights": (0, 500, 0, 0),
    "writes": (0, 0, 0, 700),
    "all": (200, 300, 300, 300),
}


@pytest.fixture(scope="module")
def nano():
    chosen = bench.machine("nano")
    return chosen, bench.build(chosen)


@pytest.fixture(scope="module")
def narrow():
    chosen = bench.machine("narrow")
    return chosen, bench.build(chosen)


def random_case(chosen, seed: int, count: int) -> bench.Case:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    return bench.Case.random(chosen, rng, [bench.random_command(chosen, rng, pc=100 + i) for i in range(count)])


@pytest.mark.parametrize("pauses", PAUSES)
@pytest.mark.parametrize("name", ["nano", pytest.param("narrow", marks=pytest.mark.nightly)])
def test_random_commands(name, pauses, request, tmp_path):
    chosen, executable = request.getfixturevalue(name)
    for seed in (1, 2, 3):
        case = random_case(chosen, seed, 10)
        bench.check(case, bench.run(executable, case, tmp_path, seed=seed, pauses=PAUSES[pauses], poison=seed))


def test_short_commands(nano, tmp_path):
    """One or two stripes and slices: every stage holds another command."""
    chosen, executable = nano
    rng = np.random.default_rng(7)
    for pauses in PAUSES.values():
        commands = [
            bench.random_command(chosen, rng, pc=i, stripes=int(rng.integers(1, 4)), slices=int(rng.integers(1, 4)))
            for i in range(60)
        ]
        # Tokens-only instructions keep their place in the order.
        for i in range(5, 60, 9):
            commands[i] = bench.Command(pc=1000 + i, op=Op.MV_NOP)
        case = bench.Case.random(chosen, rng, commands)
        bench.check(case, bench.run(executable, case, tmp_path, pauses=pauses))


def test_longest_and_extreme(nano, tmp_path):
    """The whole activation buffer and the whole vector buffer, all weights and activations at +-127."""
    chosen, executable = nano
    rng = np.random.default_rng(9)
    slices, stripes = chosen.buffers.activation_slices, chosen.buffers.vector_rows * 8 // chosen.stripe_rows
    long = bench.random_command(chosen, rng, pc=1, bits=8, scales=True, stripes=2, slices=slices, garbage=0)
    long.codes[:] = np.where(np.arange(len(long.codes))[:, None] % 2, 127, -127)
    tall = bench.random_command(chosen, rng, pc=2, bits=4, scales=True, stripes=stripes, slices=1)
    case = bench.Case.random(chosen, rng, [long, tall])
    case.activations[:] = 127
    bench.check(case, bench.run(executable, case, tmp_path))


def test_special_scales(nano, tmp_path):
    """Zero, subnormal, huge and infinite scales; a NaN channel scale is a NaN result and no error."""
    chosen, executable = nano
    rng = np.random.default_rng(10)
    special = f32.from_bits(
        np.array([0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001], np.uint32)
    )
    commands = [bench.random_command(chosen, rng, pc=i, bits=8, scales=True, stripes=6, slices=2) for i in range(8)]
    for command in commands:
        command.s_w = rng.choice(special, len(command.s_w))
    case = bench.Case.random(chosen, rng, commands)
    for command, s_a in zip(case.commands, special[:8]):
        case.vector[command.s_a_row, 0] = s_a
    bench.check(case, bench.run(executable, case, tmp_path))


def test_two_poison_seeds_give_equal_bits(nano, tmp_path):
    chosen, executable = nano
    case = random_case(chosen, 20, 6)
    one, two = (bench.run(executable, case, tmp_path, poison=poison) for poison in (1, 2))
    assert np.array_equal(one.rows, two.rows) and np.array_equal(one.done, two.done)


@pytest.mark.parametrize(
    ("sizes", "words_per_stripe"),
    [
        # K = 576 at 4 bits: 36 slices + 6 metadata words.
        (dict(bits=4, scales=False, stripes=12, slices=36), 42),
        # With channel scales one word more in two stripes.
        (dict(bits=4, scales=True, stripes=12, slices=36), 42.5),
        # QK of head size 64: 4 slices of two words.
        (dict(bits=8, scales=False, stripes=16, slices=4), 8),
        (dict(bits=8, scales=True, stripes=16, slices=4), 8.5),
    ],
)
def test_full_rate(nano, sizes, words_per_stripe, tmp_path):
    """A word every cycle from the first to the last, across stripes and commands."""
    chosen, executable = nano
    rng = np.random.default_rng(30)
    commands = [bench.random_command(chosen, rng, pc=i, **sizes) for i in range(8)]
    case = bench.Case.random(chosen, rng, commands)
    result = bench.run(executable, case, tmp_path)
    bench.check(case, result)
    assert result.words == words_per_stripe * sizes["stripes"] * len(commands)
    assert result.last_word - result.first_word + 1 == result.words
    print(f"{1e6 * result.cycles / max(1, result.microseconds):.0f} cycles per second of processor time")


def test_latency(nano, tmp_path):
    """From the last word to the row's write: decode, array, scale unit, and the writer's register."""
    chosen, executable = nano
    rng = np.random.default_rng(31)
    case = bench.Case.random(chosen, rng, [bench.random_command(chosen, rng, pc=1, stripes=1, slices=3)])
    result = bench.run(executable, case, tmp_path)
    bench.check(case, result)
    want = MvUnit.LATENCY + ScaleUnit.latency_cycles(chosen) + MvWriter.LATENCY
    assert result.rows[-1, 0] - result.last_word == want


def bad(**changes) -> bench.Command:
    return bench.Command(pc=77, **changes)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (bad(bits=5), ErrorCode.ILLEGAL),
        (bad(op=0x5F), ErrorCode.ILLEGAL),
        (bad(base=NANO.activation_slices - 1, slices=2), ErrorCode.RANGE),
        (bad(slices=0), ErrorCode.RANGE),
        (bad(stripes=0), ErrorCode.RANGE),
        (bad(slices=MAX_SLICES + 1), ErrorCode.RANGE),
        (bad(slices=0xFFFFFFFF, base=2), ErrorCode.RANGE),
        (bad(row=NANO.vector_rows - 1, stripes=2), ErrorCode.RANGE),
        (bad(row=0xFFFFFFFF, stripes=1), ErrorCode.RANGE),
        (bad(stripes=0x20000001), ErrorCode.RANGE),
        (bad(s_a_row=NANO.vector_rows), ErrorCode.RANGE),
        (bad(s_a_row=7), ErrorCode.NAN),
    ],
)
def test_errors(nano, command, code, tmp_path):
    chosen, executable = nano
    rng = np.random.default_rng(40)
    good = bench.random_command(chosen, rng, pc=1, stripes=2, slices=2)
    good.s_a_row = 8
    case = bench.Case.random(chosen, rng, [good, command])
    case.vector[7, 0] = np.nan
    result = bench.run(executable, case, tmp_path, limit=5000)
    assert [tuple(e[1:]) for e in result.errors] == [(code, 77)]
    # Nothing of a refused command is written.
    assert len(result.rows) <= 2


FAULTS = {
    "multiplier": ("DSP48E2.v", ("assign product = ad_now * b_now;", "assign product = ad_now * (b_now | 18'd1);")),
    "cascade": ("DSP48E2.v", ("OPMODE[4] ? PCIN", "(OPMODE[4] && PCIN[47:40] != 8'h55) ? {PCIN[47:1], 1'b0}")),
    "clip": ("hr_decode_row.v", ("8'h81", "8'h80")),
    "read before write": ("hr_ram_sdp.v", ("mem[w_addr][lane*GRANULARITY", "if (w_addr != 5) mem[w_addr][lane*GRANULARITY")),
}


@pytest.mark.nightly  # a build each; tests/cosim/test_planted_faults.py has faults of this unit in every run
@pytest.mark.parametrize("name", ["clip", "read before write", "multiplier", "cascade"])
def test_planted_faults_are_seen(name, tmp_path):
    chosen = bench.machine("nano")
    file, replacement = FAULTS[name]
    executable = bench.build(chosen, {file: replacement})
    case = random_case(chosen, 1, 10)
    with pytest.raises(AssertionError, match="results differ"):
        bench.check(case, bench.run(executable, case, tmp_path))


@pytest.mark.nightly
def test_micro(tmp_path):
    """Four times nano: four scale lanes, 256 DSPs."""
    chosen = bench.machine("micro")
    executable = bench.build(chosen)
    for seed, pauses in enumerate(PAUSES.values()):
        case = random_case(chosen, 50 + seed, 8)
        bench.check(case, bench.run(executable, case, tmp_path, seed=seed, pauses=pauses))


def test_small_weight_fifo_is_refused():
    with pytest.raises(ValueError, match="weight_fifo_slices = 16 is too small"):
        WeightFifo(machine=load_machine("nano", ["buffers.weight_fifo_slices=16"]))
