"""Required bytes against an independent count: set bits of streams in which everything that is required is ones and padding is zeros."""

import numpy as np
import pytest

from headrace.hw.machine import load_machine
from headrace.mapping.required import required_bytes, required_bytes_by_op, required_prefill_bytes
from headrace.mapping.stream import pack_stream
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.scheme import load_scheme, matrix_bytes

ODD = DecoderConfig(name="odd", vocab=1003, width=80, layers=3, heads=6, kv_heads=2, head_dim=32, ffn=208, tie_embeddings=True)


def ones(machine, rows: int, columns: int, bits: int) -> int:
    """Set bits of a packed matrix whose codes, metadata and scales are all ones."""
    groups = -(-columns // 32)
    codes = np.full((rows, columns), -1, np.int8) if bits == 8 else np.full((rows, columns), 15, np.uint8)
    scale = np.full(rows, 0xFFFFFFFF, np.uint32).view(np.float32)
    words = pack_stream(machine, codes, bits, scale, np.full((rows, groups), 255, np.uint8), np.full((rows, groups), -1, np.int16))
    return int(np.unpackbits(words).sum())


@pytest.mark.parametrize("preset", ["nano", "micro"])
@pytest.mark.parametrize("scheme_name", ["w4a8kv8", "w8a8kv8"])
def test_weights_are_the_set_bits_of_the_streams(preset, scheme_name):
    machine, scheme = load_machine(preset), load_scheme(scheme_name)
    by_op = required_bytes_by_op(ODD, scheme, 1)
    for name in LINEAR_NAMES:
        rows, columns = ODD.linear_shape(name)
        bits = ODD.layers * ones(machine, rows, columns, scheme.bits_of(name))
        assert by_op[name] == pytest.approx(bits / 8, abs=ODD.layers)  # a matrix is rounded up to whole bytes
    assert by_op["lm_head"] == ones(machine, ODD.vocab, ODD.width, 8) // 8
    assert by_op["embedding"] == ones(machine, 1, ODD.width, 8) // 8


def test_cache_counts_codes_and_scales_of_every_token_once_per_kv_head():
    scheme = load_scheme("w4a8kv8")
    by_op = required_bytes_by_op(ODD, scheme, 17)
    per_token_and_head = 32 + 4
    assert by_op["scores"] == by_op["values"] == 17 * ODD.layers * ODD.kv_heads * per_token_and_head


def test_batch_and_prefill_read_weights_once():
    scheme = load_scheme("w4a8kv8")
    one, four = (int(required_bytes(ODD, scheme, 9, batch=b)) for b in (1, 4))
    own = (80 + 4) + 9 * 2 * ODD.layers * ODD.kv_heads * 36
    assert four - one == 3 * own
    assert required_prefill_bytes(ODD, scheme, 9) - one == 8 * (80 + 4)


def test_smollm2_step_is_the_design_figure():
    """89.7 MB of codes and metadata; row scales add 0.9 %."""
    from headrace.models.registry import model_config

    config, scheme = model_config("smollm2-135m"), load_scheme("w4a8kv8")
    linears = sum(n * k for n, k in map(config.linear_shape, LINEAR_NAMES))
    codes = config.layers * linears * 4.625 / 8 + config.vocab * config.width
    assert codes == pytest.approx(89.7e6, rel=1e-3)
    by_op = required_bytes_by_op(config, scheme, 0)
    total = int(required_bytes(config, scheme, 0))
    rows = config.layers * sum(config.linear_shape(name)[0] for name in LINEAR_NAMES) + config.vocab
    assert total == codes + 4 * rows + by_op["embedding"]


def test_widths_of_single_tensors_count():
    scheme = load_scheme("w4a8kv8", ["tensor_bits={layers.1.q: 8, layers.2.q: 2, layers.0.down: 3}"])
    plain, found = (required_bytes_by_op(ODD, one, 1) for one in (load_scheme("w4a8kv8"), scheme))
    assert {name for name in found if found[name] != plain[name]} == {"q", "down"}
    q = [matrix_bytes(192, 80, bits) for bits in (4, 8, 2)]
    assert found["q"] == sum(q) and found["down"] == 2 * matrix_bytes(80, 208, 4) + matrix_bytes(80, 208, 3)
