"""A compressed model in one file: what `headrace compress` writes and the other commands read in place of a model.

A safetensors file without pickle. Its metadata are JSON texts: `config` (sizes), `scheme`, `linears` (bits, group and index sharing of
each matrix) and `made` (method and calibration). Tensors, for a matrix NAME: NAME.codes (kept codes in row order, `bits` bits each,
least significant first), NAME.mult, NAME.off, NAME.row_scale, and NAME.kept (a bit a column, for every index) where it is sparse; norms
and biases in float32; `tokenizer` (the bytes of a tokenizer.json).
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from headrace.models.configfile import StrictModel, validate
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.quantise import (
    MAX_W8, QuantisedLinear, QuantisedModel, block_counts, check_compressible, check_contract_bits, rope_tables, stored_groups, window_rope_tables,
)
from headrace.models.formats.safetensors_file import DTYPES, StoredTensor, open_safetensors, parse_object, read_metadata, save_safetensors
from headrace.models.scheme import BLOCK, GROUP_SHIFT, KEPT_COUNTS, Scheme
from headrace.models.formats.tokenizer import Tokenizer

SUFFIX = ".headrace"
FORMAT = "headrace-packed-1"


class Stored(StrictModel):
    """How one matrix is stored."""

    bits: Literal[2, 3, 4, 5, 6, 8]
    group: Literal[32, 64, 128] = 32
    sparse: bool = False
    index_share: Literal[1, 2] = 1


class Made(StrictModel):
    """Where a file's codes come from; all of it is for people to read."""

    model: str
    rounding: str
    scaling: str
    pruning: str | None = None
    calibration: str | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A compressed model and where it comes from."""

    model: QuantisedModel
    made: Made


def is_packed(path: str | Path) -> bool:
    """Whether a path names a packed file (by its suffix)."""
    return str(path).lower().endswith(SUFFIX)


def save_packed(path: Path, model: QuantisedModel, made: Made) -> None:
    """Write the file under another name first. Raises UserError where it cannot be written."""
    tensors: dict[str, np.ndarray] = {}
    linears: dict[str, dict] = {}
    for name, tensor in _tensors(model).items():
        if isinstance(tensor, np.ndarray):
            tensors[name] = np.ascontiguousarray(tensor, np.float32)
        else:
            linears[name] = _store(tensors, name, tensor)
    if model.tokenizer is not None:
        tensors["tokenizer"] = np.frombuffer(model.tokenizer.to_json().encode(), np.uint8)
    metadata = {
        "format": FORMAT, "config": json.dumps(model.config.to_dict()), "scheme": json.dumps(model.scheme.model_dump()),
        "linears": json.dumps(linears), "made": json.dumps(made.model_dump()),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_safetensors(temporary, tensors, metadata)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_packed_config(path: str | Path) -> tuple[DecoderConfig, Scheme, Made]:
    """Sizes, scheme and origin alone. Raises UserError naming file, field, value and what is allowed."""
    path = Path(path)
    metadata = read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path}: format = {str(metadata.get('format'))[:40]!r}; allowed is {FORMAT!r}, as `headrace compress` writes")

    def section(name: str) -> dict:
        return parse_object(str(metadata.get(name, "")).encode(), f"{path}: {name}")

    known = {field.name: field.default is MISSING for field in fields(DecoderConfig)}
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in section("config").items()}
    wrong = sorted(sizes.keys() - known.keys()) + sorted(name for name, needed in known.items() if needed and name not in sizes)
    if wrong:
        raise UserError(f"{path}: config: field {wrong[0][:40]} is missing or unknown; allowed are {', '.join(known)}")
    if not isinstance(sizes["name"], str) or not 1 <= len(sizes["name"]) <= 200:
        raise UserError(f"{path}: config.name = {str(sizes['name'])[:60]!r}; allowed is a text of 1 to 200 characters")
    scheme = validate(Scheme, section("scheme"), source=f"{path}: scheme")
    try:
        config = DecoderConfig(**sizes)
    except UserError as error:
        raise UserError(f"{path}: config: {error}") from None
    except TypeError:  # an object or a list where a name is looked up
        raise UserError(f"{path}: config: a field holds a list or an object; allowed are those of `headrace compress`") from None
    check_contract_bits(scheme, f"{path}: scheme")
    try:
        check_compressible(config, scheme)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config, scheme, validate(Made, section("made"), source=f"{path}: made")


def load_packed(path: str | Path) -> Packed:
    """Read and check a whole file. Raises UserError naming file, tensor and what is allowed."""
    path = Path(path)
    config, scheme, made = read_packed_config(path)
    stored = open_safetensors(path, {name: dtype.itemsize for name, dtype in DTYPES.items()})
    linears = parse_object(read_metadata(path).get("linears", "").encode(), f"{path}: linears")
    used: set[str] = set()

    def array(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        tensor = stored.get(name)
        if tensor is None:
            raise UserError(f"{path}: tensor {name[:60]} is missing")
        if tensor.dtype != dtype or tensor.shape != shape:
            raise UserError(f"{path}: tensor {name[:60]} is {tensor.dtype} {list(tensor.shape)[:8]}; allowed is {dtype} {list(shape)}")
        used.add(name)
        return _array(tensor)

    def vector(name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = array(name, "F32", shape)
        if not np.isfinite(values).all():
            raise UserError(f"{path}: tensor {name[:60]} holds a NaN or an infinity; allowed are finite numbers")
        return values

    def matrix(name: str, shape: tuple[int, int]) -> QuantisedLinear:
        how = validate(Stored, linears.get(name) if isinstance(linears.get(name), dict) else {}, source=f"{path}: linears: {name}")
        _check_stored(path, name, how, scheme)
        return _load(path, name, shape, how, array, vector)

    shapes = config.weight_shapes()
    for name in sorted(linears.keys() - shapes.keys()):
        raise UserError(f"{path}: linears: {name[:60]!r} is not part of this model")
    found = {name: matrix(name, shape) if len(shape) == 2 else vector(name, shape) for name, shape in shapes.items()}
    tokenizer = None
    if "tokenizer" in stored:
        raw = array("tokenizer", "U8", stored["tokenizer"].shape)
        tokenizer = Tokenizer.from_bytes(raw.tobytes(), f"{path}: tokenizer")
        if tokenizer.vocab > config.vocab:
            raise UserError(f"{path}: tokenizer has {tokenizer.vocab} tokens; allowed are up to {config.vocab}, the embedding's rows")
    for name in sorted(stored.keys() - used):
        raise UserError(f"{path}: tensor {name[:60]!r} is not part of this model")
    cos, sin = rope_tables(config)
    layer_names = config.layer_shapes()
    return Packed(made=made, model=QuantisedModel(
        config=config, scheme=scheme, tokenizer=tokenizer, embedding=found["embedding"],
        layers=tuple({name: found[f"layers.{i}.{name}"] for name in layer_names} for i in range(config.layers)),
        final_norm=found["final_norm"], lm_head=found.get("lm_head", found["embedding"]), rope_cos=cos, rope_sin=sin,
        final_norm_bias=found.get("final_norm.bias"), positions=found.get("positions"), window_rope=window_rope_tables(config),
    ))  # fmt: skip


def _tensors(model: QuantisedModel) -> dict[str, QuantisedLinear | np.ndarray]:
    """By the names of `DecoderConfig.weight_shapes`."""
    tensors = {
        "embedding": model.embedding, "positions": model.positions, "final_norm": model.final_norm, "final_norm.bias": model.final_norm_bias,
        "lm_head": model.lm_head,
    }
    for index, layer in enumerate(model.layers):
        tensors |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return {name: tensors[name] for name in model.config.weight_shapes()}


def _store(tensors: dict[str, np.ndarray], name: str, linear: QuantisedLinear) -> dict:
    codes = linear.codes if linear.kept is None else linear.codes[linear.kept]
    unsigned = codes.reshape(-1).astype(np.int16) + MAX_W8 if linear.bits == 8 else codes.reshape(-1)
    tensors[f"{name}.codes"] = _pack_bits(unsigned.astype(np.uint8), linear.bits)
    tensors[f"{name}.row_scale"] = np.ascontiguousarray(linear.row_scale, np.float32)
    if linear.bits < 8:
        tensors[f"{name}.mult"], tensors[f"{name}.off"] = np.ascontiguousarray(linear.mult), np.ascontiguousarray(linear.off)
    if linear.kept is not None:
        block_counts(linear.kept, linear.index_share)  # raises where rows break the pattern
        tensors[f"{name}.kept"] = np.packbits(linear.kept[:: linear.index_share], axis=1)
    return Stored(bits=linear.bits, group=linear.group, sparse=linear.kept is not None, index_share=linear.index_share).model_dump()


def _check_stored(path: Path, name: str, how: Stored, scheme: Scheme) -> None:
    """UserError where a matrix is stored in another way than the scheme says, which commands that read no codes go by."""
    of_layer = name.startswith("layers.")
    bits = scheme.bits_of_tensor(name) if of_layer else 8
    group = how.group if bits == 8 else scheme.group
    if (how.bits, how.group) != (bits, group):
        raise UserError(f"{path}: linears: {name}: bits = {how.bits}, group = {how.group}; allowed are the scheme's {bits} and {group}")
    if how.sparse and not (of_layer and scheme.sparsity is not None and how.index_share == scheme.sparsity.index_share):
        raise UserError(f"{path}: linears: {name}: sparse = true, index_share = {how.index_share}; the scheme's sparsity is {scheme.sparsity}")


def _load(path: Path, name: str, shape: tuple[int, int], how: Stored, array, vector) -> QuantisedLinear:
    rows, columns = shape
    kept, most = None, columns
    if how.sparse:
        if rows % how.index_share:
            raise UserError(f"{path}: linears: {name}: index_share = {how.index_share}; allowed is a divisor of its {rows} rows")
        bits = array(f"{name}.kept", "U8", (rows // how.index_share, -(-columns // 8)))
        kept = np.repeat(np.unpackbits(bits, axis=1, count=columns).astype(bool), how.index_share, axis=0)
        try:
            counts = block_counts(kept, how.index_share)
        except ValueError as error:
            raise UserError(f"{path}: tensor {name}.kept: {error}") from None
        if columns % BLOCK or not np.isin(counts, KEPT_COUNTS).all():
            raise UserError(f"{path}: tensor {name}.kept: allowed are {', '.join(map(str, KEPT_COUNTS))} columns of every {BLOCK}")
        most = int(kept.sum(axis=1).max())
    count = rows * columns if kept is None else int(kept.sum())
    unsigned = _unpack_bits(array(f"{name}.codes", "U8", (-(-count * how.bits // 8),)), how.bits, count)
    row_scale = vector(f"{name}.row_scale", (rows,))
    if (row_scale < 0).any():
        raise UserError(f"{path}: tensor {name}.row_scale holds a negative number; allowed are 0 and more")
    if how.bits == 8:
        if unsigned.size and unsigned.max() > 2 * MAX_W8:
            raise UserError(f"{path}: tensor {name}.codes holds 255; allowed are 0 to 254")
        values = (unsigned.astype(np.int16) - MAX_W8).astype(np.int8)
        mult, off, shift = np.zeros((rows, 0), np.uint8), np.zeros((rows, 0), np.int16), 0
    else:
        values, shift = unsigned, GROUP_SHIFT[how.bits]
        groups = int(stored_groups(kept, how.group).max()) + 1 if kept is not None else -(-most // how.group)
        mult, off = array(f"{name}.mult", "U8", (rows, groups)), array(f"{name}.off", "I16", (rows, groups))
        if off.size and (off.min() < -2048 or off.max() > 2047):
            raise UserError(f"{path}: tensor {name}.off holds {off.min()} to {off.max()}; allowed are -2048 to 2047")
    codes = values.reshape(shape) if kept is None else np.zeros(shape, values.dtype)
    if kept is not None:
        codes[kept] = values
    return QuantisedLinear(
        codes=codes, mult=mult, off=off, shift=shift, bits=how.bits, row_scale=row_scale, group=how.group, kept=kept, index_share=how.index_share,
    )


def _array(tensor: StoredTensor) -> np.ndarray:
    return np.frombuffer(tensor.data, DTYPES[tensor.dtype], count=int(np.prod(tensor.shape)), offset=tensor.start).reshape(tensor.shape).copy()


def _pack_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [n] of `bits` bits each to uint8 [ceil(n * bits / 8)], least significant bit first."""
    if bits == 8:
        return np.ascontiguousarray(values)
    planes = np.unpackbits(values[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(planes.reshape(-1), bitorder="little")


def _unpack_bits(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The reverse of `_pack_bits`: uint8 [count]."""
    if bits == 8:
        return packed
    planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(planes, axis=1, bitorder="little").reshape(-1)
