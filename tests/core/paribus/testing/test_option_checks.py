"""What the kit says of options that are accepted and ignored."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from torch import Tensor, nn

from paribus import Initialisation, ParameterInfo, Range, Shape
from paribus.registry.class_reader import schema_of
from paribus.schema import Option
from paribus.testing.host_models import alternative_values
from paribus.testing.option_checks import flatten_options

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def with_option(annotation: Any, default: Any, read: Callable[[Any], float]) -> dict[str, Any]:
    """A feed-forward's members, with an option that it reads as told."""

    def begin(self: Any, shape: Shape, *, knob: Any = default) -> None:
        nn.Module.__init__(self)
        self.factor = read(knob)

    begin.__annotations__["knob"] = annotation
    return {"__init__": begin, "forward": lambda self, x: (x.sin() * self.factor, None)}


NUMBER = Annotated[float, "a number", Range(above=0)]
CHOICE = Annotated[Literal["a", "b", "c"], "one of three"]
SWITCH = Annotated[bool, "on or off"]


def test_a_number_that_changes_nothing_is_named(feedforward: Faulty, found: Found) -> None:
    dead = feedforward(**with_option(NUMBER, 1.0, lambda knob: 1.0 + 0 * knob))
    said = found(dead, "options")
    assert "the option `knob` is accepted and ignored: 0.5 gives what 1.0 does" in said


def test_a_choice_of_which_two_are_the_same_is_shown(feedforward: Faulty, found: Found) -> None:
    half = feedforward(**with_option(CHOICE, "a", lambda knob: 2.0 if knob == "b" else 1.0))
    assert "'c' gives what 'a' does" in found(half, "options")


@pytest.mark.parametrize(
    ("annotation", "default", "read"),
    [
        (NUMBER, 1.0, float),
        (CHOICE, "a", lambda knob: 1.0 + "abc".index(knob)),
        (SWITCH, False, lambda knob: 1.0 + knob),
    ],
)
def test_an_option_that_does_something_is_honoured(
    annotation: Any, default: Any, read: Callable[[Any], float], feedforward: Faulty, found: Found
) -> None:
    assert found(feedforward(**with_option(annotation, default, read)), "options") == ""


def test_an_option_that_counts_in_training_alone_is_honoured(feedforward: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        return (x.sin() * self.factor if self.training else x.sin()), None

    trained = feedforward(**{**with_option(NUMBER, 1.0, float), "forward": forward})
    assert found(trained, "options") == ""


def test_an_option_that_counts_in_the_loss_alone_is_honoured(feedforward: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), self.factor * x.square().mean()

    weighed = feedforward(**{**with_option(NUMBER, 1.0, float), "forward": forward})
    assert found(weighed, "options") == ""


def test_an_option_that_is_about_heads_alone_is_honoured(filling: Faulty, found: Found) -> None:
    def begin(self: Any, *, knob: Any = 1.0) -> None:
        self.std = knob

    def draw(self: Any, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.std if about.role == "head" else 1.0)

    begin.__annotations__["knob"] = NUMBER
    assert found(filling(Initialisation, {"__init__": begin, "draw": draw}), "options") == ""


def test_values_that_are_not_valid_are_not_held_against_an_option(feedforward: Faulty, found: Found) -> None:
    narrow = Annotated[float, "between 0.9 and 1", Range(low=0.9, high=1)]
    assert found(feedforward(**with_option(narrow, 1.0, lambda knob: 1.0 + 0 * knob)), "options") == ""


def test_groups_are_looked_into(components: Any) -> None:
    gqa = components.get("attention", "gqa")
    names = [".".join(path) for path, _ in flatten_options(schema_of(gqa, gqa.injects))]
    scores = ("bias", "scaled", "qk_norm", "sinks", "value_residual", "soft_cap")
    assert names == ["kv_heads", *(f"scores.{name}" for name in scores)]


def test_other_values_are_of_the_same_kind_and_none_is_the_default(components: Any) -> None:
    spec = {"dims": {"width": 16, "head_width": None}}
    seen: list[Option] = []
    for entry in components.index.claims.values():
        seen += [option for _, option in flatten_options(entry[0].options)]
    for option in seen:
        others = alternative_values(option, spec)
        assert option.sample not in others
        assert len(others) == len({repr(value) for value in others})
        if option.kind.name in ("bool", "choice"):
            assert others
