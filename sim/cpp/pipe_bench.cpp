// Drives a free-running pipeline with one set of operands per clock cycle, and records its results.
//
//     pipe_bench LATENCY INPUT OUTPUT
//
// INPUT holds one native-endian 32-bit word per operand, operand sets back to back; OUTPUT gets one word per
// set. A result is read after LATENCY rising edges, the first of which samples its operands.
// The build defines BINARY (ports a, b, y) or UNARY (ports x, y).
#include "Vtop.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#ifdef BINARY
constexpr size_t operands = 2;
static void drive(Vtop& top, const uint32_t* word) {
    top.a = word[0];
    top.b = word[1];
}
#else
constexpr size_t operands = 1;
static void drive(Vtop& top, const uint32_t* word) { top.x = word[0]; }
#endif

[[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "pipe_bench: %s\n", what);
    std::exit(1);
}

int main(int argc, char** argv) {
    if (argc != 4) fail("usage: pipe_bench LATENCY INPUT OUTPUT");
    const long latency = std::atol(argv[1]);
    if (latency < 1) fail("LATENCY must be at least 1");
    std::FILE* input = std::fopen(argv[2], "rb");
    if (!input || std::fseek(input, 0, SEEK_END)) fail("cannot open INPUT");
    const long bytes = std::ftell(input);
    if (bytes < 0 || bytes % long(4 * operands)) fail("INPUT does not hold whole sets of operands");
    std::rewind(input);
    const size_t count = size_t(bytes) / 4 / operands;
    std::vector<uint32_t> words(count * operands), results;
    if (std::fread(words.data(), 4, words.size(), input) != words.size()) fail("cannot read INPUT");
    std::fclose(input);
    results.reserve(count);

    auto top = std::make_unique<Vtop>();
    for (size_t cycle = 0; results.size() < count; ++cycle) {
        top->clk = 0;
        top->eval();
        // After the last set come complements of it, so that a result taken late is not right by chance.
        if (cycle < count) {
            drive(*top, &words[cycle * operands]);
        } else {
            const uint32_t other[2] = {~words[(count - 1) * operands], ~words[count * operands - 1]};
            drive(*top, other);
        }
        top->clk = 1;
        top->eval();
        if (cycle + 1 >= size_t(latency)) results.push_back(top->y);
    }
    top->final();

    std::FILE* output = std::fopen(argv[3], "wb");
    if (!output || std::fwrite(results.data(), 4, results.size(), output) != results.size()) fail("cannot write OUTPUT");
    if (std::fclose(output)) fail("cannot write OUTPUT");
}
