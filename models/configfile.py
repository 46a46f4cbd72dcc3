"""Finding, reading, overriding and checking configuration files.

A configuration is a YAML mapping below ``configs/KIND/NAME.yaml`` or at a path of the user's. It is read with
``yaml.safe_load`` after four checks that YAML itself does not make (size, aliases, repeated keys, and values that
YAML 1.1 reads as something else than they look like), then validated by a frozen pydantic model that refuses unknown fields. Every failure is a `UserError` of one line.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.models.errors import UserError

KINDS = ("machines", "boards", "memories", "gpus", "models", "schemes", "energy", "sweeps", "published")
MAX_BYTES = 1 << 20
MAX_DEPTH = 24

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
# YAML 1.1 reads 300e6 as a string: it wants a dot and a sign. Overrides accept what people type.
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
# What the YAML reader lets through for a value that its tag does not fit: a date of month 13, `!!bool x`, `!!int ""`, `!!timestamp x`.
_CONSTRUCTOR_ERRORS = (ValueError, KeyError, IndexError, AttributeError, TypeError)


class StrictModel(BaseModel):
    """Base of every configuration model: frozen, no unknown fields, no coercion of types, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def configs_root() -> Path:
    """Folder of the shipped configuration files."""
    import headrace.configs

    return Path(headrace.configs.__file__).parent


def list_configs(kind: str) -> list[str]:
    """Names of the shipped configurations of one kind, sorted."""
    _check_kind(kind)
    return sorted(path.stem for path in (configs_root() / kind).glob("*.yaml"))


def find_config(kind: str, name_or_path: str | Path) -> Path:
    """Path of a configuration: a shipped name (case does not matter) or the path of a file.

    Something with a folder separator or a ``.yaml``/``.yml`` ending is a path; anything else is a name, which
    never reaches outside ``configs/KIND``. Raises `UserError` that lists the names when there is no such file.
    """
    _check_kind(kind)
    text = str(name_or_path)
    if "/" in text or "\\" in text or text.lower().endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise UserError(f"{kind}: {text!r} is not a file")
        return path
    names = list_configs(kind)
    if _NAME.fullmatch(text):
        for name in names:
            if name.lower() == text.lower():
                return configs_root() / kind / f"{name}.yaml"
    raise UserError(f"{kind}: {text!r} is not known; allowed: {', '.join(names) or 'none'}, or the path of a .yaml file")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in one YAML file. Refuses more than `MAX_BYTES`, aliases, deep nesting and repeated keys."""
    path = Path(path)
    source = display_path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"{source}: is larger than the {MAX_BYTES} bytes allowed for a configuration file")
    return deepcopy(_mapping(raw, source))


@lru_cache(maxsize=64)
def _mapping(raw: bytes, source: str) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: is not UTF-8 text (byte {error.start})") from None
    try:
        _check_events(text, source)
        _check_nodes(yaml.compose(text, Loader=yaml.SafeLoader), source, "")
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}: is not valid YAML{where}: {getattr(error, 'problem', None) or error}") from None
    except _CONSTRUCTOR_ERRORS as error:
        reason = str(error) if isinstance(error, ValueError) else "it does not fit its YAML tag"
        raise UserError(f"{source}: holds a value that cannot be read: {reason}") from None
    if not isinstance(document, dict):
        raise UserError(f"{source}: holds {type(document).__name__}, but a mapping of fields is needed")
    return document


def _check_events(text: str, source: str) -> None:
    """Refuse aliases (a small file may unfold to gigabytes) and nesting that would exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UserError(f"{source}: line {event.start_mark.line + 1}: YAML anchors and aliases are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise UserError(f"{source}: line {event.start_mark.line + 1}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_nodes(node: yaml.Node | None, source: str, where: str) -> None:
    """Refuse a key that is given twice (YAML would silently keep the last) and scalars that YAML 1.1 takes for something unexpected."""
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, source, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check_nodes(item, source, f"{where}[{index}]")
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{source}: line {line}: a key must be a plain name")
            path = f"{where}.{key.value}" if where else key.value
            if key.value in seen:
                raise UserError(f"{source}: line {line}: field '{path}' is given twice")
            seen.add(key.value)
            _check_scalar(key, source, path)
            _check_nodes(value, source, path)


def _check_scalar(node: yaml.ScalarNode, source: str, where: str) -> None:
    """YAML 1.1: 3:45 is 225 (base 60), 010 is 8 (base 8), `on` is true, and `<<` merges one mapping into another."""
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), node.value
    if kind in ("int", "float") and ":" in text:
        surprise = "a number of base 60; write a plain number, or text in quotes"
    elif kind == "int" and _OCTAL.fullmatch(text):
        surprise = "a number of base 8; write it without the leading 0, or in quotes if it is text"
    elif kind == "bool" and text.lower() in ("yes", "no", "on", "off"):
        surprise = "true or false; write true, false, or text in quotes"
    elif kind == "merge":
        surprise = "a merge of mappings; write the fields themselves"
    else:
        return
    field = f"field '{where}': " if where else ""
    raise UserError(f"{source}: line {node.start_mark.line + 1}: {field}{text} means to YAML {surprise}")


def parse_override(override: str) -> tuple[str, Any]:
    """Split ``path=value``; the value is read as YAML (numbers, true/false, null, lists), else it is text."""
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        raise UserError(f"--set {override!r}: must read path=value, for example memory.ports=8")
    text = text.strip()
    if len(text) > 4096:
        raise UserError(f"--set {path}: the value is longer than the 4096 characters allowed")
    if _EXPONENT.fullmatch(text):
        return path, float(text)
    try:
        _check_events(text, f"--set {path}")
        _check_nodes(yaml.compose(text, Loader=yaml.SafeLoader), f"--set {path}", "")
        return path, yaml.safe_load(text)
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS):
        raise UserError(f"--set {path}: the value {text!r} is not valid YAML") from None


def apply_overrides(document: Mapping[str, Any], overrides: Iterable[str], *, source: str = "--set") -> dict[str, Any]:
    """A copy of `document` with each ``a.b=value`` applied in order. A path that does not exist is refused.

    A list element is named by its index (``chains.0.length=8``). A mapping is replaced by a mapping only.
    """
    result = _copy(dict(document))
    for override in overrides:
        path, value = parse_override(override)
        steps = path.split(".")
        parent: Any = result
        for depth, step in enumerate(steps):
            here = ".".join(steps[:depth]) or "the top level"
            if isinstance(parent, dict) and step in parent:
                key: Any = step
            elif isinstance(parent, list) and step.isdecimal() and int(step) < len(parent):
                key = int(step)
            else:
                if isinstance(parent, dict):
                    allowed = "allowed: " + ", ".join(str(name) for name in parent)
                elif isinstance(parent, list):
                    allowed = f"allowed: an index below {len(parent)}"
                else:
                    allowed = f"{here} is a single value"
                raise UserError(f"{source}: unknown path {path!r}: no field {step!r} at {here}; {allowed}")
            if depth + 1 < len(steps):
                parent = parent[key]
            elif isinstance(parent[key], dict) and not isinstance(value, dict):
                fields = ", ".join(str(name) for name in parent[key])
                raise UserError(f"{source}: path {path!r} is a group of fields, not a value; set one of its fields: {fields}")
            else:
                parent[key] = value
    return result


def split_overrides(overrides: Iterable[str]) -> dict[str, list[str]]:
    """Sort overrides by what they address: ``{"machine": [...], "board": [...], "scheme": [...]}``.

    ``board.dsp=1`` and ``scheme.kv_bits=8`` address the board and the scheme; ``machine.`` may be written or left
    out. ``board=NAME`` and ``scheme=NAME`` are fields of the machine.
    """
    sorted_overrides: dict[str, list[str]] = {"machine": [], "board": [], "scheme": []}
    for override in overrides:
        path, _ = parse_override(override)
        head, dot, _ = path.partition(".")
        if dot and head in sorted_overrides:
            sorted_overrides[head].append(override.strip()[len(head) + 1 :])
        else:
            sorted_overrides["machine"].append(override)
    return sorted_overrides


def validate(model: type[Model], document: Mapping[str, Any], *, source: str) -> Model:
    """Build `model` from a mapping; a failure is a `UserError` naming source, field, value and what is allowed."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise UserError(describe_validation_error(model, error, source)) from None


def load_model(model: type[Model], kind: str, name_or_path: str | Path, overrides: Iterable[str] = ()) -> Model:
    """Read, validate, override and validate again. Fields left at their defaults can be overridden too."""
    path = find_config(kind, name_or_path)
    source = display_path(path)
    checked = validate(model, read_yaml(path), source=source)
    overrides = list(overrides)
    if not overrides:
        return checked
    document = apply_overrides(checked.model_dump(), overrides, source=f"{source} --set")
    return validate(model, document, source=f"{source} with --set {' '.join(overrides)}")


def describe_validation_error(model: type[BaseModel], error: ValidationError, source: str) -> str:
    """One line for the first problem, and how many more there are."""
    problems = error.errors(include_url=False)
    first = problems[0]
    field = ".".join(str(step) for step in first["loc"])
    value = repr(first["input"])
    value = value if len(value) <= 60 else value[:57] + "..."
    match first["type"]:
        case "extra_forbidden":
            known = _known_fields(model, first["loc"][:-1])
            text = f"{source}: field '{field}' = {value} is unknown; allowed: {', '.join(known)}"
        case "missing":
            text = f"{source}: field '{field}' is missing"
        case "value_error":  # our own validators: a whole sentence, which for a cross-field rule names its fields
            sentence = str(first["ctx"]["error"])
            text = f"{source}: {sentence}" if isinstance(first["input"], dict) else f"{source}: field '{field}' = {value}: {sentence}"
        case _:
            text = f"{source}: field '{field}' = {value}: {first['msg'][0].lower()}{first['msg'][1:]}"
    if len(problems) > 1:
        text += f" (and {len(problems) - 1} more)"
    return text


def _known_fields(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Field names of the sub-model at `location`; empty when the annotation cannot be followed."""
    current: Any = model
    for step in location:
        if isinstance(step, str) and isinstance(current, type) and issubclass(current, BaseModel):
            if step not in current.model_fields:
                return []
            current = _model_in(current.model_fields[step].annotation)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The pydantic model inside ``Model``, ``Model | None``, ``tuple[Model, ...]`` or ``dict[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_in, get_args(annotation)) if found), None)


def config_sha256(config: Any) -> str:
    """SHA-256 of a configuration (pydantic model, or plain data) in canonical JSON, as hexadecimal."""
    text = json.dumps(plain_data(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def plain_data(value: Any) -> Any:
    """`value` as dicts, lists and scalars: pydantic models are dumped, tuples become lists, paths text."""
    if isinstance(value, BaseModel):
        return plain_data(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy scalar or array
        return plain_data(value.tolist())
    return value


def display_path(path: Path) -> str:
    """How messages name a file: ``configs/...`` for a shipped one, else as given."""
    try:
        return str(Path("configs") / path.resolve().relative_to(configs_root().resolve()))
    except ValueError:
        return str(path)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(item) for item in value]
    return value


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown kind of configuration {kind!r}; known: {', '.join(KINDS)}")
