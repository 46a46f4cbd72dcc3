"""`headrace ladder`: the levels side by side, and the bars that they are held to."""

import json

import pytest

from headrace.cli import main

pytestmark = pytest.mark.cosim


def test_levels_agree(capsys):
    assert main(["ladder", "--scheme", "w4a8kv8", "--prefill", "2", "--tokens", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in document["rows"]] == ["w4a8kv8, prefill of 2", "w4a8kv8, step at 3"]
    for row in document["rows"]:
        assert row["error"] == row["cycle"] / row["rtl"] - 1
        assert row["analytic"] > 0
    assert document["worst"] == max(abs(row["error"]) for row in document["rows"])
    assert document["mean"] <= 0.005 and document["worst"] <= 0.02
    assert document["analytic_mean"] <= 0.03


def test_a_prompt_that_does_not_fit(capsys):
    assert main(["ladder", "--prefill", "100000"]) == 2
    assert "--prefill 100000" in capsys.readouterr().err
