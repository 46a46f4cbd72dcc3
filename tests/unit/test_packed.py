"""Packed files: what is saved is what is loaded, bit for bit; what a file claims beyond that is refused."""

import json
import os
import struct
from dataclasses import fields, replace

import numpy as np
import pytest
import safetensors
from float_families import FAMILIES, SIZES, family

from headrace.models.compressed import load_compressed, scheme_of
from headrace.models.configfile import validate
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.packed import Made, _pack_bits, _unpack_bits, load_packed, read_packed_config, save_packed
from headrace.models.quantise import QuantisedLinear, QuantisedModel
from headrace.models.registry import load_model, model_config
from headrace.models.scheme import Scheme, weight_bytes
from headrace.sim.calibrate import Method, calibrated
from headrace.sim.golden import GoldenExecutor

SEED = 20261130
MADE = Made(model="m", rounding="gptq", scaling="none", pruning="wanda", calibration="a.txt", seed=7)
SCHEMES = {
    "dense 4": {"weight_bits": 4}, "dense 2, groups of 128": {"weight_bits": 2, "group": 128}, "dense 3": {"weight_bits": 3},
    "dense 8": {"weight_bits": 8}, "kinds": {"weight_bits": 5, "group": 64, "linear_bits": {"down": 6, "q": 8}},
    "single tensors": {"weight_bits": 4, "tensor_bits": {"layers.0.down": 8, "layers.1.q": 2}},
    "sparse": {"weight_bits": 4, "sparsity": {"n": 8}}, "sparse 8": {"weight_bits": 8, "sparsity": {"n": 4, "index_share": 1}},
    "mixed": {"weight_bits": 3, "group": 64, "sparsity": {"n": 8, "index_share": 2}}, "all kept": {"weight_bits": 4, "sparsity": {"n": 16}},
}


def scheme(name):
    return validate(Scheme, {"name": name.replace(" ", "-"), **SCHEMES[name]}, source=name)


def compressed(family_name="llama", scheme_name="dense 4", **changes):
    method = Method(rounding="nearest", pruning="magnitude", mixed=scheme_name == "mixed")
    return calibrated(family(family_name, **changes), scheme(scheme_name), method, None)


def assert_same(found, expected, where=""):
    """Every field of two dataclasses, arrays with their types."""
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape and np.array_equal(found, expected), where
    elif isinstance(expected, (QuantisedLinear, QuantisedModel)):
        for field in fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name), f"{where}.{field.name}")
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected), where
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{where}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for name in expected:
            assert_same(found[name], expected[name], f"{where}.{name}")
    elif type(expected).__name__ == "Tokenizer":
        assert found.to_json() == expected.to_json()
    else:
        assert found == expected and type(found) is type(expected), where


@pytest.mark.parametrize(
    ("family_name", "scheme_name"), [*(("llama", name) for name in SCHEMES), *((name, "dense 4") for name in FAMILIES), ("opt", "mixed"), ("gemma3", "single tensors")]
)
def test_what_is_saved_is_loaded(family_name, scheme_name, tmp_path):
    model = compressed(family_name, scheme_name)
    path = tmp_path / "m.headrace"
    save_packed(path, model, MADE)
    packed = load_packed(path)
    assert packed.made == MADE
    assert_same(packed.model, model)
    assert (packed.model.lm_head is packed.model.embedding) == model.config.tie_embeddings
    assert packed.model.required_bytes == model.required_bytes
    tokens = np.random.default_rng(SEED).integers(0, model.config.vocab, 8).tolist()
    logits = [GoldenExecutor(one).prefill(tokens, all_positions=True) for one in (packed.model, model)]
    assert np.array_equal(*logits) and np.isfinite(logits[0]).all()
    assert read_packed_config(path) == (model.config, model.scheme, MADE) and model_config(path) == model.config


def test_widths_that_divide_nothing(tmp_path):
    """70 inputs: the last group is short, and codes of a row end inside a byte."""
    for bits in (2, 3, 5, 6, 8):
        model = calibrated(family("llama", width=70, ffn=37, heads=2, kv_heads=2, head_dim=10), validate(Scheme, {"name": "x", "weight_bits": bits}, source="x"), Method(rounding="nearest"), None)
        save_packed(tmp_path / "m.headrace", model, MADE)
        assert_same(load_packed(tmp_path / "m.headrace").model, model)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_packed_least_significant_bit_first(bits):
    values = np.random.default_rng(SEED).integers(0, 1 << bits, 37).astype(np.uint8)
    number = sum(int(value) << (bits * place) for place, value in enumerate(values))
    packed = _pack_bits(values, bits)
    assert packed.tobytes() == number.to_bytes(-(-37 * bits // 8), "little")
    assert np.array_equal(_unpack_bits(packed, bits, 37), values)


def test_the_embedded_model_with_its_tokenizer(tmp_path):
    loaded = load_model("embedded")
    model = calibrated(loaded, scheme("dense 4"), Method(rounding="nearest"), None)
    path = tmp_path / "m.headrace"
    save_packed(path, model, MADE)
    sizes, again = load_compressed(path, None, "w4a8kv8")
    assert_same(again, model)
    assert sizes.tokenizer.encode("the cat sat") == loaded.tokenizer.encode("the cat sat")
    # Metadata take 24 bits in the file and 20 in the count; the rest is header and tokenizer.
    groups = sum(linear.mult.size for layer in model.layers for linear in layer.values() if isinstance(linear, QuantisedLinear))
    rest = path.stat().st_size - model.required_bytes - groups / 2 - len(loaded.tokenizer.to_json().encode())
    assert 0 <= rest < 500 * len(model.config.weight_shapes()), rest
    assert model.required_bytes == weight_bytes(model.config, model.scheme)


def test_the_same_model_gives_the_same_bytes_and_others_can_read_them(tmp_path):
    for name in ("a.headrace", "b.headrace"):
        save_packed(tmp_path / name, compressed(scheme_name="mixed"), MADE)
    assert (tmp_path / "a.headrace").read_bytes() == (tmp_path / "b.headrace").read_bytes()
    with safetensors.safe_open(tmp_path / "a.headrace", "numpy") as file:
        assert file.metadata()["format"] == "headrace-packed-1" and json.loads(file.metadata()["made"])["seed"] == 7
        assert np.array_equal(file.get_tensor("final_norm"), compressed().final_norm)


# Writing.


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    model, path = compressed(), tmp_path / "m.headrace"
    path.write_bytes(b"what was there before")

    def full(*args, **rest):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(UserError, match="m.headrace: cannot be written: No space left"):
            save_packed(path, model, MADE)
    with monkeypatch.context() as patched:
        patched.setattr("headrace.models.formats.safetensors_file.struct.pack", full)
        with pytest.raises(UserError, match="cannot be written: No space left"):
            save_packed(path, model, MADE)
    assert path.read_bytes() == b"what was there before" and [one.name for one in tmp_path.iterdir()] == ["m.headrace"]
    save_packed(path, model, MADE)
    assert [one.name for one in tmp_path.iterdir()] == ["m.headrace"]
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode  # as readable as any file that one writes here
    for wrong in (tmp_path / "no" / "m.headrace", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            save_packed(wrong, model, MADE)


# Files that lie.


def parts(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def packed_file(tmp_path):
    def make(scheme_name="sparse", family_name="llama"):
        path = tmp_path / "m.headrace"
        save_packed(path, compressed(family_name, scheme_name), MADE)
        return path

    return make


def changed(path, section, change):
    """Let `change` alter one JSON text of the metadata."""
    header, data = parts(path)
    document = json.loads(header["__metadata__"][section])
    change(document)
    header["__metadata__"][section] = json.dumps(document)
    write(path, header, data)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("config", lambda d: d.update(vocab=41), r"tensor embedding.codes is U8 \[1280\]; allowed is U8 \[1312\]"),
        ("config", lambda d: d.update(layers=3), "tensor layers.2.attn_norm is missing"),
        ("config", lambda d: d.update(layers=1), r"linears: 'layers.1.down' is not part of this model"),
        ("config", lambda d: d.update(colour=1), "config: field colour is missing or unknown"), ("config", lambda d: d.pop("vocab"), "field vocab is missing"),
        ("config", lambda d: d.update(vocab=1 << 40), "vocab = 1099511627776; allowed is an integer from 1 to"),
        ("config", lambda d: d.update(biases=[["q"]]), "config: a field holds a list or an object"), ("config", lambda d: d.update(dtype={}), "config: a field holds a list"),
        ("config", lambda d: d.update(name=""), "config.name = ''; allowed is a text of 1 to 200"), ("config", lambda d: d.update(rms_eps=float("nan")), "rms_eps = nan"),
        ("scheme", lambda d: d.update(kv_bits=16), "scheme: kv_bits = 16; allowed by the numeric contract is 4 or 8"), ("scheme", lambda d: d.update(activation_bits=16), "activation_bits = 16"),
        ("scheme", lambda d: d.update(weight_bits=3), "linears: layers.0.q: bits = 4, group = 32; allowed are the scheme's 3 and 32"),
        ("scheme", lambda d: d.update(group=64), "allowed are the scheme's 4 and 64"), ("scheme", lambda d: d.update(sparsity=None), "sparse = true"),
        ("scheme", lambda d: d["sparsity"].update(index_share=1), "index_share = 2; the scheme's sparsity is"), ("scheme", lambda d: d.update(weight_bits=7), "scheme: field 'weight_bits' = 7"),
        ("linears", lambda d: d.pop("embedding"), "linears: embedding: field 'bits' is missing"), ("linears", lambda d: d.update(other={}), "linears: 'other' is not part"),
        ("linears", lambda d: d["embedding"].update(bits=4), "linears: embedding: bits = 4, group = 32; allowed are the scheme's 8 and 32"),
        ("linears", lambda d: d["layers.0.q"].update(sparse=False), r"tensor layers.0.q.codes is U8 \[256\]; allowed is U8 \[512\]"),
        ("linears", lambda d: d.update({"layers.0.q": 5}), "linears: layers.0.q: field 'bits' is missing"),
        ("linears", lambda d: d["embedding"].update(sparse=True), "linears: embedding: sparse = true"), ("made", lambda d: d.update(seed="x"), "made: field 'seed' = 'x'"),
    ],
)
def test_metadata_that_lie_are_refused(section, change, message, packed_file):
    path = packed_file()
    changed(path, section, change)
    with pytest.raises(UserError, match=message) as caught:
        load_packed(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("section", ["format", "config", "scheme", "linears", "made"])
def test_metadata_that_are_missing_are_refused(section, packed_file):
    path = packed_file()
    header, data = parts(path)
    del header["__metadata__"][section]
    write(path, header, data)
    with pytest.raises(UserError, match=section):
        load_packed(path)


def overwritten(path, tensor, change):
    header, data = parts(path)
    start, end = header[tensor]["data_offsets"]
    write(path, header, data[:start] + change(data[start:end]) + data[end:])


@pytest.mark.parametrize(
    ("scheme_name", "tensor", "change", "message"),
    [
        ("dense 8", "layers.0.q.codes", lambda raw: b"\xff" + raw[1:], "layers.0.q.codes holds 255; allowed are 0 to 254"),
        ("dense 4", "layers.0.q.off", lambda raw: struct.pack("<h", 2048) + raw[2:], "layers.0.q.off holds .* to 2048; allowed are -2048 to 2047"),
        ("dense 4", "layers.0.q.row_scale", lambda raw: struct.pack("<f", -1.0) + raw[4:], "row_scale holds a negative number"),
        ("dense 4", "layers.0.q.row_scale", lambda raw: struct.pack("<f", float("nan")) + raw[4:], "row_scale holds a NaN or an infinity"),
        ("dense 4", "final_norm", lambda raw: struct.pack("<f", float("inf")) + raw[4:], "final_norm holds a NaN or an infinity"),
        ("sparse", "layers.0.q.kept", lambda raw: b"\x00" + raw[1:], "layers.0.q.kept: rows of a 16 x 16 block keep different numbers"),
        ("sparse", "layers.0.q.kept", lambda raw: b"\xff\xfe" * (len(raw) // 2), "layers.0.q.kept: allowed are 2, 4, 8, 12, 16 columns of every 16"),
        ("sparse", "layers.0.q.kept", lambda raw: b"\xff" * len(raw), r"layers.0.q.codes is U8 \[256\]; allowed is U8 \[512\]"),
        ("sparse", "layers.0.q.kept", lambda raw: bytes(len(raw)), "layers.0.q.kept: allowed are 2, 4"),
    ],
)
def test_tensors_that_lie_are_refused(scheme_name, tensor, change, message, packed_file):
    path = packed_file(scheme_name)
    overwritten(path, tensor, change)
    with pytest.raises(UserError, match=message):
        load_packed(path)


def test_tensors_too_many_or_too_few_are_refused(packed_file):
    path = packed_file()
    header, data = parts(path)
    extra = header | {"spare": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    write(path, extra, data)
    with pytest.raises(UserError, match="tensor 'spare' is not part of this model"):
        load_packed(path)
    write(path, {name: entry for name, entry in header.items() if name != "layers.1.up.codes"}, data)
    with pytest.raises(UserError, match="tensor layers.1.up.codes is missing"):
        load_packed(path)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path):
    loaded = load_model("embedded")
    model = calibrated(replace(family("llama"), tokenizer=loaded.tokenizer), scheme("dense 4"), Method(rounding="nearest"), None)
    assert loaded.tokenizer.vocab > SIZES["vocab"]
    save_packed(tmp_path / "m.headrace", model, MADE)
    with pytest.raises(UserError, match=f"tokenizer has {loaded.tokenizer.vocab} tokens; allowed are up to 40"):
        load_packed(tmp_path / "m.headrace")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "m.headrace"
    with pytest.raises(UserError, match="m.headrace: cannot be read"):
        load_packed(path)
    for raw, message in ((b"", "truncated"), (b"short", "truncated"), (b"\xff" * 100, "header claims"), (struct.pack("<Q", 2) + b"{}", "format = 'None'; allowed is 'headrace-packed-1'")):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=message):
            load_packed(path)


# In place of a model.


def test_a_packed_file_has_its_own_scheme(packed_file):
    path = packed_file("dense 3")
    assert scheme_of(path, None, "w8a8kv8").weight_bits == 3
    with pytest.raises(UserError, match="--scheme w4a8kv8: .*m.headrace is compressed already; allowed is its own scheme"):
        scheme_of(path, "w4a8kv8", "w8a8kv8")
    with pytest.raises(UserError, match="--set scheme.group=64: .* is compressed already"):
        scheme_of(path, None, "w8a8kv8", ["group=64"])
    assert scheme_of("embedded", None, "w8a8kv8", ["group=64"]).group == 64
    with pytest.raises(UserError, match="holds codes, no weights"):
        load_model(path)


def test_linears_that_a_model_lacks_are_refused():
    lacking = validate(Scheme, {"name": "x", "weight_bits": 4, "tensor_bits": {"layers.2.q": 8}}, source="x")
    with pytest.raises(UserError, match="scheme x: tensor_bits.layers.2.q: model llama has no such linear; its layers are 0 to 1"):
        calibrated(family("llama"), lacking, Method(rounding="nearest"), None)
    with pytest.raises(UserError, match="tensor_bits.layers.2.q: model llama has no such linear"):
        weight_bytes(family("llama").config, lacking)
    with pytest.raises(ValueError, match="not a linear of a layer"):
        Scheme(name="x", weight_bits=4, tensor_bits={"layer.0.q": 4})
    assert DecoderConfig(name="x", **SIZES).layers == 2
