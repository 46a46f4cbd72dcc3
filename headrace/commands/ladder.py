"""`headrace ladder`: the same runs on every level of fidelity, and how far the levels lie apart."""

import click

from headrace.models.errors import UserError
from headrace.options import common_options
from headrace.output import emit_json, print_table, progress

PROMPT = "The capital of France is"


@click.command("ladder", short_help="RTL, cycle level and closed forms side by side.")
@click.argument("model", default="embedded")
@click.option("--machine", metavar="NAME_OR_PATH", default="nano", show_default=True, help="The machine.")
@click.option("--scheme", "schemes", multiple=True, metavar="NAME_OR_PATH", help="Compression scheme; may be repeated.  [default: w4a8kv8, w8a8kv8]")
@click.option("--prefill", "lengths", type=click.IntRange(min=1), multiple=True, metavar="P", help="Prompt tokens; may be repeated.  [default: 1, 8]")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", default=3, show_default=True, help="Output tokens of each run.")
@common_options
def command(model, machine, schemes, lengths, tokens, overrides, as_json, seed) -> None:
    """Cycles of MODEL on the RTL, on the cycle simulator and in closed form: one row for each prefill and each decode step."""
    from headrace.sim.ladder import Run, ladder
    from headrace.sim.loop_session import LoopSession

    runs, identity = [], []
    for scheme in schemes or ("w4a8kv8", "w8a8kv8"):
        session = LoopSession.open(model, machine, scheme, overrides)
        identity.append(session.identity())
        for length in lengths or (1, 8):
            if length + tokens - 1 > session.config.max_positions:
                raise UserError(f"--prefill {length}: with {tokens} output tokens, {session.config.name} allows up to {session.config.max_positions - tokens + 1}")
            prompt = session.encode(PROMPT, tokens, length)
            runs.append(Run(case=session.scheme.name, model=session.compressed, machine=session.machine, prompt=prompt, outputs=tokens))
    with progress(f"ladder: {len(runs)} runs") as advance:
        document = ladder(runs, seed=seed, note=lambda text: advance(0, description=text))
    document = {"model": session.config.name, "machine": session.machine.name} | document
    if as_json:
        emit_json(document, [identity, lengths, tokens], seed)
        return
    rows = [
        [row["case"], row["rtl"], row["cycle"], row["analytic"], f"{100 * row['error']:.3f} %", f"{100 * row['analytic_error']:.3f} %"]
        for row in document["rows"]
    ]  # fmt: skip
    click.echo(f"{document['model']} on {document['machine']}\n")
    print_table(["case", "RTL cycles", "cycle level", "analytic", "error, cycle", "error, analytic"], rows)
    click.echo(f"cycle level against RTL: mean {100 * document['mean']:.3f} %, worst {100 * document['worst']:.3f} %")
    click.echo(f"analytic against RTL: mean {100 * document['analytic_mean']:.3f} %, worst {100 * document['analytic_worst']:.3f} %")
