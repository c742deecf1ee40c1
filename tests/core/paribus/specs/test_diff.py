"""Differences between two specs, and the override keys that cover them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.specs.diff import MISSING, covered, differences, holds, touches
from paribus.specs.tree import get_path

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["mha", "gqa"])
specs = st.recursive(
    leaves,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from("abc"), inside, max_size=3),
    max_leaves=8,
)


def paths(left: Any, right: Any) -> list[str]:
    return [difference.path for difference in differences(left, right)]


@pytest.mark.thorough
@given(spec=specs)
def test_a_spec_does_not_differ_from_itself(spec: Any) -> None:
    assert paths(spec, spec) == []


@given(base_spec=specs, variant_spec=specs)
def test_differences_have_the_same_paths_in_both_directions(base_spec: Any, variant_spec: Any) -> None:
    forward, backward = list(differences(base_spec, variant_spec)), list(differences(variant_spec, base_spec))
    assert sorted(difference.path for difference in forward) == sorted(difference.path for difference in backward)
    assert bool(forward) == (paths({"x": base_spec}, {"x": variant_spec}) != [])


@given(base_spec=specs, variant_spec=specs)
def test_every_difference_below_a_varied_key_is_covered_by_it(base_spec: Any, variant_spec: Any) -> None:
    assert all(covered(path, ["x"]) for path in paths({"x": base_spec}, {"x": variant_spec}))
    assert not any(
        covered(path, ["y", "x.a.zz"]) for path in paths({"x": {"b": base_spec}}, {"x": {"b": variant_spec}})
    )


@pytest.mark.parametrize(
    ("base_spec", "variant_spec", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": [1, 2]}, {"a": (1, 2)}, []),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a.1"]),
        ({"a": {"b": 1}}, {}, ["a.b"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ({"data": {"workers": 0, "batch": 4}}, {"data": {"workers": 2, "batch": 8}}, ["data.batch"]),
    ],
)
def test_a_difference_has_the_path_of_the_value_that_differs(
    base_spec: Any, variant_spec: Any, expected: list[str]
) -> None:
    assert paths(base_spec, variant_spec) == expected


def test_the_text_of_a_difference_has_both_values() -> None:
    (difference,) = differences({"attention": {"window": 4}}, {"attention": {}})
    assert str(difference) == "`attention.window` is 4 in one and missing in the other"
    (difference,) = differences({"attention": {"name": "mha"}}, {"attention": "gqa"})
    assert str(difference) == "`attention` is mha in one and gqa in the other"


@pytest.mark.parametrize(
    ("path", "key", "expected"),
    [
        ("attention.kv_heads", "attention", True),
        ("attention.kv_heads", "attention.kv_heads", True),
        ("attention.kv_heads", "attention.name", False),
        ("attention_span", "attention", False),
        ("parts.decoder.attention.name", "attention", True),  # a part is resolved over the whole spec
        ("parts.decoder.cross.attention.name", "attention", True),
        ("parts.decoder.dims.layers", "dims.layers", True),
        ("attention.name", "parts.decoder.attention", False),
        ("parts.decoder.attention.name", "parts.decoder", True),
    ],
)
def test_a_key_covers_the_keys_below_it_and_the_parts_that_inherit_it(path: str, key: str, expected: bool) -> None:
    assert covered(path, [key]) == expected


def test_a_key_touches_the_keys_below_and_above_it() -> None:
    assert touches(["dims.length"], ["dims.length"])
    assert touches(["dims"], ["dims.length"])
    assert touches(["data.batch"], ["data"])
    assert touches(["parts.encoder.dims.length"], ["dims.length"])
    assert not touches(["dims.width"], ["dims.length"])
    assert not touches([], ["dims"])
    assert not touches(["dims"], [])


def test_a_value_is_found_by_its_path_in_mappings_and_lists() -> None:
    spec = {"attention": [{"name": "mha"}, {"name": "gqa", "kv_heads": 2}]}
    assert get_path(spec, "attention.1.kv_heads") == 2
    assert get_path(spec, "attention.2.kv_heads", MISSING) is MISSING
    assert get_path(spec, "attention.1.kv_heads.deeper", MISSING) is MISSING


@pytest.mark.parametrize(
    ("value", "requested", "expected"),
    [
        ({"name": "gqa", "kv_heads": 2}, "gqa", True),
        ({"name": "gqa", "kv_heads": 2}, "mha", False),
        ({"name": "gqa", "kv_heads": 2}, {"kv_heads": 2}, True),
        ({"name": "gqa", "kv_heads": 2}, {"name": "gqa", "kv_heads": 4}, False),
        ({"name": "gqa"}, {"name": "gqa", "window": 4}, False),
        ([{"name": "mlm"}], "mlm", True),
        ([{"name": "mlm"}, {"name": "nsp"}], ["mlm", "nsp"], True),
        ([{"name": "mlm"}, {"name": "nsp"}], "mlm", False),
        ([{"name": "mlm"}], ["mlm", "nsp"], False),
        ({"name": "mha"}, ["mha"], True),
        (0.001, 1e-3, True),
        (0.001, "1e-3", True),
        (64, "${dims.width}", True),
        (0.001, "fast", False),
        (8, None, True),  # null leaves it to the resolution
        (MISSING, None, True),
        (MISSING, 4, False),
        (True, 1, False),
    ],
)
def test_a_resolved_value_contains_the_requested_value(value: Any, requested: Any, expected: bool) -> None:
    assert holds(value, requested) == expected
