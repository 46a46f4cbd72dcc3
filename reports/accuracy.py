"""The curve of bytes per weight against perplexity: CSV and plot."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.mapping.sweep import write_atomically

COLUMNS = (
    "bits", "group", "keep", "index_share", "mixed", "pruning", "rounding", "scaling", "kv_bits", "bytes_per_weight", "weight_bytes", "bytes_of_weight",
    "log_perplexity",
)  # fmt: skip


def write_curve(folder: Path, model: str, rows: Sequence[Mapping]) -> dict[str, str]:
    """Write accuracy.csv and accuracy.png into `folder`; returns their paths. rows: of `sim.accuracy.run_ways`."""
    texts = list(rows[0]["perplexity"])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"perplexity {name}" for name in texts)])
    for row in rows:
        writer.writerow([*("" if row[name] is None else row[name] for name in COLUMNS), *(row["perplexity"][name] for name in texts)])
    paths = {"csv": folder / "accuracy.csv", "plot": folder / "accuracy.png"}
    write_atomically(paths["csv"], out.getvalue())
    _plot(paths["plot"], model, rows)
    return {name: str(path) for name, path in paths.items()}


def _series(row: Mapping) -> str:
    sparse = "" if row["keep"] == 16 else f"{'mixed ' if row['mixed'] else ''}N:16 {row['pruning']}, index of {row['index_share']}, "
    widths = "" if row["bytes_per_weight"] is None else "chosen widths, "
    cache = "" if row["kv_bits"] == 8 else f", KV {row['kv_bits']} bits"
    return sparse + widths + row["rounding"] + ("" if row["scaling"] == "none" else f" {row['scaling']}") + cache


def _plot(path: Path, model: str, rows: Sequence[Mapping]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    series: dict[str, list[Mapping]] = {}
    for row in rows:
        if row["rounding"] == "float":
            axes.axhline(math.exp(row["log_perplexity"]), color="0.5", linestyle=":", label="float32, the file's weights")
        else:
            series.setdefault(_series(row), []).append(row)
    for name, points in series.items():
        points = sorted(points, key=lambda row: row["bytes_of_weight"])
        axes.plot(
            [row["bytes_of_weight"] for row in points], [math.exp(row["log_perplexity"]) for row in points], marker="o", markersize=4,
            linewidth=1, label=name,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.yaxis.set_minor_formatter(matplotlib.ticker.ScalarFormatter())
    axes.set_xlabel("bytes per weight (embedding included)")
    axes.set_ylabel("perplexity (geometric mean over texts)")
    axes.set_title(f"{model}: what compression costs, on exact hardware arithmetic (simulated)")
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize=8)
    temporary = path.with_suffix(".part.png")
    figure.savefig(temporary, dpi=130)
    pyplot.close(figure)
    temporary.replace(path)
