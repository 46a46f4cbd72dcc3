"""Synchronisation: from what instructions read and write to their wait and release masks.

Queues run in order and take tokens from counters, one per ordered pair of queues. Because a queue completes in order, an instruction
that must follow instruction i of queue A needs one token that i releases; later instructions of its own queue are then covered too.
So for every ordered pair of queues the edges kept are monotone, and counters (rather than named events) suffice.

A loop body is analysed in its steady state. Edges that cross from one iteration into the next need a token before the first
iteration: NOPs seed them, and NOPs after the loop drain what the last iteration left.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.hw.isa import TOKEN_LIMIT, Instruction, Op, Queue

_NOP = {Queue.LD: Op.LD_NOP, Queue.ST: Op.ST_NOP, Queue.MV: Op.MV_NOP, Queue.VEC: Op.VEC_NOP, Queue.SYS: Op.SYS_NOP}


@dataclass(frozen=True)
class Region:
    """Rows lo .. hi-1 of a storage: "vb", "ab", or a memory section by name (whole: lo = 0, hi = 1)."""

    storage: str
    lo: int = 0
    hi: int = 1

    def overlaps(self, other: "Region") -> bool:
        return self.storage == other.storage and self.lo < other.hi and other.lo < self.hi


@dataclass
class Item:
    """An instruction with the regions it touches; `target` names the label of a branch, `label` marks this place."""

    instruction: Instruction
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    target: str | None = None
    label: str | None = None
    waits: set[Queue] = field(default_factory=set)
    releases: set[Queue] = field(default_factory=set)

    @property
    def queue(self) -> Queue:
        return self.instruction.op.queue

    def finished(self) -> "Item":
        """With the masks put into the instruction."""
        instruction = replace(self.instruction, wait=frozenset(self.waits), release=frozenset(self.releases))
        return replace(self, instruction=instruction)


class _LastAccess:
    """For every queue, the last item that read and that wrote each place. Places are the stretches between all bounds of the items' regions."""

    def __init__(self, items: list[Item]) -> None:
        bounds = defaultdict(set)
        regions = {region for item in items for region in (*item.reads, *item.writes)}
        for region in regions:
            bounds[region.storage] |= {region.lo, region.hi}
        place = {}
        for storage, values in bounds.items():
            for bound in sorted(values):
                place[storage, bound] = len(place)
        self._slice = {region: slice(place[region.storage, region.lo], place[region.storage, region.hi]) for region in regions}
        self._read = {queue: np.full(len(place), -1) for queue in Queue}
        self._written = {queue: np.full(len(place), -1) for queue in Queue}

    def written(self, queue: Queue, regions: tuple[Region, ...]) -> int:
        """The last item of `queue` that wrote into one of `regions`, -1 for none."""
        return max((int(self._written[queue][self._slice[region]].max(initial=-1)) for region in regions), default=-1)

    def dependence(self, queue: Queue, item: Item) -> int:
        """The last item of `queue` that `item` must follow: it wrote what `item` reads or writes, or read what `item` writes."""
        read = max((int(self._read[queue][self._slice[region]].max(initial=-1)) for region in item.writes), default=-1)
        return max(read, self.written(queue, item.reads + item.writes))

    def add(self, number: int, item: Item) -> None:
        for region in item.reads:
            self._read[item.queue][self._slice[region]] = number
        for region in item.writes:
            self._written[item.queue][self._slice[region]] = number


def _edges(items: list[Item]) -> list[tuple[int, int]]:
    """Pruned edges (i, j) in program order: item j must start after item i has completed."""
    last = _LastAccess(items)
    covered: dict[tuple[Queue, Queue], int] = defaultdict(lambda: -1)
    edges = []
    for j, item in enumerate(items):
        own = item.queue
        # LD and MV start an instruction before the last has completed; their writes are in order, so only a read of one would be wrong.
        if own in (Queue.LD, Queue.MV) and last.written(own, item.reads) >= 0:
            raise ValueError(f"{item.instruction.comment or item.instruction.op.name} reads what its own queue may not have written yet")
        if item.reads or item.writes:
            for queue in Queue:
                if queue != own:
                    i = last.dependence(queue, item)
                    if i > covered[queue, own]:
                        edges.append((i, j))
                        covered[queue, own] = i
        last.add(j, item)
    return edges


def straight(items: list[Item]) -> list[Item]:
    """Masks for straight-line code that starts with every unit idle and every counter zero, and leaves every counter zero."""
    for i, j in _edges(items):
        items[i].releases.add(items[j].queue)
        items[j].waits.add(items[i].queue)
    return [item.finished() for item in items]


def loop(body: list[Item]) -> tuple[list[Item], list[Item], list[Item]]:
    """(seeds, body, drains) for a body that repeats at least once; idle units and zero counters before and after."""
    n = len(body)
    unrolled = _edges(body * 4)
    steady = {copy: {(i - copy * n, j - copy * n) for i, j in unrolled if j // n == copy} for copy in (2, 3)}
    if steady[2] != steady[3]:
        raise ValueError("the loop's synchronisation does not reach a steady state")
    crossing: dict[tuple[Queue, Queue], int] = defaultdict(int)
    for i, j in sorted(steady[3]):
        distance = -(i // n)  # iterations between release and wait
        source, sink = body[i % n], body[j]
        if sink.queue in source.releases and (i % n) in {a % n for a, b in steady[3] if b != j and body[b].queue == sink.queue}:
            raise ValueError("an instruction would release two tokens to one queue")
        source.releases.add(sink.queue)
        sink.waits.add(source.queue)
        crossing[source.queue, sink.queue] += distance
    for (source, sink), count in crossing.items():
        if count > TOKEN_LIMIT:
            raise ValueError(f"{count} tokens from {source.name} to {sink.name} cross an iteration; at most {TOKEN_LIMIT}")
    seeds, drains = [], []
    for (source, sink), count in crossing.items():
        for _ in range(count):
            seeds.append(Item(Instruction(_NOP[source], release=frozenset({sink}), comment="seed")))
            drains.append(Item(Instruction(_NOP[sink], wait=frozenset({source}), comment="drain")))
    return seeds, [item.finished() for item in body], drains
