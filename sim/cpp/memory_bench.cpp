// Drives MemoryBench (sim/memory_bench.py): a list of commands in, retirements and words out.
// (Verilator writes the double underscore of a stream port as ___05F.)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

namespace {

// xorshift64*: cheap enough to draw every gate in every cycle.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}
    uint32_t next() {
        state ^= state >> 12; state ^= state << 25; state ^= state >> 27;
        return uint32_t((state * 0x2545f4914f6cdd1dULL) >> 32);
    }
    bool chance(unsigned percent) { return next() % 100 < percent; }
};

struct Step { uint32_t unit; uint32_t command[9]; };
constexpr uint32_t LD = 0, ST = 1, BARRIER = 2;

std::vector<Step> read_steps(const std::string& path) {
    std::vector<Step> steps;
    FILE* file = std::fopen(path.c_str(), "rb");
    Step step;
    while (file && std::fread(&step, sizeof step, 1, file) == 1) steps.push_back(step);
    if (file) std::fclose(file);
    return steps;
}

// Done {valid, pc[16], sig[32]} and Error {valid, code[8], pc[16]}, first field lowest.
void report(const char* kind, int queue, uint64_t pc, uint64_t value, uint64_t cycle) {
    std::printf("%s %d %llu %llu %llu\n", kind, queue, (unsigned long long)pc, (unsigned long long)value, (unsigned long long)cycle);
}
void report_done(int queue, uint64_t done, uint64_t cycle) {
    if (done & 1) report("done", queue, done >> 1 & 0xffff, done >> 17 & 0xffffffff, cycle);
}
bool report_error(int queue, uint64_t error, uint64_t cycle) {
    if (error & 1) report("error", queue, error >> 9 & 0xffff, error >> 1 & 0xff, cycle);
    return error & 1;
}

}  // namespace

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    const std::string folder = argv[1];
    Random random(std::strtoull(argv[2], nullptr, 10));
    const unsigned gate_percent = std::atoi(argv[3]), sink_percent = std::atoi(argv[4]);
    const bool record = argv[5][0] == '1';
    const uint64_t timeout = std::strtoull(argv[6], nullptr, 10);
    const auto steps = read_steps(folder + "/steps");
    auto top = std::make_unique<Vtop>(&context);
    FILE* weights = std::fopen((folder + "/weights").c_str(), "wb");
    FILE* sys = std::fopen((folder + "/sys").c_str(), "wb");

    top->clk = 0;
    top->rst = 0;
    top->gates = 0;
    top->ld_cmd___05Fvalid = top->st_cmd___05Fvalid = 0;
    top->eval();

    uint64_t stalls[LD_CAUSES + ST_CAUSES] = {};
    uint64_t cycle = 0, first = 0, last = 0, tail = 0;
    size_t at = 0;
    bool failed = false, any = false;
    const uint64_t all = (GATE_COUNT >= 64) ? ~0ULL : (1ULL << GATE_COUNT) - 1;
    for (; cycle < timeout && !context.gotFinish(); cycle++) {
        uint64_t gates = all;
        if (gate_percent < 100) {
            for (int i = 0; i < GATE_COUNT; i++) if (!random.chance(gate_percent)) gates &= ~(1ULL << i);
        }
        top->gates = gates;
        top->weights___05Fready = sink_percent >= 100 || random.chance(sink_percent);
        top->sys___05Fready = sink_percent >= 100 || random.chance(sink_percent);
        const uint32_t unit = at < steps.size() ? steps[at].unit : ~0u;
        top->ld_cmd___05Fvalid = unit == LD;
        top->st_cmd___05Fvalid = unit == ST;
        if (unit == LD) for (int i = 0; i < 9; i++) top->ld_cmd___05Fpayload[i] = steps[at].command[i];
        if (unit == ST) for (int i = 0; i < 9; i++) top->st_cmd___05Fpayload[i] = steps[at].command[i];
        top->eval();

        // What happens at this clock edge.
        if (top->weights___05Fvalid && top->weights___05Fready) {
            if (!any) first = cycle;
            any = true;
            last = cycle;
            if (record) for (int i = 0; i < WORD_WORDS; i++) { uint32_t x = top->weights___05Fpayload[i]; std::fwrite(&x, 4, 1, weights); }
        }
        if (top->sys___05Fvalid && top->sys___05Fready && record)
            for (int i = 0; i < WORD_WORDS; i++) { uint32_t x = top->sys___05Fpayload[i]; std::fwrite(&x, 4, 1, sys); }
        report_done(0, top->ld_done, cycle);
        report_done(1, top->st_done, cycle);
        failed |= report_error(0, top->ld_error, cycle) | report_error(1, top->st_error, cycle);
        for (int i = 0; i < LD_CAUSES; i++) stalls[i] += top->ld_stall >> i & 1;
        for (int i = 0; i < ST_CAUSES; i++) stalls[LD_CAUSES + i] += top->st_stall >> i & 1;
        const bool idle = !top->ld_active && !top->st_active;
        if ((unit == LD && top->ld_cmd___05Fready) || (unit == ST && top->st_cmd___05Fready) || (unit == BARRIER && idle)) at++;
        // A few cycles more, for the retirements; after an error the units are silent, and time shows that they are.
        if ((at >= steps.size() && idle) || failed) {
            if (++tail > (failed ? 200u : 4u)) break;
        } else {
            tail = 0;
        }
        top->clk = 1;
        top->eval();
        top->clk = 0;
    }
    std::printf("cycles %llu\nfirst %llu\nlast %llu\n", (unsigned long long)cycle, (unsigned long long)first, (unsigned long long)last);
    for (int i = 0; i < LD_CAUSES + ST_CAUSES; i++)
        std::printf("stall %s %d %llu\n", i < LD_CAUSES ? "ld" : "st", i < LD_CAUSES ? i : i - LD_CAUSES, (unsigned long long)stalls[i]);
    top->final();
    std::fclose(weights);
    std::fclose(sys);
    if (cycle >= timeout) {
        std::printf("no end within %llu cycles\n", (unsigned long long)timeout);
        return 3;
    }
    return 0;
}
