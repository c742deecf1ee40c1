"""Creation of components from spec nodes, with options of the annotated types."""

from dataclasses import dataclass
from typing import Annotated, Any, final

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Example, Range, Slot, SpecError
from paribus.assembly.components import make


@final
@dataclass(frozen=True)
class Group:
    """Options that a family of components shares."""

    scaled: Annotated[bool, "whether to scale"] = True
    cap: Annotated[float | None, "at most"] = None


@final
class AllKinds:
    """Component with an option of every kind."""

    injects = ("shape",)

    def __init__(
        self,
        shape: str,
        *,
        count: Annotated[int, "how many", Range(1), Example(2)],
        rate: Annotated[float, "how fast"] = 1.0,
        maybe: Annotated[int | None, "if any"] = None,
        sizes: Annotated[tuple[int, ...], "how large each", Example([1])] = (1, 2),
        group: Group = Group(),
        inner: Annotated[Any, "what is inside", Slot("feedforward")] = "plain",
    ) -> None:
        if count == 13:
            raise ValueError("`count` is invalid; valid: 12, 14")
        self.arguments = (shape, count, rate, maybe, sizes, group)
        self.inner = inner


@final
class Plain:
    """Component without options."""

    injects = ("shape",)

    def __init__(self, shape: str) -> None:
        self.arguments = (shape,)


@final
class Classes:
    """Registry of two components."""

    def get(self, slot: str, name: str) -> type:
        assert slot == "feedforward"
        return {"every": AllKinds, "plain": Plain}[name]


def node(**options: Any) -> dict[str, Any]:
    group = {"scaled": True, "cap": None}
    inner = {"name": "plain"}
    whole = {"name": "every", "count": 1, "rate": 1.0, "maybe": None, "sizes": [1, 2], "group": group, "inner": inner}
    return {**whole, **options}


def make_every(**options: Any) -> AllKinds:
    return make(Classes(), "feedforward", node(**options), "shape", kind=AllKinds)


def test_options_have_the_types_of_their_annotations() -> None:
    component = make_every(count=3, rate=2, sizes=[3, 4], group={"scaled": False, "cap": 5})
    assert component.arguments == ("shape", 3, 2.0, None, (3, 4), Group(scaled=False, cap=5.0))
    rate, cap = component.arguments[2], component.arguments[5].cap
    assert (type(rate), type(cap)) == (float, float)


def test_a_nested_component_is_passed_as_a_factory() -> None:
    component = make_every(inner=node(count=7, inner=node(count=8)))
    built = component.inner("inside")
    assert built.arguments[:2] == ("inside", 7)
    assert built.inner("further inside").arguments[:2] == ("further inside", 8)
    assert built.inner("further inside").inner("deep").arguments == ("deep",)
    assert component.inner("again") is not built


def test_an_error_of_a_constructor_is_reported_with_slot_and_name() -> None:
    with raises_problem(SpecError, "component-error", "feedforward", "every", "count"):
        make_every(count=13)


def test_an_error_of_a_nested_constructor_is_reported() -> None:
    inner = make_every(inner=node(count=13)).inner
    with raises_problem(SpecError, "component-error", "feedforward", "every", "count"):
        inner("inside")


def test_a_missing_option_is_an_error_and_not_the_default() -> None:
    lost = {key: value for key, value in node().items() if key != "rate"}
    with pytest.raises(KeyError, match="rate"):
        make(Classes(), "feedforward", lost, "shape", kind=AllKinds)
