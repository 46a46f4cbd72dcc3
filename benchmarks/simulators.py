"""Times of the simulators that carry no data: `python benchmarks/simulators.py`. Best and median of several runs, after one to warm up.

CPU seconds of one core. Prints a line per case: what, simulated amount, best s, median s, amount per second.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from headrace.hw.machine import load_machine
from headrace.hw.memory_timing import channel_timing, load_memory
from headrace.mapping.plan import make_plan
from headrace.models.decoder import LINEAR_NAMES
from headrace.models.registry import model_config
from headrace.sim.cycle_model import run_step, span
from headrace.sim.dram import simulate
from headrace.sim.dram_run import prepare

STEPS = [
    ("llama2-7b", "milli", 512, []),
    ("llama2-7b", "nano", 512, ["buffers.vector_rows=16384", "buffers.activation_slices=4096"]),
    ("smollm2-135m", "nano", 512, []),
    ("smollm2-135m", "nano", 512, ["memory.dram=u280-hbm2"]),
]
PATTERNS = ["sequential", "bank-group-last", "random"]
REQUESTS = 400_000


def measure(name: str, run: Callable[[], int], runs: int, unit: str) -> None:
    run()
    times = []
    for _ in range(runs):
        start = time.process_time()
        amount = run()
        times.append(time.process_time() - start)
    best = min(times)
    print(f"{name:55} {amount:>12,} {unit:8} best {best:6.2f} s  median {statistics.median(times):6.2f} s  {amount / best / 1e6:6.2f} M/s", flush=True)


def step_cycles(model: str, machine: str, context: int, settings: list[str]) -> Callable[[], int]:
    plan = make_plan(model_config(model), load_machine(machine, settings), dict.fromkeys(LINEAR_NAMES, 4), context, 1)
    return lambda: span(run_step(plan, context), 0, 1)


def requests(pattern: str) -> Callable[[], int]:
    config = load_memory("u280-hbm2")
    work = prepare(config, pattern, accesses=REQUESTS, limit=None, access_bytes=None, write_share=0.0, seed=1)
    timing = channel_timing(config, refresh="all-bank")

    def run() -> int:
        simulate(work.trace, timing)
        return len(work)

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    count = parser.parse_args().runs
    for model, machine, context, settings in STEPS:
        measure(f"decode step, {model} on {machine} at {context} {' '.join(settings[:1])}", step_cycles(model, machine, context, settings), count, "cycles")
    for pattern in PATTERNS:
        measure(f"channel of u280-hbm2, {pattern}", requests(pattern), count, "bursts")
