"""Every number of a run's document with what it is: estimated, simulated, synthesised, measured, published or given."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

RULES = (
    # (path pattern, kind, unit); the first that fits counts.
    ("*.cycles.rtl", "simulated", "cycles"),
    ("*.cycles.cycle", "simulated", "cycles"),
    ("*.cycles.analytic", "estimated", "cycles"),
    ("*energy_by.*", "estimated", "J"),
    ("energy.*", "estimated", "J"),
    ("*energy_j*", "estimated", "J"),
    ("*power_w*", "estimated", "W"),
    ("*.hbm.bytes", "estimated", "bytes"),
    ("*.hbm.*", "simulated", "fraction"),
    ("*utilisation.*", "simulated", "fraction"),
    ("*tokens_per_s*", "simulated", "tokens/s"),
    ("*latency_s*", "simulated", "s"),
    ("sim_cycles_per_s", "measured", "cycles/s"),
    ("build_s", "measured", "s"),
    ("start_s", "measured", "s"),
    ("tokens", "given", "tokens"),
    ("prompt_tokens", "given", "tokens"),
    ("prefill.tokens", "given", "tokens"),
    ("decode.steps", "given", "steps"),
    ("batch", "given", "sequences"),
    ("memory.*", "estimated", "bytes"),
)
"""Energy is estimated even where the cycles and events behind it are simulated."""

SKIPPED = ("stamp", "token_ids", "ops", "gpu", "divergence")
"""Not results, or listed apart: operators and GPUs have tables of their own."""

GPU_KINDS = {"measured": "measured, published", "bound": "bound from published peaks"}


def numbers(document: Mapping) -> Iterator[tuple[str, float | int, str, str]]:
    """(path, value, kind, unit) of every number but booleans, in the order of the document.

    A path that no rule knows has the kind of the nearest ``kind`` above it, else "not stated".
    """
    yield from _walk({key: value for key, value in document.items() if key not in SKIPPED}, "", document.get("kind"))


def _walk(value, path: str, kind: str | None) -> Iterator[tuple[str, float | int, str, str]]:
    if isinstance(value, Mapping):
        kind = value.get("kind") or kind
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key), kind)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", kind)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        known, unit = kind_of(path)
        yield path, value, known or kind or "not stated", unit


def kind_of(path: str) -> tuple[str | None, str]:
    """(kind, unit) by `RULES`; (None, "") where none fits."""
    plain = path.split("[")[0]
    for pattern, kind, unit in RULES:
        if fnmatchcase(plain, pattern):
            return kind, unit
    return None, ""
