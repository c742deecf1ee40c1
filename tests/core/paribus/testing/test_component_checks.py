"""Failures of components by themselves: hooks, norms, feed-forwards, placements, options."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import pytest
import torch
from torch import Tensor, nn

from paribus import Initialisation, ParameterInfo, Range, Shape, Sublayer, Traits
from paribus.registry.class_reader import schema_of
from paribus.schema import Option
from paribus.testing.host_models import alternative_values
from paribus.testing.option_specs import flatten_options
from paribus.testing.purity_checks import external_reads

Factory = Callable[..., Any]
FailureOf = Callable[[type[Any], str], str]
SUBLAYERS = "every sublayer runs once"
NORM = "norm treats tokens separately"
FEEDFORWARD = "feed-forward treats tokens separately"
POSITION_LIMIT = "positions are valid up to the limit"
BIAS = "bias depends on distance only"
OPTIONS = "every option has an effect"
ROLES = "output matrices have their role"


def traits(*hooks: str, bias: str = "none") -> Any:
    return {"hooks": list(hooks), "bias": bias, "owner": "stack"}


@pytest.mark.parametrize(
    ("members", "fragment"),
    [
        (
            {"rotate": lambda self, x, tables, side: -x},
            "it implements `rotate`, but its trait `hooks` does not contain `rotate`",
        ),
        ({"traits": traits("embed")}, "its trait `hooks` contains `embed`, but it does not implement `embed`"),
        (
            {"traits": traits("bias"), "bias": lambda self, pair: torch.zeros(1)},
            "its trait `bias` is 'none', but its trait `hooks` is",
        ),
    ],
)
def test_hooks_that_differ_from_the_declared_ones_are_reported(
    members: Mapping[str, Any], fragment: str, position: Factory, failure_of: FailureOf
) -> None:
    assert fragment in failure_of(position(**members), "hooks match their declaration")


@pytest.mark.thorough
def test_non_finite_position_is_reported(position: Factory, failure_of: FailureOf) -> None:
    def embed(self: Any, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions.unsqueeze(-1).to(x.dtype).sqrt()

    embed_traits: Traits = traits("embed")
    assert "position -3 is not finite; declared limit: none" in failure_of(
        position(traits=embed_traits, embed=embed), POSITION_LIMIT
    )
    assert (
        failure_of(
            position(traits=embed_traits, embed=lambda self, x, positions: x + positions.unsqueeze(-1)),
            POSITION_LIMIT,
        )
        == ""
    )


def test_norm_over_several_tokens_is_reported(norm: Factory, failure_of: FailureOf) -> None:
    assert "position 0 of 5 differs by" in failure_of(norm(forward=lambda self, x: x - x.mean(1, keepdim=True)), NORM)


def test_norm_that_changes_the_dtype_is_reported(norm: Factory, failure_of: FailureOf) -> None:
    message = failure_of(norm(forward=lambda self, x: x.float()), NORM)
    assert "dtype torch.float32; expected (2, 5, 16) and torch.float64" in message


def test_feedforward_that_mixes_tokens_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    mixing = feedforward(forward=lambda self, x: (x.cumsum(1), None))
    assert "position 1 of 5 differs by" in failure_of(mixing, FEEDFORWARD)


def test_auxiliary_loss_that_is_not_a_scalar_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    message = failure_of(feedforward(forward=lambda self, x: (x, x.mean(-1))), FEEDFORWARD)
    assert "its auxiliary loss has the shape (2, 5); expected a scalar" in message


def init_maps(self: Any, shape: Shape) -> None:
    nn.Module.__init__(self)
    self.inner, self.outer = nn.Linear(shape.width, 8), nn.Linear(8, shape.width)


def test_output_map_without_its_role_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    def maps(share: float, **roles: str) -> Any:
        return feedforward(
            __init__=init_maps,
            forward=lambda self, x: (share * x + self.outer(self.inner(x).tanh()), None),
            roles=roles,
        )

    message = failure_of(maps(0.0), ROLES)
    assert "`outer.weight` writes the output, but has the role `weight`; expected `residual`" in message
    residual = {"outer.weight": "residual"}
    assert failure_of(maps(0.5, **residual), ROLES) == ""
    assert failure_of(maps(0.0, **residual), ROLES) == ""


def run_first_only(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    return x + next(iter(sublayers.values()))(x)


def run_twice(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    for sublayer in sublayers.values():
        x = x + sublayer(x) + sublayer(x)
    return x


def drop_output(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    for name, sublayer in sublayers.items():
        output = sublayer(x)
        x = x if name == "feedforward" else x + output
    return x


@pytest.mark.parametrize(
    ("forward", "fragment"),
    [
        (run_first_only, "it runs the sublayers attention; expected each of attention, feedforward once"),
        (run_twice, "it runs the sublayers attention, attention, feedforward, feedforward; expected each"),
        (drop_output, "the output of the sublayer `feedforward` does not change the output of the layer"),
    ],
)
def test_placement_that_skips_or_repeats_sublayers_is_reported(
    forward: Callable[..., Tensor], fragment: str, placement: Factory, failure_of: FailureOf
) -> None:
    assert fragment in failure_of(placement(forward=forward), SUBLAYERS)


def test_placement_that_changes_the_shape_is_reported(placement: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + sublayer(x)
        return x[..., :1]

    assert "shape (2, 3, 1); expected (2, 3, 16)" in failure_of(placement(forward=forward), SUBLAYERS)


def test_bias_that_depends_on_absolute_positions_is_reported(position: Factory, failure_of: FailureOf) -> None:
    bias_traits = {**traits("bias", bias="positions"), "distance_bias": True}
    scaled = position(traits=bias_traits, bias=lambda self, pair: distance_bias(pair) * pair.q_positions.max())
    assert "when all positions are shifted by 31" in failure_of(scaled, BIAS)
    assert not failure_of(position(traits=bias_traits, bias=lambda self, pair: distance_bias(pair)), BIAS)


def distance_bias(pair: Any) -> Tensor:
    distances: Tensor = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).unsqueeze(1).to(pair.dtype)
    return distances.expand(-1, pair.heads, -1, -1)


def with_option(annotation: Any, default: Any, read: Callable[[Any], float]) -> dict[str, Any]:
    """Return the members of a feed-forward with one option, read by `read`."""

    def init(self: Any, shape: Shape, *, factor: Any = default) -> None:
        nn.Module.__init__(self)
        self.factor = read(factor)

    init.__annotations__["factor"] = annotation
    return {"__init__": init, "forward": lambda self, x: (x.sin() * self.factor, None)}


NUMBER = Annotated[float, "a number", Range(above=0)]
CHOICE = Annotated[Literal["a", "b", "c"], "one of three"]
FLAG = Annotated[bool, "on or of"]


def test_layer_without_a_parameter_when_shared_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.scale = nn.Linear(shape.width, shape.width) if shape.layer == 1 else None

    first_only = feedforward(__init__=init, forward=lambda self, x: (x if self.scale is None else self.scale(x), None))
    message = failure_of(first_only, "shared layers have all parameters")
    assert "layer 1 has the parameter `feedforward.scale.weight` of shape (16, 16); one layer" in message


@pytest.mark.thorough
def test_number_without_effect_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    dead = feedforward(**with_option(NUMBER, 1.0, lambda factor: 1.0 + 0 * factor))
    message = failure_of(dead, OPTIONS)
    assert "the option `factor` has no effect: 0.5 gives the same weights and output as 1.0" in message


def test_choice_with_two_equal_values_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    half = feedforward(**with_option(CHOICE, "a", lambda factor: 2.0 if factor == "b" else 1.0))
    assert "'c' gives the same weights and output as 'a'" in failure_of(half, OPTIONS)


@pytest.mark.thorough
def test_numbers_with_the_same_effect_are_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    clipped = feedforward(**with_option(NUMBER, 1.0, lambda factor: max(factor, 1.0)))
    assert "0.5 gives the same weights and output as 1.0" in failure_of(clipped, OPTIONS)


def test_option_without_effect_in_causal_stacks_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape, *, factor: Annotated[float, "a number", Range(above=0)] = 1.0) -> None:
        nn.Module.__init__(self)
        self.factor = 1.0 if shape.causal else factor

    members = {**with_option(NUMBER, 1.0, float), "__init__": init}
    assert "the option `factor` has no effect in models such as gpt-tiny" in failure_of(feedforward(**members), OPTIONS)


@pytest.mark.few(1)
@pytest.mark.parametrize("description", ["a factor", "a factor, if `cubed` is false"])
def test_option_without_effect_beside_another_is_reported_unless_it_is_described(
    description: str, feedforward: Factory, failure_of: FailureOf
) -> None:
    def init(self: Any, shape: Shape, *, factor: Any = 1.0, cubed: Any = False) -> None:
        nn.Module.__init__(self)
        self.factor, self.cubed = factor, cubed

    init.__annotations__ |= {"factor": Annotated[float, description, Range(above=0)], "cubed": Annotated[bool, "cube"]}
    forward = {"forward": lambda self, x: (x**3 if self.cubed else x * self.factor, None)}
    message = failure_of(feedforward(__init__=init, **forward), OPTIONS)
    assert ("the option `factor` has no effect with cubed=True" in message) is (description == "a factor")


@pytest.mark.parametrize(
    ("annotation", "default", "read"),
    [
        (NUMBER, 1.0, float),
        (CHOICE, "a", lambda factor: 1.0 + "abc".index(factor)),
        (FLAG, False, lambda factor: 1.0 + factor),
    ],
)
def test_option_with_an_effect_passes(
    annotation: Any, default: Any, read: Callable[[Any], float], feedforward: Factory, failure_of: FailureOf
) -> None:
    assert failure_of(feedforward(**with_option(annotation, default, read)), OPTIONS) == ""


def test_option_with_an_effect_in_training_only_passes(feedforward: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        return (x.sin() * self.factor if self.training else x.sin()), None

    trained = feedforward(**{**with_option(NUMBER, 1.0, float), "forward": forward})
    assert failure_of(trained, OPTIONS) == ""


def test_option_with_an_effect_on_the_loss_only_passes(feedforward: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), self.factor * x.square().mean()

    weighed = feedforward(**{**with_option(NUMBER, 1.0, float), "forward": forward})
    assert failure_of(weighed, OPTIONS) == ""


def test_option_with_an_effect_on_heads_only_passes(component_class: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, *, factor: Any = 1.0) -> None:
        self.std = factor

    def draw(self: Any, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.std if about.role == "head" else 1.0)

    init.__annotations__["factor"] = NUMBER
    assert failure_of(component_class(Initialisation, {"__init__": init, "draw": draw}), OPTIONS) == ""


def test_invalid_values_of_an_option_are_ignored(feedforward: Factory, failure_of: FailureOf) -> None:
    narrow = Annotated[float, "between 0.9 and 1", Range(low=0.9, high=1)]
    assert failure_of(feedforward(**with_option(narrow, 1.0, lambda factor: 1.0 + 0 * factor)), OPTIONS) == ""


def test_options_in_groups_are_flattened(components: Any) -> None:
    gqa = components.get("attention", "gqa")
    names = [".".join(path) for path, _ in flatten_options(schema_of(gqa, gqa.injects))]
    scores = "bias scaled qk_norm sinks value_residual soft_cap exclusive forget gate kernel value_embedding"
    assert names == ["kv_heads", "output_bias", "share_kv", *(f"scores.{name}" for name in scores.split())]


def test_alternative_values_differ_from_the_default(components: Any) -> None:
    spec = {"dims": {"width": 16, "head_width": None}}
    all_options: list[Option] = []
    for entry in components.index.claims.values():
        all_options += [option for _, option in flatten_options(entry[0].options)]
    for option in all_options:
        values = alternative_values(option, spec)
        assert option.sample not in values
        assert len(values) == len({repr(value) for value in values})
        if option.kind.name in ("bool", "choice"):
            assert values


def test_clocks_that_other_libraries_read_during_garbage_collection_do_not_count() -> None:
    def read_clock(*_: Any) -> None:
        time.perf_counter()

    gc.callbacks.append(read_clock)
    try:
        assert external_reads(lambda: [[number] for number in range(100_000)]) == []
    finally:
        gc.callbacks.remove(read_clock)
    assert external_reads(time.perf_counter)[0].startswith("`time.perf_counter`")
    assert gc.isenabled()
