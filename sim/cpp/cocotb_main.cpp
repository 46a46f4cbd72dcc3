// main() of a cocotb simulation in Verilator, with waves in a window of time.
//
// The order of VPI regions is IEEE 1800's and that of cocotb's own verilator.cpp. Plusargs of a build with traces:
// +wave_file=FILE, +wave_from=T and +wave_to=T (in units of the time precision; default: everything).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_vpi.h"

#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Trace = VerilatedFstC;
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Trace = VerilatedVcdC;
#endif

extern "C" void vlog_startup_routines_bootstrap(void);

static uint64_t simulation_time = 0;

double sc_time_stamp() { return double(simulation_time); }

static void settle() {
    while (VerilatedVpi::callValueCbs()) {}
}

#if VM_TRACE
static std::string plusarg(const char* name) {
    const std::string prefix = std::string("+") + name + "=";
    const std::string match = Verilated::commandArgsPlusMatch((std::string(name) + "=").c_str());
    return match.rfind(prefix, 0) == 0 ? match.substr(prefix.size()) : "";
}
#endif

int main(int argc, char** argv) {
    Verilated::commandArgs(argc, argv);
    Verilated::fatalOnVpiError(false);  // cocotb asks for objects that need not exist
#if VM_TRACE
    Verilated::traceEverOn(true);
#endif
    auto top = std::make_unique<Vtop>("");

#if VM_TRACE
    std::unique_ptr<Trace> trace;
    const std::string file = plusarg("wave_file"), from = plusarg("wave_from"), to = plusarg("wave_to");
    const uint64_t wave_from = from.empty() ? 0 : std::strtoull(from.c_str(), nullptr, 10);
    const uint64_t wave_to = to.empty() ? ~0ULL : std::strtoull(to.c_str(), nullptr, 10);
    if (!file.empty()) {
        trace = std::make_unique<Trace>();
        top->trace(trace.get(), 99);
        trace->open(file.c_str());
        if (!trace->isOpen()) {
            std::fprintf(stderr, "cannot write waves to '%s'\n", file.c_str());
            return 1;
        }
    }
#endif

    vlog_startup_routines_bootstrap();
    VerilatedVpi::callCbs(cbStartOfSimulation);
    settle();

    while (!Verilated::gotFinish()) {
        do {
            do {
                top->eval_step();
                VerilatedVpi::clearEvalNeeded();
                VerilatedVpi::doInertialPuts();
                settle();
            } while (VerilatedVpi::evalNeeded());
            VerilatedVpi::callCbs(cbReadWriteSynch);
            VerilatedVpi::doInertialPuts();
            settle();
        } while (VerilatedVpi::evalNeeded());
        top->eval_end_step();
        VerilatedVpi::callCbs(cbReadOnlySynch);
#if VM_TRACE
        if (trace && simulation_time >= wave_from && simulation_time <= wave_to) trace->dump(simulation_time);
#endif
        const uint64_t none = ~0ULL;
        const uint64_t next = std::min<uint64_t>(
            VerilatedVpi::cbNextDeadline(), top->eventsPending() ? top->nextTimeSlot() : none);
        if (next == none) break;
        simulation_time = next;
        VerilatedVpi::callCbs(cbNextSimTime);
        settle();
        VerilatedVpi::callTimedCbs();
        settle();
    }

    top->final();
    VerilatedVpi::callCbs(cbEndOfSimulation);
#if VM_TRACE
    if (trace) trace->close();
#endif
    return Verilated::threadContextp()->errorCount() > 0;
}
