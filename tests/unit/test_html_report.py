"""report.html from a synthetic document: complete, escaped, self-contained; charts on their own."""

import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from headrace.hw.board import load_board
from headrace.hw.machine import load_machine
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme
from headrace.reports import svg
from headrace.reports.html import machine_peaks, render, write_report
from headrace.reports.numbers import kind_of, numbers
from headrace.sim.estimate import Workload, estimate
from headrace.sim.gpu import gpu_rows, parse_gpu

EVIL = "<script>alert('\"x\"')</script> & co"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks nesting; keeps tags, attributes and text."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(page)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture(scope="module")
def machine():
    return load_machine("nano")


@pytest.fixture(scope="module")
def ops(machine):
    run = estimate(
        model_config("embedded"), load_scheme("w4a8kv8"), machine, load_board("u280"), None, Workload(prefill=8, decode=3), by_op=True
    )
    return run["ops"]


@pytest.fixture
def document():
    gpus = gpu_rows(parse_gpu("A100"), model_config("embedded"), load_scheme("w4a8kv8"), prefill=8, decode=3)
    return {
        "model": "embedded", "machine": "nano", "scheme": "w4a8kv8", "prompt": f"Once {EVIL}", "text": f" upon {EVIL}", "tokens": 4,
        "prompt_tokens": 8, "token_ids": [1, 2, 3, 4], "rtl_tokens_equal": True, "logits_equal": True, "kind": "simulated",
        "prefill": {"cycles": {"rtl": 1234567, "cycle": None, "analytic": 1200000}, "utilisation": {"mac": 0.2, "bandwidth": 0.3, "peak_fraction": 0.25}},
        "decode": {
            "steps": 3, "cycles": {"rtl": 300000, "cycle": 301000, "analytic": 295000},
            "hbm": {"bytes": 9_000_000, "utilisation": 0.71, "peak_fraction": 0.64}, "utilisation": {"mac": 0.41, "bandwidth": 0.71, "peak_fraction": 0.64},
            "tokens_per_s": 2250.0, "energy_j_per_token": 0.0123, "energy_j_per_token_range": [0.008, 0.02],
        },
        "energy": {
            "total_j": 0.2, "total_j_range": [0.1, 0.4], "energy_scope": "board",
            "energy_by": {"static": 0.05, "clock": 0.06, "mac": 0.01, "sram": 0.02, "memory": 0.03, "board": 0.03},
        },
        "gpu": [{"gpu": row["name"]} | row for row in gpus],
        "sim_cycles_per_s": 250_000.0, "build_s": 41.5, "start_s": 0.4, "stamp": {"headrace": "0.1.0", "config_sha256": "ab" * 32, "seed": 0},
    }  # fmt: skip


def test_says_everything(document, ops, machine):
    text = Page(render(document, peaks=machine_peaks(machine), ops=ops)).text
    for words in (
        "embedded on nano", "w4a8kv8", EVIL, "RTL and golden give the same tokens", "equal bit for bit", "1,234,567", "300,000", "not built", "295,000",
        "-1.67%", "12.3 mJ", "range 8 mJ to 20 mJ", "71.0%", "64.0%", "scope board", "A100-SXM-80", "roofline", "measured, published",
        "bound from published peaks", "llama-2-7b", "fits the L2 cache", "array peak", "down", "headrace 0.1.0", "seed 0", "250 k",
    ):  # fmt: skip
        assert words in text, words


def test_source_keys_are_explained(document, machine):
    text = Page(render(document, peaks=machine_peaks(machine))).text
    for words in ("Sources of the GPU rows", "gpt-fast, README: A100-80GB limited to 330 W", "arXiv 2411.00136"):
        assert words in text, words
    assert "ML.ENERGY" not in text  # no A100 row is from there
    document["gpu"] = [row | {"src": "mine"} for row in document["gpu"]]
    assert "Sources of the GPU rows" not in Page(render(document, peaks=machine_peaks(machine))).text


def test_self_contained(document, ops, machine):
    page = render(document, peaks=machine_peaks(machine), ops=ops)
    parsed = Page(page)
    assert "script" not in parsed.tags and "link" not in parsed.tags and "img" not in parsed.tags
    assert not [a for a in parsed.attributes if a[1] in ("src", "href", "xlink:href", "action") or a[1].startswith("on")]
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page.replace(EVIL, ""))
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in parsed.attributes
    assert "prefers-color-scheme: dark" in page and parsed.tags.count("svg") > 5


def test_every_string_is_escaped(document, ops, machine):
    for key in ("model", "machine", "scheme", "prompt", "text", "divergence"):
        document[key] = EVIL
    document["logits_equal"] = False
    document["energy"]["energy_scope"] = EVIL
    document["energy"]["energy_by"][EVIL] = 0.01
    document["stamp"]["headrace"] = EVIL
    document["gpu"][0] |= {"gpu": EVIL, "stack": EVIL, "dtype": EVIL, "model": EVIL, "src": EVIL, "kind": EVIL}
    strange = [dict(op, name=EVIL + op["name"], phase=EVIL, bound=EVIL) for op in ops]
    page = render(document, peaks=machine_peaks(machine), ops=strange)
    assert "<script" not in page and "script" not in Page(page).tags


def test_failure_is_loud(document, machine):
    document |= {"rtl_tokens_equal": False, "logits_equal": False, "divergence": "layer 3, VEC at 117"}
    page = render(document, peaks=machine_peaks(machine))
    text = Page(page).text
    assert "DIFFERENT tokens" in text and "logits DIFFER" in text and "layer 3, VEC at 117" in text and page.count('class="verdict no"') == 2
    document |= {"rtl_tokens_equal": None, "logits_equal": None}
    assert "Logits were not compared" in Page(render(document, peaks=machine_peaks(machine))).text


def test_what_is_missing_is_said(document, machine):
    document |= {"decode": None, "energy": None, "gpu": [], "build_s": None}
    text = Page(render(document, peaks=machine_peaks(machine))).text
    assert "Energy of the run" in text and "Not known" in text and not re.search(r"\bNone\b", text) and not re.search(r"\bnan\b", text)


def test_energy_unknown_for_the_machine(document, ops, machine):
    document["decode"] |= {"energy_j_per_token": None, "energy_j_per_token_range": None}
    text = Page(render(document, peaks=machine_peaks(machine), ops=ops)).text
    assert "Energy per token beside GPUs" in text and "not known" in text


def test_every_number_has_a_kind(document):
    rows = list(numbers(document))
    kinds = {path: kind for path, _, kind, _ in rows}
    assert not [path for path, kind in kinds.items() if kind == "not stated"]
    assert kinds["prefill.cycles.rtl"] == "simulated" and kinds["decode.cycles.analytic"] == "estimated"
    assert kinds["decode.energy_j_per_token_range[1]"] == "estimated" and kinds["energy.energy_by.mac"] == "estimated"
    assert kinds["sim_cycles_per_s"] == "measured" and kinds["tokens"] == "given" and "stamp.seed" not in kinds
    assert "rtl_tokens_equal" not in kinds
    found = {path: kind for path, _, kind, _ in numbers({"resources": {"kind": "synthesised", "dsp": 3}, "mystery": 1})}
    assert found == {"resources.dsp": "synthesised", "mystery": "not stated"}
    assert kind_of("prefill.utilisation.mac") == ("simulated", "fraction")


def test_written_whole(tmp_path, document, machine):
    path = write_report(tmp_path / "report.html", document, peaks=machine_peaks(machine))
    assert path.read_text(encoding="utf-8").endswith("</html>\n") and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_peaks(machine):
    peaks = machine_peaks(machine)
    assert peaks.macs_per_s == 128 * 225e6 and peaks.bytes_per_s == 64 * 225e6 and 0.8 < peaks.deliverable_bytes_per_s / peaks.bytes_per_s < 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (1.0, "1 J"), (999.6, "1 kJ"), (1234.5, "1.23 kJ"), (0.0123, "12.3 mJ"), (3.4e-7, "340 nJ"), (1e14, "100 TJ"), (1e16, "1e+04 TJ")],
)
def test_prefixes(value, text):
    assert svg.si(value, "J") == text


def shapes(picture: str, tag: str) -> list[dict]:
    return [element.attrib for element in ElementTree.fromstring(picture).iter(tag)]


def test_bars_are_to_scale():
    picture = svg.bars([("a", [svg.Bar("x", 50.0, 0, "50"), svg.Bar("y", 100.0, 1, "100"), svg.Bar("z", None, 2, "")])], "t")
    widths = [float(rect["width"]) for rect in shapes(picture, "rect")]
    assert len(widths) == 2 and widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError):
            svg.bars([("", [svg.Bar("x", bad, 0, "")])], "t")


def test_dots_are_logarithmic():
    picture = svg.dots([svg.Dot(str(v), "", v, "", 0) for v in (1.0, 10.0, 100.0)] + [svg.Dot("none", "", None, "not known", 0)], "J", "t")
    at = [float(circle["cx"]) for circle in shapes(picture, "circle")]
    assert len(at) == 3 and at[2] - at[1] == pytest.approx(at[1] - at[0], abs=0.2)
    with pytest.raises(ValueError, match="above zero"):
        svg.dots([svg.Dot("x", "", 0.0, "", 0)], "", "t")


def test_roofline_points_lie_under_the_roof():
    picture = svg.roofline([svg.RoofPoint("on", 1.0, 1e9, 0), svg.RoofPoint("flat", 100.0, 1e10, 0)], 1e10, 1e9, 0.9e9, "t")
    roof = [tuple(map(float, pair.split(","))) for pair in shapes(picture, "polyline")[0]["points"].split()]
    on, flat = shapes(picture, "circle")
    (x0, y0), (x1, y1), (_, y2) = roof
    x, y = float(on["cx"]), float(on["cy"])
    assert y == pytest.approx(y0 + (y1 - y0) * (x - x0) / (x1 - x0), abs=0.3)  # on the slope: 1 MAC/byte at 1e9 bytes/s
    assert float(flat["cy"]) == pytest.approx(y2, abs=0.1)


def test_labels_of_close_points_lie_apart():
    close = [svg.RoofPoint(f"operator_{i}", 1.0 + 0.01 * i, 5e8 + 1e6 * i, 0, large=i == 0) for i in range(9)]
    picture = svg.roofline(close, 1e10, 1e9, 0.9e9, "t")
    named = [(text, text.attrib) for text in ElementTree.fromstring(picture).iter("text") if (text.text or "").startswith("operator_")]
    assert sorted(text.text for text, _ in named) == sorted(point.label for point in close)
    boxes = []
    for text, at in named:
        x, y, wide = float(at["x"]), float(at["y"]) - 4, 7 * len(text.text)
        boxes.append((x - wide, x, y) if at.get("class") == "end" else (x, x + wide, y))
    for i, (left, right, y) in enumerate(boxes):
        assert 0 <= left and right <= svg.WIDTH
        for other_left, other_right, other_y in boxes[:i]:
            assert right <= other_left or other_right <= left or abs(y - other_y) >= 14.9
        for circle in shapes(picture, "circle"):
            cx, cy, r = (float(circle[key]) for key in ("cx", "cy", "r"))
            assert not (left < cx + r and cx - r < right and abs(y - cy) < 7.5 + r - 0.2)


def test_stack_adds_up():
    widths = [float(rect["width"]) for rect in shapes("<g>" + svg.stack([("a", 1.0, "1"), ("b", 3.0, "3")], "t") + "</g>", "rect")]
    assert (widths[1] + 1.5) == pytest.approx(3 * (widths[0] + 1.5), abs=0.3)
    with pytest.raises(ValueError):
        svg.stack([("a", 0.0, "")], "t")
