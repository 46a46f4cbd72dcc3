"""`headrace estimate` and `compare` of any architecture, and of transforms: keys, bounds, sums, agreement with the detailed way, refusals."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from headrace import cli
from headrace.mapping.required import required_bytes, required_prefill_bytes
from headrace.mapping.transforms import TRANSFORMS, Work
from headrace.models.architectures.graph_of_config import graph_of_config
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme
from headrace.sim.gpu import fp16_bytes

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
LAYERS = ("num_hidden_layers", "n_layer")


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def document(capsys, *arguments) -> dict:
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def config(tmp_path: Path, name: str, layers: int = 2, **change) -> str:
    """A config.json in a folder, with fewer layers."""
    found = json.loads((CONFIGS / f"{name}.json").read_text())
    found |= {field: layers for field in LAYERS if field in found} | change
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(found))
    return str(folder)


def estimate(capsys, path: str, *arguments, machine: str = "nano") -> dict:
    return document(capsys, "estimate", path, machine, *arguments)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json") if not path.stem.startswith(("llama", "bert"))))
def test_every_config_is_estimated(capsys, tmp_path, name):
    """The keys of a Llama's estimate, energies that sum, rates that agree, operators that add up."""
    d = estimate(capsys, config(tmp_path, name), "--prefill", "6", "--decode", "3", "--by-op")
    assert (d["model"], d["cost_model"], d["kind"], d["transforms"]) == (name, "graph", "estimated", [])
    llama = document(capsys, "estimate", "embedded", "nano", "--prefill", "6", "--decode", "3", "--by-op")
    assert llama["cost_model"] == "schedule"
    assert set(llama) - {"note"} <= set(d)
    for part in ("prefill", "decode", "total", "memory"):
        assert set(llama[part]) <= set(d[part])
    assert d["total"]["energy_j"] == pytest.approx(sum(d["energy_by"].values()))
    assert d["decode"]["tokens_per_s"] == pytest.approx(3 / d["decode"]["latency_s"])
    assert d["missing"] and "no machine of version 1" in d["note"]
    for phase in ("prefill", "decode"):
        ops = [op for op in d["ops"] if op["phase"] == phase]
        assert 0 <= sum(op["cycles"] for op in ops) - d[phase]["cycles"] <= len(ops)
        assert all(0 <= value <= 1 for value in d[phase]["utilisation"].values())
        assert sum(op["macs"] for op in ops) > 0 and all(min(op["bytes"], op["macs"], op["count"]) >= 0 for op in ops)
    state = name.startswith(("mamba", "rwkv"))
    assert (d["memory"]["kv_bytes_per_token"] == 0) == state == (d["memory"]["state_bytes"] > 0)


def test_a_whole_config_json_is_enough(capsys):
    d = estimate(capsys, str(CONFIGS / "mixtral-8x7b.json"), "--context", "512", machine="milli")
    assert d["architecture"] == "MixtralForCausalLM" and not d["memory"]["fits"]
    # 46.7 B weights, 4 bits and metadata of 20 bits for 32 of them, 8 bits of embedding and head.
    assert d["memory"]["weight_bytes"] == pytest.approx(46.7e9 * (4 + 20 / 32) / 8, rel=0.01)
    assert d["step"]["context"] == 512


def test_a_plain_llama_goes_the_detailed_way_from_folder_and_file(capsys, tmp_path):
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "hidden_size": 128,
             "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
             "max_position_embeddings": 256}  # fmt: skip
    (tmp_path / "m").mkdir()
    for path in (tmp_path / "m" / "config.json", tmp_path / "m.json"):
        path.write_text(json.dumps(llama))
    folder, in_folder, file = (
        estimate(capsys, str(path), "--prefill", "6", "--decode", "3") for path in (tmp_path / "m", tmp_path / "m" / "config.json", tmp_path / "m.json")
    )
    assert folder["cost_model"] == "schedule" and {folder["model"], in_folder["model"], file["model"]} == {"m"}
    assert folder["decode"] == in_folder["decode"] == file["decode"]
    # A bias is no plain Llama's: the graph has it, and is slower for it.
    (tmp_path / "m.json").write_text(json.dumps(llama | {"attention_bias": True}))
    biased = estimate(capsys, str(tmp_path / "m.json"), "--prefill", "6", "--decode", "3")
    assert biased["cost_model"] == "graph" and biased["missing"] == ["bias"]
    assert 1 < biased["decode"]["cycles"] / folder["decode"]["cycles"] < 1.05


@pytest.mark.parametrize("how", [["--prefill", "9", "--decode", "5"], ["--context", "40"], ["--context", "40", "--batch", "3"]])
def test_the_graph_of_a_llama_agrees_with_its_schedule(capsys, how):
    """Through every number of the document; a batch of the transform is that of the option."""
    one = document(capsys, "estimate", "embedded", "nano", *how)
    batch = "3" if "--batch" in how else "1"
    other = document(capsys, "estimate", "embedded", "nano", *[a for a in how if a not in ("--batch", "3")], "--transform", f"batch:size={batch}")
    assert (one["cost_model"], other["cost_model"]) == ("schedule", "graph")
    for part in ("prefill", "decode", "step"):
        if part in one:
            for key in ("cycles", "latency_s", "energy_j"):
                assert other[part][key] == pytest.approx(one[part][key], rel=2e-3), (part, key)
            assert other[part]["bound"] == one[part]["bound"]
            for key, value in one[part]["utilisation"].items():
                assert other[part]["utilisation"][key] == pytest.approx(value, rel=2e-3), (part, key)
    for key in ("weight_bytes", "kv_bytes_per_token", "available_bytes", "fits"):
        assert other["memory"][key] == one["memory"][key]
    assert other["batch"] == one["batch"] and other["missing"] == []


def test_required_bytes_are_those_of_the_detailed_way():
    scheme, contexts = load_scheme("w4a8kv8"), np.array([3, 100])
    for name in ("embedded", "smollm2-135m", "llama2-7b"):
        sizes = model_config(name)
        for batch in (1, 5):
            work = Work(graph=graph_of_config(sizes), batch=batch)
            assert list(work.decode_bytes(scheme, contexts)) == list(required_bytes(sizes, scheme, contexts, batch=batch))
            assert work.prefill_bytes(scheme, 17) == required_prefill_bytes(sizes, scheme, 17, batch=batch)
            assert list(work.decode_bytes(None, contexts)) == list(fp16_bytes(sizes, contexts, batch=batch))


def test_an_encoder_has_one_pass(capsys, tmp_path):
    path = config(tmp_path, "bert-base-uncased")
    d = estimate(capsys, path, "--prefill", "12", "--by-op")
    assert d["decode"] is None and d["prefill"]["tokens"] == 12 and "no decode" in d["note"]
    assert d["total"]["latency_s"] == d["prefill"]["latency_s"]
    assert d["memory"]["kv_bytes_per_token"] == 0
    assert {op["phase"] for op in d["ops"]} == {"prefill"}
    # 12 positions, each with the head; 2 layers of 12 d^2 and two products with all 12 keys.
    macs = 12 * (2 * (12 * 768**2 + 2 * 12 * 768) + 768**2 + 30522 * 768)
    assert sum(op["macs"] for op in d["ops"]) == macs
    for option in (["--context", "5"], ["--decode", "5"]):
        status, _, err = run(capsys, "estimate", path, "nano", *option)
        assert status == 2 and "is an encoder" in err and err.count("\n") == 1
    status, _, err = run(capsys, "estimate", path, "nano", "--prefill", "513")
    assert status == 2 and "allows 1 to 512" in err


def test_a_chunked_prefill_delays_the_first_token_by_its_decode_steps(capsys):
    plain = document(capsys, "estimate", "embedded", "nano", "--prefill", "10", "--decode", "2", "--transform", "chunked-prefill:chunk=10")
    d = document(capsys, "estimate", "embedded", "nano", "--prefill", "10", "--decode", "2", "--transform", "chunked-prefill:chunk=4,decodes=2")
    chunks = d["prefill"]["chunks"]
    assert (chunks["count"], chunks["interleaved_steps"]) == (3, 4)
    assert d["prefill"]["latency_s"] == plain["prefill"]["latency_s"] == plain["prefill"]["chunks"]["first_token_s"]
    assert chunks["first_token_s"] == pytest.approx(d["prefill"]["latency_s"] + 4 * d["decode"]["first_step_s"])
    assert chunks["longest_wait_of_a_step_s"] < plain["prefill"]["chunks"]["longest_wait_of_a_step_s"] == plain["prefill"]["latency_s"]


def test_transforms_are_in_the_document_in_their_order(capsys):
    d = document(capsys, "estimate", "embedded", "nano", "--context", "20", "--transform", "gqa:kv_heads=1", "--transform", "sparse-attention:window=8")
    assert [(t["name"], t.get("kv_heads"), t.get("window")) for t in d["transforms"]] == [("gqa", 1, None), ("sparse-attention", None, 8)]
    assert all(t["source"] for t in d["transforms"]) and d["missing"] == ["sparse attention"]
    other = document(capsys, "estimate", "embedded", "nano", "--context", "20", "--transform", "sparse-attention:window=8", "--transform", "gqa:kv_heads=1")
    assert d["stamp"]["config_sha256"] != other["stamp"]["config_sha256"] and d["step"] == other["step"]


def test_speculation_is_said(capsys, tmp_path):
    sizes = model_config("embedded")
    draft = {"architectures": ["LlamaForCausalLM"], "vocab_size": sizes.vocab, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(draft))
    text = f"speculative:draft={path},k=3,acceptance=0.5"
    d = document(capsys, "estimate", "embedded", "nano", "--prefill", "4", "--decode", "4", "--by-op", "--transform", text)
    assert d["decode"]["speculative"] == {"draft": "draft", "proposed": 3, "acceptance": 0.5, "tokens_per_verification": 1.875}
    counts = {op["name"]: op["count"] for op in d["ops"] if op["phase"] == "decode"}
    assert counts["lm_head"] == pytest.approx(4 * 4 / 1.875) and counts["draft.lm_head"] == pytest.approx(4 * 3 / 1.875)
    assert "4 passes and reads the weights as often" in d["note"]
    status, out, _ = run(capsys, "estimate", "embedded", "nano", "--context", "9", "--transform", text)
    assert status == 0 and "1.875 tokens a verification" in out and "operator graph (LlamaForCausalLM), speculative" in out


def test_no_pass_lies_past_the_positions_of_the_model_or_the_draft(capsys, tmp_path):
    """A verification of k + 1 positions ends k after the token's own; the draft's last pass is one before that."""
    long = config(tmp_path, "gpt2")
    (tmp_path / "short").mkdir()
    short = config(tmp_path / "short", "gpt2", n_positions=1023)

    def words(command, model, draft, context):
        transform = ("--transform", f"speculative:draft={draft},k=3,acceptance=0.5")
        lengths = ("--context", str(context)) if command == "estimate" else ("--prefill", str(context - 1), "--decode", "1")
        status, _, err = run(capsys, command, model, *(("nano",) if command == "estimate" else ("--gpu", "A100/roofline")), *lengths, *transform)
        assert (status, err.count("\n")) == ((2, 1) if err else (0, 0))
        return err

    for command in ("estimate", "compare"):
        assert not words(command, long, long, 1021)
        assert "context = 1025 (1022, and 3 proposed tokens after it); model gpt2 allows 1 to 1024" in words(command, long, long, 1022)
        assert not words(command, long, short, 1021)
        assert "context = 1024 (1021, and 3 proposed tokens after it); model gpt2 allows 1 to 1023" in words(command, short, long, 1021)
    assert "context = 1025; model gpt2 allows 1 to 1024" in run(capsys, "compare", long, "--gpu", "A100", "--prefill", "1024", "--decode", "1")[2]
    status, _, err = run(capsys, "compare", "llama2-7b", "--gpu", "A100", "--prefill", "4096", "--decode", "1")
    assert status == 2 and "context = 4097; model llama2-7b allows 1 to 4096" in err


@pytest.mark.parametrize(
    ("field", "words"), [("tensor_bits={layers.0.q: 8}", "an operator graph has one width for a linear of all layers"), ("linear_bits={q: 8}", "linear_bits names q")]
)
def test_widths_that_a_graph_lacks_are_refused_without_a_machine(capsys, tmp_path, field, words):
    status, _, err = run(capsys, "compare", config(tmp_path, "gpt2"), "--gpu", "A100", "--set", f"scheme.{field}")
    assert (status, err.count("\n")) == (2, 1) and words in err


def test_gpu_rooflines_read_weights_once_a_verification(capsys):
    """A100, Llama-2-7B in 16 bits with TinyLlama as its draft: (4 drafts + 1 verification) of bytes for 3.36 tokens."""
    how = ["compare", "llama2-7b", "--gpu", "A100/roofline", "--prefill", "16", "--decode", "4"]
    plain = document(capsys, *how)["rows"][0]
    fast = document(capsys, *how, "--transform", "speculative:draft=tinyllama-1.1b,k=4,acceptance=0.8")["rows"][0]
    target, draft = (2 * (model_config(name).parameters - 32000 * 2048 * (name[0] == "t") - 32000 * 4096 * (name[0] == "l")) for name in
                     ("llama2-7b", "tinyllama-1.1b"))  # fmt: skip
    expected = target / ((4 * draft + target) / (1 + 0.8 + 0.64 + 0.512 + 0.4096))
    assert fast["tokens_per_s"] / plain["tokens_per_s"] == pytest.approx(expected, rel=0.01)
    assert expected > 2


def test_compare_takes_other_architectures(capsys, tmp_path):
    d = document(capsys, "compare", config(tmp_path, "gpt2"), "--machine", "nano", "--gpu", "A100/roofline", "--decode", "2", "--prefill", "3")
    machine, *gpus = d["rows"]
    assert machine["name"] == "nano" and "no machine of version 1" in machine["note"]
    assert gpus and all(row["tokens_per_s"] > machine["tokens_per_s"] for row in gpus)
    status, _, err = run(capsys, "compare", config(tmp_path, "bert-base-uncased"), "--gpu", "A100")
    assert status == 2 and "is an encoder" in err
    # Experts that a token does not take must lie in memory all the same: 93 GB in 16 bits.
    rows = document(capsys, "compare", str(CONFIGS / "mixtral-8x7b.json"), "--gpu", "A100/roofline", "--decode", "2", "--prefill", "3")["rows"]
    assert [row["dtype"] for row in rows] == ["w4a8kv8"]


def test_a_model_without_a_class_is_a_decoder_only_transformer(capsys):
    """By a name of configs/models or from GGUF: sizes are known, a published class is not."""
    status, out, _ = run(capsys, "estimate", "gemma3-270m", "nano", "--context", "4")
    assert status == 0 and "operator graph (decoder-only transformer)\n" in out


def test_help_lists_every_transform(capsys):
    status, out, _ = run(capsys, "estimate", "--help")
    assert status == 0 and all(name in out for name in TRANSFORMS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--level", "cycle"], "has no compiled program"), (["--trace", "/tmp/never-written.json"], "has no compiled schedule"),
        (["--scheme", "w4a8kv8", "--set", "scheme.linear_bits={q: 8}"], "linear_bits names q; GPT2LMHeadModel has"),
        (["--set", "scheme.weight_bits=3"], "decode 4 and 8 bits"), (["--context", "1025"], "allows 1 to 1024"), (["--prefill", "1000000000"], "allows 1 to 1024"), (["--transform", "gpa"], "'gpa' is unknown"),
        (["--transform", "gqa:kv_heads=5"], "divisor of the 12 heads"), (["--transform", ""], "is unknown"),
    ],
)
def test_mistakes_are_one_line_and_status_2(capsys, tmp_path, arguments, words):
    status, out, err = run(capsys, "estimate", config(tmp_path, "gpt2"), "nano", *arguments)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"architectures": ["GPT2LMHeadModel"]}', "vocab_size"), ('{"architectures": ["T5"]}', "architectures"), ("[]", "config.json"),
        ("{", "config.json"), ('{"architectures": ["MambaForCausalLM"], "vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 10000000}', "num_hidden_layers"),
        ('{"architectures": {"a": 1}}', "architectures"), ('{"architectures": null}', "architectures"),
    ],
)
def test_a_lying_file_is_one_line_and_status_2(capsys, tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    status, out, err = run(capsys, "estimate", str(tmp_path), "nano")
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_a_length_without_end_is_refused_before_it_is_counted(capsys):
    status, _, err = run(capsys, "estimate", str(CONFIGS / "mamba-130m.json"), "nano", "--decode", "10000000000")
    assert status == 2 and "allows 1 to 1048576" in err


def test_sizes_at_the_limits_do_not_wrap_around(capsys, tmp_path):
    path = config(tmp_path, "mistral-7b", 1, num_attention_heads=4096, head_dim=1 << 20, sliding_window=None)
    d = estimate(capsys, path, "--context", str(1 << 20), "--batch", str(1 << 20), "--by-op")
    scores = next(op for op in d["ops"] if op["name"] == "scores")
    assert scores["macs"] == 2 ** (20 + 12 + 20 + 20)


RANDOM = (
    "batch:size={n}", "gqa:kv_heads={n}", "moe:experts=8,active={n},ffn=256", "kv-quantisation:bits={bits}", "sparse-attention:window={n}",
    "sparse-attention:window={n},sinks=3,stride={n}", "sparse-attention:block={n},blocks=2,sinks=5", "token-pruning:keep=0.{digit},from={few}",
    "low-rank:linears={linear},rank={n}", "state-space:attention_every={few}", "early-exit:exits=1:0.{digit}",
    "speculative:draft={draft},k={n},acceptance=0.{digit}", "chunked-prefill:chunk={n},decodes={few}",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_random_models_and_transforms_are_estimated_or_refused(capsys, tmp_path, seed):
    """Bounds are asserted inside; a refusal is one line. The seed is in the test's name."""
    generator, answered = random.Random(seed), 0
    for _ in range(40):
        name = generator.choice([path.stem for path in CONFIGS.glob("*.json")])
        path, draft = config(tmp_path, name, generator.randint(1, 4)), tmp_path / "draft.json"
        draft.write_text((Path(path) / "config.json").read_text())
        arguments = []
        for text in generator.choices(RANDOM, k=generator.randint(0, 3)):
            values = {"n": generator.choice([1, 2, 3, 4, 8, 16, 64]), "bits": generator.choice([2, 4, 8, 16]), "digit": generator.randint(0, 9),
                      "few": generator.randint(0, 2), "linear": generator.choice(["q", "up", "o", "qkv", "down", "in", "key"])}  # fmt: skip
            arguments += ["--transform", text.format(draft=draft, **values)]
        arguments += generator.choice([["--context", "17"], ["--prefill", "9", "--decode", "3", "--by-op"], ["--prefill", "7"]])
        status, out, err = run(capsys, "estimate", path, generator.choice(["nano", "micro", "milli"]), *arguments, "--json")
        assert status in (0, 2) and err.count("\n") == (status == 2), arguments
        answered += status == 0
        if status == 0:
            d = json.loads(out)
            parts = [d[part] for part in ("prefill", "decode", "step") if d.get(part)]
            assert all(part["cycles"] > 0 and part["energy_j"] > 0 for part in parts)
            assert all(0 <= value <= 1 for part in parts for value in part["utilisation"].values())
    assert answered >= 10


def test_tables(capsys, tmp_path):
    status, out, _ = run(capsys, "estimate", config(tmp_path, "mamba-130m"), "nano", "--prefill", "4", "--decode", "2", "--by-op")
    assert status == 0 and "state 233472 bytes a sequence" in out and "selective_scan" in out
    status, out, _ = run(capsys, "estimate", config(tmp_path, "bert-base-uncased"), "nano", "--prefill", "4")
    assert status == 0 and "prefill" in out and "decode  " not in out
