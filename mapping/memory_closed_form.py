"""What a DRAM channel sustains for a kind of access pattern, by formula: the analytic level of ``docs/memory.md``.

A pattern is reduced to a few statistics (`AccessStatistics`); each resource then gives the cycles that a burst costs
it, and the dearest bounds the rate. A finite queue bounds it as well: the bursts in it are rate times waiting time
(Little), where waiting times for banks, row bus and activate spacing follow from their utilisation (Kingman's formula
with constant service; the factor (Q - 1) / Q because the population is closed). No constant here is fitted.
"""

import math
from dataclasses import dataclass

import numpy as np

from headrace.hw.memory_timing import ChannelTiming
from headrace.models.errors import UserError


LOCAL_QUEUES = 8
"""Queue's lengths within which activates are near enough to meet in a bank."""


@dataclass(frozen=True, kw_only=True)
class AccessStatistics:
    """An access pattern as one channel sees it, in order of arrival."""

    pc_share: float
    """Of bursts that go to the busiest pseudo-channel."""
    activates: float
    """Per burst: activates of a scheduler that serves the row hits in its queue first."""
    activate_clusters: float
    """Per burst: times that activates come after a queue without one, and each further queue that they go on."""
    bank_share: float
    """Chance that two activates not far apart are of one bank: 1 over the number of banks, if all are alike."""
    irregularity: float
    """Squared coefficient of variation of the distance between activates of one bank: 0 regular, 1 random."""
    group_run: float
    """Bursts of a pseudo-channel that follow each other in one bank group."""
    group_share: float
    """Of a pseudo-channel's bursts that go to its busiest bank group."""
    dependents: float
    """Per activate: bursts that need the same row and come within the same queue's length."""
    dependent_distance: float
    """Their mean distance from it, in bursts."""
    write_share: float


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """`bursts_per_cycle` of the channel, mean latency in cycles (None where the ports bound), and the resource that bounds."""

    bursts_per_cycle: float
    latency_cycles: float | None
    bound: str


def statistics(timing: ChannelTiming, bank: np.ndarray, row: np.ndarray, write: np.ndarray) -> AccessStatistics:
    """Count the statistics of a trace (arrays of one element a burst)."""
    number = len(bank)
    visits = _visits(timing, bank.astype(np.int64), row.astype(np.int64))
    first, banks, extra, spread = (values[visits["opens"]] for values in (visits["first"], visits["bank"], visits["extra"], visits["spread"]))
    by_bank = np.argsort(banks, kind="stable")
    gaps = np.diff(by_bank)[np.diff(banks[by_bank]) == 0]
    irregularity = float(gaps.var() / gaps.mean() ** 2) if len(gaps) else 0.0
    # Bank groups within each pseudo-channel.
    group = bank // timing.banks_per_group
    pc = bank // timing.banks_per_pc
    by_pc = np.argsort(pc, kind="stable")
    runs = np.count_nonzero(np.diff(group[by_pc], prepend=-1))
    pc_counts = np.bincount(pc)
    busiest = max(counts.max() / counts.sum() for counts in (np.bincount(group[pc == p]) for p in range(timing.pcs)) if counts.size)
    return AccessStatistics(
        pc_share=float(pc_counts.max() / number),
        activates=len(first) / number,
        activate_clusters=_clusters(first, timing.queue) / number,
        bank_share=_local_share(first // (LOCAL_QUEUES * timing.queue), banks, timing.banks),
        irregularity=min(irregularity, 1.0),
        group_run=number / runs,
        group_share=float(busiest),
        dependents=float(extra.mean()),
        dependent_distance=float(spread.sum() / extra.sum()) if extra.any() else 0.0,
        write_share=float(write.mean()),
    )


def _visits(timing: ChannelTiming, bank: np.ndarray, row: np.ndarray) -> dict[str, np.ndarray]:
    """The visits to rows, in order: row hits come first, so all bursts of a queue's length that need a row are one visit.

    Per visit: place of its `first` burst, `bank`, `extra` bursts and their distances from the first summed (`spread`),
    and whether it `opens` its row (false: the bank's row is still open from the queue's length before).
    """
    number = len(bank)
    block = np.arange(number) // timing.queue
    key = (block * timing.banks + bank) << 24 | row
    unique, first, inverse, size = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    last = np.zeros(len(unique), np.int64)
    np.maximum.at(last, inverse, np.arange(number))
    spread = np.bincount(inverse, weights=np.arange(number), minlength=len(unique)) - first * size
    of_block, of_row = unique >> 24, unique & ((1 << 24) - 1)
    # The row that a block leaves open in a bank is the one used last.
    order = np.lexsort((last, of_block))
    ends = np.append(np.flatnonzero(np.diff(of_block[order])), len(order) - 1)
    left = order[ends]
    left = left[np.lexsort((left, of_block[left] % timing.banks))]
    follows = np.flatnonzero(np.diff(of_block[left] % timing.banks) == 0) + 1
    wanted = of_block[left[follows]] << 24 | of_row[left[follows - 1]]
    at = np.minimum(np.searchsorted(unique, wanted), len(unique) - 1)
    stays = unique[at] == wanted
    if timing.page == "closed":  # a row stays open only for what waits with it
        stays &= first[at] - last[left[follows - 1]] < timing.queue
    opens = np.ones(len(unique), bool)
    opens[at[stays]] = False
    in_order = np.argsort(first, kind="stable")
    visits = {"first": first, "bank": of_block % timing.banks, "extra": size - 1, "spread": spread, "opens": opens}
    return {name: values[in_order] for name, values in visits.items()}


def _local_share(window: np.ndarray, bank: np.ndarray, banks: int) -> float:
    counts = np.bincount(window * banks + bank, minlength=(window[-1] + 1) * banks).reshape(-1, banks).astype(float)
    total = counts.sum(axis=1)
    pairs = (total * (total - 1)).sum()
    return float((counts * (counts - 1)).sum() / pairs) if pairs else 0.0


def _clusters(misses: np.ndarray, queue: int) -> int:
    first = np.diff(misses, prepend=-queue) >= queue
    starts = misses[first]
    ends = misses[np.append(np.flatnonzero(first)[1:], len(misses)) - 1]
    return int(((ends - starts) // queue + 1).sum())


def closed_form(timing: ChannelTiming, pattern: AccessStatistics, *, ports: int = 0, port_ratio: float = 1.0) -> ClosedForm:
    """Sustained rate and mean latency of `pattern`, offered faster than the channel takes it.

    `ports` and `port_ratio` (port clock over command clock) as in `headrace.sim.dram.simulate`, with buffers that carry
    the ports over a refresh. Raises `UserError` for per-bank refresh, whose loss depends on how pattern and refresh fall
    into step.
    """
    if timing.refresh == "per-bank":
        raise UserError("--level closed has no per-bank refresh; allowed: none, all-bank (--level burst has it)")
    t, p = timing, pattern
    lost = 0.0
    if t.refresh == "all-bank":
        lost = (t.rtp + t.rp + (t.pcs - 1) * (t.rp + t.pre_cycles) + t.rfc + t.rcdrd) / t.refi
    rate, bound = 1.0 / t.ccds, ""
    for _ in range(20):  # the share of activates that find their bank closed by a refresh depends on the rate
        between = p.activates * rate * t.refi
        fresh = min(1.0, t.banks / between) if lost and between else 0.0
        costs = _costs(t, p, fresh)
        limit = _queue_rate(t, p, fresh)
        bound = max(costs, key=costs.get)
        found = 1 / costs[bound]
        if limit < found:
            found, bound = limit, "queue"
        if abs(found - rate) < 1e-9:
            break
        rate = found
    rate *= 1 - lost
    if ports:
        port = port_ratio / max(p.pc_share, 1 / ports) if ports > 1 else port_ratio
        if port < rate:
            rate, bound = port, "port"
    data = t.bl + p.write_share * t.cwl + (1 - p.write_share) * t.cl
    # The queue is full where the channel is the limit; where the ports are, how full it is has no formula here.
    latency = None if bound == "port" else t.queue / rate + p.activates * t.rcdrd + data
    return ClosedForm(bursts_per_cycle=rate, latency_cycles=latency, bound=bound)


def _bank_cycles(t: ChannelTiming, p: AccessStatistics) -> float:
    """From one activate of a bank to the next, with as many bursts between as the pattern has."""
    row_bursts = max(1 / p.activates, 1) - 1
    reads = max(t.rc, max(t.ras, t.rcdrd + min(row_bursts, p.dependents) * t.ccdl + t.rtp) + t.rp)
    writes = max(t.rc, max(t.ras, t.rcdwr + min(row_bursts, p.dependents) * t.ccdl + t.cwl + t.bl + t.wr) + t.rp)
    return (1 - p.write_share) * reads + p.write_share * writes


def _costs(t: ChannelTiming, p: AccessStatistics, fresh: float) -> dict[str, float]:
    """Cycles that each resource is held for, per burst of the channel."""
    precharge = 0.0 if t.page == "closed" else t.pre_cycles * (1 - fresh)
    row_bus = p.activates * (t.act_cycles + precharge)
    spacing = max(t.rrds, t.faw / 4)
    lead = 1 + (t.rp * (1 - fresh) if t.page == "open" else 0) + t.rcdrd
    data = t.ccds * p.pc_share
    stall = (1 - p.irregularity) * p.activate_clusters * max(0.0, lead - t.queue * data)
    return {
        "data bus": data + stall + _turnaround(t, p, t.ccds),
        "bank group": _group_cycles(t, p, lead) * p.pc_share + _turnaround(t, p, t.ccdl),
        "row bus" if t.buses == 2 else "command bus": row_bus if t.buses == 2 else row_bus + t.column_cycles,
        "column bus": float(t.column_cycles),
        "activate spacing": p.activates * spacing * p.pc_share,
        "banks": p.activates * _bank_cycles(t, p) * p.bank_share,
        "acceptance": 1.0,
    }


def _group_cycles(t: ChannelTiming, p: AccessStatistics, lead: float) -> float:
    """Cycles per burst of a pseudo-channel whose bursts come in runs of one bank group.

    While bursts of one group only can be served, one leaves every tCCD_L: `alone` of each run of L. Otherwise two groups
    alternate. The next group comes into reach w = queue x share places ahead, and can be served `lead` later, which is m
    bursts of this group. Small w: m bursts are served alone after the next group has come into reach, and as many before
    as the window leaves: alone = L - 2 (w - m). Larger w: r bursts of the group before are left when the next comes into
    reach; from run to run r = w - L / 2 - r - alone / 2 and alone = m - r, hence r = (w - L / 2 - m / 2) / 1.5.
    A sibling pseudo-channel's row command comes first in half of the cases. In an irregular pattern groups alternate
    anyway; what waits for its row is in `_waiting`.
    """
    if t.ccdl <= t.ccds:
        return float(t.ccds)
    window = t.queue * p.pc_share
    lead += t.act_cycles * (t.pcs - 1) / 2 if p.pc_share < 1 else 0
    run, places = p.group_run, lead / t.ccdl
    left = (window - run / 2 - places / 2) / 1.5
    alone = run - 2 * (window - places) if left < 0 else max(0.0, places - left)
    alone *= (1 - p.irregularity) if run > 2 else 0
    alternating = max(float(t.ccds), t.ccdl / 2)
    runs = alternating + alone / run * (t.ccdl - alternating)
    return max(float(t.ccds), t.ccdl * p.group_share, runs if p.group_share < 1 else 0.0)


def _turnaround(t: ChannelTiming, p: AccessStatistics, gap: int) -> float:
    """Cycles per burst lost to changes of direction, where bursts would come `gap` apart without.

    Writes drain from above 0.8 to below 0.2 of the queue, n entries. Those that arrive meanwhile (share s of the
    bursts) drain too: n / (1 - s) writes in a batch, so n / (s (1 - s)) bursts between two pairs of changes. Where the
    channel takes bursts faster than it serves them, the read queue is full meanwhile and stops the source: n / s bursts.
    """
    if not 0 < p.write_share < 1:
        return 0.0
    drained = 4 * t.queue // 5 + 1 - ((t.queue - 1) // 5)
    change = t.rtw + t.cwl + t.bl + t.wtrs - 2 * gap
    stopped = gap * p.pc_share > 1 and gap == t.ccds
    return max(0, change) * p.write_share * (1.0 if stopped else 1 - p.write_share) / drained


def _queue_rate(t: ChannelTiming, p: AccessStatistics, fresh: float) -> float:
    """The rate at which waiting bursts just fill the queue. While writes drain, half a queue of them is there on average."""
    if 0 < p.write_share < 1:
        reads, writes = _filling_rate(t, p, fresh, t.queue), _filling_rate(t, p, fresh, t.queue / 2)
        return 1 / ((1 - p.write_share) / reads + p.write_share / writes)
    return _filling_rate(t, p, fresh, t.queue)


def _filling_rate(t: ChannelTiming, p: AccessStatistics, fresh: float, queue: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        if rate * _waiting(t, p, fresh, rate, queue) < queue:
            low = rate
        else:
            high = rate
    return low


def _waiting(t: ChannelTiming, p: AccessStatistics, fresh: float, rate: float, queue: float) -> float:
    """Mean cycles that a burst waits in the queue at `rate` bursts per cycle; infinite where a resource is full."""
    activates = rate * p.activates

    def wait(arrivals: float, *services: float, population: float = queue) -> float:
        closed = max(population - 1, 0) / population
        busy = closed * arrivals * sum(services)
        if busy >= 1:
            return math.inf
        return p.irregularity * arrivals * sum(service**2 for service in services) / 2 / (1 - busy)

    precharge = t.page == "open"
    row_commands = (t.act_cycles, t.pre_cycles * (1 - fresh)) if precharge else (t.act_cycles,)
    column = () if t.buses == 2 else (t.column_cycles / p.activates,)
    miss = 1 + (t.rp * (1 - fresh) if precharge else 0)
    miss += wait(activates * p.bank_share, _bank_cycles(t, p))
    miss += len(row_commands) * wait(activates, *row_commands, *column)
    miss += wait(activates * p.pc_share, max(t.rrds, t.faw / 4))
    hit = 1.0
    # Bursts of one row come one after the other, and rows of one group or pseudo-channel wait for each other.
    together = 1 + p.dependents
    rows = dict(population=queue / together)
    column_wait = wait(activates * p.pc_share * p.group_share, together * t.ccdl, **rows) + wait(activates * p.pc_share, together * t.ccds, **rows)
    in_row = t.rcdrd + column_wait + together / 2 * t.ccdl
    dependent = max(0.0, miss + in_row - p.dependent_distance / rate) if rate else 0.0
    return p.activates * (miss + p.dependents * dependent) + max(0.0, 1 - p.activates * (1 + p.dependents)) * hit
