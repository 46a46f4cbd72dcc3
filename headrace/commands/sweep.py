"""`headrace sweep SWEEP.yaml -o DIR`: estimates over a grid of machines, models and schemes."""

from pathlib import Path

import click

from headrace.options import json_option, seed_option
from headrace.output import emit_json, progress

MAX_WORKERS = 256
MAX_REASONS = 8
"""Printed; --json has all."""


@click.command("sweep", short_help="Estimate a grid of machines, models and schemes.")
@click.argument("sweep_file", metavar="SWEEP.yaml")
@click.option("-o", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Where results go.")
@click.option("--workers", type=click.IntRange(1, MAX_WORKERS), default=1, show_default=True, metavar="N", help="Processes.")
@click.option("--resume", is_flag=True, help="Go on with the sweep in DIR; finished chunks are kept.")
@json_option
@seed_option
def command(sweep_file: str, folder: Path, workers: int, resume: bool, as_json: bool, seed: int) -> None:
    """Estimate every combination of SWEEP.yaml (a name of configs/sweeps or a file) and write DIR/points.csv.

    Rows are in the order of the file whatever N is. A combination that is not legal has its reason in the column `error`.
    """
    import csv

    import headrace
    from headrace.mapping.sweep import load_sweep, refusals, run_sweep
    from headrace.models.errors import UserError
    from headrace.sim.sweep_point import RESULTS, check_names, evaluate_point

    sweep = load_sweep(sweep_file)
    check_names(sweep)
    with progress(f"sweep {sweep.name}: {sweep.points} points", total=sweep.points) as advance:
        path = run_sweep(
            sweep, folder, evaluate_point, RESULTS, stamp={"headrace": headrace.__version__}, workers=workers, resume=resume, advance=advance
        )
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors = [row["error"] for row in rows if row["error"]]
    if len(errors) == len(rows):
        raise UserError(f"sweep {sweep.name}: none of {len(rows)} points is legal; the first says: {errors[0]}")
    document = {"sweep": sweep.name, "points": len(rows), "refused": len(errors), "reasons": refusals(rows), "file": str(path)}
    if as_json:
        emit_json(document, sweep, seed)
    else:
        click.echo(f"{path}: {len(rows)} points (estimated), {len(errors)} of them not legal")
        for reason in document["reasons"][:MAX_REASONS]:
            click.echo(f"  {reason['points']} like point {reason['first']}: {reason['error']}")
        if len(document["reasons"]) > MAX_REASONS:
            click.echo(f"  and {len(document['reasons']) - MAX_REASONS} more reasons; see the column error")
