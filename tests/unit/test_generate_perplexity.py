"""Greedy generation and perplexity, against their definitions."""

import json
import math

import numpy as np
import pytest

from headrace import cli
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.sim.generate import check_count, encode_prompt, generate_tokens
from headrace.sim.perplexity import negative_log_likelihood, perplexity

CONFIG = DecoderConfig(name="toy", vocab=5, width=4, layers=1, heads=1, kv_heads=1, head_dim=4, ffn=4, max_positions=8)


class ToyExecutor:
    """Logits that depend on the last token and the position alone, and a record of what was asked."""

    config = CONFIG

    def __init__(self):
        self.table = np.random.default_rng(7).standard_normal((CONFIG.max_positions, CONFIG.vocab, CONFIG.vocab)).astype(np.float32)
        self.reset()

    def reset(self):
        self.position = 0

    def step(self, token):
        self.position += 1
        return self.table[self.position - 1, token]

    def prefill(self, tokens, *, all_positions=False):
        logits = np.stack([self.step(token) for token in tokens])
        return logits if all_positions else logits[-1]


def test_generation_is_greedy_and_the_first_token_comes_from_the_prefill():
    executor = ToyExecutor()
    seen = []
    tokens = generate_tokens(executor, [1, 3], 4, seen.append)
    expected, last = [], 3
    for position in range(1, 5):
        last = int(executor.table[position, last].argmax())
        expected.append(last)
    assert tokens == expected == seen
    assert executor.position == 5  # 2 of the prompt and N - 1 decode steps
    assert generate_tokens(executor, [1, 3], 4) == expected  # starts afresh


def test_ties_take_the_lowest_index():
    executor = ToyExecutor()
    executor.table[:] = 0.0
    assert generate_tokens(executor, [4], 3) == [0, 0, 0]


def test_token_counts_and_prompts_are_checked():
    check_count(CONFIG, 3, 6)
    for count in (0, -1, 7):
        with pytest.raises(UserError, match=f"tokens = {count}; allowed are 1 to 6"):
            check_count(CONFIG, 3, count)
    with pytest.raises(UserError, match="9 tokens"):
        check_count(CONFIG, 9, 1)
    with pytest.raises(UserError, match="empty"):
        encode_prompt(None, "", CONFIG, 1)


def test_perplexity_is_exp_of_the_mean_negative_log_likelihood():
    executor = ToyExecutor()
    tokens = [1, 2, 0, 4, 4, 3]
    steps = []
    result = perplexity(executor, tokens, steps.append)
    total = 0.0
    for position, (token, target) in enumerate(zip(tokens, tokens[1:])):
        logits = executor.table[position, token].astype(np.float64)
        total -= math.log(np.exp(logits)[target] / np.exp(logits).sum())
    assert math.isclose(result.perplexity, math.exp(total / 5), rel_tol=1e-9)
    assert (result.tokens, result.scored_tokens, sum(steps)) == (6, 5, 5)


def test_perplexity_of_equal_logits_is_the_vocabulary():
    executor = ToyExecutor()
    executor.table[:] = 3.0
    assert math.isclose(perplexity(executor, [0, 1, 2]).perplexity, 5.0, rel_tol=1e-12)
    assert negative_log_likelihood(np.array([[1000.0, 0.0]], np.float32), np.array([1])) == 1000.0


def test_perplexity_refuses_short_and_long_texts():
    for count in (0, 1, 10):
        with pytest.raises(UserError, match=f"text: has {count} tokens; allowed are 2 to 9"):
            perplexity(ToyExecutor(), [0] * count)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "embedded", "--prompt", "", "--tokens", "2"], "--prompt '': is empty"),
        (["generate", "embedded", "--prompt", "x", "--tokens", "0"], "--tokens 0: allowed is 1 or more"),
        (["generate", "nosuch", "--prompt", "x", "--tokens", "1"], "nosuch"),
        (["generate", "llama2-7b", "--prompt", "x", "--tokens", "1"], "no weights"),
        (["generate", "embedded", "--prompt", "x", "--tokens", "1", "--scheme", "w9"], "w9"),
        (["generate", "embedded", "--prompt", "x", "--tokens", "1", "--backend", "gpu"], "gpu"),
        (["generate", "embedded", "--prompt", "x", "--tokens", "1", "--set", "scheme.nosuch=1"], "nosuch"),
        (["generate", "embedded", "--prompt", "Once", "--tokens", "99999"], "tokens = 99999; allowed are 1 to 51"),
        (["perplexity", "embedded", "--text", "/nosuch.txt"], "/nosuch.txt"),
    ],
)
def test_mistakes_are_one_line_and_status_2(capsys, arguments, words):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("headrace: error: ") and err.count("\n") == 1 and words in err


def test_text_files_are_checked(capsys, tmp_path):
    long = "One morning, Anna was in the valley. " * 200
    for name, content, words in (
        ("empty", b"", "is empty"), ("binary", b"ab\xff", "byte 2"), ("long", long.encode(), "allowed are 2 to 513"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert cli.main(["perplexity", "embedded", "--text", str(path)]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1


def test_the_commands_print_one_json_document(capsys, tmp_path):
    arguments = ["embedded", "--json", "--seed", "3"]
    assert cli.main(["generate", *arguments, "--prompt", "One morning, Anna", "--tokens", "6"]) == 0
    golden = json.loads(capsys.readouterr().out)
    assert golden["tokens"] == len(golden["token_ids"]) == 6 and golden["tokens_per_s"] > 0 and golden["text"]
    assert (golden["scheme"], golden["backend"], golden["stamp"]["seed"]) == ("w4a8kv8", "golden", 3)
    path = tmp_path / "text.txt"
    path.write_text("One morning, Anna was in the valley. She found a red ball. She was happy because the sun was shining.")
    scores = {}
    for backend in (["--scheme", "w8a8kv8"], ["--scheme", "w4a8kv8"], ["--backend", "float"]):
        assert cli.main(["perplexity", *arguments, "--text", str(path), *backend]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["scored_tokens"] == document["tokens"] - 1
        scores[backend[1]] = document["perplexity"]
    print(scores)
    assert 1 < scores["float"] < 20
    assert all(0.8 < scores[scheme] / scores["float"] < 1.25 for scheme in ("w8a8kv8", "w4a8kv8"))


@pytest.mark.parametrize("backend", ["golden", "rtl"])
def test_a_prompt_that_was_not_utf8_is_a_mistake(capsys, backend):
    """The shell's bytes 0xff arrive as a lone surrogate."""
    assert cli.main(["generate", "embedded", "--prompt", "the \udcff", "--tokens", "2", "--backend", backend]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "character 4" in captured.err


@pytest.mark.parametrize("value", [np.nan, 1e38])
def test_no_perplexity_follows_from_logits_out_of_range(value):
    executor = ToyExecutor()
    executor.table[:, :, 0] = value
    with pytest.raises(UserError, match="no perplexity follows"):
        perplexity(executor, [1, 2, 3])


def test_a_nan_in_generation_names_the_model():
    executor = ToyExecutor()
    executor.table[:] = np.nan
    with pytest.raises(UserError, match="model toy: its activations leave the range"):
        generate_tokens(executor, [1, 3], 2)
