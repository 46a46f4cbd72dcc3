"""`headrace compress`: codes of a model's weights, chosen on calibration texts, into one packed file."""

from pathlib import Path

import click

from headrace.commands.perplexity import read_text
from headrace.models.errors import UserError
from headrace.options import json_option, seed_option, set_option
from headrace.output import check_writable, emit_json, progress


@click.command("compress", short_help="Compress a model with calibration into a packed file.")
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE.headrace", help="The packed file.")
@click.option("--scheme", "scheme_name", default="w4a8kv8", show_default=True, metavar="NAME_OR_PATH", help="Bits, groups and sparsity; --set scheme.FIELD=VALUE changes them.")
@click.option(
    "--rounding", type=click.Choice(["nearest", "fitted", "gptq"]), default="gptq", show_default=True,
    help="nearest: each group from minimum to maximum; fitted: in the range that costs the outputs least; gptq: that, with error compensation.",
)
@click.option("--scaling", type=click.Choice(["none", "awq", "smoothquant"]), default="none", show_default=True, help="Scaling of channels before rounding.")
@click.option("--pruning", type=click.Choice(["magnitude", "wanda", "sparsegpt"]), default="sparsegpt", show_default=True, help="How an N:16 scheme chooses the weights that stay.")
@click.option("--mixed", is_flag=True, help="Blocks of an N:16 scheme may keep different numbers of weights; its N is their mean.")
@click.option(
    "--bytes-per-weight", type=click.FloatRange(0.2, 1.2), metavar="X",
    help="Choose the width of every linear so that all weights together take at most X bytes each, embedding included, at the least measured loss; widths of scheme.linear_bits and scheme.tensor_bits stay.",
)
@click.option("--calibrate", "files", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="UTF-8 text to calibrate on; may be repeated. Without it the model writes its own.")
@click.option("--texts", type=click.IntRange(1, 4096), default=64, show_default=True, help="Calibration texts (windows of the files).")
@click.option("--length", type=click.IntRange(8, 4096), default=256, show_default=True, help="Tokens of each.")
@set_option
@json_option
@seed_option
def command(
    model: str, output: Path, scheme_name: str, rounding: str, scaling: str, pruning: str, mixed: bool, bytes_per_weight: float | None,
    files: tuple[Path, ...], texts: int, length: int, overrides: tuple[str, ...], as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Compress MODEL under a scheme and write one packed file, which `generate`, `perplexity`, `estimate`, `cosim`, `rtl`, `compare` and
    `kernels generate` take in place of a model. Weights are always rounded anew from their float values.

    Embedding and LM head keep 8 bits. --seed is that of the texts that the model writes (they are kept in the cache folder).
    """
    from headrace.models.configfile import split_overrides
    from headrace.models.packed import SUFFIX, Made, is_packed, save_packed
    from headrace.models.registry import load_model
    from headrace.models.scheme import load_scheme
    from headrace.sim.calibrate import Method, calibrated, check_scheme, collect
    from headrace.sim.session import scheme_overrides
    from headrace.sim.widths import check_budget, choose_widths, given_widths, measure_losses

    if not is_packed(output):
        raise UserError(f"-o {output}: allowed is a name that ends with {SUFFIX}")
    check_writable(output, "-o")
    scheme = load_scheme(scheme_name, scheme_overrides(split_overrides(overrides)))
    method = Method(rounding=rounding, scaling=scaling, pruning=pruning, mixed=mixed)
    sparse = scheme.sparsity is not None and scheme.sparsity.n < scheme.sparsity.m
    if not sparse:
        _refuse_pruning_options()
    if bytes_per_weight is not None:
        if sparse:
            raise UserError(f"--bytes-per-weight {bytes_per_weight}: widths are chosen for dense schemes; scheme {scheme.name} is sparse")
        if scaling != "none":
            raise UserError(f"--scaling {scaling}: widths are chosen from weights that are not scaled; leave one of the two out")
    loaded = load_model(model)
    check_scheme(loaded.config, scheme)
    if bytes_per_weight is not None:
        check_budget(loaded.config, scheme, bytes_per_weight)
    needs_texts = method.calibrates or bytes_per_weight is not None or (sparse and pruning != "magnitude")
    statistics, tokens = None, None
    linears = loaded.config.layers * len(loaded.config.linear_names)
    if needs_texts:
        tokens = calibration_tokens(loaded, files, texts, length, seed)
        with progress(f"calibrating on {tokens.size} tokens", total=len(tokens)) as advance:
            statistics = collect(loaded, tokens, advance, mask=scheme.mask)
    elif files:
        raise UserError(f"--calibrate {files[0]}: rounding nearest reads no texts; leave one of the two out")
    widths = None
    if bytes_per_weight is not None:
        with progress("measuring what each linear loses", total=linears - len(given_widths(loaded.config, scheme))) as advance:
            losses = measure_losses(loaded, scheme, method, statistics, tokens, advance)
        scheme = choose_widths(loaded, scheme, losses, bytes_per_weight)
        widths = scheme.tensor_bits
    with progress(f"compressing {loaded.config.name} by {rounding}", total=linears) as advance:
        compressed = calibrated(loaded, scheme, method, statistics, advance)
    source = None if not needs_texts else ", ".join(path.name for path in files) or f"{texts} texts of {length} tokens, written by the model"
    made = Made(
        model=loaded.config.name, rounding=rounding, scaling=scaling, pruning=pruning if sparse else None, calibration=source, seed=seed,
    )
    save_packed(output, compressed, made)
    weights = compressed.required_bytes / loaded.config.parameters
    if as_json:
        document = {
            "model": loaded.config.name, "scheme": scheme.name, "file": str(output), "file_bytes": output.stat().st_size,
            "weight_bytes": compressed.required_bytes, "bytes_per_weight": weights, "made": made.model_dump(), "widths": widths,
        }
        emit_json(document, [loaded.config.to_dict(), scheme, made], seed)
        return
    click.echo(f"{output}: {compressed.required_bytes / 1e6:.2f} MB of weights, {weights:.4f} bytes each")


def calibration_tokens(loaded, files: tuple[Path, ...], texts: int, length: int, seed: int):
    """int64 [texts, length]: windows of the files, or texts that the model writes."""
    from headrace.sim.calibration_text import own_texts, windows
    from headrace.sim.session import require_tokenizer

    if length > loaded.config.max_positions:
        raise UserError(f"--length {length}: model {loaded.config.name} has max_positions = {loaded.config.max_positions}")
    if files:
        require_tokenizer(loaded)
        return windows(loaded, [read_text(path, "--calibrate") for path in files], length, texts)
    with progress(f"writing {texts} texts of {length} tokens", total=length - 1) as advance:
        return own_texts(loaded, texts, length, seed, advance)


def _refuse_pruning_options() -> None:
    """UserError for an option that a dense scheme would leave unused."""
    context = click.get_current_context()
    for name in ("pruning", "mixed"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UserError(f"--{name}: the scheme is dense; give --scheme w4a8kv8-n8 or another sparse one, or leave the option out")
