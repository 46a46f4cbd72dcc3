"""State of the cycle simulator's machine: one record per unit, its fields the registers that decide when things happen."""

import numpy as np

from headrace.hw.accumulate import RESULT_STRIPES, Accumulate
from headrace.hw.activation_buffer import ActivationBuffer
from headrace.hw.activation_skew import ActivationSkew
from headrace.hw.boot import HEADER_FIELDS
from headrace.hw.command_queue import CommandQueueParameters
from headrace.hw.decode_unit import DecodeUnit, MvSizes
from headrace.hw.dsp_chain import DspChain
from headrace.hw.group_fifo import GroupFifo
from headrace.hw.isa import INSTRUCTION_BYTES, REGISTERS
from headrace.hw.ld_unit import LdParameters
from headrace.hw.machine import BLOCK, LANES, MAX_PORTS, Machine
from headrace.hw.mv_unit import COMMANDS
from headrace.hw.scale_lane import ScaleLane
from headrace.hw.scale_unit import ROWS, SCALE_WORDS
from headrace.hw.st_unit import FIFO_BEATS, StParameters
from headrace.hw.top import MEMORY_WORDS
from headrace.hw.vector_buffer import VectorBuffer


def _record(names: str) -> np.dtype:
    return np.dtype([(name, "i8") for name in names.split()])


SIZES = _record(
    # memory side
    "ports dram burst_beats port_fifo raw_fifo load_queue "
    # control
    "queue_depth in_flight watchdog registers header_words instructions_per_word instructions "
    # matrix-vector engine
    "weight_slices parts4 parts8 meta_phases scale_stripes result_groups row_beats result_stripes scale_words scale_rows "
    "stripe_vb_rows mv_commands decode_stages release_stage sum_stage scale_stages "
    # buffers and stores
    "vb_stages pairs_per_stripe st_fifo st_writes"
)

LANE = _record("ar_valid aw_valid aw_address taken arrived wrote young ripe reads writes")
"""A port on the machine's side: LD's and ST's registers, what the memory does in this cycle, LD's FIFO of beats, and the beats
read and written so far."""
SEQUENCER = _record("running x x_valid next state answer redirect boot boot_index boot_left boot_finished quiet")
QUEUE = _record("head behind ring_read ring_write count oldest newest kept")
LD = _record(
    # BurstGenerator
    "live address left run_base words count stride free ar_address ar_beats "
    # receiver
    "load_next busy load kind r_left r_words r_count part empty "
    # retirement
    "unit_last done inside accepted"
)
MV = _record(
    # front
    "front front_command answer decode_queue issue_queue scale_queue write_queue handed scale_given commands "
    # decode unit
    "d_next d_run d_kind d_bits8 d_scales d_slices d_stripes_left d_slices_left d_part d_phase d_scale_phase d_pipe d_scale_write "
    # weight FIFO and issue
    "w_used w_ready i_next i_run i_slices i_stripes_left i_slices_left i_valids i_lasts "
    # results and scale unit
    "r_used r_ready f_used f_ready s_next s_run s_scales s_stripes_left s_group s_phase s_places s_flow s_beat s_complete "
    # writer
    "o_next o_run o_left o_valid o_share done"
)
ST = _record("running start issuing room command op source index length heads place head stripe pipe ring_read ring_write unanswered done")
SFU = _record("running start length offset")

GROUP = np.dtype([("count", "i8"), ("order", "i8", (MAX_PORTS,)), ("lane", LANE, (MAX_PORTS,))])
"""All lanes. Those that are stepped are the first `count` of `order`: all, or those of the channels that stand for others (sim/cycle_symmetry.py)."""

ST_RING = 32
"""Places of stores between request and port: more than FIFO_BEATS."""


def sizes(machine: Machine, instructions: int) -> np.ndarray:
    """SIZES [1]: what the blocks say of themselves, nothing else."""
    mv, ld = MvSizes(machine), LdParameters.of(machine, memory_words=MEMORY_WORDS)
    st = StParameters.of(machine, memory_words=MEMORY_WORDS)
    queue = CommandQueueParameters(depth=machine.control.queue_depth)
    read_first = ActivationBuffer.READ_LATENCY + ActivationSkew.LATENCY - 1  # MvArray: bit i of its shift register is i + 1 cycles old
    values = {
        "ports": ld.ports, "dram": machine.memory.dram is not None, "burst_beats": ld.burst_beats, "port_fifo": ld.port_fifo_beats, "raw_fifo": machine.buffers.raw_fifo_words,
        "load_queue": ld.queue_depth,
        "queue_depth": queue.depth, "in_flight": queue.in_flight, "watchdog": machine.control.watchdog_cycles, "registers": REGISTERS,
        "header_words": -(-4 * HEADER_FIELDS // machine.word_bytes), "instructions_per_word": machine.word_bytes // INSTRUCTION_BYTES,
        "instructions": instructions,
        "weight_slices": machine.buffers.weight_fifo_slices, "parts4": mv.parts4, "parts8": mv.parts, "meta_phases": 2 * mv.meta_groups,
        "scale_stripes": mv.scale_stripes, "result_groups": mv.result_groups, "row_beats": LANES // mv.scale_lanes,
        "result_stripes": RESULT_STRIPES, "scale_words": SCALE_WORDS, "scale_rows": ROWS, "stripe_vb_rows": mv.rows8,
        "mv_commands": COMMANDS, "decode_stages": DecodeUnit.LATENCY, "release_stage": read_first + BLOCK - 1,
        "sum_stage": read_first + 1 + BLOCK - 1 + DspChain.LATENCY + Accumulate.LATENCY - 1,
        "scale_stages": GroupFifo.LATENCY + ScaleLane.LATENCY,
        "vb_stages": VectorBuffer.READ_LATENCY, "pairs_per_stripe": st.stripe_rows // 2, "st_fifo": FIFO_BEATS,
        "st_writes": st.outstanding_writes,
    }  # fmt: skip
    record = np.zeros(1, SIZES)
    record[0] = tuple(values[name] for name in SIZES.names)
    return record
