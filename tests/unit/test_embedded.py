"""The embedded model: loads, is small, agrees with its entry, survives compression, and writes the grammar's English."""

import functools
import random
import re

import numpy as np
import pytest

from headrace.models import grammar
from headrace.models.quantise import QuantisedModel, quantise_model, rope_tables
from headrace.models.registry import load_model, model_entry, weights_path
from headrace.models.scheme import load_scheme, weight_bytes

MAX_BYTES = 1_500_000
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model():
    return load_model("embedded")


def test_files_are_small_and_the_entry_agrees(model):
    entry = model_entry("embedded")
    files = list(weights_path(entry).iterdir())
    assert {file.name for file in files} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    assert model.config == entry.config


def test_tokenizer_puts_bos_first_and_round_trips(model):
    tokens = model.tokenizer.encode("Anna found a key.")
    assert model.tokenizer.add_bos and tokens[0] == model.config.bos_token_id == 0
    for text in ("Anna found a key.", "  odd \t spacing\n", "caf\u00e9 \u4f60 42"):
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert model.tokenizer.vocab == model.config.vocab


class FloatDecoder:
    """One token at a time in plain numpy float, with a KV cache: independent of the project's own executors."""

    def __init__(self, config, weights):
        self.config, self.weights = config, weights
        self.cos, self.sin = rope_tables(config)
        self.keys = [[] for _ in range(config.layers)]
        self.values = [[] for _ in range(config.layers)]

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean() + self.config.rms_eps) * self.weights(name)

    def rope(self, x, position):
        a, b = np.split(x.reshape(-1, self.config.head_dim), 2, axis=1)
        cos, sin = self.cos[position], self.sin[position]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=1)

    def step(self, token) -> np.ndarray:
        """Logits [vocab] after one more token."""
        c, w = self.config, self.weights
        x, position = w("embedding")[token], len(self.keys[0])
        for i in range(c.layers):
            p = f"layers.{i}."
            h = self.norm(x, p + "attn_norm")
            q = self.rope(w(p + "q") @ h, position)
            self.keys[i].append(self.rope(w(p + "k") @ h, position))
            self.values[i].append((w(p + "v") @ h).reshape(-1, c.head_dim))
            share = c.heads // c.kv_heads
            keys, values = (np.repeat(np.stack(t, axis=1), share, axis=0) for t in (self.keys[i], self.values[i]))
            scores = (keys @ q[:, :, None])[:, :, 0] / np.sqrt(c.head_dim)
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            attended = ((e / e.sum(axis=1, keepdims=True))[:, None] @ values).reshape(-1)
            x = x + w(p + "o") @ attended
            h = self.norm(x, p + "mlp_norm")
            gate = w(p + "gate") @ h
            x = x + w(p + "down") @ (gate / (1 + np.exp(-gate)) * (w(p + "up") @ h))
        return w("embedding") @ self.norm(x, "final_norm")


def write(model, weights, prompt, count) -> str:
    """Greedy text: the prompt and `count` more tokens."""
    decoder, tokens = FloatDecoder(model.config, weights), model.tokenizer.encode(prompt)
    for token in tokens[:-1]:
        decoder.step(token)
    for _ in range(count):
        tokens.append(int(decoder.step(tokens[-1]).argmax()))
    return model.tokenizer.decode(tokens)


def compressed(quantised: QuantisedModel):
    matrices = {"embedding": quantised.embedding.dequantised(), "final_norm": quantised.final_norm}
    for i, layer in enumerate(quantised.layers):
        for name, weight in layer.items():
            matrices[f"layers.{i}.{name}"] = weight if isinstance(weight, np.ndarray) else weight.dequantised()
    return matrices.__getitem__


@functools.cache
def vocabulary() -> set[str]:
    return {word.lower() for text in grammar.stories(3, 3000) for word in re.findall(r"[A-Za-z]+", text)}


@pytest.mark.parametrize("scheme", [None, "w4a8kv8", "w8a8kv8"])
def test_writes_english_words_in_sentences(model, scheme):
    if scheme is None:
        weights = {name: model.weights[name] for name in model.weights}.__getitem__
    else:
        quantised = quantise_model(model, load_scheme(scheme))
        assert quantised.required_bytes == weight_bytes(model.config, load_scheme(scheme))
        weights = compressed(quantised)
    text = write(model, weights, PROMPT, 48)
    assert text.startswith(PROMPT) and text.count(".") >= 2, text
    complete = text[: text.rindex(".") + 1]
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", complete)]
    assert len(words) >= 12 and set(words) <= vocabulary(), text
    for sentence in re.findall(r"[^.]+\.", complete):
        assert sentence.strip().strip('"')[0].isupper(), text
    assert not re.search(r"\ba [aeio]|\ban [^aeiouh]", complete), text


def test_grammar_is_deterministic_and_grammatical():
    texts = list(grammar.stories(5, 2000))
    assert texts == list(grammar.stories(5, 2000)) and texts != list(grammar.stories(6, 2000))
    for text in texts:
        assert text[0].isupper() and text[-1] in '."' and "  " not in text and "{" not in text
        assert not re.search(r"\ba (?!useful)[aeiou]|\ba honest|\ban (?!honest)[^aeiou]", text), text
    assert 250 <= len(vocabulary()) <= 900


def test_pronouns_follow_the_hero():
    rng = random.Random(9)
    for _ in range(200):
        story = grammar.Story(rng)
        wrong = {"she": {"he", "him", "his"}, "he": {"she", "her"}}[story.hero.he]
        assert not wrong & {word.lower() for word in re.findall(r"[A-Za-z]+", story.text())}
