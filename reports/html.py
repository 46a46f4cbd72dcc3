"""report.html: one self-contained file about one run. No script, no network: the page's own policy forbids both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from headrace.hw.machine import Machine
from headrace.mapping.sweep import write_atomically
from headrace.reports import svg
from headrace.reports.numbers import GPU_KINDS, numbers

BOUND_COLOURS = {"memory": 0, "compute": 1, "sfu": 2, "issue": 3, "control": 5}
LEVELS = (("rtl", "RTL, simulated", 0), ("cycle", "cycle level, simulated", 2), ("analytic", "analytic level, estimated", 1))
LISTED_OPS = 14
"""Operators with a bar of their own; the rest is summed."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What a machine can do at most; deliverable None where it is not known."""

    clock_hz: float
    macs_per_s: float
    bytes_per_s: float
    deliverable_bytes_per_s: float | None = None


def machine_peaks(machine: Machine) -> Peaks:
    """Peaks of a machine; deliverable is a long sequential read with refresh on."""
    from headrace.sim.estimate import deliverable_bytes_per_cycle, peak_bytes_per_cycle

    return Peaks(
        clock_hz=machine.clock_hz, macs_per_s=machine.array.macs_per_cycle * machine.clock_hz,
        bytes_per_s=peak_bytes_per_cycle(machine) * machine.clock_hz,
        deliverable_bytes_per_s=deliverable_bytes_per_cycle(machine) * machine.clock_hz,
    )  # fmt: skip


def write_report(path: Path, document: Mapping, *, peaks: Peaks, ops: Sequence[Mapping] = ()) -> Path:
    """Write `render`'s page to `path`, all or nothing."""
    return write_atomically(path, render(document, peaks=peaks, ops=ops))


def render(document: Mapping, *, peaks: Peaks, ops: Sequence[Mapping] = ()) -> str:
    """The page for a document of `cosim` or `demo` (design section 7), as text.

    ops: rows ``{"phase", "name", "count", "cycles", "bytes", "macs", "bound"}`` of the analytic level, as `estimate --by-op` gives. GPU
    rows stand in ``document["gpu"]``. Whatever is null is said to be missing, never left out silently.
    """
    title = f"{document['model']} on {document['machine']}"
    parts = [
        f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(_lead(document))}</p>', _verdicts(document), _text(document), _tiles(document),
        _cycles(document), _operators(ops, peaks), _roofline(document, ops, peaks), _energy(document), _gpus(document),
        _operator_table(ops), _numbers(document), _footer(document),
    ]  # fmt: skip
    css = files("headrace.reports").joinpath("templates/report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>headrace: {escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _lead(document: Mapping) -> str:
    count = document.get("prompt_tokens")
    prompt = f"{count} prompt tokens, " if count else ""
    return f"Scheme {document['scheme']}; {prompt}{document['tokens']} output tokens from the RTL in Verilator, held against the golden executor."


def _verdicts(document: Mapping) -> str:
    cells = []
    for key, what, yes, no in (
        ("rtl_tokens_equal", "Tokens", "RTL and golden give the same tokens", "RTL and golden give DIFFERENT tokens"),
        ("logits_equal", "Logits", "RTL and golden logits are equal bit for bit", "RTL and golden logits DIFFER"),
    ):
        equal = document.get(key)
        sentence = f"{what} were not compared" if equal is None else yes if equal else no
        more = document.get("divergence") if equal is False else None
        detail = f"<span>First divergence: {escape(str(more))}</span>" if more else f"<span>{what} of all {document['tokens']} output tokens</span>"
        cells.append(f'<div class="verdict{"" if equal else " no"}">{escape(sentence)}{detail}</div>')
    return f'<div class="verdicts">{"".join(cells)}</div>'


def _text(document: Mapping) -> str:
    return (
        f'<div class="text"><span class="prompt">{escape(str(document.get("prompt") or ""))}</span>{escape(str(document.get("text") or ""))}</div>'
    )


def _tiles(document: Mapping) -> str:
    decode = document.get("decode") or {}
    hbm = decode.get("hbm") or {}
    energy, ends = decode.get("energy_j_per_token"), decode.get("energy_j_per_token_range")
    scope = decode.get("energy_scope") or (document.get("energy") or {}).get("energy_scope") or document.get("energy_scope")
    about = f", range {svg.si(ends[0], 'J')} to {svg.si(ends[1], 'J')}" if ends else ""
    tiles = [
        (_number(decode.get("tokens_per_s")), "tokens per second, decode", "simulated"),
        (svg.si(energy, "J") if energy is not None else "–", "energy per token" + about, f"estimated, scope {scope}" if energy is not None else "not known"),
        (_percent(hbm.get("utilisation")), "of the deliverable memory bandwidth", "simulated"),
        (_percent(hbm.get("peak_fraction")), "of the ports' peak", "simulated"),
        (svg.si(document["sim_cycles_per_s"]) if document.get("sim_cycles_per_s") else "–", "RTL cycles simulated per second", "measured"),
        (_seconds(document.get("build_s")), "to build the simulation (0 where cached)", "measured"),
    ]
    cells = [f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span><span class="kind">{escape(c)}</span></div>' for a, b, c in tiles]
    return f'<div class="tiles">{"".join(cells)}</div>'


def _section(title: str, note: str, body: str) -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section>\n<h2>{escape(title)}</h2>{said}\n{body}\n</section>"


def _cycles(document: Mapping) -> str:
    groups = []
    for phase in ("prefill", "decode"):
        part = document.get(phase)
        if not part:
            continue
        cycles = part["cycles"]
        rtl = cycles.get("rtl")
        group = []
        for level, label, colour in LEVELS:
            value = cycles.get(level)
            against = f"  ({100 * (value / rtl - 1):+.2f}%)" if value is not None and rtl and level != "rtl" else ""
            group.append(svg.Bar(label, value, colour, f"{value:,.0f}{against}" if value is not None else ""))
        groups.append((phase, group))
    if not groups:
        return ""
    note = "Clock cycles from a phase's first fetch to its last write, by level of fidelity; in brackets against the RTL."
    return _section("Cycles", note, f"<figure>{svg.bars(groups, 'Cycles by phase and level')}</figure>")


def _operators(ops: Sequence[Mapping], peaks: Peaks) -> str:
    figures, used = [], set()
    for phase in dict.fromkeys(op["phase"] for op in ops):
        mine = sorted((op for op in ops if op["phase"] == phase and op["cycles"] > 0), key=lambda op: -op["cycles"])
        total = sum(op["cycles"] for op in mine)
        listed, rest = mine[:LISTED_OPS], mine[LISTED_OPS:]
        group = [
            svg.Bar(op["name"], op["cycles"], BOUND_COLOURS.get(op["bound"], svg.MUTE),
                    f"{100 * op['cycles'] / total:.1f}%  {svg.si(op['cycles'] / peaks.clock_hz, 's')}")
            for op in listed
        ]  # fmt: skip
        if rest:
            cycles = sum(op["cycles"] for op in rest)
            group.append(svg.Bar(f"{len(rest)} others", cycles, svg.MUTE, f"{100 * cycles / total:.1f}%  {svg.si(cycles / peaks.clock_hz, 's')}"))
        used |= {op["bound"] for op in listed}
        figures.append(svg.bars([(phase, group)], f"Cycles of {phase} by operator"))
    if not figures:
        return ""
    legend = svg.legend([(f"bound by {name}", colour, False) for name, colour in BOUND_COLOURS.items() if name in used])
    note = "What each operator adds to the critical path (estimated, analytic level); the colour says what most of it waits for."
    return _section("Where the cycles go", note, f"<figure>{''.join(figures)}</figure>{legend}")


def _roofline(document: Mapping, ops: Sequence[Mapping], peaks: Peaks) -> str:
    points = []
    decode = document.get("decode")
    if decode and decode["cycles"].get("rtl") and (decode.get("utilisation") or {}).get("mac") and decode["hbm"]["bytes"]:
        rate = decode["utilisation"]["mac"] * peaks.macs_per_s
        macs = rate * decode["cycles"]["rtl"] / peaks.clock_hz
        points.append(svg.RoofPoint("decode", macs / decode["hbm"]["bytes"], rate, 1, large=True))
    last = next((op["phase"] for op in reversed(ops)), None)
    for op in ops:
        if op["phase"] == last and op["macs"] and op["bytes"] and op["cycles"]:
            points.append(svg.RoofPoint(op["name"], op["macs"] / op["bytes"], op["macs"] * peaks.clock_hz / op["cycles"], 0))
    if not points:
        return ""
    picture = svg.roofline(points, peaks.macs_per_s, peaks.bytes_per_s, peaks.deliverable_bytes_per_s, "Roofline")
    note = (
        f"Roofs: {svg.si(peaks.macs_per_s, 'MAC/s')} of the array and {svg.si(peaks.bytes_per_s, 'B/s')} of the ports; dashed, the deliverable "
        "bandwidth. Bytes are those the scheme requires once. An operator whose cycles lie in the shadow of another may stand above the slope."
    )
    legend = svg.legend([("decode as a whole, simulated", 1, False)] * bool(points[0].large) + [("operators, estimated", 0, False)] * bool(ops))
    return _section("Roofline", note, f"<figure>{picture}</figure>{legend}")


def _energy(document: Mapping) -> str:
    energy = document.get("energy") or {}
    terms = energy.get("energy_by") or document.get("energy_by") or {}
    parts = [(name, value, svg.si(value, "J")) for name, value in terms.items() if value]
    if not parts:
        return _section("Energy of the run", "Not known: the board has no energy table, or the machine's resources are not known.", "")
    scope = energy.get("energy_scope") or document.get("energy_scope")
    ends = energy.get("total_j_range")
    spread = f", range {svg.si(ends[0], 'J')} to {svg.si(ends[1], 'J')}" if ends else ""
    total = sum(value for _, value, _ in parts)
    note = f"Estimated, scope {scope}: {svg.si(total, 'J')}{spread}."
    return _section("Energy of the run", note, f"<figure>{svg.stack(parts, 'Energy by term')}</figure>")


def _gpus(document: Mapping) -> str:
    rows = document.get("gpu") or []
    decode = document.get("decode")
    if not rows or not decode:
        return ""
    own = f"{document['machine']}"
    ends = decode.get("energy_j_per_token_range") or [None, None]
    model = document["model"]
    rates = [svg.Dot(own, document["scheme"], decode["tokens_per_s"], svg.si(decode["tokens_per_s"]), 1)]
    energies = [
        svg.Dot(own, document["scheme"], decode.get("energy_j_per_token"),
                svg.si(decode["energy_j_per_token"], "J") if decode.get("energy_j_per_token") is not None else "not known", 1, low=ends[0], high=ends[1])
    ]  # fmt: skip
    for row in rows:
        detail = " ".join(str(row[key]) for key in ("stack", "dtype") if row.get(key))
        other = f" {row['model']}" if row.get("model") not in (None, model) else ""
        hollow = row["kind"] == "bound"
        rates.append(svg.Dot(row["gpu"], detail + other, row["tokens_per_s"], svg.si(row["tokens_per_s"]), 0, hollow))
        if row.get("energy_j_per_token") is not None:
            energies.append(svg.Dot(row["gpu"], detail + other, row["energy_j_per_token"], svg.si(row["energy_j_per_token"], "J"), 0, hollow))
    silent = len(rows) + 1 - len(energies)
    marks = [(f"{own}, {model}", 1, False), ("GPU, bound (no GPU is faster)", 0, True), ("GPU, measured and published", 0, False)]
    body = f"<figure>{svg.dots(rates, '', 'Tokens per second beside GPUs')}</figure>{svg.legend(marks)}"
    note = "Decode. Bounds are ceilings from bandwidth and compute for this model; measurements are of the model that is named, not scaled to this one."
    parts = [_section("Tokens per second beside GPUs", note, body)]
    if any(dot.value for dot in energies):
        scope = decode.get("energy_scope") or (document.get("energy") or {}).get("energy_scope") or document.get("energy_scope")
        note = f"{own}: estimated, scope {scope}, with its range. GPUs: measured board power times time. "
        note += f"{silent} GPU rows have no energy: no source measured power there." if silent else ""
        parts.append(_section("Energy per token beside GPUs", note, f"<figure>{svg.dots(energies, 'J', 'Energy per token beside GPUs')}</figure>{svg.legend([marks[0], marks[2]])}"))
    table = _table(
        ("GPU", "stack", "dtype", "model", "#tokens/s", "#J/token", "what it is", "source", "note"),
        [
            (row["gpu"], row.get("stack"), row.get("dtype"), row.get("model") or model, row["tokens_per_s"], row.get("energy_j_per_token"),
             GPU_KINDS.get(row["kind"], row["kind"]), row.get("src"), row.get("note"))
            for row in rows
        ],
    )  # fmt: skip
    return "\n".join([*parts, _section("GPU rows", "", table), _sources(rows)])


def _sources(rows: Sequence[Mapping]) -> str:
    """What the source keys of the GPU rows stand for."""
    from headrace.sim.gpu import sources_of

    found = sources_of(str(row.get("src") or "") for row in rows)
    if not found:
        return ""
    note = "checked: figures were found there again; named: the record of the figures names it; likely: told from the rows themselves, not found again."
    return _section("Sources of the GPU rows", note, _table(("key", "source", "how known"), [(f"`{key}", s.what, s.found) for key, s in found.items()]))


def _operator_table(ops: Sequence[Mapping]) -> str:
    if not ops:
        return ""
    rows = [(op["phase"], op["name"], op["count"], op["cycles"], op["bytes"], op["macs"], op["bound"]) for op in ops]
    columns = ("phase", "operator", "#count", "#cycles", "#bytes required", "#useful MACs", "bound")
    return _section("Operators", "Estimated, analytic level.", _table(columns, rows))


def _numbers(document: Mapping) -> str:
    rows = [(f"`{path}", value, unit, kind) for path, value, kind, unit in numbers(document)]
    note = "Names are those of the JSON document."
    return _section("Every number and what it is", note, _table(("name", "#value", "unit", "kind"), rows))


def _table(columns: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A column whose name starts with # is right-aligned; a cell that starts with ` is code."""
    right = [name.startswith("#") for name in columns]
    head = "".join(f'<th{" class=n" if r else ""}>{escape(name.lstrip("#"))}</th>' for name, r in zip(columns, right, strict=True))
    lines = []
    for row in rows:
        cells = []
        for cell, r in zip(row, right, strict=True):
            text = "–" if cell is None else _number(cell) if isinstance(cell, (int, float)) else escape(str(cell).lstrip("`"))
            text = f"<code>{text}</code>" if isinstance(cell, str) and cell.startswith("`") else text
            cells.append(f'<td{" class=n" if r else ""}>{text}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _footer(document: Mapping) -> str:
    stamp = document.get("stamp") or {}
    words = [f"headrace {stamp['headrace']}"] if "headrace" in stamp else ["headrace"]
    words += [f"configuration {stamp['config_sha256']}"] if "config_sha256" in stamp else []
    words += [f"seed {stamp['seed']}"] if "seed" in stamp else []
    return f"<footer>{escape(' · '.join(words))}</footer>"


def _number(value: float | int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) or float(value).is_integer() and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.5g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _seconds(value: float | None) -> str:
    return "–" if value is None else svg.si(value, "s")
