"""Ladders between two specs: each rung is valid, the last one is the second spec, and nothing changes besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.api import study
from paribus.planning.between import HELD, HELD_OPTIONS, Ladder, between, study_documents
from paribus.registry import Index, LazyRegistry
from paribus.specs.diff import differences
from paribus.specs.load import load
from paribus.specs.resolve import resolved
from paribus.train.spec_costs import count_quantity

BYTES = ("tokenizer=bytes", "dims.vocabulary=null")
PAIRS = [
    ("bert-tiny", "modernbert-tiny", BYTES),
    ("gpt2-tiny", "llama-tiny", ()),
    ("lstm-lm-tiny", "llama-tiny", ()),
    ("transformer-tiny", "rnnsearch-tiny", ()),
    ("gpt-neo-tiny", "mistral-tiny", ()),
    ("bert-tiny", "roberta-tiny", BYTES),
]
Climb = Callable[..., Ladder]


@pytest.fixture(name="climb")
def _climb(plugin_index: Index) -> Climb:
    count = partial(count_quantity, "params", classes=LazyRegistry(plugin_index))

    def climb(first: str, second: str, overrides: tuple[str, ...] = ()) -> Ladder:
        trees = [load(name, overrides, plugin_index) for name in (first, second)]
        return between(trees[0], trees[1], plugin_index, count)

    return climb


def without_held(spec: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in spec.items() if key not in HELD}
    for key, names in HELD_OPTIONS.items():
        kept[key] = {name: value for name, value in kept[key].items() if name not in names and value is not None}
    return kept


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("first", "second", "overrides"), PAIRS)
def test_the_last_rung_is_the_second_spec_and_each_rung_changes_what_it_names(
    first: str, second: str, overrides: tuple[str, ...], climb: Climb, plugin_index: Index
) -> None:
    ladder = climb(first, second, overrides)
    spec: Mapping[str, Any] = resolved(first, *overrides, registry=plugin_index)
    documents = study_documents(ladder, name="it", seeds=2, match="")
    plan = study(documents["it"], registry=plugin_index).plan
    specs = [plan.trials_of(variant.name)[0].spec for variant in plan.variants]
    assert len(specs) == len(ladder.rungs) + 1
    for rung, after in zip(ladder.rungs, specs[1:], strict=True):
        changed = {item.path.partition(".")[0] for item in differences(without_held(spec), without_held(after))}
        assert changed == {*rung.keys, *rung.follows}
        spec = after
    assert not list(differences(without_held(spec), without_held(resolved(second, *overrides, registry=plugin_index))))


def test_leaving_out_one_change_leaves_all_others(climb: Climb, plugin_index: Index) -> None:
    ladder = climb("bert-tiny", "modernbert-tiny", BYTES)
    document = study_documents(ladder, name="it", seeds=2, match="")["it-without"]
    plan = study(document, registry=plugin_index).plan
    full, *others = [plan.trials_of(variant.name)[0].spec for variant in plan.variants]
    for group, spec in zip(ladder.groups, others, strict=True):
        changed = {item.path.partition(".")[0] for item in differences(without_held(full), without_held(spec))}
        assert changed <= {key for rung in group for key in (*rung.keys, *rung.follows)}
        assert changed
    # The lists of three positions and attentions need three layers.
    assert [len(group) for group in ladder.groups].count(3) == 1


@pytest.mark.parametrize(
    ("first", "second", "overrides"),
    [("gpt2-tiny", "llama-tiny", ()), ("llama-tiny", "nanochat-tiny", ("dims.layers=2",))],  # the second: by a factor
)
def test_rungs_are_matched_by_the_inner_width(
    first: str, second: str, overrides: tuple[str, ...], climb: Climb, plugin_index: Index
) -> None:
    ladder = climb(first, second, overrides)
    assert ladder.changes_size
    document = study_documents(ladder, name="it", seeds=2, match="params")["it"]
    plan = study(document, registry=plugin_index).plan
    assert set(plan.matched) == {rung.name for rung in ladder.rungs}
    assert all(abs(match.count / match.target - 1) < 0.01 for match in plan.matched.values())


def test_what_the_rungs_hold_is_listed(climb: Climb) -> None:
    held = {item.path: (item.before, item.after) for item in climb("lstm-lm-tiny", "llama-tiny").held}
    assert held == {"dims.length": (128, 64), "data.batch": (16, 32)}


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [("bert-tiny", "gpt2-tiny", "no-common-objective"), ("gpt2-tiny", "gpt2-tiny", "no-difference")],
)
def test_specs_without_a_ladder_are_an_error(first: str, second: str, code: str, climb: Climb) -> None:
    with raises_problem(SpecError, code):
        climb(first, second)
