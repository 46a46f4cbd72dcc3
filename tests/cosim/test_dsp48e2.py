"""The DSP48E2 model: against an integer model of the data sheet, and against Yosys' independent model of the DSP48E1
over the operands that both devices hold; refusal of modes that it does not model; poison."""

import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.dsp48e2 import dsp48e2, dsp_sources
from headrace.hw.emit import to_verilog
from headrace.sim.verilate import build_executable

pytestmark = pytest.mark.cosim

CYCLES = 4000


class Cell(wiring.Component):
    """One DSP48E2 with the given registers."""

    a: In(30)
    b: In(18)
    d: In(27)
    pcin: In(48)
    en: In(1)
    p: Out(48)

    def __init__(self, *, cascade: bool, preadd: bool, **registers):
        self.cascade, self.preadd, self.registers = cascade, preadd, registers
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.dsp = dsp48e2(
            a=self.a, b=self.b, d=self.d if self.preadd else None, pcin=self.pcin if self.cascade else None, p=self.p,
            enable=self.en, **self.registers,
        )  # fmt: skip
        return m


CONFIGURATIONS = {
    "chain": dict(cascade=True, preadd=True, a_registers=0, d_register=0, preadd_register=1, b_registers=1),
    "first": dict(cascade=False, preadd=True, a_registers=0, d_register=0, preadd_register=1, b_registers=1),
    "registered": dict(cascade=True, preadd=True, a_registers=1, d_register=1, preadd_register=1, b_registers=2),
    "plain": dict(cascade=True, preadd=False, a_registers=1, b_registers=1),
    "deep": dict(cascade=False, preadd=False, a_registers=2, b_registers=2, m_register=0),
    "bare": dict(cascade=True, preadd=False, a_registers=0, b_registers=0, m_register=0, p_register=0),
}


def main_text(name: str = "dsp_bench.cpp") -> str:
    return files("headrace.sim").joinpath("cpp", name).read_text()


def build(configuration: dict, model: dict[str, str] | None = None, flags=()):
    text = to_verilog(Cell(**configuration), "top")
    return build_executable({"top.v": text, **(model or dsp_sources())}, "top", main_text(), flags)


def stimuli(seed: int, *, narrow: bool = False) -> np.ndarray:
    """uint32 [CYCLES, 6]; `narrow` keeps A, D and A + D within the 25 bits of the DSP48E1."""
    rng = np.random.default_rng(seed)
    bits_a, bits_d = (24, 24) if narrow else (27, 27)
    a = rng.integers(-(1 << bits_a - 1), 1 << bits_a - 1, CYCLES)
    d = rng.integers(-(1 << bits_d - 1), 1 << bits_d - 1, CYCLES)
    b = rng.integers(-(1 << 17), 1 << 17, CYCLES)
    for values, bits in ((a, bits_a), (d, bits_d), (b, 18)):
        edge = rng.random(CYCLES) < 0.2
        values[edge] = rng.choice([-(1 << bits - 1), (1 << bits - 1) - 1, 0, -1], CYCLES)[edge]
    pcin = rng.integers(0, 1 << 48, CYCLES)
    enable = rng.random(CYCLES) < 0.8
    enable[:8] = True
    return np.stack([a & (1 << 30) - 1, b & (1 << 18) - 1, d & (1 << 27) - 1, pcin & 0xFFFFFFFF, pcin >> 32, enable], 1).astype(np.uint32)


def simulate(executable, words, folder, poison: int = 1) -> np.ndarray:
    words.tofile(folder / "in.bin")
    subprocess.run([executable, folder / "in.bin", folder / "out.bin", f"+poison={poison}"], check=True)
    return np.fromfile(folder / "out.bin", np.uint64)


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def integer_model(words, *, cascade, preadd, a_registers, b_registers, d_register=0, preadd_register=1, m_register=1, p_register=1):
    """P after each edge, from Python integers and lists of registers."""
    a_line, b_line, d_line = [0] * a_registers, [0] * b_registers, [0] * d_register
    ad = m = p = 0
    results = []

    def evaluate(a_in, b_in, d_in, pcin):
        a, b, d = (line[-1] if line else value for line, value in ((a_line, a_in), (b_line, b_in), (d_line, d_in)))
        ad_sum = signed(a + d, 27) if preadd else a
        operand = ad if preadd and preadd_register else ad_sum
        product = operand * b
        total = ((pcin if cascade else 0) + (m if m_register else product)) & (1 << 48) - 1
        return ad_sum, product, total

    for a_raw, b_raw, d_raw, low, high, enable in words.tolist():
        inputs = signed(a_raw, 27), signed(b_raw, 18), signed(d_raw, 27), low | high << 32
        ad_sum, product, total = evaluate(*inputs)
        if enable:
            ad, m, p = ad_sum, product, total
            for line, value in zip((a_line, b_line, d_line), inputs):
                if line:
                    line[:] = [value, *line[:-1]]
        results.append(p if p_register else evaluate(*inputs)[2])
    return np.array(results, np.uint64)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_model_equals_integers_cycle_by_cycle(name, tmp_path):
    words = stimuli(seed=11)
    got = simulate(build(CONFIGURATIONS[name]), words, tmp_path)
    want = integer_model(words, **CONFIGURATIONS[name])
    # The first cycles show the poison of registers that nothing has reached.
    assert np.array_equal(got[6:], want[6:])


def yosys_dsp48e1() -> str:
    """Yosys' model under the E2's name, its parameters translated: 25-bit A and D, the E1's 7-bit OPMODE."""
    import pyosys

    text = (Path(pyosys.__file__).parent / "share/xilinx/cells_sim.v").read_text()
    start = text.index("module DSP48E1 (")
    return text[start : text.index("endmodule", start) + len("endmodule")]


# The E1 in the E2's place, for the operands and modes that they share.
ADAPTER = """
module DSP48E2 #(
    parameter integer ACASCREG = 1, ADREG = 1, ALUMODEREG = 1, AREG = 1, BCASCREG = 1, BREG = 1, CARRYINREG = 1,
    parameter integer CARRYINSELREG = 1, CREG = 1, DREG = 1, INMODEREG = 1, MREG = 1, OPMODEREG = 1, PREG = 1,
    parameter AMULTSEL = "A", BMULTSEL = "B", PREADDINSEL = "A", A_INPUT = "DIRECT", B_INPUT = "DIRECT",
    parameter USE_MULT = "MULTIPLY", USE_PATTERN_DETECT = "NO_PATDET", USE_SIMD = "ONE48", USE_WIDEXOR = "FALSE"
) (
    output [47:0] P, PCOUT,
    input [29:0] A, ACIN, input [3:0] ALUMODE, input [17:0] B, BCIN, input [47:0] C, input CARRYCASCIN, CARRYIN,
    input [2:0] CARRYINSEL, input CEA1, CEA2, CEAD, CEALUMODE, CEB1, CEB2, CEC, CECARRYIN, CECTRL, CED, CEINMODE, CEM,
    input CEP, CLK, input [26:0] D, input [4:0] INMODE, input MULTSIGNIN, input [8:0] OPMODE, input [47:0] PCIN,
    input RSTA, RSTALLCARRYIN, RSTALUMODE, RSTB, RSTC, RSTCTRL, RSTD, RSTINMODE, RSTM, RSTP
);
    DSP48E1 #(
        .ACASCREG(ACASCREG), .ADREG(ADREG), .ALUMODEREG(ALUMODEREG), .AREG(AREG), .BCASCREG(BCASCREG), .BREG(BREG),
        .CARRYINREG(CARRYINREG), .CARRYINSELREG(CARRYINSELREG), .CREG(CREG), .DREG(DREG), .INMODEREG(INMODEREG),
        .MREG(MREG), .OPMODEREG(OPMODEREG), .PREG(PREG), .USE_DPORT(AMULTSEL == "AD" ? "TRUE" : "FALSE")
    ) e1 (
        .P(P), .PCOUT(PCOUT), .A({{5{A[24]}}, A[24:0]}), .ACIN(ACIN), .ALUMODE(ALUMODE), .B(B), .BCIN(BCIN), .C(C),
        .CARRYCASCIN(CARRYCASCIN), .CARRYIN(CARRYIN), .CARRYINSEL(CARRYINSEL), .CEA1(CEA1), .CEA2(CEA2), .CEAD(CEAD),
        .CEALUMODE(CEALUMODE), .CEB1(CEB1), .CEB2(CEB2), .CEC(CEC), .CECARRYIN(CECARRYIN), .CECTRL(CECTRL), .CED(CED),
        .CEINMODE(CEINMODE), .CEM(CEM), .CEP(CEP), .CLK(CLK), .D(D[24:0]), .INMODE(INMODE), .MULTSIGNIN(MULTSIGNIN),
        .OPMODE(OPMODE[6:0]), .PCIN(PCIN), .RSTA(RSTA), .RSTALLCARRYIN(RSTALLCARRYIN), .RSTALUMODE(RSTALUMODE),
        .RSTB(RSTB), .RSTC(RSTC), .RSTCTRL(RSTCTRL), .RSTD(RSTD), .RSTINMODE(RSTINMODE), .RSTM(RSTM), .RSTP(RSTP)
    );
endmodule
"""


@pytest.mark.parametrize("name", ["chain", "registered", "plain"])
def test_model_equals_yosys_dsp48e1(name, tmp_path):
    words = stimuli(seed=12, narrow=True)
    ours = simulate(build(CONFIGURATIONS[name]), words, tmp_path)
    other = build(CONFIGURATIONS[name], {"dsp48e1.v": yosys_dsp48e1(), "adapter.v": ADAPTER})
    theirs = simulate(other, words, tmp_path)
    assert np.array_equal(ours[6:], theirs[6:])


def test_poison_seeds_differ_only_until_operands_arrive(tmp_path):
    executable = build(CONFIGURATIONS["chain"])
    words = stimuli(seed=13)
    one, two = (simulate(executable, words, tmp_path, poison) for poison in (1, 2))
    assert one[0] != two[0]
    assert np.array_equal(one[6:], two[6:])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ONE48"', '"TWO24"', "USE_SIMD is not modelled"),
        (".AREG(32'd0)", ".AREG(32'd3)", "AREG = 3"),
        (".OPMODE(9'h015)", ".OPMODE(9'h035)", "is not modelled"),
        (".INMODE(5'h04)", ".INMODE(5'h0c)", "is not modelled"),
        (".RSTP(1'h0)", ".RSTP(1'h1)", "a reset is not modelled"),
    ],
)
def test_modes_that_are_not_modelled_are_refused(old, new, message, tmp_path):
    text = to_verilog(Cell(**CONFIGURATIONS["chain"]), "top")
    assert old in text, text
    executable = build_executable({"top.v": text.replace(old, new), **dsp_sources()}, "top", main_text())
    stimuli(seed=1).tofile(tmp_path / "in.bin")
    result = subprocess.run([executable, tmp_path / "in.bin", tmp_path / "out.bin"], capture_output=True, text=True)
    assert result.returncode != 0
    assert message in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"), [(dict(a_registers=3), "AREG = 3"), (dict(b_registers=-1), "BREG = -1")]
)
def test_bad_registers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        dsp48e2(a=Signal(30), b=Signal(18), **arguments)


def test_bad_widths_are_refused():
    with pytest.raises(ValueError, match="port a has 30 bits, not 27"):
        dsp48e2(a=Signal(27), b=Signal(18))
