"""Blocks of keys: a dataclass declares them, and one reader reports every problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from paribus.registry import Index
from paribus.schema import Example, Names, Pattern, Range
from paribus.specs.key_blocks import read_block
from paribus.specs.tree import Tree
from paribus.specs.values import Validator


@dataclass(frozen=True)
class Leg:
    """A part of a journey."""

    name: Annotated[str, "where it ends", Pattern("[a-z]+", "a word"), Example("rome")]
    by: Annotated[str, "means of travel", Names("vehicle", ("train", "boat"))] = "train"
    hours: Annotated[float | None, "duration", Range(above=0)] = None


@dataclass(frozen=True, kw_only=True)
class Journey:
    """Keys of a journey."""

    start: Annotated[Leg, "the first part", Example("rome")]
    legs: Annotated[tuple[Leg, ...], "other parts"] = ()
    notes: Annotated[Mapping[str, Any] | None, "anything", Example({"food": "good"})] = None
    stops: Annotated[tuple[Mapping[str, Any], ...], "places", Example([{"town": "bern"}])] = ()
    season: Annotated[Literal["summer", "winter"], "when"] = "summer"
    from_: Annotated[Any, "anything", Example(1)] = None
    days: Annotated[int, "duration", Range(1)] = 3


def read(index: Index, **values: Any) -> tuple[Journey, dict[str, str]]:
    validator = Validator(Tree(values), index)
    journey = read_block(validator, Journey, values)
    return journey, {problem.path: problem.code for problem in validator.problems}


def test_a_block_is_read_with_its_defaults_and_short_forms(plugin_index: Index) -> None:
    legs = [{"name": "paris", "hours": 2}, "nice"]
    journey, problems = read(plugin_index, start="rome", legs=legs, notes=None, **{"from": [1]})
    assert not problems
    assert journey == Journey(start=Leg("rome"), legs=(Leg("paris", hours=2.0), Leg("nice")), from_=[1])
    alone, problems = read(plugin_index, start={"name": "rome", "hours": None}, legs={"name": "paris"})
    assert not problems
    assert alone.legs == (Leg("paris"),)


@pytest.mark.parametrize(
    ("values", "path", "code"),
    [
        ({"start": "ROME"}, "start.name", "bad-name"),
        ({"start": {}}, "start.name", "missing"),
        ({"start": {"name": "rome", "by": "tran"}}, "start.by", "unknown-vehicle"),
        ({"start": {"name": "rome", "hours": 0}}, "start.hours", "out-of-range"),
        ({"start": {"name": "rome", "hour": 1}}, "start.hour", "unknown-key"),
        ({"start": 3}, "start", "wrong-type"),
        ({"legs": [{"name": 3}]}, "legs.0.name", "wrong-type"),
        ({"legs": 3}, "legs", "wrong-type"),
        ({"notes": "good"}, "notes", "wrong-type"),
        ({"stops": {"town": "bern"}}, "stops", "wrong-type"),
        ({"stops": [{}, "bern"]}, "stops.1", "wrong-type"),
        ({"season": "spring"}, "season", "wrong-type"),
        ({"days": None}, "days", "wrong-type"),
        ({"dayz": 3}, "dayz", "unknown-key"),
    ],
)
def test_a_mistake_is_reported_once_at_its_key(
    plugin_index: Index, values: dict[str, Any], path: str, code: str
) -> None:
    assert read(plugin_index, **{"start": "rome", **values})[1] == {path: code}


def test_a_value_with_a_problem_is_its_default_and_a_text_is_empty(plugin_index: Index) -> None:
    journey, problems = read(plugin_index, start={"by": 3}, legs=3, season="spring", days=0, stops=[3])
    assert journey == Journey(start=Leg("", ""), season="")  # type: ignore[arg-type]  # of no valid season
    assert len(problems) == 6
    assert read(plugin_index, start=[])[0] == Journey(start=Leg("", ""))


def test_valid_names_and_examples_are_part_of_a_problem(plugin_index: Index) -> None:
    validator = Validator(Tree(), plugin_index)
    read_block(validator, Journey, {"start": {"name": "rome", "by": "boot"}, "notes": 1})
    valid = {problem.path: (problem.valid, problem.suggestion) for problem in validator.problems}
    assert valid["start.by"] == ("train, boat", "boat")
    assert valid["notes"][0].endswith("such as notes: {food: good}")
