"""`headrace rtl MACHINE -o DIR`: the machine as Verilog, with a testbench that needs nothing but Verilator."""

from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import json_option, set_option
from headrace.output import emit_json, progress

DEFAULT_MODEL = "embedded"
DEFAULT_PROMPT = "the cat"
DEFAULT_TOKENS = 4


@click.command("rtl", short_help="A machine as Verilog, memory map and testbench.")
@click.argument("machine", metavar="MACHINE")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A new or an empty folder.")
@click.option("--force", is_flag=True, help="Replace a folder that this command wrote before.")
@click.option("--model", metavar="NAME_OR_PATH", default=DEFAULT_MODEL, show_default=True, help="Model of the testbench's image.")
@click.option("--prompt", metavar="TEXT", default=DEFAULT_PROMPT, show_default=True, help="Raw text; no chat template.")
@click.option("--tokens", type=int, metavar="N", default=DEFAULT_TOKENS, show_default=True, help="Output tokens; the first comes from the prefill.")
@click.option("--scheme", metavar="NAME_OR_PATH", help="Compression scheme; the machine's own unless given.")
@click.option("--no-testbench", is_flag=True, help="Verilog and memory map only: no model takes part.")
@set_option
@json_option
def command(
    machine: str, output: Path, force: bool, model: str, prompt: str, tokens: int, scheme: str | None, no_testbench: bool,
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Write the machine's Verilog, its memory map and a self-checking testbench with a memory image.

    The testbench (run.sh) builds with plain Verilator and compares every token and logit with the golden executor's, bit for bit.
    The same input gives the same bytes.
    """
    from headrace.hw.machine import load_machine
    from headrace.models.configfile import split_overrides
    from headrace.sim.loop_session import LoopSession
    from headrace.sim.rtl_package import check_target, machine_files, package_files, write_folder

    check_target(output, force)
    if no_testbench:
        _refuse_testbench_options()
        groups = split_overrides(overrides)
        for group in ("board", "scheme"):
            if groups[group]:
                raise UserError(f"--set {group}.{groups[group][0]}: the Verilog reads nothing of it; allowed are machine fields")
        description = load_machine(machine, groups["machine"])
        config, prompt_tokens = [description], []
    else:
        session = LoopSession.open(model, machine, scheme, overrides)
        description = session.machine
        prompt_tokens = session.encode(prompt, tokens)
        config = [*session.identity(), prompt_tokens, tokens]
    with progress(f"writing the RTL of {description.name}", total=3) as advance:
        if no_testbench:
            files = machine_files(description)
        else:
            files = package_files(description, session.compressed, prompt_tokens, tokens, lambda text: advance(1, text))
        write_folder(output, files, force=force)
    if as_json:
        document = {
            "machine": description.name, "directory": str(output), "files": sorted(files), "bytes": sum(map(len, files.values())),
            "testbench": None if no_testbench else {"model": model, "prompt": prompt, "prompt_tokens": len(prompt_tokens), "tokens": tokens},
        }  # fmt: skip
        emit_json(document, config)
    else:
        click.echo(f"{output}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB" + ("" if no_testbench else "; run.sh runs it"))


def _refuse_testbench_options() -> None:
    """UserError for an option that `--no-testbench` would leave unused."""
    context = click.get_current_context()
    for name in ("model", "prompt", "tokens", "scheme"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UserError(f"--{name} {context.params[name]!s}: no model takes part with --no-testbench; leave one of the two out")
