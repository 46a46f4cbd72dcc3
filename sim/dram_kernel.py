"""A trace on one channel: acceptance with arrival times and ports around the rules of `headrace.sim.dram_core`."""

import hashlib
from pathlib import Path

from numba import njit

from headrace.sim import dram_core
from headrace.sim.dram_core import FAR, cycle, enter, next_cycle

SOURCE = hashlib.sha256(Path(dram_core.__file__).read_bytes()).hexdigest()
"""Of the file whose functions the loop contains: numba's disk cache knows only this file's own age."""


def _run(source: str):
    @njit(cache=True, nogil=True)
    def run_channel(p, c, bank_of, row_of, write_of, arrival, port_of, ports, port_p, port_q, port_fifo, token, accepted, completed):
        """Fill `accepted` and `completed` (int64, N) of the requests given by `bank_of`, `row_of` (int32), `write_of` (uint8),
        `arrival` (int64; empty: all 0) and `port_of` (uint8; empty: no ports). p: RULES, c: CHANNEL after reset, token (int64, ports): zeros.
        Times are command cycles. Gives the last one, or -1 where nothing can ever happen again."""
        if len(source) == 0:  # keeps `source` in the closure, and so in the key of the disk cache
            return -1
        number = bank_of.size
        phase = 0
        done = 0
        following = 0
        while done < number:
            t = c.t
            moved = False
            if next_cycle(c, p) == t:
                request, written, moved = cycle(c, p)
                if request >= 0:
                    completed[request] = t + p.bl + (p.cwl if written else p.cl)
                    done += 1
            # 6. Acceptance.
            if ports:
                phase += port_p
                if phase >= port_q:
                    phase -= port_q
                    for k in range(ports):
                        token[k] = min(token[k] + 1, port_fifo)
            wake = FAR
            if following < number:
                w = write_of[following]
                if c.tail[w] - c.head[w] < p.queue:
                    ready = arrival[following] if arrival.size else 0
                    if ready > t:
                        wake = ready
                    elif ports and token[port_of[following]] == 0:
                        wake = t + (port_q - phase + port_p - 1) // port_p
                    else:
                        if ports:
                            token[port_of[following]] -= 1
                        enter(c, p, following, following, row_of[following], bank_of[following], w == 1)
                        accepted[following] = t
                        following += 1
                        moved = True
            if moved:
                c.t = t + 1
                continue
            wake = min(wake, next_cycle(c, p))
            if wake == t or wake == FAR:
                return -1
            if ports:
                gone = phase + (wake - 1 - t) * port_p
                for k in range(ports):
                    token[k] = min(token[k] + gone // port_q, port_fifo)
                phase = gone % port_q
            c.t = wake
        return c.t

    return run_channel


run_channel = _run(SOURCE)
