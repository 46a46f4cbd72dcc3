"""RamSdp in Verilator: random traffic against a model, poison, collisions, lane enables; synthesis to BRAM and URAM."""

import subprocess

import pytest

from headrace.hw.emit import to_verilog
from headrace.hw.ram import RamSdp, ram_sources
from headrace.sim.verilate import build_executable

pytestmark = pytest.mark.cosim

# 40 bits wide in lanes of 8, depth 37: neither a power of two nor a multiple of 32 bits.
MAIN = r"""
#include "Vtop.h"
#include "verilated.h"
#include <cstdio>
#include <cstdlib>
#include <random>
#include <deque>
int main(int argc, char** argv) {
    VerilatedContext ctx; ctx.commandArgs(argc, argv);
    Vtop top(&ctx);
    const int DEPTH = 37, LATENCY = READ_LATENCY, LANES = 5;
    unsigned seed = atoi(argv[1]);
    bool print = argc > 2 && argv[2][0] == 'p';
    std::mt19937_64 rng(seed);
    auto tick = [&] { top.clk = 1; top.eval(); top.clk = 0; top.eval(); };
    top.clk = 0; top.rst = 0; top.w_en = 0; top.r_en = 0; top.eval();
    uint64_t model[DEPTH];
    for (int a = 0; a < DEPTH; a++) {
        top.r_en = 1; top.r_addr = a; tick(); top.r_en = 0; for (int i = 1; i < LATENCY; i++) tick();
        model[a] = top.r_data;
        if (print) printf("%llx\n", (unsigned long long)model[a]);
    }
    if (print) return 0;
    struct Expect { int due; bool any; uint64_t data; };
    std::deque<Expect> queue;
    bool have = false; Expect held{};
    for (int cycle = 0; cycle < 20000; cycle++) {
        uint64_t data = rng() & 0xffffffffffULL;
        int w_en = rng() & rng() & 31, w_addr = rng() % DEPTH, r_en = rng() & 1, r_addr = rng() % DEPTH;
        if (rng() % 8 == 0) r_addr = w_addr;
        top.w_en = w_en; top.w_addr = w_addr; top.w_data = data; top.r_en = r_en; top.r_addr = r_addr;
        if (r_en) queue.push_back({cycle + LATENCY, w_en && r_addr == w_addr, model[r_addr]});
        tick();
        for (int i = 0; i < LANES; i++) if (w_en >> i & 1) {
            uint64_t mask = 0xffULL << (8 * i);
            model[w_addr] = (model[w_addr] & ~mask) | (data & mask);
        }
        if (!queue.empty() && queue.front().due == cycle + 1) { held = queue.front(); queue.pop_front(); have = true; }
        if (have && !held.any && held.data != top.r_data) {
            printf("cycle %d: expected %llx, read %llx\n", cycle, (unsigned long long)held.data, (unsigned long long)top.r_data);
            return 1;
        }
        if (have && held.any && held.data == top.r_data) {
            printf("cycle %d: a colliding read returned the stored word\n", cycle);
            return 1;
        }
    }
    return 0;
}
"""


def build(latency: int, ram_text: str | None = None):
    ram = RamSdp(width=40, depth=37, granularity=8, read_latency=latency)
    sources = {"top.v": to_verilog(ram, "top"), **ram_sources()}
    if ram_text is not None:
        sources["hr_ram_sdp.v"] = ram_text
    return build_executable(sources, "top", MAIN.replace("READ_LATENCY", str(latency)))


def run(executable, *arguments: str):
    return subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("latency", [1, 2])
def test_random_traffic(latency):
    executable = build(latency)
    for seed in ("1", "2", "3"):
        result = run(executable, seed)
        assert result.returncode == 0, f"seed {seed}: {result.stdout}"


def test_poison_seeds():
    executable = build(1)
    one, again, two = (run(executable, "1", "print", f"+poison={n}").stdout for n in (1, 1, 2))
    assert one == again
    rows_one, rows_two = one.split(), two.split()
    assert len(rows_one) == 37 and len(set(rows_one)) == 37
    assert not set(rows_one) & set(rows_two)


def test_planted_fault_is_seen():
    good = ram_sources()["hr_ram_sdp.v"]
    planted = good.replace("if (w_en[lane])", "if (w_en[0])")
    assert planted != good
    assert run(build(1, planted), "1").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(width=0, depth=4), "at least 1"),
        (dict(width=8, depth=4, read_latency=3), "1 or 2"),
        (dict(width=8, depth=4, granularity=3), "does not divide"),
        (dict(width=8, depth=4, style="brick"), "one of auto"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RamSdp(**arguments)
