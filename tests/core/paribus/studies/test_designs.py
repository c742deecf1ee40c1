"""Designs make the variants that were asked for: all of them, once each."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.studies.designs import DESIGNS, Variation, format_value, named_variant, variant_count

axes = st.dictionaries(
    st.sampled_from(["attention", "norm", "position", "optimizer.lr"]),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True),
    min_size=1,
    max_size=3,
)


@given(axes)
def test_one_at_a_time_changes_one_key_in_each_variant(vary: dict[str, list[str]]) -> None:
    variants = list(DESIGNS["one-at-a-time"](Variation(vary=vary)))
    assert [variant.changes for variant in variants] == [((key, value),) for key in vary for value in vary[key]]
    assert all(variant.is_explicit for variant in variants)


@given(axes)
def test_a_grid_is_the_product_of_its_axes(vary: dict[str, list[str]]) -> None:
    cells = {tuple(dict(variant.changes).items()) for variant in DESIGNS["grid"](Variation(vary=vary))}
    pairs = [[(key, value) for value in values] for key, values in vary.items()]
    assert cells == set(itertools.product(*pairs))


@given(axes, st.sampled_from(["one-at-a-time", "grid"]))
def test_the_size_of_a_design_is_known_without_making_it(vary: dict[str, list[str]], design: str) -> None:
    varied = Variation(vary=vary)
    assert variant_count(design, varied) == len(list(DESIGNS[design](varied)))


def test_a_list_has_the_listed_variants() -> None:
    variants: list[dict[str, object]] = [{"attention": "mqa", "norm": "rmsnorm"}, {"dropout": 0.1}]
    assert [dict(variant.changes) for variant in DESIGNS["list"](Variation(variants=variants))] == variants


def test_a_design_that_varies_nothing_has_no_variant() -> None:
    assert variant_count("grid", Variation()) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("mqa", "mqa"),
        ({"name": "gqa", "kv_heads": 2}, "gqa(kv_heads=2)"),
        ({"name": "mha"}, "mha"),
        (["mlm", "nsp"], "[mlm,nsp]"),
        (None, "null"),
        (True, "true"),
        (0.001, "0.001"),
    ],
)
def test_a_variant_is_named_by_what_it_changes(value: object, text: str) -> None:
    assert format_value(value) == text
    assert named_variant(("attention", value)).name == f"attention={text}"


def test_a_long_value_does_not_make_a_long_name() -> None:
    assert len(format_value("x" * 500)) < 100


def test_a_listed_variant_may_have_a_name() -> None:
    result = list(DESIGNS["list"](Variation(variants=[{"name": "narrow", "dims.width": 8}, {"dims.width": 8}])))
    assert [variant.name for variant in result] == ["narrow", "dims.width=8"]
    assert [variant.changes for variant in result] == [(("dims.width", 8),)] * 2
