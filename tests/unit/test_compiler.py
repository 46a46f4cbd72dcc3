"""Compiler, image and interpreter against the golden executor, bit for bit."""

import hashlib
import json
from itertools import zip_longest

import numpy as np
import pytest
from models_for_tests import random_model

from headrace.hw.isa import INSTRUCTION_BYTES, ErrorCode, Instruction, Op, Queue
from headrace.hw.machine import load_machine
from headrace.mapping.compiler import compile_model
from headrace.mapping.placement import largest_context
from headrace.mapping.stream import pack_stream, stream_words
from headrace.models.errors import UserError
from headrace.models.quantise import quantise_groups, quantise_rows
from headrace.sim.golden import GoldenExecutor
from headrace.sim.iss import Interpreter, MachineError

NANO = load_machine("nano")


def golden(model, prompt, outputs):
    executor = GoldenExecutor(model)
    logits = [executor.prefill(prompt)]
    tokens = [int(np.argmax(logits[0]))]
    while len(tokens) < outputs:
        logits.append(executor.step(tokens[-1]))
        tokens.append(int(np.argmax(logits[-1])))
    return tokens, np.stack(logits)


def interpret(model, machine, prompt, outputs, seed=1, image=None):
    image = image or compile_model(model, machine, prompt, outputs=outputs)
    run = Interpreter(machine, image.bytes(), image.layout.next_word, seed=seed, arguments=(len(prompt), outputs))
    run.run()
    beats = run.memory.reshape(-1, 32)
    ports, per = machine.memory.ports, image.manifest["logit_beats"]
    start = image.section("logits").base * ports
    logits = beats[start : start + outputs * per].reshape(outputs, -1).view(np.float32)[:, : model.config.vocab]
    start = image.section("tokens").base * ports
    tokens = beats[start : start + outputs].view(np.uint32)
    assert (tokens == tokens[:, :1]).all()
    return [int(t) for t in tokens[:, 0]], logits, run


CASES = [
    ("nano", {"tie_embeddings": False}, 4, [1, 2, 3], 6),
    ("nano", {"head_dim": 64, "heads": 3, "kv_heads": 1}, 4, [5] * 20, 3),
    ("nano", {}, 8, [7], 2),
    ("nano", {"vocab": 1000, "width": 96, "heads": 6, "ffn": 224, "tie_embeddings": False}, 4, [999, 0], 3),
    ("nano", {"heads": 20, "kv_heads": 20, "width": 64, "ffn": 64, "layers": 1}, 4, [4, 4], 2),
    ("micro", {"width": 192, "kv_heads": 2, "ffn": 320, "vocab": 520}, 4, [5, 9, 11], 3),
]


@pytest.mark.parametrize("machine, sizes, bits, prompt, outputs", CASES)
def test_interpreter_equals_golden(machine, sizes, bits, prompt, outputs):
    model = random_model(len(prompt), bits=bits, **sizes)
    tokens, logits, run = interpret(model, load_machine(machine), prompt, outputs)
    expected_tokens, expected = golden(model, prompt, outputs)
    assert tokens == expected_tokens
    assert np.array_equal(logits.view(np.uint32), expected.view(np.uint32))
    assert not any(run.tokens.values())
    assert [identity for identity, _ in run.marks] == list(range(outputs + 1))


def test_poison_does_not_reach_the_result():
    model = random_model(9)
    first, second = (interpret(model, NANO, [3, 1, 4], 3, seed=seed) for seed in (11, 12))
    assert first[0] == second[0]
    assert np.array_equal(first[1].view(np.uint32), second[1].view(np.uint32))


def test_one_image_serves_every_length():
    """The program takes lengths from registers: the same instructions for another prompt length."""
    model = random_model(4)
    short, long = (compile_model(model, NANO, prompt, outputs=2) for prompt in ([1, 2], [1, 2, 3, 4, 5]))
    assert np.array_equal(short.section("program").data, long.section("program").data)
    tokens, logits, _ = interpret(model, NANO, [1, 2], 2, image=long)
    assert (tokens, logits.tobytes()) == (golden(model, [1, 2], 2)[0], golden(model, [1, 2], 2)[1].tobytes())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(16, 16), (40, 48), (24, 112), (8, 320)])
def test_stream_decodes_to_the_grid(bits, shape):
    """Packed words, decoded by the interpreter (written from the text alone), give the int8 grid and the scales."""
    seed = 5
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(shape).astype(np.float32)
    linear = quantise_groups(weight, 4) if bits == 4 else quantise_rows(weight)
    words = pack_stream(NANO, linear.codes, bits, linear.row_scale, linear.mult, linear.off)
    rows = -(-shape[0] // 16) * 16
    assert words.shape == (stream_words(NANO, rows // 8, shape[1] // 16, bits, True), 64)
    reader = Interpreter.__new__(Interpreter)
    reader.machine, reader.weights = NANO, __import__("collections").deque([words])
    grid, scale = reader._decode(rows // 8, shape[1] // 16, bits, True)
    assert np.array_equal(grid[: shape[0]], linear.int8()), f"seed {seed}"
    assert np.array_equal(scale[: shape[0]], linear.row_scale)
    assert not reader.weights


def test_minus_128_is_refused():
    with pytest.raises(ValueError, match="-128"):
        pack_stream(NANO, np.full((8, 16), -128, np.int8), 8, None)


def test_planted_fault_in_the_image_is_seen():
    model = random_model(6)
    image = compile_model(model, NANO, [1, 2, 3], outputs=2)
    # Layer 0: two norms of 8 words, then q: scale word, metadata word, codes. One bit of one code.
    image.section("layers").data[16 + 2, 5] ^= 0x80
    _, logits, _ = interpret(model, NANO, [1, 2, 3], 2, image=image)
    assert not np.array_equal(logits, golden(model, [1, 2, 3], 2)[1])


def test_image_file_and_manifest(tmp_path):
    model = random_model(2)
    path = tmp_path / "model.img"
    manifest = compile_model(model, NANO, [1], outputs=1).write(path)
    assert json.loads(path.with_suffix(".json").read_text()) == manifest
    raw = path.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == manifest["sha256"]
    assert len(raw) == manifest["file_words"] * 64
    table = manifest["sections"]["table"]
    count = int.from_bytes(raw[44:48], "little")
    start = table["base"] * 64
    entry = raw[start + count * 32 : start + (count + 1) * 32]
    assert entry.rstrip(b"\0") == b"sha256"
    digest = raw[start + (count + 1) * 32 : start + (count + 2) * 32]
    assert digest == hashlib.sha256(raw[(table["base"] + table["words"]) * 64 :]).digest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.img", "model.json"]


def test_wrong_header_is_refused():
    image = compile_model(random_model(2), NANO, [1], outputs=1)
    for word in (0, 1, 2, 3, 4, 8):
        raw = image.bytes()
        raw[0, 4 * word] ^= 1
        with pytest.raises(MachineError) as caught:
            Interpreter(NANO, raw, image.layout.next_word)
        assert caught.value.code == ErrorCode.HEADER


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], 1, None), "no tokens"),
        (([512], 1, None), "outside 0..511"),
        (([1] * 60, 10, None), "context 64"),
        (([1], 1, 65), "context = 65"),
    ],
)
def test_users_mistakes(arguments, message):
    prompt, outputs, context = arguments
    with pytest.raises(UserError, match=message):
        compile_model(random_model(2), NANO, prompt, outputs=outputs, context=context)


@pytest.mark.parametrize(
    "sizes, field", [({"head_dim": 48}, "head_dim"), ({"ffn": 100}, "ffn"), ({"heads": 34, "kv_heads": 2}, "heads / kv_heads")]
)
def test_models_that_do_not_fit_are_named(sizes, field):
    with pytest.raises(UserError, match=field):
        compile_model(random_model(2, **sizes), NANO, [1], outputs=1)


def test_all_that_a_machine_cannot_run_is_named_at_once():
    with pytest.raises(UserError, match="head_dim = 48, where a multiple of 32 is allowed; ffn = 100, where a multiple of 16 is allowed"):
        compile_model(random_model(2, head_dim=48, ffn=100), NANO, [1], outputs=1)


def test_largest_context_fits_the_buffers():
    config = random_model(2, max_positions=100_000).config
    context = largest_context(config, NANO)
    assert 512 <= context < 100_000 and context % NANO.scales_per_word == 0
    larger = NANO.model_copy(update={"buffers": NANO.buffers.model_copy(update={"vector_rows": 8192, "activation_slices": 4096})})
    assert largest_context(config, larger) > context


def test_instructions_survive_encoding():
    rng = np.random.default_rng(3)
    for op in Op:
        operands = tuple(int(v) for v in rng.integers(0, 1 << 27, 7))
        wait, release = (frozenset(q for q in Queue if rng.integers(2)) for _ in range(2))
        instruction = Instruction(op, operands, int(rng.integers(1 << 14)), wait, release)
        raw = instruction.encode()
        assert len(raw) == INSTRUCTION_BYTES
        back = Instruction.decode(raw)
        assert (back.op, back.flags, back.wait, back.release) == (op, instruction.flags, wait, release)
        assert all(a.imm == b for a, b in zip_longest(back.operands, operands))
