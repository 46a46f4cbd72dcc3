"""Pareto fronts of a sweep: more tokens per second for less energy per token, or for fewer DSPs; per model."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headrace.mapping.sweep import IDENTITY, write_atomically
from headrace.models.errors import UserError

COSTS = {"energy_j_per_token": "energy per token (J)", "dsp": "DSP48E2", "lut": "LUT", "bram": "block RAM", "uram": "UltraRAM"}
"""Columns that may stand against tokens per second, and their axis labels."""
GAIN = "tokens_per_s"
MAX_BYTES = 1 << 30


def read_points(folder: Path) -> list[dict[str, str]]:
    """Legal points of ``points.csv`` whose model fits its board. UserError for a folder that holds no finished sweep."""
    path = folder / "points.csv"
    if not path.is_file():
        state = "an unfinished sweep: finish it with `headrace sweep --resume`" if (folder / "sweep.json").is_file() else "no sweep"
        raise UserError(f"{path}: is not there; {folder} holds {state}")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{path}: is larger than the {MAX_BYTES} bytes allowed")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in (*IDENTITY, GAIN, "fits", "error") if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: has no column {missing[0]!r}; it is not the result of `headrace sweep`")
            rows = [row for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: is not a CSV file: {error}") from None
    kept = [row for row in rows if not row["error"] and row["fits"] == "True"]
    if not kept:
        raise UserError(f"{path}: none of its {len(rows)} points is legal and fits its board")
    return kept


def choose_cost(rows: Sequence[Mapping[str, str]], asked: str | None) -> str:
    """`asked`, else energy where every point knows it, else DSPs. UserError where points lack it."""
    if asked is None:
        asked = "energy_j_per_token" if all(row.get("energy_j_per_token") for row in rows) else "dsp"
    if asked not in COSTS:
        raise UserError(f"--cost {asked} is unknown; allowed: {', '.join(COSTS)}")
    lacking = sum(not row.get(asked) for row in rows)
    if lacking:
        known = [name for name in COSTS if all(row.get(name) for row in rows)]
        raise UserError(f"--cost {asked}: {lacking} of {len(rows)} points do not know it; known of all: {', '.join(known) or 'none'}")
    return asked


def front(gain: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Indices of the points that no other beats: none has at least the gain for at most the cost with one of them better.

    gain, cost: [n]. Ordered by ascending cost; of points equal in both the first stands for all.
    """
    order = np.lexsort((np.arange(len(gain)), -gain, cost))
    kept, best = [], -math.inf
    for i in order:
        if gain[i] > best:
            kept.append(i)
            best = gain[i]
    return np.array(kept, dtype=int)


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UserError(f"points.csv: point {row['index']}: {name} = {row[name]!r}; a number of at least 0 is needed")
    return value


def fronts(rows: Sequence[dict[str, str]], cost: str) -> dict[str, list[dict[str, str]]]:
    """Front of each model."""
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        at = front(np.array([_number(row, GAIN) for row in mine]), np.array([_number(row, cost) for row in mine]))
        found[model] = [mine[i] for i in at]
    return found


def front_csv(found: Mapping[str, list[dict[str, str]]]) -> str:
    text = io.StringIO()
    rows = [row for part in found.values() for row in part]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain(text: str) -> str:
    """For a label of the plot, where $ would begin a formula."""
    return text.replace("$", r"\$")


def plot_png(rows: Sequence[dict[str, str]], found: Mapping[str, list[dict[str, str]]], cost: str, title: str) -> bytes:
    """All points and the fronts; the kind of the numbers stands in the title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (model, best) in enumerate(found.items()):
        colour = f"C{number % 10}"
        mine = [row for row in rows if row["model"] == model]
        axes.scatter([_number(r, cost) for r in mine], [_number(r, GAIN) for r in mine], s=14, color=colour, alpha=0.35, linewidths=0)
        x, y = [_number(r, cost) for r in best], [_number(r, GAIN) for r in best]
        axes.step(x, y, where="post", color=colour, linewidth=1.2)
        axes.scatter(x, y, s=32, color=colour, label=_plain(f"{model}: {len(best)} of {len(mine)}"), zorder=3)
    axes.set_xlabel(COSTS[cost])
    axes.set_ylabel("tokens per second")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend(title="Pareto front")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    return image.getvalue()


def write_pareto(folder: Path, cost: str | None) -> dict:
    """Write ``pareto.csv`` and ``pareto.png`` into `folder`; returns what `headrace pareto --json` prints."""
    rows = read_points(folder)
    cost = choose_cost(rows, cost)
    found = fronts(rows, cost)
    table = write_atomically(folder / "pareto.csv", front_csv(found))
    picture = write_atomically(folder / "pareto.png", plot_png(rows, found, cost, "Pareto front (estimated)"))
    points = [
        {
            "index": int(row["index"]), "model": model, "machine": row["machine"], "scheme": row["scheme"] or row.get("used_scheme"),
            GAIN: _number(row, GAIN), cost: _number(row, cost), "set": {name: row[name] for name in _grid(row)},
        }
        for model, part in found.items() for row in part
    ]  # fmt: skip
    return {"cost": cost, "points": len(rows), "front": points, "csv": str(table), "plot": str(picture)}


def _grid(row: Mapping[str, str]) -> list[str]:
    """Columns between the identity and the results: the paths of the grid."""
    names = list(row)
    return names[len(IDENTITY) : names.index("used_scheme")] if "used_scheme" in names else []
