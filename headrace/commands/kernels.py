"""`headrace kernels [check | bench]`: the Triton kernels against the numeric contract, and their speed on a device."""

import click

from headrace.options import json_option
from headrace.output import emit_json, print_table, progress

operand_seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the random operands.")


@click.group("kernels", short_help="Check the Triton kernels; time them on a GPU.")
def command() -> None:
    """Check the Triton kernels against the contract; time them on a device."""


@command.command("check", short_help="Every case against the contract, bit for bit.")
@json_option
@operand_seed
def check_command(as_json: bool, seed: int) -> int:
    """Run every kernel case and compare with the contract bit for bit; status 1 where one differs.

    Without a CUDA device, or with TRITON_INTERPRET=1, Triton's CPU interpreter runs the same kernel source.
    """
    from headrace.kernels.check import backend, check

    ran_on = backend()
    with progress(f"checking kernels on {ran_on}") as advance:
        rows = check(seed, advance)
    equal = all(row["equal"] for row in rows)
    if as_json:
        emit_json({"backend": ran_on, "equal": equal, "cases": rows}, {"kernels": "linear_w4a8"}, seed)
    else:
        table = [[row["case"], row["results"], row["equal"]] for row in rows]
        print_table(["case", "results", "equal"], table, title=f"linear_w4a8 on {ran_on}, seed {seed}")
    for row in rows:
        if not row["equal"]:
            click.echo(f"headrace: linear_w4a8 on {ran_on} differs from the contract in case {row['case']!r}: {row['difference']}", err=True)
    return 0 if equal else 1


@command.command("bench", short_help="Time the kernel on a CUDA device.")
@click.option("--model", metavar="NAME_OR_PATH", default="llama2-7b", show_default=True, help="Whose matrices (sizes only; random weights).")
@click.option("--bits", type=click.Choice(["4", "8"]), default="4", show_default=True, help="Bits of a weight.")
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Rows of activations.")
@json_option
@operand_seed
def bench_command(model: str, bits: str, batch: int, as_json: bool, seed: int) -> None:
    """Time the kernel on a CUDA device for the linears of a model (measured)."""
    from headrace.kernels.check import backend, bench
    from headrace.models.graph import LINEAR_NAMES
    from headrace.models.registry import model_config

    config = model_config(model)
    rows = bench([(name, *config.linear_shape(name)) for name in LINEAR_NAMES], int(bits), batch, seed)
    if as_json:
        emit_json({"backend": backend(), "model": config.name, "bits": int(bits), "batch": batch, "rows": rows}, config.to_dict(), seed)
        return
    table = [list(row.values()) for row in rows]
    print_table(list(rows[0]), table, title=f"linear_w4a8 on {backend()}, {bits} bits, batch {batch} (measured)")
