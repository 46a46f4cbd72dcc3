"""Imports between packages point one way (README, Layout)."""

import ast
import tomllib
from pathlib import Path

import pytest

import headrace

ORDER = ["kernels.contract", "models", "hw", "mapping", "sim", "reports", "headrace"]
"""Lowest first; a package imports itself and lower ones. Kernel generators (`kernels` beside the contract) import models and contract."""

ROOT = Path(headrace.__file__).parents[1]
FOLDERS = {"kernels.contract": "kernels/contract", "models": "models", "hw": "hw", "mapping": "mapping", "sim": "sim", "reports": "reports"}


def package_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "headrace" or parts[1:2] == ["configs"]:  # configs: data
        return None
    for name in ORDER[:-1]:
        if parts[1 : 1 + len(name.split("."))] == name.split("."):
            return name
    return "kernels" if parts[1:2] == ["kernels"] else "headrace"


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_package_imports_lower_ones_only(name):
    allowed = set(ORDER[: ORDER.index(name) + 1])
    files = sorted((ROOT / FOLDERS[name]).rglob("*.py"))
    assert files
    for path in files:
        for module in imports(path):
            package = package_of(module)
            if package == "kernels" and module == "headrace.kernels":
                continue  # `from headrace.kernels import contract`: the names after it are looked at too
            if package == "headrace" and module == "headrace":
                continue  # the version
            assert package is None or package in allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_every_package_is_installed():
    """An editable install finds those that pyproject.toml forgot; a wheel does not."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = ("headrace", "configs", "hw", "kernels", "mapping", "models", "reports", "sim")
    found = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for top in tops for path in (ROOT / top).rglob("__init__.py")}
    assert {name if name.startswith("headrace") else f"headrace.{name}" for name in found} == set(listed)


def test_kernels_import_models_and_contract_only():
    for path in sorted((ROOT / "kernels").glob("*.py")):
        for module in imports(path):
            assert package_of(module) in (None, "kernels", "kernels.contract", "models"), f"{path.name} imports {module}"


def test_the_contract_imports_numpy_alone():
    for path in sorted((ROOT / "kernels" / "contract").glob("*.py")):
        for module in imports(path):
            assert module.split(".")[0] in ("numpy", "headrace", "enum", "dataclasses", "collections", "contextlib", "typing"), (path.name, module)
