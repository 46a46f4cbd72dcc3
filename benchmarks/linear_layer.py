"""One linear layer in co-simulation, nothing else: `python benchmarks/linear_layer.py [--machine nano] [--bits 4]`.

Image -> memory -> DMA -> decode unit -> chains -> scale -> store, repeated; prints core cycles per second of the simulation (build and start
apart), and how they compare with the cycle level, which must give the same number of cycles.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from headrace.hw.isa import SCALES_FLAG_BIT, Instruction, Op, Operand, Queue
from headrace.hw.machine import Machine, load_machine
from headrace.mapping.image import Image, Layout, table_words
from headrace.mapping.placement import round_up
from headrace.mapping.stream import stream_words
from headrace.sim.cosim import run_image
from headrace.sim.cycle import simulate

OUTPUTS, INPUTS = 1536, 576
"""Of SmolLM2-135M's gate and up projections."""
COUNTER = 3


def layer(machine: Machine, bits: int, repeats: int, seed: int = 1) -> tuple[list[Instruction], Image, int]:
    """(program, image, program's base word): random codes and metadata, scales of 1, activations from the same random bytes."""
    rng = np.random.default_rng(seed)
    slices, stripes = INPUTS // 16, round_up(OUTPUTS, machine.scales_per_word) // machine.stripe_rows
    words = stream_words(machine, stripes, slices, bits, True)
    out_rows = stripes * machine.stripe_rows // 8
    layout = Layout(machine.word_bytes)
    layout.add("header", np.zeros(machine.word_bytes, np.uint8))
    layout.add("table", np.zeros(table_words(machine.word_bytes, 8) * machine.word_bytes, np.uint8))
    program = layout.add("program", np.zeros(16 * 32, np.uint8))
    one = layout.add("scale", np.ones(machine.word_bytes // 4, "<f4")).base
    codes = layout.add("activations", rng.integers(-127, 128, slices * machine.word_bytes).astype(np.int8)).base
    weights = layout.add("weights", rng.integers(0, 256, words * machine.word_bytes).astype(np.uint8)).base
    out = layout.reserve("out", -(-out_rows // machine.memory.ports)).base
    layout.reserve("tokens", 1)
    flags = bits | 1 << SCALES_FLAG_BIT
    instructions = [
        Instruction(Op.LDV, (one, 1, 1, 0, 0)), Instruction(Op.LDA, (codes, 1, slices, 1, 0, 0)), Instruction(Op.SET, (repeats,), COUNTER),
        Instruction(Op.BAR),
        Instruction(Op.LDW, (weights, words, 1, 0)),
        Instruction(Op.MV, (0, 64, 0, stripes, slices), flags, release=frozenset({Queue.ST})),
        Instruction(Op.STV, (out * machine.memory.ports, 64, out_rows), wait=frozenset({Queue.MV})),
        Instruction(Op.SUB, (Operand(0, COUNTER), Operand(1)), COUNTER), Instruction(Op.BAR), Instruction(Op.BNE, (Operand(0, COUNTER), 0, 4)),
        Instruction(Op.HALT),
    ]  # fmt: skip
    raw = np.frombuffer(b"".join(i.encode() for i in instructions), np.uint8)
    program.data.reshape(-1)[: raw.size] = raw
    manifest = {"widths": [4, 8], "vocab": 1, "outputs": 1, "logit_beats": 1, "word_bytes": machine.word_bytes}
    return instructions, Image(machine, layout, "program", len(instructions), manifest), program.base


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default="nano")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    made = load_machine(options.machine, options.set)
    instructions, image, base = layer(made, options.bits, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.bin"
        manifest = image.write(path)
        rtl = run_image(path, manifest, made, arguments=(), outputs=1)
    ours = simulate(instructions, made, program_word=base)
    print(f"{made.name}, {OUTPUTS} x {INPUTS}, {options.bits} bits, {options.repeats} times: {rtl.cycles:,} cycles, {rtl.sim_cycles_per_s:,.0f} cycles/s")
    print(f"cycle level: {ours.cycles:,} cycles, counters {'equal' if ours.counters == rtl.counters else 'DIFFER'}")
