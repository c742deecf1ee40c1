"""Errors in a component class are reported at registration."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor

from paribus import (
    Attention,
    Context,
    Corpus,
    Cost,
    FeedForward,
    Load,
    Optimizer,
    Part,
    Position,
    Range,
    Schedule,
    Shape,
    Slot,
    State,
    Topology,
)
from paribus.hookspecs import SLOTS
from paribus.registry import Registry
from paribus.registry.class_reader import SchemaError, read_component, slot_class
from paribus.registry.component_index import Entry, PluginSource

SOURCE = PluginSource("acme", "acme", "acme", "1.0")


class Steady(Schedule):
    """Constant schedule.

    No paper is needed.
    """

    def __init__(self, *, level: Annotated[float, "the factor", Range(above=0)] = 1.0) -> None:
        self.level = level

    def factor(self, step: int, steps: int) -> float:
        return self.level


def read(component: Any, name: Any = "steady", slot: str = "schedule") -> Entry:
    return read_component(slot, name, component, SOURCE)


@pytest.mark.parametrize("slot", SLOTS)
def test_every_slot_has_an_abstract_class(slot: str) -> None:
    assert slot_class(slot).__name__.lower() == slot


def test_an_entry_has_the_metadata_of_its_class() -> None:
    entry = read(Steady)
    assert entry.summary == "Constant schedule."
    assert entry.source.label == "acme 1.0"
    assert entry.option("level") is not None
    assert entry.option("lvl") is None
    assert entry.file == __file__


@pytest.mark.parametrize("name", ["", "A", "../x", "/abs", "a/b", "a b", "-a", "a" * 65, "a\n", "é", 3, None])
def test_an_invalid_name_is_rejected(name: object) -> None:
    with pytest.raises(SchemaError, match=r"invalid name .*; expected at most 64 lower-case letters"):
        read(Steady, name)


@pytest.mark.parametrize("name", ["null", "true", "no", "off", "0", "1.5", "1e3", "0o7", "0x1f", "2024-01-01", "y"])
def test_a_name_that_a_spec_reads_as_another_value_is_rejected(name: str) -> None:
    with pytest.raises(SchemaError, match="a spec may read it as"):
        read(Steady, name)


@pytest.mark.parametrize("name", ["a", "gelu-tanh", "none", "v1.1_x", "a" * 64])
def test_a_name_may_have_letters_digits_dots_hyphens_and_underscores(name: str) -> None:
    assert read(Steady, name).name == name


def odd(base: type, traits: Any) -> type:
    """Return a component of the slot of `base` with these traits."""
    members: dict[str, Any] = {"__doc__": "Odd.", "traits": traits, "__module__": __name__}
    if base is Position:
        members |= {"__init__": lambda self, shape: None, "position_limit": lambda self: None}
    if base is Corpus:
        members |= {"documents": lambda self, split: iter(()), "fingerprint": lambda self: ""}
    return type("Odd", (base,), members)


def check_rejected(component: Any, words: str, slot: str = "schedule") -> None:
    """Assert that a class is rejected with an error that contains `words`."""
    with pytest.raises(SchemaError, match=words):
        read(component, slot=slot)


def test_an_instance_is_rejected() -> None:
    check_rejected(Steady(), "expected a class, got")


def test_a_class_of_another_slot_is_rejected() -> None:
    check_rejected(Steady, "expected a subclass of Attention for the slot attention, got a Schedule", "attention")


def test_an_abstract_class_is_rejected() -> None:
    class Half(Schedule):
        """Half done."""

    check_rejected(Half, "is abstract: it does not implement factor")


def test_a_method_of_an_older_contract_is_rejected() -> None:
    class Older(Optimizer):
        """Optimizer of two lists."""

        def build(self, matrices: Any, vectors: Any) -> torch.optim.Optimizer:  # type: ignore[override]  # the older contract
            return torch.optim.SGD([*matrices, *vectors], lr=0.1)

    check_rejected(Older, r"build: expected `def build\(self, tensors: Sequence\[TrainedTensor\]\)", "optimizer")


def test_a_class_with_other_injections_is_rejected() -> None:
    class Greedy(Steady):
        """Wants more."""

        injects: ClassVar[tuple[str, ...]] = ("shape",)

    check_rejected(Greedy, r"injects: expected \(\), as the slot schedule injects, got \(shape\)")


def test_a_class_without_a_docstring_is_rejected() -> None:
    class Silent(Steady):
        pass

    check_rejected(Silent, "has no docstring")


@pytest.mark.parametrize(
    ("slot", "base", "trait", "hint"),
    [
        ("schedule", Steady, "compile", 'did you mean "compiles"?'),
        ("schedule", Steady, "hooks", "valid: compiles"),
        ("position", Position, "hook", 'did you mean "hooks"?'),
        (
            "position",
            Position,
            "causal",
            "valid: compiles, exact_gradients, exact_conversions, waits, stochastic, hooks",
        ),
    ],
)
def test_an_unknown_trait_of_a_slot_is_rejected_with_the_nearest_valid_one(
    slot: str, base: type, trait: str, hint: str
) -> None:
    words = f'unknown trait "{trait}" for the slot {slot}; {re.escape(hint)}'
    check_rejected(odd(base, {trait: True}), words, slot)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_a_trait_that_is_not_a_literal_is_rejected(value: object) -> None:
    class Odd(Steady):
        """Odd."""

        traits: ClassVar[Any] = {"compiles": value}

    check_rejected(Odd, "traits must be literals")


@pytest.mark.parametrize(
    ("slot", "base", "traits", "words"),
    [
        ("schedule", Steady, {"compiles": 1}, "trait `compiles`: expected bool, got 1"),
        ("position", Position, {"hooks": "rotate"}, r"trait `hooks`: expected list\[str\], got 'rotate'"),
        ("position", Position, {"hooks": [1]}, r"trait `hooks`: expected list\[str\], got \[1\]"),
        ("corpus", Corpus, {"provides_if": {"image": 1}}, r"trait `provides_if`: expected dict\[str, str\], got"),
        ("position", Position, {"visibility": "all"}, "trait `visibility`: expected both or past or any, got 'all'"),
        ("position", Position, {"hooks": []}, "missing trait `bias`: expected none or positions or content"),
    ],
)
def test_a_trait_of_another_kind_is_rejected(slot: str, base: type, traits: Any, words: str) -> None:
    check_rejected(odd(base, traits), words, slot)


def steady(init: Any) -> type:
    return type("Steady", (Steady,), {"__doc__": "Made.", "__init__": init, "__module__": __name__})


def _many(self: Any, **options: int) -> None: ...


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


def _anything(self: Any, *, level: Annotated[Any, "the factor"] = None) -> None:
    self.level = level


def _mapping(self: Any, *, level: Annotated[Mapping[str, Any] | None, "the factor"] = None) -> None:
    self.level = level


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (_many, r"takes `\*\*options: 'int'`|takes `\*\*options: int`"),
        (_bare, "option `level` has no annotation"),
        (_positional, r"expected the positional parameters \(\), got \(level\)"),
        (_beyond, "option `level`: expected > 0, got the default 0.0"),
        (_unread, "never reads its option `level`"),
        (_name, "has an option `name`"),
        (_anything, "option `level`: expected the type int, float"),
        (_mapping, "option `level`: expected the type int, float"),
        (_nested, 'option `level` is a component of the unknown slot "wheel"'),
    ],
)
def test_an_invalid_option_is_rejected(init: Any, message: str) -> None:
    check_rejected(steady(init), message)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_subclass_has_the_options_of_its_base_class(slot: str, components: Registry) -> None:
    for name, entry in components.index.entries[slot].items():
        base = components.get(slot, name)
        subclass = type("Mine", (base,), {"__doc__": "Mine.", "__module__": __name__})
        assert read(subclass, slot=slot).options == entry.options, name


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


def test_the_entry_of_a_topology_has_its_parts_and_slots() -> None:
    entry = read(topology(), "made", "topology")
    assert entry.parts == (("encoder", "body", False, None, False, False),)
    assert entry.reads == ("attention",)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"reads": ("attention", "wheels")}, 'unknown slot "wheels"; valid: topology, '),
        ({"parts": ()}, r"expected one part at `body`, .*got paths \[\]"),
        ({"parts": (Part("a", "a", causal=False),)}, r"expected one part at `body`, .*got paths \['a'\]"),
        (
            {"parts": (Part("a", "body", causal=False), Part("b", "body", causal=False))},
            "different names and paths",
        ),
        ({"parts": (Part("a", "body", causal=False), Part("a", "x", causal=False))}, "different names and paths"),
        (
            {"parts": (Part("a", "body", causal=True, cross="b"),)},
            'the part `a` attends to the unknown path "b"',
        ),
    ],
)
def test_an_inconsistent_topology_is_rejected(body: dict[str, Any], words: str) -> None:
    check_rejected(topology(**body), words, "topology")


def test_a_class_without_a_file_is_registered_without_one() -> None:
    names: dict[str, Any] = {"Attention": Attention, "Context": Context, "Cost": Cost, "State": State}
    body = {"__doc__": "From a prompt.", "__init__": lambda self, shape: None, "__module__": "builtins"}
    component = type(
        "Made", (Attention,), {**body, **{name: lambda self, *_: None for name in ("forward", "start", "cost")}}
    )
    assert read(component, "made", "attention").file == ""
    assert names


STANDARD_INPUT = '''
import paribus

class Flat(paribus.Schedule):
    """Constant schedule."""

    def factor(self, step: int, steps: int) -> float:
        return 1.0

registry = paribus.installed(no_plugins=True).with_components(schedule={"flat": Flat})
assert registry.index.find("schedule", "flat").file == ""
study = {
    "base": {"preset": "encoder-tiny"}, "vary": {"schedule": ["flat"]}, "seeds": 1, "budget": {"steps": 2},
    "metric": {"name": "val/mlm/loss", "better": "lower"},
}
print(len(paribus.study(study, registry=registry, store="runs").plan.trials))
'''


@pytest.mark.thorough
def test_a_class_from_standard_input_has_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-"]
    process = subprocess.run(command, input=STANDARD_INPUT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "2\n"
