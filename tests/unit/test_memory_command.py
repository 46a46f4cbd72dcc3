"""`headrace hbm`, presets and trace files: what a user sees, and what is refused."""

import json

import numpy as np
import pytest

from headrace.cli import main
from headrace.hw.memory_timing import channel_timing, load_memory, mapping_bits
from headrace.mapping.memory_patterns import pattern_fields, read_trace
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError

SIZES = {"pc": 2, "bank_group": 4, "bank": 4, "row": 16, "column": 32}


def hbm(capsys, *arguments):
    status = main(["hbm", "--requests", "4000", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_of_both_levels(capsys):
    for level in ("burst", "closed"):
        status, out, _ = hbm(capsys, "--json", "--pattern", "random", "--refresh", "none", "--queue", "16", "--level", level)
        document = json.loads(out)
        assert status == 0
        assert document["bandwidth_bytes_per_s"] == pytest.approx(document["efficiency"] * 32e9)
        assert document["latency_cycles_mean"] > 30
        assert set(document["stamp"]) == {"headrace", "config_sha256", "seed"}


def test_refresh_is_what_the_preset_has_unless_told(capsys):
    for preset, kind in (("u280-hbm2", "all-bank"), ("ramulator2-hbm3-6400", "per-bank")):
        assert json.loads(hbm(capsys, "--json", "--timing", preset)[1])["refresh"] == kind


def test_port_clock_caps_the_bandwidth(capsys):
    _, out, _ = hbm(capsys, "--json", "--timing", "u280-hbm2", "--refresh", "none", "--ports", "2", "--port-hz", "100e6", "--requests", "40000")
    assert json.loads(out)["bandwidth_bytes_per_s"] == pytest.approx(2 * 32 * 100e6, rel=0.01)


def test_hops_add_their_latency(capsys):
    near, far = (json.loads(hbm(capsys, "--json", "--timing", "u280-hbm2", "--hops", hops)[1])["latency_ns_mean"] for hops in ("0", "3"))
    assert far - near == pytest.approx(3 * load_memory("u280-hbm2").port.hop_ns)


def test_export_comes_back_as_a_pattern(capsys, tmp_path):
    path = tmp_path / "trace.txt"
    arguments = ("--json", "--timing", "ramulator2-hbm2-2000")
    status, out, _ = hbm(capsys, *arguments, "--pattern", "random", "--write-share", "0.25", "--export", str(path))
    lines = path.read_text().splitlines()
    assert status == 0 and len(lines) == 4000
    assert lines[0].split()[0] in "RW" and len(lines[0].split()[1].split(",")) == 6
    _, again, _ = hbm(capsys, *arguments, "--pattern", str(path))
    drop = {"stamp", "pattern"}
    assert {k: v for k, v in json.loads(out).items() if k not in drop} == {k: v for k, v in json.loads(again).items() if k not in drop}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--level", "warp"), "allowed: burst"),
        (("--timing", "nothing"), "is not known"),
        (("--pattern", "nothing"), "neither a pattern nor a file"),
        (("--access-bytes", "48"), "a multiple of the 32 bytes"),
        (("--write-share", "1.5"), "0..1"),
        (("--timing", "ramulator2-hbm3-6400", "--refresh", "all-bank"), "has no rfc"),
        (("--timing", "u280-hbm2", "--refresh", "per-bank", "--level", "closed"), "no per-bank refresh"),
        (("--ports", "2"), "names no port clock"),
        (("--hops", "2"), "no crossbar"),
        (("--set", "timings.rp=0"), "rp = 0"),
        (("--set", "organisation.pcs=3"), "organisation.pcs"),
        (("--requests", "99999999999"), "is allowed"),
    ],
)
def test_mistakes_end_with_one_line(capsys, arguments, words):
    status, out, err = hbm(capsys, *arguments)
    assert status == 2 and out == ""
    assert words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "holds no request"),
        ("R 0,0,0,0,0\n", "5 fields"),
        ("X 0,0,0,0,0,0\n", "'R' or 'W'"),
        ("R 0,0,0,0,0,0\nR 0,2,0,0,0,0\n", "line 2: pc"),
        ("R 0,0,0,0,-1,0\n", "row"),
        ("W 0,0,0,0,0,99999999999999\n", "column"),
    ],
)
def test_bad_traces_are_refused(tmp_path, text, words):
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_trace(path, load_memory("ramulator2-hbm2-2000").organisation)


@pytest.mark.parametrize("name", list_configs("memories"))
def test_every_preset_is_complete_and_named_as_its_file(name):
    config = load_memory(name)
    assert config.name == name
    assert channel_timing(config).banks <= 64
    if name in ("kv260-ddr4", "zcu104-ddr4"):
        assert config.peak_bytes_per_s == pytest.approx(19.2e9, rel=0.001)
    if name == "u280-hbm2":
        assert 16 * config.peak_bytes_per_s == pytest.approx(460.8e9, rel=0.001)


def test_orders_and_mappings():
    config = load_memory("ramulator2-hbm2-2000")
    fields = pattern_fields("sequential", config, accesses=300, access_bytes=32)
    assert fields["pc"][:4].tolist() == [0, 1, 0, 1]
    assert fields["bank_group"][:10].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]
    assert fields["column"][[0, 8, 255, 256]].tolist() == [0, 1, 31, 0] and fields["bank"][[255, 256]].tolist() == [0, 1]
    fields = pattern_fields("random", config, accesses=100, access_bytes=128, seed=3)
    assert np.all(np.diff(fields["row"].reshape(100, 4)) == 0) and np.all(np.diff(fields["column"].reshape(100, 4)) == 1)
    assert mapping_bits(["bank_group:1", "column", "bank", "bank_group", "row", "pc"], SIZES) == [
        ("bank_group", 1), ("column", 5), ("bank", 2), ("bank_group", 1), ("row", 4), ("pc", 1),
    ]  # fmt: skip
    for bad, words in ((["column"], "out"), (["bank_group:3"], "1..2 bits"), (["colour"], "allowed")):
        with pytest.raises(ValueError, match=words):
            mapping_bits(bad, SIZES)


def test_a_simulation_that_crashes_ends_in_one_line(capsys, monkeypatch, tmp_path):
    from headrace.sim import dram_rtl

    broken = tmp_path / "channel"
    broken.write_text("#!/bin/sh\necho no memory left >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(dram_rtl, "build_channel", lambda *arguments, **named: broken)
    status, out, err = hbm(capsys, "--level", "rtl")
    assert status == 2 and not out
    assert err.splitlines()[-1] == "headrace: error: the simulated channel ended with status 3: no memory left"
