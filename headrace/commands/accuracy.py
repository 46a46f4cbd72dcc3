"""`headrace accuracy`: perplexity of a model under many compressions, on the golden executor."""

from itertools import count, product
from pathlib import Path

import click

from headrace.commands.compress import calibration_tokens
from headrace.commands.perplexity import read_text
from headrace.models.errors import UserError
from headrace.options import DEFAULT_SCHEME, json_option, seed_option, set_option
from headrace.output import emit_json, print_table, progress


class Choices(click.ParamType):
    """Values with commas between them, each of those allowed."""

    name = "LIST"

    def __init__(self, allowed: tuple):
        self.allowed = allowed

    def convert(self, value, parameter, context):
        if isinstance(value, tuple):
            return value
        texts = {str(item): item for item in self.allowed}
        found = []
        for text in value.split(","):
            if text not in texts:
                self.fail(f"{text!r} is not allowed; allowed are {', '.join(texts)}, with commas between them", parameter, context)
            found.append(texts[text])
        return tuple(dict.fromkeys(found))


class Budgets(click.ParamType):
    """Bytes per weight, with commas between them."""

    name = "LIST"

    def convert(self, value, parameter, context):
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(float(text) for text in value.split(","))
        except ValueError:
            found = (0.0,)
        if not all(0.2 <= item <= 1.2 for item in found):
            self.fail(f"{value!r}: allowed are numbers from 0.2 to 1.2, with commas between them", parameter, context)
        return found


@click.command("accuracy", short_help="Bytes per weight against perplexity: data and plot.")
@click.argument("model")
@click.option("--text", "text_paths", required=True, multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="UTF-8 text to score; may be repeated.")
@click.option("-o", "--output", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Where accuracy.json, accuracy.csv and accuracy.png go.")
@click.option("--scheme", "scheme_name", default=DEFAULT_SCHEME, show_default=True, metavar="NAME_OR_PATH", help="Scheme of what the lists leave open, such as a mask (--set 'scheme.attention={window: 256}').")
@click.option("--bits", type=Choices((2, 3, 4, 5, 6, 8)), default="3,4,5,6", show_default=True, help="Widths.")
@click.option("--group", "groups", type=Choices((32, 64, 128)), show_default="the scheme's", help="Codes that share a step and an offset.")
@click.option("--rounding", "roundings", type=Choices(("nearest", "fitted", "gptq")), default="nearest,gptq", show_default=True)
@click.option("--scaling", "scalings", type=Choices(("none", "awq", "smoothquant")), default="none", show_default=True)
@click.option("--keep", "keeps", type=Choices((2, 4, 8, 12, 16)), show_default="the scheme's", help="Weights kept of 16 along K; 16 is dense.")
@click.option("--mixed", type=Choices(("no", "yes")), default="no", show_default=True, help="The same number in every block, or --keep on average.")
@click.option("--index-share", "shares", type=Choices((1, 2)), show_default="the scheme's, or 2", help="Rows that share an index.")
@click.option("--pruning", "prunings", type=Choices(("magnitude", "wanda", "sparsegpt")), default="sparsegpt", show_default=True)
@click.option("--kv-bits", "caches", type=Choices((8, 4)), show_default="the scheme's", help="Bits of keys and values in the cache.")
@click.option("--bytes-per-weight", "budgets", type=Budgets(), metavar="LIST", help="Also with widths chosen under these budgets (dense, rounding gptq).")
@click.option("--calibrate", "files", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="UTF-8 text to calibrate on, never one that is scored; without it the model writes its own.")
@click.option("--texts", type=click.IntRange(1, 4096), default=64, show_default=True, help="Calibration texts.")
@click.option("--length", type=click.IntRange(8, 4096), default=256, show_default=True, help="Tokens of each.")
@click.option("--resume", is_flag=True, help="Go on with the run in DIR; finished rows are kept.")
@set_option
@json_option
@seed_option
def command(
    model: str, text_paths: tuple[Path, ...], folder: Path, scheme_name: str, bits, groups, roundings, scalings, keeps, mixed, shares, prunings,
    caches, budgets, files, texts: int, length: int, resume: bool, overrides: tuple[str, ...], as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Compress MODEL in every combination of the lists, score the texts with exact hardware arithmetic, and draw the curve.

    The float model, as its file has it, is always scored too. log_perplexity is the mean over the texts. Hours on large models: every row is kept as it comes, and with --resume all of DIR are shown.
    """
    import hashlib
    from functools import cache

    from headrace.models.configfile import split_overrides
    from headrace.models.registry import load_model
    from headrace.reports.accuracy import write_curve
    from headrace.sim.accuracy import Way, kept_rows, run_ways, way_of
    from headrace.sim.calibrate import check_scheme, collect
    from headrace.sim.calibration_text import weights_sha256
    from headrace.sim.perplexity import check_length
    from headrace.sim.session import require_tokenizer, scheme_overrides
    from headrace.sim.widths import check_budget, measure_losses

    base = _base_scheme(scheme_name, scheme_overrides(split_overrides(overrides)))
    groups, caches = groups or (base.group,), caches or (base.kv_bits,)
    keeps = keeps or (16 if base.sparsity is None else base.sparsity.n,)
    shares = shares or (2 if base.sparsity is None else base.sparsity.index_share,)
    contents = {path: read_text(path) for path in text_paths}
    scored = {path.stem: text for path, text in contents.items()}
    if len(scored) < len(text_paths):
        raise UserError("--text: two files have the same name; allowed are different ones")
    for path in files:
        if read_text(path, "--calibrate") in contents.values():
            raise UserError(f"--calibrate {path}: is scored too; allowed are other texts")
    loaded = load_model(model)
    tokenizer = require_tokenizer(loaded)
    encoded = {name: tokenizer.encode(text) for name, text in scored.items()}
    for path, text_tokens in zip(text_paths, encoded.values(), strict=True):
        check_length(loaded.config, len(text_tokens), f"--text {path}")
    ways = [Way(rounding="float")] + [
        Way(bits=b, group=g, keep=k, index_share=s, mixed=m == "yes", pruning=p, rounding=r, scaling=c, kv_bits=v)
        for k, m, s, p, c, r, b, g, v in product(keeps, mixed, shares, prunings, scalings, roundings, bits, groups, caches)
        if k < 16 or (m, s, p) == (mixed[0], shares[0], prunings[0])
    ]
    ways = list(dict.fromkeys(_plain(way) for way in ways))
    ways += [Way(bits=4, group=g, bytes_per_weight=x, kv_bits=v) for x in budgets or () for g in groups for v in caches]
    for way in ways:
        check_scheme(loaded.config, way.scheme(base))
        if way.bytes_per_weight is not None:
            check_budget(loaded.config, way.scheme(base), way.bytes_per_weight)
    calibrates = any(way.calibrates for way in ways)
    if files and not calibrates:
        raise UserError(f"--calibrate {files[0]}: none of these compressions reads texts; leave it out")
    identity = [
        loaded.config.to_dict(), weights_sha256(loaded), base, {name: hashlib.sha256(text.encode()).hexdigest() for name, text in scored.items()},
        [hashlib.sha256(read_text(path, "--calibrate").encode()).hexdigest() for path in files], texts, length, seed,
    ]  # fmt: skip
    kept_rows(folder, identity, encoded, resume)  # a mistake is told before long work
    tokens = calibration_tokens(loaded, files, texts, length, seed) if calibrates else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"-o {folder}: cannot be made: {error.strerror}") from None
    with progress(f"{len(ways)} compressions of {loaded.config.name}", total=len(ways) * sum(map(len, encoded.values()))) as advance:

        @cache
        def statistics():
            advance(0, "gathering statistics of inputs")
            return collect(loaded, tokens, mask=base.mask)

        measured: dict = {}

        def losses(scheme, method):
            if scheme.group not in measured:
                numbers = count(1)

                def one_more(_steps):
                    number = next(numbers)
                    if number % len(loaded.config.linear_names) == 0:  # a line for each would be too many in a log
                        advance(0, f"measuring what each linear loses: {number} done")

                advance(0, "measuring what each linear loses")
                measured[scheme.group] = measure_losses(loaded, scheme, method, statistics(), tokens, one_more)
            return measured[scheme.group]

        rows = run_ways(
            loaded, ways, base, encoded, folder, statistics=statistics, losses=losses, resume=resume,
            note=lambda text: advance(0, text), advance=advance, identity=identity,
        )
    title = loaded.config.name + ("" if base.attention is None else f" with a mask ({base.attention.rules})")
    document = {
        "model": loaded.config.name, "scheme": base.name, "texts": {name: len(text_tokens) for name, text_tokens in encoded.items()}, "rows": rows,
    }  # fmt: skip
    document |= write_curve(folder, title, rows)
    if as_json:
        emit_json(document, identity, seed)
        return
    print_table(
        ["compression", "bytes/weight", "log perplexity", *encoded],
        [[way_of(row).label, row["bytes_of_weight"], row["log_perplexity"], *row["perplexity"].values()] for row in rows],
        title=f"{title}: golden executor (simulated); the float row in float32",
    )
    click.echo(f"{document['csv']}\n{document['plot']}")


def _base_scheme(name: str, overrides: list[str]):
    """The scheme that every row starts from; UserError where it has widths that the rows would not keep."""
    from headrace.models.scheme import load_scheme

    base = load_scheme(name, overrides)
    for field in ("linear_bits", "tensor_bits"):
        if getattr(base, field):
            raise UserError(f"scheme {base.name}: {field} is given, but a row of --bits has one width for all linears; allowed is a scheme without")
    if any(override.partition("=")[0].strip() == "weight_bits" for override in overrides):
        raise UserError(f"--set scheme.weight_bits={base.weight_bits}: widths are those of --bits; leave it out")
    return base


def _plain(way):
    """`way` without what it does not use, so that none is scored twice."""
    from dataclasses import replace

    if way.rounding == "float":
        return way
    if way.keep == 16:
        way = replace(way, index_share=2, mixed=False, pruning="sparsegpt")
    return replace(way, group=32) if way.bits == 8 else way
