"""The whole machine in Verilator against the interpreter: tokens, logits and every retirement, bit for bit."""

import re

import numpy as np
import pytest
from models_for_tests import random_model

from headrace.hw.isa import ErrorCode, Instruction, Op, Queue
from headrace.hw.machine import load_machine
from headrace.hw.top import control_parameters
from headrace.mapping.compiler import compile_model
from headrace.models.errors import UserError
from headrace.sim import cosim
from headrace.sim.cosim import CosimError, run_image
from headrace.sim.iss import Interpreter

pytestmark = pytest.mark.cosim

NANO = load_machine("nano")


def interpret(machine, image, prompt, outputs, seed=1):
    run = Interpreter(machine, image.bytes(), image.layout.next_word, seed=seed, arguments=(len(prompt), outputs))
    run.run()
    return run


def outputs_of(run, image, machine, outputs, vocab):
    beats = run.memory.reshape(-1, 32)
    ports, per = machine.memory.ports, image.manifest["logit_beats"]
    start = image.section("logits").base * ports
    logits = beats[start : start + outputs * per].reshape(outputs, -1).view(np.uint32)[:, :vocab]
    start = image.section("tokens").base * ports
    return beats[start : start + outputs].view(np.uint32)[:, 0].astype(int), logits


def check_trace(result, run):
    """Every queue's retirements, in order; the first difference names itself."""
    for queue in Queue:
        mine = result.trace[result.trace["queue"] == queue]
        want = [(r.pc, r.signature) for r in run.trace if r.queue == queue]
        for n, (record, (pc, signature)) in enumerate(zip(mine, want, strict=False)):
            assert (record["pc"], record["signature"]) == (pc, signature), (
                f"{queue.name} instruction {n}, cycle {record['cycle']}: RTL {record['pc']} {record['signature']:#x}, "
                f"interpreter {pc} {signature:#x}"
            )
        assert len(mine) == len(want), queue.name


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    prompt, outputs = [1, 2, 3], 3
    model = random_model(3, bits=4, tie_embeddings=False)
    image = compile_model(model, NANO, prompt, outputs=outputs)
    path = tmp_path_factory.mktemp("image") / "image.bin"
    manifest = image.write(path)
    return model, image, path, manifest, prompt, outputs


def test_machine_equals_interpreter(case):
    model, image, path, manifest, prompt, outputs = case
    result = run_image(path, manifest, NANO, arguments=(len(prompt), outputs), outputs=outputs, limit_cycles=10**7)
    run = interpret(NANO, image, prompt, outputs)
    check_trace(result, run)
    tokens, logits = outputs_of(run, image, NANO, outputs, model.config.vocab)
    assert (result.tokens == tokens).all()
    assert (result.logits.view(np.uint32) == logits).all()
    assert [identity for identity, _ in result.marks] == [identity for identity, _ in run.marks]
    assert all(a < b for (_, a), (_, b) in zip(result.marks, result.marks[1:], strict=False))
    for unit, parts in control_parameters(NANO).partitions().items():
        assert sum(result.counters[part] for part in parts) == result.cycles, unit
    assert result.counters["errors"] == 0
    print(f"{result.cycles} cycles, {result.sim_cycles_per_s:,.0f} cycles/s, build {result.build_s:.1f} s, start {result.start_s:.1f} s")
    print(result.counters)


def test_other_poison_gives_the_same(case):
    _, _, path, manifest, prompt, outputs = case
    one, two = (
        run_image(path, manifest, NANO, arguments=(len(prompt), outputs), outputs=outputs, seed=seed, limit_cycles=10**7)
        for seed in (1, 77)
    )
    assert (one.tokens == two.tokens).all() and (one.logits.view(np.uint32) == two.logits.view(np.uint32)).all()
    for name in ("queue", "pc", "cycle"):
        assert (one.trace[name] == two.trace[name]).all(), name
    # LD and MV also carry cache rows past the length, which hold poison and which nobody reads.
    read = np.isin(one.trace["queue"], (Queue.ST, Queue.VEC, Queue.SYS))
    assert (one.trace[read] == two.trace[read]).all()
    assert one.cycles == two.cycles and one.counters == two.counters


def test_a_flipped_weight_is_seen(case):
    """Planted fault: the interpreter gets one bit of one weight otherwise than the machine."""
    _, image, path, manifest, prompt, outputs = case
    result = run_image(path, manifest, NANO, arguments=(len(prompt), outputs), outputs=outputs, limit_cycles=10**7)
    raw = image.bytes()
    raw[manifest["sections"]["layers"]["base"] + 40, 5] ^= 4
    run = Interpreter(NANO, raw, image.layout.next_word, arguments=(len(prompt), outputs))
    run.run()
    with pytest.raises(AssertionError, match="LD instruction"):
        check_trace(result, run)


def test_an_error_names_itself(case, tmp_path):
    _, _, path, manifest, prompt, outputs = case
    raw = bytearray(path.read_bytes())
    program = manifest["sections"]["program"]["base"] * NANO.word_bytes
    broken = Instruction(Op.LDV, [0, 1, 1, 0, NANO.buffers.vector_rows]).encode()
    raw[program + 32 * 2 : program + 32 * 3] = broken
    bad = tmp_path / "bad.bin"
    bad.write_bytes(raw)
    with pytest.raises(CosimError, match="RANGE of LD at instruction 2") as caught:
        run_image(bad, manifest, NANO, arguments=(len(prompt), outputs), outputs=outputs, limit_cycles=10**6)
    assert (caught.value.code, caught.value.queue, caught.value.pc) == (ErrorCode.RANGE, Queue.LD, 2)


def test_no_process_without_inputs_sets_a_constant():
    """Verilog of a signal that is part constant, part process: simulators never run `always @*` without inputs.

    Constants of 0 do no harm (a process that never ran leaves 0 in Verilator, and synthesis agrees).
    """
    pattern = re.compile(r"always @\*\n +([^=\n]+) = \d+'[a-z]([0-9a-fA-F]+);")
    planted = "  always @*\n    cmd__payload[23:16] = 8'h04;\n"
    assert [m[1] for m in pattern.findall(planted) if m[1].strip("0")] == ["04"]
    for name, text in cosim._sources(NANO, 1 << 12).items():
        assert not [m for m in pattern.findall(text) if m[1].strip("0")], name


def test_misfits_are_refused(case):
    _, _, path, manifest, _, _ = case
    with pytest.raises(UserError, match="outputs = 99"):
        run_image(path, manifest, NANO, arguments=(), outputs=99)
    with pytest.raises(UserError, match="word_bytes = 64, but machine micro"):
        run_image(path, manifest, load_machine("micro"), arguments=(), outputs=1)
    with pytest.raises(UserError, match="field 'vocab' is missing"):
        run_image(path, {k: v for k, v in manifest.items() if k != "vocab"}, NANO, arguments=(), outputs=1)
