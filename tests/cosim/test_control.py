"""Control in Verilator, with dummy units of random latency: random programs, tokens, loops, errors, counters, speed."""

import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from headrace.hw import control as control_file
from headrace.hw.command_queue import CommandQueueParameters
from headrace.hw.control import Control, ControlParameters
from headrace.hw.emit import to_verilog
from headrace.hw.isa import AXIL_ID, IMAGE_MAGIC, Instruction, Op, Operand, Queue
from headrace.hw.machine import load_machine
from headrace.hw.ram import ram_sources
from headrace.hw.sequencer import Sequencer
from headrace.sim.verilate import build_executable

from .control_model import NOPS, Writer, execute

pytestmark = pytest.mark.cosim

WATCHDOG = 1024
PARAMETERS = ControlParameters(
    machine=load_machine("nano", [f"control.watchdog_cycles={WATCHDOG}"]),
    stall_causes=(("memory", "full"), ("memory",), ("weights", "scale"), ("read",)),
)
NAMES = PARAMETERS.counter_names
WORD = PARAMETERS.machine.word_bytes
HEADER_WORD, PROGRAM_WORD = 3, 10


def build(parameters=PARAMETERS, optimise="-O2") -> Path:
    sources = {"control.v": to_verilog(Control(parameters), "control")} | ram_sources()
    main = (Path(__file__).parent / "control_bench.cpp").read_text()
    return build_executable(sources, "control", main, ["-CFLAGS", f"-DWORD_BYTES={parameters.machine.word_bytes}"], optimise=optimise)


@pytest.fixture(scope="module")
def bench():
    return build()


def header(count: int, **changes) -> bytes:
    cap0, cap1 = PARAMETERS.capabilities
    fields = dict(
        magic=IMAGE_MAGIC, image=1, isa=1, contract=1, cap0=cap0, cap1=cap1, base=PROGRAM_WORD, count=count,
        word=WORD, total=4096, table=0, sections=0,
    )  # fmt: skip
    assert set(changes) <= set(fields)
    return b"".join((v & 0xFFFFFFFF).to_bytes(4, "little") for v in (fields | changes).values()).ljust(WORD, b"\0")


def encode(program) -> bytes:
    return b"".join(i if isinstance(i, bytes) else i.encode() for i in program)


class Result:
    """Parsed output of one run of the bench."""

    def __init__(self, text: str):
        self.starts, self.dones, self.trace = [], [], []
        self.counters: dict[str, int] = {}
        self.registers: dict[int, int] = {}
        for line in text.splitlines():
            kind, *rest = line.split()
            values = [float(v) if "." in v else int(v) for v in rest]
            match kind:
                case "S":
                    self.starts.append(values)
                case "D":
                    self.dones.append(values)
                case "T":
                    self.trace.append(values)
                case "Z":
                    self.cycles, self.seconds = values
                case "E":
                    self.status, self.code, self.queue, self.pc = values
                case "C":
                    self.counters[NAMES[values[0]]] = values[1]
                case "A":
                    self.registers[values[0]] = values[1]
                case "B":
                    self.write_responses = values

    @property
    def done(self) -> bool:
        return self.status == 2

    @property
    def error(self) -> tuple:
        assert self.status == 4, f"status {self.status}: no error"
        return self.code, self.queue, self.pc


def run(bench: Path, tmp_path: Path, program, *, image_header=None, **plusargs) -> list[Result]:
    raw = encode(program)
    data = bytes(HEADER_WORD * WORD) + (image_header or header(len(raw) // 32))
    path = tmp_path / "image.bin"
    path.write_bytes(data.ljust(PROGRAM_WORD * WORD, b"\0") + raw)
    arguments = {"image": path, "header": HEADER_WORD, "counters": len(NAMES)} | plusargs
    command = [bench, *(f"+{k}={v}" for k, v in arguments.items())]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    first, *parts = text.split("R ")
    assert first == ""
    return [Result(part.split("\n", 1)[1]) for part in parts]


def check(result: Result, expected) -> None:
    """Raises AssertionError unless starts, retirements and token order are what the model allows."""
    assert result.done, f"status {result.status}, error {result.code} of queue {result.queue} at {result.pc}"
    by_queue = defaultdict(list)
    for entry in expected:
        by_queue[entry[0]].append(entry)
    for queue in Queue:
        entries = by_queue[queue]
        traced = [(pc, sig) for _, q, pc, sig in result.trace if q == queue]
        assert traced == [(pc, sig) for _, pc, _, _, sig in entries], f"retirements of {queue.name}"
        if queue != Queue.SYS:
            started = [(pc, op, flags, *o) for _, q, pc, op, flags, *o in result.starts if q == queue]
            want = [(pc, i.op, i.flags, *o) for _, pc, i, o, _ in entries if i.op not in NOPS.values()]
            assert started == want, f"commands of {queue.name}"
        assert result.counters[f"instructions_{queue.name.lower()}"] == len(entries)

    # Happens-before, from observed cycles: a start needs its tokens from retirements of earlier cycles. The trace
    # counts from the first instruction, the bench from reset: HALT's end of the run does not matter, only order, so
    # units are placed by the bench's clock through their own starts and done pulses.
    offset = clock_offset(result)
    retired_at = {queue: [at + offset for at, q, *_ in result.trace if q == queue] for queue in Queue}
    taken = Counter()
    begins = []
    for queue in Queue:
        starts = iter([at for at, q, *_ in result.starts if q == queue])
        for n, (_, _, instruction, _, _) in enumerate(by_queue[queue]):
            dispatched = queue != Queue.SYS and instruction.op not in NOPS.values()
            begins.append((next(starts) if dispatched else retired_at[queue][n], queue, instruction))
    releases = defaultdict(list)
    for queue in Queue:
        for at, (_, _, instruction, _, _) in zip(retired_at[queue], by_queue[queue], strict=True):
            for q in instruction.release:
                releases[queue, q].append(at)
    for at, queue, instruction in sorted(begins, key=lambda begin: begin[0]):
        for b in instruction.wait:
            available = sum(release < at for release in releases[b, queue])
            taken[b, queue] += 1
            assert taken[b, queue] <= available, f"{queue.name} started in cycle {at} without a token of {b.name}"

    # Within a queue no instruction retires before it started, and counters partition the cycles.
    for unit, parts in PARAMETERS.partitions().items():
        assert sum(result.counters[part] for part in parts) == result.counters["cycles"], unit
    for unit in ("ld", "st", "mv", "vec"):
        parts = PARAMETERS.partitions()[unit]
        assert sum(result.counters[part] for part in parts[:-2]) == result.counters[f"{unit}_busy"], unit
    assert result.counters["errors"] == 0


def clock_offset(result: Result) -> int:
    """Bench cycle minus trace cycle, from any unit's retirement; a `done` with nothing older retires at once."""
    dones = {(q, pc): [] for _, q, pc, _ in result.dones}
    for at, q, pc, _ in result.dones:
        dones[q, pc].append(at)
    seen = defaultdict(list)
    for at, q, pc, _ in result.trace:
        seen[q, pc].append(at)
    # Units that run one command at a time never keep a done pulse: the offset there is exact.
    offsets = {a - b for key, ats in dones.items() if key[0] in (1, 3) for a, b in zip(ats, seen[key], strict=True)}
    assert len(offsets) <= 1, f"the trace's cycles do not run with the clock: {offsets}"
    return offsets.pop() if offsets else 0


@pytest.mark.parametrize("seed", range(1, 7))
def test_random_programs(bench, tmp_path, seed):
    print("seed", seed)
    program = Writer(seed).write(blocks=6, length=25)
    for result in run(bench, tmp_path, program, seed=seed, runs=2):
        check(result, execute(program))


def test_random_program_without_delays(bench, tmp_path):
    program = Writer(99).write(blocks=6, length=25)
    check(run(bench, tmp_path, program, calm=1)[0], execute(program))


def sequence(*program):
    return [*program, Instruction(Op.HALT)]


def registers_set(count: int):
    return [Instruction(Op.SET, [Operand(i)], 1 + i % 20) for i in range(count)]


def timed(bench, tmp_path, program) -> int:
    result = run(bench, tmp_path, program, calm=1)[0]
    assert result.done
    return result.counters["cycles"]


def test_cycles_per_instruction(bench, tmp_path):
    n = 64
    base = timed(bench, tmp_path, sequence())
    costs = {
        "unit": [Instruction((Op.LDW, Op.MV)[i % 2], [1], 4) for i in range(n)],
        "set": registers_set(n),
        "mul": [Instruction(Op.MUL, [Operand(3, 1), Operand(5, 2)], 3) for _ in range(n)],
        "rdv": [Instruction(Op.RDV, [5, 1], 3) for _ in range(n)],
        "taken": [Instruction(Op.BNE, [0, 1, i + 1]) for i in range(n)],
        "not taken": [Instruction(Op.BLT, [1, 1, 0]) for i in range(n)],
    }
    cycles = {name: (timed(bench, tmp_path, sequence(*body)) - base) / n for name, body in costs.items()}
    print(cycles)
    assert cycles["unit"] == pytest.approx(1, abs=0.1)
    assert cycles["set"] == 2 and cycles["not taken"] == 2 and cycles["taken"] == 3
    assert cycles["mul"] == 4 and cycles["rdv"] == 6


def test_nop_retires_after_older_commands(bench, tmp_path):
    """The token of a NOP behind a slow command must not come before that command's own end."""
    q = Queue
    program = sequence(
        *[
            step
            for _ in range(20)
            for step in (
                Instruction(Op.LDW, [7]),
                Instruction(Op.LD_NOP, release=frozenset({q.SYS})),
                Instruction(Op.LDV, [7]),
                Instruction(Op.MARK, [1], wait=frozenset({q.LD})),
            )
        ]
    )
    result = run(bench, tmp_path, program, seed=5, latency=60)[0]
    check(result, execute(program))


ILLEGAL = [
    (bytes([0x1F]) + bytes(31), Queue.LD),
    (Instruction(Op.LD_SYS).encode(), Queue.LD),
    (bytes([0x25]) + bytes(31), Queue.ST),
    (Instruction(Op.MV, flags=5).encode(), Queue.MV),
    (Instruction(Op.VEC, flags=8).encode(), Queue.VEC),
    (bytes([0x8D]) + bytes(31), Queue.SYS),
    (bytes([0xFF]) + bytes(31), Queue.SYS),
]


@pytest.mark.parametrize("word, queue", ILLEGAL)
def test_illegal_opcode(bench, tmp_path, word, queue):
    program = [*registers_set(5), Instruction(Op.BNE, [0, 1, 7]), Instruction(Op.HALT), word, Instruction(Op.HALT)]
    result = run(bench, tmp_path, program, seed=2)[0]
    assert result.error == (1, queue, 7)
    assert result.counters["errors"] == 1
    assert [pc for _, q, pc, _ in result.trace] == list(range(6))


@pytest.mark.parametrize(
    "program, pc",
    [
        (sequence(Instruction(Op.SET, [1], 1), Instruction(Op.BNE, [0, 1, 3])), 1),
        (sequence(Instruction(Op.RDV, [4096, 0], 1)), 0),
        (registers_set(9), 9),
    ],
)
def test_range(bench, tmp_path, program, pc):
    assert run(bench, tmp_path, program)[0].error == (2, Queue.SYS, pc)


def test_last_targets_are_legal(bench, tmp_path):
    program = sequence(Instruction(Op.RDV, [4095, 7], 1), Instruction(Op.BNE, [0, 1, 2]))
    check(run(bench, tmp_path, program)[0], execute(program))


def test_token_overflow(bench, tmp_path):
    give = [Instruction(Op.ST_NOP, release=frozenset({Queue.VEC})) for _ in range(16)]
    assert run(bench, tmp_path, sequence(*give))[0].error == (3, Queue.ST, 15)
    assert run(bench, tmp_path, sequence(*give[:15]))[0].done
    sys = [Instruction(Op.SYS_NOP, release=frozenset({Queue.VEC})) for _ in range(16)]
    assert run(bench, tmp_path, sequence(*sys))[0].error == (3, Queue.SYS, 15)


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 0}, {"image": 2}, {"isa": 2}, {"contract": 2}, {"cap0": 1}, {"cap1": 1 << 12 | 7}, {"cap1": 3},
        {"cap1": 3 | 1 << 12 | 1 << 16}, {"word": 32},
    ],
)  # fmt: skip
def test_header(bench, tmp_path, changes):
    program = sequence()
    assert run(bench, tmp_path, program, image_header=header(1, **changes))[0].error == (4, Queue.SYS, 0)


def test_fewer_widths_than_the_machine_has_are_accepted(bench, tmp_path):
    assert run(bench, tmp_path, sequence(), image_header=header(1, cap1=1 << 12 | 1))[0].done


@pytest.mark.parametrize("count", [0, 2049])
def test_program_size(bench, tmp_path, count):
    assert run(bench, tmp_path, sequence(), image_header=header(count))[0].error == (2, Queue.SYS, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 2047, 2048])
def test_program_sizes_load_in_full(bench, tmp_path, count):
    program = [*registers_set(count - 1), Instruction(Op.HALT)]
    check(run(bench, tmp_path, program, seed=count)[0], execute(program))


HANG, FAIL = 1 << 12, 1 << 13


@pytest.mark.parametrize(
    "program, queue, pc",
    [
        # A queue that waits for a token which nobody gives; the others are done or wait for it.
        (sequence(Instruction(Op.LDW), Instruction(Op.VEC, wait=frozenset({Queue.MV}))), Queue.VEC, 1),
        # A unit that never ends.
        (sequence(Instruction(Op.LDW), Instruction(Op.MV, flags=4 | HANG), Instruction(Op.BAR)), Queue.MV, 1),
        # The sequencer itself.
        (sequence(Instruction(Op.LDW), Instruction(Op.SYS_NOP, wait=frozenset({Queue.ST}))), Queue.SYS, 1),
        # Waiting for a token stands before a unit that is busy: LD may be held back by what waits.
        (
            sequence(Instruction(Op.LDW, flags=HANG), Instruction(Op.ST_NOP), Instruction(Op.STV, wait=frozenset({Queue.MV}))),
            Queue.ST,
            2,
        ),
    ],
)
def test_watchdog(bench, tmp_path, program, queue, pc):
    result = run(bench, tmp_path, program, seed=3)[0]
    assert result.error == (5, queue, pc)
    assert WATCHDOG <= result.cycles < WATCHDOG + 600


def test_a_long_wait_is_no_error_while_something_retires(bench, tmp_path):
    spin = [Instruction(Op.SET, [0], 1), Instruction(Op.ADD, [Operand(1, 1)], 1), Instruction(Op.BNE, [Operand(0, 1), 2000, 2])]
    program = sequence(Instruction(Op.VEC, wait=frozenset({Queue.SYS})), *spin, Instruction(Op.SYS_NOP, release=frozenset({Queue.VEC})))
    check(run(bench, tmp_path, program, seed=3)[0], execute(program))


@pytest.mark.parametrize("code", [2, 6, 7])
@pytest.mark.parametrize("op, flags", [(Op.LDW, 0), (Op.STV, 0), (Op.MV, 8), (Op.VEC, 3)])
def test_errors_of_units(bench, tmp_path, code, op, flags):
    program = sequence(*registers_set(3), Instruction(op, [code], flags | FAIL), Instruction(Op.BAR))
    result = run(bench, tmp_path, program, seed=4)[0]
    assert result.error == (code, op.queue, 3)
    assert len(result.trace) == 3 and result.cycles < WATCHDOG


def test_nothing_starts_after_an_error(bench, tmp_path):
    chain = [Instruction(Op.STV, [i], wait=frozenset({Queue.ST})) for i in range(1, 6)]
    program = sequence(Instruction(Op.STV, [2], FAIL, release=frozenset({Queue.ST})), *chain, *[Instruction(Op.LDW)] * 100)
    result = run(bench, tmp_path, program, seed=4, runs=2)
    assert result[0].error == (2, Queue.ST, 0)
    assert [s[2] for s in result[0].starts if s[1] == Queue.ST] == [0]
    # A new start is ignored: sticky until reset.
    assert result[1].error == result[0].error and not result[1].starts


def test_registers_of_the_host(bench, tmp_path):
    result = run(bench, tmp_path, sequence())[0]
    cap0, cap1 = PARAMETERS.capabilities
    slverr = 2 << 32
    assert result.registers == {
        0x00: AXIL_ID, 0x04: 1, 0x08: cap0, 0x0C: cap1, 0x20: 1000003, 0x3C: 8000024, 0x44: slverr, 0xFFC: slverr,
    }  # fmt: skip
    assert cap0 == 128 | 2 << 16 | 8 << 24 and cap1 == 3 | 1 << 12
    assert result.write_responses == [2, 0]


def test_counter_map():
    assert PARAMETERS.counter_map()["cycles"] == 0x80
    assert len(set(PARAMETERS.counter_map().values())) == len(NAMES)


def test_parameters_refuse():
    with pytest.raises(ValueError, match="one for each of LD, ST, MV, VEC"):
        ControlParameters(machine=PARAMETERS.machine, stall_causes=((),))
    with pytest.raises(ValueError, match="some of"):
        ControlParameters(machine=PARAMETERS.machine, stall_causes=((),) * 4, widths=(3,))


def test_speed(bench, tmp_path):
    """Not a pass mark for slow machines: prints cycles per second of control alone, and wants it off the critical path."""
    n = 30000
    loop = [
        Instruction(Op.SET, [0], 1),
        Instruction(Op.LDW, [Operand(5, 1)]),
        Instruction(Op.MV, [Operand(5, 1)], 4),
        Instruction(Op.VEC, [Operand(5, 1)], 1),
        Instruction(Op.ADD, [Operand(1, 1)], 1),
        Instruction(Op.BNE, [Operand(0, 1), n, 1]),
    ]
    result = run(bench, tmp_path, sequence(*loop), calm=1, quiet=1, limit=10**7)[0]
    assert result.done
    print(f"control alone: {result.cycles / result.seconds:,.0f} cycles/s over {result.cycles} cycles")


def faulty(name, *statements):
    """A Control in which `statements(component)` override the last assignments of the submodule class `name`."""
    original = getattr(control_file, name)

    class Faulty(original):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            for statement in statements:
                statement(m, self)
            return m

    return Faulty


FAULTS = {
    "tokens ignored": ("TokenCounters", lambda m, c: m.d.comb.__iadd__(c.ok.eq(0b11111))),
    "wrong releases": ("CommandQueue", lambda m, c: m.d.comb.__iadd__(c.retire.release.eq(c.retire.sig[:5]))),
    "operand 7 stuck": ("Sequencer", lambda m, c: m.d.comb.__iadd__(c.push.command.o7.eq(0))),
    "branch target one off": ("Sequencer", lambda m, c: m.d.comb.__iadd__(c.redirect.target[0].eq(0))),
}


@pytest.mark.nightly  # a build each; tests/cosim/test_planted_faults.py has faults of control in every run
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_fail(monkeypatch, tmp_path, fault):
    name, statement = FAULTS[fault]
    monkeypatch.setattr(control_file, name, faulty(name, statement))
    bench = build(optimise="-O0")
    program = Writer(1).write(blocks=6, length=25)
    with pytest.raises(AssertionError):
        check(run(bench, tmp_path, program, seed=1)[0], execute(program))


@pytest.mark.filterwarnings("ignore:.*created but never used")
def test_blocks_refuse():
    with pytest.raises(ValueError, match="some of 4 and 8"):
        Sequencer(widths=(), vector_rows=64, lanes=8)
    with pytest.raises(ValueError, match="power of two"):
        CommandQueueParameters(depth=3)
