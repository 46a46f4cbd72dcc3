"""Faults planted in the machine and in the image: the comparison with the golden executor sees every one of them.

All faults of `faults.FAULTS` are in one build of the machine, one chosen per run. Blocks that no logit depends on (counters, watchdog)
have their planted faults in their own tests.
"""

import json
import subprocess
import sys
from dataclasses import replace

import faults
import numpy as np
import pytest
from models_for_tests import random_model

from headrace.hw.isa import INSTRUCTION_BYTES, ErrorCode, Instruction, Op, Queue
from headrace.hw.machine import load_machine
from headrace.mapping.compiler import compile_model
from headrace.sim.closed_loop import Proof, golden_run
from headrace.sim.cosim import CosimError, run_image
from headrace.sim.divergence import first_divergence
from headrace.sim.iss import Interpreter

pytestmark = pytest.mark.cosim

NANO = load_machine("nano")
PROMPT = [5, 43]
OUTPUTS = 2
SEED, OTHER_SEED = 1, 77
SIZES = dict(vocab=96, width=64, layers=2, heads=2, kv_heads=1, head_dim=32, ffn=128, tie_embeddings=False)


@pytest.fixture(scope="module")
def image():
    return compile_model(random_model(7, bits=4, **SIZES), NANO, PROMPT, outputs=OUTPUTS)


@pytest.fixture(scope="module")
def golden():
    """Golden's own copy of the model: no image and no program is in reach."""
    return golden_run(random_model(7, bits=4, **SIZES), PROMPT, OUTPUTS)


@pytest.fixture(scope="module")
def run(image, golden, tmp_path_factory):
    """A run on the RTL: run(fault's name, image bytes, seed) gives a Proof."""
    folder = tmp_path_factory.mktemp("image")
    path = folder / "image.bin"
    manifest = image.write(path)

    def run(fault=None, *, raw=None, seed=SEED) -> Proof:
        file = path
        if raw is not None:
            file = folder / "other.bin"
            file.write_bytes(raw)
        result = run_image(
            file, manifest, NANO, arguments=(len(PROMPT), OUTPUTS), outputs=OUTPUTS, seed=seed, limit_cycles=10**6,
            variant=faults.variant(fault),
        )  # fmt: skip
        tokens, logits = golden
        return Proof(rtl=result, golden_tokens=tokens, golden_logits=logits)

    run.manifest, run.raw = manifest, path.read_bytes()
    return run


@pytest.fixture(scope="module")
def reference(image):
    interpreter = Interpreter(NANO, image.bytes(), image.layout.next_word, seed=SEED, arguments=(len(PROMPT), OUTPUTS))
    interpreter.run()
    return interpreter.trace


@pytest.fixture(scope="module")
def clean(run):
    """The same build and every fault off: what the others are measured against."""
    return run()


def test_no_fault_is_equal(clean, reference):
    assert clean.logits_equal and clean.tokens_equal
    assert first_divergence(clean.rtl.trace, reference) is None


# The queue that is first to retire something else than the interpreter. A unit's signature is of what it means to write: where the
# fault comes after it (rows on their way to a buffer, strobes), the queue is that of the first reader.
SEEN_BY = {
    "LdUnit read data": Queue.LD,
    "LdUnit row": Queue.VEC,
    "LdUnit slice": Queue.VEC,
    "raw FIFO": Queue.MV,
    "DecodeRow": Queue.MV,
    "DecodeUnit scale word": Queue.MV,
    "WeightFifo": Queue.MV,
    "ActivationSkew": Queue.MV,
    "DspChain": Queue.MV,
    "Accumulate": Queue.MV,
    "ScaleUnit scales": Queue.MV,
    "ScaleLane": Queue.MV,
    "MvWriter row address": Queue.VEC,
    "SfuLane": Queue.VEC,
    "SfuReduction maximum": Queue.VEC,
    "SfuReduction index": Queue.VEC,
    "SfuSequencer row mask": Queue.VEC,
    "VectorBuffer": Queue.VEC,
    "ActivationBuffer": Queue.MV,
    "StUnit strobe": Queue.LD,
    "CommandQueue": Queue.ST,
    "Sequencer operand": Queue.VEC,
    "AxiLite argument": Queue.SYS,
}
LATCHED = {"TokenCounters": ErrorCode.NAN}
"""Faults that the machine itself finds. Here MV starts before its operands are there; a scale that is poison makes a NaN."""


def test_every_fault_is_listed():
    assert {*SEEN_BY, *LATCHED} == {fault.name for fault in faults.FAULTS}


@pytest.mark.parametrize("name", SEEN_BY)
def test_fault_in_a_block(run, reference, name):
    """The program halts as if nothing were wrong; the logits differ, and the trace names the queue."""
    proof = run(name)
    assert not proof.logits_equal
    assert first_divergence(proof.rtl.trace, reference).queue == SEEN_BY[name]


@pytest.mark.parametrize("name", LATCHED)
def test_fault_that_the_machine_latches(run, name):
    with pytest.raises(CosimError) as caught:
        run(name)
    assert caught.value.code == LATCHED[name]


@pytest.mark.parametrize(
    ("section", "byte", "bit"),
    [
        ("layers", 40 * NANO.word_bytes + 5, 2),  # a weight's code in the first layer
        ("constants", 1 * 32 + 2, 6),  # upper fraction bit of 1/sqrt(head_dim)
        ("rope", 2, 6),  # and of the first cosine
    ],
)
def test_one_bit_of_the_image(run, reference, section, byte, bit):
    raw = bytearray(run.raw)
    raw[run.manifest["sections"][section]["base"] * NANO.word_bytes + byte] ^= 1 << bit
    proof = run(raw=raw)
    assert not proof.logits_equal
    assert first_divergence(proof.rtl.trace, reference).queue == Queue.LD


def same(one, two):
    """Everything that a host reads."""
    return (
        np.array_equal(one.tokens, two.tokens)
        and np.array_equal(one.logits.view(np.uint32), two.logits.view(np.uint32))
        and one.cycles == two.cycles
        and one.counters == two.counters
    )


def test_poison_changes_nothing(run, clean):
    other = run(seed=OTHER_SEED)
    assert other.logits_equal and same(clean.rtl, other.rtl)


@pytest.mark.parametrize(
    "op",
    [
        Op.STK,  # keys are read from the memory's cache without having been appended
        Op.LDA,  # the embedding's codes are read from the activation buffer without having been loaded
    ],
    ids=lambda op: op.name,
)
def test_read_before_write_is_seen_by_poison(run, op):
    """Planted: a program without its instructions `op` (their tokens stay). Two seeds then disagree."""
    section = run.manifest["sections"]["program"]
    start = section["base"] * NANO.word_bytes
    raw = bytearray(run.raw)
    for at in range(start, start + run.manifest["instructions"] * INSTRUCTION_BYTES, INSTRUCTION_BYTES):
        instruction = Instruction.decode(bytes(raw[at : at + INSTRUCTION_BYTES]))
        if instruction.op == op:
            nop = {Queue.LD: Op.LD_NOP, Queue.ST: Op.ST_NOP}[op.queue]
            raw[at : at + INSTRUCTION_BYTES] = replace(instruction, op=nop).encode()
    assert raw != run.raw
    one, two = (run(raw=raw, seed=seed) for seed in (SEED, OTHER_SEED))
    assert not np.array_equal(one.rtl.logits.view(np.uint32), two.rtl.logits.view(np.uint32))
    assert not one.logits_equal and not two.logits_equal


# What each side knows of the other.


def test_rtl_is_given_prompt_ids_only(run, golden, monkeypatch):
    """The simulator's whole input: an image that ends where the machine's own sections begin, the lengths, the seed."""
    seen = {}

    class Stop(Exception):
        pass

    def spy(*_, plusargs, env, **how):
        seen.update(plusargs=plusargs, env=env)
        raise Stop

    monkeypatch.setattr("headrace.sim.cosim.cosim_run.run", spy)
    with pytest.raises(Stop):
        run()
    assert set(seen["env"]) == {"HEADRACE_COSIM"}
    orders = json.loads(seen["env"]["HEADRACE_COSIM"])
    assert set(orders) == {"arguments", "header_word", "clock", "limit_clocks", "counters", "result"}
    assert orders["clock"] == "clk"
    assert orders["arguments"] == [len(PROMPT), OUTPUTS]
    names = [plusarg[1:].split("=")[0] for plusarg in seen["plusargs"]]
    reads = [name for name in names if not name.startswith("dump")]
    assert reads == ["image", "poison", "fill_beats", "trace", "fault"]

    sections = run.manifest["sections"]
    assert len(run.raw) == sections["cache"]["base"] * NANO.word_bytes
    assert all(sections[name]["base"] > sections["cache"]["base"] for name in ("logits", "tokens"))
    tokens, logits = golden
    assert not any(row.tobytes() in run.raw for row in logits)
    prompt = np.frombuffer(
        run.raw, "<u4", offset=sections["prompt"]["base"] * NANO.word_bytes, count=len(PROMPT) + OUTPUTS
    )
    assert prompt.tolist() == PROMPT + [0] * OUTPUTS


def imported_by(module: str) -> set[str]:
    """Everything of headrace that is loaded, at any depth, once `module` is."""
    code = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('headrace')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def within(modules: set[str], *packages: str) -> list[str]:
    return sorted(name for name in modules if any(name == p or name.startswith(p + ".") for p in packages))


def test_golden_knows_neither_compiler_nor_hardware():
    modules = imported_by("headrace.sim.golden")
    assert "headrace.sim.golden" in modules
    assert within(modules, "headrace.mapping", "headrace.hw", "headrace.sim") == ["headrace.sim", "headrace.sim.golden"]


@pytest.mark.parametrize("module", ["headrace.sim.cosim", "headrace.sim.cosim_driver"])
def test_cosim_knows_no_reference(module):
    modules = imported_by(module)
    assert module in modules
    assert not within(
        modules, "headrace.sim.golden", "headrace.sim.iss", "headrace.sim.iss_vec", "headrace.models.quantise"
    )


def test_imports_are_found():
    """Of the two tests before: the closed loop imports what they forbid."""
    modules = imported_by("headrace.sim.closed_loop, headrace.sim.iss")
    assert within(modules, "headrace.mapping", "headrace.hw", "headrace.sim.golden", "headrace.sim.iss")
