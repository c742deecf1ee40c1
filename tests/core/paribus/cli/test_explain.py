"""`paribus explain` of slots, components, topologies and other keys of a spec."""

import json
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from paribus.cli import explain
from paribus.hookspecs import SLOTS
from paribus.registry import index
from paribus.registry.class_reader import slot_class

Cli = Callable[..., Any]


@pytest.mark.parametrize("topic", ["attention.gqa", "gqa"])
def test_a_component_is_explained_with_its_paper_options_limits_and_traits(cli: Cli, topic: str) -> None:
    result = cli("explain", topic)
    assert result.code == 0
    assert "(Ainslie et al. 2023)" in result.out
    assert "key/value heads (a whole number; ≥ 1; divides dims.heads; default 2)" in result.out
    assert "scores.bias " in result.out
    assert "can mask later positions" in result.out
    assert "attention of paribus" in result.out
    assert "grouped_query.py" in result.out


def test_an_option_without_a_default_shows_an_example(cli: Cli) -> None:
    assert "(a whole number; ≥ 1; at most dims.length; required, such as 8)" in cli("explain", "restricted").out


@pytest.mark.parametrize("slot", SLOTS)
def test_every_slot_is_explained_by_its_contract_and_what_fills_it(cli: Cli, slot: str) -> None:
    result = cli("explain", slot)
    assert result.code == 0
    assert result.out.startswith(f"{slot}\n\n")
    document = json.loads(cli("explain", slot, "--json").out)
    assert document["doc"] in result.out
    assert document["components"] == list(index().entries[slot])
    for kind in ("methods", "attributes", "traits"):
        for member in document[kind]:
            assert member["summary"], f"{slot}: {kind}: {member['name']} has no description"
            assert member["name"] in result.out
    declared = {trait for entry in index().entries[slot].values() for trait in entry.traits}
    assert declared <= {member["name"] for member in document["traits"]}


def test_every_component_can_be_explained(cli: Cli) -> None:
    for slot, entries in index().entries.items():
        for name, entry in entries.items():
            result = cli("explain", f"{slot}.{name}")
            assert result.code == 0
            assert entry.doc in result.out
            document = json.loads(cli("explain", f"{slot}.{name}", "--json").out)
            assert [option["name"] for option in document["options"]] == [option.name for option in entry.options]


def test_a_topology_is_explained_with_its_stacks(cli: Cli) -> None:
    result = cli("explain", "encoder-decoder").out
    assert "part decoder, at body: causal, and attends to the encoder" in result
    assert "reads embedding, attention, position" in result


@pytest.mark.parametrize("topic", ["dims", "data", "dropout", "seed"])
def test_other_sections_of_a_spec_are_explained(cli: Cli, topic: str) -> None:
    assert cli("explain", topic).out.startswith(f"{topic}\n\noptions\n")
    assert json.loads(cli("explain", topic, "--json").out)["topic"] == topic


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("gqaa", 'unknown topic "gqaa"; did you mean'),
        ("gqaa", 'did you mean "gqa"?'),
        ("attention.gqaa", 'unknown attention "gqaa"; did you mean '),
        ("attention.", 'unknown attention ""'),
        ("none", "`none` is in several slots; valid: position.none, norm.none"),
        ("atention.gqa", 'unknown topic "atention.gqa"'),
    ],
)
def test_an_unknown_topic_is_refused_with_the_valid_topics(cli: Cli, topic: str, message: str) -> None:
    result = cli("explain", topic)
    assert result.code == 2
    assert message in result.err


def test_every_trait_has_words() -> None:
    kinds = [get_args(get_type_hints(slot_class(slot))["traits"])[0] for slot in SLOTS]
    assert {*explain._CAPABILITIES, *explain._DESCRIPTIONS} == {
        trait for kind in kinds for trait in get_type_hints(kind)
    }


def test_traits_with_default_values_are_not_described() -> None:
    nothing: dict[str, Any] = {
        "needs": [],
        "provides": [],
        "corrupts": False,
        "example_kind": None,
        "table": False,
        "score_terms": 1,
    }
    assert (
        list(
            explain.describe_traits({**nothing, "segments": False, "parts": [], "bias": "none", "visibility": "other"})
        )
        == []
    )


def test_traits_are_described_in_words() -> None:
    descriptions = explain.describe_traits(
        {"hooks": ["rotate"], "position_hooks": [], "final_norm": True, "needs": ["mask"],
         "provides": ["pad"], "corrupts": True, "example_kind": "stream", "table": True, "segments": True,
         "parts": ["encoder"], "bias": "content", "owner": "layer",
         "score_terms": 3, "visibility": "past", "causal": False, "decodes": True}
    )  # fmt: skip
    assert list(descriptions) == [
        "encodes positions through: rotate",
        "does not use a position",
        "a norm follows the last layer",
        "needs mask",
        "has pad",
        "changes what the model sees",
        "forms examples as stream",
        "cannot encode positions beyond its table",
        "distinguishes two segments of an example",
        "reads the stacks body, encoder",
        "its bias depends on content",
        "each layer has its own",
        "3 terms share the scale of the scores",
        "needs causal tokens",
        "cannot mask later positions",
        "can decode step by step, keeping state",
    ]
