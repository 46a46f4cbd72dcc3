"""Section 12 of ``docs/memory.md`` word by word, one command cycle after the other; DRAM rules from `memory_reference`."""

from collections import deque
from dataclasses import dataclass, field

from memory_reference import Channel, Request

ADDRESSES, READ_RING, WRITE_RING = 64, 256, 64  # as the text has them
BEAT = 32


class IndexedChannel(Channel):
    """`Channel` that looks commands up instead of searching its log; nothing else."""

    def __post_init__(self):
        super().__post_init__()
        self.latest = {}
        self.seen = 0

    def same(self, level, bank):
        return level, {"bank": bank, "group": self.group(bank), "pc": self.pc(bank)}[level]

    def last(self, kinds, where):
        return max(self.latest.get((kind, where), float("-inf")) for kind in kinds)

    def issue(self, now):
        result = super().issue(now)
        for cycle, kind, bank in self.log[self.seen :]:
            for level in ("bank", "group", "pc"):
                self.latest[kind, self.same(level, bank)] = cycle
        self.log = self.log[-64:]  # the window of four ACT still looks there
        self.seen = len(self.log)
        return result


@dataclass
class Entry:
    """A beat in a ring."""

    bank: int
    row: int
    beat: int = 0
    last: bool = False
    completion: int | None = None


@dataclass
class Port:
    reads: list  # (not before core cycle, address, len)
    writes: list  # (not before core cycle, address, strobe bytes, data)
    r_ready: list
    b_ready: list
    addresses: deque = field(default_factory=deque)  # (due, beat, beats)
    bursting: deque = field(default_factory=deque)  # beats of the burst that has left the queue: (beat, last)
    read_ring: deque = field(default_factory=deque)
    read_waiting: deque = field(default_factory=deque)  # those of the ring that have not entered
    r: tuple | None = None  # (data, last, response)
    write_queue: deque = field(default_factory=deque)  # (due, bank, row)
    write_ring: int = 0  # places taken
    write_waiting: deque = field(default_factory=deque)
    write_completions: list = field(default_factory=list)
    answered: int = 0
    write_level: int = 0  # of the queue as the core cycle began
    beats_left: int = 0
    wrote_past: bool = False

    def __post_init__(self):
        self.reads, self.writes = deque(self.reads), deque(self.writes)
        self.beats_left = sum(length + 1 for _, _, length in self.reads)
        self.answers_left = len(self.writes)


def ready(bits, n):
    return bool(bits[n]) if n < len(bits) else True


def simulate(config, traffic, memory, *, depth_beats, limit):
    """Events (kind, port, core cycle, last, response, data) of all ports. `traffic`: (reads, writes, r_ready, b_ready) for each.

    `memory`: bytearray of `depth_beats` beats, changed by the writes.
    """
    t = config.timing
    ports = [Port(*each) for each in traffic]
    channels = [IndexedChannel(t) for _ in range(config.channels)]
    turns = [0] * config.channels
    entries, numbers = {}, 0  # request number to (port, is write, entry)
    per_pc = t.bank_groups * t.banks_per_group
    events = []
    phase, n, now = 0, 0, 0

    def address(port, beat):
        return (beat * len(ports) + port) * BEAT

    while any(port.beats_left or port.answers_left for port in ports):
        assert n < limit, "the model does not end"
        # The command cycle, on what the rings hold as it begins.
        for which, channel in enumerate(channels):
            room = [len(queue) < t.queue for queue in channel.queues]
            issued = channel.issue(now)
            if issued:
                port, entry = entries.pop(issued[0].number)
                if entry is None:
                    port.write_completions.append(issued[1])
                else:
                    entry.completion = issued[1]
            sources = []
            for pc in range(t.pcs):
                port = ports[which * t.pcs + pc]
                sources += [(pc, 0, port, port.read_waiting), (pc, 1, port, port.write_waiting)]
            for step in range(len(sources)):
                place = (turns[which] + step) % len(sources)
                pc, write, port, waiting = sources[place]
                if waiting and room[write]:
                    entry = waiting.popleft()
                    channel.queues[write].append(Request(numbers, bool(write), pc * per_pc + entry.bank, entry.row))
                    entries[numbers] = (port, None if write else entry)
                    numbers += 1
                    turns[which] = (place + 1) % len(sources)
                    break

        # Does core cycle n end with this command cycle, that is now = T(n)?
        phase += config.p
        tick = phase >= config.q
        if tick:
            phase -= config.q
            for number, port in enumerate(ports):
                _core_cycle(config, port, number, n, now, memory, depth_beats, events, address)
            for number, port in enumerate(ports):
                _write(config, port, number, n, memory, depth_beats, events, address)
            n += 1
        now += 1
    return events


def _core_cycle(config, port, number, n, now, memory, depth_beats, events, address):
    """All of the port but writes' acceptance, which changes the bytes that other ports may read in this cycle."""
    queued, ring, write_ring, port.write_level = len(port.addresses), len(port.read_ring), port.write_ring, len(port.write_queue)
    r, r_taken = port.r, port.r is not None and ready(port.r_ready, n)
    # Write answers.
    if sum(c < now for c in port.write_completions) > port.answered and ready(port.b_ready, n):
        events.append(("B", number, n, 0, 2 if port.wrote_past else 0, bytes(BEAT)))
        port.answered += 1
        port.answers_left -= 1
        port.write_ring -= 1
    # R.
    if r_taken:
        events.append(("R", number, n, int(r[1]), r[2], r[0]))
        port.beats_left -= 1
        port.r = None
    if port.r is None and port.read_ring:
        oldest = port.read_ring[0]
        if oldest.completion is not None and now > oldest.completion:
            port.read_ring.popleft()
            past = oldest.beat >= depth_beats // config.ports
            at = address(number, oldest.beat)
            port.r = (None if past else bytes(memory[at : at + BEAT]), oldest.last, 2 if past else 0)
    # The ring of reads.
    if ring < READ_RING:
        if not port.bursting and port.addresses and n >= port.addresses[0][0]:
            _, beat, beats = port.addresses.popleft()
            port.bursting.extend((beat + i, i == beats - 1) for i in range(beats))
        if port.bursting:
            beat, last = port.bursting.popleft()
            bank, row = config.split(beat)
            entry = Entry(bank=bank, row=row, beat=beat, last=last)
            port.read_ring.append(entry)
            port.read_waiting.append(entry)
    # The ring of writes.
    if write_ring < WRITE_RING and port.write_queue and n >= port.write_queue[0][0]:
        _, bank, row = port.write_queue.popleft()
        port.write_waiting.append(Entry(bank=bank, row=row))
        port.write_ring += 1
    # AR.
    if port.reads and port.reads[0][0] <= n and queued < ADDRESSES:
        _, where, length = port.reads.popleft()
        events.append(("AR", number, n, 0, 0, bytes(BEAT)))
        port.addresses.append((n + config.latency, where // BEAT, length + 1))


def _write(config, port, number, n, memory, depth_beats, events, address):
    """AW and W, into the room that the queue had as the cycle began."""
    if port.writes and port.writes[0][0] <= n and port.write_level < ADDRESSES:
        _, where, strobe, data = port.writes.popleft()
        events.append(("W", number, n, 0, 0, bytes(BEAT)))
        beat = where // BEAT
        if beat >= depth_beats // config.ports:
            port.wrote_past = True
        else:
            at = address(number, beat)
            for i in range(BEAT):
                if strobe >> i & 1:
                    memory[at + i] = data[i]
        port.write_queue.append((n + config.latency, *config.split(beat)))

