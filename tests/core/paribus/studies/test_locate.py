"""Each study has a folder of its own in a store, also one that is given as a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import SpecError
from paribus.registry import Index
from paribus.studies.study import default_name

STUDY: Mapping[str, Any] = {
    "base": "encoder-tiny",
    "vary": {"attention": ["mqa"]},
    "seeds": 2,
    "metric": {"name": "val/mlm/loss"},
}


def folder(study: Mapping[str, Any], store: Path, plugin_index: Index) -> str:
    return paribus.study(study, store=store, registry=plugin_index).store.root.name


def test_dictionaries_that_differ_have_folders_that_differ(tmp_path: Path, plugin_index: Index) -> None:
    second = {**STUDY, "vary": {"norm": ["rmsnorm"]}}
    assert folder(STUDY, tmp_path, plugin_index) != folder(second, tmp_path, plugin_index)


def test_more_seeds_stay_in_the_same_folder(tmp_path: Path, plugin_index: Index) -> None:
    reordered = dict(reversed(list(STUDY.items())))
    options = {**reordered, "seeds": 4, "timeout": 60}
    assert folder(STUDY, tmp_path, plugin_index) == folder(options, tmp_path, plugin_index)


def test_a_dictionary_may_set_its_name(tmp_path: Path, plugin_index: Index) -> None:
    assert folder({**STUDY, "name": "mine"}, tmp_path, plugin_index) == "mine"


@pytest.mark.parametrize(
    ("name", "code"),
    [("", "bad-name"), ("../up", "bad-name"), ("a/b", "bad-name"), (3, "wrong-type"), ("Ü", "bad-name")],
)
def test_a_name_that_cannot_be_a_folder_is_refused(name: Any, code: str, tmp_path: Path, plugin_index: Index) -> None:
    with raises_problem(SpecError, code, "name"):
        folder({**STUDY, "name": name}, tmp_path, plugin_index)


def test_another_mean_of_evaluations_keeps_the_folder_of_a_dictionary() -> None:
    names = {default_name({"metric": metric}) for metric in ("m", {"name": "m", "last": 3}, {"name": "m", "last": 5})}
    assert len(names) == 1


def test_a_dictionary_that_cannot_be_read_has_a_default_name() -> None:
    assert default_name({"base": object, "vary": {"norm": [float("nan"), "\ud800"]}}).startswith("study-")
