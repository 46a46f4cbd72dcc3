"""Options that several commands share, under the same names everywhere."""

import click

OVERRIDES = "headrace.overrides"

DEFAULT_SCHEME = "w4a8kv8"
"""Compression scheme of commands that are given none, unless a packed file has its own."""


def remember_overrides(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Overrides go into the stamp: a preset's name alone would hide that it was changed."""
    context.meta[OVERRIDES] = list(value)
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
"""Parameter ``as_json: bool``."""

set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    callback=remember_overrides,
    help="Override a field of the machine, or of board.* or scheme.*; may be repeated.",
)
"""Parameter ``overrides: tuple[str, ...]``, for `headrace.models.configfile.split_overrides`."""

seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the poison that fills memories before first use.",
)
"""Parameter ``seed: int``."""


def common_options(function):
    """`--json`, `--set` and `--seed` together."""
    return json_option(set_option(seed_option(function)))
