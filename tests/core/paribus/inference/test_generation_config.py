"""Options of text generation: limits, conflicts, and one error for all mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.inference.generation_config import GenerationConfig

OUTSIDE: dict[str, tuple[Any, str]] = {
    "beam": (0, "≥ 1"),
    "temperature": (-0.5, "≥ 0"),
    "top_p": (1.2, "above 0, up to 1"),
    "top_k": (0, "≥ 1"),
    "min_p": (-0.1, "0 to 1"),
    "repetition_penalty": (0.0, "above 0"),
    "length_penalty": (-1.0, "≥ 0"),
    "tokens": (0, "≥ 1"),
    "n": (0, "≥ 1"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_number_out_of_range_is_refused_with_its_limits(name: str) -> None:
    value, limits = OUTSIDE[name]
    not_a_number: Any = math.nan
    with raises_problem(SpecError, "out-of-range", name, value, limits):
        GenerationConfig(**{name: value})
    with raises_problem(SpecError, "out-of-range", name, "nan"):
        GenerationConfig(**dict.fromkeys([name], not_a_number))


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        ({"top_k": 5}, "unused-option", "top_k"),
        ({"top_p": 0.5}, "unused-option", "top_p"),
        ({"min_p": 0.5}, "unused-option", "min_p"),
        ({"beam": 2, "temperature": 1.0}, "unused-option", "temperature"),
        ({"length_penalty": 0.6}, "unused-option", "length_penalty"),
        ({"n": 2}, "too-many", "n"),
        ({"n": 4, "beam": 3}, "too-many", "n"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, Any], code: str, name: str) -> None:
    with raises_problem(SpecError, code, name):
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
