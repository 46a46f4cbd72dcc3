// Simple dual-port RAM: one write port with lane enables, one read port with latency 1 or 2, one clock.
//
// Written in the form that Vivado and Yosys infer as block RAM, UltraRAM or LUT RAM (STYLE: "auto", "block",
// "ultra", "distributed"). Reading an address in the cycle in which it is written returns unspecified data.
// r_data holds its value until the next read's data arrive.
//
// In simulation nothing starts at zero: contents and output registers are filled from +poison=N (default 1), and
// a read that collides with a write of its address returns a poison pattern, so that code relying on either shows.
module hr_ram_sdp #(
    parameter WIDTH = 32,
    parameter DEPTH = 512,
    parameter ADDR_BITS = 9,
    parameter GRANULARITY = WIDTH,
    parameter READ_LATENCY = 1,
    parameter STYLE = "auto"
) (
    input  wire                           clk,
    input  wire [WIDTH/GRANULARITY-1:0]   w_en,
    input  wire [ADDR_BITS-1:0]           w_addr,
    input  wire [WIDTH-1:0]               w_data,
    input  wire                           r_en,
    input  wire [ADDR_BITS-1:0]           r_addr,
    output wire [WIDTH-1:0]               r_data
);
    localparam LANES = WIDTH / GRANULARITY;

    (* ram_style = STYLE *)
    reg [WIDTH-1:0] mem [0:DEPTH-1];
    reg [WIDTH-1:0] read_q;

    integer lane;
    always @(posedge clk)
        for (lane = 0; lane < LANES; lane = lane + 1)
            if (w_en[lane])
                mem[w_addr][lane*GRANULARITY +: GRANULARITY] <= w_data[lane*GRANULARITY +: GRANULARITY];

`ifdef SYNTHESIS
    always @(posedge clk)
        if (r_en)
            read_q <= mem[r_addr];
`else
    reg [WIDTH-1:0] collision;
    always @(posedge clk)
        if (r_en)
            read_q <= (|w_en && w_addr == r_addr) ? collision : mem[r_addr];
`endif

    generate
        if (READ_LATENCY == 1) begin : latency1
            assign r_data = read_q;
        end else begin : latency2
            reg second_en = 1'b0;
            reg [WIDTH-1:0] second_q;
            always @(posedge clk) begin
                second_en <= r_en;
                if (second_en)
                    second_q <= read_q;
            end
            assign r_data = second_q;
`ifndef SYNTHESIS
            initial second_q = {((WIDTH + 31) / 32){32'hdeadbeef}};
`endif
        end
    endgenerate

`ifndef SYNTHESIS
    // Marsaglia's xorshift32: three shifts a 32-bit chunk, so filling a large scratchpad takes no time.
    reg [31:0] poison;
    reg [WIDTH+31:0] fill;
    integer address, chunk;
    initial begin
        if (!$value$plusargs("poison=%d", poison))
            poison = 1;
        poison = (poison * 32'h9e3779b1) ^ 32'h5bd1e995;
        if (poison == 0)
            poison = 1;
        // One word more than DEPTH, for the registers. (Parameters may arrive unsigned: no negative index here.)
        for (address = 0; address <= DEPTH; address = address + 1) begin
            for (chunk = 0; chunk * 32 < WIDTH; chunk = chunk + 1) begin
                poison = poison ^ (poison << 13);
                poison = poison ^ (poison >> 17);
                poison = poison ^ (poison << 5);
                fill[32*chunk +: 32] = poison;
            end
            if (address < DEPTH)
                mem[address] = fill[WIDTH-1:0];
            else begin
                read_q = fill[WIDTH-1:0];
                collision = ~fill[WIDTH-1:0];
            end
        end
    end
`endif
endmodule
