"""Files that lie, by the thousand (tests/mutations.py): every one is loaded whole, or refused in one line, in bounded time and memory."""

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from mutations import CONFIG, KINDS, MEMORY_LIMIT_BYTES, TIME_LIMIT_S, gguf_bytes, gguf_document, kinds
from tokenizers import Tokenizer as Library
from tokenizers import models

from headrace.models.errors import MAX_LINE, UserError
from headrace.models.formats.gguf_decoder import load_gguf
from headrace.models.decoder import DecoderConfig
from headrace.models.formats.hf import load_hf, read_hf_config
from headrace.models.quantise import rope_tables
from headrace.models.formats.safetensors_file import MAX_COMMAS, MAX_DEPTH, read_json
from headrace.models.formats.tokenizer import Tokenizer

SEED = 1
RUNNER = Path(__file__).parents[1] / "mutations.py"


def fuzz(seed: int, count: int, folder: Path) -> int:
    """`count` mutations of every kind in a process of their own; how many were refused. A failure names the mutation that ended it."""
    done = subprocess.run([sys.executable, RUNNER, "all", str(seed), str(count), folder], capture_output=True, text=True, timeout=1800, check=False)
    reached = (folder / "reached").read_text() if (folder / "reached").exists() else "none"
    assert done.returncode == 0, f"seed {seed}: `python tests/mutations.py {reached} FOLDER` ended with {done.returncode}: {done.stderr[-2000:]}"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"seed {seed}", *found, sep="\n")
    assert [counts["kind"] for counts in found] == list(KINDS)
    for counts in found:
        assert counts["succeeded"] and counts["refused"] and counts["succeeded"] + counts["refused"] == count
        assert counts["slowest_s"] < TIME_LIMIT_S and counts["peak_mib"] < MEMORY_LIMIT_BYTES >> 20
    return sum(counts["refused"] for counts in found)


def test_some_hundred_mutations(tmp_path):
    fuzz(SEED, 60, tmp_path)


@pytest.mark.nightly
def test_thousands_of_mutations(tmp_path):
    assert fuzz(secrets.randbits(32), 1000, tmp_path) > 2000


@pytest.mark.parametrize(
    ("fault", "expected"), [("raise ValueError", "ValueError"), ("bytearray(3 << 30)", "MemoryError"), ("while True: pass", "")]
)
def test_what_must_not_happen_is_seen(fault, expected, tmp_path):
    """The runner notices another exception, memory and time."""
    planted = (
        f"import sys; sys.path.insert(0, {str(RUNNER.parent)!r}); import mutations; from pathlib import Path\n"
        f"mutations.TIME_LIMIT_S = 1\ndef load(path):\n    {fault}\n"
        "mutations.kinds = lambda: {'planted': (lambda rng, folder: folder, load)}\n"
        f"mutations.run('planted', 1, range(1), Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", planted], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and (tmp_path / "reached").read_text() == "planted 1 0-1"
    assert expected in done.stderr and (expected or done.returncode == -signal.SIGALRM)


def test_the_files_load_before_they_are_mutated(tmp_path):
    for tokenizer in ("gpt2", "llama"):
        (tmp_path / "m.gguf").write_bytes(gguf_bytes(gguf_document(tokenizer)))
        kinds()["gguf"][1](tmp_path / "m.gguf")
        assert gguf.GGUFReader(tmp_path / "m.gguf").get_field("general.architecture") is not None


# Files whose few bytes ask for much.


def test_long_tokens_are_refused_before_they_are_split(tmp_path):
    document = gguf_document("llama")
    tokens = next(field for field in document["fields"] if field[0] == "tokenizer.ggml.tokens")
    tokens[2] = (tokens[2][0], [*tokens[2][1][:-1], "x" * 10_000_000])
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(document))
    with pytest.raises(UserError, match="has 10000000 characters; allowed are 512"):
        load_gguf(tmp_path / "m.gguf")


def test_rope_tables_are_bounded():
    sizes = dict(vocab=8, width=32, layers=1, heads=1, kv_heads=1, ffn=32)
    with pytest.raises(UserError, match="max_positions \\* head_dim = 4294967296; allowed is up to 134217728"):
        DecoderConfig(name="x", head_dim=4096, max_positions=1 << 20, **sizes)
    config = DecoderConfig(name="x", head_dim=64, max_positions=5000, **sizes)
    cos, sin = rope_tables(config)
    angle = np.arange(5000)[:, None] * 10000.0 ** (-2.0 * np.arange(32) / 64)
    assert np.array_equal(cos, np.cos(angle).astype(np.float32)) and np.array_equal(sin, np.sin(angle).astype(np.float32))


def test_json_with_a_key_twice_or_deep_nesting(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "a": {"hidden_size": 1, "hidden_size": 2}}')
    with pytest.raises(UserError, match="key 'hidden_size' is given twice"):
        read_hf_config(tmp_path)
    for depth, fits in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False), (900, False), (200_000, False)):
        path.write_text('{"a": ' + "[" * depth + "]" * depth + "}")
        if fits:
            read_json(path)
        else:
            with pytest.raises(UserError, match="nested deeper|not valid JSON"):
                read_json(path)


def test_json_of_more_values_than_a_model_needs(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": [' + "[]," * (MAX_COMMAS + 1) + "[]]}")
    with pytest.raises(UserError, match="holds more than the 2097152 values allowed"):
        Tokenizer.from_file(path)


def test_a_message_is_never_as_long_as_the_value(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 8,
        "num_hidden_layers": 1, "intermediate_size": 8, "rms_norm_eps": "x" * 1_000_000}))  # fmt: skip
    with pytest.raises(UserError, match="rms_eps") as caught:
        read_hf_config(tmp_path)
    assert len(str(caught.value)) <= MAX_LINE + 4


def test_a_name_cannot_speak_to_the_terminal(tmp_path):
    document = gguf_document("gpt2")
    document["tensors"][3][0] = "\x1b[2J\x07\u202enew"
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(document))
    with pytest.raises(UserError, match="is missing|not part of") as caught:
        load_gguf(tmp_path / "m.gguf")
    assert str(caught.value).isprintable() and str(UserError("a \x1b[0m\n\u202e \ud800 \u00e9")) == "a \\x1b[0m \\u202e \\ud800 \u00e9"


def test_a_shard_that_no_file_can_be_called(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name, message in (("a\0.safetensors", "cannot be read"), ("\ud800.safetensors", "cannot be read"), ("x" * 5000 + ".safetensors", "allowed is a")):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(UserError, match=message):
            load_hf(tmp_path)


def tokenizer_json(path: Path, **sections) -> Path:
    document = json.loads(Library(models.WordLevel({"the": 0, "<unk>": 1}, unk_token="<unk>")).to_str())
    path.write_text(json.dumps(document | sections))
    return path


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}}, "field normalizer.type = 'Precompiled'; allowed are"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "field pre_tokenizer.type = 'FixedLength'"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1 << 62, "stop": 0}]}}, r"decoders\[0\].start"),
        ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}}, "normalizer.pattern = ''; allowed is text of 1"),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[no]", "type_id": 0}}], "pair": [], "special_tokens": {}}},
            r"post_processor.single holds '\[no\]'; allowed are tokens of",
        ),
        ({"model": {"type": "Magic"}}, "field model.type = 'Magic'"), ({"normalizer": "NFC"}, "field normalizer.type"),
    ],
)  # fmt: skip
def test_parts_of_a_tokenizer_that_end_the_process_are_refused(sections, message, tmp_path):
    with pytest.raises(UserError, match=message):
        Tokenizer.from_file(tokenizer_json(tmp_path / "tokenizer.json", **sections))


def test_padding_and_truncation_of_a_file_are_left_out(tmp_path):
    padding = {"strategy": {"Fixed": 10**11}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    path = tokenizer_json(tmp_path / "tokenizer.json", padding=padding, truncation=truncation, pre_tokenizer={"type": "Whitespace"})
    assert Tokenizer.from_file(path).encode("the the x") == [0, 0, 1]


def test_token_numbers_beyond_the_vocabulary_count(tmp_path):
    path = tokenizer_json(tmp_path / "tokenizer.json", model={"type": "WordLevel", "vocab": {"the": 4_000_000, "<unk>": 1}, "unk_token": "<unk>"})
    assert Tokenizer.from_file(path).vocab == 4_000_001
