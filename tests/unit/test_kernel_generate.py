"""`headrace kernels generate` without torch: the module's text, its determinism and its refusals."""

import ast
import json

import pytest

from headrace import cli
from headrace.kernels.generate import CONSTANTS, KERNEL_FILE, kernel_functions, linear_shapes
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme


def run(capsys, *arguments):
    status = cli.main(["kernels", "generate", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_writes_a_module_of_the_models_shapes(capsys, tmp_path):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    status, out, err = run(capsys, "llama2-7b", "-o", first, "--json")
    assert (status, err) == (0, "")
    down = json.loads(out)["linears"][6]
    assert down == {"name": "down", "outputs": 4096, "inputs": 11008, "bits": 4, "block_n": 64, "block_bytes": 128}
    text = first.read_text()
    assert "'lm_head': Linear(outputs=32000, inputs=4096, bits=8, row_bytes=4096, groups=0, block_n=64, block_bytes=128)," in text
    assert "headrace" not in [alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names]
    run(capsys, "llama2-7b", "-o", second)
    run(capsys, "llama2-7b", "-o", second)  # its own file is replaced
    assert second.read_bytes() == first.read_bytes()
    assert "@" not in text.replace("@triton.jit", "").replace("@dataclass", "")


def test_names_of_the_kernel_are_all_defined():
    defined = {node.name for node in ast.parse(kernel_functions()).body}
    used = {node.id for node in ast.walk(ast.parse(kernel_functions())) if isinstance(node, ast.Name) and node.id.startswith("_")}
    assert used <= defined | set(CONSTANTS)
    stated = {node.targets[0].id for node in ast.parse(KERNEL_FILE.read_text()).body if isinstance(node, ast.Assign) and node.targets[0].id.startswith("_")}
    assert stated == set(CONSTANTS)


def test_a_row_is_whole_blocks():
    for model in ("embedded", "smollm2-135m", "llama3-8b"):
        for shape in linear_shapes(model_config(model), load_scheme("w4a8kv8")):
            assert shape.row_bytes % shape.block_bytes == 0 and shape.block_n & (shape.block_n - 1) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["embedded", "-o", "{}/x.txt"], "allowed is the name of a .py file"),
        (["embedded", "-o", "{}/nowhere/x.py"], "does not exist"),
        (["embedded", "-o", "{}/mine.py"], "exists and was not written by this command"),
        (["embedded", "-o", "{}/x.py", "--block-n", "48"], "--block-n 48: allowed is a power of two from 16 to 1024"),
        (["embedded", "-o", "{}/x.py", "--block-bytes", "16"], "--block-bytes 16: allowed is a power of two from 32 to 1024"),
        (["embedded", "-o", "{}/x.py", "--set", "scheme.weight_bits=3"], "3 bits for q have no kernel; allowed are 4, 8"),
        (["embedded", "-o", "{}/x.py", "--set", "memory.ports=3"], "kernels read nothing of it"),
        (["nosuch", "-o", "{}/x.py"], "'nosuch' is not known"),
    ],
)
def test_mistakes(capsys, tmp_path, arguments, words):
    (tmp_path / "mine.py").write_text("print()\n")
    status, out, err = run(capsys, *(argument.format(tmp_path) for argument in arguments))
    assert (status, out, err.count("\n")) == (2, "", 1) and words in err
    assert not (tmp_path / "x.py").exists()
