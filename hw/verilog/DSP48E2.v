// Simulation model of the UltraScale+ DSP48E2 for the modes that this project uses. Never given to synthesis, where
// the vendor's primitive of the same name, ports and parameters stands in its place.
//
//   P = (W=0) + Z + M        OPMODE 00_000_01_01: Z = 0 (a cascade begins)     00_001_01_01: Z = PCIN
//   M = A[26:0] * B          AMULTSEL "A",  INMODE 00000
//   M = (A[26:0] + D) * B    AMULTSEL "AD", INMODE 00100 (27-bit wrap-around, as in the device)
//
// Registers modelled: AREG 0..2, BREG 0..2, DREG, ADREG, MREG, PREG 0..1, each with its clock enable. What is not
// modelled is refused when simulation begins: SIMD, pattern detection, wide XOR, cascaded A and B, C, carries,
// registered control inputs, resets. Registers start poisoned from +poison=N, not at zero.
module DSP48E2 #(
    parameter integer ACASCREG = 1,
    parameter integer ADREG = 1,
    parameter integer ALUMODEREG = 1,
    parameter AMULTSEL = "A",
    parameter integer AREG = 1,
    parameter A_INPUT = "DIRECT",
    parameter integer BCASCREG = 1,
    parameter BMULTSEL = "B",
    parameter integer BREG = 1,
    parameter B_INPUT = "DIRECT",
    parameter integer CARRYINREG = 1,
    parameter integer CARRYINSELREG = 1,
    parameter integer CREG = 1,
    parameter integer DREG = 1,
    parameter integer INMODEREG = 1,
    parameter integer MREG = 1,
    parameter integer OPMODEREG = 1,
    parameter PREADDINSEL = "A",
    parameter integer PREG = 1,
    parameter USE_MULT = "MULTIPLY",
    parameter USE_PATTERN_DETECT = "NO_PATDET",
    parameter USE_SIMD = "ONE48",
    parameter USE_WIDEXOR = "FALSE"
) (
    output wire [47:0] P,
    output wire [47:0] PCOUT,
    input wire [29:0] A,
    input wire [29:0] ACIN,
    input wire [3:0] ALUMODE,
    input wire [17:0] B,
    input wire [17:0] BCIN,
    input wire [47:0] C,
    input wire CARRYCASCIN,
    input wire CARRYIN,
    input wire [2:0] CARRYINSEL,
    input wire CEA1,
    input wire CEA2,
    input wire CEAD,
    input wire CEALUMODE,
    input wire CEB1,
    input wire CEB2,
    input wire CEC,
    input wire CECARRYIN,
    input wire CECTRL,
    input wire CED,
    input wire CEINMODE,
    input wire CEM,
    input wire CEP,
    input wire CLK,
    input wire [26:0] D,
    input wire [4:0] INMODE,
    input wire MULTSIGNIN,
    input wire [8:0] OPMODE,
    input wire [47:0] PCIN,
    input wire RSTA,
    input wire RSTALLCARRYIN,
    input wire RSTALUMODE,
    input wire RSTB,
    input wire RSTC,
    input wire RSTCTRL,
    input wire RSTD,
    input wire RSTINMODE,
    input wire RSTM,
    input wire RSTP
);
    localparam PREADD = AMULTSEL == "AD";

    // Only the 27 bits of A that the multiplier or the pre-adder takes.
    reg signed [26:0] a1, a2, d, ad;
    reg signed [17:0] b1, b2;
    reg signed [44:0] m;
    reg [47:0] p;

    wire signed [26:0] a_now, d_now, ad_now;
    wire signed [17:0] b_now;
    wire signed [44:0] product, m_now;
    wire [47:0] sum;

    generate
        if (AREG == 0) begin : no_a
            assign a_now = A[26:0];
        end else begin : with_a
            assign a_now = a2;
            if (AREG == 2) begin : two
                always @(posedge CLK) if (CEA1) a1 <= A[26:0];
                always @(posedge CLK) if (CEA2) a2 <= a1;
            end else begin : one
                always @(posedge CLK) if (CEA2) a2 <= A[26:0];
            end
        end
        if (BREG == 0) begin : no_b
            assign b_now = B;
        end else begin : with_b
            assign b_now = b2;
            if (BREG == 2) begin : two
                always @(posedge CLK) if (CEB1) b1 <= B;
                always @(posedge CLK) if (CEB2) b2 <= b1;
            end else begin : one
                always @(posedge CLK) if (CEB2) b2 <= B;
            end
        end
        if (PREADD && DREG == 1) begin : with_d
            assign d_now = d;
            always @(posedge CLK) if (CED) d <= D;
        end else begin : no_d
            assign d_now = D;
        end
        if (PREADD && ADREG == 1) begin : with_ad
            assign ad_now = ad;
            always @(posedge CLK) if (CEAD) ad <= a_now + d_now;
        end else if (PREADD) begin : no_ad
            assign ad_now = a_now + d_now;
        end else begin : no_preadd
            assign ad_now = a_now;
        end
        if (MREG == 1) begin : with_m
            assign m_now = m;
            always @(posedge CLK) if (CEM) m <= product;
        end else begin : no_m
            assign m_now = product;
        end
        if (PREG == 1) begin : with_p
            assign P = p;
            always @(posedge CLK) if (CEP) p <= sum;
        end else begin : no_p
            assign P = sum;
        end
    endgenerate
    assign product = ad_now * b_now;
    assign sum = (OPMODE[4] ? PCIN : 48'd0) + {{3{m_now[44]}}, m_now};
    assign PCOUT = P;

    // What the model does not know, it refuses.
    initial begin
        if (AREG < 0 || AREG > 2) $fatal(1, "DSP48E2 model: AREG = %0d is not modelled", AREG);
        if (BREG < 0 || BREG > 2) $fatal(1, "DSP48E2 model: BREG = %0d is not modelled", BREG);
        if (ACASCREG != AREG && !(AREG == 2 && ACASCREG == 1)) $fatal(1, "DSP48E2 model: ACASCREG = %0d is illegal", ACASCREG);
        if (BCASCREG != BREG && !(BREG == 2 && BCASCREG == 1)) $fatal(1, "DSP48E2 model: BCASCREG = %0d is illegal", BCASCREG);
        if (DREG < 0 || DREG > 1) $fatal(1, "DSP48E2 model: DREG = %0d is not modelled", DREG);
        if (ADREG < 0 || ADREG > 1) $fatal(1, "DSP48E2 model: ADREG = %0d is not modelled", ADREG);
        if (MREG < 0 || MREG > 1) $fatal(1, "DSP48E2 model: MREG = %0d is not modelled", MREG);
        if (PREG < 0 || PREG > 1) $fatal(1, "DSP48E2 model: PREG = %0d is not modelled", PREG);
        if (AMULTSEL != "A" && AMULTSEL != "AD") $fatal(1, "DSP48E2 model: this AMULTSEL is not modelled");
        if (BMULTSEL != "B") $fatal(1, "DSP48E2 model: this BMULTSEL is not modelled");
        if (PREADDINSEL != "A") $fatal(1, "DSP48E2 model: this PREADDINSEL is not modelled");
        if (A_INPUT != "DIRECT" || B_INPUT != "DIRECT") $fatal(1, "DSP48E2 model: cascaded A or B is not modelled");
        if (USE_MULT != "MULTIPLY") $fatal(1, "DSP48E2 model: this USE_MULT is not modelled");
        if (USE_SIMD != "ONE48") $fatal(1, "DSP48E2 model: this USE_SIMD is not modelled");
        if (USE_PATTERN_DETECT != "NO_PATDET") $fatal(1, "DSP48E2 model: pattern detection is not modelled");
        if (USE_WIDEXOR != "FALSE") $fatal(1, "DSP48E2 model: the wide XOR is not modelled");
        // Control inputs are tied in every use, so that their registers cannot matter; they must be left out.
        if (INMODEREG != 0 || OPMODEREG != 0 || ALUMODEREG != 0 || CARRYINREG != 0 || CARRYINSELREG != 0)
            $fatal(1, "DSP48E2 model: registered control inputs are not modelled");
    end
    // Tied inputs: constant folding leaves nothing of this check in the simulation.
    wire refused = (OPMODE != 9'b00_000_01_01 && OPMODE != 9'b00_001_01_01) || ALUMODE != 0
        || INMODE != (PREADD ? 5'b00100 : 5'b00000) || CARRYIN || CARRYINSEL != 0
        || RSTA || RSTALLCARRYIN || RSTALUMODE || RSTB || RSTC || RSTCTRL || RSTD || RSTINMODE || RSTM || RSTP;
    always @(posedge CLK)
        if (refused)
            $fatal(1, "DSP48E2 model: OPMODE %b, ALUMODE %b, INMODE %b, a carry or a reset is not modelled", OPMODE, ALUMODE, INMODE);

    reg [63:0] poison;
    initial begin
        if (!$value$plusargs("poison=%d", poison)) poison = 1;
        poison = (poison * 64'h9e3779b97f4a7c15) ^ 64'h5bd1e9955bd1e995;
        a1 = poison[26:0];
        a2 = poison[33:7];
        d = poison[39:13];
        ad = poison[45:19];
        b1 = poison[51:34];
        b2 = poison[55:38];
        m = poison[62:18];
        p = poison[47:0] ^ 48'h5a5a_a5a5_3c3c;
    end
endmodule
