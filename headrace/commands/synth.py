"""`headrace synth MACHINE`: what the machine costs, from synthesis of the very Verilog that `rtl` emits."""

import click

from headrace.models.errors import UserError
from headrace.options import json_option, set_option
from headrace.output import emit_json, print_table, progress


@click.command("synth", short_help="Resources of a machine from Yosys, by block.")
@click.argument("machine", metavar="MACHINE")
@click.option("--no-cache", is_flag=True, help="Synthesise even where the result of the same Verilog is kept.")
@set_option
@json_option
def command(machine: str, no_cache: bool, overrides: tuple[str, ...], as_json: bool) -> None:
    """Synthesise MACHINE for UltraScale+ with Yosys: DSPs, LUTs, flip-flops, memories, logic depth, by block.

    Counts are synthesised, not placed and routed. The hierarchy is kept, so that nothing is optimised across modules: upper
    bounds. A RAMB18 counts as half a block RAM; `lut` includes LUTs used as memory or shift register (`lutram`). `array` is the
    DSP chains with their weight FIFO, skew and accumulators. `lut_levels` is the longest path between registers, DSPs and memories
    (or the block's ports) in cells, LUTs and CARRY4 alike, after the hierarchy is flattened; `carry_cells` counts all CARRY4 of the
    block. `checks`: Yosys' `check` and latches, in the whole design. Exit status 1 where a check fails.
    """
    from headrace.hw.machine import load_machine
    from headrace.hw.machine_synth import synthesise_machine
    from headrace.models.configfile import split_overrides
    from headrace.sim.verilate import cache_directory

    groups = split_overrides(overrides)
    for group in ("board", "scheme"):
        if groups[group]:
            raise UserError(f"--set {group}.{groups[group][0]}: synthesis reads nothing of it; allowed are machine fields")
    description = load_machine(machine, groups["machine"])
    cache = None if no_cache else cache_directory()
    with progress(f"synthesising {description.name} (minutes; the result is kept)") as advance:
        document = synthesise_machine(description, cache=cache, note=lambda text: advance(0, text[:70]))
    if as_json:
        emit_json(document, [description])
    else:
        _print(document)
    checks = document["checks"]
    if not (checks["check_clean"] and checks["no_latch"] and checks["array_dsp_is_half_the_macs"]):
        click.get_current_context().exit(1)


def _print(document: dict) -> None:
    click.echo(f"{document['machine']}, {document['macs_per_cycle']} MACs per cycle: {document['kind']} with {document['tool']}\n")
    names = ["dsp", "lut", "ff", "bram", "uram", "lutram", "carry_cells", "lut_levels"]
    rows = []
    for name, block in document["blocks"].items():
        rows.append([name, *(block[column] for column in names)])
        rows += [[f"  {name}.{part}", *(cells[column] for column in names)] for part, cells in block.get("parts", {}).items()]
    rows.append(["all", *(document["resources"][column] for column in names[:5]), None, None, document["lut_levels"]])
    print_table(["block", *names], rows)
    click.echo()
    print_table(["check", "value"], list(document["checks"].items()))
