"""The tokens that compression is calibrated on: of text files, or of texts that the model writes itself."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from headrace.models.errors import UserError
from headrace.models.model import Model
from headrace.models.registry import cache_folder
from headrace.sim.float_model import FloatExecutor
from headrace.sim.self_text import write_texts

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
    path = cache_folder() / "calibration" / f"{_identity(model, count, length, seed)}.npy"
    if path.is_file():
        try:
            kept = np.load(path, allow_pickle=False)
            if kept.shape == (count, length) and kept.dtype == np.int64 and 0 <= kept.min() and kept.max() < model.config.vocab:
                advance(length - 1)
                return kept
        except (OSError, ValueError):
            pass  # not what was written: written anew
    tokens = write_texts(FloatExecutor.from_model(model), count, length, seed, advance)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            np.save(file, tokens, allow_pickle=False)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return tokens


def _identity(model: Model, count: int, length: int, seed: int) -> str:
    """SHA-256 over sizes, the weights of one layer and the request."""
    digest = hashlib.sha256(json.dumps([model.config.to_dict(), count, length, seed], default=list).encode())
    for name in model.config.weight_shapes():
        if name.startswith("layers.0."):
            digest.update(model.weights[name].tobytes())
    return digest.hexdigest()[:32]
