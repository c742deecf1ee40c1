"""References `${…}` to other values of the same spec."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.specs.interpolation import resolve_references
from paribus.specs.tree import UNREAD, Tree


def resolve_data(**data: Any) -> dict[str, Any]:
    tree = Tree(data)
    resolve_references(tree)
    assert tree.problems == []
    resolved_data: dict[str, Any] = tree.data
    return resolved_data


def problems_of(**data: Any) -> str:
    tree = Tree(data)
    resolve_references(tree)
    return "\n".join(map(str, tree.problems))


def test_a_reference_keeps_the_type_of_the_value() -> None:
    assert resolve_data(a=3, b="${a}", c="${d.e}", d={"e": [1, None]}) == {
        "a": 3,
        "b": 3,
        "c": [1, None],
        "d": {"e": [1, None]},
    }


def test_references_are_followed_through_other_references_and_lists() -> None:
    assert resolve_data(a=["x", "${b}"], b="${c}", c=1.5, d="${a.1}")["d"] == 1.5


def test_a_reference_within_text_becomes_text() -> None:
    assert resolve_data(a=3, b="n${a}-${c}", c="x")["b"] == "n3-x"
    assert resolve_data(a=None, b=True, c="${a}/${b}")["c"] == "null/true"


def test_a_referenced_value_is_copied() -> None:
    spec = resolve_data(a={"b": [1]}, c="${a}")
    spec["a"]["b"].append(2)
    assert spec["c"] == {"b": [1]}


@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "${oc.decode:x}", "${mine:1}", "x${oc.env:HOME}", "${oc.env:HOME,${a}}", "${hydra:runtime.cwd}"],
)
def test_a_resolver_is_refused_without_printing_its_value(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "a-secret")
    message = problems_of(a=1, b=text)
    assert "error[invalid-reference] b: a reference is the path of a value of this spec;" in message
    assert "a-secret" not in message


@pytest.mark.parametrize("text", ["${", "${a", "${}", "${ a }", "${.a}", "${a[0]}", "${${a}}", "\\${a}", "$${a"])
def test_an_invalid_reference_is_refused(text: str) -> None:
    assert "invalid reference `${`" in problems_of(a=1, b=text)


def test_a_dollar_sign_without_a_brace_is_text() -> None:
    assert resolve_data(a="$5 {x}")["a"] == "$5 {x}"


def test_an_unknown_reference_is_refused() -> None:
    assert 'error[invalid-reference] b: unknown reference "dims.width"' in problems_of(a=1, b="${dims.width}")
    assert 'unknown reference "a.5"' in problems_of(a=[1], b="${a.5}")


@pytest.mark.parametrize(
    "data",
    [
        {"a": "${a}"},
        {"a": "${b}", "b": "${a}"},
        {"a": {"b": "${a}"}},
        {"a": {"b": "${c}"}, "c": {"d": "${a}"}},
        {"a": ["${a.0}"]},
        {"a": "x${b}", "b": ["${c}"], "c": "${a}"},
    ],
)
def test_a_circular_reference_is_refused(data: dict[str, Any]) -> None:
    assert "circular reference" in problems_of(**data)


def test_an_invalid_reference_does_not_stop_the_others() -> None:
    tree = Tree({"a": 1, "b": "${a}", "c": "${nothing}"})
    resolve_references(tree)
    assert tree.data == {"a": 1, "b": UNREAD, "c": UNREAD}
    assert len(tree.problems) == 1


@pytest.mark.thorough
def test_exponential_references_are_refused() -> None:
    started = time.process_time()
    chain: dict[str, Any] = {f"a{number}": f"${{a{number + 1}}}${{a{number + 1}}}" for number in range(60)}
    with raises_problem(SpecError, "too-large"):
        resolve_data(**chain, a60="xx")
    lists: dict[str, Any] = {f"a{number}": [f"${{a{number + 1}}}"] * 2 for number in range(60)}
    with raises_problem(SpecError, "too-large"):
        resolve_data(**lists, a60=["x"])
    assert "expected at most 1000 references, got 1500" in problems_of(a=1, b=["${a}"] * 1500)
    assert time.process_time() - started < 5  # without a limit, it does not end


def test_a_spec_refers_to_its_own_sizes(error_text: Callable[..., str]) -> None:
    assert error_text("base", "attention=window", "attention.window=${dims.length}") == ""
    assert "attention.window (override 2): `window` must be at most" in error_text(
        "base", "attention=window", "attention.window=${dims.width}"
    )
