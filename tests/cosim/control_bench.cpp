// Bench of hw/control.py: dummy units with random latency behind the real control.
//
// The dummies accept commands with random readiness, hold up to CAPACITY of them, and finish in order. flags[13] makes
// a unit report the error code in o1 instead of finishing; flags[12] makes it hang. LD_SYS is served from the image.
// Prints one line per event; the checks are in test_control.py.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

// Verilator writes a double underscore of a port name as ___05F.
static Vtop* top;
static uint64_t now;
static bool quiet, calm;
static uint64_t random_state;

static uint32_t rnd() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return uint32_t(random_state >> 16);
}
static bool chance(unsigned percent) { return calm || rnd() % 100 < percent; }

template <typename T>
static uint32_t bits(const T& wide, unsigned at, unsigned width) {
    uint64_t pair = wide[at / 32];
    if (at % 32 + width > 32) pair |= uint64_t(wide[at / 32 + 1]) << 32;
    return uint32_t((pair >> (at % 32)) & ((uint64_t(1) << width) - 1));
}

static std::vector<uint8_t> image;
static const unsigned WORD = WORD_BYTES;

struct Command {
    uint32_t pc, op, flags, o[7];
    uint64_t finish;
};

static uint32_t signature(const Command& c) {
    uint32_t s = c.pc;
    for (uint32_t o : c.o) s = s * 1000003u ^ o;
    return s;
}

struct Unit {
    int queue, capacity;
    unsigned causes;
    std::deque<Command> held;
    uint64_t last = 0;
    uint64_t sys_word = 0, sys_left = 0;
    bool ready = false, dead = false;
};
static Unit units[4] = {{0, 4, 2}, {1, 1, 1}, {2, 3, 2}, {3, 1, 1}};

static uint64_t done_of(bool valid, uint32_t pc, uint32_t sig) { return valid | uint64_t(pc) << 1 | uint64_t(sig) << 17; }
static uint32_t error_of(bool valid, uint32_t code, uint32_t pc) { return valid | code << 1 | pc << 9; }

static uint32_t row_value(uint32_t row, uint32_t lane) { return (row * 8 + lane) * 2654435761u ^ 0x1234567u; }
static std::deque<std::pair<uint64_t, uint32_t>> row_reads;
static uint64_t max_latency = 30;

#define UNIT(i, name)                                                                                                  \
    if (u.queue == i) {                                                                                                \
        top->name##___05Fcmd___05Fready = u.ready;                                                                             \
        top->name##___05Fdone = done;                                                                                      \
        top->name##___05Ferror = error;                                                                                    \
        top->name##___05Factive = !u.held.empty();                                                                         \
        top->name##___05Fstall = calm ? 0 : rnd() & ((1u << u.causes) - 1);                                                \
    }

static void drive() {
    top->words___05Fvalid = 0;
    for (Unit& u : units) {
        u.ready = int(u.held.size()) < u.capacity && chance(60);
        uint64_t done = 0;
        uint32_t error = 0;
        if (!u.held.empty() && !u.dead) {
            Command& c = u.held.front();
            if (c.op == 4 && c.finish <= now && c.o[1]) {
                // Serve words of the boot load; `done` comes when the last one is taken.
                if (chance(50)) {
                    top->words___05Fvalid = 1;
                    for (unsigned i = 0; i < WORD / 4; i++) {
                        uint32_t v = 0;
                        uint64_t at = uint64_t(c.o[0]) * WORD + 4 * i;
                        if (at + 4 <= image.size()) std::memcpy(&v, &image[at], 4);
                        top->words___05Fpayload[i] = v;
                    }
                }
            } else if (c.finish <= now && !(c.flags & 1u << 12)) {
                if (c.flags & 1u << 13) {
                    error = error_of(true, c.o[0] & 0xff, c.pc);
                    u.dead = true;
                } else {
                    done = done_of(true, c.pc, signature(c));
                    if (!quiet && c.op != 4) std::printf("D %lu %d %u %u\n", now, u.queue, c.pc, signature(c));
                }
                u.held.pop_front();
            }
        }
        UNIT(0, ld) UNIT(1, st) UNIT(2, mv) UNIT(3, vec)
    }
    top->row_request___05Fready = chance(70);
    top->row_response[0] = 0;
    if (!row_reads.empty() && row_reads.front().first == now) {
        uint32_t row = row_reads.front().second;
        row_reads.pop_front();
        uint32_t previous = 1;  // bit 0 is `valid`, lanes follow
        for (unsigned i = 0; i < 8; i++) {
            uint32_t v = row_value(row, i);
            top->row_response[i] = previous | v << 1;
            previous = v >> 31;
        }
        top->row_response[8] = previous;
    }
    top->read_beat = calm ? 1 : rnd() & 3;
    top->write_beat = calm ? 0 : rnd() & 3;
    top->mac_slice = calm ? 1 : rnd() & 1;
}

#define ACCEPT(i, name)                                                                                                \
    if (top->name##___05Fcmd___05Fvalid && top->name##___05Fcmd___05Fready) {                                                          \
        Unit& u = units[i];                                                                                            \
        Command c;                                                                                                     \
        c.pc = bits(top->name##___05Fcmd___05Fpayload, 0, 16);                                                                 \
        c.op = bits(top->name##___05Fcmd___05Fpayload, 16, 8);                                                                 \
        c.flags = bits(top->name##___05Fcmd___05Fpayload, 24, 14);                                                             \
        for (int k = 0; k < 7; k++) c.o[k] = bits(top->name##___05Fcmd___05Fpayload, 38 + 32 * k, 32);                         \
        uint64_t want = now + 1 + (calm ? 0 : rnd() % max_latency);                                                    \
        c.finish = u.last = want > u.last ? want : u.last + 1;                                                         \
        if (!quiet && c.op != 4) {                                                                                     \
            std::printf("S %lu %d %u %u %u", now, i, c.pc, c.op, c.flags);                                             \
            for (uint32_t o : c.o) std::printf(" %u", o);                                                              \
            std::printf("\n");                                                                                         \
        }                                                                                                              \
        u.held.push_back(c);                                                                                           \
    }

static void tick() {
    drive();
    top->clk = 0;
    top->eval();
    if (top->words___05Fvalid && top->words___05Fready) {
        Command& c = units[0].held.front();
        c.o[0]++;
        c.o[1]--;
    }
    if (top->row_request___05Fvalid && top->row_request___05Fready) row_reads.push_back({now + 2, top->row_request___05Fpayload});
    ACCEPT(0, ld) ACCEPT(1, st) ACCEPT(2, mv) ACCEPT(3, vec)
    if (!quiet)
        for (int q = 0; q < 5; q++)
            if (bits(top->retired, 49 * q, 1))
                std::printf("T %lu %d %u %u\n", uint64_t(top->cycle), q, bits(top->retired, 49 * q + 1, 16),
                            bits(top->retired, 49 * q + 17, 32));
    top->clk = 1;
    top->eval();
    now++;
}

static uint32_t write_register(uint32_t address, uint32_t value) {
    top->axil___05Faw___05Fvalid = top->axil___05Fw___05Fvalid = 1;
    top->axil___05Faw___05Fpayload = address;
    top->axil___05Fw___05Fpayload = value | uint64_t(15) << 32;
    top->axil___05Fb___05Fready = 1;
    do tick();
    while (!top->axil___05Fb___05Fvalid);
    top->axil___05Faw___05Fvalid = top->axil___05Fw___05Fvalid = 0;
    uint32_t resp = top->axil___05Fb___05Fpayload;
    tick();
    return resp;
}
static uint64_t read_register(uint32_t address) {
    top->axil___05Far___05Fvalid = 1;
    top->axil___05Far___05Fpayload = address;
    top->axil___05Fr___05Fready = 0;
    tick();
    top->axil___05Far___05Fvalid = 0;
    while (!top->axil___05Fr___05Fvalid) tick();
    uint64_t value = top->axil___05Fr___05Fpayload;
    top->axil___05Fr___05Fready = 1;
    tick();
    return value;
}

static std::string argument(const char* name, const char* otherwise) {
    std::string found = Verilated::commandArgsPlusMatch((std::string(name) + "=").c_str());
    return found.empty() ? otherwise : found.substr(std::strlen(name) + 2);
}

int main(int argc, char** argv) {
    Verilated::commandArgs(argc, argv);
    std::ifstream file(argument("image", ""), std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(file), {});
    random_state = std::strtoull(argument("seed", "1").c_str(), nullptr, 10) * 0x9E3779B97F4A7C15ull + 1;
    uint64_t limit = std::strtoull(argument("limit", "100000").c_str(), nullptr, 10);
    max_latency = std::strtoull(argument("latency", "30").c_str(), nullptr, 10);
    int runs = std::atoi(argument("runs", "1").c_str());
    int counters = std::atoi(argument("counters", "0").c_str());
    quiet = argument("quiet", "0") == "1";
    calm = argument("calm", "0") == "1";
    top = new Vtop;
    top->rst = 1;
    tick();
    tick();
    top->rst = 0;
    for (int i = 0; i < 8; i++) write_register(0x20 + 4 * i, 1000003u * (i + 1));
    write_register(0x40, std::strtoul(argument("header", "0").c_str(), nullptr, 10));
    for (int run = 0; run < runs; run++) {
        std::printf("R %d\n", run);
        write_register(0x10, 1);
        uint64_t start = now;
        auto wall = std::chrono::steady_clock::now();
        while (!top->irq && now - start < limit) tick();
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
        std::printf("Z %lu %.6f\n", now - start, seconds);
        for (int i = 0; i < 4; i++) tick();
        uint32_t status = uint32_t(read_register(0x14)), error = uint32_t(read_register(0x18));
        std::printf("E %u %u %u %lu\n", status, error & 0xff, error >> 8, read_register(0x1c));
        write_register(0x10, 2);
        for (int i = 0; i < 20; i++) tick();  // the latch holds while the machine goes on
        for (int i = 0; i < counters; i++) {
            uint64_t low = read_register(0x80 + 8 * i), high = read_register(0x84 + 8 * i);
            std::printf("C %d %lu\n", i, (low & 0xffffffffu) | (high & 0xffffffffu) << 32);
        }
    }
    for (uint32_t address : {0x00u, 0x04u, 0x08u, 0x0cu, 0x20u, 0x3cu, 0x44u, 0xffcu})
        std::printf("A %u %lu\n", address, read_register(address));
    std::printf("B %u %u\n", write_register(0x00, 1), write_register(0x24, 5));
    delete top;
}
