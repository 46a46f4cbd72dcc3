"""What the commands print: one stamped JSON document on stdout, tables on stdout, progress on stderr."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import headrace
from headrace.models.configfile import config_sha256, plain_data
from headrace.options import OVERRIDES
from headrace.models.errors import UserError

PIPE_COLUMNS = 240
"""Width of tables that do not go to a terminal: wide enough that no number is folded."""


def emit_json(document: Mapping[str, Any], config: Any, seed: int = 0) -> None:
    """Print `document` with its stamp: version, SHA-256 of the configuration that gave it, seed.

    `config` is a pydantic model or plain data. A NaN or infinity is a fault of the program, not an answer:
    ValueError names where it stands.
    """
    click.echo(json.dumps(stamped(document, config, seed), indent=2, allow_nan=False))


def stamped(document: Mapping[str, Any], config: Any, seed: int = 0) -> dict[str, Any]:
    """`document` as plain data with ``"stamp": {"headrace", "config_sha256", "seed"}`` added, and ``"overrides"`` where --set gave any."""
    if "stamp" in document:
        raise ValueError("the document already has a stamp")
    plain = plain_data(document)
    refuse_non_finite(plain)
    context = click.get_current_context(silent=True)
    overrides = context.meta.get(OVERRIDES) if context else None
    stamp = {"headrace": headrace.__version__, "config_sha256": config_sha256(config), "seed": int(seed)}
    if overrides:
        stamp["overrides"] = overrides
    return {**plain, "stamp": stamp}


def refuse_non_finite(value: Any, where: str = "") -> None:
    """Raise ValueError naming the first NaN or infinity inside plain data."""
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_non_finite(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refuse_non_finite(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"result {where or 'document'} is {value}")


def check_writable(file: Path, option: str) -> None:
    """UserError where no file can be made at `file`: said before long work, not after it. Leaves nothing behind."""
    if not file.name:
        raise UserError(f"{option} {str(file)!r}: is not the name of a file")
    if not file.parent.is_dir():
        raise UserError(f"{option} {file}: folder {file.parent} does not exist")
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise UserError(f"{option} {file}: folder {file.parent} cannot be written: {error.strerror}") from None


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A plain table on stdout; numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_value(cell)) for cell in row))
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(soft_wrap=False, width=PIPE_COLUMNS)
    console.print(table)


def format_value(value: Any) -> str:
    """A cell as text: five significant digits for floats, thousands separated for large integers."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1e4 else f"{value:.5g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return str(value)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Show progress on stderr; yields ``advance(steps=1, description=None)``.

    On a terminal a bar that vanishes when done; elsewhere a line at the start and one for each new description, so that logs stay short.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        click.echo(f"headrace: {description}", err=True)
        yield lambda steps=1, description=None: click.echo(f"headrace: {description}", err=True) if description else None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: float = 1, description: str | None = None) -> None:
            bar.update(task, advance=steps, description=description)

        yield advance
