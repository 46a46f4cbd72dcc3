"""The command line as a user meets it: exit status, one line on stderr, JSON alone on stdout, light imports."""

import json
import math
import subprocess
import sys

import click
import numpy
import pytest

import headrace
from headrace import cli, output
from headrace.hw.machine import load_machine
from headrace.models.configfile import config_sha256
from headrace.models.errors import ToolError, UserError

HEAVY = ("amaranth", "torch", "triton", "numba", "matplotlib", "scipy", "cocotb", "pyosys", "gguf", "tokenizers")


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "no command 'nosuch'; allowed: "),
        (["--nosuch"], "--nosuch"),
        (["machines", "nosuch"], "nosuch"),
        (["machines", "show"], "NAME_OR_PATH"),
        (["machines", "show", "nosuch"], "'nosuch' is not known; allowed: micro, milli, nano"),
        (["machines", "show", "./nosuch.yaml"], "'./nosuch.yaml' is not a file"),
        (["machines", "show", "nano", "--set", "memory.port=3"], "unknown path 'memory.port'"),
        (["machines", "show", "nano", "--set", "memory.ports"], "must read path=value"),
        (["machines", "show", "nano", "--set", "scheme.x=1"], "uses no scheme"),
        (["machines", "show", "nano", "--set", "board=nosuch"], "boards: 'nosuch' is not known"),
        (["machines", "show", "nano", "--seed", "-1"], "--seed"),
        (["machines", "check", "nano", "--set", "board.dsp=80"], "machine nano: dsp = 87 does not fit board u280; allowed: at most 76"),
        (["machines", "check", "nano", "--set", "board.dsp=10"], "array_dsp = 64 does not fit board u280; allowed: at most 6"),
    ],
)
def test_mistake_is_one_line_and_status_2(capsys, arguments, words):
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("headrace: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_no_arguments_is_help_and_status_2(capsys):
    status, _, err = run(capsys)
    assert status == 2
    assert "machines" in err


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"headrace, version {headrace.__version__}\n", "")


def test_file_error_of_the_system_is_one_line(capsys, monkeypatch):
    @click.command()
    def broken():
        open("/nonexistent/file")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)
    status, _, err = run(capsys, "machines")
    assert (status, err) == (2, "headrace: error: /nonexistent/file: No such file or directory\n")


def test_fault_of_the_program_keeps_its_traceback(monkeypatch):
    @click.command()
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["machines"])


def test_user_error_from_a_command(capsys, monkeypatch):
    @click.command()
    def broken():
        raise UserError("file: field\nvalue")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)
    assert run(capsys, "machines") == (2, "", "headrace: error: file: field value\n")


def test_a_failed_tool_is_one_line_without_its_log(capsys, monkeypatch):
    @click.command()
    def broken():
        raise ToolError("compiling 'top' failed with status 2; the whole log is /logs/top.log", "line 1\nline 2")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)
    assert run(capsys, "machines") == (2, "", "headrace: error: compiling 'top' failed with status 2; the whole log is /logs/top.log\n")


def test_yosys_that_fails_is_named_with_its_last_words():
    from headrace.hw import yosys

    with pytest.raises(ToolError) as caught:
        yosys.run(["no_such_pass"], {})
    assert "\n" not in caught.value.message and "no_such_pass" in caught.value.message


@pytest.mark.parametrize("command", [["list"], ["show", "nano"], ["check", "micro"]])
def test_machines_json_is_one_stamped_document(capsys, command):
    status, out, err = run(capsys, "machines", *command, "--json", "--seed", "7")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert set(document["stamp"]) == {"headrace", "config_sha256", "seed"}
    assert document["stamp"]["seed"] == 7
    assert len(document["stamp"]["config_sha256"]) == 64


@pytest.mark.parametrize("command", [[], ["list"], ["show", "nano"], ["check", "micro"]])
def test_machines_tables(capsys, command):
    status, out, err = run(capsys, "machines", *command)
    assert (status, err) == (0, "")
    assert "nano" in out or "micro" in out


def test_override_reaches_the_answer_and_the_stamp(capsys):
    plain = json.loads(run(capsys, "machines", "show", "nano", "--json")[1])
    wide = ("--set", "memory.ports=4", "--set", "array.macs_per_cycle=256")
    changed = json.loads(run(capsys, "machines", "show", "nano", "--json", "--set", "board.idle_w=30", *wide)[1])
    assert changed["derived"]["word_bytes"] == 2 * plain["derived"]["word_bytes"]
    assert changed["board"]["idle_w"] == 30
    assert changed["stamp"]["config_sha256"] != plain["stamp"]["config_sha256"]


def test_show_says_which_board_fields_enter_results(capsys):
    _, out, _ = run(capsys, "machines", "show", "nano")
    lines = [line.split() for line in out.splitlines()]
    assert ["price_usd", "7500", "description", "only"] in lines and ["tdp_w", "225", "read", "by", "estimates"] in lines


def test_misfit_still_prints_its_json(capsys):
    status, out, _ = run(capsys, "machines", "check", "nano", "--json", "--set", "board.dsp=10")
    assert status == 2
    assert json.loads(out)["fits"] is False


def test_stamp_is_the_hash_of_the_configuration():
    machine = load_machine("nano")
    document = output.stamped({"x": numpy.float32(0.5), "n": numpy.arange(2)}, machine, 3)
    assert document == {
        "x": 0.5,
        "n": [0, 1],
        "stamp": {"headrace": headrace.__version__, "config_sha256": config_sha256(machine), "seed": 3},
    }
    with pytest.raises(ValueError, match="already has a stamp"):
        output.stamped(document, machine)


@pytest.mark.parametrize("bad", [math.nan, math.inf, numpy.float32("nan")])
def test_json_refuses_what_is_not_a_number(bad):
    with pytest.raises(ValueError, match=r"result decode.rates\[1\] is"):
        output.emit_json({"decode": {"rates": [1.0, bad]}}, {})


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (True, "yes"), (12345, "12,345"), (877, "877"), (1.5e10, "15,000,000,000"), (0.123456, "0.12346")]
)
def test_table_cells(value, text):
    assert output.format_value(value) == text


def test_progress_off_a_terminal_is_one_line(capsys):
    with output.progress("building", 3) as advance:
        advance()
    assert capsys.readouterr() == ("", "headrace: building\n")


@pytest.mark.parametrize("arguments", [["--help"], ["machines", "list"]])
def test_imports_stay_light(arguments):
    """`--help` imports every command file, so this holds them all to importing heavy libraries late."""
    script = (
        "import sys\nfrom headrace.cli import main\n"
        f"main({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"
    assert "machines" in result.stdout or "nano" in result.stdout


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "headrace", "machines", "list", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("headrace: error: output cannot be written") and done.stderr.count("\n") == 1
