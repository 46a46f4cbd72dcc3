"""`headrace perplexity`: how well a compressed model, or its float original, predicts a text."""

from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import json_option, seed_option, set_option
from headrace.output import emit_json, progress

MAX_TEXT_BYTES = 1 << 24


@click.command("perplexity", short_help="Perplexity of a text file, golden or float.")
@click.argument("model")
@click.option("--text", "text_path", required=True, type=click.Path(path_type=Path), metavar="FILE", help="UTF-8 text.")
@click.option("--scheme", metavar="NAME_OR_PATH", help="Compression scheme; w4a8kv8 unless given, and for `float` none.")
@click.option("--backend", type=click.Choice(["golden", "float"]), default="golden", show_default=True, help="golden: bits of the numeric contract; float: float32, the file's own weights unless --scheme is given.")
@set_option
@json_option
@seed_option
def command(
    model: str, text_path: Path, scheme: str | None, backend: str, overrides: tuple[str, ...], as_json: bool, seed: int
) -> None:
    """Perplexity of a text file: one pass over it, the first token unscored."""
    from headrace.models.configfile import split_overrides
    from headrace.sim.perplexity import check_length, perplexity
    from headrace.sim.session import open_session, scheme_overrides

    text = read_text(text_path)
    session = open_session(model, scheme=scheme, backend=backend, overrides=scheme_overrides(split_overrides(overrides)))
    tokens = session.tokenizer.encode(text)
    check_length(session.model.config, len(tokens), f"--text {text_path}")
    with progress(f"scoring {len(tokens)} tokens", total=len(tokens)) as advance:
        result = perplexity(session.executor, tokens, advance)
    config = session.model.config
    if as_json:
        document = {
            "model": config.name, "scheme": session.scheme.name if session.scheme else None, "backend": backend,
            "perplexity": result.perplexity, "tokens": result.tokens, "scored_tokens": result.scored_tokens,
        }
        emit_json(document, [config.to_dict(), session.scheme], seed)
        return
    under = session.scheme.name if session.scheme else "the file's weights"
    click.echo(f"perplexity {result.perplexity:.4f} over {result.scored_tokens} scored tokens of {result.tokens} ({backend}, {under})")


def read_text(path: Path, option: str = "--text") -> str:
    """The text of a UTF-8 file; UserError when it cannot be read, is empty or too large."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_TEXT_BYTES:
        raise UserError(f"{option} {path}: is larger than the {MAX_TEXT_BYTES} bytes allowed")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path}: is not UTF-8 text (byte {error.start})") from None
    if not text:
        raise UserError(f"{option} {path}: is empty; allowed is a text of at least two tokens")
    return text
