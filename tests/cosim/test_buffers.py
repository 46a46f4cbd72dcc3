"""VectorBuffer and ActivationBuffer: data, priorities and latency with every port busy at random; planted faults."""

from pathlib import Path

import pytest

from headrace.hw.activation_buffer import ActivationBuffer
from headrace.hw.emit import to_verilog
from headrace.hw.ram import ram_sources
from headrace.hw.vector_buffer import VectorBuffer
from headrace.sim import cosim_run

pytestmark = pytest.mark.cosim

HERE = Path(__file__).parent
DESIGNS = {
    "vector_buffer": lambda: VectorBuffer(rows=16),
    "activation_buffer": lambda: ActivationBuffer(slices=8),
}


def run(name, seed, ram_text=None):
    sources = {f"{name}.v": to_verilog(DESIGNS[name](), name), **ram_sources()}
    if ram_text is not None:
        sources["hr_ram_sdp.v"] = ram_text
    return cosim_run.run(
        sources, name, f"cocotb_{name}", python_path=[HERE], env={"SEED": str(seed)}, plusargs=[f"+poison={seed}"], timeout_s=300
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", DESIGNS)
def test_all_ports_at_random(name, seed):
    run(name, seed).check()


@pytest.mark.nightly  # a build each
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("vector_buffer", "if (second_en)", "if (r_en)"),
        ("activation_buffer", "if (w_en[lane])", "if (|w_en)"),
    ],
)
def test_planted_faults_are_seen(name, old, new):
    good = ram_sources()["hr_ram_sdp.v"]
    assert old in good
    assert run(name, 1, good.replace(old, new)).failures


@pytest.mark.parametrize(("block", "sizes"), [(VectorBuffer, {"rows": 24}), (ActivationBuffer, {"slices": 1})])
def test_bad_sizes_are_refused(block, sizes):
    with pytest.raises(ValueError, match="power of two"):
        block(**sizes)
