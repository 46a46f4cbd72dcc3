"""`headrace models [list | pull | show]`: the models that have names, their weights, and the sizes that follow from them."""

import click

from headrace.models.errors import UserError
from headrace.options import common_options, json_option, seed_option
from headrace.output import emit_json, print_table, progress

DEFAULT_SCHEME = "w4a8kv8"


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
        if entry.wheel is None and entry.folder is None:
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
@click.option("--scheme", default=DEFAULT_SCHEME, show_default=True, help="Compression scheme that the bytes are counted under.")
@common_options
def show_command(model: str, scheme: str, overrides: tuple[str, ...], as_json: bool, seed: int) -> None:
    """Print a model's sizes, and its bytes under a scheme: weights required once (no padding), KV codes and scales a token."""
    from headrace.models.registry import model_config
    from headrace.models.scheme import load_scheme, weight_bytes

    for override in overrides:
        if not override.strip().startswith("scheme."):
            raise UserError(f"--set {override}: this command uses no machine; allowed are scheme.FIELD=VALUE")
    config = model_config(model)
    description = load_scheme(scheme, [override.strip().removeprefix("scheme.") for override in overrides])
    document = {
        "model": config.name,
        "scheme": description.name,
        "parameters": config.parameters,
        "weight_bytes": weight_bytes(config, description),
        "macs_per_token": config.macs_per_token,
        "kv_bytes_per_token": config.kv_bytes_per_token(description.kv_bits),
        "sizes": {name: value for name, value in config.to_dict().items() if name != "name"},
    }
    if as_json:
        emit_json(document, {"sizes": document["sizes"], "scheme": description.model_dump()}, seed)
        return
    sizes = document.pop("sizes")
    print_table(["field", "value"], [*document.items(), *((f"sizes.{name}", value) for name, value in sizes.items())])
