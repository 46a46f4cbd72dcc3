"""Reading, overriding and validating configuration files; every refusal names file, field, value, allowed."""

import pytest
from pydantic import Field

from headrace.models import configfile
from headrace.models.configfile import StrictModel, apply_overrides, find_config, load_model, parse_override, read_yaml, validate
from headrace.models.errors import UserError


class Inner(StrictModel):
    depth: int = Field(ge=1, le=9)


class Outer(StrictModel):
    inner: Inner
    many: tuple[Inner, ...] = Field(default=(), strict=False)
    rate: float = 1.0


def write(tmp_path, text):
    path = tmp_path / "thing.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_error_is_one_line():
    assert str(UserError("two\n  lines")) == "two lines"


def test_read_yaml(tmp_path):
    assert read_yaml(write(tmp_path, "a: {b: 1_000}\nc: [1, 2]\n")) == {"a": {"b": 1000}, "c": [1, 2]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "line 2: field 'a' is given twice"),
        ("x: {b: 1, b: 2}\n", "field 'x.b' is given twice"),
        ("x: [{b: 1, b: 2}]\n", "field 'x[0].b' is given twice"),
        ("a: &n [1]\nb: *n\n", "anchors and aliases are not allowed"),
        ("- 1\n", "holds list, but a mapping"),
        ("", "holds NoneType, but a mapping"),
        ("a: [1\n", "is not valid YAML at line"),
        ("a: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        ("a: 2001-99-99\n", "cannot be read"),
        ("? [1, 2]\n: 3\n", "a key must be a plain name"),
        ("a: 1\nclock_hz: 3:45\n", "line 2: field 'clock_hz': 3:45 means to YAML a number of base 60"),
        ("a: {b: [1, 3:45.5]}\n", "field 'a.b[1]': 3:45.5 means to YAML a number of base 60"),
        ("a: !!int '3:45'\n", "base 60"),
        ("a: -010\n", "field 'a': -010 means to YAML a number of base 8"),
        ("a: off\n", "field 'a': off means to YAML true or false"),
        ("on: 1\n", "field 'on': on means to YAML true or false"),
        ("<<: {a: 1}\nb: 2\n", "a merge of mappings"),
        (b"a: \xff\n", "is not UTF-8"),
        ("a: " + "[" * 200 + "]" * 200, "nested deeper than"),
    ],
)
def test_refused_yaml(tmp_path, text, words):
    with pytest.raises(UserError) as caught:
        read_yaml(write(tmp_path, text))
    assert words in str(caught.value)
    assert "thing.yaml" in str(caught.value)


def test_size_limit_is_exact(tmp_path):
    fits = "a: " + "x" * (configfile.MAX_BYTES - 3)
    assert len(read_yaml(write(tmp_path, fits))["a"]) == configfile.MAX_BYTES - 3
    with pytest.raises(UserError, match="is larger than the 1048576 bytes"):
        read_yaml(write(tmp_path, fits + "x"))


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")


def test_find_by_name_ignores_case():
    assert find_config("boards", "U280") == configfile.configs_root() / "boards" / "u280.yaml"


def test_find_by_path(tmp_path):
    path = write(tmp_path, "a: 1")
    assert find_config("machines", str(path)) == path


@pytest.mark.parametrize("name", ["nosuch", "", "..", "na no", "nano\n"])
def test_unknown_name_lists_the_known(name):
    with pytest.raises(UserError, match="allowed: .*nano"):
        find_config("machines", name)


def test_a_name_stays_in_its_kind():
    with pytest.raises(UserError, match="is not a file"):
        find_config("machines", "../boards/u280")
    with pytest.raises(ValueError, match="unknown kind"):
        find_config("../boards", "u280")


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("300e6", 300e6), ("1.5e-3", 1.5e-3), ("true", True), ("null", None), ("w4", "w4"), ("[1, 2]", [1, 2]), ("a=b", "a=b"),
     ("0", 0), ("0.5", 0.5), ("1_000", 1000), ("0x10", 16), ("'3:45'", "3:45"), ("a:b", "a:b"), ("FALSE", False)],  # fmt: skip
)
def test_override_values(text, value):
    path, parsed = parse_override(f"x.y={text}")
    assert (path, parsed) == ("x.y", value)
    assert type(parsed) is type(value)


@pytest.mark.parametrize("value", ["!!bool x", '!!int ""', "!!timestamp x", "!!float x", "2024-13-45"])
def test_a_value_that_does_not_fit_its_tag(tmp_path, value):
    """PyYAML ends in KeyError, IndexError or AttributeError on some of these."""
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(write(tmp_path, f"a: {value}"))
    with pytest.raises(UserError, match="--set a: the value"):
        parse_override(f"a={value}")


@pytest.mark.parametrize("text", ["x", "=3", "x..y=3", ".x=3", "x={", "x=&a 1", "x=3:45", "x=[010]", "x=yes", "x={a: 1, a: 2}"])
def test_malformed_override(text):
    with pytest.raises(UserError, match="--set"):
        parse_override(text)


def test_overrides_apply_in_order_to_a_copy():
    document = {"a": {"b": 1, "c": [{"d": 2}]}, "e": 3}
    result = apply_overrides(document, ["a.b=5", "a.b=6", "a.c.0.d=7", "e=x"])
    assert result == {"a": {"b": 6, "c": [{"d": 7}]}, "e": "x"}
    assert document == {"a": {"b": 1, "c": [{"d": 2}]}, "e": 3}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("a.x=1", "no field 'x' at a; allowed: b, c"),
        ("x=1", "no field 'x' at the top level; allowed: a, e"),
        ("a.b.c=1", "a.b is a single value"),
        ("a.c.1=1", "allowed: an index below 1"),
        ("a.c.-1=1", "allowed: an index below 1"),
        ("a=1", "'a' is a group of fields, not a value; set one of its fields: b, c"),
    ],
)
def test_unknown_override_path(override, words):
    with pytest.raises(UserError) as caught:
        apply_overrides({"a": {"b": 1, "c": [2]}, "e": 3}, [override])
    assert words in str(caught.value)


def test_split_overrides():
    assert configfile.split_overrides(["board.dsp=1", "board=u280", "scheme.kv_bits=8", "machine.clock_hz=1", "memory.p=1"]) == {
        "machine": ["board=u280", "clock_hz=1", "memory.p=1"],
        "board": ["dsp=1"],
        "scheme": ["kv_bits=8"],
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"inner": {"depth": 3, "width": 1}}, "field 'inner.width' = 1 is unknown; allowed: depth"),
        ({"inner": {"depth": 3}, "many": [{"dept": 1, "depth": 2}]}, "field 'many.0.dept' = 1 is unknown; allowed: depth"),
        ({"innner": 1, "inner": {"depth": 3}}, "field 'innner' = 1 is unknown; allowed: inner, many, rate"),
        ({}, "field 'inner' is missing"),
        ({"inner": {"depth": 10}}, "field 'inner.depth' = 10: input should be less than or equal to 9"),
        ({"inner": {"depth": True}}, "field 'inner.depth' = True"),
        ({"inner": {"depth": "3"}}, "field 'inner.depth' = '3'"),
        ({"inner": {"depth": 3}, "rate": float("nan")}, "field 'rate' = nan"),
        ({"inner": {"depth": 0}, "rate": "x"}, "(and 1 more)"),
    ],
)
def test_validation_names_the_field(document, words):
    with pytest.raises(UserError) as caught:
        validate(Outer, document, source="file.yaml")
    assert str(caught.value).startswith("file.yaml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_model_overrides_defaults_and_lists(tmp_path):
    path = write(tmp_path, "inner: {depth: 3}\nmany: [{depth: 4}]\n")
    loaded = load_model(Outer, "machines", path, ["rate=2.5", "many.0.depth=5"])
    assert loaded == Outer(inner=Inner(depth=3), many=(Inner(depth=5),), rate=2.5)
    with pytest.raises(UserError, match="with --set inner.depth=0: field 'inner.depth' = 0"):
        load_model(Outer, "machines", path, ["inner.depth=0"])


def test_hash_depends_on_every_value_and_not_on_key_order():
    digest = configfile.config_sha256({"a": 1, "b": [1, 2]})
    assert digest == configfile.config_sha256({"b": (1, 2), "a": 1})
    assert digest != configfile.config_sha256({"a": 1, "b": [2, 1]})
