"""`headrace kernels [generate | check | bench]`: Triton kernels for a model's shapes, against the numeric contract, and their speed on a device."""

from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import DEFAULT_SCHEME, json_option, set_option
from headrace.output import check_writable, emit_json, print_table, progress

WRITTEN_BY = "Written by `headrace kernels generate`"

operand_seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the random operands.")


@click.group("kernels", short_help="Triton kernels: generate, check, time on a GPU.")
def command() -> None:
    """Write Triton kernels for a model's shapes; check the kernels against the contract; time them on a device."""


@command.command("generate", short_help="A model's linear layers as a Triton module.")
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.py", help="The module; one that this command wrote is replaced.")
@click.option("--scheme", "scheme_name", metavar="NAME_OR_PATH", help=f"Compression scheme: bits of each linear.  [default: {DEFAULT_SCHEME}, or a packed file's own]")
@click.option("--block-n", type=int, metavar="N", help="Rows of a program, a power of two.  [default: 64, fewer for small matrices]")
@click.option("--block-bytes", type=int, metavar="B", help="Code bytes of a row at a time, a power of two.  [default: the widest of 128, 64, 32 that divides a row]")
@set_option
@json_option
def generate_command(
    model: str, output: Path, scheme_name: str | None, block_n: int | None, block_bytes: int | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Write MODEL's linear layers and LM head as one Triton module that needs torch and triton alone.

    Shapes, bits and blocks are constants in it; the arithmetic is that of the checked kernel. Sizes only: no weights are read.
    """
    import headrace
    from headrace.kernels.generate import generate, linear_shapes
    from headrace.mapping.sweep import write_atomically
    from headrace.models.compressed import scheme_of
    from headrace.models.configfile import split_overrides
    from headrace.models.registry import model_config

    groups = split_overrides(overrides)
    for group in ("machine", "board"):
        if groups[group]:
            raise UserError(f"--set {groups[group][0]}: kernels read nothing of it; allowed are scheme.FIELD")
    if output.suffix != ".py":
        raise UserError(f"-o {output}: allowed is the name of a .py file")
    check_writable(output, "-o")
    if output.exists() and WRITTEN_BY not in output.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"-o {output}: exists and was not written by this command; choose another name")
    config, scheme = model_config(model), scheme_of(model, scheme_name, DEFAULT_SCHEME, groups["scheme"])
    shapes = linear_shapes(config, scheme, block_n=block_n, block_bytes=block_bytes)
    write_atomically(output, generate(config, scheme, shapes, version=headrace.__version__))
    rows = [{"name": s.name, "outputs": s.outputs, "inputs": s.inputs, "bits": s.bits, "block_n": s.block_n, "block_bytes": s.block_bytes} for s in shapes]
    if as_json:
        emit_json({"file": str(output), "model": config.name, "scheme": scheme.name, "linears": rows}, [config.to_dict(), scheme])
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows], title=f"{output}: {config.name} under {scheme.name}")


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
    from headrace.models.decoder import LINEAR_NAMES, require_plain_llama
    from headrace.models.registry import model_config

    config = model_config(model)
    require_plain_llama(config, "`kernels bench`")
    rows = bench([(name, *config.linear_shape(name)) for name in LINEAR_NAMES], int(bits), batch, seed)
    if as_json:
        emit_json({"backend": backend(), "model": config.name, "bits": int(bits), "batch": batch, "rows": rows}, config.to_dict(), seed)
        return
    table = [list(row.values()) for row in rows]
    print_table(list(rows[0]), table, title=f"linear_w4a8 on {backend()}, {bits} bits, batch {batch} (measured)")
