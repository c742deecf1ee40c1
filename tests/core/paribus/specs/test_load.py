"""Loading of specs from presets, files and mappings, with overrides applied last."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import ListConfig, OmegaConf

from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs import canonical, freeze, index_of, resolved, spec, spec_hash

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
    with pytest.raises(SpecError, match=r"unknown preset \"mine\"; valid: about, base"):
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
    with pytest.raises(SpecError, match=r"expected a mapping, got a list"):
        resolved(wrong, registry=index)


def test_a_config_cannot_read_the_environment(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a-secret")
    config = OmegaConf.create({"preset": "small", "corpus": {"name": "${oc.env:TOKEN}"}})
    with pytest.raises(SpecError, match=r"a value of the spec itself:") as caught:
        resolved(config, registry=index)
    assert "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("round", r"error\[preset\] preset \(round\.yaml:1\): presets that are based on each other: about → round"),
        ("lost", r"unknown preset \"nowhere\""),
        ("seven", r"preset \(seven.yaml:1\): expected the name of a preset, got the number 7"),
        ("nowhere", r"unknown preset \"nowhere\"; valid: .*, or a path that ends in .yaml"),
        ("x/nowhere", r"this file could not be read: No such file"),
        ("../../x", r"this file could not be read"),
        ("", r"unknown preset \"\""),
        ("a\x00b", r"unknown preset \"a\\u0000b\""),
        ("smal", r"did you mean \"small\""),
    ],
)
def test_an_unknown_preset_or_file_is_refused(
    index: Index, source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working_folder = tmp_path / "a" / "b"
    working_folder.mkdir(parents=True)
    monkeypatch.chdir(working_folder)  # "../../x" is a file of nobody there
    with pytest.raises(SpecError, match=expected):
        resolved(source, registry=index)


def test_unreadable_values_are_reported_with_an_unknown_preset(index: Index, write: Any) -> None:
    with pytest.raises(SpecError, match=r"misread") as caught:
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
    assert spec_hash(base_spec) == spec_hash(equal_spec) == spec_hash(freeze(base_spec))
    assert canonical(base_spec) == canonical(freeze(base_spec)) == canonical(dict(reversed(base_spec.items())))
    assert spec_hash(base_spec) != spec_hash(resolved("base", "seed=1", registry=index))


def test_an_index_is_taken_from_an_index_or_a_registry(index: Index) -> None:
    class Holder:
        def __init__(self) -> None:
            self.index = index

    holder: Any = Holder()
    assert index_of(index) is index
    assert index_of(holder) is index
