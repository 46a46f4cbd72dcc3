"""The published classes of transformers with seeded weights, and their logits. Needs torch and transformers.

    python tests/hf_reference.py     writes tests/data/hf_logits anew, which tests/unit/test_hf_families.py reads without torch
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from hf_families import CASES, stored_weights, tokens

FOLDER = Path(__file__).parent / "data" / "hf_logits"
POSITIONS = (0, 6, 20, 39)
"""Positions whose logits are stored: the first, within and past the first window, the last."""


def build(name: str):
    """The class of a case with its seeded weights, float32, in eval mode."""
    class_name, fields = CASES[name]
    cls = getattr(transformers, class_name)
    config = cls.config_class(**fields)
    config._attn_implementation = "eager"
    model = cls(config).to(torch.float32).eval()
    shapes = {parameter_name: tuple(parameter.shape) for parameter_name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter_name, values in stored_weights(class_name, shapes).items():
            model.get_parameter(parameter_name).copy_(torch.from_numpy(values))
    return model


def logits_of(model) -> np.ndarray:
    """float32 [tokens, vocab] of `hf_families.tokens`."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens()[None])).logits[0].float().numpy()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        model = build(name)
        with tempfile.TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            config = json.loads((Path(folder) / "config.json").read_text())
        config["architectures"] = [CASES[name][0]]
        document = {
            "made_by": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}", "config": config,
            "tensors": {key: list(parameter.shape) for key, parameter in model.named_parameters()},
            "logits": {position: [round(float(v), 6) for v in logits_of(model)[position]] for position in POSITIONS},
        }
        (FOLDER / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
