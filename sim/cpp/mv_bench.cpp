// Drives the matrix-vector engine from a file of commands, words and buffer contents; records what it does.
//
//     mv_bench INPUT OUTPUT [+poison=N]
//
// INPUT, native-endian u32: 0 commands, 1 words, 2 u32 per word, 3 activation slices, 4 vector rows, 5 seed,
// 6..9 pauses per 1000 cycles of commands, weights, vector-buffer reads and writes, 10 largest count of cycles,
// 11 retirements to wait for; then the commands (9 u32 each), words, slices (4 u32), rows (8 u32).
// OUTPUT, records of 12 u32: {1, cycle, row, 8 lanes}, {2, cycle, pc, signature}, {3, cycle, code, pc}, and at the end
// {4, cycles, active, words, first word's cycle, last word's cycle, 4 stall counts, processor
// microseconds, accounting faults}.
// Verilator writes the ports' double underscores as ___05F.
#include "Vtop.h"
#include "verilated.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

static uint64_t state;
static uint32_t rnd() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 16);
}

// Pauses come in runs of 1 to 8 cycles, one in sixteen of them of up to 200.
struct Pauses {
    uint32_t per_mille, left = 0;
    bool open() {
        if (left) {
            --left;
            return false;
        }
        if (!per_mille || rnd() % 1000 >= per_mille) return true;
        left = rnd() % 16 ? rnd() % 8 : rnd() % 200;
        return false;
    }
};

[[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "mv_bench: %s\n", what);
    std::exit(1);
}

template <class Port> static void put(Port& port, const uint32_t* words, size_t count) {
    std::memcpy(&port, words, 4 * count);
}

int main(int argc, char** argv) {
    if (argc < 3) fail("usage: mv_bench INPUT OUTPUT");
    VerilatedContext context;
    context.commandArgs(argc, argv);
    std::FILE* file = std::fopen(argv[1], "rb");
    if (!file) fail("cannot open INPUT");
    std::vector<uint32_t> input;
    for (uint32_t chunk[4096];;) {
        const size_t n = std::fread(chunk, 4, 4096, file);
        if (!n) break;
        input.insert(input.end(), chunk, chunk + n);
    }
    std::fclose(file);
    if (input.size() < 12) fail("INPUT is too short");
    const uint32_t commands = input[0], words = input[1], word_size = input[2], slices = input[3], rows = input[4];
    state = 0x9e3779b97f4a7c15ull * (input[5] + 1);
    Pauses pause_cmd{input[6]}, pause_weights{input[7]}, pause_read{input[8]}, pause_write{input[9]};
    const uint64_t limit = input[10], retire = input[11];
    const uint32_t* command = &input[12];
    const uint32_t* word = command + 9 * size_t(commands);
    const uint32_t* ab = word + size_t(words) * word_size;
    const uint32_t* vb = ab + 4 * size_t(slices);
    if (size_t(vb - input.data()) + 8 * size_t(rows) != input.size()) fail("INPUT has the wrong size");

    auto top = std::make_unique<Vtop>(&context);
    std::vector<uint32_t> output;
    auto record = [&](std::initializer_list<uint32_t> fields) {
        output.insert(output.end(), fields);
        output.insert(output.end(), 12 - fields.size(), 0u);
    };
    top->cmd___05Fvalid = top->weights___05Fvalid = top->vb_read___05Fvalid = top->vb_write___05Fready = top->vb_read___05Frequest___05Fready = 0;
    top->rst = 1;
    for (int i = 0; i < 4; ++i) {
        top->clk = i & 1;
        top->eval();
    }
    top->rst = 0;

    uint32_t sent = 0, used = 0, retired = 0, first = 0, final = 0, active = 0, faults = 0, stalls[4] = {};
    bool ended = false;
    int64_t ab_pipe[2] = {-1, -1}, vb_pipe[2] = {-1, -1};
    uint64_t cycle = 0;
    const std::clock_t start = std::clock();
    for (; cycle < limit && !ended && retired < retire; ++cycle) {
        top->clk = 0;
        if (!top->cmd___05Fvalid && sent < commands && pause_cmd.open()) {
            top->cmd___05Fvalid = 1;
            put(top->cmd___05Fpayload, command + 9 * size_t(sent), 9);
        }
        if (!top->weights___05Fvalid && used < words && pause_weights.open()) {
            top->weights___05Fvalid = 1;
            put(top->weights___05Fpayload, word + size_t(used) * word_size, word_size);
        }
        top->vb_write___05Fready = pause_write.open();
        top->vb_read___05Frequest___05Fready = pause_read.open();
        // Buffers answer two cycles after the request, with noise at other times.
        if (ab_pipe[1] >= 0) {
            put(top->ab_read___05Fdata, ab + 4 * ab_pipe[1], 4);
        } else {
            for (int i = 0; i < 4; ++i) top->ab_read___05Fdata[i] = rnd();
        }
        top->vb_read___05Fvalid = vb_pipe[1] >= 0;
        if (vb_pipe[1] >= 0) {
            put(top->vb_read___05Fdata, vb + 8 * vb_pipe[1], 8);
        } else {
            top->vb_read___05Fdata[0] = rnd();
        }
        top->eval();

        const bool cmd_taken = top->cmd___05Fvalid && top->cmd___05Fready, word_taken = top->weights___05Fvalid && top->weights___05Fready;
        ab_pipe[1] = ab_pipe[0];
        vb_pipe[1] = vb_pipe[0];
        ab_pipe[0] = top->ab_read___05Fvalid ? int64_t(top->ab_read___05Fslice) : -1;
        vb_pipe[0] = top->vb_read___05Frequest___05Fvalid && top->vb_read___05Frequest___05Fready ? int64_t(top->vb_read___05Frequest___05Fpayload) : -1;
        if ((ab_pipe[0] >= int64_t(slices)) || (vb_pipe[0] >= int64_t(rows))) fail("a read past its buffer");
        if (top->vb_write___05Fvalid && top->vb_write___05Fready) {
            const auto& p = top->vb_write___05Fpayload;
            record({1, uint32_t(cycle), p[8], p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]});
        }
        if (top->done & 1) {
            ++retired;
            record({2, uint32_t(cycle), uint32_t(top->done >> 1) & 0xffff, uint32_t(top->done >> 17)});
        }
        if (top->error & 1) {
            record({3, uint32_t(cycle), (top->error >> 1) & 0xffu, (top->error >> 9) & 0xffffu});
            ended = true;
        }
        if (top->active) {
            ++active;
            // Exactly one of: a word taken, a stall cause.
            if (word_taken + __builtin_popcount(top->stall) != 1) ++faults;
            for (int i = 0; i < 4; ++i) stalls[i] += top->stall >> i & 1;
        } else if (top->stall || word_taken) {
            ++faults;
        }
        if (word_taken) {
            if (!used) first = uint32_t(cycle);
            final = uint32_t(cycle);
            ++used;
        }
        top->clk = 1;
        top->eval();
        // After the edge, so that the model samples what was there before it.
        if (cmd_taken) {
            ++sent;
            top->cmd___05Fvalid = 0;
        }
        if (word_taken) top->weights___05Fvalid = 0;
    }
    const double spent_s = double(std::clock() - start) / CLOCKS_PER_SEC;
    record({4, uint32_t(cycle), active, used, first, final, stalls[0], stalls[1], stalls[2], stalls[3],
            uint32_t(1e6 * spent_s), faults});
    top->final();
    file = std::fopen(argv[2], "wb");
    if (!file || std::fwrite(output.data(), 4, output.size(), file) != output.size()) fail("cannot write OUTPUT");
    if (std::fclose(file)) fail("cannot write OUTPUT");
}
