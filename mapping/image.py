"""The memory image: one format for compiler, interpreter and RTL (docs/machine.md, section 5).

An image is a file of whole memory words: header, section table, sections. A manifest (JSON beside it) names the sections for people and
for the host. Sections that the machine only writes (caches, outputs) are in the table but not in the file.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.hw.isa import IMAGE_MAGIC, IMAGE_VERSION, ISA_VERSION
from headrace.hw.machine import Machine
from headrace.kernels.contract import CONTRACT_VERSION
from headrace.models.errors import UserError

HEADER_WORDS_U32 = 12
SECTION_ENTRY_BYTES = 32
SECTION_NAME_BYTES = 16
WIDTH_BIT = {4: 1 << 0, 8: 1 << 1}


def capability_words(machine: Machine, widths: tuple[int, ...] = (4, 8)) -> tuple[int, int]:
    """(cap0, cap1) of a machine that decodes `widths`."""
    cap0 = machine.array.macs_per_cycle | machine.memory.ports << 16 | machine.sfu.lanes << 24
    cap1 = sum(WIDTH_BIT[w] for w in widths) | 1 << 12  # one token per weight, no N:16, core 0
    return cap0, cap1


@dataclass(frozen=True)
class Section:
    """`words` memory words at word `base`; `data` (uint8 [words, word_bytes]) is None where the machine writes it."""

    name: str
    base: int
    words: int
    data: np.ndarray | None = None


@dataclass
class Layout:
    """Places sections one after another. Filled ones must come first, so that the file is a prefix of the memory."""

    word_bytes: int
    sections: list[Section] = field(default_factory=list)
    next_word: int = 0

    def add(self, name: str, data: np.ndarray) -> Section:
        """A filled section; `data` is any array, padded with zero bytes to whole words."""
        if any(s.data is None for s in self.sections):
            raise ValueError(f"section {name} has contents but follows one that has none")
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        words = -(-raw.size // self.word_bytes)
        padded = np.zeros((words, self.word_bytes), np.uint8)
        padded.reshape(-1)[: raw.size] = raw
        return self._place(name, words, padded)

    def reserve(self, name: str, words: int) -> Section:
        return self._place(name, words, None)

    def _place(self, name, words, data):
        if len(name.encode()) >= SECTION_NAME_BYTES:
            raise ValueError(f"section name {name!r} is longer than {SECTION_NAME_BYTES - 1} bytes")
        section = Section(name, self.next_word, words, data)
        self.sections.append(section)
        self.next_word += words
        return section


@dataclass
class Image:
    """A complete image. `manifest` is what the host needs to know; its sections are filled in on writing."""

    machine: Machine
    layout: Layout
    program_section: str
    instructions: int
    manifest: dict

    def header(self, table_base: int) -> np.ndarray:
        cap0, cap1 = capability_words(self.machine, tuple(self.manifest["widths"]))
        program = self.section(self.program_section)
        values = [
            IMAGE_MAGIC, IMAGE_VERSION, ISA_VERSION, CONTRACT_VERSION, cap0, cap1, program.base, self.instructions,
            self.machine.word_bytes, self.layout.next_word, table_base, len(self.layout.sections),
        ]  # fmt: skip
        word = np.zeros(self.machine.word_bytes // 4, "<u4")
        word[: len(values)] = values
        return word.view(np.uint8)

    def section(self, name: str) -> Section:
        for section in self.layout.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    def file_words(self) -> int:
        return max(s.base + s.words for s in self.layout.sections if s.data is not None)

    def bytes(self) -> np.ndarray:
        """uint8 [file words, word_bytes]: what memory holds at start, up to the last filled section."""
        out = np.zeros((self.file_words(), self.machine.word_bytes), np.uint8)
        for section in self.layout.sections:
            if section.data is not None:
                out[section.base : section.base + section.words] = section.data
        table = self.section("table")
        entries = bytearray()
        for section in self.layout.sections:
            entries += section.name.encode().ljust(SECTION_NAME_BYTES, b"\0")
            entries += b"".join(v.to_bytes(4, "little") for v in (section.base, section.words, int(section.data is not None), 0))
        entries += b"sha256".ljust(SECTION_ENTRY_BYTES, b"\0")
        body = out[table.base + table.words :].tobytes()
        entries += hashlib.sha256(body).digest()
        out[table.base : table.base + table.words].reshape(-1)[: len(entries)] = np.frombuffer(bytes(entries), np.uint8)
        out[0] = self.header(table.base)
        return out

    def write(self, path: Path) -> dict:
        """Write image and manifest (`path` with .json) whole or not at all; returns the manifest."""
        raw = self.bytes()
        manifest = dict(self.manifest)
        manifest["sections"] = {s.name: {"base": s.base, "words": s.words, "filled": s.data is not None} for s in self.layout.sections}
        manifest["sha256"] = hashlib.sha256(raw.tobytes()).hexdigest()
        manifest["file_words"] = int(raw.shape[0])
        manifest["total_words"] = self.layout.next_word
        for target, content in ((path, raw.tobytes()), (path.with_suffix(".json"), json.dumps(manifest, indent=1).encode())):
            temporary = target.with_name(target.name + f".{os.getpid()}.part")
            temporary.write_bytes(content)
            os.replace(temporary, target)
        return manifest


def table_words(word_bytes: int, sections: int) -> int:
    """Words of the section table with its hash entry."""
    return -(-(sections + 2) * SECTION_ENTRY_BYTES // word_bytes)


def read_manifest(path: Path) -> dict:
    """The manifest beside an image. Raises UserError where it is missing or not JSON."""
    manifest = path.with_suffix(".json")
    try:
        return json.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"image manifest {manifest}: {error}") from None
