"""Overrides in the syntax of Hydra; a changed component name replaces its options."""

from typing import Any

import pytest

from paribus.specs.override import apply_overrides
from paribus.specs.tree import Tree, merge_values


def apply(base: dict[str, Any], *overrides: str) -> dict[str, Any]:
    tree = Tree(base)
    apply_overrides(tree, overrides)
    assert tree.problems == []
    data: dict[str, Any] = tree.data
    return data


def problems_of(base: dict[str, Any], *overrides: str) -> list[str]:
    tree = Tree(base)
    apply_overrides(tree, overrides)
    return [str(problem) for problem in tree.problems]


WINDOW = {"attention": {"name": "window", "window": 8}}


@pytest.mark.parametrize(
    ("base", "overrides", "expected"),
    [
        ({}, ["seed=3"], {"seed": 3}),
        ({}, ["a.b.c=1e-3"], {"a": {"b": {"c": 1e-3}}}),
        ({}, ["attention=gqa", "attention.kv_heads=2"], {"attention": {"name": "gqa", "kv_heads": 2}}),
        (WINDOW, ["attention=gqa", "attention.kv_heads=2"], {"attention": {"name": "gqa", "kv_heads": 2}}),
        (WINDOW, ["attention={name: gqa, kv_heads: 2}"], {"attention": {"name": "gqa", "kv_heads": 2}}),
        (WINDOW, ["attention.name=gqa"], {"attention": {"name": "gqa"}}),
        (WINDOW, ["attention=window"], WINDOW),
        (WINDOW, ["attention.window=4"], {"attention": {"name": "window", "window": 4}}),
        (WINDOW, ["attention={window: 4}"], {"attention": {"name": "window", "window": 4}}),
        (WINDOW, ["attention=null"], {"attention": None}),
        (WINDOW, ["attention=[mha, window]"], {"attention": ["mha", "window"]}),
        (WINDOW, ["attention=mha", "attention.window=4"], {"attention": {"name": "mha", "window": 4}}),
        ({"a": ["x", "y"]}, ["a.0=z"], {"a": ["z", "y"]}),
        (
            {"a": ["x", {"name": "y", "b": 1}]},
            ["a.1.b=2", "a.0.c=3"],
            {"a": [{"name": "x", "c": 3}, {"name": "y", "b": 2}]},
        ),
        ({"a": [["x"]]}, ["a.0.0=y"], {"a": [["y"]]}),
        ({"a": {"b": 1, "c": 2}}, ["a.b=3"], {"a": {"b": 3, "c": 2}}),
        ({}, ["parts.decoder.attention=gqa"], {"parts": {"decoder": {"attention": "gqa"}}}),
        ({}, ["path=data/*.txt", 'text="no"'], {"path": "data/*.txt", "text": "no"}),
        ({}, ["a=x=y"], {"a": "x=y"}),
    ],
)  # fmt: skip
def test_an_override_changes_the_named_value(
    base: dict[str, Any], overrides: list[str], expected: dict[str, Any]
) -> None:
    assert apply(base, *overrides) == expected


def test_a_merged_tree_is_copied() -> None:
    base = {"a": {"b": [1]}}
    changed = apply(base, "a.b.0=2")
    assert base == {"a": {"b": [1]}}
    assert changed == {"a": {"b": [2]}}
    value: dict[str, Any] = {"x": [1]}
    merged = merge_values({}, {"y": value})
    value["x"].append(2)
    assert merged == {"y": {"x": [1]}}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "seed",
            'error[no-override] (override 1): expected key=value, got "seed"; valid: key=value with dots between keys:',
        ),
        ("=3", "error[no-override]"),
        ("+seed=3", "error[no-override]"),
        ("~seed", "error[no-override]"),
        ("a..b=3", "error[no-override]"),
        ("a b=3", "error[no-override]"),
        (".".join("a" * 40) + "=1", "error[no-override]"),
        ("seed=", "error[no-override] seed (override 1): expected a value after `=`; valid: seed=null for none"),
        ("a.5=z", "error[no-place] a.5 (override 1): `a` is a list of 2 items; unknown index `5`; valid: 0 to 1"),
        ("a.name=z", "unknown index `name`"),
        ("empty.0=z", "`empty` is a list of 0 items; unknown index `0`; valid: empty=[…], as it is empty"),
        ("seed=[1", "error[syntax] seed (override 1): invalid YAML:"),
        ("seed=010", "error[misread] seed (override 1): `010` would be read as 8"),
        ("a={b: no}", "error[misread] a.b (override 1): YAML read `no` as a boolean"),
        ("path=*.txt", "; valid: quote text that begins with * or &"),
        ("seed=!!int 3", "error[tag] seed (override 1): the tag"),
        ("seed=a\0b", "contains the control character"),
    ],
)
def test_an_invalid_override_is_reported_by_its_number(override: str, expected: str) -> None:
    (line,) = problems_of({"a": ["x", "y"], "empty": []}, override)
    assert expected in line.replace("\\u0000", "")


def test_an_invalid_override_does_not_stop_the_others() -> None:
    tree = Tree({})
    apply_overrides(tree, ["bad", "seed=3", "x=no"])
    assert tree.data["seed"] == 3
    assert [problem.location for problem in tree.problems] == ["override 1", "override 3"]


def test_a_replaced_value_has_the_location_of_its_override() -> None:
    tree = Tree({"attention": {"name": "window", "window": 8}}, {("attention", "window"): "s.yaml:3"})
    apply_overrides(tree, ["attention=gqa"])
    assert tree.location(("attention", "window")) == "override 1"
