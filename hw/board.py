"""The board description: resources of the part, memory, power and price, each with its source."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from headrace.hw.machine import Machine
from headrace.hw.resources import machine_resources
from headrace.models.configfile import StrictModel, load_model, parse_override
from headrace.models.errors import UserError

DESCRIPTIVE = ("part", "process_nm", "slr", "ddr_bytes_per_s", "idle_w", "price_usd", "src", "r", "recall")
"""Fields that say what the board is and enter no result; `headrace machines show` prints them."""


class Board(StrictModel):
    """One FPGA board. Bandwidths are peaks at the memory's pins; `shell_*` is what the vendor's shell takes; `tdp_w` is held
    against the estimated power. Fields of `DESCRIPTIVE` enter no result."""

    name: str = Field(min_length=1)
    part: str
    process_nm: int = Field(gt=0)
    slr: int = Field(ge=1)
    lut: int = Field(gt=0)
    ff: int = Field(gt=0)
    dsp: int = Field(gt=0)
    bram36: int = Field(ge=0)
    uram: int = Field(ge=0)
    hbm_bytes: int = Field(ge=0)
    hbm_bytes_per_s: float = Field(ge=0)
    hbm_pseudo_channels: int = Field(ge=0)
    ddr_bytes: int = Field(ge=0)
    ddr_bytes_per_s: float = Field(ge=0)
    tdp_w: float = Field(gt=0)
    idle_w: float = Field(ge=0)
    price_usd: float = Field(gt=0)
    shell_lut: int = Field(default=0, ge=0)
    shell_ff: int = Field(default=0, ge=0)
    shell_bram36: float = Field(default=0.0, ge=0)
    shell_dsp: int = Field(default=0, ge=0)
    src: str = Field(min_length=1)
    """Where the figures were read."""
    r: Literal["read", "derived", "recall"]
    """How: read in the source, derived from it, or recalled and unchecked."""
    recall: tuple[str, ...] = Field(default=(), strict=False)
    """Fields that nobody has checked: placeholders with wide ranges."""

    @model_validator(mode="after")
    def _check(self):
        unknown = [name for name in self.recall if name not in type(self).model_fields]
        if unknown:
            raise ValueError(f"recall names {unknown[0]!r}, which is not a field of a board.")
        for name in ("lut", "ff", "dsp", "bram36"):
            if getattr(self, f"shell_{name}") > getattr(self, name):
                raise ValueError(f"shell_{name} = {getattr(self, f'shell_{name}')} exceeds {name} = {getattr(self, name)}.")
        if self.hbm_pseudo_channels == 0 and (self.hbm_bytes or self.hbm_bytes_per_s):
            raise ValueError("hbm_pseudo_channels = 0 contradicts hbm_bytes or hbm_bytes_per_s above 0.")
        return self

    @property
    def pseudo_channel_bytes(self) -> int:
        return self.hbm_bytes // self.hbm_pseudo_channels if self.hbm_pseudo_channels else 0

    @property
    def pseudo_channel_bytes_per_s(self) -> float:
        return self.hbm_bytes_per_s / self.hbm_pseudo_channels if self.hbm_pseudo_channels else 0.0


def load_board(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Board:
    """The board of that name in ``configs/boards``, or in that file, with ``path=value`` overrides applied."""
    return load_model(Board, "boards", name_or_path, overrides)


def refuse_descriptive(overrides: Iterable[str]) -> None:
    """UserError for a board override (``path=value``) that would change nothing."""
    for override in overrides:
        if parse_override(override)[0] in DESCRIPTIVE:
            read = ", ".join(name for name in Board.model_fields if name not in DESCRIPTIVE)
            raise UserError(f"--set board.{override}: only describes the board and changes no result; allowed are {read}")


def check_fit(machine: Machine, board: Board) -> list[dict]:
    """Hold a machine against its board: ``[{"check", "needs", "has", "ok"}]``.

    Covers what the description alone decides: DSPs of the array (`array_dsp`) and of the whole machine with its SFU, scale unit and
    sequencer (`dsp`, as `headrace estimate` and `synth` count them), ports, and the rate each port asks of its pseudo-channel. LUT, FF and
    RAM need synthesis or the resource model.
    """
    memory = machine.memory
    port_rate = memory.port_bytes * machine.clock_hz * memory.beats_per_cycle
    pairs = [
        ("array_dsp", machine.dsps, board.dsp - board.shell_dsp),
        ("dsp", machine_resources(machine)["dsp"], board.dsp - board.shell_dsp),
        ("hbm_ports", memory.ports, board.hbm_pseudo_channels),
        ("port_bytes_per_s", port_rate, board.pseudo_channel_bytes_per_s),
    ]
    return [{"check": name, "needs": needs, "has": has, "ok": needs <= has} for name, needs, has in pairs]
