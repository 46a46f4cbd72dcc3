// One DSP48E2 configuration against recorded stimuli: INPUT holds per cycle {a, b, d, pcin low, pcin high, enable} as
// u32, OUTPUT gets P as u64 after each clock edge.
#include "Vtop.h"
#include "verilated.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    auto top = std::make_unique<Vtop>(&context);
    std::FILE* input = std::fopen(argv[1], "rb");
    std::FILE* output = std::fopen(argv[2], "wb");
    if (!input || !output) return 1;
    for (uint32_t word[6]; std::fread(word, 4, 6, input) == 6;) {
        top->clk = 0;
        top->a = word[0];
        top->b = word[1];
        top->d = word[2];
        top->pcin = word[3] | uint64_t(word[4]) << 32;
        top->en = word[5];
        top->eval();
        top->clk = 1;
        top->eval();
        const uint64_t p = top->p;
        if (std::fwrite(&p, 8, 1, output) != 1) return 1;
        if (context.gotFinish() || context.gotError()) return 3;
    }
    top->final();
    return std::fclose(output) ? 1 : 0;
}
