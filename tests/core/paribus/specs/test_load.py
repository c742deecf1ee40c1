"""From names, files and mappings to one tree: presets below, what is said on top of it, overrides last."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import ListConfig, OmegaConf

from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs import canonical, freeze, index_of, resolved, spec, spec_hash

Write = Callable[[str], str]


def test_a_preset_may_begin_from_another(index: Index) -> None:
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


def test_a_mapping_may_begin_from_a_preset_with_dotted_keys(index: Index) -> None:
    found = resolved({"preset": "small", "dims.layers": 3, "attention": {"kv_heads": 4}}, registry=index)
    assert found["dims"]["layers"] == 3
    assert found["attention"]["kv_heads"] == 4


def test_what_is_given_is_not_changed(index: Index, given: dict[str, Any]) -> None:
    before = repr(given)
    resolved({"preset": "small", **given, "dims.layers": 3}, "seed=4", registry=index)
    assert repr(given) == before


def test_a_hydra_users_config_is_a_spec(index: Index) -> None:
    config = OmegaConf.create({"preset": "small", "feedforward": "mlp", "attention": {"kv_heads": "${dims.heads}"}})
    assert resolved(config, registry=index)["attention"]["kv_heads"] == 4


def test_a_config_that_is_no_mapping_is_refused(index: Index) -> None:
    wrong: Any = ListConfig([1])
    with pytest.raises(SpecError, match=r"expected a mapping, got a list"):
        resolved(wrong, registry=index)


def test_an_environment_is_not_read_by_way_of_a_config(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a-secret")
    config = OmegaConf.create({"preset": "small", "corpus": {"name": "${oc.env:TOKEN}"}})
    with pytest.raises(SpecError, match=r"a value of the spec itself:") as caught:
        resolved(config, registry=index)
    assert "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
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
def test_a_spec_that_is_not_there_is_told_of(index: Index, source: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        resolved(source, registry=index)


def test_what_cannot_be_read_of_a_spec_is_told_with_a_preset_that_is_not_there(index: Index, write: Any) -> None:
    with pytest.raises(SpecError, match=r"misread") as caught:
        resolved(write("preset: 7\nseed: 010\n"), registry=index)
    assert len(caught.value.problems) == 2


def test_a_resolved_spec_resolves_to_itself(index: Index) -> None:
    for name in ("base", "small", "smaller", "seq", "gpt"):
        once = resolved(name, "dropout=0.5", registry=index)
        assert resolved(once, registry=index) == once


def test_a_spec_is_read_only_and_as_resolved(index: Index) -> None:
    found = spec("small", "seed=3", registry=index)
    assert found.attention.kv_heads == 1
    assert OmegaConf.to_container(found) == resolved("small", "seed=3", registry=index)
    with pytest.raises(Exception, match=r"read-only"):
        found.seed = 4
    assert resolved(found, registry=index) == resolved("small", "seed=3", registry=index)


def test_the_hash_is_of_the_meaning_and_of_nothing_else(index: Index, write: Write) -> None:
    base = resolved("base", registry=index)
    again = resolved(write("preset: base\ndropout: 0.0\nseed: 0\n"), registry=index)
    assert spec_hash(base) == spec_hash(again) == spec_hash(freeze(base))
    assert canonical(base) == canonical(freeze(base)) == canonical(dict(reversed(base.items())))
    assert spec_hash(base) != spec_hash(resolved("base", "seed=1", registry=index))


def test_an_index_is_taken_from_what_is_given(index: Index) -> None:
    class Holder:
        def __init__(self) -> None:
            self.index = index

    holder: Any = Holder()
    assert index_of(index) is index
    assert index_of(holder) is index
