"""The energy model: hand-computed sums, ranges, scopes, and what it refuses."""

import pytest

from headrace.hw.machine import load_machine
from headrace.mapping.analytic_events import EVENTS
from headrace.models.errors import UserError
from headrace.models.configfile import list_configs
from headrace.sim.energy import TERMS, EnergyTable, energy, load_energy

MACHINE = load_machine("nano")
RESOURCES = {"lut": 10_000, "ff": 20_000}
NOTHING = dict.fromkeys(EVENTS, 0.0)


def ranged(value: float) -> dict:
    return {"lo": value, "mid": value, "hi": 2 * value, "src": "test", "r": "derived"}


def table() -> EnergyTable:
    """Every energy one unit, twice that at the upper end."""
    fields = {name: ranged(1.0) for name, field in EnergyTable.model_fields.items() if name not in ("name", "board", "process_nm")}
    return EnergyTable(name="test", board="u280", process_nm=16, **fields)


def one(event: str, count: float = 1.0) -> dict[str, tuple[float, float, float]]:
    """Energies by term of `count` of one event in one cycle, less those of the cycle itself."""
    with_, without = (energy(events, 1, MACHINE, RESOURCES, table()).by for events in (NOTHING | {event: count}, NOTHING))
    return {term: with_[term][1] - without[term][1] for term in TERMS}


def test_power_and_clock_by_hand():
    by = energy(NOTHING, 225e6, MACHINE, RESOURCES, table()).by
    assert by["static"] == (pytest.approx(1.0), pytest.approx(1.0), pytest.approx(2.0))  # 1 W for a second
    assert by["board"] == (pytest.approx(1.0), pytest.approx(1.0), pytest.approx(2.0))
    # A LUT costs clock and signal, a flip-flop its own: 2 x 10,000 + 20,000 fJ a cycle.
    assert by["clock"][1] == pytest.approx(225e6 * 40_000e-15)
    assert by["mac"] == by["sram"] == by["memory"] == (0, 0, 0)


@pytest.mark.parametrize(
    ("event", "term", "joules"),
    [
        ("mac_slices", "mac", 64e-12),  # 8 rows x 16 columns, two MACs in a DSP
        ("mac_slices", "sram", 2 * 1024 * 1e-15),  # a slice of 8 x 16 bytes into and out of LUT RAM
        ("vec_busy", "mac", 16e-12),  # 8 lanes, a multiplier of two DSPs
        ("vb_rows", "sram", 4e-12),  # 256 bits in UltraRAMs of 72
        ("ab_slices", "sram", 2e-12),  # 128 bits in block RAMs of 72
        ("read_beats", "memory", 256e-12),
        ("read_beats", "sram", 2 * (4 + 8 / 2) * 1e-12),  # 256 bits through the port FIFO, half a 512-bit word through the raw FIFO
        ("write_beats", "memory", 256e-12),
        ("instructions", "sram", 1e-12),
    ],
)
def test_one_event_by_hand(event, term, joules):
    assert one(event)[term] == pytest.approx(joules, rel=1e-6)
    assert one(event, 1000)[term] == pytest.approx(1000 * joules, rel=1e-6)


def test_terms_sum_to_the_total_and_ranges_ascend():
    events = dict.fromkeys(EVENTS, 1e9)
    result = energy(events, 1e9, MACHINE, RESOURCES, load_energy("u280"))
    assert set(result.by) == set(TERMS)
    for i in range(3):
        assert result.total[i] == pytest.approx(sum(term[i] for term in result.by.values()))
    assert result.total[0] < result.total[1] < result.total[2]
    assert all(values[1] > 0 for values in result.by.values())
    assert result.middle() == {term: values[1] for term, values in result.by.items()}


def test_device_scope_leaves_the_board_out():
    events = dict.fromkeys(EVENTS, 1e6)
    board, device = (energy(events, 1e6, MACHINE, RESOURCES, load_energy("u280"), scope=scope) for scope in ("board", "device"))
    assert device.by["board"] == (0, 0, 0)
    assert board.total[1] - device.total[1] == pytest.approx(board.by["board"][1])


def test_an_idle_u280_draws_what_was_measured():
    """39 to 58 W with 40 W in the middle: static and overhead alone, for a second."""
    by = energy(NOTHING, 225e6, MACHINE, {"lut": 0, "ff": 0}, load_energy("u280")).by
    idle = [by["static"][i] + by["board"][i] for i in range(3)]
    assert idle[1] == pytest.approx(40)
    assert idle[0] <= 39 and idle[2] >= 58


def test_full_memory_rate_is_the_sources_power():
    """460 GB/s at 3.9 to 7.0 pJ/bit are 14 to 26 W."""
    beats = 460e9 / 32
    low, _, high = energy(NOTHING | {"read_beats": beats}, 225e6, MACHINE, RESOURCES, load_energy("u280")).by["memory"]
    assert (low, high) == (pytest.approx(14.4, abs=0.1), pytest.approx(25.8, abs=0.1))


def test_every_shipped_table_reads():
    assert [load_energy(name).name for name in list_configs("energy")] == list_configs("energy")


def test_refusals():
    with pytest.raises(UserError, match="does not know its lut"):
        energy(NOTHING, 1, MACHINE, {"lut": None, "ff": 1}, table())
    with pytest.raises(UserError, match="energy scope = 'system'; allowed: device, board"):
        energy(NOTHING, 1, MACHINE, RESOURCES, table(), scope="system")
    with pytest.raises(ValueError, match="negative"):
        energy(NOTHING | {"vb_rows": -1}, 1, MACHINE, RESOURCES, table())
    with pytest.raises(KeyError):
        energy({"mac_slices": 1.0}, 1, MACHINE, RESOURCES, table())
    with pytest.raises(ValueError, match="ascend"):
        EnergyTable(**(table().model_dump() | {"instruction_pj": {"lo": 2.0, "mid": 1.0, "hi": 3.0, "src": "x", "r": "read"}}))
