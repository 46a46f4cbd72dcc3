"""The machine's own Verilog in Yosys: half a DSP per MAC, clean, without latches, and as the resource model says."""

import pytest

from headrace.hw.machine import load_machine
from headrace.hw.machine_synth import COLUMNS, synthesise_block, synthesise_machine, total_cells
from headrace.hw.resources import BLOCKS, SYNTHESISED, machine_resources

pytestmark = pytest.mark.synth


def equal_to_the_table(machine, name, found):
    """The resource model's block, column by column."""
    table = machine_resources(machine)["blocks"][name]
    print(name, table, found)
    return {column: (table[column], found[column]) for column in COLUMNS if table[column] != found[column]}


def test_a_block_costs_what_the_resource_model_says():
    machine = load_machine("nano")
    found = synthesise_block(machine, "raw_fifo")
    assert found["checks"] == {"check_problems": 0, "latches": 0}
    assert equal_to_the_table(machine, "raw_fifo", found) == {}
    assert 0 < found["lut_levels"] <= 8


@pytest.mark.nightly
def test_array_of_the_emitted_machine():
    machine = load_machine("nano")
    found = synthesise_block(machine, "mv.array")
    assert found["dsp"] == machine.array.macs_per_cycle // 2 == 64
    assert found["checks"] == {"check_problems": 0, "latches": 0}


def test_cells_of_a_module_count_in_every_instance():
    modules = {"top": {"LUT2": 1, "half": 2, "leaf": 1}, "half": {"leaf": 3, "FDRE": 1}, "leaf": {"LUT6": 5}}
    assert total_cells(modules, "top") == {"LUT2": 1, "FDRE": 2, "LUT6": 35}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["nano", "micro"])
def test_whole_machine(name):
    machine = load_machine(name)
    document = synthesise_machine(machine)
    assert document["array"]["dsp"] == machine.array.macs_per_cycle // 2
    assert all(document["checks"][check] for check in ("check_clean", "no_latch", "array_dsp_is_half_the_macs"))
    for column in COLUMNS:
        assert document["resources"][column] == sum(block[column] for block in document["blocks"].values())
    # Blocks whose cells were synthesised at this size; some were, alone, with their whole hierarchy kept.
    for block, description in BLOCKS.items():
        known = [p for p in description.points if p.how == SYNTHESISED and p.size == description.size(machine)]
        for column, (table, found) in equal_to_the_table(machine, block, document["blocks"][block]).items():
            assert column in ("lut", "ff") and (not known or abs(table - found) <= 0.1 * found), (block, column, table, found)
