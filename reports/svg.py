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
LETTER_WIDTH, LABEL_HEIGHT = 7.0, 15.0
"""Room of a label's letter at 12.5 units: generous, since the font is the reader's."""


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
    lines: list[Box] = []  # where labels would lie on a roof
    for rate, classes in ((bytes_per_s, "roof"), (deliverable_bytes_per_s, "roof dash")):
        if rate is None:
            continue
        start = max(x_low, y_low / rate)
        knee = macs_per_s / rate
        rise, run = y(macs_per_s) - y(start * rate), x(knee) - x(start)
        for step in range(64):
            at = x(start) + run * step / 64, y(start * rate) + rise * step / 64
            lines.append((at[0], at[1] + rise / 64, at[0] + run / 64, at[1]))
        lines.append((x(knee), y(macs_per_s) - 1, right, y(macs_per_s) + 1))
        body.append(f'<polyline class="{classes}" points="{x(start):.1f},{y(start * rate):.1f} {x(knee):.1f},{y(macs_per_s):.1f} {right:.1f},{y(macs_per_s):.1f}"/>')
    body.append(_text(right, y(macs_per_s) - 7, f"{si(macs_per_s, 'MAC/s')} array peak", "soft end"))
    body.append(_text((left + right) / 2, bottom + 36, "useful multiply-accumulates per byte required", "soft mid"))
    ordered = sorted(points, key=lambda p: not p.large)
    places = [(x(point.intensity), y(point.rate), 8.0 if point.large else 4.5) for point in ordered]
    peak = (right - 190, y(macs_per_s) - 20, right, y(macs_per_s) - 4)
    labels = _place_labels([(px, py, radius, point.label) for (px, py, radius), point in zip(places, ordered, strict=True)], (left, top, right, bottom), [peak, *lines])
    for (px, py, _), spot in zip(places, labels, strict=True):
        if spot is not None and spot.leader:
            body.append(_line(px, py, spot.x, spot.y, "leader"))
    for point, (px, py, radius), spot in zip(ordered, places, labels, strict=True):
        name = f"{point.label}: {point.intensity:.3g} MAC/byte, {si(point.rate, 'MAC/s')}"
        body.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{radius:g}" class="f{point.colour}"><title>{escape(name)}</title></circle>')
        if spot is not None:
            body.append(_text(spot.x - 2 if spot.end else spot.x + 2, spot.y + 4, point.label, "end" if spot.end else ""))
    return _svg(bottom + 46, body, title)


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class _Spot:
    """Where a label is tied: the middle of its left edge, of its right edge where `end`. leader: far enough for a line to its point."""

    x: float
    y: float
    end: bool
    leader: bool


def _place_labels(points: Sequence[tuple[float, float, float, str]], frame: Box, taken: Sequence[Box]) -> list[_Spot | None]:
    """A spot for the label of each (x, y, radius, label) that lies within `frame` and on no other label, point or `taken` box: beside the
    point, else above or below beside it with a leader; None where the frame is full."""
    boxes = [*taken, *((px - r, py - r, px + r, py + r) for px, py, r, _ in points)]
    spots: list[_Spot | None] = []
    for px, py, radius, label in points:
        spot = next((s for s, box in _spots(px, py, radius, label) if _inside(box, frame) and not any(_overlap(box, other) for other in boxes)), None)
        if spot is not None:
            boxes.append(_label_box(spot.x, spot.y, spot.end, label))
        spots.append(spot)
    return spots


def _spots(px: float, py: float, radius: float, label: str):
    """Candidates, nearest first."""
    for out in (0.0, 26.0, 60.0, 110.0):
        for step in range(9):
            for dy in ((LABEL_HEIGHT * step,) if step == 0 else (LABEL_HEIGHT * step, -LABEL_HEIGHT * step)):
                for end in (False, True):
                    at = px + (-1 if end else 1) * (radius + 5 + out)
                    yield _Spot(at, py + dy, end, bool(dy or out)), _label_box(at, py + dy, end, label)


def _label_box(x: float, y: float, end: bool, label: str) -> Box:
    width = LETTER_WIDTH * len(label) + 4
    return (x - width if end else x, y - LABEL_HEIGHT / 2, x if end else x + width, y + LABEL_HEIGHT / 2)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
