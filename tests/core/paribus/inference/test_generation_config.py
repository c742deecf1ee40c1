"""Options of text generation: limits, conflicts, and one error for all mistakes."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.inference.generation_config import GenerationConfig

OUTSIDE: dict[str, tuple[Any, str]] = {
    "beam": (0, "got 0; valid: ≥ 1; 1 takes the most probable token"),
    "temperature": (-0.5, "got -0.5; valid: ≥ 0; 0 takes the most probable token"),
    "top_p": (1.2, "got 1.2; valid: above 0, up to 1"),
    "top_k": (0, "got 0; valid: ≥ 1"),
    "min_p": (-0.1, "got -0.1; valid: 0 to 1"),
    "repetition_penalty": (0.0, "got 0.0; valid: above 0; 1 changes nothing"),
    "length_penalty": (-1.0, "got -1.0; valid: ≥ 0; 0 is a sum of logarithms"),
    "tokens": (0, "got 0; valid: ≥ 1"),
    "n": (0, "got 0; valid: ≥ 1"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_number_out_of_range_is_refused_with_its_limits(name: str) -> None:
    value, message = OUTSIDE[name]
    not_a_number: Any = math.nan
    with pytest.raises(SpecError, match=rf"(?m)^error\[out-of-range\] {name}: {re.escape(message)}$"):
        GenerationConfig(**{name: value})
    with raises_problem(SpecError, "out-of-range", name, "nan"):
        GenerationConfig(**dict.fromkeys([name], not_a_number))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 5}, "top_k: it has no effect at temperature 0; valid: a t"),
        ({"top_p": 0.5}, "top_p: it has no effect"),
        ({"min_p": 0.5}, "min_p: it has no effect"),
        ({"beam": 2, "temperature": 1.0}, "temperature: beam search does not sample"),
        ({"length_penalty": 0.6}, "length_penalty: it has no effect without beam search; valid: a b"),
        ({"n": 2}, "n: expected at most 1 texts from a beam of 1, got 2; valid: as many as `beam`"),
        ({"n": 4, "beam": 3}, "n: expected at most 3 texts from a beam of 3, got 4"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=rf"(?m)^error\[(unused-option|too-many)\] {re.escape(message)}"):
        GenerationConfig(**options)


def test_all_mistakes_are_reported_at_once() -> None:
    with raises_problem(SpecError, "out-of-range", "temperature") as raised:
        GenerationConfig(beam=0, temperature=-1.0, top_p=2.0)
    assert [problem.path for problem in raised.value.problems][:3] == ["temperature", "top_p", "beam"]


def test_the_length_penalty_equals_the_formula_of_the_paper() -> None:
    for alpha in (0.0, 0.2, 0.6, 1.0):
        for length in (1, 2, 30):
            expected = (5 + length) ** alpha / (5 + 1) ** alpha
            assert GenerationConfig(beam=4, length_penalty=alpha).penalty(length) == pytest.approx(expected, rel=1e-14)
    assert GenerationConfig(n=3, beam=3).n == 3
    assert GenerationConfig(n=3, temperature=1.0).draws
