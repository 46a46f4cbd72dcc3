"""`headrace models [list | pull | show]`: the models that have names, their weights, and the sizes that follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.commands._tensor_graph import show_graph
from headrace.models.errors import UserError
from headrace.options import DEFAULT_SCHEME, common_options, json_option, seed_option
from headrace.output import emit_json, print_table, progress

if TYPE_CHECKING:
    from headrace.models.scheme import Scheme


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, fetch and show models."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@command.command("list", short_help="The models; are their weights here?")
@json_option
@seed_option
def list_command(as_json: bool = False, seed: int = 0) -> None:
    """Name the models of configs/models, and say whether their weights are here."""
    from headrace.models.registry import list_models, weights_path

    entries = list_models()
    rows = []
    for entry in entries:
        if entry.wheels is None and entry.folder is None:
            weights = "sizes only"
        else:
            weights = "here" if weights_path(entry) else "to pull"
        rows.append({"name": entry.name, "parameters": entry.config.parameters, "weights": weights, "description": entry.description})
    if as_json:
        emit_json({"models": rows}, entries, seed)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


@command.command("pull", short_help="Fetch the weights of a model.")
@click.argument("name", metavar="NAME")
@json_option
@seed_option
def pull_command(name: str, as_json: bool, seed: int) -> None:
    """Fetch a model's weights into the cache ($HEADRACE_CACHE, or ~/.cache/headrace); the only command that uses the network."""
    from headrace.models.registry import model_entry, pull

    entry = model_entry(name)
    with progress(f"pulling {entry.name}"):
        path = pull(name)
    if as_json:
        emit_json({"model": entry.name, "path": str(path)}, entry, seed)
    else:
        click.echo(path)


@command.command("show", short_help="Sizes of a model, and its bytes under a scheme.")
@click.argument("model", metavar="NAME_OR_PATH")
@click.option("--scheme", metavar="NAME_OR_PATH", help=f"Compression scheme that the bytes are counted under.  [default: {DEFAULT_SCHEME}, or a packed file's own]")
@click.option("--length", "lengths", metavar="NAME=N", multiple=True, help="Of a saved tensor graph: a symbolic length; may be repeated.")
@common_options
def show_command(
    model: str, scheme: str | None, lengths: tuple[str, ...], overrides: tuple[str, ...], as_json: bool, seed: int
) -> None:
    """Print a model's sizes, and its bytes under a scheme: weights required once (no padding), KV codes and scales a token.

    A Hugging Face config.json (its folder, or the file) may be of any architecture that is known here; no weights are needed.
    Of a tensor graph (a .tgraph folder that `headrace.models.exported.torch_export` made): parameters, operators, and MACs a pass at the lengths given."""
    from headrace.models.compressed import scheme_of
    from headrace.models.exported.tensor_graph_file import SUFFIX

    if Path(model).suffix == SUFFIX:
        if overrides or scheme is not None:
            raise UserError(f"{model}: --scheme and --set say nothing about a tensor graph; allowed is --length NAME=N")
        show_graph(Path(model), lengths, as_json, seed)
        return
    if lengths:
        raise UserError(f"--length {lengths[0]}: {model} has no symbolic lengths; allowed for a {SUFFIX} folder only")
    for override in overrides:
        if not override.strip().startswith("scheme."):
            raise UserError(f"--set {override}: this command uses no machine; allowed are scheme.FIELD=VALUE")
    description = scheme_of(model, scheme, DEFAULT_SCHEME, [override.strip().removeprefix("scheme.") for override in overrides])
    document = _described(model, description) or _plain_llama(model, description)
    if as_json:
        emit_json(document, {"sizes": document["sizes"], "scheme": description.model_dump()}, seed)
        return
    sizes = document.pop("sizes")
    print_table(["field", "value"], [*document.items(), *((f"sizes.{name}", _short(value)) for name, value in sizes.items())])


def _plain_llama(model: str, scheme: Scheme) -> dict[str, object]:
    from headrace.models.packed import is_packed, load_packed
    from headrace.models.registry import model_config
    from headrace.models.scheme import weight_bytes

    config = model_config(model)
    return {
        "model": config.name,
        "scheme": scheme.name,
        "parameters": config.parameters,
        "weight_bytes": load_packed(model).model.required_bytes if is_packed(model) else weight_bytes(config, scheme),
        "macs_per_token": config.macs_per_token,
        "kv_bytes_per_token": config.kv_bytes_per_token(scheme.kv_bits),
        "sizes": {name: value for name, value in config.to_dict().items() if name != "name"},
    }


def _described(model: str, scheme: Scheme) -> dict[str, object] | None:
    """What a config.json says of its architecture; None for a name, a GGUF file, and a plain Llama, whose sizes are its graph's."""
    from headrace.models.architectures import describe
    from headrace.models.architectures.graphs import read_graph
    from headrace.models.formats.hf import read_hf_config
    from headrace.models.registry import model_path

    path = model_path(model)
    if path is None or not (path.is_dir() or path.suffix == ".json"):
        return None
    if path.is_dir():
        try:
            if read_hf_config(path).plain_llama:
                return None
        except UserError:
            pass
    described = describe(path)
    notes = read_graph(path).notes  # what the counts do not look at is checked too
    counted = described.counted
    named = path if path.is_dir() or path.name != "config.json" else path.parent
    return {
        "model": named.resolve().name.removesuffix(".json"),
        "architecture": described.architecture,
        **({"note": "; ".join(notes)} if notes else {}),
        "scheme": scheme.name,
        "parameters": counted.parameters,
        "weight_bytes": counted.weight_bytes(scheme),
        "macs_per_token": counted.macs_per_token,
        "kv_bytes_per_token": counted.kv.bytes_per_token(scheme.kv_bits) if counted.kv else None,
        "sizes": described.fields.model_dump(),
    }


def _short(value: object) -> object:
    """A long list by its length; --json has it whole."""
    return f"{len(value)} values" if isinstance(value, (list, tuple)) and len(value) > 16 else value
