"""Parameters of a channel that the rules cannot run."""

import dataclasses

import pytest
from memory_reference import run

from headrace.hw.memory_timing import channel_timing, load_memory, user_timing
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError

SMALL = dataclasses.replace(
    channel_timing(load_memory("ramulator2-hbm2-2000")), pcs=1, bank_groups=2, banks_per_group=2, rc=20, ras=10, rp=6, rcdrd=5, rcdwr=5, rrds=2, rrdl=3,
    act_cycles=2, pre_cycles=1, rfcpb=8,
)  # fmt: skip


def per_bank(**changes):
    return dataclasses.replace(SMALL, refresh="per-bank", **changes)


@pytest.mark.parametrize("pcs", [1, 2])
def test_refreshes_that_leave_no_cycle_for_an_activation_are_refused(pcs):
    """4 banks of a pseudo-channel, rrefd 9: one refresh in 10 cycles is the most that leaves a cycle for an ACT."""
    with pytest.raises(ValueError, match="rrefd = 9.*no ACT would ever be legal. refi of at least 40 is needed"):
        per_bank(pcs=pcs, rrefd=9, refi=39)
    timing = per_bank(pcs=pcs, rrefd=9, refi=40)
    accepted, completed, log = run(timing, [(0, bank % timing.banks, bank % 3) for bank in range(12)])
    assert all(a <= c for a, c in zip(accepted, completed, strict=True)) and sum(kind == "ACT" for _, kind, _ in log) >= timing.banks


def test_refreshes_that_fill_the_row_bus_are_refused():
    with pytest.raises(ValueError, match="pre_cycles = 2.*the row bus would never be free. refi of at least 24 is needed"):
        per_bank(pcs=2, rrefd=1, pre_cycles=2, refi=23)
    run(per_bank(pcs=2, rrefd=1, pre_cycles=2, refi=24), [(0, bank, bank) for bank in range(8)])


def test_other_refreshes_do_not_read_rrefd():
    for refresh in ("none", "all-bank"):
        assert dataclasses.replace(SMALL, refresh=refresh, rrefd=10_000).rrefd == 10_000


@pytest.mark.parametrize("name", list_configs("memories"))
def test_presets_have_room(name):
    """Every preset whose source has per-bank figures runs with them."""
    config = load_memory(name)
    if config.timings.cycles("rfcpb", config.tck_ps):
        assert channel_timing(config, refresh="per-bank").refresh == "per-bank"


def test_a_users_timing_is_one_line():
    config = load_memory("u280-hbm2", ["timings.rrefd_ns=1000"])
    with pytest.raises(UserError, match="u280-hbm2: per-bank refresh: rrefd = ") as caught:
        user_timing(config, queue=None, page=None, refresh="per-bank")
    assert "\n" not in str(caught.value)
