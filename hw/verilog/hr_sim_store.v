// The bytes of the simulated memory: one array of 32-byte beats behind all ports. For simulation only.
//
// Timing is none of its business: a read is done in the cycle in which its port says so (data in the next, held
// until the port's next read), and so is a byte-strobed write. Port p's beat a is global beat a * PORTS + p
// (docs/machine.md, section 1). A beat past DEPTH reads as poison and is not written.
//
// +image=FILE     first bytes of the memory; the rest is filled from +poison=N (default 1)
// +fill_beats=N   fill the first N beats only (a host that knows what it uses saves start time); the others hold zeros
// +dump=FILE +dump_base=BEAT +dump_beats=N   and likewise dump1, dump2, dump3: regions written when simulation ends
module hr_sim_store #(
    parameter PORTS = 2,
    parameter DEPTH = 1 << 22,
    parameter ADDR_BITS = 28
) (
    input  wire                       clk,
    input  wire [PORTS-1:0]           r_en,
    input  wire [PORTS*ADDR_BITS-1:0] r_addr,
    output wire [PORTS*256-1:0]       r_data,
    input  wire [PORTS-1:0]           w_en,
    input  wire [PORTS*ADDR_BITS-1:0] w_addr,
    input  wire [PORTS*256-1:0]       w_data,
    input  wire [PORTS*32-1:0]        w_strb
);
    // A beat is kept as $fread delivers it, first byte on top, until the loop below turns it round.
    reg [255:0] mem [0:DEPTH-1];
    reg [31:0] poison;

    genvar p;
    generate
        for (p = 0; p < PORTS; p = p + 1) begin : port
            // 33 address bits less 5, times 64 ports at most: 34 bits.
            wire [63:0] r_beat = {{(64-ADDR_BITS){1'b0}}, r_addr[p*ADDR_BITS +: ADDR_BITS]} * PORTS + p;
            wire [63:0] w_beat = {{(64-ADDR_BITS){1'b0}}, w_addr[p*ADDR_BITS +: ADDR_BITS]} * PORTS + p;
            reg [255:0] data;
            assign r_data[p*256 +: 256] = data;
            integer i;
            always @(posedge clk) begin
                if (r_en[p])
                    data <= r_beat < DEPTH ? mem[r_beat[31:0]] : {8{poison}};
                if (w_en[p] && w_beat < DEPTH)
                    for (i = 0; i < 32; i = i + 1)
                        if (w_strb[p*32 + i])
                            mem[w_beat[31:0]][8*i +: 8] <= w_data[p*256 + 8*i +: 8];
            end
        end
    endgenerate

    function [31:0] turned(input [31:0] x);
        turned = {x[7:0], x[15:8], x[23:16], x[31:24]};
    endfunction

    reg [8*1024-1:0] file;
    reg [255:0] raw;
    integer descriptor, bytes, i, filled, fill_end;
    initial begin
        if (!$value$plusargs("poison=%d", poison))
            poison = 1;
        poison = (poison * 32'h9e3779b1) ^ 32'h2545f491;
        if (poison == 0)
            poison = 1;
        filled = 0;
        if ($value$plusargs("image=%s", file)) begin
            descriptor = $fopen(file, "rb");
            if (descriptor == 0) begin
                $display("hr_sim_store: cannot open image %0s", file);
                $fatal(1);
            end
            bytes = $fread(mem, descriptor);
            // One byte more tells a file that fits exactly from one that does not.
            if (bytes == 32 * DEPTH && $fgetc(descriptor) != -1) begin
                $display("hr_sim_store: image %0s is larger than the memory of %0d bytes", file, 32 * DEPTH);
                $fatal(1);
            end
            $fclose(descriptor);
            if (bytes % 32 != 0) begin
                $display("hr_sim_store: image %0s has %0d bytes, not a multiple of 32", file, bytes);
                $fatal(1);
            end
            filled = bytes / 32;
            for (i = 0; i < filled; i = i + 1) begin
                raw = mem[i];
                mem[i] = {turned(raw[31:0]), turned(raw[63:32]), turned(raw[95:64]), turned(raw[127:96]),
                          turned(raw[159:128]), turned(raw[191:160]), turned(raw[223:192]), turned(raw[255:224])};
            end
        end
        // One xorshift32 step a beat, spread by constants: cheap, and different in every float of the memory.
        if (!$value$plusargs("fill_beats=%d", fill_end) || fill_end > DEPTH)
            fill_end = DEPTH;
        for (i = filled; i < fill_end; i = i + 1) begin
            poison = poison ^ (poison << 13);
            poison = poison ^ (poison >> 17);
            poison = poison ^ (poison << 5);
            mem[i] = {poison ^ 32'h7ed55d16, poison ^ 32'hc761c23c, poison ^ 32'h165667b1, poison ^ 32'hd3a2646c,
                      poison ^ 32'hfd7046c5, poison ^ 32'hb55a4f09, poison ^ 32'h85ebca6b, poison};
        end
    end

`define HR_DUMP(NAME) \
        if ($value$plusargs({NAME, "=%s"}, file)) begin \
            if (!$value$plusargs({NAME, "_base=%d"}, dump_base)) dump_base = 0; \
            if (!$value$plusargs({NAME, "_beats=%d"}, dump_beats)) dump_beats = 0; \
            descriptor = $fopen(file, "wb"); \
            if (descriptor == 0) $display("hr_sim_store: cannot write %0s", file); \
            else begin \
                for (i = dump_base; i < dump_base + dump_beats && i < DEPTH; i = i + 1) $fwrite(descriptor, "%u", mem[i]); \
                $fclose(descriptor); \
            end \
        end

    integer dump_base, dump_beats;
    final begin
        `HR_DUMP("dump")
        `HR_DUMP("dump1")
        `HR_DUMP("dump2")
        `HR_DUMP("dump3")
    end
endmodule
