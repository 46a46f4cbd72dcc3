// Self-checking testbench: a host on AXI4-Lite that runs one memory image and compares what the machine wrote with
// what was expected. Expectations are read after the machine has halted; nothing of the design can see them.
//
// +image=FILE +tokens=FILE +logits=FILE   instead of the files beside it      +poison=N   content of RAMs before first use
// +limit=CYCLES                           give up (default 2000000000)
//
// Prints "PASS ..." and ends with status 0, or "FAIL: ..." lines and a fatal error.
`timescale 1ns / 1ps
`include "hr_tb_parameters.vh"

module hr_tb;
    localparam SHOWN = 5;  // differences that are printed

    reg rst = 1;
`ifdef HR_DRAM_CLOCK  // the memory's command clock drives the machine's
    reg dram_clk = 0;
    wire clk;
    always #1 dram_clk = ~dram_clk;
`else
    reg clk = 0;
    always #1 clk = ~clk;
`endif

    reg aw_valid = 0, w_valid = 0, b_ready = 0, ar_valid = 0, r_ready = 0;
    reg [11:0] aw_address = 0, ar_address = 0;
    reg [31:0] w_data = 0;
    wire aw_ready, w_ready, b_valid, ar_ready, r_valid, irq;
    wire [1:0] b_response;
    wire [33:0] r_payload;

    headrace_sim dut (
`ifdef HR_DRAM_CLOCK
        .dram_clk(dram_clk),
`endif
        .clk(clk), .rst(rst), .irq(irq),
        .axil__aw__payload(aw_address), .axil__aw__valid(aw_valid), .axil__aw__ready(aw_ready),
        .axil__w__payload({4'hf, w_data}), .axil__w__valid(w_valid), .axil__w__ready(w_ready),
        .axil__b__payload(b_response), .axil__b__valid(b_valid), .axil__b__ready(b_ready),
        .axil__ar__payload(ar_address), .axil__ar__valid(ar_valid), .axil__ar__ready(ar_ready),
        .axil__r__payload(r_payload), .axil__r__valid(r_valid), .axil__r__ready(r_ready)
    );

    // The host moves on falling edges, where the machine's signals are still.
    task host_write(input [11:0] address, input [31:0] value);
        begin
            aw_address = address;
            w_data = value;
            aw_valid = 1;
            w_valid = 1;
            b_ready = 1;
            @(negedge clk);
            while (!b_valid) @(negedge clk);
            aw_valid = 0;
            w_valid = 0;
            if (b_response != 0) begin
                $display("FAIL: write of %h to register %h: response %0d", value, address, b_response);
                $fatal(1);
            end
            @(negedge clk);
            b_ready = 0;
        end
    endtask

    task host_read(input [11:0] address, output [31:0] value);
        begin
            ar_address = address;
            ar_valid = 1;
            @(negedge clk);
            ar_valid = 0;
            while (!r_valid) @(negedge clk);
            value = r_payload[31:0];
            if (r_payload[33:32] != 0) begin
                $display("FAIL: read of register %h: response %0d", address, r_payload[33:32]);
                $fatal(1);
            end
            r_ready = 1;
            @(negedge clk);
            r_ready = 0;
        end
    endtask

    reg [31:0] tokens [0:`HR_OUTPUTS-1];
    reg [31:0] logits [0:`HR_OUTPUTS*`HR_VOCAB-1];
    reg [8*1024-1:0] file;
    reg [31:0] status, error, error_pc, cycles_low, cycles_high, got;
    reg [255:0] beat;
    reg [63:0] limit, waited;
    integer i, j, differences;

    task differs(input [8*6-1:0] what, input integer row, input integer column, input [31:0] want);
        begin
            if (differences < SHOWN)
                $display("FAIL: %0s[%0d][%0d] is %h, expected %h", what, row, column, got, want);
            differences = differences + 1;
        end
    endtask

    initial begin
        if (!$value$plusargs("limit=%d", limit))
            limit = 64'd2000000000;
        repeat (4) @(negedge clk);
        rst = 0;
        host_write(`HR_ARGUMENTS, `HR_PROMPT_TOKENS);
        host_write(`HR_ARGUMENTS + 4, `HR_OUTPUTS);
        host_write(`HR_HEADER_WORD, 0);
        host_write(`HR_CONTROL, 1 << `HR_START_BIT);
        waited = 0;
        while (!irq && waited < limit) begin
            @(negedge clk);
            waited = waited + 1;
        end
        if (!irq) begin
            $display("FAIL: the machine has not halted after %0d cycles", limit);
            $fatal(1);
        end
        host_write(`HR_CONTROL, 1 << `HR_SNAPSHOT_BIT);
        host_read(`HR_STATUS, status);
        host_read(`HR_ERROR, error);
        host_read(`HR_ERROR_PC, error_pc);
        host_read(`HR_CYCLES, cycles_low);
        host_read(`HR_CYCLES + 4, cycles_high);
        if (status[2]) begin
            $display("FAIL: the machine stopped with error %0d of queue %0d at instruction %0d", error[7:0], error[15:8], error_pc);
            $fatal(1);
        end

        if (!$value$plusargs("tokens=%s", file))
            file = "expected_tokens.hex";
        $readmemh(file, tokens);
        if (!$value$plusargs("logits=%s", file))
            file = "expected_logits.hex";
        $readmemh(file, logits);
        differences = 0;
        for (i = 0; i < `HR_OUTPUTS; i = i + 1) begin
            beat = dut.memory.store.mem[`HR_TOKENS_BEAT + i];
            got = beat[31:0];
            if (got !== tokens[i])
                differs("token", i, 0, tokens[i]);
            for (j = 0; j < `HR_VOCAB; j = j + 1) begin
                beat = dut.memory.store.mem[`HR_LOGITS_BEAT + i * `HR_LOGIT_BEATS + j / 8];
                got = beat[32 * (j % 8) +: 32];
                if (got !== logits[i * `HR_VOCAB + j])
                    differs("logit", i, j, logits[i * `HR_VOCAB + j]);
            end
        end
        if (differences != 0) begin
            $display("FAIL: %0d of %0d values differ", differences, `HR_OUTPUTS * (`HR_VOCAB + 1));
            $fatal(1);
        end
        $display("PASS: %0d tokens and %0d logits equal, bit for bit, in %0d cycles",
                 `HR_OUTPUTS, `HR_OUTPUTS * `HR_VOCAB, {cycles_high, cycles_low});
        $finish;
    end
endmodule
