"""The machine description: presets, derived sizes worked out by hand, and the sentence of each refusal."""

import pytest
from pydantic import ValidationError

from headrace.hw.board import check_fit, load_board
from headrace.hw.machine import load_machine
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError

# By hand: 128 MACs = 8 rows x 16 slots; 2 x 32 B words; 512 // (8 x 20) = 3; 3900 ns x 225 MHz = 877.5; 78.75.
NANO = {
    "stripe_rows": 8, "chains": 4, "dsps": 64, "word_bytes": 64, "word_bits": 512, "meta_groups_per_word": 3,
    "scales_per_word": 16, "stripes_per_scale_word": 2, "trefi_cycles": 877, "trfc_cycles": 79,
    "peak_bytes_per_s": 14.4e9, "peak_macs_per_s": 28.8e9,
}  # fmt: skip
MICRO = NANO | {
    "stripe_rows": 32, "chains": 16, "dsps": 256, "word_bytes": 256, "word_bits": 2048, "scales_per_word": 64,
    "peak_bytes_per_s": 57.6e9, "peak_macs_per_s": 115.2e9,
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), [("nano", NANO), ("micro", MICRO)])
def test_preset(name, expected):
    machine = load_machine(name)
    assert machine.derived() == expected
    assert machine.name == name


@pytest.mark.parametrize("name", list_configs("machines"))
def test_every_shipped_machine_fits_its_board(name):
    machine = load_machine(name)
    assert machine.name == name
    assert all(check["ok"] for check in check_fit(machine, load_board(machine.board)))


@pytest.mark.parametrize("name", list_configs("boards"))
def test_every_shipped_board_loads(name):
    assert load_board(name).name == name


def test_frozen_and_hashable():
    machine = load_machine("nano")
    assert hash(machine) == hash(load_machine("nano"))
    with pytest.raises(ValidationError):
        machine.clock_hz = 1e6


@pytest.mark.parametrize("overrides", [["array.macs_per_cycle=1024"], ["memory.ports=16", "array.macs_per_cycle=1024"], ["memory.q=2"], ["clock_hz=300e6"]])
def test_legal_variants_of_micro(overrides):
    load_machine("micro", overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["array.chain_length=8"], "array.chain_length = 8 is not allowed: the packed accumulator is exact for a cascade of 16 only"),
        (["array.macs_per_cycle=96"], "'array.macs_per_cycle' = 96: it must be a power of two"),
        (["array.macs_per_cycle=16"], "greater than or equal to 32"),
        (["array.macs_per_cycle=64"], "sfu.lanes = 8 does not divide the 4 rows"),
        (["sfu.lanes=16"], "sfu.lanes = 16 is not allowed: instruction set version 1 has rows of 8 float32"),
        (["memory.port_bytes=64"], "memory.port_bytes = 64 is not allowed: instruction set version 1"),
        (["control.registers=8"], "control.registers = 8 is not allowed"),
        (["memory.ports=4"], "memory.ports = 4 bring 128 bytes a cycle, but array.macs_per_cycle = 128 takes at most 64 bytes"),
        (["array.macs_per_cycle=512"], "a word must hold at least one group"),
        (["memory.ports=3"], "'memory.ports' = 3: it must be a power of two"),
        (["memory.p=2"], "memory.p = 2 is larger than memory.q = 1"),
        (["memory.read_latency_cycles=29"], "greater than or equal to 30"),
        (["memory.trfc_ns=4000"], "memory.trfc_ns = 4000 must be below memory.trefi_ns = 3900"),
        (["memory.trfc_ns=3899", "clock_hz=1e6"], "leave no cycle between refreshes"),
        (["memory.burst_beats=32"], "less than or equal to 16"),
        (["buffers.raw_fifo_words=64"], "less than the 128 words"),
        (["control.watchdog_cycles=0"], "control.watchdog_cycles"),
        (["clock_hz=.inf"], "clock_hz"),
        (["name=../x"], "name"),
        (["scheme=8"], "'scheme' = 8: input should be a valid string"),
    ],
)
def test_refusals(overrides, words):
    with pytest.raises(UserError) as caught:
        load_machine("nano", overrides)
    assert words in str(caught.value)
    assert "configs/machines/nano.yaml" in str(caught.value)


def test_scale_words_hold_whole_stripes_in_every_legal_machine():
    legal = 0
    for ports in (1, 2, 4, 8, 16, 32):
        for macs in (32, 64, 128, 256, 512, 1024, 2048, 4096):
            try:
                machine = load_machine("nano", [f"memory.ports={ports}", f"array.macs_per_cycle={macs}"])
            except UserError:
                continue
            legal += 1
            assert machine.stripes_per_scale_word * machine.stripe_rows * 4 == machine.word_bytes
            assert machine.chains * 16 == machine.dsps
            assert machine.meta_groups_per_word >= 1
    # R = W/8 or W/4 rows, and at least 8: one port takes 128 MACs only, the five wider machines two sizes each.
    assert legal == 11


def test_fit_names_what_does_not_fit():
    board = load_board("u280", ["dsp=67"])
    checks = {check["check"]: check for check in check_fit(load_machine("nano", ["clock_hz=500e6"]), board)}
    assert (checks["array_dsp"]["needs"], checks["array_dsp"]["has"], checks["array_dsp"]["ok"]) == (64, 63, False)  # of 67 the shell takes 4
    assert (checks["dsp"]["needs"], checks["dsp"]["ok"]) == (87, False)
    assert checks["hbm_ports"]["ok"]
    assert not checks["port_bytes_per_s"]["ok"]  # 16 GB/s from a 14.4 GB/s pseudo-channel


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["recall=[nosuch]"], "recall names 'nosuch'"),
        (["shell_dsp=9025"], "shell_dsp = 9025 exceeds dsp = 9024"),
        (["hbm_pseudo_channels=0"], "contradicts hbm_bytes"),
        (["r=guess"], "'r' = 'guess'"),
    ],
)
def test_board_refusals(overrides, words):
    with pytest.raises(UserError) as caught:
        load_board("u280", overrides)
    assert words in str(caught.value)
