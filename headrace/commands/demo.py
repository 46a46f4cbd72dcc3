"""`headrace demo`: the whole loop on the embedded model, and a report to look at."""

from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import common_options
from headrace.output import check_writable, emit_json, progress, stamped

PROMPT = "Once upon a time"
LEAST_TOKENS = 2


@click.command("demo", short_help="The embedded model writes a text on the RTL; HTML report.")
@click.option("--machine", "machine", metavar="NAME_OR_PATH", default="nano", show_default=True, help="The machine.")
@click.option("--scheme", metavar="NAME_OR_PATH", help="Compression scheme; the machine's own unless given.")
@click.option("--prompt", metavar="TEXT", default=PROMPT, show_default=True, help="How the text begins.")
@click.option("--tokens", type=int, metavar="N", default=40, show_default=True, help="Output tokens, at least 2.")
@click.option(
    "-o", "--report", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"), show_default=True,
    metavar="FILE", help="Where the report goes.",
)
@common_options
def command(machine, scheme, prompt, tokens, report, overrides, as_json, seed) -> None:
    """Let the RTL write a text: the embedded model, compressed, compiled, run on the machine in Verilator, held against the golden executor,
    with cycles, energy, and an A100 and a V100 beside it. Exit status 1 where RTL and golden differ."""
    from headrace.commands.cosim import print_cosim
    from headrace.output import print_table
    from headrace.reports.html import machine_peaks, write_report
    from headrace.sim.demo import demo_document
    from headrace.sim.loop_session import LoopSession

    if tokens < LEAST_TOKENS:
        raise UserError(f"--tokens {tokens}: allowed is {LEAST_TOKENS} or more, so that there is a decode step")
    check_writable(report, "--report")
    session = LoopSession.open("embedded", machine, scheme, overrides)
    with progress(f"demo: the embedded model on {session.machine.name}, {tokens} tokens") as advance:
        document, ops = demo_document(session, prompt, tokens, seed=seed, note=lambda text: advance(0, description=text))
    document["report"] = str(report)
    write_report(report, stamped(document, session.identity(), seed), peaks=machine_peaks(session.machine), ops=ops)
    if as_json:
        emit_json(document, session.identity(), seed)
    else:
        print_cosim(document)
        columns = ["gpu", "stack", "dtype", "model", "tokens_per_s", "energy_j_per_token", "kind"]
        print_table(columns, [[row.get(c) for c in columns] for row in document["gpu"]], title="GPUs, decode at batch 1")
        click.echo(f"report: {report}")
    if not (document["rtl_tokens_equal"] and document["logits_equal"]):
        click.get_current_context().exit(1)
