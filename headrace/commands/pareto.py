"""`headrace pareto DIR`: the points of a sweep that no other point beats."""

from pathlib import Path

import click

from headrace.options import json_option, seed_option
from headrace.output import emit_json, print_table


@click.command("pareto", short_help="The Pareto front of a sweep, to CSV and plot.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--cost", metavar="COLUMN", help="Against tokens/s: energy_j_per_token (default where known), dsp, lut, bram or uram.")
@json_option
@seed_option
def command(folder: Path, cost: str | None, as_json: bool, seed: int) -> None:
    """Write DIR/pareto.csv and DIR/pareto.png for the sweep in DIR: a front per model."""
    from headrace.reports.pareto import GAIN, write_pareto

    document = write_pareto(folder, cost)
    if as_json:
        emit_json(document, {"points.csv": _sha256(folder / "points.csv"), "cost": document["cost"]}, seed)
        return
    cost = document["cost"]
    rows = [
        [point["index"], point["model"], point["machine"], point["scheme"], point[GAIN], point[cost],
         " ".join(f"{name}={value}" for name, value in point["set"].items())]
        for point in document["front"]
    ]  # fmt: skip
    print_table(["point", "model", "machine", "scheme", "tokens/s", cost, "set"], rows, title=f"front of {document['points']} points (estimated)")
    click.echo(f"{document['csv']}\n{document['plot']}")


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
