"""References lead to values of the same spec, and nowhere else."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.specs.interpolation import resolve_references
from paribus.specs.tree import UNREAD, Tree


def resolved(**data: Any) -> dict[str, Any]:
    tree = Tree(data)
    resolve_references(tree)
    assert tree.problems == []
    found: dict[str, Any] = tree.data
    return found


def wrong(**data: Any) -> str:
    tree = Tree(data)
    resolve_references(tree)
    return "\n".join(map(str, tree.problems))


def test_a_reference_is_the_value_with_its_type() -> None:
    assert resolved(a=3, b="${a}", c="${d.e}", d={"e": [1, None]}) == {
        "a": 3,
        "b": 3,
        "c": [1, None],
        "d": {"e": [1, None]},
    }


def test_references_are_followed_through_each_other_and_through_lists() -> None:
    assert resolved(a=["x", "${b}"], b="${c}", c=1.5, d="${a.1}")["d"] == 1.5


def test_a_reference_within_text_is_its_text() -> None:
    assert resolved(a=3, b="n${a}-${c}", c="x")["b"] == "n3-x"
    assert resolved(a=None, b=True, c="${a}/${b}")["c"] == "null/true"


def test_what_is_referred_to_is_copied() -> None:
    found = resolved(a={"b": [1]}, c="${a}")
    found["a"]["b"].append(2)
    assert found["c"] == {"b": [1]}


@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "${oc.decode:x}", "${mine:1}", "x${oc.env:HOME}", "${oc.env:HOME,${a}}", "${hydra:runtime.cwd}"],
)
def test_a_resolver_is_refused_and_no_value_is_echoed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "a-secret")
    said = wrong(a=1, b=text)
    assert "error[reference] b: a reference names a value of the spec itself:" in said
    assert "a-secret" not in said


@pytest.mark.parametrize("text", ["${", "${a", "${}", "${ a }", "${.a}", "${a[0]}", "${${a}}", "\\${a}", "$${a"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    assert "invalid reference `${`" in wrong(a=1, b=text)


def test_a_dollar_alone_is_text() -> None:
    assert resolved(a="$5 {x}")["a"] == "$5 {x}"


def test_a_reference_to_nothing_is_refused() -> None:
    assert 'error[reference] b: unknown reference "dims.width"' in wrong(a=1, b="${dims.width}")
    assert 'unknown reference "a.5"' in wrong(a=[1], b="${a.5}")


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
def test_a_circle_is_refused(data: dict[str, Any]) -> None:
    assert "this reference leads back to itself" in wrong(**data)


def test_one_bad_reference_leaves_none_half_resolved() -> None:
    tree = Tree({"a": 1, "b": "${a}", "c": "${nothing}"})
    resolve_references(tree)
    assert tree.data == {"a": 1, "b": UNREAD, "c": UNREAD}
    assert len(tree.problems) == 1


def test_references_that_double_are_stopped() -> None:
    started = time.process_time()
    chain: dict[str, Any] = {f"a{number}": f"${{a{number + 1}}}${{a{number + 1}}}" for number in range(60)}
    with pytest.raises(SpecError, match=r"the references of this spec grow too large"):
        resolved(**chain, a60="xx")
    lists: dict[str, Any] = {f"a{number}": [f"${{a{number + 1}}}"] * 2 for number in range(60)}
    with pytest.raises(SpecError, match=r"the references of this spec grow too large"):
        resolved(**lists, a60=["x"])
    assert "there are 1500 references, and 1000 are as many as there may be" in wrong(a=1, b=["${a}"] * 1500)
    assert time.process_time() - started < 5  # unstopped, for ever


def test_a_spec_refers_to_its_own_sizes(told: Callable[..., str]) -> None:
    assert told("base", "attention=window", "attention.window=${dims.length}") == ""
    assert "attention.window (override 2): `window` must be at most" in told(
        "base", "attention=window", "attention.window=${dims.width}"
    )
