"""Loading of specs: presets, files, mappings and overrides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import ListConfig, OmegaConf
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs import canonical, index_of, read_only, resolved, spec, spec_hash
from paribus.specs.load import apply_overrides, repeated_overrides
from paribus.specs.tree import Tree, merge_values

Write = Callable[[str], str]


def test_a_preset_may_be_based_on_another(index: Index) -> None:
    small, smaller = resolved("small", registry=index), resolved("smaller", registry=index)
    assert small["dims"]["width"] == 32
    assert small["attention"]["kv_heads"] == 1
    assert smaller["dims"] == {**small["dims"], "layers": 1}
    assert smaller["attention"] == {**small["attention"], "kv_heads": 2}


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_path_is_a_file_and_a_bare_name_is_a_preset(index: Index, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"mine.{suffix}"
    file.write_text("preset: base\nseed: 5\n")
    assert resolved(str(file), registry=index)["seed"] == 5
    assert resolved(file, registry=index)["seed"] == 5
    with raises_problem(SpecError, "unknown-preset", "mine", "about, base"):
        resolved("mine", registry=index)


def test_a_mapping_may_override_a_preset_with_dotted_keys(index: Index) -> None:
    spec = resolved({"preset": "small", "dims.layers": 3, "attention": {"kv_heads": 4}}, registry=index)
    assert spec["dims"]["layers"] == 3
    assert spec["attention"]["kv_heads"] == 4


def test_the_given_mapping_is_not_changed(index: Index, base_spec: dict[str, Any]) -> None:
    original = repr(base_spec)
    resolved({"preset": "small", **base_spec, "dims.layers": 3}, "seed=4", registry=index)
    assert repr(base_spec) == original


def test_an_omegaconf_config_is_a_spec(index: Index) -> None:
    config = OmegaConf.create({"preset": "small", "feedforward": "mlp", "attention": {"kv_heads": "${dims.heads}"}})
    assert resolved(config, registry=index)["attention"]["kv_heads"] == 4


def test_a_config_that_is_not_a_mapping_is_refused(index: Index) -> None:
    wrong: Any = ListConfig([1])
    with raises_problem(SpecError, "not-a-mapping", "a list"):
        resolved(wrong, registry=index)


def test_a_config_cannot_read_the_environment(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a-secret")
    config = OmegaConf.create({"preset": "small", "corpus": {"name": "${oc.env:TOKEN}"}})
    with raises_problem(SpecError, "invalid-reference", "corpus.name") as caught:
        resolved(config, registry=index)
    assert "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "code", "values"),
    [
        ("round", "preset-cycle", ("preset", "round.yaml:1", "about")),
        ("lost", "unknown-preset", ("nowhere",)),
        ("seven", "wrong-type", ("preset", "seven.yaml:1", "7")),
        ("nowhere", "unknown-preset", ("nowhere", ".yaml")),
        ("x/nowhere", "cannot-read", ("x/nowhere", "No such file")),
        ("../../x", "cannot-read", ("../../x",)),
        ("", "unknown-preset", ('""',)),
        ("a\x00b", "unknown-preset", ("a\\u0000b",)),
        ("smal", "unknown-preset", ("smal", "small")),
    ],
)
def test_an_unknown_preset_or_file_is_refused(
    index: Index, source: str, code: str, values: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working_folder = tmp_path / "a" / "b"
    working_folder.mkdir(parents=True)
    monkeypatch.chdir(working_folder)  # "../../x" is a file of nobody there
    with raises_problem(SpecError, code, *values):
        resolved(source, registry=index)


def test_unreadable_values_are_reported_with_an_unknown_preset(index: Index, write: Any) -> None:
    with raises_problem(SpecError, "misread", "seed") as caught:
        resolved(write("preset: 7\nseed: 010\n"), registry=index)
    assert len(caught.value.problems) == 2


def test_a_resolved_spec_resolves_to_itself(index: Index) -> None:
    for name in ("base", "small", "smaller", "seq", "gpt"):
        resolved_spec = resolved(name, "dropout=0.5", registry=index)
        assert resolved(resolved_spec, registry=index) == resolved_spec


def test_a_spec_is_read_only_and_equals_the_resolved_mapping(index: Index) -> None:
    frozen_spec = spec("small", "seed=3", registry=index)
    assert frozen_spec.attention.kv_heads == 1
    assert OmegaConf.to_container(frozen_spec) == resolved("small", "seed=3", registry=index)
    with pytest.raises(Exception, match=r"read-only"):
        frozen_spec.seed = 4
    assert resolved(frozen_spec, registry=index) == resolved("small", "seed=3", registry=index)


def test_equal_specs_have_equal_hashes(index: Index, write: Write) -> None:
    base_spec = resolved("base", registry=index)
    equal_spec = resolved(write("preset: base\ndropout: 0.0\nseed: 0\n"), registry=index)
    assert spec_hash(base_spec) == spec_hash(equal_spec) == spec_hash(read_only(base_spec))
    assert canonical(base_spec) == canonical(read_only(base_spec)) == canonical(dict(reversed(base_spec.items())))
    assert spec_hash(base_spec) != spec_hash(resolved("base", "seed=1", registry=index))


def test_an_index_is_taken_from_an_index_or_a_registry(index: Index) -> None:
    class Holder:
        def __init__(self) -> None:
            self.index = index

    holder: Any = Holder()
    assert index_of(index) is index
    assert index_of(holder) is index


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
            'error[invalid-override] (override 1): expected key=value, got "seed"; valid: key=value with dots',
        ),
        ("=3", "error[invalid-override]"),
        ("+seed=3", "error[invalid-override]"),
        ("~seed", "error[invalid-override]"),
        ("a..b=3", "error[invalid-override]"),
        ("a b=3", "error[invalid-override]"),
        (".".join("a" * 40) + "=1", "error[invalid-override]"),
        ("seed=", "error[invalid-override] seed (override 1)"),
        ("a.5=z", "error[unknown-index] a.5 (override 1): `a` is a list of 2 items; unknown index `5`; valid: 0 to 1"),
        ("a.name=z", "unknown index `name`"),
        ("empty.0=z", "`empty` is a list of 0 items; unknown index `0`; valid: empty=[…], as it is empty"),
        ("seed=[1", "error[syntax] seed (override 1)"),
        ("seed=010", "error[misread] seed (override 1): `010` would be read as 8"),
        ("a={b: no}", "error[misread] a.b (override 1)"),
        ("path=*.txt", "; valid: quote text that begins with * or &"),
        ("seed=!!int 3", "error[tag] seed (override 1)"),
        ("seed=a\0b", "contains the control character"),
    ],
)
def test_an_invalid_override_is_reported_by_its_number(override: str, expected: str) -> None:
    (line,) = problems_of({"a": ["x", "y"], "empty": []}, override)
    assert expected in line.replace("\\u0000", "")


@given(st.lists(st.sampled_from(["seed", "dims.layers", "dims", "attention.0", "attention.00", "trainer"]), max_size=6))
def test_each_key_is_overridden_once_in_a_command(keys: list[str]) -> None:
    problems = repeated_overrides([f"{key}={number}" for number, key in enumerate(keys)])
    paths = [key.replace("00", "0") for key in keys]
    repeated = [number for number, path in enumerate(paths) if path in paths[:number]]
    assert [problem.code for problem in problems] == ["duplicate-key"] * len(repeated)
    for number, problem in zip(repeated, problems, strict=True):
        first = paths.index(paths[number])
        assert f"override {number + 1}, `{keys[number]}={number}`" in problem.message
        assert f"override {first + 1}, `{keys[first]}={first}`" in problem.message


def test_a_file_that_sets_a_key_dotted_and_nested_is_refused(index: Index, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: base\ndims: {layers: 2}\ndims.layers: 3\n")
    with raises_problem(SpecError, "duplicate-key", "dims.layers") as caught:
        resolved(file, registry=index)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("duplicate-key", "dims.layers")
    assert f"{file}:2" in problem.message
    assert f"{file}:3" in problem.message
    file.write_text("preset: base\nattention: window\nattention.window: 8\ndims: {layers: 2}\ndims.heads: 4\n")
    assert resolved(file, registry=index)["attention"]["window"] == 8


def test_an_invalid_override_does_not_stop_the_others() -> None:
    tree = Tree({})
    apply_overrides(tree, ["bad", "seed=3", "x=no"])
    assert tree.data["seed"] == 3
    assert [problem.location for problem in tree.problems] == ["override 1", "override 3"]


def test_a_replaced_value_has_the_location_of_its_override() -> None:
    tree = Tree({"attention": {"name": "window", "window": 8}}, {("attention", "window"): "s.yaml:3"})
    apply_overrides(tree, ["attention=gqa"])
    assert tree.location(("attention", "window")) == "override 1"
