"""`headrace compare MODEL`: machines beside GPUs, for one workload."""

import math
from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.models.scheme import Scheme
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
@click.option("--transform", "transforms", metavar="NAME:KEY=VALUE,...", multiple=True, help="Change the workload, as `estimate --transform` does; may be repeated.")
@click.option("--accuracy", "accuracy_folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Results of `headrace accuracy` of this model: adds the perplexity of each row's scheme, compressed as MODEL is.")
@common_options
def command(
    model: str, machines: tuple[str, ...], gpus: tuple[str, ...], scheme_name: str | None, prefill: int, decode: int, batch: int,
    transforms: tuple[str, ...], accuracy_folder: Path | None,
    overrides: tuple[str, ...], as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Tokens per second and joules per token of MODEL in decode: machines (estimated), GPU bounds, and GPU measurements of other models.

    A bound is a ceiling that no GPU beats, not a prediction. Energy is null where no source measured it.
    """
    from headrace.models.configfile import split_overrides
    from headrace.mapping.transforms import apply_transforms
    from headrace.models.architectures.graphs import load_graph, plain_llama
    from headrace.sim.compare import compare
    from headrace.sim.compare_graph import compare_graph
    from headrace.sim.gpu import parse_gpu

    if not machines and not gpus:
        raise UserError("compare: nothing to compare; give --machine M or --gpu G[/STACK], or several of them")
    if accuracy_folder is not None and transforms:
        raise UserError(f"--transform {transforms[0]}: what it does to accuracy is not known; leave it or --accuracy out")
    groups = split_overrides(overrides)
    for name in ("machine", "board"):
        if groups[name] and not machines:
            raise UserError(f"--set {groups[name][0]}: no --machine is given that it could address")
    choices = [parse_gpu(text) for text in gpus]
    config = None if transforms else plain_llama(model)
    how = {"overrides": groups, "prefill": prefill, "decode": decode}
    if config is not None:
        document, used = compare(config, list(machines), choices, scheme_name, batch=batch, model=model, **how)
    else:
        work, applied = apply_transforms(load_graph(model), transforms, batch)
        document, used = compare_graph(work, applied, list(machines), choices, scheme_name, model=model, **how)
    if accuracy_folder is not None:
        _add_accuracy(document, model, accuracy_folder, {item.name: item for item in used if isinstance(item, Scheme)})
    if as_json:
        emit_json(document, used, seed)
    else:
        _print(document)


def _add_accuracy(document: dict, model: str, folder: Path, schemes: dict) -> None:
    """Of each row of this model: "perplexity" (geometric mean over the texts of `headrace accuracy`) and "accuracy" (how it was compressed).

    A packed file has the row of its own method. Other models are rounded to the nearest codes; where a file's own codes pass through
    instead, no row stands for them.
    """
    from headrace.models.packed import is_packed, read_packed_config
    from headrace.models.registry import load_model, model_config
    from headrace.sim.accuracy import read_rows, row_of_scheme, way_of
    from headrace.sim.gpu import FLOAT_DTYPES

    rows = read_rows(folder, model_config(model))
    made = read_packed_config(model)[2] if is_packed(model) else None
    own_codes = made is None and bool(load_model(model).codes)
    method = ("nearest", "none", None) if made is None else (made.rounding, made.scaling, made.pruning)
    for row in document["rows"]:
        scheme = schemes.get(row["dtype"])
        known = row["model"] == document["model"] and (scheme is not None or row["dtype"] in FLOAT_DTYPES)
        if scheme is not None and own_codes and scheme.weight_bits == 4 and scheme.group == 32:
            known = False
        found = row_of_scheme(rows, scheme, *method) if known else None
        row["perplexity"] = math.exp(found["log_perplexity"]) if found else None
        row["accuracy"] = way_of(found).label if found else None


def _print(document: dict) -> None:
    columns = ["name", "kind", "dtype", "stack", "model", "tokens/s", "J/token", "limit"]
    scored = ["perplexity", "accuracy"] if "perplexity" in document["rows"][0] else []
    rows = [
        [row["name"], row["kind"], row["dtype"], row["stack"], row["model"], row["tokens_per_s"], _energy(row), row["limit"], *(row[name] for name in scored)]
        for row in document["rows"]
    ]
    columns += scored
    title = f"decode of {document['model']}: prefill {document['prefill']}, {document['decode']} steps, batch {document['batch']}"
    title += "".join(f", {_transform(item)}" for item in document.get("transforms", ()))
    print_table(columns, rows, title=title)
    for note in document.get("notes", ()):
        click.echo(f"{document['model']}: {note}")
    for row in document["rows"]:
        if row["note"] and (row["kind"] == "estimated" or row["limit"] == "compute"):
            click.echo(f"{row['name']} {row['dtype']} {row['stack']}: {row['note']}")
    for item in document["left_out"]:
        needed, each = item["weight_bytes"] + item["cache_bytes"], f"weights {_gb(item['weight_bytes'])}, cache {_gb(item['cache_bytes'])}"
        click.echo(f"{item['name']} {item['dtype']}, left out ({', '.join(item['stacks'])}): {_gb(needed)} needed ({each}), memory of {_gb(item['memory_bytes'])}")
    for item in document["break_even"]:
        bound, measured = item["tokens_per_s_batch"], item["energy_measured"]
        line = f"{item['machine']} against {item['gpu']}: "
        line += f"the fp16 roofline passes its tokens/s from batch {bound}" if bound else "no batch up to 1024 that fits has an fp16 roofline of its tokens/s"
        if measured:
            line += f"; measured below its J/token from batch {measured['batch']} ({measured['stack']}, {measured['energy_j_per_token']:g} J)"
        click.echo(line)


def _transform(item: dict) -> str:
    values = ", ".join(f"{key} {value}" for key, value in item.items() if key != "name" and value is not None)
    return item["name"] + (f" ({values})" if values else "")


def _gb(size: float) -> str:
    return f"{size / 1e9:.4g} GB"


def _energy(row: dict) -> str | None:
    """The middle value, with its range where there is one."""
    if row["energy_j_per_token"] is None:
        return None
    ends = row["energy_j_per_token_range"]
    return f"{row['energy_j_per_token']:.3g}" + (f" ({ends[0]:.3g}-{ends[1]:.3g})" if ends else "")
