"""The cycle simulator against the RTL: every retirement and every counter, on random programs and on a compiled model."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from models_for_tests import random_model
from random_programs import RandomProgram

import headrace.configs
from headrace.hw.isa import INSTRUCTION_BYTES, Instruction, Op, Queue
from headrace.hw.machine import load_machine
from headrace.mapping.compiler import compile_model
from headrace.sim.cosim import run_image
from headrace.sim.cycle import simulate

pytestmark = pytest.mark.cosim

NANO = load_machine("nano")
SLOW = load_machine(
    "nano", ["memory.p=3", "memory.q=4", "memory.read_latency_cycles=71", "memory.trefi_ns=1950", "memory.trfc_ns=260"]
)  # fmt: skip
"""Another memory: three beats in four cycles, more latency, refreshes twice as often."""

BANKS = {name: load_machine("nano", [f"memory.dram={name}", *more]) for name, more in (
    ("u280-hbm2", ()), ("ramulator2-gddr6-14000", ()), ("dramsim3-lpddr4-8gb-x16-2400", ()), ("ramulator2-hbm3-6400", ("memory.outstanding_bursts=32",)),
)}  # fmt: skip
"""DRAM channels behind the ports: all-bank refresh, one and two pseudo-channels, one command bus, per-bank refresh and more bursts under way."""

SHORT, LONG = 5, 150


def check(rtl, ours, what):
    """Cycle for cycle, counter for counter."""
    for queue in Queue:
        theirs = rtl.trace[rtl.trace["queue"] == queue]
        pc, cycle = ours.retirements(queue)
        assert np.array_equal(theirs["pc"], pc), f"{what}: {queue.name} retires other instructions"
        wrong = np.flatnonzero(theirs["cycle"].astype(np.int64) != cycle)
        assert not wrong.size, (
            f"{what}: {queue.name} retirement {wrong[0]} (instruction {pc[wrong[0]]}) in cycle {cycle[wrong[0]]}, "
            f"RTL {theirs['cycle'][wrong[0]]}"
        )
    assert ours.cycles == rtl.cycles
    assert ours.counters == rtl.counters
    assert ours.marks == rtl.marks


def run_random(machine, seed, folder):
    program = RandomProgram(machine, seed)
    path = folder / "random.bin"
    manifest = program.image().write(path)
    rtl = run_image(path, manifest, machine, arguments=(), outputs=1, limit_cycles=10**7, seed=seed)
    ours = simulate(program.instructions, machine, program_word=program.program_section.base)
    print(f"seed {seed}: {len(program.instructions)} instructions, {rtl.cycles} cycles")
    assert len(program.instructions) >= 2000
    check(rtl, ours, f"seed {seed}")


@pytest.mark.parametrize("seed", range(SHORT))
def test_random_programs(seed, tmp_path):
    run_random(NANO, seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SHORT, LONG))
def test_many_random_programs(seed, tmp_path):
    run_random(NANO, seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1000, 1000 + LONG))
def test_random_programs_on_another_memory(seed, tmp_path):
    run_random(SLOW, seed, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_on_dram(seed, tmp_path):
    run_random(BANKS["u280-hbm2"], seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2000, 2025))
@pytest.mark.parametrize("name", BANKS)
def test_many_random_programs_on_dram(name, seed, tmp_path):
    run_random(BANKS[name], seed, tmp_path)


@pytest.mark.nightly
def test_bursts_behind_a_full_read_ring(tmp_path):
    """A burst leaves the address queue with its first beat, for which the ring needs room: until then the port holds 64, and AR waits."""
    document = yaml.safe_load((Path(headrace.configs.__path__[0]) / "memories" / "u280-hbm2.yaml").read_text())
    document |= {"derived": [], "recall": [], "port": document["port"] | {"latency_ns": 300.0}}
    (tmp_path / "far.yaml").write_text(yaml.safe_dump(document))
    machine = load_machine(
        "nano", [f"memory.dram={tmp_path / 'far.yaml'}", "memory.outstanding_bursts=64", "buffers.raw_fifo_words=1024", "clock_hz=900e6"]
    )
    program = RandomProgram(machine, 0, length=64)
    program.instructions = [Instruction(Op.LDA, (0, 1, 60, 512)), Instruction(Op.LDA, (0, 1, 840, 16)), Instruction(Op.HALT)]
    path = tmp_path / "bursts.bin"
    rtl = run_image(path, program.image().write(path), machine, arguments=(), outputs=1, limit_cycles=10**5)
    check(rtl, simulate(program.instructions, machine, program_word=program.program_section.base), "bursts")


@pytest.mark.parametrize("machine", [NANO, BANKS["u280-hbm2"]], ids=["fixed latency", "DRAM"])
def test_compiled_model(machine, tmp_path):
    prompt, outputs = [1, 2, 3], 3
    image = compile_model(random_model(3, bits=4, tie_embeddings=False), machine, prompt, outputs=outputs)
    path = tmp_path / "image.bin"
    manifest = image.write(path)
    rtl = run_image(path, manifest, machine, arguments=(len(prompt), outputs), outputs=outputs, limit_cycles=10**7)
    program = manifest["sections"]["program"]
    raw = path.read_bytes()[program["base"] * machine.word_bytes :]
    instructions = [
        Instruction.decode(raw[i : i + INSTRUCTION_BYTES]) for i in range(0, manifest["instructions"] * INSTRUCTION_BYTES, INSTRUCTION_BYTES)
    ]
    arguments = (len(prompt), outputs)
    values = prompt + rtl.tokens.tolist()  # what the program reads with RDV: the prompt's tokens, then those it found
    check(rtl, simulate(instructions, machine, arguments, values=values, program_word=program["base"]), "model")
    # A planted fault: one cycle more of memory latency, or another DRAM, is seen.
    later = load_machine("nano", [f"memory.read_latency_cycles={NANO.memory.read_latency_cycles + 1}"])
    if machine.memory.dram:
        later = BANKS["ramulator2-gddr6-14000"]
    with pytest.raises(AssertionError, match="retirement"):
        check(rtl, simulate(instructions, later, arguments, values=values, program_word=program["base"]), "later")
