"""Model files that lie: whole tiny files, mutated in their structure and in their bytes, and the loaders run on them.

`python tests/mutations.py KIND SEED COUNT FOLDER` mutates COUNT (or FIRST-LAST) files of KIND, or of every kind for `all`, one after the
other, and prints one JSON line of counts a kind. A mutation may end in success or in a UserError of one line. Anything else ends the
process: another exception with its traceback, more than `TIME_LIMIT_S` by SIGALRM (which no code in Rust can hold up), more than
`MEMORY_LIMIT_BYTES` by a MemoryError or an abort. FOLDER keeps the arguments and the files of the mutation that was running.
"""

import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace.models.architectures import describe
from headrace.models.configfile import validate
from headrace.models.errors import MAX_LINE, UserError
from headrace.models.formats.gguf_decoder import load_gguf, read_gguf_config
from headrace.models.formats.hf import load_hf, read_hf_config
from headrace.models.packed import Made, load_packed, read_packed_config, save_packed
from headrace.models.scheme import Scheme
from headrace.models.formats.tokenizer import Tokenizer
from headrace.sim.calibrate import Method, calibrated
from headrace.sim.golden import GoldenExecutor
from headrace.sim.session import nan_named

TIME_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 2 << 30
TEXT = "The wheel turns 12 times,  it's \u00e9 \u4f60\u597d \U0001f600\n\tx"
CONFIGS = Path(__file__).parent / "data" / "hf_configs"
SAVED_CONFIGS = Path(__file__).parent / "data" / "hf_logits"

NUMBERS = [0, 1, 2, 3, 7, 31, 255, 1 << 15, (1 << 16) + 1, 1 << 20, (1 << 22) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1]
# Raw JSON values, some of which no writer would write.
VALUES = [
    "null", "true", "false", "0", "-1", "1", "2", "3", "7", "64", "1048576", "4194304", "2147483648", "4294967296", "9223372036854775808",
    "18446744073709551616", "1" + "0" * 300, "1" + "0" * 5000, "0.5", "-0.0", "1e308", "1e999", "1e-320", "NaN", "Infinity", "-Infinity", '""',
    '"x"', '"1"', '"' + "a" * 100_000 + '"', '"\\u0000"', '"\\ud800"', '"../x"', '"\u2581"', "[]", "{}", "[[]]", "[1]", '["x"]', "[null]",
    "[" + "0," * 2000 + "0]", '{"a": {"b": 1}}', "[" * 50 + "]" * 50, "[" * 500 + "]" * 500, "[" * 960 + "]" * 960, "[" * 100_000,
    '{"a":' * 940 + "1" + "}" * 940, "nul", "'x'", "01", "+1", "1,", "//",
]  # fmt: skip


# Bytes.


def mutated_bytes(rng: random.Random, data: bytes, limit: int | None = None) -> bytes:
    """Flips, cuts, repeats, and numbers written over others, below byte `limit` where it is given."""
    data, limit = bytearray(data), min(limit or len(data), len(data))
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(max(limit, 1))
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([data[at] ^ (1 << rng.randrange(8))]) if data else b""
            case 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 40)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case 5:
                data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
            case 6:
                data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        limit = min(limit, len(data))
    return bytes(data)


# JSON.


def mutated_json(rng: random.Random, document: object, values: list[str] = VALUES) -> bytes:
    """The text of `document` with one to three of its nodes replaced, left out, repeated or renamed; or with its bytes mutated."""
    if rng.random() < 0.15:
        return mutated_bytes(rng, json.dumps(document).encode())
    document = json.loads(json.dumps(document))
    raw: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = [(parent, key) for parent in containers(document) for key in (parent if isinstance(parent, dict) else range(len(parent)))]
        if not places:
            break
        parent, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):  # the same key twice
                raw.append(json.dumps(parent[key]) + f", {json.dumps(key)}: {rng.choice(values)}")
                parent[key] = f"@RAW{len(raw) - 1}@"
            case 2:
                other_parent, other = rng.choice(places)
                if isinstance(other_parent, dict) and other not in other_parent or isinstance(other_parent, list) and other >= len(other_parent):
                    continue
                parent[key] = json.loads(json.dumps(other_parent[other]))
            case 3 if isinstance(parent[key], int) and not isinstance(parent[key], bool):
                parent[key] += rng.choice([-1, 1, 8, -parent[key], parent[key]])
            case _:
                raw.append(rng.choice(values))
                parent[key] = f"@RAW{len(raw) - 1}@"
    text = json.dumps(document)
    for number, value in enumerate(raw):
        text = text.replace(f'"@RAW{number}@"', value)
    return text.encode("utf-8", "surrogatepass")


def containers(node: object):
    if isinstance(node, (dict, list)) and node:
        yield node
        for child in node.values() if isinstance(node, dict) else node:
            yield from containers(child)


# GGUF.

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


class Lie:
    """Bytes to be written as they are, in place of a value."""

    def __init__(self, raw: bytes):
        self.raw = raw


def packed(kind: int, value: object) -> bytes:
    if isinstance(value, Lie):
        return value.raw
    if kind == STRING:
        raw = value.encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(raw)) + raw
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(packed(element, item) for item in items)
    return struct.pack("<" + _FORMATS[kind], value)


def gguf_bytes(document: dict) -> bytes:
    """A GGUF file of `fields` [key, type, value] and `tensors` [name, dimensions, type, offset], whatever they claim."""
    header = b"GGUF" + struct.pack("<IQQ", document["version"], document["tensor_count"], document["field_count"])
    for key, kind, value in document["fields"]:
        header += packed(STRING, key) + struct.pack("<I", kind & 0xFFFFFFFF) + packed(kind, value)
    for name, dimensions, kind, offset in document["tensors"]:
        header += packed(STRING, name) + struct.pack("<I", len(dimensions))
        header += b"".join(struct.pack("<Q", length) for length in dimensions) + struct.pack("<IQ", kind, offset)
    return header + bytes(-len(header) % 32) + document["data"]


def gguf_document(tokenizer: str) -> dict:
    """A whole model of one layer, 256 wide, in many of the block types. `tokenizer`: 'gpt2' or 'llama'."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if tokenizer == "gpt2":
        tokens, merges = ["<s>", *alphabet, "he", "th", "the"], ["h e", "t h", "t he", "th e"]
        types, scores = [3] + [1] * (len(tokens) - 1), None
    else:
        words = ["\u2581", "t", "h", "e", "he", "th", "the", "\u2581the", "w", "a", "l"]
        tokens, merges = ["<unk>", "<s>", "[own]", *(f"<0x{byte:02X}>" for byte in range(256)), *words], None
        types, scores = [2, 3, 4] + [6] * 256 + [1] * len(words), [0.0] * 259 + [-float(n) for n in range(len(words))]
    numbers = {
        "block_count": 1, "embedding_length": 256, "feed_forward_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2,
        "context_length": 64,
    }  # fmt: skip
    fields = [["general.architecture", STRING, "llama"], ["general.alignment", U32, 32]]
    fields += [[f"llama.{key}", U32, value] for key, value in numbers.items()]
    fields += [["llama.attention.layer_norm_rms_epsilon", F32, 1e-5], ["llama.rope.freq_base", F32, 10000.0]]
    fields += [
        ["tokenizer.ggml.model", STRING, tokenizer], ["tokenizer.ggml.pre", STRING, "llama-bpe"], ["tokenizer.ggml.tokens", ARRAY, (STRING, tokens)],
        ["tokenizer.ggml.token_type", ARRAY, (I32, types)], ["tokenizer.ggml.bos_token_id", U32, 0], ["tokenizer.ggml.add_bos_token", BOOL, 1],
        ["tokenizer.ggml.unknown_token_id", U32, 0], ["tokenizer.ggml.add_space_prefix", BOOL, 1], ["tokenizer.ggml.add_eos_token", BOOL, 0],
    ]  # fmt: skip
    if merges:
        fields.append(["tokenizer.ggml.merges", ARRAY, (STRING, merges)])
    if scores:
        fields.append(["tokenizer.ggml.scores", ARRAY, (F32, scores)])
    kinds = iter([12, 2, 6, 8, 13, 14, 11, 10, 20, 3, 7])
    shapes = {"token_embd": (len(tokens), 256), "output_norm": (256,), "blk.0.attn_norm": (256,), "blk.0.ffn_norm": (256,)}
    shapes |= {f"blk.0.{name}": (256, 256) for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}": (128, 256) for name in ("attn_k", "attn_v")}
    tensors, data = [], b""
    for name, shape in shapes.items():
        kind = next(kinds) if len(shape) == 2 else 0
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        tensors.append([name + ".weight", list(shape[::-1]), kind, len(data)])
        data += bytes(int(np.prod(shape)) // elements * size)  # zeros: every scale is finite
    return {"version": 3, "tensor_count": len(tensors), "field_count": len(fields), "fields": fields, "tensors": tensors, "data": data}


STRINGS = ["", " ", "x", "\x1b[2J", "a b", "\u2581", "\u2581\u2581", "<s>", "<0x41>", "\x00", "\n", "\U0001f600", "\u0301", "$A:0", "bos:1", "a" * 1000, "\u2581" * 2000, "ab" * 40_000]


def mutated_array(rng: random.Random, value: tuple) -> tuple:
    kind, items = value[0], list(value[1])
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        at = rng.randrange(len(items) + 1)
        match rng.randrange(6):
            case 0:
                del items[at : at + rng.choice([1, 1, 5, 1000])]
            case 1:
                items[at:at] = items[: rng.choice([1, 2, 300])]
            case 2 if kind == STRING:
                items[at : at + 1] = [Lie(struct.pack("<Q", rng.choice(NUMBERS)) + b"abc")]
            case 3 if kind == STRING:
                items[at : at + 1] = [Lie(struct.pack("<Q", 2) + bytes([rng.randrange(256), rng.randrange(256)]))]
            case _:
                items[at : at + 1] = [number(rng, kind)]
    return kind, items


def number(rng: random.Random, kind: int) -> object:
    """A value of the GGUF value type `kind`."""
    if kind == STRING:
        return rng.choice(STRINGS)
    if kind in (F32, F64):
        return Lie(struct.pack("<" + _FORMATS[kind], rng.choice([0.0, -1.0, 1e-30, 3e38, float("nan"), float("inf"), -float("inf"), 0.5])))
    raw = struct.pack("<Q", rng.choice(NUMBERS))
    return Lie(raw[: struct.calcsize(_FORMATS[kind])])


def mutate_tokens(rng: random.Random, fields: list[list]) -> None:
    """Other tokens, types, scores and merges, in lists that still go together."""
    lists = {key: list(value[1]) for key, kind, value in fields if kind == ARRAY}
    tokens, types = lists["tokenizer.ggml.tokens"], lists["tokenizer.ggml.token_type"]
    for _ in range(rng.choice([1, 4, 32, 200])):
        at = rng.randrange(len(tokens))
        new = rng.choice([rng.choice(STRINGS), rng.choice(tokens) + rng.choice(tokens), chr(rng.randrange(1, 0xD800)), "ab" * rng.randrange(500)])
        tokens[at] = new if new not in tokens else tokens[at]
        types[rng.randrange(len(types))] = rng.choice([-1, 0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 1 << 30])
    if "tokenizer.ggml.scores" in lists:
        for _ in range(rng.choice([0, 10, 300])):
            lists["tokenizer.ggml.scores"][rng.randrange(len(tokens))] = rng.choice([0.0, -0.0, 1e-40, -3e38, 3e38, 1.0, float("nan"), float("inf")][: rng.choice([6, 6, 8])])
    if "tokenizer.ggml.merges" in lists:
        whole = set(tokens)
        pairs = [f"{token[:at]} {token[at:]}" for token in tokens for at in range(1, min(len(token), 50)) if token[:at] in whole and token[at:] in whole]
        lists["tokenizer.ggml.merges"] = rng.sample(pairs, len(pairs)) + rng.choice([[], pairs, ["a b"], [" "], [""]])
    flags = {"add_bos_token": [0, 1, 2], "add_space_prefix": [0, 1], "bos_token_id": [0, 1, 5, len(tokens) - 1, len(tokens)], "unknown_token_id": [0, 7, len(tokens)]}
    for field in fields:
        key = field[0].removeprefix("tokenizer.ggml.")
        if field[0] in lists:
            field[2] = (field[2][0], lists[field[0]])
        elif key in flags and rng.random() < 0.3:
            field[2] = rng.choice(flags[key])
        elif key == "pre":
            field[2] = rng.choice(["gpt-2", "llama-bpe", "qwen2", "smollm", "smollm", "default"])


def mutate_gguf(rng: random.Random, folder: Path, base: dict) -> Path:
    path = folder / "m.gguf"
    document = base | {"fields": [list(field) for field in base["fields"]], "tensors": [[*tensor] for tensor in base["tensors"]]}
    if rng.random() < 0.4:
        if rng.random() < 0.8:
            mutate_tokens(rng, document["fields"])
        else:  # blocks of anything
            document["data"] = rng.randbytes(len(document["data"])) if rng.random() < 0.5 else mutated_bytes(rng, document["data"])
        path.write_bytes(gguf_bytes(document))
        return path
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        fields, tensors = document["fields"], document["tensors"]
        match rng.randrange(14):
            case 0:
                document[rng.choice(["version", "tensor_count", "field_count"])] = rng.choice(NUMBERS[:14])
            case 1 if fields:
                del fields[rng.randrange(len(fields))]
                document["field_count"] = len(fields)
            case 2 if fields:
                fields.insert(rng.randrange(len(fields)), rng.choice(fields))
                document["field_count"] = len(fields)
            case 3 if fields:  # another type for the same bytes
                field = rng.choice(fields)
                field[2] = Lie(packed(field[1], field[2]))
                field[1] = rng.choice([*range(14), 1 << 31])
            case 4 | 5 if fields:  # another value, perhaps of another type
                field = rng.choice(fields)
                kind = rng.choice([*_FORMATS, STRING, ARRAY, field[1], field[1]])
                if kind == ARRAY:
                    element = rng.choice([*_FORMATS, STRING, ARRAY])
                    count = rng.choice([0, 1, 300])
                    body = b"".join(packed(element, number(rng, element)) for _ in range(count)) if element != ARRAY else bytes(64)
                    field[1], field[2] = ARRAY, Lie(struct.pack("<IQ", element, rng.choice([count, rng.choice(NUMBERS)])) + body)
                else:
                    field[1], field[2] = kind, number(rng, kind)
            case 6 | 7 | 8:
                lists = [field for field in fields if field[1] == ARRAY and not isinstance(field[2], Lie)]
                if lists:
                    field = rng.choice(lists)
                    field[2] = mutated_array(rng, field[2])
            case 9 if tensors:
                tensor = rng.choice(tensors)
                tensor[2] = rng.choice([*range(40), 1 << 31])
            case 10 if tensors:
                tensor = rng.choice(tensors)
                tensor[1] = [rng.choice([length, length, rng.choice(NUMBERS)]) for length in tensor[1]] + [1] * rng.choice([0, 0, 1, 4, 200])
            case 11 if tensors:
                rng.choice(tensors)[3] = rng.choice([*NUMBERS, 32, 64])
            case 12 if tensors:
                if rng.random() < 0.5:
                    tensors.append(list(rng.choice(tensors)))
                else:
                    rng.choice(tensors)[0] = rng.choice([*STRINGS, "output.weight", "rope_freqs.weight"])
                document["tensor_count"] = len(tensors)
            case 13:
                document["data"] = mutated_bytes(rng, document["data"])
    raw = gguf_bytes(document)
    if rng.random() < 0.3:
        raw = mutated_bytes(rng, raw, rng.choice([None, 64, len(raw) - len(document["data"])]))
    path.write_bytes(raw)
    return path


def load_mutated_gguf(path: Path) -> None:
    try:
        read_gguf_config(path)
    except UserError:
        pass
    read_all(load_gguf(path))


def read_all(model) -> None:
    for name in model.weights:
        assert model.weights[name].shape == model.config.weight_shapes()[name]
    for name in model.codes:
        assert model.codes[name].codes.shape == model.config.weight_shapes()[name]
    if model.tokenizer is not None:
        speak(model.tokenizer)


def speak(tokenizer: Tokenizer) -> None:
    for text in (TEXT, TEXT * 20, ""):
        assert isinstance(tokenizer.decode(tokenizer.encode(text)), str)


# Hugging Face folders.

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "rope_theta": 5000.0, "rope_scaling": None, "tie_word_embeddings": False, "bos_token_id": 1,
    "torch_dtype": "float16", "head_dim": 8,
}  # fmt: skip
SHAPES = {"model.embed_tokens": (40, 32), "lm_head": (40, 32), "model.norm": (32,)} | {
    f"model.layers.0.{name}": shape for name, shape in {
        "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32),
        "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48), "input_layernorm": (32,), "post_attention_layernorm": (32,),
    }.items()
}  # fmt: skip


def safetensors_header(names: list[str]) -> tuple[dict, bytes]:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for number, name in enumerate(names):
        dtype, width = [("F16", 2), ("BF16", 2), ("F32", 4)][number % 3]
        size = int(np.prod(SHAPES[name])) * width
        header[name + ".weight"] = {"dtype": dtype, "shape": list(SHAPES[name]), "data_offsets": [at, at + size]}
        at += size
    return header, bytes(at)


def safetensors_bytes(header: bytes, data: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + data


def mutate_safetensors(rng: random.Random, folder: Path, sharded: bool) -> Path:
    for path in folder.iterdir():
        path.unlink()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = list(SHAPES)
    shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]} if sharded else {"model.safetensors": names}
    hurt = rng.choice([*shards, "index"] if sharded else [*shards])
    values = [*VALUES, '"F64"', '"I8"', "[32]", "[32, 1, 1]", "[1024, 0]", "[4294967296, 4294967296]", "[0, 18446744073709551615]"]
    for file, part in shards.items():
        header, data = safetensors_header(part)
        text, claimed = json.dumps(header).encode(), None
        if file == hurt:
            match rng.randrange(5):
                case 0:
                    claimed = rng.choice([*NUMBERS, len(text) - 1, len(text) + 1])
                case 1:
                    data = mutated_bytes(rng, data)
                case _:
                    text = mutated_json(rng, header, values)
        raw = safetensors_bytes(text, data, claimed)
        (folder / file).write_bytes(mutated_bytes(rng, raw, rng.choice([None, 64])) if file == hurt and rng.random() < 0.2 else raw)
    if sharded:
        index = {"metadata": {"total_size": 1}, "weight_map": {name + ".weight": file for file, part in shards.items() for name in part}}
        odd = ['"model-2.safetensors"', '"../model-1.safetensors"', '"/etc/passwd.safetensors"', '"a\\u0000.safetensors"', '"\\ud800.safetensors"', '".safetensors"']
        text = mutated_json(rng, index, VALUES + odd * 4) if hurt == "index" else json.dumps(index).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)
    return folder


def mutate_config(rng: random.Random, folder: Path) -> Path:
    base = rng.choice([CONFIG, *sorted(CONFIGS.glob("*.json")), *sorted(SAVED_CONFIGS.glob("*.json"))])
    document = json.loads(base.read_text()) if isinstance(base, Path) else base
    document = document.get("config", document)  # of a file with logits
    (folder / "config.json").write_bytes(mutated_json(rng, document))
    return folder


def load_mutated_config(folder: Path) -> None:
    """Both readers on every file; refused where neither takes it."""
    try:
        counted = describe(folder).counted
    except UserError:
        read_hf_config(folder)
    else:
        assert counted.parameters > 0 and counted.macs_per_token >= 0
        try:
            read_hf_config(folder)
        except UserError:
            pass


# Packed files.


def packed_documents(folder: Path) -> list[tuple[dict, bytes]]:
    """(header, data) of packed files: dense, sparse, of other families, with a tokenizer."""
    from dataclasses import replace

    from float_families import family

    tokenizer = Tokenizer.from_bytes(json.dumps(tokenizer_documents()[-1]).encode(), "own")
    found = []
    for name, scheme in (
        ("llama", {"weight_bits": 4}), ("opt", {"weight_bits": 4, "sparsity": {"n": 8}}), ("gemma3", {"weight_bits": 3, "tensor_bits": {"layers.1.q": 8}}),
    ):  # fmt: skip
        method = Method(rounding="nearest", pruning="magnitude", mixed=True)
        model = calibrated(replace(family(name), tokenizer=tokenizer), validate(Scheme, {"name": "x", **scheme}, source="x"), method, None)
        path = folder / "whole.headrace"
        save_packed(path, model, Made(model=name, rounding="nearest", scaling="none"))
        raw = path.read_bytes()
        path.unlink()
        (length,) = struct.unpack("<Q", raw[:8])
        found.append((json.loads(raw[8 : 8 + length]), raw[8 + length :]))
    return found


def mutate_packed(rng: random.Random, folder: Path, bases: list[tuple[dict, bytes]]) -> Path:
    path = folder / "m.headrace"
    header, data = rng.choice(bases)
    header = json.loads(json.dumps(header))
    metadata, text, claimed = header["__metadata__"], None, None
    match rng.randrange(8):
        case 0 | 1 | 2:
            section = rng.choice(["config", "scheme", "linears", "made"])
            metadata[section] = mutated_json(rng, json.loads(metadata[section])).decode("utf-8", "replace")
        case 3:
            text = mutated_json(rng, header, [*VALUES, '"F16"', '"I8"', '"I16"', "[32]", "[1024, 0]", "[4294967296, 4294967296]"])
        case 4:
            claimed = rng.choice(NUMBERS)
        case 5:
            data = mutated_bytes(rng, data)
        case 6:  # one tensor's bytes alone
            start, end = rng.choice([entry for name, entry in header.items() if name != "__metadata__"])["data_offsets"]
            data = data[:start] + mutated_bytes(rng, data[start:end]).ljust(end - start, b"\xff")[: end - start] + data[end:]
        case 7:
            other = rng.choice(bases)[0]["__metadata__"]
            metadata[rng.choice(list(metadata))] = rng.choice(list(other.values()))
    text = json.dumps(header).encode() if text is None else text
    raw = safetensors_bytes(text, data, claimed)
    path.write_bytes(mutated_bytes(rng, raw, rng.choice([None, 64])) if rng.random() < 0.1 else raw)
    return path


def load_mutated_packed(path: Path) -> None:
    """A whole file is run, too: what was let through must decode."""
    model = load_packed(path).model
    assert read_packed_config(path)[0] == model.config and model.required_bytes > 0
    if model.tokenizer is not None:
        speak(model.tokenizer)
    with nan_named(model.config), np.errstate(all="ignore"):
        GoldenExecutor(model).step(0)


# tokenizer.json.


def tokenizer_documents() -> list[dict]:
    """Tokenizers of every kind of model and of many of the steps around it."""
    words = ["the wheel turns", "the water and the mill", "12 mills, 144 stones"]
    bpe = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"), normalizers.NFKC()])
    bpe.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bpe.train_from_iterator(words, trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>", "<s>"], show_progress=False))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    byte_level = Library(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern=" ", behavior="isolated"), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    byte_level.decoder, byte_level.post_processor = decoders.ByteLevel(), processors.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level.train_from_iterator(words, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    byte_level.enable_padding(length=20)
    byte_level.enable_truncation(max_length=10, stride=2)
    piece = Library(models.WordPiece(vocab={"[UNK]": 0, "[CLS]": 1, "the": 2, "##s": 3, "w": 4}, unk_token="[UNK]", max_input_chars_per_word=50))
    piece.normalizer, piece.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    piece.decoder, piece.post_processor = decoders.WordPiece(), processors.BertProcessing(("[CLS]", 1), ("[CLS]", 1))
    unigram = Library(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), ("the", -2.0), ("e", -3.0), ("\u2581the", -2.5)], unk_id=0, byte_fallback=False))
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    level = Library(models.WordLevel({"the": 0, "<unk>": 1}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    return [json.loads(library.to_str()) for library in (bpe, byte_level, piece, unigram, level)]


PARTS = [
    '{"type": "Split", "pattern": {"Regex": "(((a{1000}){1000}){1000}){1000}"}, "behavior": "Isolated", "invert": false}',
    '{"type": "Split", "pattern": {"Regex": "(.*)*(.*)*\\\\d+$"}, "behavior": "Isolated", "invert": false}',
    '{"type": "FixedLength", "length": 0}', '{"type": "FixedLength", "length": 18446744073709551615}', '{"type": "Prepend", "prepend": ""}',
    '{"type": "Replace", "pattern": {"String": ""}, "content": "xx"}', '{"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}',
    '{"type": "Replace", "pattern": {"Regex": "("}, "content": "x"}', '{"type": "Split", "pattern": {"Regex": "x*"}, "behavior": "Isolated", "invert": true}',
    '{"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": false}', '{"type": "Strip", "content": " ", "start": 9223372036854775807, "stop": 3}',
    '{"type": "Strip", "strip_left": true, "strip_right": true}', '{"type": "Precompiled", "precompiled_charsmap": "AAAA"}',
    '{"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}', '{"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": []}',
    '{"strategy": {"Fixed": 100000000000}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}',
    '{"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}',
    '{"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}', '{"direction": "Left", "max_length": 1, "strategy": "OnlySecond", "stride": 0}',
    '{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "nope", "type_id": 0}}], "pair": [], "special_tokens": {}}',
    '{"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}', '{"type": "UnicodeScripts"}', '{"type": "Punctuation", "behavior": "Contiguous"}',
    '{"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}', '{"type": "BPEDecoder", "suffix": ""}', '{"type": "Nmt"}', '{"type": "ByteFallback"}',
    '{"type": "Metaspace", "replacement": "xy", "prepend_scheme": "always", "split": true}', '{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}',
    '{"type": "RobertaProcessing", "sep": ["x", 99], "cls": ["y", 4294967295], "trim_offsets": true, "add_prefix_space": true}',
    '{"id": 7, "content": "", "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true}',
    '{"id": 4294967295, "content": "the", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true, "special": false}',
]  # fmt: skip


SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders"}
SECTIONS = [*SEQUENCES, "padding", "truncation"]


def mutate_tokenizer(rng: random.Random, folder: Path, bases: list[dict]) -> Path:
    path = folder / "tokenizer.json"
    document = json.loads(json.dumps(rng.choice(bases)))
    if rng.random() < 0.6:
        parts = [json.loads(part) for part in PARTS] + [other[section] for other in bases for section in SECTIONS if other[section] is not None]
        section = rng.choice(SECTIONS)
        document[section] = rng.choice(parts)
        if rng.random() < 0.5 and section in SEQUENCES:
            document[section] = {"type": "Sequence", SEQUENCES[section]: rng.choices(parts, k=rng.choice([0, 1, 1, 2, 5]))}
        if rng.random() < 0.5:
            path.write_text(json.dumps(document))
            return path
    # A vocabulary has most of the nodes: only now and then one of them.
    keep = document["model"].pop("vocab", None) if rng.random() < 0.7 else None
    text = mutated_json(rng, document, VALUES + PARTS)
    if keep is not None:
        text = text.replace(b'"model": {', b'"model": {"vocab": ' + json.dumps(keep).encode() + b", ", 1)
    path.write_bytes(text)
    return path


# All.


def kinds() -> dict[str, tuple[Callable, Callable]]:
    """Kind -> the function that writes a mutated file, and the one that loads it."""
    byte_level, sentence_piece, spoken = gguf_document("gpt2"), gguf_document("llama"), tokenizer_documents()
    with tempfile.TemporaryDirectory() as folder:
        compressed = packed_documents(Path(folder))
    return {
        "gguf": (lambda rng, folder: mutate_gguf(rng, folder, byte_level), load_mutated_gguf),
        "gguf-sentencepiece": (lambda rng, folder: mutate_gguf(rng, folder, sentence_piece), load_mutated_gguf),
        "safetensors": (lambda rng, folder: mutate_safetensors(rng, folder, False), lambda folder: read_all(load_hf(folder))),
        "shards": (lambda rng, folder: mutate_safetensors(rng, folder, True), lambda folder: read_all(load_hf(folder))),
        "config": (mutate_config, load_mutated_config),
        "packed": (lambda rng, folder: mutate_packed(rng, folder, compressed), load_mutated_packed),
        "tokenizer": (lambda rng, folder: mutate_tokenizer(rng, folder, spoken), lambda path: speak(Tokenizer.from_file(path))),
    }


KINDS = ("gguf", "gguf-sentencepiece", "safetensors", "shards", "config", "packed", "tokenizer")


def run(kind: str, seed: int, numbers: range, folder: Path) -> dict[str, object]:
    """Mutate and load, once for each of `numbers`; how many succeeded and were refused, and the slowest."""
    write, load = kinds()[kind]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    files = folder / "files"
    counts = {"succeeded": 0, "refused": 0}
    slowest = 0.0
    for number in numbers:
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        (folder / "reached").write_text(f"{kind} {seed} {number}-{number + 1}")
        path = write(random.Random(f"{seed} {kind} {number}"), files)
        signal.alarm(TIME_LIMIT_S)
        started = time.monotonic()
        try:
            load(path)
            counts["succeeded"] += 1
        except UserError as error:
            assert str(error).isprintable() and len(str(error)) < 10 * MAX_LINE, str(error)[:200]
            counts["refused"] += 1
        signal.alarm(0)
        slowest = max(slowest, time.monotonic() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"kind": kind} | counts | {"slowest_s": round(slowest, 2), "peak_mib": peak >> 10}


if __name__ == "__main__":
    _, kind, seed, count, folder = sys.argv
    first, _, last = count.rpartition("-")
    for one in KINDS if kind == "all" else (kind,):
        print(json.dumps(run(one, int(seed), range(int(first or 0), int(last)), Path(folder))), flush=True)
