"""The DSP48E2 as this machine uses it: one instance of the vendor's primitive, explicit in ports and parameters.

Synthesis tools infer multipliers but not the cascade, so chains are built from instances. Simulation takes the
project's own model of the primitive, ``hw/verilog/DSP48E2.v``, which refuses every mode that it does not model.
"""

from amaranth.hdl import ClockSignal, Const, Instance

from headrace.hw.ram import read_verilog

A_BITS, B_BITS, D_BITS, P_BITS = 30, 18, 27, 48
MULTIPLIER_A_BITS = 27

OPMODE_FIRST = 0b00_000_01_01
"""W = 0, Z = 0, Y and X = M: P = M."""
OPMODE_CASCADE = 0b00_001_01_01
"""W = 0, Z = PCIN, Y and X = M: P = PCIN + M."""
INMODE_A = 0b00000
INMODE_PREADD = 0b00100
"""Multiplier operand A2 + D (AMULTSEL = "AD")."""


def dsp_sources() -> dict[str, str]:
    """File name to text of the simulation model; synthesis must not be given it."""
    return {"DSP48E2.v": read_verilog("DSP48E2.v")}


def dsp48e2(
    *, a, b, p=None, d=None, pcin=None, pcout=None, enable=Const(1, 1),
    a_registers: int = 1, b_registers: int = 1, d_register: int = 0, preadd_register: int = 1,
    m_register: int = 1, p_register: int = 1,
) -> Instance:  # fmt: skip
    """P = (PCIN or 0) + A * B, or (PCIN or 0) + (A + D) * B where `d` is given.

    a, b, d
        30, 18 and 27 bits (the multiplier takes A[26:0]); the sum A + D wraps to 27 bits.
    pcin, pcout
        48 bits, cascade from and to the neighbours; no `pcin` starts a chain.
    enable
        Clock enable of every register.
    *_registers, *_register
        Register stages, as the primitive's AREG, BREG, DREG, ADREG, MREG, PREG.

    Latency from `a` to P: a_registers + preadd_register (with d) + m_register + p_register; from `pcin`: p_register.
    """
    for name, value, width in (("a", a, A_BITS), ("b", b, B_BITS), ("d", d, D_BITS), ("pcin", pcin, P_BITS)):
        if value is not None and len(value) != width:
            raise ValueError(f"DSP48E2 port {name} has {width} bits, not {len(value)}")
    if not (0 <= a_registers <= 2 and 0 <= b_registers <= 2):
        raise ValueError(f"DSP48E2: AREG = {a_registers}, BREG = {b_registers}; 0, 1 or 2 is allowed")
    outputs = {}
    if p is not None:
        outputs["o_P"] = p
    if pcout is not None:
        outputs["o_PCOUT"] = pcout
    preadd = d is not None
    resets = ("A", "ALLCARRYIN", "ALUMODE", "B", "C", "CTRL", "D", "INMODE", "M", "P")
    return Instance(
        "DSP48E2",
        p_AREG=a_registers, p_ACASCREG=min(a_registers, 1), p_BREG=b_registers, p_BCASCREG=min(b_registers, 1),
        p_DREG=d_register, p_ADREG=preadd_register, p_MREG=m_register, p_PREG=p_register, p_CREG=0,
        p_AMULTSEL="AD" if preadd else "A", p_BMULTSEL="B", p_PREADDINSEL="A", p_USE_MULT="MULTIPLY",
        p_USE_SIMD="ONE48", p_USE_PATTERN_DETECT="NO_PATDET", p_USE_WIDEXOR="FALSE",
        p_A_INPUT="DIRECT", p_B_INPUT="DIRECT",
        # Control inputs are constants; without their registers they also hold in the first cycle.
        p_INMODEREG=0, p_OPMODEREG=0, p_ALUMODEREG=0, p_CARRYINREG=0, p_CARRYINSELREG=0,
        i_CLK=ClockSignal(),
        i_A=a, i_B=b, i_C=Const(0, P_BITS), i_D=d if preadd else Const(0, D_BITS),
        i_PCIN=Const(0, P_BITS) if pcin is None else pcin,
        i_ACIN=Const(0, A_BITS), i_BCIN=Const(0, B_BITS),
        i_CARRYCASCIN=Const(0, 1), i_CARRYIN=Const(0, 1), i_CARRYINSEL=Const(0, 3), i_MULTSIGNIN=Const(0, 1),
        i_ALUMODE=Const(0, 4),
        i_INMODE=Const(INMODE_PREADD if preadd else INMODE_A, 5),
        i_OPMODE=Const(OPMODE_FIRST if pcin is None else OPMODE_CASCADE, 9),
        i_CEA1=enable, i_CEA2=enable, i_CEB1=enable, i_CEB2=enable, i_CED=enable, i_CEAD=enable, i_CEM=enable,
        i_CEP=enable, i_CEC=Const(0, 1), i_CEALUMODE=Const(0, 1), i_CECARRYIN=Const(0, 1), i_CECTRL=Const(0, 1),
        i_CEINMODE=Const(0, 1),
        **{f"i_RST{name}": Const(0, 1) for name in resets},
        **outputs,
    )  # fmt: skip
