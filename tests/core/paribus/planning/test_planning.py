"""A thousand trials are planned quickly, and sharing values between variants changes no plan."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.identity import (
    LENGTH,
    CanonicalCache,
    ComponentCode,
    SeededIdentity,
    code_of,
    identity_of,
)
from paribus.planning.plan import plan
from paribus.planning.variants import resolve
from paribus.registry import Index
from paribus.specs.components import components_of
from paribus.specs.diff import WITHOUT_EFFECT
from paribus.specs.resolve import ReadingCache
from paribus.specs.tree import plain_tree
from paribus.storage.atomic import digest_json
from paribus.studies.designs import BASELINE, DESIGNS, Variant
from paribus.studies.study import Study, parse_study

GENEROUS = 0.4  # CPU seconds; it takes 0.04 where little else runs, and the first 0.07
MIXED: Mapping[str, Any] = {
    "base": {"preset": "encoder-tiny", "feedforward": {"name": "mlp", "inner": "${dims.width}", "expand": None}},
    "design": "grid",
    "vary": {
        "attention": ["mqa", {"name": "gqa", "kv_heads": 2}, {"name": "gqa", "kv_heads": 3}, ["mha", "mqa"]],
        "dims.width": [32, 30, 64],
        "norm": ["rmsnorm", "layernorm"],
        "optimizer.lr": [1e-3, "no number"],
    },
    "seeds": 2,
    "metric": {"name": "val/mlm/loss"},
}


def read(plugin_index: Index, tree: Mapping[str, Any]) -> Study:
    return parse_study("mine", plain_tree(dict(tree), "study"), plugin_index)


def outcome(study: Study, variant: Variant, plugin_index: Index, **options: Any) -> Any:
    """Return the specs of a variant, or its problems."""
    try:
        return resolve(study, variant, plugin_index, **options)
    except SpecError as error:
        return error.problems


def test_a_thousand_trials_are_planned_quickly(plugin_index: Index) -> None:
    vary = {
        "optimizer.lr": [1e-4 * (1 + index) for index in range(20)],
        "dropout": [0.01 * (1 + index) for index in range(10)],
    }
    tree = {"base": "encoder-tiny", "design": "grid", "vary": vary, "metric": {"name": "val/mlm/loss"}}
    taken = []
    for _ in range(2):  # the first reads the engine's files
        began = time.process_time()
        result = plan(read(plugin_index, tree), plugin_index, fingerprint=lambda spec: "text")
        taken.append(time.process_time() - began)
    assert len({trial.identity for trial in result.trials}) == 5 + 20 * 10 * 5
    assert min(taken) < GENEROUS


def test_sharing_between_variants_changes_no_spec(plugin_index: Index) -> None:
    study, memory = read(plugin_index, MIXED), ReadingCache()
    variants = [Variant(BASELINE), *DESIGNS["grid"](study.varied)]
    together = [outcome(study, variant, plugin_index, memory=memory) for variant in variants]
    alone = [outcome(read(plugin_index, copy.deepcopy(dict(MIXED))), variant, plugin_index) for variant in variants]
    assert together == alone
    assert {type(item) for item in together} == {dict, tuple}  # some cells are specs, and some cannot be


def test_sharing_hides_no_problem_of_a_study(plugin_index: Index) -> None:
    vary = {"attention": ["mqq", {"name": "gqa", "kv_heads": 3}], "norm": ["rmsnrom"]}
    with raises_problem(SpecError, "unknown-component", "mqq", "mqa") as caught:
        plan(
            read(plugin_index, {**MIXED, "design": "one-at-a-time", "vary": vary}),
            plugin_index,
            fingerprint=lambda spec: "text",
        )
    assert {problem.code for problem in caught.value.problems} == {"unknown-component", "out-of-range"}
    assert len(caught.value.problems) == 3


def test_planning_changes_nothing_in_the_study(plugin_index: Index) -> None:
    study = read(plugin_index, {**MIXED, "vary": {**MIXED["vary"], "optimizer.lr": [1e-3]}})
    previous = copy.deepcopy(study.base.data), dict(study.base.locations), copy.deepcopy(study.varied.vary)
    plan(study, plugin_index, fingerprint=lambda spec: "text")
    assert (study.base.data, study.base.locations, study.varied.vary) == previous


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(["data", "from", "teacher", "seed", "attention", "workers", "name", "é"])
SPECS = st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=3), max_size=6)


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.lists(SPECS, min_size=1, max_size=4))
def test_an_identity_is_the_hash_of_the_canonical_document(specs: list[dict[str, Any]]) -> None:
    spelling = CanonicalCache()
    for spec in (*specs, {**specs[0], **specs[-1]}):
        saved = {
            key: {overrides: item for overrides, item in value.items() if (key, overrides) not in WITHOUT_EFFECT}
            if isinstance(value, dict)
            else value
            for key, value in spec.items()
        }
        whole = digest_json({"spec": saved, "code": "some", "corpus": "text"})[:LENGTH]
        assert spelling.identity(spec, "some", "text") == identity_of(spec, "some", "text") == whole


@pytest.mark.thorough
@settings(max_examples=40)
@given(SPECS, st.lists(JSON, min_size=1, max_size=3), JSON)
def test_seeded_identities_equal_those_of_full_specs(spec: dict[str, Any], seeds: list[Any], begun: Any) -> None:
    spec = {**spec, "seed": 0, "from": None}
    seeded = SeededIdentity(CanonicalCache(), spec, "some", "text")
    for seed in seeds:
        assert seeded.identity(seed=seed) == identity_of({**spec, "seed": seed}, "some", "text")
        both = {"seed": seed, "from": begun}
        assert seeded.identity(**both) == identity_of({**spec, **both}, "some", "text")


def test_the_code_of_components_is_the_same_with_and_without_a_cache(plugin_index: Index) -> None:
    code = ComponentCode(plugin_index)
    study = read(plugin_index, {**MIXED, "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}]}})
    for trial in plan(study, plugin_index, fingerprint=lambda spec: "text").trials:
        names = components_of(trial.spec, plugin_index)
        hashes = {f"{slot}.{name}": ComponentCode(plugin_index).component(slot, name) for slot, name in names}
        assert trial.components == code.components(trial.spec) == hashes
        assert trial.code == code.hash(trial.spec) == code_of(hashes)
