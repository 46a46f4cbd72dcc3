"""`headrace compare MODEL`: machines beside GPUs, for one workload."""

import click

from headrace.models.errors import UserError
from headrace.options import common_options
from headrace.output import emit_json, print_table


@click.command("compare", short_help="Machines beside GPUs: tokens/s and J/token in decode.")
@click.argument("model", metavar="MODEL")
@click.option("--machine", "machines", multiple=True, metavar="M", help="A machine; may be repeated.")
@click.option("--gpu", "gpus", multiple=True, metavar="G[/STACK]", help="A GPU, all its stacks or one; may be repeated.")
@click.option("--scheme", "scheme_name", metavar="NAME_OR_PATH", help="Compression scheme; default: each machine's, and for GPUs the first machine's, else w4a8kv8.")
@click.option("--prefill", type=click.IntRange(min=1), default=128, show_default=True, metavar="P", help="Prompt tokens.")
@click.option("--decode", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Decode steps after it.")
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, metavar="B", help="Sequences.")
@common_options
def command(
    model: str, machines: tuple[str, ...], gpus: tuple[str, ...], scheme_name: str | None, prefill: int, decode: int, batch: int,
    overrides: tuple[str, ...], as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Tokens per second and joules per token of MODEL in decode: machines (estimated), GPU bounds, and GPU measurements of other models.

    A bound is a ceiling that no GPU beats, not a prediction. Energy is null where no source measured it.
    """
    from headrace.models.configfile import split_overrides
    from headrace.models.registry import model_config
    from headrace.sim.compare import compare
    from headrace.sim.gpu import parse_gpu

    if not machines and not gpus:
        raise UserError("compare: nothing to compare; give --machine M or --gpu G[/STACK], or several of them")
    groups = split_overrides(overrides)
    for name in ("machine", "board"):
        if groups[name] and not machines:
            raise UserError(f"--set {groups[name][0]}: no --machine is given that it could address")
    config = model_config(model)
    choices = [parse_gpu(text) for text in gpus]
    document, used = compare(
        config, list(machines), choices, scheme_name, overrides=groups, prefill=prefill, decode=decode, batch=batch, model=model
    )
    if as_json:
        emit_json(document, used, seed)
    else:
        _print(document)


def _print(document: dict) -> None:
    columns = ["name", "kind", "dtype", "stack", "model", "tokens/s", "J/token", "limit"]
    rows = [
        [row["name"], row["kind"], row["dtype"], row["stack"], row["model"], row["tokens_per_s"], _energy(row), row["limit"]]
        for row in document["rows"]
    ]
    title = f"decode of {document['model']}: prefill {document['prefill']}, {document['decode']} steps, batch {document['batch']}"
    print_table(columns, rows, title=title)
    for row in document["rows"]:
        if row["note"] and (row["kind"] == "estimated" or row["limit"] == "compute"):
            click.echo(f"{row['name']} {row['dtype']} {row['stack']}: {row['note']}")
    for item in document["break_even"]:
        bound, measured = item["tokens_per_s_batch"], item["energy_measured"]
        line = f"{item['machine']} against {item['gpu']}: "
        line += f"the fp16 roofline passes its tokens/s from batch {bound}" if bound else "no batch up to 1024 has an fp16 roofline of its tokens/s"
        if measured:
            line += f"; measured below its J/token from batch {measured['batch']} ({measured['stack']}, {measured['energy_j_per_token']:g} J)"
        click.echo(line)


def _energy(row: dict) -> str | None:
    """The middle value, with its range where there is one."""
    if row["energy_j_per_token"] is None:
        return None
    ends = row["energy_j_per_token_range"]
    return f"{row['energy_j_per_token']:.3g}" + (f" ({ends[0]:.3g}-{ends[1]:.3g})" if ends else "")
