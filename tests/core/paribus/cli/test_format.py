"""Differences between two specs, by slot and without defaults."""

from __future__ import annotations

import pytest

from paribus.cli._format import format_value, spec_differences
from paribus.registry import Index, installed
from paribus.specs import resolved


@pytest.fixture(scope="module")
def index() -> Index:
    return installed(no_plugins=True).index


def differences(index: Index, base_words: list[str], variant_words: list[str]) -> dict[str, tuple[str, str]]:
    base_spec, variant_spec = (
        resolved(*words, registry=installed(no_plugins=True)) for words in (base_words, variant_words)
    )
    return {
        key: (base_value, variant_value)
        for key, base_value, variant_value in spec_differences(base_spec, variant_spec, index)
    }


def test_equal_specs_differ_in_nothing(index: Index) -> None:
    assert not differences(index, ["bert-tiny"], ["bert-tiny"])


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("attention=mqa", "attention", ("mha", "mqa")),
        ("attention.scores.qk_norm=true", "attention.scores.qk_norm", ("false", "true")),
        (
            "attention={name: gqa, kv_heads: 1, scores: {bias: false}}",
            "attention",
            ("mha", "gqa(kv_heads=1, scores=(bias=false))"),
        ),
        ("attention=[mha, {name: restricted, window: 8}]", "attention", ("mha", "[mha, restricted(window=8)]")),
        ("objective=mlm", "objective.nsp", ("nsp", "-")),
        ("objective=[{name: mlm, rate: 0.3}, nsp]", "objective.mlm.rate", ("0.15", "0.3")),
        ("position=none", "position", ("learned", "none")),
        ("dims.layers=3", "dims.layers", ("2", "3")),
    ],
)
def test_a_change_is_told_in_the_words_that_make_it(
    index: Index, override: str, key: str, expected: tuple[str, str]
) -> None:
    changes = differences(index, ["bert-tiny"], ["bert-tiny", override])
    assert changes[key] == expected
    assert len(changes) == 1


def test_a_component_inside_another_is_told_as_one(index: Index) -> None:
    moe = {"name": "moe", "expert": {"name": "glu", "inner": 7}}
    assert "glu(inner=7)" in format_value(moe, "feedforward", index)
