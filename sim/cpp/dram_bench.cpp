// A trace through one DramChannel: dram_bench TRACE RESULT STALL_CYCLES PARAMETER...
// The macro PARAMETERS names the inputs that take the parameters, in their order.
// TRACE: records of 16 bytes {u64 arrival; u32 row; u16 bank; u8 port; u8 write}, little-endian, in order.
// RESULT: u64 {accepted, completion} per request. Prints the cycles that ran.
// Ends with status 3 when nothing was accepted or issued for STALL_CYCLES cycles after the last arrival.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "Vtop.h"
#include "verilated.h"

struct Request {
    uint64_t arrival;
    uint32_t row;
    uint16_t bank;
    uint8_t port, write;
};
static_assert(sizeof(Request) == 16, "no padding");
struct Result {
    uint64_t accepted, completion;
};

int main(int argc, char** argv) {
#define COUNT(name) +1
    if (argc != 4 PARAMETERS(COUNT)) return fprintf(stderr, "usage: dram_bench TRACE RESULT STALL_CYCLES PARAMETER...\n"), 2;
    std::vector<Request> trace;
    FILE* file = fopen(argv[1], "rb");
    if (!file) return perror(argv[1]), 2;
    Request one;
    while (fread(&one, sizeof one, 1, file) == 1) trace.push_back(one);
    fclose(file);
    const uint64_t stall = strtoull(argv[3], nullptr, 10);
    const size_t count = trace.size();
    std::vector<Result> results(count, Result{0, 0});

    VerilatedContext context;
    Vtop top(&context);
    char** value = argv + 4;
#define SET(name) top.set_##name = strtoull(*value++, nullptr, 10);
    PARAMETERS(SET)
    top.clk = 0;
    top.rst = 1;
    top.load = 1;
    top.request_valid = 0;
    top.eval();
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.rst = 0;
    top.load = 0;
    size_t next = 0, done = 0;
    uint64_t quiet = 0, cycle = 0;
    for (; done < count; cycle++) {
        const bool valid = next < count && trace[next].arrival <= cycle;
        top.request_valid = valid;
        if (valid) {
            top.request_write = trace[next].write;
            top.request_bank = trace[next].bank;
            top.request_row = trace[next].row;
            top.request_port = trace[next].port;
            top.request_tag = next;
        }
        top.eval();
        if (top.now != cycle) return fprintf(stderr, "cycle %" PRIu64 " is %" PRIu64 " in the channel\n", cycle, (uint64_t)top.now), 1;
        bool moved = next < count && !valid;
        if (top.done_valid) {
            const size_t tag = top.done_tag;
            if (tag >= next || results[tag].completion || top.done_write != trace[tag].write)
                return fprintf(stderr, "cycle %" PRIu64 ": tag %zu is not waiting\n", cycle, tag), 1;
            results[tag].completion = top.done_cycle;
            done++;
            moved = true;
        }
        if (valid && top.request_ready) {
            results[next++].accepted = cycle;
            moved = true;
        }
        quiet = moved ? 0 : quiet + 1;
        if (quiet > stall) return fprintf(stderr, "cycle %" PRIu64 ": %zu of %zu requests, then nothing\n", cycle, done, count), 3;
        top.clk = 1;
        top.eval();
        top.clk = 0;
    }
    file = fopen(argv[2], "wb");
    if (!file || fwrite(results.data(), sizeof(Result), count, file) != count || fclose(file)) return perror(argv[2]), 2;
    printf("%" PRIu64 "\n", cycle);
    return 0;
}
