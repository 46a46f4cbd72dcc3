"""The tokens that compression is calibrated on: of text files, or of texts that the model writes itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headrace.mapping.sweep import write_atomically
from headrace.models.errors import UserError
from headrace.models.model import Model
from headrace.models.registry import cache_folder
from headrace.sim.float_model import FloatExecutor
from headrace.sim.self_text import write_texts

STORED = np.dtype("<i8")
Advance = Callable[[int], None]


def windows(model: Model, texts: Sequence[str], length: int, count: int) -> np.ndarray:
    """int64 [n <= count, length]: the texts' tokens one after another, cut into windows. UserError where they do not fill one."""
    tokens = np.concatenate([np.asarray(model.tokenizer.encode(text), np.int64) for text in texts])
    found = min(len(tokens) // length, count)
    if found == 0:
        raise UserError(f"--calibrate: the texts have {len(tokens)} tokens; allowed is at least one window of {length}")
    return tokens[: found * length].reshape(found, length)


def own_texts(model: Model, count: int, length: int, seed: int, advance: Advance = lambda steps: None) -> np.ndarray:
    """int64 [count, length] tokens that the model writes, kept in the cache folder by model, size and seed."""
    path = cache_folder() / "calibration" / f"{_identity(model, count, length, seed)}.tokens"
    kept = _kept(path, count, length, model.config.vocab)
    if kept is not None:
        advance(length - 1)
        return kept
    tokens = write_texts(FloatExecutor.from_model(model), count, length, seed, advance)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, tokens.astype(STORED).tobytes())
    except OSError:
        pass  # a cache that cannot be written costs the time of writing the texts again, no more
    return tokens


def _kept(path: Path, count: int, length: int, vocab: int) -> np.ndarray | None:
    """The tokens that a file of the cache holds; None where it is not there, or not what was written."""
    try:
        if path.stat().st_size != count * length * STORED.itemsize:
            return None
        tokens = np.frombuffer(path.read_bytes(), STORED).astype(np.int64).reshape(count, length)
    except (OSError, ValueError):  # ValueError: it shrank meanwhile
        return None
    return tokens if 0 <= tokens.min() and tokens.max() < vocab else None


def weights_sha256(model: Model) -> str:
    """Over all weights of a model; it reads each once."""
    digest = hashlib.sha256()
    for name in model.config.weight_shapes():
        digest.update(np.ascontiguousarray(model.weights[name]))
    return digest.hexdigest()


def _identity(model: Model, count: int, length: int, seed: int) -> str:
    """SHA-256 over sizes, weights and the request."""
    return hashlib.sha256(json.dumps([model.config.to_dict(), weights_sha256(model), count, length, seed]).encode()).hexdigest()[:32]
