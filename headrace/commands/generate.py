"""`headrace generate`: greedy continuation of a prompt."""

import click

from headrace.models.errors import UserError
from headrace.options import json_option, seed_option, set_option
from headrace.output import emit_json, progress


@click.command("generate", short_help="Continue a prompt: golden, float, or on the RTL.")
@click.argument("model")
@click.option("--prompt", required=True, metavar="TEXT", help="Raw text; no chat template.")
@click.option("--tokens", required=True, type=int, metavar="N", help="Output tokens; the first comes from the prefill.")
@click.option("--scheme", metavar="NAME_OR_PATH", help="Compression scheme; unless given, w4a8kv8 for golden, none for float, the machine's own for rtl.")
@click.option(
    "--backend", type=click.Choice(["golden", "rtl", "float"]), default="golden", show_default=True,
    help="golden: bits of the numeric contract; float: float32, the file's own weights unless --scheme is given; rtl: the simulated machine.",
)
@click.option("--machine", metavar="NAME_OR_PATH", help="The machine of backend rtl; nano unless given.")
@set_option
@json_option
@seed_option
def command(
    model: str, prompt: str, tokens: int, scheme: str | None, backend: str, machine: str | None, overrides: tuple[str, ...], as_json: bool,
    seed: int,
) -> None:
    """Continue a prompt with N greedy tokens; generation does not stop at an end-of-text token."""
    from headrace.models.configfile import split_overrides
    from headrace.sim.generate import encode_prompt, generate
    from headrace.sim.session import open_session, scheme_overrides

    if backend == "rtl":
        _on_rtl(model, prompt, tokens, scheme, machine or "nano", overrides, as_json, seed)
        return
    if machine:
        raise UserError(f"--machine {machine}: backend {backend} uses no machine; allowed with --backend rtl")
    if tokens < 1:
        raise UserError(f"--tokens {tokens}: allowed is 1 or more")
    if not prompt:
        raise UserError("--prompt '': is empty; allowed is a text of at least one token")
    session = open_session(model, scheme=scheme, backend=backend, overrides=scheme_overrides(split_overrides(overrides)))
    encode_prompt(session.tokenizer, prompt, session.model.config, tokens)  # a mistake is reported before any progress
    with progress(f"generating {tokens} tokens", total=tokens) as advance:
        result = generate(session.executor, session.tokenizer, prompt, tokens, lambda token: advance())
    config = session.model.config
    if as_json:
        document = {
            "model": config.name, "scheme": session.scheme.name if session.scheme else None, "backend": backend,
            "prompt": prompt, "text": result.text, "tokens": len(result.tokens), "tokens_per_s": result.tokens_per_s,
            "token_ids": result.tokens, "prompt_tokens": len(result.prompt_tokens),
        }
        emit_json(document, [config.to_dict(), session.scheme], seed)
        return
    click.echo(prompt + result.text)
    click.echo(f"{len(result.tokens)} tokens at {result.tokens_per_s:.2f} tokens/s on this host (measured, {backend})", err=True)


def _on_rtl(model, prompt, tokens, scheme, machine, overrides, as_json, seed) -> None:
    """The machine alone writes the text; `headrace cosim` holds it against golden."""
    from headrace.sim.loop_session import LoopSession

    session = LoopSession.open(model, machine, scheme, overrides)
    ids = session.encode(prompt, tokens)
    with progress(f"generating {tokens} tokens on the RTL of {session.machine.name}") as advance:
        text, run = session.generate(ids, tokens, seed=seed, note=lambda text: advance(0, description=text))
    marks = dict(run.marks)
    rate = tokens * session.machine.clock_hz / (marks[tokens] - marks[0])
    if as_json:
        document = {
            "model": session.config.name, "scheme": session.scheme.name, "backend": "rtl", "machine": session.machine.name, "prompt": prompt,
            "text": text, "tokens": tokens, "tokens_per_s": rate, "kind": "simulated", "token_ids": [int(t) for t in run.tokens],
            "prompt_tokens": len(ids),
        }  # fmt: skip
        emit_json(document, session.identity(), seed)
        return
    click.echo(prompt + text)
    click.echo(f"{tokens} tokens at {rate:.2f} tokens/s of {session.machine.name} at {session.machine.clock_hz / 1e6:g} MHz, prefill in (simulated)", err=True)
