"""`headrace rtl`: the folder runs by itself under Verilator, and its testbench can fail."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from models_for_tests import random_model

from headrace.cli import main
from headrace.hw.machine import load_machine
from headrace.hw.sim_top import sim_sources
from headrace.hw.top import top_sources
from headrace.models.errors import UserError
from headrace.sim.cosim import memory_words_for
from headrace.sim.rtl_package import SIMULATION_ONLY, check_target, machine_files, package_files, write_folder
from headrace.sim.verilate import verilator_root

NANO = load_machine("nano")
PROMPT, OUTPUTS = [1, 2, 3], 2


@pytest.fixture(scope="module")
def files():
    return package_files(NANO, random_model(3, tie_embeddings=False), PROMPT, OUTPUTS)


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory):
    target = tmp_path_factory.mktemp("rtl") / "nano"
    write_folder(target, files)
    return target


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """run.sh with nothing of this package in reach: neither on the path, nor in the environment."""
    environment = {
        "PATH": os.defpath, "HOME": str(folder), "OPT": "-O1", "VERILATOR_ROOT": str(verilator_root()),
        "VERILATOR": str(verilator_root() / "bin" / "verilator"),
    }  # fmt: skip
    return subprocess.run(
        ["sh", str(folder / "run.sh"), *arguments], cwd=folder.parent, env=environment, capture_output=True, text=True
    )


def flipped(source: Path, target: Path, offset: int, mask: int) -> Path:
    raw = bytearray(source.read_bytes())
    raw[offset] ^= mask
    target.write_bytes(raw)
    return target


@pytest.mark.cosim
def test_it_runs_by_itself_and_its_checks_can_fail(folder, tmp_path):
    passed = run(folder)
    print(passed.stdout, passed.stderr)
    assert passed.returncode == 0
    assert passed.stdout.startswith("PASS: 2 tokens and 1024 logits equal")
    assert run(folder, "+poison=77").returncode == 0

    # An expected logit, one hexadecimal digit of it.
    text = (folder / "expected_logits.hex").read_text().splitlines()
    text[700] = f"{int(text[700], 16) ^ 1:08x}"
    (tmp_path / "logits.hex").write_text("\n".join(text) + "\n")
    failed = run(folder, f"+logits={tmp_path / 'logits.hex'}")
    assert failed.returncode != 0
    assert "FAIL: 1 of 1026 values differ" in failed.stdout and "PASS" not in failed.stdout
    assert "logit[1][188]" in failed.stdout

    # An expected token.
    tokens = flipped(folder / "expected_tokens.hex", tmp_path / "tokens.hex", 7, 1)
    failed = run(folder, f"+tokens={tokens}")
    assert failed.returncode != 0 and "FAIL: 1 of 1026 values differ" in failed.stdout

    # A byte of the image: the sign of a weight of the last norm.
    manifest = json.loads((folder / "image.json").read_text())
    at = manifest["sections"]["final_norm"]["base"] * manifest["word_bytes"] + 3
    failed = run(folder, f"+image={flipped(folder / 'image.bin', tmp_path / 'image.bin', at, 0x80)}")
    assert failed.returncode != 0 and "values differ" in failed.stdout and "PASS" not in failed.stdout

    # A machine that never halts in time.
    failed = run(folder, "+limit=1000")
    assert failed.returncode != 0 and "has not halted after 1000 cycles" in failed.stdout


@pytest.mark.cosim
@pytest.mark.nightly
def test_a_machine_on_dram_channels_runs_by_itself(tmp_path):
    machine = load_machine("nano", ["memory.dram=u280-hbm2"])
    files = package_files(machine, random_model(3, tie_embeddings=False), PROMPT, OUTPUTS)
    assert not set(top_sources(machine, simulation=False)) & set(SIMULATION_ONLY)
    write_folder(tmp_path / "nano", files)
    passed = run(tmp_path / "nano")
    assert passed.returncode == 0 and passed.stdout.startswith("PASS: 2 tokens and 1024 logits equal"), passed.stdout + passed.stderr


@pytest.mark.cosim
def test_same_input_gives_the_same_bytes(files):
    again = package_files(NANO, random_model(3, tie_embeddings=False), PROMPT, OUTPUTS)
    assert again == files


@pytest.mark.cosim
def test_its_verilog_is_that_of_synthesis_and_of_cosimulation(files):
    core = top_sources(NANO, simulation=False)
    assert {name: files[name].decode() for name in core} == core
    assert not set(core) & set(SIMULATION_ONLY)
    words = memory_words_for(json.loads(files["image.json"])["total_words"], NANO.word_bytes)
    for name, text in sim_sources(NANO, memory_words=words).items():
        assert files[f"sim/{name}" if name in SIMULATION_ONLY else name].decode() == text
    alone = machine_files(NANO)
    assert {name: content for name, content in alone.items() if name != "README.txt"} == {
        name: files[name] for name in alone if name != "README.txt"
    }
    assert not any(b"/home" in content or b"headrace/hw" in content for content in files.values())


def test_a_folder_with_content_is_refused(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    write_folder(target, {"machine.json": b"{}", "sim/a.v": b"1"})
    with pytest.raises(UserError, match="is not empty"):
        write_folder(target, {"machine.json": b"2"})
    assert (target / "sim" / "a.v").read_bytes() == b"1"
    write_folder(target, {"machine.json": b"2"}, force=True)
    assert [path.name for path in target.iterdir()] == ["machine.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (target / "machine.json").rename(target / "thesis.tex")
    with pytest.raises(UserError, match="only a folder that this command wrote"):
        check_target(target, force=True)
    with pytest.raises(UserError, match="is a file"):
        check_target(target / "thesis.tex", force=True)


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError):
        write_folder(tmp_path / "out", {"machine.json": b"{}"})
    assert list(tmp_path.iterdir()) == []


def test_mistakes_end_with_one_line(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    shutil.copy(__file__, tmp_path / "full")
    for arguments, words in (
        (["nano", "-o", str(tmp_path / "full")], "is not empty"),
        (["nano", "-o", str(tmp_path / "new"), "--tokens", "0"], "--tokens 0: allowed is 1 or more"),
        (["nano", "-o", str(tmp_path / "new"), "--no-testbench", "--set", "board.price_usd=1"], "allowed are machine fields"),
        (["pico", "-o", str(tmp_path / "new")], "pico"),
    ):
        assert main(["rtl", *arguments]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and words in lines[0], lines
    assert not (tmp_path / "new").exists()
