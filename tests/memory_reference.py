"""The rules of ``docs/memory.md`` word by word: every cycle, every command time kept, nothing skipped. Slow on purpose."""

from dataclasses import dataclass, field


@dataclass
class Request:
    number: int
    write: bool
    bank: int
    row: int


@dataclass
class Channel:
    t: object  # ChannelTiming
    queues: tuple = field(default_factory=lambda: ([], []))
    log: list = field(default_factory=list)  # (cycle, kind, bank or first bank of the pseudo-channel)

    def __post_init__(self):
        t = self.t
        self.per_pc = t.bank_groups * t.banks_per_group
        self.slot = {}
        self.open = {}
        self.precharged = {}  # bank: cycle that counts as its last PRE
        self.write_mode = False
        self.row_bus = self.column_bus = 0
        self.pending_pcs, self.pending_bank, self.events = [], None, 0

    def pc(self, bank):
        return bank // self.per_pc

    def group(self, bank):
        return bank // self.t.banks_per_group

    def last(self, kinds, where):
        """Cycle of the latest command of `kinds` whose bank satisfies `where`, or minus infinity."""
        for cycle, kind, bank in reversed(self.log):
            if kind in kinds and where(bank):
                return cycle
        return float("-inf")

    def same(self, level, bank):
        if level == "bank":
            return lambda other: other == bank
        f = self.pc if level == "pc" else self.group
        return lambda other: f(other) == f(bank)

    def legal(self, kind, bank, now):
        t = self.t
        rules = []

        def after(kinds, level, cycles):
            rules.append(now >= self.last(kinds, self.same(level, bank)) + cycles)

        if kind == "RD":
            after(["ACT"], "bank", t.rcdrd), after(["RD"], "pc", t.ccds), after(["RD"], "group", t.ccdl)
            after(["WR"], "pc", t.cwl + t.bl + t.wtrs), after(["WR"], "group", t.cwl + t.bl + t.wtrl)
        elif kind == "WR":
            after(["ACT"], "bank", t.rcdwr), after(["WR"], "pc", t.ccds), after(["WR"], "group", t.ccdl), after(["RD"], "pc", t.rtw)
        elif kind == "ACT":
            rules.append(bank not in self.open)
            after(["ACT"], "bank", t.rc), after(["ACT"], "pc", t.rrds), after(["ACT"], "group", t.rrdl)
            after(["REFab"], "pc", t.rfc), after(["REFpb"], "bank", t.rfcpb), after(["REFpb"], "pc", t.rrefd)
            rules.append(now >= self.precharged.get(bank, float("-inf")) + t.rp)
            acts = [cycle for cycle, k, b in self.log if k == "ACT" and self.pc(b) == self.pc(bank)]
            rules.append(len(acts) < 4 or now >= acts[-4] + t.faw)
        elif kind == "PRE":
            rules.append(bank in self.open)
            after(["ACT"], "bank", t.ras), after(["RD"], "bank", t.rtp), after(["WR"], "bank", t.cwl + t.bl + t.wr)
            after(["PRE", "PREA"], "pc", t.ppd)
        elif kind == "PREA":
            rules += [self.legal("PRE", b, now) for b in self.banks(bank) if b in self.open]
        elif kind == "REFab":
            for b in self.banks(bank):
                rules.append(b not in self.open and now >= self.last(["ACT"], self.same("bank", b)) + t.rc)
                rules.append(now >= self.precharged.get(b, float("-inf")) + t.rp)
            after(["REFab"], "pc", t.rfc)
        elif kind == "REFpb":
            rules.append(bank not in self.open and now >= self.precharged.get(bank, float("-inf")) + t.rp)
            after(["ACT"], "bank", t.rc), after(["REFpb"], "bank", t.rfcpb), after(["REFpb"], "pc", t.rrefd)
            after(["ACT"], "pc", t.rrds), after(["REFab"], "pc", t.rfc)
        return all(rules)

    def banks(self, bank):
        first = self.pc(bank) * self.per_pc
        return range(first, first + self.per_pc)

    def issue(self, now):
        """Steps 1 to 5 of section 3 in cycle `now`: (request, completion) of a RD or WR that is issued, else None."""
        t, n = self.t, self.per_pc * self.t.pcs
        # 1
        if t.refresh == "all-bank" and now > 0 and now % t.refi == 0:
            self.pending_pcs = list(range(t.pcs))
        if t.refresh == "per-bank" and self.pending_bank is None and now >= (self.events + 1) * t.refi // n:
            self.pending_bank = self.events % t.pcs * self.per_pc + self.events // t.pcs % self.per_pc
            self.events += 1
        # 2
        r, w = len(self.queues[0]), len(self.queues[1])
        if not self.write_mode:
            self.write_mode = 5 * w > 4 * t.queue or (r == 0 and w > 0)
        elif (r > 0 and 5 * w < t.queue) or w == 0:
            self.write_mode = False
        queue = list(self.queues[self.write_mode])
        slots = dict(self.slot)
        others = self.queues[0] + self.queues[1]
        # 3
        column = None
        if now >= self.column_bus:
            candidates = sorted(slots.values(), key=lambda x: x.number)
            column = next((x for x in candidates if self.legal("WR" if x.write else "RD", x.bank, now)), None)
            if column is None and not self.pending_pcs:
                for x in queue:
                    if x.bank != self.pending_bank and self.open.get(x.bank) == x.row and self.legal("WR" if x.write else "RD", x.bank, now):
                        column = x
                        break
        # 4
        row = None
        if now >= self.row_bus and not (t.buses == 1 and column):
            if self.pending_pcs:
                first = self.pending_pcs[0] * self.per_pc
                if any(b in self.open for b in self.banks(first)):
                    if not any(b in slots for b in self.banks(first)) and self.legal("PREA", first, now):
                        row = ("PREA", first, None)
                elif self.legal("REFab", first, now):
                    row = ("REFab", first, None)
            if self.pending_bank is not None:
                if self.pending_bank in self.open:
                    if self.pending_bank not in slots and not (column and column.bank == self.pending_bank) and self.legal("PRE", self.pending_bank, now):
                        row = ("PRE", self.pending_bank, None)
                elif self.legal("REFpb", self.pending_bank, now):
                    row = ("REFpb", self.pending_bank, None)
            if row is None and not self.pending_pcs:
                for place, x in enumerate(queue):
                    if x.bank == self.pending_bank:
                        continue
                    if x.bank not in self.open:
                        if self.legal("ACT", x.bank, now):
                            row = ("ACT", x.bank, x)
                            break
                    elif self.open[x.bank] != x.row:
                        older = any(y.bank == x.bank and y.row == self.open[x.bank] for y in queue[:place])
                        chosen = column is not None and column.bank == x.bank
                        if x.bank not in slots and not older and not chosen and self.legal("PRE", x.bank, now):
                            row = ("PRE", x.bank, None)
                            break
        # 5
        if column:
            b = column.bank
            alike = [x for x in others + list(slots.values()) if x is not column and x.bank == b and x.row == column.row]
            act = self.last(["ACT"], self.same("bank", b))
            self.log.append((now, "WR" if column.write else "RD", b))
            self.column_bus = now + t.column_cycles
            if t.buses == 1:
                self.row_bus = self.column_bus
            if self.slot.get(b) is column:
                del self.slot[b]
            else:
                self.queues[column.write].remove(column)
            completion = now + t.bl + (t.cwl if column.write else t.cl)
            if t.page == "closed" and not alike:
                del self.open[b]
                self.precharged[b] = max(act + t.ras, now + (t.cwl + t.bl + t.wr if column.write else t.rtp))
        if row:
            kind, b, x = row
            if kind == "ACT":
                self.queues[x.write].remove(x)
                self.slot[b] = x
                self.open[b] = x.row
            elif kind in ("PRE", "PREA"):
                for bank in self.banks(b) if kind == "PREA" else [b]:
                    if bank in self.open:
                        del self.open[bank]
                        self.precharged[bank] = now
            elif kind == "REFab":
                self.pending_pcs.pop(0)
            else:
                self.pending_bank = None
            self.log.append((now, kind, b))
            self.row_bus = now + (t.act_cycles if kind == "ACT" else t.pre_cycles)
            if t.buses == 1:
                self.column_bus = self.row_bus
        return (column, completion) if column else None


def run(timing, requests, *, arrival=None, ports=0, port_of=None, p=1, q=1, fifo=1):
    """(accepted, completed, log) of `requests`, a list of (write, bank, row)."""
    c, t = Channel(timing), timing
    count = len(requests)
    accepted, completed = [None] * count, [None] * count
    tokens, phase, following, now = [0] * max(ports, 1), 0, 0, 0
    while any(cycle is None for cycle in completed):
        issued = c.issue(now)
        if issued:
            completed[issued[0].number] = issued[1]
        # 6
        if ports:
            phase += p
            if phase >= q:
                phase -= q
                tokens = [min(held + 1, fifo) for held in tokens]
        if following < count and (arrival is None or arrival[following] <= now):
            write, bank, wanted = requests[following]
            port = port_of[following] if ports else 0
            if len(c.queues[write]) < t.queue and (not ports or tokens[port]):
                c.queues[write].append(Request(following, bool(write), bank, wanted))
                accepted[following] = now
                tokens[port] -= 1
                following += 1
        now += 1
        c.log = c.log[-400:] if len(c.log) > 800 else c.log
    return accepted, completed, c.log
