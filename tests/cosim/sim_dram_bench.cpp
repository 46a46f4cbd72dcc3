// Drives DramMemoryBench (test_sim_dram.py): reads and writes of every port from files, an event for every handshake.
// Arguments: folder, limit in core cycles. Ports are listed by the macro PORTS(X).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

namespace {

struct Read { uint64_t not_before, address; uint32_t len, zero; };
struct Write { uint64_t not_before, address; uint32_t strobe, zero; uint32_t data[8]; };
struct Event { uint32_t kind, port; uint64_t cycle; uint32_t last, response; uint32_t data[8]; };
enum { AR, R, W, B };

template <typename T> std::vector<T> load(const std::string& path) {
    std::vector<T> items;
    FILE* file = std::fopen(path.c_str(), "rb");
    T item;
    while (file && std::fread(&item, sizeof item, 1, file) == 1) items.push_back(item);
    if (file) std::fclose(file);
    return items;
}

struct Port {
    std::vector<Read> reads;
    std::vector<Write> writes;
    std::vector<uint8_t> r_ready, b_ready;  // by core cycle; beyond: ready
    size_t read = 0, write = 0;
    uint64_t beats = 0, answers = 0;
    void open(const std::string& name) {
        reads = load<Read>(name + ".reads");
        writes = load<Write>(name + ".writes");
        r_ready = load<uint8_t>(name + ".r_ready");
        b_ready = load<uint8_t>(name + ".b_ready");
        for (const Read& item : reads) beats += item.len + 1;
        answers = writes.size();
    }
    bool done() const { return !beats && !answers; }
};

uint8_t at(const std::vector<uint8_t>& bits, uint64_t cycle) { return cycle < bits.size() ? bits[cycle] : 1; }

}  // namespace

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    const std::string folder = argv[1];
    const uint64_t limit = std::strtoull(argv[2], nullptr, 10);
    Vtop top{&context};
    std::vector<Port> ports;
#define X(p) ports.emplace_back(); ports.back().open(folder + "/port" #p);
    PORTS(X)
#undef X
    FILE* events = std::fopen((folder + "/events").c_str(), "wb");
    if (!events) return 2;
    auto record = [&](uint32_t kind, uint32_t port, uint64_t cycle, uint32_t last, uint32_t response, const uint32_t* data) {
        Event event{kind, port, cycle, last, response, {}};
        for (int i = 0; data && i < 8; i++) event.data[i] = data[i];
        std::fwrite(&event, sizeof event, 1, events);
    };

    int reset = 4;  // core edges
    uint64_t cycle = 0;
    top.rst = 1;
    top.dram_clk = 0;
    top.eval();
    bool busy = true;
    while (busy && cycle < limit) {
        // What the core's edge, if it comes, will see.
#define X(p) \
        const bool ar##p = top.ar_valid##p && top.ar_ready##p, w##p = top.w_valid##p && top.w_ready##p; \
        const bool r##p = top.r_valid##p && top.r_ready##p, b##p = top.b_valid##p && top.b_ready##p; \
        const uint32_t last##p = top.r_last##p, r_response##p = top.r_resp##p, b_response##p = top.b_resp##p; \
        uint32_t data##p[8]; \
        for (int i = 0; i < 8; i++) data##p[i] = top.r_data##p[i];
        PORTS(X)
#undef X
        top.dram_clk = 1;
        top.eval();
        const bool tick = top.clk;
        if (tick && !reset) {
#define X(p) \
            if (ar##p) { record(AR, p, cycle, 0, 0, nullptr); ports[p].read++; } \
            if (r##p) { record(R, p, cycle, last##p, r_response##p, data##p); ports[p].beats--; } \
            if (w##p) { record(W, p, cycle, 0, 0, nullptr); ports[p].write++; } \
            if (b##p) { record(B, p, cycle, 0, b_response##p, nullptr); ports[p].answers--; }
            PORTS(X)
#undef X
            cycle++;
            busy = false;
            for (const Port& port : ports) busy |= !port.done();
        }
        top.dram_clk = 0;
        top.eval();
        if (!tick) continue;
        if (reset) {
            top.rst = --reset > 1;  // counts from the next falling edge on
            top.eval();
            if (reset) continue;
        }
#define X(p) { \
            const Port& port = ports[p]; \
            top.ar_valid##p = port.read < port.reads.size() && port.reads[port.read].not_before <= cycle; \
            if (top.ar_valid##p) { top.ar_addr##p = port.reads[port.read].address; top.ar_len##p = port.reads[port.read].len; } \
            top.w_valid##p = port.write < port.writes.size() && port.writes[port.write].not_before <= cycle; \
            if (top.w_valid##p) { \
                const Write& item = port.writes[port.write]; \
                top.w_addr##p = item.address; \
                top.w_strb##p = item.strobe; \
                for (int i = 0; i < 8; i++) top.w_data##p[i] = item.data[i]; \
            } \
            top.r_ready##p = at(port.r_ready, cycle); \
            top.b_ready##p = at(port.b_ready, cycle); \
        }
        PORTS(X)
#undef X
        top.eval();
    }
    std::fclose(events);
    top.final();
    return busy ? 3 : 0;
}
