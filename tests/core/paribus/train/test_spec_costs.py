"""Costs that variants can be matched on, including the decoding state per token."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.assembly.cost import decoding_state, model_cost
from paribus.errors import SpecError
from paribus.models.assemble import meta_model
from paribus.planning.api import study
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.train.spec_costs import QUANTITIES, count_quantity

SMALL = ("dims.width=32", "dims.layers=2", "dims.heads=4", "dims.length=16")
BASE = {"preset": "gpt-tiny", "dims.width": 32, "dims.layers": 2, "dims.heads": 4, "dims.length": 16}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def spec(registry: Registry, *overrides: str) -> dict[str, Any]:
    return resolved("gpt-tiny", *SMALL, *overrides, registry=registry)


def test_key_value_caches_grow_with_every_token(registry: Registry) -> None:
    model_spec = spec(registry)
    assert (
        count_quantity("kv", model_spec, registry) == 4 * 2 * 2 * 32 * 16
    )  # bytes, keys and values, layers, width, rows
    assert count_quantity("state", model_spec, registry) == 0


def test_a_recurrent_state_has_constant_size(registry: Registry) -> None:
    model_spec = spec(registry, "attention=gru", "position=none")
    assert count_quantity("state", model_spec, registry) == count_quantity("kv", model_spec, registry) > 0
    assert decoding_state(meta_model(model_spec, registry), 1) == decoding_state(
        meta_model(model_spec, registry), 10_000
    )


def test_the_matched_cost_equals_the_cost_in_the_record(registry: Registry) -> None:
    model_spec = spec(registry, "attention={name: gqa, kv_heads: 2}")
    cost = model_cost(meta_model(model_spec, registry), 16)
    assert count_quantity("params", model_spec, registry) == cost.parameters
    assert count_quantity("flops", model_spec, registry) == cost.flops
    assert count_quantity("kv", model_spec, registry) == 16 * cost.cache_bytes_per_token()


def test_an_encoder_has_no_decoding_state(registry: Registry) -> None:
    model_spec = resolved("encoder-tiny", registry=registry)
    assert [count_quantity(on, model_spec, registry) for on in ("kv", "state")] == [0, 0]


@pytest.mark.thorough
def test_variants_are_matched_on_their_cache(registry: Registry) -> None:
    tree = {
        "base": BASE,
        "vary": {"attention": [{"name": "gqa", "kv_heads": 4}, {"name": "gqa", "kv_heads": 1}]},
        "match": {"on": "kv", "by": "attention.kv_heads"},
        "metric": "val/clm/loss",
    }
    base = {**BASE, "attention": {"name": "gqa", "kv_heads": 2}}
    plan = study({**tree, "base": base}, registry=registry).plan
    assert {trial.spec["attention"]["kv_heads"] for trial in plan.trials} == {2}
    assert {match.residual for match in plan.matched.values()} == {0.0}


@pytest.mark.parametrize(
    ("match", "code", "values"),
    [
        ({"on": "kv", "by": "feedforward.expand"}, "cannot-match", ("match.by", "feedforward.expand")),
        (
            {"on": "state", "by": "dims.head_width"},
            "cannot-match",
            ("match.on",),
        ),
        ({"on": "memory", "by": "dims.head_width"}, "wrong-type", ("match.on", "params, flops, kv, state")),
    ],
)
def test_a_failed_match_is_reported_once(
    registry: Registry, match: dict[str, str], code: str, values: tuple[str, ...]
) -> None:
    base = {**BASE, "dims.head_width": 8}
    with raises_problem(SpecError, code, *values) as caught:
        study(
            {"base": base, "vary": {"attention": ["mqa"]}, "match": match, "metric": "val/clm/loss"}, registry=registry
        )
    assert len(caught.value.problems) == 1


def test_every_matchable_cost_can_be_computed(registry: Registry) -> None:
    model_spec = spec(registry)
    assert {
        on: isinstance(QUANTITIES[on](meta_model(model_spec, registry), 16), int) for on in QUANTITIES
    } == dict.fromkeys(QUANTITIES, True)
