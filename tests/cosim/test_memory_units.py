"""LdUnit, StUnit, buffers and simulated memory against their numpy twin, with random stalls on every handshake."""

import numpy as np
import pytest
from cosim.memory_twin import MemoryTwin

from headrace.hw.isa import ErrorCode, Instruction, Op, Queue
from headrace.hw.ld_unit import LdUnit
from headrace.hw.machine import load_machine
from headrace.models.errors import UserError
from headrace.sim.memory_bench import build_bench, measure_deliverable, run_bench

pytestmark = pytest.mark.cosim

MACHINE = load_machine("nano")
DEPTH_BEATS = 1 << 20


def used_beats(machine) -> int:
    """What the random programs touch. First half: only read; second half: written, in quarters that take turns."""
    return machine.memory.ports << 12


@pytest.fixture(scope="module")
def bench():
    return build_bench(MACHINE, depth_beats=DEPTH_BEATS)


def twin_of(machine, memory):
    return MemoryTwin(
        memory, ports=machine.memory.ports, stripe_rows=machine.stripe_rows,
        vector_rows=machine.buffers.vector_rows, activation_slices=machine.buffers.activation_slices,
    )  # fmt: skip


def random_program(machine, rng) -> list[Instruction | None]:
    """LD and ST mixed without waits inside a phase: they use opposite halves of VB, AB and the written memory."""
    rows, slices = machine.buffers.vector_rows // 2, machine.buffers.activation_slices // 2
    ports, stripe = machine.memory.ports, machine.stripe_rows
    quarter = used_beats(machine) // 4
    # First everything that ST may read is loaded; the last row and slice belong to the bench.
    program = [Instruction(Op.LDV, (0, 2 * rows // ports - 1, 1, 0, 0))]
    program += [Instruction(Op.LDA, (0, 1, 2 * slices - 1, 3, 0, 1)), None]
    for phase in range(6):
        ld_half, st_half = phase % 2, 1 - phase % 2
        row0, slice0 = ld_half * rows, ld_half * slices
        read_words = used_beats(machine) // 2 // ports
        batch = []
        for _ in range(rng.integers(3, 9)):
            count, words = int(rng.integers(0, 5)), int(rng.integers(0, 40))
            stride = int(rng.integers(0, 300))
            base = int(rng.integers(0, read_words - 40 - 4 * 300))
            kind = rng.integers(0, 6)
            if kind <= 1:
                batch.append(Instruction(Op.LDW, (base, words, count, stride)))
            elif kind == 2:
                # A negative stride wraps modulo 2**32.
                batch.append(Instruction(Op.LDW, (base + 4 * stride, words, count, (-stride) % 2**32)))
            elif kind == 3:
                batch.append(Instruction(Op.LDV, (base, 2 * words // ports, count, stride, row0 + int(rng.integers(0, rows - 330)))))
            elif kind == 4:
                n = int(rng.integers(0, 20))
                base = int(rng.integers(0, read_words - 20 * 60))
                batch.append(Instruction(
                    Op.LDA, (base, 1, n, stride % 60, slice0 + int(rng.integers(0, slices - 21)), int(rng.integers(0, 2 * ports)))
                ))  # fmt: skip
            else:
                batch.append(Instruction((Op.LD_SYS, Op.LD_NOP)[int(rng.integers(2))], (base, words, count, stride)))
        row0, slice0, beat0 = st_half * rows, st_half * slices, (2 + st_half) * quarter
        for _ in range(rng.integers(2, 6)):
            kind = rng.integers(0, 5)
            row, piece = row0 + int(rng.integers(0, rows - 200)), slice0 + int(rng.integers(0, slices - 21))
            if kind == 0:
                n = int(rng.integers(0, 60))
                batch.append(Instruction(Op.STV, (beat0 + int(rng.integers(0, quarter - n)), row, n)))
            elif kind == 1:
                n, step = int(rng.integers(0, 40)), int(rng.integers(0, 40))
                at = 8 * beat0 + int(rng.integers(0, 8 * quarter - 1 - 40 * 40))
                batch.append(Instruction(Op.STS, (at, row, n, int(rng.integers(0, 5)), step)))
            elif kind == 2:
                per_head, heads = int(rng.integers(0, 5)), int(rng.integers(0, 5))
                at = 2 * beat0 + int(rng.integers(0, quarter))
                batch.append(Instruction(Op.STK, (at, piece, per_head, heads, int(rng.integers(0, 200)))))
            elif kind == 3:
                per_head, heads = int(rng.integers(0, 5)), int(rng.integers(0, 5))
                at = 2 * beat0 + 2 * int(rng.integers(0, quarter // 2))
                strides = [2 * int(rng.integers(0, 30)) for _ in range(2)]
                lane = int(rng.integers(0, 16))
                batch.append(Instruction(Op.STT, (at, piece, per_head, heads, strides[0], lane, stripe + strides[1])))
            else:
                batch.append(Instruction(Op.ST_NOP))
        rng.shuffle(batch)
        program += [*batch, None]
    return program


def run_and_compare(machine, bench, tmp_path, seed, gate_percent, sink_percent):
    """Empty where the bench and the twin agree, else what differs."""
    rng = np.random.default_rng(seed)
    beats = used_beats(machine)
    image = rng.integers(0, 256, (beats, 32), dtype=np.uint8)
    image.tofile(tmp_path / "image")
    program = random_program(machine, rng)
    twin = twin_of(machine, image.copy())
    for pc, instruction in enumerate(program):
        if instruction is not None:
            twin.run(pc, instruction)
    result = run_bench(
        bench, machine, program, image=tmp_path / "image", dump=(tmp_path / "dump", 0, beats), poison=seed + 1,
        seed=seed, gate_percent=gate_percent, sink_percent=sink_percent,
    )  # fmt: skip
    dump = np.fromfile(tmp_path / "dump", np.uint8).reshape(-1, 32)
    differences = []
    for queue in (Queue.LD, Queue.ST):
        got = [(e.pc, e.value) for e in result.events if e.kind == "done" and e.queue == queue]
        if got != twin.of_queue(queue):
            wrong = [pair for pair in zip(got, twin.of_queue(queue), strict=False) if pair[0] != pair[1]]
            differences.append(f"{queue.name}: {len(got)} of {len(twin.of_queue(queue))} retirements, first wrong {wrong[:1]}")
    for name in ("weights", "sys"):
        got, expected = getattr(result, name), np.array(getattr(twin, name), np.uint8).reshape(-1, machine.word_bytes)
        if not np.array_equal(got, expected):
            differences.append(f"{name}: {got.shape[0]} words, expected {expected.shape[0]}, or other bytes")
    if dump.shape != twin.memory.shape or not np.array_equal(dump, twin.memory):
        differences.append("memory")
    if any(e.kind == "error" for e in result.events):
        differences.append("an error event")
    return differences


@pytest.mark.parametrize(("seed", "gates", "sink"), [(1, 100, 100), (2, 60, 50), (3, 30, 90), (4, 85, 15), (5, 50, 50), (6, 95, 95)])
def test_random_programs(bench, tmp_path, seed, gates, sink):
    print(f"seed {seed}, gates open {gates}%, sinks ready {sink}%")
    assert run_and_compare(MACHINE, bench, tmp_path, seed, gates, sink) == []


@pytest.mark.nightly  # a build of its own
def test_planted_fault_is_seen(tmp_path):
    """A store that takes the strobe of byte 0 for all bytes of a beat."""
    faulty = build_bench(
        MACHINE, depth_beats=DEPTH_BEATS, replace={"hr_sim_store.v": ("if (w_strb[p*32 + i])", "if (w_strb[p*32])")}
    )
    assert "memory" in run_and_compare(MACHINE, faulty, tmp_path, 1, 100, 100)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("micro", []),
        ("nano", ["memory.p=2", "memory.q=3", "memory.burst_beats=4", "memory.read_latency_cycles=45"]),
    ],
)
def test_other_machines(tmp_path, name, overrides):
    """Eight ports; a memory slower than the core, with short bursts."""
    machine = load_machine(name, overrides)
    bench = build_bench(machine, depth_beats=DEPTH_BEATS)
    for seed, gates, sink in ((11, 100, 100), (12, 60, 60)):
        print(f"seed {seed}")
        assert run_and_compare(machine, bench, tmp_path, seed, gates, sink) == []
    result = measure_deliverable(machine)
    print(result)
    # Four-beat bursts leave 32 words of credit: less than the latency, so they and not refresh set the rate.
    if machine.memory.burst_beats == 16:
        assert abs(result.fraction - result.expected_fraction) < 0.002
    else:
        assert 0.5 < result.fraction < result.expected_fraction


WORDS = DEPTH_BEATS // MACHINE.memory.ports
ROWS, SLICES = MACHINE.buffers.vector_rows, MACHINE.buffers.activation_slices


@pytest.mark.parametrize(
    ("instruction", "code"),
    [
        (Instruction(Op.LDW, (WORDS - 3, 4, 1, 0)), ErrorCode.RANGE),
        (Instruction(Op.LDW, (0, 1, 3, WORDS // 2)), ErrorCode.RANGE),
        (Instruction(Op.LDW, (2**32 - 1, 2, 1, 0)), ErrorCode.RANGE),
        (Instruction(Op.LDV, (0, 4, 1, 0, ROWS - 7)), ErrorCode.RANGE),
        (Instruction(Op.LDA, (0, 1, 4, 1, SLICES - 3, 0)), ErrorCode.RANGE),
        (Instruction(Op.LDA, (0, 1, 4, 1, 0, 2 * MACHINE.memory.ports)), ErrorCode.RANGE),
        (Instruction(Op.STV, (DEPTH_BEATS - 2, 0, 3)), ErrorCode.RANGE),
        (Instruction(Op.STV, (0, ROWS - 2, 3)), ErrorCode.RANGE),
        (Instruction(Op.STS, (8 * DEPTH_BEATS - 1, 0, 2, 1, 1)), ErrorCode.RANGE),
        (Instruction(Op.STK, (0, SLICES - 3, 4, 1, 0)), ErrorCode.RANGE),
        (Instruction(Op.STT, (0, 0, 1, 1, 0, 16, 8)), ErrorCode.RANGE),
        (Instruction(Op.STT, (1, 0, 1, 1, 0, 0, 8)), ErrorCode.RANGE),
        (Instruction(Op.STT, (0, 0, 1, 1, 0, 0, 9)), ErrorCode.RANGE),
    ],
)
def test_range_errors(bench, instruction, code):
    """The error names the instruction; nothing retires after it, not even what was already queued."""
    before = Instruction(Op.LDW, (0, 3, 1, 0)) if instruction.op.queue == Queue.LD else Instruction(Op.STV, (0, 0, 3))
    result = run_bench(bench, MACHINE, [before, None, instruction, before])
    events = [(e.kind, e.queue, e.pc) for e in result.events]
    queue = instruction.op.queue
    assert events == [("done", queue, 0), ("error", queue, 2)]
    assert result.events[-1].value == code


def test_illegal_opcodes(bench):
    class Opcode(int):
        queue = Queue.LD

    for queue, opcode in ((Queue.LD, 0x05), (Queue.ST, 0x25)):
        op = Opcode(opcode)
        op.queue = queue
        result = run_bench(bench, MACHINE, [Instruction(op, (0, 1, 1, 0))])
        assert [(e.kind, e.queue, e.pc, e.value) for e in result.events] == [("error", queue, 0, ErrorCode.ILLEGAL)]


def test_latency_of_a_word(bench):
    """With no refresh in the way, a word takes LdUnit.LATENCY and the memory's read latency; no cycle more."""
    quiet = [None] * (MACHINE.trefi_cycles // MACHINE.memory.ports - 100)  # an idle barrier takes one cycle
    result = run_bench(bench, MACHINE, [*quiet, Instruction(Op.LDW, (5, 1, 1, 0))])
    assert result.weight_cycles[0] - len(quiet) == LdUnit.LATENCY + MACHINE.memory.read_latency_cycles


@pytest.mark.parametrize("commands", [1, 256])
def test_sequential_loads_lose_nothing_but_refresh(commands):
    """Port FIFOs ride out the staggered refreshes, and there is no bubble between commands."""
    result = measure_deliverable(MACHINE, commands=commands)
    print(result)
    assert abs(result.fraction - result.expected_fraction) < 0.002


def test_rows_and_single_words_at_full_rate(bench):
    """LDV moves a row and LDA a slice a cycle: refresh may cost tRFC per port and tREFI."""
    rows = 4000
    result = run_bench(bench, MACHINE, [Instruction(Op.LDV, (0, rows // MACHINE.memory.ports, 1, 0, 0))])
    assert rows < result.cycles < rows + 2 * MACHINE.trfc_cycles + 100
    result = run_bench(bench, MACHINE, [Instruction(Op.LDA, (0, 1, 200, 7, 0, 1))])
    assert 200 < result.cycles < 200 + 2 * MACHINE.trfc_cycles + 100


def test_stores_at_one_beat_a_cycle(bench):
    result = run_bench(bench, MACHINE, [Instruction(Op.STV, (0, 0, 3000))])
    # One beat at a time over all ports, so each port's refresh stops the stream once its registers are full.
    blocked = MACHINE.memory.ports * MACHINE.trfc_cycles / MACHINE.trefi_cycles
    assert 3000 < result.cycles < 3000 / (1 - blocked) + 200
    assert result.stalls["st_buffer"] == 0


def test_a_missing_image_is_refused(bench, tmp_path):
    with pytest.raises(RuntimeError, match="cannot open image"):
        run_bench(bench, MACHINE, [], image=tmp_path / "none")


def test_poison_fills_the_rest(bench, tmp_path):
    """Memory past the image differs by seed, and is nowhere zero."""
    dumps = []
    for poison in (1, 2, 1):
        run_bench(bench, MACHINE, [], dump=(tmp_path / "dump", 100, 64), poison=poison)
        dumps.append(np.fromfile(tmp_path / "dump", np.uint32))
    assert dumps[0].size == 64 * 8 and (dumps[0] != 0).all()
    assert np.array_equal(dumps[0], dumps[2]) and (dumps[0] != dumps[1]).any()


def test_the_bench_refuses_dram():
    with pytest.raises(UserError, match="memory.dram = 'u280-hbm2'"):
        build_bench(load_machine("nano", ["memory.dram=u280-hbm2"]), depth_beats=DEPTH_BEATS)
