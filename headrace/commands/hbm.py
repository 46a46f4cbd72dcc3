"""`headrace hbm`: an access pattern on one DRAM channel."""

from fractions import Fraction
from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import json_option, remember_overrides
from headrace.output import emit_json, print_table

LEVELS = ("burst", "closed", "rtl")
KIND = {"burst": "simulated", "closed": "estimated", "rtl": "simulated"}
SAYS = {"burst": "simulated burst by burst", "closed": "estimated, closed form", "rtl": "simulated, RTL in Verilator"}


@click.command("hbm", short_help="An access pattern on one DRAM channel.")
@click.option("--timing", "memory", default="ramulator2-hbm2-2000", show_default=True, metavar="T", help="Preset of configs/memories, or a file.")
@click.option("--pattern", default="sequential", show_default=True, metavar="P", help="sequential, bank-group-last, one-pseudo-channel, random, or a trace file.")
@click.option("--refresh", type=click.Choice(["none", "all-bank", "per-bank"]), help="How the channel refreshes.  [default: all-bank where the preset has its time, else per-bank, else none]")
@click.option("--queue", type=click.IntRange(1, 64), metavar="Q", help="Entries of the read queue, and of the write queue.  [default: the preset's]")
@click.option("--requests", type=click.IntRange(min=1), metavar="N", help="Accesses.  [default: 200000; a trace file: all of it]")
@click.option("--page", type=click.Choice(["open", "closed"]), help="Page policy.  [default: the preset's]")
@click.option("--access-bytes", type=click.IntRange(min=1), metavar="B", help="Bytes of an access.  [default: one burst]")
@click.option("--write-share", type=float, default=0.0, show_default=True, metavar="S", help="Share of accesses that write, 0 to 1.")
@click.option("--ports", type=click.IntRange(1, 16), metavar="K", help="Ports, one burst wide; a burst uses port (pseudo-channel modulo K).  [default: no limit; with --port-hz one per pseudo-channel]")
@click.option("--port-hz", type=click.FloatRange(min=0, min_open=True), metavar="HZ", help="Clock of the ports.  [default: the preset's]")
@click.option("--hops", type=click.IntRange(0, 7), default=0, show_default=True, help="Crossbar switches between port and pseudo-channel.")
@click.option("--export", "export_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the trace in Ramulator's read/write form.")
@click.option("--level", metavar="LEVEL", default="burst", show_default=True, help=f"{'; '.join(f'{name}: {SAYS[name]}' for name in LEVELS)}.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of random addresses and of the choice of writes.")
@click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, callback=remember_overrides, help="Override a field of the preset; may be repeated.")
@json_option
def command(
    memory: str, pattern: str, refresh: str | None, queue: int | None, requests: int | None, page: str | None, access_bytes: int | None,
    write_share: float, ports: int | None, port_hz: float | None, hops: int, export_file: Path | None, level: str, seed: int,
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Run an access pattern on one DRAM channel and report bandwidth, efficiency and latency.

    Efficiency is bandwidth over the channel's peak. Cycles are of the command clock; a latency runs from a burst's acceptance to the end of its data, and in ns
    also takes what the preset's port adds. In closed form it is that of a full queue: none is given where the ports are the limit.
    """
    from headrace.hw.memory_timing import load_memory, user_timing, usual_refresh
    from headrace.sim.dram_run import DEFAULT_ACCESSES, port_ratio, prepare, run_burst, run_closed, run_rtl

    if level not in LEVELS:
        raise UserError(f"--level {level} is unknown; allowed: {', '.join(LEVELS)}")
    config = load_memory(memory, overrides)
    refresh = refresh or usual_refresh(config)
    timing = user_timing(config, queue=queue, page=page, refresh=refresh)
    ratio = Fraction(1)
    if port_hz is not None or ports is not None:
        ports = ports or config.organisation.pcs
        ratio = port_ratio(config, port_hz)
    workload = prepare(config, pattern, accesses=requests or DEFAULT_ACCESSES, limit=requests, access_bytes=access_bytes, write_share=write_share, seed=seed)
    if export_file is not None:
        workload.export(export_file)
    if level == "rtl":
        click.echo("channel in Verilator: built where the cache does not have it", err=True)
    run = {"burst": run_burst, "closed": run_closed, "rtl": run_rtl}[level]
    document = run(config, timing, workload, ports=ports or 0, ratio=ratio, hops=hops)
    used = {"memory": config, "timing": vars(timing), "pattern": pattern, "ports": ports, "port_hz": port_hz, "hops": hops, "level": level,
            "requests": len(workload), "access_bytes": access_bytes, "write_share": write_share}  # fmt: skip
    if as_json:
        said = {"memory": config.name, "pattern": pattern, "level": level, "kind": KIND[level], "requests": len(workload), "refresh": refresh,
                "queue": timing.queue, "page": timing.page, "ports": ports, "port_hz": port_hz}  # fmt: skip
        emit_json(said | document, used, seed)
        return
    click.echo(f"{config.name}, {pattern}, refresh {refresh}, queue {timing.queue}: {SAYS[level]}\n")
    commands = document.pop("commands", {})
    rows = [*document.items(), *((f"{name.upper()} commands", count) for name, count in commands.items())]
    print_table(["figure", "value"], [list(row) for row in rows])
