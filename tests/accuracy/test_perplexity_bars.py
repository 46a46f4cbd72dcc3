"""What compression costs on SmolLM2-135M: golden against the float weights of the same file, over several English texts.

Nightly: about ten minutes of one core. Skipped where the weights have not been pulled (`headrace models pull smollm2-135m`).
"""

import time
from pathlib import Path

import numpy as np
import pytest

from headrace.models.registry import model_entry, weights_path
from headrace.sim.generate import generate
from headrace.sim.perplexity import perplexity
from headrace.sim.session import open_session

MODEL = "smollm2-135m"
TEXTS = sorted((Path(__file__).parents[1] / "data" / "texts").glob("*.txt"))

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(weights_path(model_entry(MODEL)) is None, reason=f"weights of {MODEL} have not been pulled"),
]


def score_all(backend: str, scheme: str | None = None) -> np.ndarray:
    """Perplexity of every text, float64 [texts]."""
    session = open_session(MODEL, scheme=scheme, backend=backend)
    scores = []
    for path in TEXTS:
        tokens = session.tokenizer.encode(path.read_text(encoding="utf-8"))
        assert len(tokens) >= 500, path.name
        scores.append(perplexity(session.executor, tokens).perplexity)
    print(backend, scheme, {path.stem: round(score, 3) for path, score in zip(TEXTS, scores)})
    return np.array(scores)


@pytest.fixture(scope="module")
def float_scores() -> np.ndarray:
    return score_all("float")


@pytest.mark.parametrize(("scheme", "bar"), [("w8a8kv8", 1.08), ("w4a8kv8", 1.09)])
def test_mean_ratio_to_float_is_within_the_bar(float_scores, scheme, bar):
    assert len(TEXTS) >= 3
    ratios = score_all("golden", scheme) / float_scores
    print(scheme, "ratios", ratios.round(4), "mean", ratios.mean().round(4))
    assert (float_scores > 3).all() and (float_scores < 120).all()  # a broken model is off by more than compression
    assert 0.98 < ratios.mean() <= bar


def test_the_capital_of_france_and_the_speed():
    session = open_session(MODEL, scheme="w4a8kv8", backend="golden")
    session.executor.step(0)  # compiles the kernel, which is not what is measured
    start_s = time.process_time()
    result = generate(session.executor, session.tokenizer, "The capital of France is", 16)
    rate = len(result.tokens) / (time.process_time() - start_s)  # of one core, whatever else the machine does
    print(result.text, rate)
    assert "Paris" in result.text
    assert rate >= 1.0
