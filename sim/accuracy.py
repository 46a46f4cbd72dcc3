"""Bytes per weight against perplexity: one model, many ways to compress it, each scored on the golden executor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from headrace.mapping.sweep import write_atomically
from headrace.models.compress.statistics import InputStatistics
from headrace.models.configfile import config_sha256, validate
from headrace.models.errors import UserError
from headrace.models.decoder import DTYPE_BYTES, DecoderConfig
from headrace.models.model import Model
from headrace.models.quantise import QuantisedModel
from headrace.models.formats.safetensors_file import read_json
from headrace.models.scheme import Scheme
from headrace.sim.calibrate import Method, calibrated
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor
from headrace.sim.perplexity import MAX_LOG_PERPLEXITY, perplexity
from headrace.sim.session import Executor

RESULTS = "accuracy.json"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to compress. keep: weights kept of 16 (16 is dense), their mean where `mixed`. kv_bits: of the cache. bytes_per_weight: the
    budget that widths are chosen under, None for `bits` everywhere. rounding "float" stands for the model's own weights."""

    bits: int = 8
    group: int = 32
    keep: int = 16
    index_share: int = 2
    mixed: bool = False
    pruning: str = "sparsegpt"
    rounding: str = "gptq"
    scaling: str = "none"
    kv_bits: int = 8
    bytes_per_weight: float | None = None

    @property
    def method(self) -> Method:
        return Method(rounding=self.rounding, scaling=self.scaling, pruning=self.pruning, mixed=self.mixed)

    @property
    def calibrates(self) -> bool:
        return self.rounding != "float" and (self.method.calibrates or self.bytes_per_weight is not None or (self.keep < 16 and self.pruning != "magnitude"))

    def scheme(self, base: Scheme) -> Scheme:
        """`base` with this way's bits, group, sparsity and cache: of it come the mask and the bits of activations."""
        sparsity = None if self.keep == 16 else {"n": self.keep, "m": 16, "index_share": self.index_share}
        document = base.model_dump() | {"weight_bits": self.bits, "group": self.group, "sparsity": sparsity, "linear_bits": {}, "kv_bits": self.kv_bits}
        return validate(Scheme, document, source=f"{self.bits} bits in groups of {self.group}, {self.keep} of 16")

    @property
    def label(self) -> str:
        """In a few words, for progress and plots."""
        if self.rounding == "float":
            return "float32, the file's weights"
        width = f"{self.bits} bits" if self.bytes_per_weight is None else f"{self.bytes_per_weight:g} B/weight"
        sparse = "" if self.keep == 16 else f", {'mean ' if self.mixed else ''}{self.keep}:16 {self.pruning}, index of {self.index_share}"
        scaling = "" if self.scaling == "none" else f", {self.scaling}"
        groups = "" if self.bits == 8 and self.keep == 16 and self.bytes_per_weight is None else f", groups of {self.group}"
        return f"{width}{groups}{sparse}, {self.rounding}{scaling}" + ("" if self.kv_bits == 8 else f", KV {self.kv_bits}")


def way_of(row: Mapping) -> Way:
    """The way that a row is of."""
    return Way(**{name: row[name] for name in asdict(Way())})


def score(executor: Executor, texts: Mapping[str, Sequence[int]], advance: Callable[[int], None]) -> dict[str, float]:
    """Perplexity of each text (tokens by name)."""
    return {name: perplexity(executor, tokens, advance).perplexity for name, tokens in texts.items()}


def row_of(way: Way, weight_bytes: int, parameters: int, scores: Mapping[str, float]) -> dict:
    """One line of results. log_perplexity: mean over the texts."""
    return asdict(way) | {
        "weight_bytes": weight_bytes, "bytes_of_weight": weight_bytes / parameters, "perplexity": dict(scores),
        "log_perplexity": float(np.mean([math.log(value) for value in scores.values()])),
    }


def run_ways(
    model: Model, ways: Sequence[Way], base: Scheme, texts: Mapping[str, Sequence[int]], folder: Path, *,
    statistics: Callable[[], Mapping[str, InputStatistics]], losses: Callable[[Scheme, Method], Mapping], resume: bool,
    note: Callable[[str], None], advance: Callable[[int], None], identity: object,
) -> list[dict]:
    """Rows of all ways, in their order, then those that the folder has beyond them; each is written to ``accuracy.json`` as soon as it is there,
    and kept with `resume`.

    statistics: asked once, if a way needs them; losses: of `sim.widths.measure_losses`, asked for ways with a budget. identity: plain data
    that all rows depend on; a folder of another identity is refused.
    """
    path = folder / RESULTS
    sha = config_sha256(identity)
    rows = kept_rows(folder, identity, texts, resume)
    known = {json.dumps({name: row[name] for name in asdict(Way())}, sort_keys=True) for row in rows}
    found: Mapping[str, InputStatistics] | None = None
    made: tuple[Way, QuantisedModel] | None = None
    for way in ways:
        if json.dumps(asdict(way), sort_keys=True) in known:
            continue
        note(way.label)
        if way.calibrates and found is None:
            found = statistics()
        if way.rounding == "float":
            executor: Executor = FloatExecutor.from_model(model)
            size = model.config.parameters * DTYPE_BYTES[model.config.dtype]
        else:
            plain = replace(way, kv_bits=8)  # weights do not depend on the cache
            if made is None or made[0] != plain:
                made = plain, _compressed(model, way, base, found, losses)
            compressed = replace(made[1], scheme=made[1].scheme.model_copy(update={"kv_bits": way.kv_bits}))
            executor, size = GoldenExecutor(compressed), compressed.required_bytes
        rows.append(row_of(way, size, model.config.parameters, score(executor, texts, advance)))
        document = {
            "model": model.config.name, "sizes_sha256": config_sha256(model.config.to_dict()), "identity_sha256": sha,
            "mask": None if base.attention is None else base.attention.rules, "rows": rows,
        }  # fmt: skip
        write_atomically(path, json.dumps(document, indent=1) + "\n")
    order = {json.dumps(asdict(way), sort_keys=True): number for number, way in enumerate(ways)}
    return sorted(rows, key=lambda row: order.get(json.dumps({name: row[name] for name in asdict(Way())}, sort_keys=True), len(order)))


def read_rows(folder: Path, config: DecoderConfig) -> list[dict]:
    """Rows of a finished `headrace accuracy` of the model of these sizes, without a mask. Raises UserError naming the file."""
    path = folder / RESULTS
    document = read_json(path)
    if document.get("model") != config.name or document.get("sizes_sha256") != config_sha256(config.to_dict()):
        raise UserError(f"{path}: is of model {str(document.get('model'))[:60]} of other sizes or another name; allowed is {config.name}")
    if document.get("mask") is not None:
        raise UserError(f"{path}: is of attention under a mask ({str(document['mask'])[:60]}); allowed here are results without one")
    return _checked_rows(path, document)


def row_of_scheme(rows: Sequence[Mapping], scheme: Scheme | None, rounding: str, scaling: str, pruning: str | None) -> Mapping | None:
    """The row of a scheme's bits, group, sparsity and cache, made in this way (scheme None: the float model); None without one.

    A scheme whose linears have several widths, with a mask or other activations, has no row.
    """
    if scheme is None:
        fitting = [row for row in rows if row["rounding"] == "float"]
    elif scheme.linear_bits or scheme.tensor_bits or scheme.attention is not None or scheme.activation_bits != 8:
        return None
    else:
        sparsity = scheme.sparsity
        keep, share = (16, 2) if sparsity is None or sparsity.n == 16 else (sparsity.n, sparsity.index_share)
        group = 32 if scheme.weight_bits == 8 and keep == 16 else scheme.group
        wanted = {
            "bits": scheme.weight_bits, "group": group, "keep": keep, "index_share": share, "kv_bits": scheme.kv_bits, "bytes_per_weight": None,
            "rounding": rounding, "scaling": scaling,
        } | ({} if keep == 16 else {"pruning": pruning})
        fitting = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return fitting[0] if len(fitting) == 1 else None


def _compressed(model: Model, way: Way, base: Scheme, statistics, losses) -> QuantisedModel:
    from headrace.sim.widths import choose_widths

    scheme = way.scheme(base)
    if way.bytes_per_weight is not None:
        scheme = choose_widths(model, scheme, losses(scheme, way.method), way.bytes_per_weight)
    return calibrated(model, scheme, way.method, statistics)


def kept_rows(folder: Path, identity: object, texts: Mapping[str, object], resume: bool) -> list[dict]:
    """Rows of an earlier run in this folder; UserError where one is not to be resumed, or was of another model, scheme, calibration or texts."""
    path = folder / RESULTS
    if not resume and path.exists():
        raise UserError(f"{path}: exists; give --resume to go on with it, or another -o")
    if not path.is_file():
        return []
    document = read_json(path)
    if document.get("identity_sha256") != config_sha256(identity):
        raise UserError(f"{path}: is of another model, scheme, calibration or texts; give another -o")
    return _checked_rows(path, document, texts)


def _checked_rows(path: Path, document: Mapping, texts: Mapping | None = None) -> list[dict]:
    rows = document.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _is_row(row, texts) for row in rows):
        raise UserError(f"{path}: field rows does not hold rows of this version")
    return rows


def _is_row(row: dict, texts: Mapping[str, object] | None) -> bool:
    """Whether it is what `row_of` gives; of these texts, where they are known."""

    def positive(value: object) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf

    if row.keys() != {*asdict(Way()), "weight_bytes", "bytes_of_weight", "perplexity", "log_perplexity"}:
        return False
    scores = row["perplexity"]
    return bool(
        isinstance(scores, dict) and list(scores) == list(scores if texts is None else texts) and all(map(positive, [row["weight_bytes"], row["bytes_of_weight"], *scores.values()]))
        and scores and isinstance(row["log_perplexity"], float) and 0 <= row["log_perplexity"] < MAX_LOG_PERPLEXITY
        and all(isinstance(row[name], str) for name in ("rounding", "scaling", "pruning"))
    )
