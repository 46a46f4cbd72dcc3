"""Numpy twin of LD, ST, both buffers and the memory, written from docs/machine.md, sections 1, 2 and 6."""

import numpy as np

from headrace.hw.isa import Op, Queue, signature_of


class MemoryTwin:
    """Executes LD and ST instructions in order on numpy arrays.

    memory: uint8 [beats, 32]; vb: uint32 [rows, 8]; ab: uint8 [slices, 16]; `weights`, `sys`: lists of uint8 words.
    `events`: (queue, pc, signature) in program order.
    """

    def __init__(self, memory: np.ndarray, *, ports: int, stripe_rows: int, vector_rows: int, activation_slices: int):
        self.memory = memory
        self.ports, self.stripe_rows = ports, stripe_rows
        self.vb = np.zeros((vector_rows, 8), np.uint32)
        self.ab = np.zeros((activation_slices, 16), np.uint8)
        self.weights, self.sys, self.events = [], [], []

    def word(self, index: int) -> np.ndarray:
        return self.memory[index * self.ports : (index + 1) * self.ports].reshape(-1)

    def run(self, pc: int, instruction) -> None:
        o = (0, *instruction.operands, 0, 0, 0, 0, 0, 0, 0)
        op = instruction.op
        terms = [int(signature_of(np.ascontiguousarray(data).view(np.uint32), at)) for data, at in self._units(op, o)]
        self.events.append((op.queue, pc, sum(terms) % 2**32))

    def _units(self, op, o):
        """Does the work; yields (bytes, address) of every unit that was written."""
        if op in (Op.LDW, Op.LDV, Op.LDA, Op.LD_SYS):
            row, piece = o[5], o[5]
            for run in range(o[3]):
                for i in range(1 if op == Op.LDA else o[2]):
                    at = (o[1] + run * o[4]) % 2**32 + i
                    word = self.word(at).copy()
                    if op == Op.LDV:
                        for beat in word.reshape(-1, 32):
                            self.vb[row] = beat.view(np.uint32)
                            yield beat, row
                            row += 1
                    elif op == Op.LDA:
                        self.ab[piece] = word[16 * o[6] : 16 * o[6] + 16]
                        yield self.ab[piece].copy(), piece
                        piece += 1
                    else:
                        (self.weights if op == Op.LDW else self.sys).append(word)
                        yield word, at
        elif op == Op.STV:
            for i in range(o[3]):
                yield self._write(o[1] + i, range(32), self.vb[o[2] + i].view(np.uint8))
        elif op == Op.STS:
            for i in range(o[3]):
                at = o[1] + i * o[5]
                yield self._write(at // 8, range(4 * (at % 8), 4 * (at % 8) + 4), self.vb[o[2] + i * o[4], :1].view(np.uint8))
        elif op == Op.STK:
            for h in range(o[4]):
                for s in range(o[3]):
                    at = o[1] + h * o[5] + s * self.stripe_rows
                    yield self._write(at // 2, range(16 * (at % 2), 16 * (at % 2) + 16), self.ab[o[2] + h * o[3] + s])
        elif op == Op.STT:
            for h in range(o[4]):
                for d in range(0, 16 * o[3], 2):
                    at = o[1] + h * o[5] + (d // self.stripe_rows) * o[7] + d % self.stripe_rows
                    pair = self.ab[o[2] + h * o[3] + d // 16][d % 16 : d % 16 + 2]
                    yield self._write(at // 2, (o[6], 16 + o[6]), pair)

    def _write(self, beat: int, lanes, values):
        data = np.zeros(32, np.uint8)
        data[list(lanes)] = values
        self.memory[beat, list(lanes)] = values
        return data, beat

    def of_queue(self, queue: Queue) -> list[tuple[int, int]]:
        return [(pc, signature) for q, pc, signature in self.events if q == queue]
