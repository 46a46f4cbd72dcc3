"""Tokenizers of GGUF files: SentencePiece's BPE against its own rule, written out here; splits of byte-level BPE; and lists that lie."""

import random

import gguf
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from headrace.models.formats import gguf_tokenizer
from headrace.models.errors import UserError
from headrace.models.formats.gguf_file import GgufFile
from headrace.models.formats.gguf_tokenizer import MAX_TOKEN_CHARACTERS, SPACE, merges_of_scores, read_tokenizer
from headrace.models.registry import model_entry, weights_path

SEED = 23
NORMAL, UNKNOWN, CONTROL, OWN, BYTE = 1, 2, 3, 4, 6
CORPUS = [
    "The water turns the wheel, and the wheel turns the stone.", "A headrace brings water to the mill; 12 mills, 144 stones.",
    "the there then them these those  with  two  spaces", "aaaa aaa aa a", "banana bandana cabana", "\u00e9t\u00e9 \u00e0 la \u00e9cole \u4f60\u597d\u4f60",
]  # fmt: skip
TEXTS = [
    "the wheel", "  leading and  double spaces ", "line\nline\n\n\ttab", "1234567 + 89", "", " ", "caf\u00e9 na\u00efve \u00df", "\u4f60\u597d, \u4e16\u754c",
    "\U0001f600\U0001f468\u200d\U0001f469", "it's they'LL we've", "a" * 41, "x=1;y=[2,3]\r\n",
]  # fmt: skip


def spoken(model: str, tokens, types, **fields) -> dict[str, object]:
    return {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types} | {
        f"tokenizer.ggml.{key}": value for key, value in fields.items()
    }


def read(path, fields: dict[str, object], vocab: int | None = None):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return read_tokenizer(GgufFile(path), len(fields["tokenizer.ggml.tokens"]) if vocab is None else vocab)


@pytest.fixture(scope="module")
def pieces():
    """Piece -> score as SentencePiece gives them: the characters last, a merged piece minus the step at which it was made."""
    library = Library(models.BPE())
    library.train_from_iterator([text.replace(" ", SPACE) for text in CORPUS], trainers.BpeTrainer(vocab_size=180, show_progress=False))
    vocab = sorted(library.get_vocab().items(), key=lambda item: item[1])
    merged = [token for token, _ in vocab if len(token) > 1]
    single = [token for token, _ in vocab if len(token) == 1]
    return {token: -float(rank) for rank, token in enumerate(merged + single)}


def llama(pieces, **fields):
    tokens = ["<unk>", "<s>", "</s>", "[own]", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, OWN] + [BYTE] * 256 + [NORMAL] * len(pieces)
    numbers = {"scores": [0.0] * 260 + list(pieces.values()), "unknown_token_id": 0, "bos_token_id": 1, "add_bos_token": False}
    return spoken("llama", tokens, types, **(numbers | fields))


def by_the_rule(text: str, pieces: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: join the neighbours that make the piece of the highest score, the leftmost of equals, until there are none."""
    symbols = list(text)
    while True:
        best = max(
            ((pieces[left + right], -at) for at, (left, right) in enumerate(zip(symbols, symbols[1:], strict=False)) if left + right in pieces),
            default=None,
        )
        if best is None:
            break
        at = -best[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [token for symbol in symbols for token in ([symbol] if symbol in pieces else [f"<0x{byte:02X}>" for byte in symbol.encode()])]


@pytest.mark.parametrize("prefix", [False, True])
def test_scores_do_what_sentencepiece_does(pieces, prefix, tmp_path):
    fields = llama(pieces, add_space_prefix=prefix)
    tokenizer, tokens = read(tmp_path / "x.gguf", fields), fields["tokenizer.ggml.tokens"]
    rng = random.Random(SEED)
    alphabet = sorted({character for text in CORPUS for character in text}) + ["\u00f1", "\n", "\u4e16", "\U0001f600"]
    texts = TEXTS + CORPUS + ["".join(rng.choice(alphabet) for _ in range(rng.randrange(40))) for _ in range(300)]
    texts += ["".join(rng.choice(list(pieces)) for _ in range(8)).replace(SPACE, " ") for _ in range(300)]
    for text in texts:
        marked = ((" " if prefix and text else "") + text).replace(" ", SPACE)
        assert [tokens[token] for token in tokenizer.encode(text)] == by_the_rule(marked, pieces), f"seed {SEED}: {text!r}"
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_way_to_make_a_piece_by_falling_score(monkeypatch):
    merges = merges_of_scores({"a": -9.0, "b": -8.0, "ab": -2.0, "aba": -1.0, "ba": -3.0, "cab": 0.0})
    assert merges == [("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a")]
    monkeypatch.setattr(gguf_tokenizer, "MAX_MERGES", 3)
    with pytest.raises(ValueError, match="more than the 3 ways"):
        merges_of_scores({"a" * length: 0.0 for length in range(1, 4)} | {"b": 0.0, "bb": 0.0})


def test_special_tokens_of_sentencepiece(pieces, tmp_path):
    fields = llama(pieces, add_bos_token=True, add_space_prefix=False)
    tokenizer = read(tmp_path / "x.gguf", fields)
    assert tokenizer.add_bos and tokenizer.encode("") == [1]
    ids = tokenizer.encode("the[own]</s>the")
    assert ids[0] == 1 and ids[2:4] == [3, 2] and ids[1] == ids[4]
    assert tokenizer.decode(ids) == "the[own]the"  # the user's own tokens are text, control tokens are not
    assert read(tmp_path / "y.gguf", {k: v for k, v in fields.items() if not k.endswith("add_bos_token")}).add_bos  # llama.cpp's default


def test_without_bytes_what_is_no_token_is_unknown(pieces, tmp_path):
    fields = spoken(
        "llama", ["<unk>", *pieces], [UNKNOWN] + [NORMAL] * len(pieces), scores=[0.0, *pieces.values()], unknown_token_id=0, add_bos_token=False,
        add_space_prefix=False,
    )  # fmt: skip
    tokenizer = read(tmp_path / "x.gguf", fields)
    assert tokenizer.encode("\U0001f600\U0001f600") == [0]
    del fields["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(UserError, match="unknown_token_id is missing"):
        read(tmp_path / "x.gguf", fields)


def byte_level(pre: str, **fields) -> dict[str, object]:
    """The 256 bytes, each a token, and two words, one of them without the merges that make it."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return spoken("gpt2", [*characters, "<s>", "he", "whole"], [NORMAL] * len(characters) + [CONTROL, NORMAL, NORMAL], pre=pre, merges=["h e"], **fields)


@pytest.mark.parametrize(
    ("pre", "text", "splits"),
    [
        ("gpt-2", "we'Ve 12345 x", ["we", "'", "Ve", "\u012012345", "\u0120x"]),
        ("smollm", "we've 123", ["we", "'ve", "\u0120", "1", "2", "3"]),
        ("llama-bpe", "we'Ve 12345 x\r\n\r\n  y", ["we", "'Ve", "\u0120", "123", "45", "\u0120x", "\u010d\u010a\u010d\u010a", "\u0120", "\u0120y"]),
        ("llama-bpe", "a.b!?\n c", ["a", ".b", "!?\u010a", "\u0120c"]),
        ("qwen2", "we'Ve 123 x", ["we", "'Ve", "\u0120", "1", "2", "3", "\u0120x"]),
        ("qwen2", "e\u0301", ["\u00c3\u00a9"]),  # NFC: one character
    ],
)
def test_splits_are_those_of_the_published_tokenizers(pre, text, splits, tmp_path):
    backend = read(tmp_path / "x.gguf", byte_level(pre, add_bos_token=False))._backend
    normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
    assert [split for split, _ in backend.pre_tokenizer.pre_tokenize_str(normal)] == splits


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_texts_come_back(pre, tmp_path):
    tokenizer = read(tmp_path / "x.gguf", byte_level(pre, add_bos_token=False))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama_3_takes_whole_words(tmp_path):
    fields = byte_level("llama-bpe", bos_token_id=256)
    tokenizer = read(tmp_path / "x.gguf", fields)
    assert fields["tokenizer.ggml.tokens"][256] == "<s>" and tokenizer.encode("whole") == [256, 258]
    assert len(read(tmp_path / "y.gguf", byte_level("gpt-2")).encode("whole")) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model = 'bert'; allowed are 'gpt2'"), ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": [0.0]}, "scores must hold"), ({"token_type": [1]}, "token_type has 1 entries"), ({"bos_token_id": 10**6}, "bos_token_id = 1000000; allowed is 0 to"),
        ({"bos_token_id": None}, "bos_token_id is missing"), ({"add_eos_token": True}, "add_eos_token = True; allowed is False"),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_named(pieces, change, message, tmp_path):
    fields = llama(pieces, add_bos_token=True) | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.gguf", fields)


def test_tokens_that_do_not_fit_are_named(pieces, tmp_path):
    fields = llama(pieces)
    key = "tokenizer.ggml.tokens"
    cases = (
        (fields[key][:-1] + ["x" * (MAX_TOKEN_CHARACTERS + 1)], None, "has 513 characters; allowed are 512"),
        (fields[key][:-1] + ["<s>"], None, "the same token twice"), (fields[key], 7, "entries; allowed is 7, the embedding's rows"),
    )  # fmt: skip
    for tokens, vocab, message in cases:
        with pytest.raises(UserError, match=message):
            read(tmp_path / "x.gguf", fields | {key: tokens}, vocab)
    fields["tokenizer.ggml.scores"][-1] = float("nan")
    with pytest.raises(UserError, match="finite numbers"):
        read(tmp_path / "x.gguf", fields)


@pytest.mark.nightly
@pytest.mark.skipif(weights_path(model_entry("gemma3-270m")) is None, reason="run `headrace models pull gemma3-270m` first")
def test_gemma():
    """Token numbers as the sentencepiece package gives them for a model made of this file's lists."""
    file = GgufFile(weights_path(model_entry("gemma3-270m")))
    tokenizer = read_tokenizer(file, model_entry("gemma3-270m").config.vocab)
    assert tokenizer.encode("The capital of France is") == [2, 818, 5279, 529, 7001, 563]
    assert tokenizer.encode(" lead") == [2, 2080] and tokenizer.encode("\u0bf5") == [2, 462, 413, 419]  # a space is kept; bytes
    text = "Hello  world 123\n\n  it's fine\u2019 \u00e9 \u4f60\u597d\t."
    expected = [
        2, 9259, 138, 12392, 236743, 236770, 236778, 236800, 108, 138, 509, 236789, 236751, 5851, 236858, 1559, 43758, 237389, 255968, 236761,
    ]  # fmt: skip
    assert tokenizer.encode(text) == expected and tokenizer.decode(expected) == text
    assert tokenizer.decode(tokenizer.encode("<start_of_turn>user\nHi<end_of_turn>")) == "user\nHi"
