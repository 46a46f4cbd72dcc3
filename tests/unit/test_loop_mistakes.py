"""Mistakes in `cosim`, `demo`, `rtl` and `generate --backend rtl` end before anything long begins."""

import pytest

from headrace import cli
from headrace.models.errors import UserError
from headrace.sim import cosim_run, loop_session
from headrace.sim.cosim import CosimError
from headrace.sim.loop_session import LoopSession, WaveWindow


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a build began before the mistake was named")

    monkeypatch.setattr(cosim_run, "build", forbidden)
    monkeypatch.setattr("headrace.sim.rtl_package.machine_files", forbidden)


def mistake(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "" and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--waves", "x.txt", ".vcd or .fst"),
        ("--waves", "nowhere/x.vcd", "folder nowhere does not exist"),
        ("--waves-from", "5", "without --waves FILE"),
        ("--waves-cycles", "5", "without --waves FILE"),
        ("--waves-cycles", "0", "--waves-cycles"),
        ("--prefill", "512", "allowed are 1 to 1"),
        ("--prefill", "100000", "max_positions = 512"),
        ("--set", "scheme.weight_bits=2", "2 bits for q"),
        ("--set", "scheme.linear_bits={down: 6}", "6 bits for down"),
    ],
)
def test_cosim(capsys, option, value, words):
    assert words in mistake(capsys, "cosim", "embedded", "nano", option, value)


@pytest.mark.parametrize(("report", "words"), [("", "not the name of a file"), ("nowhere/x.html", "folder nowhere does not exist")])
def test_demo(capsys, report, words):
    assert words in mistake(capsys, "demo", "-o", report)


@pytest.mark.parametrize("option", [("--model", "embedded"), ("--prompt", "x"), ("--tokens", "4"), ("--scheme", "w8a8kv8")])
def test_rtl_without_a_testbench_takes_none_of_its_options(capsys, tmp_path, option):
    assert "--no-testbench" in mistake(capsys, "rtl", "nano", "-o", str(tmp_path / "out"), "--no-testbench", *option)
    assert not (tmp_path / "out").exists()


def test_rtl_below_a_file(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "nothing can be written" in mistake(capsys, "rtl", "nano", "-o", str(tmp_path / "file" / "out"), "--no-testbench")


def test_a_machine_that_stops_is_named(monkeypatch):
    def stops(*args, **kwargs):
        raise CosimError(5, 2, 77)

    monkeypatch.setattr(loop_session, "prove", stops)
    monkeypatch.setattr(loop_session, "run_rtl", stops)
    session = LoopSession.open("embedded", "nano", None)
    ids = session.encode("the", 2)
    for run in (lambda: session.run("the", ids, 2), lambda: session.generate(ids, 2)):
        with pytest.raises(UserError, match="machine nano, model embedded: the machine stopped: .* instruction 77"):
            run()


def test_a_window_of_waves_is_cut_at_the_runs_end(tmp_path):
    window = WaveWindow(file=tmp_path / "x.vcd", first=1000, cycles=50)
    assert (window.waves().begin, window.waves().end) == (2_000_000, 2_099_999)
    assert [window.document(ran)["cycles"] for ran in (2000, 1050, 1020, 400)] == [50, 50, 20, 0]
