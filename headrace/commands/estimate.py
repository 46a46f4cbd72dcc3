"""`headrace estimate MODEL MACHINE`: latency, energy and resources of a workload, before anything is built."""

import json
from pathlib import Path

import click

from headrace.models.errors import UserError
from headrace.options import common_options
from headrace.output import check_writable, emit_json, print_table

DEFAULT_TOKENS = 128


class _Command(click.Command):
    """Lists the transforms below the options; their module is imported for that alone."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from headrace.mapping.transforms import TRANSFORMS

        with formatter.section("Transforms (docs/workloads.md)"):
            formatter.write_dl([(name, transform.what) for name, transform in TRANSFORMS.items()])


@click.command("estimate", cls=_Command, short_help="Cycles, tokens/s, energy, resources of a workload.")
@click.argument("model", metavar="MODEL")
@click.argument("machine", metavar="MACHINE")
@click.option("--scheme", "scheme_name", metavar="NAME_OR_PATH", help="Compression scheme; default: the machine's.")
@click.option("--prefill", "prefill_tokens", type=click.IntRange(min=1), metavar="P", help="Prompt tokens.  [default: 128]")
@click.option("--decode", "decode_steps", type=click.IntRange(min=1), metavar="N", help="Decode steps after it.  [default: 128]")
@click.option("--context", type=click.IntRange(min=1), metavar="C", help="One decode step at this KV length, instead of phases.")
@click.option("--batch", type=click.IntRange(1, 1 << 20), default=1, show_default=True, metavar="B", help="Sequences; each is a pass of its own.")
@click.option("--level", metavar="LEVEL", default="analytic", show_default=True, help="analytic: closed forms (estimated). cycle: the compiled program, cycle by cycle, without its data (simulated).")
@click.option("--transform", "transforms", metavar="NAME:KEY=VALUE,...", multiple=True, help="Change the workload; may be repeated, in the order given. Names and keys stand below.")
@click.option("--by-op", is_flag=True, help="Cycles, bytes and MACs of every operator; analytic level alone.")
@click.option("--trace", "trace_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write one step as a Chrome trace (JSON; Perfetto opens it): its critical path, or at the cycle level every instruction.")
@click.option("--energy-scope", type=click.Choice(["device", "board"]), default="board", show_default=True, help="What energies cover: board adds the board's overhead to the device.")
@common_options
def command(
    model: str, machine: str, scheme_name: str | None, prefill_tokens: int | None, decode_steps: int | None, context: int | None,
    batch: int, level: str, transforms: tuple[str, ...], by_op: bool, trace_file: Path | None, energy_scope: str, overrides: tuple[str, ...], as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Cycles, tokens per second, joules per token and resources of MODEL on MACHINE, from sizes alone: no weights are read.

    MODEL is a name, a GGUF file, or a config.json (its folder, or the file) of any architecture that `models show` counts. A plain Llama without
    transforms is costed by its compiled schedule (`cost_model` "schedule"), all else by its operator graph ("graph").

    A prefill is a pass for each prompt token. In `utilisation`, MAC is useful over possible multiply-accumulates; bandwidth is required bytes
    (weights once for a whole prefill or batch) over what the ports deliver beside refreshes, and `of port peak` the same without refreshes.
    """
    from headrace.hw.board import load_board, refuse_descriptive
    from headrace.hw.machine import load_machine
    from headrace.models.configfile import list_configs, split_overrides
    from headrace.mapping.sweep import write_atomically
    from headrace.mapping.transforms import apply_transforms
    from headrace.models.architectures.graphs import load_graph, plain_llama
    from headrace.models.compressed import scheme_of
    from headrace.sim.energy import load_energy
    from headrace.sim.estimate import LEVELS, Workload, check_scheme, cycle_trace, estimate, step_trace
    from headrace.sim.estimate_graph import estimate_graph

    if level not in LEVELS:
        raise UserError(f"--level {level} is unknown; allowed: {', '.join(LEVELS)}")
    if context is not None and (prefill_tokens is not None or decode_steps is not None):
        raise UserError("--context is one decode step; it does not go with --prefill or --decode")

    if trace_file is not None:
        check_writable(trace_file, "--trace")
    config = plain_llama(model) if not transforms else None
    graph = load_graph(model) if config is None else None
    if graph is not None:
        _refuse_schedule_only(graph, level, trace_file, context, decode_steps)
    groups = split_overrides(overrides)
    description = load_machine(machine, groups["machine"])
    refuse_descriptive(groups["board"])
    board = load_board(description.board, groups["board"])
    scheme = scheme_of(model, scheme_name, description.scheme, groups["scheme"])
    table = load_energy(board.name) if board.name in list_configs("energy") else None
    workload = Workload(
        prefill=prefill_tokens or DEFAULT_TOKENS, decode=decode_steps or DEFAULT_TOKENS, batch=batch, context=context
    )
    if graph is not None:
        work, applied = apply_transforms(graph, transforms, batch)
        document = estimate_graph(work, scheme, description, board, table, workload, applied=applied, by_op=by_op, scope=energy_scope)
        sizes = {"architecture": graph.architecture, "operators": [[op.kind, op.name, op.layer, op.shape] for op in graph.operators]}
        sizes["transforms"] = applied
    else:
        document = estimate(
            config, scheme, description, board, table, workload, by_op=by_op, scope=energy_scope, level=level,
            note=lambda text: click.echo(f"headrace: {text}", err=True),
        )  # fmt: skip
        sizes = config.to_dict()
    if trace_file is not None:
        write = step_trace if level == "analytic" else cycle_trace
        trace = write(config, check_scheme(scheme), description, context or workload.longest)
        write_atomically(trace_file, json.dumps(trace) + "\n")
    used = {"sizes": sizes, "machine": description, "board": board, "scheme": scheme, "energy": table, "workload": vars(workload)}
    if as_json:
        emit_json(document, used, seed)
    else:
        _print(document)


def _refuse_schedule_only(graph, level: str, trace_file: Path | None, context: int | None, decode_steps: int | None) -> None:
    """What a graph does not have."""
    if level != "analytic":
        raise UserError(f"--level {level}: model {graph.name} ({graph.architecture}, or with transforms) has no compiled program; allowed: analytic")
    if trace_file is not None:
        raise UserError(f"--trace: model {graph.name} ({graph.architecture}, or with transforms) has no compiled schedule; --by-op gives its operators")
    if graph.encoder and (context is not None or decode_steps is not None):
        option = "--context" if context is not None else "--decode"
        raise UserError(f"{option}: model {graph.name} is an encoder ({graph.architecture}), which decodes nothing; allowed is --prefill")


def _print(document: dict) -> None:
    batch = f", batch {document['batch']}" if document["batch"] > 1 else ""
    graph = f", operator graph ({document['architecture']})" if document["cost_model"] == "graph" else ""
    graph += "".join(f", {transform['name']}" for transform in document.get("transforms", ()))
    click.echo(f"{document['model']} on {document['machine']}, {document['scheme']}{batch}: {document['kind']}, {document['level']} level{graph}\n")
    parts = {name: document[name] for name in ("prefill", "decode", "step") if document.get(name)}
    rows = [[name, part.get("tokens") or part.get("steps") or part["context"], part["cycles"], part["latency_s"],
             part.get("tokens_per_s"), part["energy_j"], part["bound"]] for name, part in parts.items()]  # fmt: skip
    length = "context" if "step" in parts else "tokens"
    print_table(["phase", length, "cycles", "s", "tokens/s", "J", "bound"], rows)
    click.echo()
    shares = [[name, *(part["utilisation"][key] for key in ("mac", "bandwidth", "peak_fraction"))] for name, part in parts.items()]
    print_table(["utilisation", "MAC", "bandwidth", "of port peak"], shares)
    if document["energy_by"] is None:
        click.echo("\nno energy: this board has no file in configs/energy, or LUTs and flip-flops are not known")
    else:
        total = sum(document["energy_by"].values())
        click.echo(f"\nenergy {total:.4g} J, scope {document['energy_scope']}")
        print_table(["term", "J", "share"], [[name, joules, f"{100 * joules / total:.1f} %"] for name, joules in document["energy_by"].items()])
        if "decode" in parts:
            low, high = parts["decode"]["energy_j_per_token_range"]
            click.echo(f"per decoded token {parts['decode']['energy_j_per_token']:.4g} J (range {low:.4g} to {high:.4g})")
    memory = document["memory"]
    fits = "fits" if memory["fits"] else f"does NOT fit: {memory['image_bytes']:,} bytes of {memory['available_bytes']:,} that the ports reach"
    state = f", state {memory['state_bytes']} bytes a sequence" if memory.get("state_bytes") else ""
    click.echo(f"\nweights {_size(memory['weight_bytes'])}, image {_size(memory['image_bytes'])} "
               f"({fits}), KV {memory['kv_bytes_per_token']} bytes a token{state}")  # fmt: skip
    for row in document["board"]["checks"]:
        if row["ok"] is False:
            click.echo(f"board {document['board']['name']} does NOT carry this machine: {row['check']} needs {row['needs']:g}, has {row['has']:g}")
    resources = document["resources"]
    click.echo(f"\nresources, {resources['kind']}")
    names = ["dsp", "lut", "ff", "bram", "uram"]
    print_table(["block", *names], [[name, *block.values()] for name, block in resources["blocks"].items()] + [["all", *(resources[n] for n in names)]])
    if "ops" in document:
        click.echo("\noperators; cycles are those that each adds to the critical path")
        keys = ["phase", "name", "count", "cycles", "bytes", "macs", "bound"]
        print_table(keys, [[op[key] for key in keys] for op in document["ops"]])
    for part in parts.values():
        if "speculative" in part:
            found = part["speculative"]
            click.echo(f"\nspeculative: {found['tokens_per_verification']:.4g} tokens a verification of {found['proposed']} from {found['draft']}")
        if "chunks" in part:
            found = part["chunks"]
            click.echo(f"\nchunks: {found['count']} of {found['chunk']}, first token after {found['first_token_s']:.4g} s, "
                       f"a decode step waits up to {found['longest_wait_of_a_step_s']:.4g} s")  # fmt: skip
    if document.get("note"):
        click.echo(f"\n{document['note']}")


def _size(count: float) -> str:
    return f"{count / 1e9:.4g} GB" if count >= 1e9 else f"{count / 1e6:.4g} MB"
