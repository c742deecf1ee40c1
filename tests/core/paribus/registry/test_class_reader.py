"""What is wrong with a class is told to its author, at registration."""

from typing import Annotated, Any, ClassVar

import pytest
from torch import Tensor

from paribus import Attention, Context, Cost, FeedForward, Load, Part, Range, Schedule, Shape, Slot, State, Topology
from paribus.hookspecs import SLOTS
from paribus.registry.class_reader import contract, entry_of
from paribus.registry.component_index import Entry
from paribus.registry.plugin_sources import Door
from paribus.signatures import SchemaError

DOOR = Door("acme", "acme", "acme", "1.0")


class Steady(Schedule):
    """Always the same.

    No paper is needed.
    """

    def __init__(self, *, level: Annotated[float, "the factor", Range(above=0)] = 1.0) -> None:
        self.level = level

    def factor(self, step: int, steps: int) -> float:
        return self.level


def read(component: Any, name: Any = "steady", slot: str = "schedule") -> Entry:
    return entry_of(slot, name, component, DOOR)


@pytest.mark.parametrize("slot", SLOTS)
def test_every_slot_has_a_contract(slot: str) -> None:
    assert contract(slot).__name__.lower() == slot


def test_an_entry_says_all_that_lists_and_checks_ask() -> None:
    entry = read(Steady)
    assert entry.summary == "Always the same."
    assert entry.distribution == "acme 1.0"
    assert entry.option("level") is not None
    assert entry.option("lvl") is None
    assert entry.file == __file__


@pytest.mark.parametrize("name", ["", "A", "../x", "/abs", "a/b", "a b", "-a", "a" * 65, "a\n", "é", 3, None])
def test_a_name_that_cannot_be_one_is_refused(name: object) -> None:
    with pytest.raises(SchemaError, match=r"is no name: lower-case letters, digits"):
        read(Steady, name)


@pytest.mark.parametrize("name", ["a", "0", "gelu-tanh", "v1.1_x", "a" * 64])
def test_a_name_may_have_letters_digits_dots_hyphens_and_underscores(name: str) -> None:
    assert read(Steady, name).name == name


def refused(component: Any, words: str, slot: str = "schedule") -> None:
    with pytest.raises(SchemaError, match=words):
        read(component, slot=slot)


def test_an_instance_is_no_class() -> None:
    refused(Steady(), "a hook maps names to classes")


def test_a_class_of_another_slot_is_refused() -> None:
    refused(Steady, "Steady is a Schedule; the slot attention is filled by a subclass of Attention", "attention")


def test_an_abstract_class_is_refused() -> None:
    class Half(Schedule):
        """Half done."""

    refused(Half, "is abstract: it does not implement factor")


def test_a_class_that_asks_for_other_injections_is_refused() -> None:
    class Greedy(Steady):
        """Wants more."""

        injects: ClassVar[tuple[str, ...]] = ("shape",)

    refused(Greedy, r"injects is \(shape\), but the slot schedule injects \(\)")


def test_a_class_without_a_docstring_is_refused() -> None:
    class Silent(Steady):
        pass

    refused(Silent, "has no docstring; its first line is what `paribus list` shows")


def test_an_unknown_trait_is_refused_since_nothing_would_read_it() -> None:
    class Odd(Steady):
        """Odd."""

        traits: ClassVar[Any] = {"compile": True}

    refused(Odd, 'has the trait `compile`, which nothing reads; did you mean "compiles"?')


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_a_trait_that_is_no_literal_is_refused(value: object) -> None:
    class Odd(Steady):
        """Odd."""

        traits: ClassVar[Any] = {"compiles": value}

    refused(Odd, "traits are literals, since the index holds them as JSON")


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({"compiles": 1}, "the trait `compiles` is 1; expected: bool"),
        ({"moments": "rotate"}, r"the trait `moments` is 'rotate'; expected: list\[str\]"),
        ({"needs": [1]}, r"the trait `needs` is \[1\]; expected: list\[str\]"),
        ({"told": {"image": 1}}, r"the trait `told` is \{'image': 1\}; expected: dict\[str, str\]"),
        ({"sight": "all"}, "the trait `sight` is 'all'; expected: both or past or any"),
    ],
)
def test_a_trait_of_another_kind_is_refused(traits: Any, words: str) -> None:
    refused(type("Odd", (Steady,), {"__doc__": "Odd.", "traits": traits, "__module__": __name__}), words)


def steady(init: Any) -> type:
    return type("Steady", (Steady,), {"__doc__": "Made.", "__init__": init, "__module__": __name__})


def _many(self: Any, **more: int) -> None: ...


def _bare(self: Any, *, level=1.0) -> None:  # type: ignore[no-untyped-def]  # the mistake that is tested
    self.level = level


def _positional(self: Any, level: Annotated[float, "the factor"] = 1.0) -> None:
    self.level = level


def _beyond(self: Any, *, level: Annotated[float, "the factor", Range(above=0)] = 0.0) -> None:
    self.level = level


def _unread(self: Any, *, level: Annotated[float, "the factor"] = 1.0) -> None: ...


def _name(self: Any, *, name: Annotated[str, "a name"] = "x") -> None:
    self.name = name


def _nested(self: Any, *, level: Annotated[Any, "a part", Slot("wheel")] = "round") -> None:
    self.level = level


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (_many, r"takes `\*\*more: 'int'`|takes `\*\*more: int`"),
        (_bare, "option `level` has no annotation"),
        (_positional, r"takes \(level\) by position, but this slot injects \(\)"),
        (_beyond, "option `level` has 0.0 where its own limit is > 0"),
        (_unread, "never reads its option `level`"),
        (_name, "has an option `name`, but a spec's `name` is the name of the component"),
        (_nested, "option `level` is a component of `wheel`, which is no slot"),
    ],
)
def test_an_option_that_breaks_the_rules_is_refused(init: Any, words: str) -> None:
    refused(steady(init), words)


def test_a_nested_component_of_a_slot_is_an_option() -> None:
    class Nested(FeedForward):
        """Nested."""

        def __init__(
            self, shape: Shape, *, inner: Annotated[Any, "what is inside", Slot("feedforward")] = "mlp"
        ) -> None:
            super().__init__()
            self.inner = inner(shape)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            return x, None

        def cost(self, load: Load) -> Cost:
            return Cost()

    (option,) = read(Nested, "nested", "feedforward").options
    assert option.kind.slot == "feedforward"


def topology(**body: Any) -> type:
    """A topology with these class attributes."""

    class Made(Topology):
        """Made."""

        parts: ClassVar[Any] = body.get("parts", (Part("encoder", "body", causal=False),))
        reads: ClassVar[tuple[str, ...]] = body.get("reads", ("attention",))

        def __init__(self, build: Any) -> None:
            super().__init__()

        def run(self, streams: Any, part: str, *, memory: Any = None, states: Any = None, capture: Any = False) -> Any:
            raise AssertionError

    return Made


def test_a_topology_says_its_parts_and_what_it_reads() -> None:
    entry = read(topology(), "made", "topology")
    assert entry.parts == (("encoder", "body", False, None, False),)
    assert entry.reads == ("attention",)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"reads": ("attention", "wheels")}, "reads `wheels`, which is no slot; valid: topology, "),
        ({"parts": ()}, r"parts is at \[\]; one part is at `body`"),
        ({"parts": (Part("a", "a", causal=False),)}, r"parts is at \['a'\]; one part is at `body`"),
        (
            {"parts": (Part("a", "body", causal=False), Part("b", "body", causal=False))},
            "no two share a name or a path",
        ),
        ({"parts": (Part("a", "body", causal=False), Part("a", "x", causal=False))}, "no two share a name or a path"),
        (
            {"parts": (Part("a", "body", causal=True, cross="b"),)},
            "the part `a` attends to `b`, which is no part's path",
        ),
    ],
)
def test_a_topology_that_does_not_hang_together_is_refused(body: dict[str, Any], words: str) -> None:
    refused(topology(**body), words, "topology")


def test_a_class_without_a_file_is_registered_without_one() -> None:
    names: dict[str, Any] = {"Attention": Attention, "Context": Context, "Cost": Cost, "State": State}
    body = {"__doc__": "From a prompt.", "__init__": lambda self, shape: None, "__module__": "builtins"}
    made = type("Made", (Attention,), {**body, **{name: lambda self: None for name in ("forward", "start", "cost")}})
    assert read(made, "made", "attention").file == ""
    assert names
