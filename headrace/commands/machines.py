"""`headrace machines [list | show | check]`: the machine descriptions, before anything is built."""

import click

from headrace.hw.board import DESCRIPTIVE, Board, check_fit, load_board
from headrace.hw.dram_ports import DramPorts, dram_of
from headrace.hw.machine import FIXED_LATENCY_FIELDS, Machine, load_machine
from headrace.models.configfile import list_configs, split_overrides
from headrace.models.errors import UserError
from headrace.options import json_option, seed_option, set_option
from headrace.output import emit_json, print_table


@click.group("machines", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, show and check machine descriptions."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@command.command("list")
@json_option
@seed_option
def list_command(as_json: bool = False, seed: int = 0) -> None:
    """Name the shipped machines."""
    machines = [load_machine(name) for name in list_configs("machines")]
    rows = [
        {
            "name": machine.name,
            "board": machine.board,
            "scheme": machine.scheme,
            "clock_hz": machine.clock_hz,
            "macs_per_cycle": machine.array.macs_per_cycle,
            "ports": machine.memory.ports,
            "peak_bytes_per_s": machine.peak_bytes_per_s,
        }
        for machine in machines
    ]
    if as_json:
        emit_json({"machines": rows}, machines, seed)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


@command.command("show")
@click.argument("machine", metavar="NAME_OR_PATH")
@set_option
@json_option
@seed_option
def show_command(machine: str, overrides: tuple[str, ...], as_json: bool, seed: int) -> None:
    """Print every field of a machine and every size derived from it."""
    description, board = _load(machine, overrides)
    dram = dram_of(description)
    document = {"machine": description.model_dump(), "derived": description.derived() | _dram_rows(dram), "board": board.model_dump()}
    if as_json:
        emit_json(document, [description, board], seed)
        return
    unused = {f"memory.{name}" for name in FIXED_LATENCY_FIELDS} if description.memory.dram else set()
    fields = [row for row in _flatten(document["machine"]) if row[0] not in unused]
    print_table(["field", "value"], fields, title=f"machine {description.name} (as described)")
    derived = [("dsps (array)" if name == "dsps" else name, value) for name, value in document["derived"].items()]
    print_table(["derived", "value"], derived, title="\nderived from it")
    rows = [[name, value, "description only" if name in DESCRIPTIVE else "read by estimates"] for name, value in document["board"].items()]
    print_table(["field", "value", "use"], rows, title=f"\nboard {board.name}")


@command.command("check")
@click.argument("machine", metavar="NAME_OR_PATH")
@set_option
@json_option
@seed_option
def check_command(machine: str, overrides: tuple[str, ...], as_json: bool, seed: int) -> None:
    """Check that a machine is legal and that its board can carry its array and ports; status 2 if not.

    `array_dsp` is the DSPs of the MAC array, `dsp` those of the whole machine, as `headrace estimate` and `headrace synth` count them.
    """
    description, board = _load(machine, overrides)
    checks = check_fit(description, board)
    fits = all(check["ok"] for check in checks)
    if as_json:
        document = {"machine": description.name, "board": board.name, "fits": fits, "checks": checks}
        emit_json(document, [description, board], seed)
    else:
        rows = [[check["check"], check["needs"], check["has"], check["ok"]] for check in checks]
        print_table(["check", "needs", "board has", "ok"], rows, title=f"{description.name} on {board.name} (estimated)")
    if not fits:
        worst = next(check for check in checks if not check["ok"])
        raise UserError(
            f"machine {description.name}: {worst['check']} = {worst['needs']:g} does not fit board {board.name}; "
            f"allowed: at most {worst['has']:g}"
        )


def _load(machine: str, overrides: tuple[str, ...]) -> tuple[Machine, Board]:
    groups = split_overrides(overrides)
    if groups["scheme"]:
        raise UserError(f"--set scheme.{groups['scheme'][0]}: this command uses no scheme")
    description = load_machine(machine, groups["machine"])
    return description, load_board(description.board, groups["board"])


def _dram_rows(dram: DramPorts | None) -> dict[str, object]:
    """What of the channels behind the ports decides time (docs/memory.md, section 12)."""
    if dram is None:
        return {}
    t = dram.timing
    return {"dram_channels": dram.channels, "dram_command_clocks_per_cycle": dram.q / dram.p, "dram_latency_cycles": dram.latency,
            "dram_refresh": t.refresh, "dram_queue": t.queue, "dram_page": t.page}  # fmt: skip


def _flatten(group: dict, prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in group.items():
        rows += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return rows
