"""`headrace cosim`: a prompt on the RTL of a machine, held against the golden executor bit for bit."""

from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import common_options
from headrace.output import check_writable, emit_json, progress

DEFAULT_PROMPT = "The capital of France is"
LEVELS = ("rtl", "cycle", "analytic")
WAVE_CYCLES = 20_000
"""A pass of the embedded model and a little more."""


@click.command("cosim", short_help="A prompt on the RTL, held to golden bit for bit.")
@click.argument("model")
@click.argument("machine", required=False)
@click.option("--machine", "machine_option", metavar="NAME_OR_PATH", help="The machine, where it is not an argument; nano unless given.")
@click.option("--prompt", metavar="TEXT", default=DEFAULT_PROMPT, show_default=True, help="Raw text; no chat template.")
@click.option("--prefill", type=int, metavar="N", help="Cut the prompt's tokens, or repeat them, to N.")
@click.option("--tokens", type=int, metavar="N", default=2, show_default=True, help="Output tokens; the first comes from the prefill.")
@click.option("--batch", type=int, metavar="B", default=1, show_default=True, help="1 is all that instruction set version 1 runs.")
@click.option("--scheme", metavar="NAME_OR_PATH", help="Compression scheme; the machine's own unless given.")
@click.option("--waves", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Record signals, .fst or .vcd (a build of its own; slow).")
@click.option("--waves-from", type=click.IntRange(min=0), metavar="CYCLE", help="First clock cycle recorded, from the simulation's start; reset and boot take some 300.  [default: 0]")
@click.option("--waves-cycles", type=click.IntRange(min=1), metavar="N", help=f"Clock cycles recorded; on nano one takes some 28 KB as VCD, a tenth as FST.  [default: {WAVE_CYCLES}, 0.6 GB as VCD]")
@click.option("--image", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the memory image and its manifest in DIR.")
@common_options
def command(model, machine, machine_option, prompt, prefill, tokens, batch, scheme, waves, waves_from, waves_cycles, image, overrides, as_json, seed) -> None:
    """Run a prompt on the RTL in Verilator and compare every token and logit with the golden executor. Exit status 1 where they differ."""
    from headrace.sim.loop_session import LoopSession, WaveWindow

    if machine and machine_option:
        raise UserError(f"the machine is given twice: '{machine}' and --machine '{machine_option}'")
    if batch != 1:
        raise UserError(f"--batch {batch}: instruction set version 1 runs one sequence; allowed is 1")
    for option, value in (("--waves-from", waves_from), ("--waves-cycles", waves_cycles)):
        if waves is None and value is not None:
            raise UserError(f"{option} {value}: no signals are recorded without --waves FILE")
    window = None
    if waves is not None:
        check_waves(waves)
        window = WaveWindow(file=waves, first=waves_from or 0, cycles=waves_cycles or WAVE_CYCLES)
    session = LoopSession.open(model, machine or machine_option or "nano", scheme, overrides)
    tokens_in = session.encode(prompt, tokens, prefill)
    if image is not None:
        image.mkdir(parents=True, exist_ok=True)
    with progress(f"co-simulating {session.config.name} on {session.machine.name}: {len(tokens_in)} prompt tokens, {tokens} output tokens") as advance:
        document = session.run(
            prompt, tokens_in, tokens, seed=seed, waves=window, image_folder=image, note=lambda text: advance(0, description=text)
        )
    equal = document["rtl_tokens_equal"] and document["logits_equal"]
    if as_json:
        emit_json(document, session.identity(), seed)
    else:
        print_cosim(document)
    if not equal:
        click.get_current_context().exit(1)


def check_waves(file: Path) -> None:
    """UserError where signals cannot be recorded into `file`: the build that records takes minutes, so this comes first."""
    from headrace.sim.cosim_run import Waves

    Waves(file=file)  # its suffix
    check_writable(file, "--waves")


def print_cosim(document: dict) -> None:
    """The document as people read it."""
    from headrace.output import print_table

    click.echo(document["prompt"] + click.style(document["text"], bold=True))
    prefill, decode = document["prefill"], document["decode"]
    rows = [["prefill", document["prompt_tokens"], *(prefill["cycles"][level] for level in LEVELS)]]
    if decode:
        rows.append(["decode", decode["steps"], *(decode["cycles"][level] for level in LEVELS)])
    print_table(["phase", "tokens", "RTL cycles (simulated)", "cycle level (simulated)", "analytic (estimated)"], rows)
    verdicts = [
        ["tokens equal golden", document["rtl_tokens_equal"]], ["logits equal golden, bit for bit", document["logits_equal"]],
        ["simulation, cycles/s", document["sim_cycles_per_s"]], ["build, s", document["build_s"]], ["start, s", document["start_s"]],
    ]  # fmt: skip
    if decode:
        verdicts += [
            ["decode, tokens/s (simulated)", decode["tokens_per_s"]], ["of deliverable bandwidth", decode["hbm"]["utilisation"]],
            ["of port peak", decode["hbm"]["peak_fraction"]], ["energy, J/token (estimated, board)", decode["energy_j_per_token"]],
        ]  # fmt: skip
    print_table(["figure", "value"], verdicts)
    if "waves" in document:
        recorded = document["waves"]
        click.echo(f"{recorded['file']}: signals of {recorded['cycles']} cycles from cycle {recorded['first_cycle']} on")
    if document.get("divergence"):
        click.echo(f"first divergence: {document['divergence']}")
