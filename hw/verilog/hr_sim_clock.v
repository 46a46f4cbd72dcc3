// The core's clock from the memory's command clock, p/q of it (docs/memory.md, section 12). For simulation only.
//
// A clock gate: the phase says in every command cycle whether the core's clock ticks at its end; the enable is taken over
// while the command clock is low, so an edge of `clk` is an edge of `dram_clk`, at the same instant, and no glitch exists.
// `reset` is `rst` in a register, because a simulator evaluates all that depends on an input in every step. The clock runs
// on during reset; its first tick after `rst` has fallen, where cycle 0 of both clocks begins, sets the phase to 0.
module hr_sim_clock #(
    parameter [63:0] P = 1,
    parameter [63:0] Q = 1
) (
    input  wire dram_clk,
    input  wire rst,
    output wire clk,
    output reg  reset
);
    reg [63:0] phase = 0;
    reg enable = 0;
    wire [63:0] next = phase + P;
    wire tick = next >= Q;
    initial reset = 1;
    always @(posedge dram_clk)
        phase <= !tick ? next : reset ? 64'd0 : next - Q;
    always @(negedge dram_clk)
        enable <= tick;
    assign clk = dram_clk & enable;
    always @(posedge clk)
        reset <= rst;
endmodule
