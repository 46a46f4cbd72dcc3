"""Charts as inline SVG for reports. Colours are classes of templates/report.css, so that light and dark need one picture.

Every text is escaped here; values are finite numbers (ValueError otherwise). Widths are those of a 760-unit view box.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL = 176
"""Width of the label column."""
VALUE = 152
"""Room right of bars for their values."""
DOT_LABEL, DOT_VALUE = 330, 84
"""The same of dots, whose labels are longer and values shorter."""
COLOURS = 6
MUTE = 6


@dataclass(frozen=True)
class Bar:
    """One bar; value None is drawn as the text `missing`."""

    label: str
    value: float | None
    colour: int
    text: str
    missing: str = "not built"


@dataclass(frozen=True)
class Dot:
    """One value on a shared logarithmic axis; `hollow` for bounds; low, high: a range."""

    label: str
    detail: str
    value: float | None
    text: str
    colour: int
    hollow: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RoofPoint:
    """intensity: multiply-accumulates a byte. rate: multiply-accumulates a second."""

    label: str
    intensity: float
    rate: float
    colour: int
    large: bool = False


def si(value: float, unit: str = "") -> str:
    """Three significant digits with a prefix: 1.23 M, 45.6 m."""
    value = _finite(value)
    if value == 0:
        return f"0 {unit}".strip()
    exponent = min(4, max(-4, math.floor(math.log10(abs(value)) / 3 + 1e-12)))
    scaled = value / 1000.0**exponent
    if abs(float(f"{scaled:.3g}")) >= 1000 and exponent < 4:
        exponent += 1
        scaled = value / 1000.0**exponent
    prefix = ("p", "n", "µ", "m", "", "k", "M", "G", "T")[exponent + 4]
    return f"{scaled:.3g} {prefix}{unit}".strip()


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a chart needs finite values, not {value}")
    return float(value)


def _svg(height: float, body: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'


def _text(x: float, y: float, text: str, classes: str = "") -> str:
    kind = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{classes}"/>'


def legend(entries: Sequence[tuple[str, int, bool]]) -> str:
    """(text, colour, hollow) beside each other."""
    items = []
    for text, colour, hollow in entries:
        mark = f'class="ring s{colour}" r="4.5"' if hollow else f'class="f{colour}" r="5.5"'
        items.append(f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" {mark}/></svg>{escape(text)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], title: str) -> str:
    """Horizontal bars from a common zero, in groups with a heading (may be empty)."""
    values = [_finite(bar.value) for _, group in groups for bar in group if bar.value is not None]
    if any(value < 0 for value in values):
        raise ValueError("bars start at zero; no value may be negative")
    top = max(values, default=0.0) or 1.0
    width = WIDTH - LABEL - VALUE
    body, y = [], 4.0
    for heading, group in groups:
        if heading:
            body.append(_text(0, y + 14, heading, "soft"))
            y += 22
        for bar in group:
            body.append(_text(LABEL - 10, y + 13.5, bar.label, "end"))
            if bar.value is None:
                body.append(_text(LABEL + 4, y + 13.5, bar.missing, "faint"))
            else:
                length = max(1.0, width * bar.value / top)
                body.append(
                    f'<rect x="{LABEL}" y="{y + 2:.1f}" width="{length:.1f}" height="15" rx="2.5" class="f{bar.colour}">'
                    f"<title>{escape(f'{bar.label}: {bar.text}')}</title></rect>"
                )
                body.append(_text(LABEL + length + 7, y + 13.5, bar.text, "soft"))
            y += 21
        y += 8
    return _svg(y, body, title)


def stack(parts: Sequence[tuple[str, float, str]], title: str) -> str:
    """One bar cut into (label, value, text) parts, each named below in a row of its own colour."""
    total = sum(_finite(value) for _, value, _ in parts)
    if total <= 0 or any(value < 0 for _, value, _ in parts):
        raise ValueError("a stack needs parts of at least zero and a sum above it")
    body, x = [], 0.0
    for number, (label, value, text) in enumerate(parts):
        length = WIDTH * value / total
        body.append(f'<rect x="{x:.1f}" y="2" width="{max(0.0, length - 1.5):.1f}" height="26" rx="2" class="f{number % COLOURS}">'
                    f"<title>{escape(f'{label}: {text}')}</title></rect>")  # fmt: skip
        x += length
    names = [(f"{label} {text} ({100 * value / total:.0f}%)", number % COLOURS, False) for number, (label, value, text) in enumerate(parts)]
    return _svg(30, body, title) + legend(names)


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return first, max(last, first + 1)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten within low .. high; powers alone where that is enough."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    return [step * 10.0**exponent for exponent in exponents for step in steps if low <= step * 10.0**exponent <= high]


def dots(rows: Sequence[Dot], unit: str, title: str) -> str:
    """Values, with ranges where there are, on one logarithmic axis. A row without a value keeps its place and says `text`."""
    known = [_finite(v) for row in rows for v in (row.value, row.low, row.high) if v is not None]
    if not known or min(known) <= 0:
        raise ValueError("dots need at least one value, all above zero")
    first, last = _decades(min(known), max(known))
    left, right = float(DOT_LABEL), float(WIDTH - DOT_VALUE)

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(value) - first) / (last - first)

    bottom = 8 + 25 * len(rows)
    body = []
    for exponent in range(first, last + 1):
        at = x(10.0**exponent)
        body.append(_line(at, 4, at, bottom, "grid"))
        body.append(_text(at, bottom + 17, si(10.0**exponent, unit), "faint mid"))
    for number, row in enumerate(rows):
        y = 20 + 25 * number
        body.append(_text(left - 14, y + 4, row.label if not row.detail else f"{row.label} · {row.detail}", "end"))
        if row.value is None:
            body.append(_text(left + 8, y + 4, row.text, "faint"))
            continue
        if row.low is not None and row.high is not None:
            body.append(_line(x(row.low), y, x(row.high), y, f"range s{row.colour}"))
        shape = f'class="ring s{row.colour}" r="5"' if row.hollow else f'class="f{row.colour}" r="6"'
        body.append(f'<circle cx="{x(row.value):.1f}" cy="{y}" {shape}><title>{escape(f"{row.label} {row.detail}: {row.text}")}</title></circle>')
        body.append(_text(right + 12, y + 4, row.text, "soft"))
    return _svg(bottom + 26, body, title)


def roofline(points: Sequence[RoofPoint], macs_per_s: float, bytes_per_s: float, deliverable_bytes_per_s: float | None, title: str) -> str:
    """Log-log: the roof of compute and memory peaks, the deliverable slope dashed, points below."""
    points = [point for point in points if point.intensity > 0 and point.rate > 0]
    ridge = macs_per_s / bytes_per_s
    x_low, x_high = min([p.intensity for p in points] + [ridge]) / 2, max([p.intensity for p in points] + [ridge]) * 4
    y_low, y_high = min([p.rate for p in points] + [macs_per_s]) / 2, macs_per_s * 1.6
    left, right, top, bottom = 92.0, WIDTH - 24.0, 14.0, 330.0

    def x(value: float) -> float:
        return left + (right - left) * math.log(value / x_low) / math.log(x_high / x_low)

    def y(value: float) -> float:
        return bottom - (bottom - top) * math.log(value / y_low) / math.log(y_high / y_low)

    body = []
    for tick in _ticks(x_low, x_high):
        body.append(_line(x(tick), top, x(tick), bottom, "grid"))
        body.append(_text(x(tick), bottom + 17, f"{tick:g}", "faint mid"))
    for tick in _ticks(y_low, y_high):
        body.append(_line(left, y(tick), right, y(tick), "grid"))
        body.append(_text(left - 8, y(tick) + 4, si(tick, "MAC/s"), "faint end"))
    for rate, classes in ((bytes_per_s, "roof"), (deliverable_bytes_per_s, "roof dash")):
        if rate is None:
            continue
        start = max(x_low, y_low / rate)
        knee = macs_per_s / rate
        body.append(f'<polyline class="{classes}" points="{x(start):.1f},{y(start * rate):.1f} {x(knee):.1f},{y(macs_per_s):.1f} {right:.1f},{y(macs_per_s):.1f}"/>')
    body.append(_text(right, y(macs_per_s) - 7, f"{si(macs_per_s, 'MAC/s')} array peak", "soft end"))
    body.append(_text((left + right) / 2, bottom + 36, "useful multiply-accumulates per byte required", "soft mid"))
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: not p.large):
        px, py = x(point.intensity), y(point.rate)
        name = f"{point.label}: {point.intensity:.3g} MAC/byte, {si(point.rate, 'MAC/s')}"
        body.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{8 if point.large else 4.5}" class="f{point.colour}"><title>{escape(name)}</title></circle>')
        if all(abs(px - tx) > 70 or abs(py - ty) > 15 for tx, ty in taken):  # others have their tooltip
            at_right = px > right - 110
            body.append(_text(px - 12 if at_right else px + 12, py + 4, point.label, "end" if at_right else ""))
            taken.append((px, py))
    return _svg(bottom + 46, body, title)
