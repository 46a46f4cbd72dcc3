"""The analytic level: hand-computed cases, agreement with the compiler's counts, a word-by-word FIFO, monotonicity, vectors."""

import dataclasses

import numpy as np
import pytest

from headrace.hw.isa import Instruction, Op, Operand, Program, Queue
from headrace.hw.machine import Machine, load_machine
from headrace.hw.sfu_timing import sfu_cycles
from headrace.mapping import analytic
from headrace.mapping.analytic import (
    MachineColumns, WeightFlow, cache_stream, decode, linear_stream, prefill, step, step_cycles, vec_cycles,
)
from headrace.mapping.analytic_events import step_events
from headrace.mapping.analytic_timing import MV_FRONT_CYCLES, MV_START_CYCLES, RAW_FIFO_CYCLES, SYS_CYCLES, SYS_DEFAULT_CYCLES
from headrace.mapping.plan import make_plan, unplaced
from headrace.mapping.program import generate
from headrace.mapping.placement import cache_geometry, linear_words
from headrace.mapping.required import useful_macs
from headrace.models.decoder import LINEAR_NAMES
from headrace.models.graph import build_graph
from headrace.models.registry import model_config
from headrace.sim.cycle import simulate

W4 = dict.fromkeys(LINEAR_NAMES, 4)
W8 = dict.fromkeys(LINEAR_NAMES, 8)
MODELS = ("embedded", "smollm2-135m")


def machine(**changes) -> Machine:
    """`nano` with fields changed, dots as double underscores."""
    return load_machine("nano", [f"{name.replace('__', '.')}={value}" for name, value in changes.items()])


QUIET = {"memory__trfc_ns": 0}


def test_rate_is_the_port_rate_less_refresh():
    nano = MachineColumns.of(load_machine("nano"))
    # 3900 ns and 350 ns at 225 MHz are 877 and 79 cycles; 128 words in flight hide the second port's refresh.
    assert nano.words_per_cycle == pytest.approx(1 - 79 / 877)
    assert MachineColumns.of(machine(**QUIET)).words_per_cycle == 1
    assert MachineColumns.of(machine(memory__p=1, memory__q=2, **QUIET)).words_per_cycle == 0.5


def test_too_few_words_in_flight_bound_the_rate_by_latency():
    few = MachineColumns.of(machine(memory__outstanding_bursts=1, memory__burst_beats=16, **QUIET))
    assert few.words_per_cycle == pytest.approx(16 / (2 + 32 + 3 + 1))


def test_a_first_word_waits_for_refreshes_as_a_walk_over_all_times_says():
    for ports in (1, 2, 8, 16):
        m = dataclasses.replace(MachineColumns.of(machine()), ports=ports)
        times = np.arange(0, 877, 0.25)
        since = (times[:, None] - np.arange(ports) * 877 / ports) % 877
        wait = np.where(since < 79, 79 - since, 0).max(axis=1)
        assert m.refresh_wait == pytest.approx(wait.mean(), rel=0.01)


def test_one_segment_by_hand():
    m = MachineColumns.of(machine(**QUIET))
    flow = WeightFlow(m, loaded=0.0)
    flow.hold(100)
    taken, memory = flow.multiply(50, 50, ready=0)
    # 2 to the first AR, 32 to its first beat, 3 in the port FIFO, 50 words, 3 in the raw FIFO.
    assert taken == 100 + 2 + 32 + 3 + 50 + RAW_FIFO_CYCLES
    assert memory


def test_prefetched_words_are_taken_at_array_rate():
    m = MachineColumns.of(machine())
    flow = WeightFlow(m, loaded=0.0)
    taken, memory = flow.multiply(600, 600, ready=10_000)  # fewer than the 640 that the FIFOs hold
    assert (taken, memory) == (10_600, False)
    taken, memory = flow.multiply(10_000, 10_000, ready=taken)
    assert memory
    # 10,600 words from 10,000 on, of which 640 were there.
    assert taken == pytest.approx(10_000 + (10_600 - 640) * 877 / (877 - 79) + RAW_FIFO_CYCLES)


@pytest.mark.parametrize("seed", range(12))
def test_fluid_equals_a_word_by_word_fifo(seed):
    """Words one by one: loaded at rho with at most F ahead of the array, taken one a cycle from each segment's start on."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    m = MachineColumns.of(machine())
    rho, ahead = float(m.words_per_cycle), int(m.prefetch_words)
    flow = WeightFlow(m, loaded=0.0)
    load, take, starts, taken_at = 0.0, 0.0, 0.0, []
    for _ in range(14):
        words, ready = int(rng.integers(1, 1500)), starts + float(rng.integers(0, 1200))
        if rng.random() < 0.25:  # LD waits for a token
            hold = starts + float(rng.integers(0, 600))
            flow.hold(hold)
            load = max(load, hold + float(m.restart_cycles))
        got, _ = flow.multiply(words, words, ready)
        begin = max(take, ready)
        for i in range(words):
            space = taken_at[len(taken_at) - ahead] if len(taken_at) >= ahead else 0.0
            load = max(load + 1 / rho, space)
            take = max(take + 1, begin + i + 1, load + RAW_FIFO_CYCLES)
            taken_at.append(take)
        assert got == pytest.approx(take, abs=45)  # the fluid restarts after a full FIFO without the pipeline's latency
        starts = take


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("preset", ["nano", "micro"])
def test_words_are_the_compilers(name, preset):
    config, m = model_config(name), load_machine(preset)
    columns = MachineColumns.of(m)
    for bits in (4, 8):
        for linear in LINEAR_NAMES:
            shape = config.linear_shape(linear)
            assert linear_stream(columns, *shape, bits).words == linear_words(m, *shape, bits)
    geometry = cache_geometry(config, m, 128)
    whole = cache_stream(config, columns, geometry.capacity)
    assert whole.key_words == geometry.k_head_words
    assert whole.value_words == geometry.v_head_words
    assert whole.scale_words == geometry.s_head_words


@pytest.mark.parametrize("name", MODELS)
def test_sys_instructions_are_the_programs(name):
    config, m = model_config(name), load_machine("nano")
    plan = make_plan(config, m, W4, 128, 16)
    program = generate(plan, unplaced(plan))
    bars = [i for i, item in enumerate(program) if item.op == Op.BAR]
    loop = next(i for i, item in enumerate(program) if item.comment == "seed")
    position = program[max(b for b in bars if b < loop) :: -1]
    position = position[1 : next(i for i, item in enumerate(position[1:], 1) if item.op == Op.BAR)]
    sys_ops = [item.op for item in position if item.op.queue == Queue.SYS]
    assert sys_ops.count(Op.MUL) == analytic.POSITION_MUL
    assert len(sys_ops) - sys_ops.count(Op.MUL) == analytic.POSITION_ALU
    assert len(position) - len(sys_ops) == analytic.POSITION_UNITS
    assert sum(item.comment == "seed" for item in program[loop : loop + 16]) == analytic.LOOP_NOPS
    prompt = program[bars[1] + 3 : bars[2]]  # after the two branches that find where the token is
    assert [item.op for item in prompt if item.op.queue == Queue.SYS].count(Op.RDV) == 1
    assert sum(item.op in (Op.SHR, Op.AND) for item in prompt) == analytic.PROMPT_ALU
    assert Op.RDV in SYS_CYCLES and SYS_DEFAULT_CYCLES == 2


def test_events_count_the_programs_instructions_and_words():
    """Instructions of the layer loop, and the words of its constant loads, from the program itself."""
    config, m = model_config("smollm2-135m"), load_machine("nano")
    plan = make_plan(config, m, W4, 128, 16)
    program = generate(plan, unplaced(plan))
    first = next(i for i, item in enumerate(program) if item.comment == "norm weights")
    last = next(i for i, item in enumerate(program) if item.comment == "loop layer")
    one, two = (
        step_events(dataclasses.replace(config, layers=n), W4, m, np.array([40]), lm_head=False)["instructions"][0] for n in (1, 2)
    )
    assert two - one == last - first + 1
    # A whole pass: every linear once, keys and values once per head, value scales, norms, embedding, tables.
    words = sum(linear_words(m, *config.linear_shape(name), 4) for name in LINEAR_NAMES)
    context = 40
    keys = (5 * 8 + 3) * config.heads  # 5 stripes of 4 slices of 2 words; 3 scale words
    values = 8 * 3 * 2 * config.heads
    layer = words + keys + values + 3 * 3 + 2 * 36
    events = step_events(config, W4, m, np.array([context]), lm_head=False)
    assert events["read_beats"][0] == 2 * (30 * layer + 1 + 36 + 2 * 2)
    assert events["write_beats"][0] == 30 * (3 * 4 + 3 + 3 * 32 + 3)


def test_starts_of_mvs_are_the_cycle_simulators():
    """Three MVs whose words are all there: they start a front apart, and the first retires its words and its tail after its start."""
    nano, words = load_machine("nano"), 2

    def instruction(op, *operands, flags=0):
        return Instruction(op, tuple(Operand(value) for value in operands), flags)

    wait = [instruction(Op.SET, 0, flags=1)] * 200
    products = [instruction(Op.MV, 0, 0, 100, 1, 1, flags=8)] * 3
    ran = simulate([instruction(Op.LDW, 0, 3 * words, 1, 0), *wait, *products, instruction(Op.HALT)], nano)
    started, retired = (times[ran.op == Op.MV] for times in (ran.started, ran.retired))
    assert np.diff(started).tolist() == [MV_FRONT_CYCLES] * 2
    assert retired[0] - started[0] == MV_START_CYCLES + words + MachineColumns.of(nano).mv_tail_cycles


def test_vec_cycles_split_repetitions():
    assert vec_cycles(Program.ROPE, 32, 40) == 2 * sfu_cycles(Program.ROPE, 32, 16) + sfu_cycles(Program.ROPE, 32, 8)
    lengths = np.array([[5, 5], [200, 31]])
    assert np.array_equal(vec_cycles(Program.SOFTMAX, lengths, 4), [[sfu_cycles(3, int(n), 4) for n in row] for row in lengths])


@pytest.mark.parametrize("name", MODELS)
def test_operators_sum_to_the_step_and_cycles_exceed_the_bounds(name):
    config, m = model_config(name), load_machine("nano")
    for lm_head in (False, True):
        at = step(config, W4, m, 77, lm_head=lm_head)
        assert sum(float(op.cycles) for op in at.ops.values()) == pytest.approx(float(at.cycles))
        assert all(float(op.cycles) >= 0 for op in at.ops.values())
        events = step_events(config, W4, m, np.array(77), lm_head=lm_head)
        assert at.cycles >= events["mac_slices"]
        assert at.cycles >= events["read_beats"] / m.memory.ports
        assert events["mac_slices"] * m.array.macs_per_cycle >= useful_macs(config, 77, lm_head=lm_head)
        assert useful_macs(config, 77, lm_head=lm_head) == build_graph(config).macs(tokens=1, context=77, logits=int(lm_head))


def test_smollm2_step_lies_between_its_weights_and_a_fifth_more_at_short_context():
    """89.7 MB of weights are 1.40 M words; refresh makes them 1.54 M cycles; the rest is exposed vector work."""
    cycles = float(step_cycles(model_config("smollm2-135m"), W4, load_machine("nano"), 20))
    assert 1.54e6 < cycles < 1.9e6


def test_layers_beyond_the_second_repeat_it():
    config, m = model_config("smollm2-135m"), MachineColumns.of(load_machine("nano"))
    timeline = analytic._Timeline()
    flow = WeightFlow(m)
    analytic._embedding(config, m, timeline, flow, False)
    layer = analytic._Layer(config, W4, m, np.asarray(100), timeline, flow)
    ends = []
    for _ in range(6):
        layer.run()
        ends.append(float(timeline.now))
    periods = np.diff(ends)
    assert np.allclose(periods, periods[0], rtol=0.002)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        ({"memory__p": 1, "memory__q": 2}, {"memory__p": 1, "memory__q": 1}),
        ({"memory__p": 2, "memory__q": 3}, {"memory__p": 3, "memory__q": 4}),
        ({"memory__ports": 1}, {"memory__ports": 2}),
        ({"memory__read_latency_cycles": 200}, {"memory__read_latency_cycles": 32}),
        ({"memory__trfc_ns": 1000}, {"memory__trfc_ns": 350}),
        ({"buffers__raw_fifo_words": 128}, {"buffers__raw_fifo_words": 1024}),
        ({"memory__outstanding_bursts": 1}, {"memory__outstanding_bursts": 8}),
        ({"control__queue_depth": 2}, {"control__queue_depth": 16}),
    ],
)  # fmt: skip
def test_more_is_never_slower(name, slow, fast):
    config = model_config(name)
    for bits in (W4, W8):
        for context in (1, 17, 130):
            before, after = (float(step_cycles(config, bits, machine(**change), context)) for change in (slow, fast))
            assert after <= before


@pytest.mark.parametrize("name", MODELS)
def test_more_macs_are_never_slower_unless_they_cost_metadata_words(name):
    """A wider stripe of 4-bit codes may fill its metadata words worse: 8 rows put 3 groups in a word of 512 bits, 16 rows 1 group, so
    that the same codes bring 1 metadata word in 4 code words instead of 1 in 6. That schedule is slower, and rightly so."""
    config, narrow, wide = model_config(name), machine(), machine(array__macs_per_cycle=256)
    assert float(step_cycles(config, W8, wide, 40)) <= float(step_cycles(config, W8, narrow, 40))
    per_code = [
        (linear_stream(MachineColumns.of(m), 1024, 1536, 4).words - 64) / (1024 * 1536 / 128) - 1 for m in (narrow, wide)
    ]
    assert per_code == pytest.approx([1 / 6, 1 / 4])


@pytest.mark.parametrize("name", MODELS)
def test_narrower_weights_and_shorter_contexts_are_never_slower(name):
    config, m = model_config(name), load_machine("nano")
    contexts = np.arange(1, 300)
    four, eight = step_cycles(config, W4, m, contexts), step_cycles(config, W8, m, contexts)
    assert (four <= eight).all()
    assert (np.diff(four) >= 0).all()


def test_arrays_of_machines_and_contexts_equal_single_calls():
    config = model_config("embedded")
    machines = [machine(), machine(memory__ports=1), machine(array__macs_per_cycle=256, memory__read_latency_cycles=60),
                load_machine("micro")]  # fmt: skip
    contexts = np.array([1, 16, 100])
    together = step_cycles(config, W4, MachineColumns.stack(machines), contexts)
    alone = [[float(step_cycles(config, W4, m, int(c))) for c in contexts] for m in machines]
    assert together.shape == (4, 3)
    assert np.allclose(together, alone, rtol=1e-12)


def test_phases_are_sums_of_passes():
    config, m = model_config("embedded"), load_machine("nano")
    first = prefill(config, W4, m, 5)
    passes = [float(step_cycles(config, W4, m, t, lm_head=t == 5, prompt=True)) for t in range(1, 6)]
    assert np.allclose(first.passes, passes)
    assert float(first.cycles) == pytest.approx(sum(passes))
    later = decode(config, W4, m, 6, 3)
    assert float(later.cycles) == pytest.approx(sum(float(step_cycles(config, W4, m, t)) for t in (6, 7, 8)))
    assert sum(float(op.cycles) for op in later.ops().values()) == pytest.approx(float(later.cycles))
    assert later.ops()["q"].count == 3 * config.layers
