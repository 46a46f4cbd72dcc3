"""Sweeps over machines, models and schemes: the grid, and its evaluation in chunks that survive an interruption.

A folder holds ``sweep.json`` (which sweep this is), ``chunks/NNNNNN.csv`` (finished chunks) and at the end ``points.csv``. Every file is
written under another name and renamed, so that a file that exists is complete. The evaluator is the caller's: a function of a `Point`.
"""

import csv
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pydantic import Field, field_validator

from headrace.models.configfile import StrictModel, config_sha256, load_model, parse_override
from headrace.models.errors import UserError

FORMAT = 1
"""Of the folder; a folder of another format is not resumed."""
CHUNK_POINTS = 64
"""Points between two saves: seconds of work at most are lost."""
MAX_POINTS = 1_000_000
IDENTITY = ("index", "model", "scheme", "machine")
"""First columns of points.csv; the paths of the grid follow, then what the evaluator gives."""

Value = bool | int | float | str | None


class SweepWorkload(StrictModel):
    """The workload of every point."""

    prefill: int = Field(default=128, ge=1)
    decode: int = Field(default=128, ge=1)
    batch: int = Field(default=1, ge=1, le=4096)


class Sweep(StrictModel):
    """One file of configs/sweeps: every combination of models x schemes x machines x values of the grid is a point."""

    name: str = Field(min_length=1)
    description: str = ""
    models: tuple[str, ...] = Field(min_length=1, strict=False)
    machines: tuple[str, ...] = Field(min_length=1, strict=False)
    schemes: tuple[str, ...] = Field(default=(), strict=False)
    """Empty: each machine's own."""
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    """Values of each ``--set`` path: fields of the machine, or of board.* or scheme.*."""
    workload: SweepWorkload = SweepWorkload()

    @field_validator("models", "machines", "schemes")
    @classmethod
    def _distinct(cls, value):
        return _refuse_repeated_names(value)

    @field_validator("grid")
    @classmethod
    def _values(cls, value):
        for path, values in value.items():
            parse_override(f"{path}=0")
            if not values:
                raise ValueError(f"grid.{path} has no values; at least one is needed.")
            _refuse_repeats(values)
        _refuse_repeats([path.removeprefix("machine.") for path in value])
        return value

    @property
    def points(self) -> int:
        return len(self.models) * len(self.machines) * max(1, len(self.schemes)) * math.prod(len(values) for values in self.grid.values())

    @property
    def columns(self) -> tuple[str, ...]:
        return (*IDENTITY, *self.grid)


def _refuse_repeats(values):
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{value!r} is given twice.")
    return values


def _refuse_repeated_names(values):
    """Names of configurations are found whatever their case; paths are not."""
    _refuse_repeats([value if "/" in value or "\\" in value else value.lower() for value in values])
    return values


@dataclass(frozen=True)
class Point:
    """One combination. `scheme` None: the machine's own. `overrides` are ``path=value``."""

    index: int
    model: str
    scheme: str | None
    machine: str
    grid: dict[str, Value]
    workload: SweepWorkload

    @property
    def overrides(self) -> list[str]:
        return [f"{path}={json.dumps(value)}" for path, value in self.grid.items()]


Evaluate = Callable[[Point], Mapping[str, object]]
"""Results of a point, the same keys for every point; raises UserError for a combination that is not legal."""


def load_sweep(name_or_path: str | Path) -> Sweep:
    """A sweep of configs/sweeps, or a file. Refuses more than `MAX_POINTS`."""
    sweep = load_model(Sweep, "sweeps", name_or_path)
    if sweep.points > MAX_POINTS:
        raise UserError(f"sweep {sweep.name}: has {sweep.points} points; allowed are {MAX_POINTS}")
    return sweep


def points(sweep: Sweep, first: int = 0, last: int | None = None) -> Iterator[Point]:
    """Points first .. last - 1 in the order of the file; the last path of the grid varies fastest."""
    axes = [sweep.models, sweep.schemes or (None,), sweep.machines, *sweep.grid.values()]
    for index, (model, scheme, machine, *values) in enumerate(itertools.islice(itertools.product(*axes), first, last), first):
        yield Point(index, model, scheme, machine, dict(zip(sweep.grid, values, strict=True)), sweep.workload)


def evaluate_chunk(sweep: Sweep, first: int, last: int, evaluate: Evaluate, results: tuple[str, ...]) -> str:
    """CSV text of points first .. last - 1, without a header; ``error`` is last. A point that is not legal has that alone."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for point in points(sweep, first, last):
        error, row = "", {}
        try:
            row = evaluate(point)
        except UserError as refused:
            error = " ".join(str(refused).split())
        if row and tuple(row) != results:
            raise ValueError(f"an evaluator gave {tuple(row)}, declared are {results}")
        cells = [row.get(name) for name in results]
        scheme = point.scheme or ""
        writer.writerow(["" if cell is None else cell for cell in (point.index, point.model, scheme, point.machine, *point.grid.values(), *cells, error)])
    return text.getvalue()


def run_sweep(
    sweep: Sweep, folder: Path, evaluate: Evaluate, results: tuple[str, ...], *, stamp: Mapping[str, object], workers: int = 1,
    resume: bool = False, advance: Callable[[int], None] = lambda points: None,
) -> Path:
    """Evaluate what is missing and write ``points.csv``; returns its path.

    `evaluate` is a function of a module (it goes to other processes); `results` are its keys. `stamp` is what else decides the results,
    for example the version: a folder with another sweep or stamp is refused. The result does not depend on `workers`.
    """
    _claim(sweep, folder, dict(stamp), resume)
    total = sweep.points
    missing = []
    for first in range(0, total, CHUNK_POINTS):
        last = min(first + CHUNK_POINTS, total)
        if _finished(sweep, folder, first, last, len(results)):
            advance(last - first)
        else:
            missing.append((first, last))
    if workers == 1 or len(missing) <= 1:
        for first, last in missing:
            write_atomically(_chunk(folder, first), evaluate_chunk(sweep, first, last, evaluate, results))
            advance(last - first)
    else:
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            jobs = {pool.submit(evaluate_chunk, sweep, first, last, evaluate, results): (first, last) for first, last in missing}
            try:
                for job in as_completed(jobs):
                    first, last = jobs[job]
                    write_atomically(_chunk(folder, first), job.result())
                    advance(last - first)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow((*sweep.columns, *results, "error"))
    body = "".join(_chunk(folder, first).read_text() for first in range(0, total, CHUNK_POINTS))
    return write_atomically(folder / "points.csv", header.getvalue() + body)


def _chunk(folder: Path, first: int) -> Path:
    return folder / "chunks" / f"{first // CHUNK_POINTS:06d}.csv"


def _finished(sweep: Sweep, folder: Path, first: int, last: int, results: int) -> bool:
    """Whether the chunk is there and holds the rows of these points; one that something else changed is evaluated again."""
    try:
        with _chunk(folder, first).open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return False
    width = len(sweep.columns) + results + 1
    return [row[0] for row in rows if len(row) == width] == [str(index) for index in range(first, last)] and len(rows) == last - first


def _claim(sweep: Sweep, folder: Path, stamp: dict, resume: bool) -> None:
    """Make the folder this sweep's; UserError when it is another's, or when it has results and `resume` is off."""
    mine = {"format": FORMAT, "chunk_points": CHUNK_POINTS, "sweep": sweep.name, "points": sweep.points, "sweep_sha256": config_sha256(sweep), **stamp}
    path = folder / "sweep.json"
    if path.exists():
        try:
            theirs = json.loads(path.read_text())
        except ValueError:
            raise UserError(f"{path}: is not the JSON of a sweep; take another folder") from None
        if not resume:
            raise UserError(f"{folder}: holds results of a sweep; give --resume to go on with it, or another folder")
        if theirs != mine:
            changed = [key for key in mine if not isinstance(theirs, dict) or theirs.get(key) != mine[key]] or ["more keys"]
            raise UserError(f"{path}: is of another sweep or version ({', '.join(changed)} differ); take another folder")
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty and holds no sweep.json; take an empty or new folder")
    (folder / "chunks").mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(mine, indent=2) + "\n")


def refusals(rows: Iterable[Mapping[str, str]]) -> list[dict]:
    """Why points of a ``points.csv`` are not legal, most frequent first: ``{"points", "first", "error"}``.

    Messages that differ in their numbers alone are one reason; `first` is the index of its first point, `error` that point's message without
    what names the point.
    """
    found: dict[str, dict] = {}
    for row in rows:
        if row["error"]:
            named, colon, reason = row["error"].partition(": ")
            reason = reason if colon else named
            entry = found.setdefault(re.sub(r"\d[\d_.,]*", "#", reason), {"points": 0, "first": int(row["index"]), "error": reason})
            entry["points"] += 1
    return sorted(found.values(), key=lambda entry: -entry["points"])


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write beside `path` and rename: whoever sees the file sees all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)
    return path
