// Retirement trace to the file of +trace=FILE; without it, nothing. For simulation only.
//
// One record of 16 bytes per retired instruction, little endian: queue u8, 0 u8, pc u16, signature u32, cycle u64.
// Records of one cycle stand in the order of their queues.
module hr_sim_trace #(
    parameter QUEUES = 5
) (
    input wire                 clk,
    input wire [63:0]          cycle,
    input wire [QUEUES-1:0]    valid,
    input wire [QUEUES*16-1:0] pc,
    input wire [QUEUES*32-1:0] sig
);
    reg [8*1024-1:0] file;
    integer descriptor = 0;
    initial
        if ($value$plusargs("trace=%s", file)) begin
            descriptor = $fopen(file, "wb");
            if (descriptor == 0) begin
                $display("hr_sim_trace: cannot write %0s", file);
                $fatal(1);
            end
        end

    integer q;
    always @(posedge clk)
        if (|valid && descriptor != 0)
            for (q = 0; q < QUEUES; q = q + 1)
                if (valid[q])
                    $fwrite(descriptor, "%u%u%u%u", {pc[16*q +: 16], 8'd0, q[7:0]}, sig[32*q +: 32], cycle[31:0], cycle[63:32]);

    final
        if (descriptor != 0)
            $fclose(descriptor);
endmodule
