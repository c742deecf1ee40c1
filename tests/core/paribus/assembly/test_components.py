"""Creation of components from spec nodes, with options of the annotated types."""

from dataclasses import dataclass
from typing import Annotated, Any, final

import pytest

from paribus import Example, Range, Slot, SpecError
from paribus.assembly.components import make


@final
@dataclass(frozen=True)
class Group:
    """Options that a family of components shares."""

    scaled: Annotated[bool, "whether"] = True
    cap: Annotated[float | None, "at most"] = None


@final
class Every:
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
            raise ValueError("`count` brings bad luck; valid: 12, 14")
        self.given = (shape, count, rate, maybe, sizes, group)
        self.inner = inner


@final
class Plain:
    """Component without options."""

    injects = ("shape",)

    def __init__(self, shape: str) -> None:
        self.given = (shape,)


@final
class Classes:
    """Registry of two components."""

    def get(self, slot: str, name: str) -> type:
        assert slot == "feedforward"
        return {"every": Every, "plain": Plain}[name]


def node(**options: Any) -> dict[str, Any]:
    group = {"scaled": True, "cap": None}
    inner = {"name": "plain"}
    whole = {"name": "every", "count": 1, "rate": 1.0, "maybe": None, "sizes": [1, 2], "group": group, "inner": inner}
    return {**whole, **options}


def made(**options: Any) -> Every:
    return make(Classes(), "feedforward", node(**options), "here", kind=Every)


def test_options_come_as_their_annotations_say() -> None:
    component = made(count=3, rate=2, sizes=[3, 4], group={"scaled": False, "cap": 5})
    assert component.given == ("here", 3, 2.0, None, (3, 4), Group(scaled=False, cap=5.0))
    rate, cap = component.given[2], component.given[5].cap
    assert (type(rate), type(cap)) == (float, float)


def test_a_component_in_a_component_is_handed_over_as_a_factory() -> None:
    component = made(inner=node(count=7, inner=node(count=8)))
    built = component.inner("inside")
    assert built.given[:2] == ("inside", 7)
    assert built.inner("further inside").given[:2] == ("further inside", 8)
    assert built.inner("further inside").inner("deep").given == ("deep",)
    assert component.inner("again") is not built


def test_what_a_component_refuses_is_told_with_its_slot_and_its_name() -> None:
    with pytest.raises(SpecError, match=r"error\[refused\] feedforward: `every` says: `count` brings bad luck; valid"):
        made(count=13)


def test_what_a_component_within_refuses_is_told_as_well() -> None:
    inner = made(inner=node(count=13)).inner
    with pytest.raises(SpecError, match=r"error\[refused\] feedforward: `every` says: `count` brings bad luck"):
        inner("inside")


def test_an_option_that_the_spec_lost_is_no_default_taken_in_silence() -> None:
    lost = {key: value for key, value in node().items() if key != "rate"}
    with pytest.raises(KeyError, match="rate"):
        make(Classes(), "feedforward", lost, "here", kind=Every)
