"""What `cosim`, `demo` and `generate --backend rtl` share: a compressed model on a machine, from names to the closed loop's document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.hw.machine import Machine, load_machine
from headrace.models.compressed import load_compressed, scheme_of
from headrace.models.configfile import split_overrides
from headrace.models.errors import UserError
from headrace.models.model import Model
from headrace.models.quantise import QuantisedModel
from headrace.models.scheme import Scheme
from headrace.sim.closed_loop import Proof, prove, report, run_rtl
from headrace.sim.cosim import Cosim, CosimError
from headrace.sim.cosim_run import Waves
from headrace.sim.estimate import check_scheme
from headrace.sim.generate import check_count, encode_prompt
from headrace.sim.session import require_tokenizer


@dataclass(frozen=True, kw_only=True)
class WaveWindow:
    """Clock cycles of a co-simulation whose signals go to `file`, counted from the simulation's start: reset and boot are the first few hundred."""

    file: Path
    first: int
    cycles: int

    def waves(self) -> Waves:
        from headrace.sim.cosim_driver import PERIOD_NS

        return Waves.of_cycles(self.file, self.first, self.cycles, period_ps=1000 * PERIOD_NS)

    def document(self, ran: int) -> dict:
        """What of the window lies within a run of `ran` cycles."""
        return {"file": str(self.file), "first_cycle": self.first, "cycles": max(0, min(self.cycles, ran - self.first))}


@dataclass(frozen=True, kw_only=True)
class LoopSession:
    """A model, compressed, and the machine that it is to run on."""

    model: Model
    compressed: QuantisedModel
    scheme: Scheme
    machine: Machine

    @classmethod
    def open(cls, model: str, machine: str, scheme: str | None, overrides: Sequence[str] = ()) -> LoopSession:
        """Load all by name or path. Raises UserError."""
        groups = split_overrides(overrides)
        if groups["board"]:
            raise UserError(f"--set {groups['board'][0]}: a co-simulation reads nothing of the board; allowed are machine fields and scheme.FIELD")
        description = load_machine(machine, groups["machine"])
        chosen = scheme_of(model, scheme, description.scheme, groups["scheme"])
        check_scheme(chosen)
        loaded, compressed = load_compressed(model, scheme, description.scheme, groups["scheme"])
        return cls(model=loaded, compressed=compressed, scheme=chosen, machine=description)

    @property
    def config(self):
        return self.model.config

    def identity(self) -> list:
        """What the document's hash stands for."""
        return [self.config.to_dict(), self.scheme, self.machine]

    def encode(self, prompt: str, tokens: int, length: int | None = None) -> list[int]:
        """Token ids of the prompt, cut or repeated to `length`. Raises UserError for an empty prompt or a bad count."""
        if tokens < 1:
            raise UserError(f"--tokens {tokens}: allowed is 1 or more")
        if not prompt:
            raise UserError("--prompt '': is empty; allowed is a text of at least one token")
        ids = encode_prompt(require_tokenizer(self.model), prompt, self.config, tokens)
        if length is None:
            return ids
        if length < 1:
            raise UserError(f"--prefill {length}: allowed is 1 or more")
        check_count(self.config, length, tokens)
        return (ids * -(-length // len(ids)))[:length]

    def run(
        self, prompt: str, ids: list[int], tokens: int, *, seed: int = 0, waves: WaveWindow | None = None, image_folder: Path | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> dict:
        """The closed loop's document, with the first divergence named where RTL and golden differ. UserError where the machine stops."""
        record = waves.waves() if waves else None
        with self._stops_named():
            proof = prove(self.compressed, self.machine, ids, tokens, seed=seed, waves=record, image_folder=image_folder, note=note)
        text = require_tokenizer(self.model).decode([int(t) for t in proof.rtl.tokens])
        document = report(proof, self.compressed, self.machine, prompt, ids, text)
        if waves:
            document["waves"] = waves.document(proof.rtl.counters["boot_cycles"] + proof.rtl.counters["cycles"])
        if not document["logits_equal"] or not document["rtl_tokens_equal"]:
            document["divergence"] = self._divergence(proof, ids, tokens, seed, note)
        return document

    def generate(self, ids: list[int], tokens: int, *, seed: int = 0, note: Callable[[str], None] = lambda text: None) -> tuple[str, Cosim]:
        """Text and run of the RTL alone."""
        with self._stops_named():
            run = run_rtl(self.compressed, self.machine, ids, tokens, seed=seed, note=note)
        return require_tokenizer(self.model).decode([int(t) for t in run.tokens]), run

    @contextmanager
    def _stops_named(self) -> Iterator[None]:
        """A machine that latches an error (a watchdog set too short, a NaN of the model) ends the command with its own words."""
        try:
            yield
        except CosimError as error:
            raise UserError(f"machine {self.machine.name}, model {self.config.name}: {error}") from error

    def _divergence(self, proof: Proof, ids: list[int], tokens: int, seed: int, note) -> str:
        """Interpreter against the RTL's trace: where the machine first left its program's meaning."""
        from headrace.mapping.compiler import compile_model
        from headrace.sim.divergence import first_divergence
        from headrace.sim.iss import Interpreter

        note("the results differ: running the interpreter to find where")
        image = compile_model(self.compressed, self.machine, ids, outputs=tokens)
        interpreter = Interpreter(self.machine, image.bytes(), image.layout.next_word, seed=seed, arguments=(len(ids), tokens))
        interpreter.run()
        found = first_divergence(proof.rtl.trace, interpreter.trace)
        if found is None:
            return "none: the RTL did what its program says, so compiler and golden executor disagree"
        return found.describe(interpreter.program)
