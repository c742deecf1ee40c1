"""Return values of a wrong type: the error names the plugin's file, class and method, and both types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import Corpus, Objective, Schedule, Tokenizer, errors, hookimpl
from paribus.hookspecs import SLOTS
from paribus.registry.class_reader import slot_class
from paribus.registry.component_index import PluginManifest, PluginSource
from paribus.registry.plugin_loading import LoadedPlugin, lifecycle_hooks
from paribus.registry.return_types import check_methods


def declared_methods() -> Iterator[tuple[str, str]]:
    """Yield the methods of each slot that return a value of a known type."""
    for slot in SLOTS:
        for name, member in vars(slot_class(slot)).items():
            function = member.fget if isinstance(member, property) else member
            annotation = getattr(function, "__annotations__", {}).get("return", "None")
            if not name.startswith("_") and annotation not in ("None", "Any"):
                yield slot, name


@pytest.mark.parametrize(("slot", "method"), list(declared_methods()))
def test_every_method_of_every_slot_reports_a_wrong_return_type(slot: str, method: str) -> None:
    base = slot_class(slot)
    wrong: Any = lambda *args, **options: Ellipsis  # noqa: E731  # a method of any signature
    declared = vars(base)[method]
    cls: Any = type("Mine", (base,), {method: property(wrong) if isinstance(declared, property) else wrong})
    check_methods(cls, slot, "mine")
    member: Any = vars(cls)[method]
    call: Any = member.fget if isinstance(member, property) else member
    with raises_problem(errors.PluginError, "wrong-return-type") as caught:
        call(None)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("wrong-return-type", f"{slot}.mine")
    assert __file__ in problem.location
    assert f"`Mine.{method}`" in problem.message
    assert "got ellipsis" in problem.message


def test_values_in_a_mapping_and_items_of_an_iterator_are_checked() -> None:
    class Terms(Objective):
        def forward(self, run: Any) -> Any:
            return {"loss": torch.zeros(())}

    class Lines(Corpus):
        def documents(self, split: str) -> Any:
            return ["a line"]

    check_methods(Terms, "objective", "terms")
    check_methods(Lines, "corpus", "lines")
    with raises_problem(errors.PluginError, "wrong-return-type", "Mapping[str, LossTerm]"):
        Terms.forward(None, None)  # type: ignore[arg-type]  # never read
    with raises_problem(errors.PluginError, "wrong-return-type", "Iterator[Document]"):
        list(Lines.documents(None, "train"))  # type: ignore[arg-type]  # never read


def test_numbers_arrays_and_sequences_of_other_libraries_are_accepted() -> None:
    class Encoded(Tokenizer):
        def encode_batch(self, texts: Any) -> Any:
            return [np.arange(3)]

    class Rate(Schedule):
        def factor(self, step: int, steps: int) -> Any:
            return np.float32(0.5)

    check_methods(Encoded, "tokenizer", "encoded")
    check_methods(Rate, "schedule", "rate")
    assert len(Encoded.encode_batch(None, ["a"])) == 1  # type: ignore[arg-type]  # never read
    assert Rate.factor(None, 1, 2) == 0.5  # type: ignore[arg-type]  # never read


def test_a_method_is_replaced_once_and_an_inherited_contract_never() -> None:
    class Mine(Corpus):
        def documents(self, split: str) -> Any:
            return iter(())

    check_methods(Mine, "corpus", "mine")
    first = Mine.documents
    check_methods(Mine, "corpus", "other")
    assert Mine.documents is first
    assert Mine.skipped_inputs is Corpus.skipped_inputs


@pytest.mark.parametrize("hook", ["configure_trainer", "families"])
def test_a_hook_of_a_wrong_return_type_is_an_error_of_its_plugin(hook: str) -> None:
    class Plugin:
        @hookimpl
        def configure_trainer(self, spec: Any) -> Any:
            return ["precision"]

        @hookimpl
        def families(self) -> Any:
            return ["bert"]

    manifest = PluginManifest(PluginSource("poems", "poems", version="1.0"))
    hooks = lifecycle_hooks([LoadedPlugin(manifest, plugin=Plugin())])
    with raises_problem(errors.PluginError, "wrong-return-type", "plugin poems of poems 1.0") as caught:
        getattr(hooks, hook)(**({"spec": {}} if hook == "configure_trainer" else {}))
    (problem,) = caught.value.problems
    assert problem.path == "plugin poems of poems 1.0"
    assert __file__ in problem.location
    assert f"the hook `{hook}`: expected the return type Mapping" in problem.message
