// The SFU alone: runs a file of VEC commands on it, with its two buffers modelled here, and writes what it left.
//
// sfu_bench IN OUT [gap seed]
// IN (little endian u32): VB rows, AB slices, commands; VB; AB; per command op, flags, pc, o1..o7.
// OUT: per command: kind (0 done, 1 error), pc, signature or error code, cycles from acceptance; then VB; AB; then
// total cycles and reads that met a write of their row. The command waits between commands come from the seed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

// Verilator writes the "__" in a port name as "___05F".
static const uint64_t LIMIT = 20000000;

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vtop top(&context);
    FILE* in = fopen(argv[1], "rb");
    uint32_t head[3];
    if (!in || fread(head, 4, 3, in) != 3) return 2;
    const uint32_t rows = head[0], slices = head[1], commands = head[2];
    std::vector<uint32_t> vb(8 * rows), ab(4 * slices), list(10 * commands), out;
    if (fread(vb.data(), 4, vb.size(), in) != vb.size() || fread(ab.data(), 4, ab.size(), in) != ab.size() ||
        fread(list.data(), 4, list.size(), in) != list.size())
        return 2;
    fclose(in);
    std::mt19937 rng(argc > 3 ? atoi(argv[3]) : 1);
    uint32_t collisions = 0;
    uint32_t vb_pipe[2][8], ab_pipe[2][4];
    for (auto& stage : vb_pipe) for (auto& x : stage) x = rng();
    for (auto& stage : ab_pipe) for (auto& x : stage) x = rng();
    uint32_t next = 0, finished = 0, gap = 0;
    uint64_t cycle = 0, accepted = 0;
    top.rst = 1;
    top.clk = 0;
    top.cmd___05Fvalid = 0;
    top.eval();
    for (; finished < commands && cycle < LIMIT; cycle++) {
        // Inputs of this cycle.
        if (next < commands && gap == 0 && cycle > 2) {
            const uint32_t* c = &list[10 * next];
            top.cmd___05Fvalid = 1;
            // pc[16], op[8], flags[14], o1..o7[32], lowest first.
            uint32_t words[9] = {0};
            unsigned __int128 front = (unsigned __int128)(c[2] & 0xffff) | (unsigned __int128)(c[0] & 0xff) << 16 |
                                      (unsigned __int128)(c[1] & 0x3fff) << 24;
            words[0] = (uint32_t)front;
            words[1] = (uint32_t)(front >> 32);
            for (int i = 0; i < 7; i++) {
                uint64_t v = (uint64_t)c[3 + i] << 6;
                words[1 + i] |= (uint32_t)v;
                words[2 + i] |= (uint32_t)(v >> 32);
            }
            for (int i = 0; i < 9; i++) top.cmd___05Fpayload[i] = words[i];
        } else {
            top.cmd___05Fvalid = 0;
        }
        top.rst = cycle < 2;
        top.eval();
        if (gap) gap--;
        // Outputs of this cycle.
        // done: valid, pc[16], sig[32]; error: valid, code[8], pc[16]; lowest first.
        const bool failed = top.error & 1;
        if ((top.done & 1) || failed) {
            if ((top.done & 1) && failed) return 3;
            if (finished == next) return 3;
            out.push_back(failed);
            out.push_back(failed ? top.error >> 9 : (uint32_t)(top.done >> 1) & 0xffff);
            out.push_back(failed ? top.error >> 1 & 0xff : (uint32_t)(top.done >> 17));
            out.push_back((uint32_t)(cycle - accepted));
            finished++;
        }
        if (top.cmd___05Fvalid && top.cmd___05Fready && !top.rst) {
            accepted = cycle;
            next++;
            gap = argc > 3 && rng() % 2 ? rng() % 40 : 0;
        }
        memcpy(vb_pipe[1], vb_pipe[0], sizeof vb_pipe[0]);
        memcpy(ab_pipe[1], ab_pipe[0], sizeof ab_pipe[0]);
        if (top.vb_read___05Fvalid) {
            bool hit = top.vb_write___05Fvalid && top.vb_write___05Frow == top.vb_read___05Frow;
            collisions += hit;
            for (int i = 0; i < 8; i++) vb_pipe[0][i] = hit ? rng() : vb[8 * top.vb_read___05Frow + i];
        } else {
            for (auto& x : vb_pipe[0]) x = 0xdeadbeef;
        }
        if (top.ab_read___05Fvalid) {
            bool hit = top.ab_write___05Fvalid && top.ab_write___05Fslice == top.ab_read___05Fslice;
            collisions += hit;
            for (int i = 0; i < 4; i++) ab_pipe[0][i] = hit ? rng() : ab[4 * top.ab_read___05Fslice + i];
        } else {
            for (auto& x : ab_pipe[0]) x = 0xdeadbeef;
        }
        if (top.vb_write___05Fvalid)
            for (int i = 0; i < 8; i++) vb[8 * top.vb_write___05Frow + i] = top.vb_write___05Fdata[i];
        if (top.ab_write___05Fvalid) {
            uint64_t data = top.ab_write___05Fdata;
            memcpy(&ab[4 * top.ab_write___05Fslice + 2 * top.ab_write___05Fhalf], &data, 8);
        }
        top.clk = 1;
        top.eval();
        top.clk = 0;
        for (int i = 0; i < 8; i++) top.vb_read___05Fdata[i] = vb_pipe[1][i];
        for (int i = 0; i < 4; i++) top.ab_read___05Fdata[i] = ab_pipe[1][i];
    }
    if (finished < commands) {
        fprintf(stderr, "command %u of %u is not finished after %llu cycles\n", finished, commands, (unsigned long long)cycle);
        return 4;
    }
    out.insert(out.end(), vb.begin(), vb.end());
    out.insert(out.end(), ab.begin(), ab.end());
    out.push_back((uint32_t)cycle);
    out.push_back(collisions);
    FILE* result = fopen(argv[2], "wb");
    if (!result || fwrite(out.data(), 4, out.size(), result) != out.size()) return 2;
    fclose(result);
    return 0;
}
