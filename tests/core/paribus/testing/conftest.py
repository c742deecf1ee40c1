"""Fixtures: components with one fault, and the message of a check that fails for them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    FeedForward,
    Heads,
    Load,
    Norm,
    Placement,
    Position,
    PositionTraits,
    ScoreOptions,
    Shape,
    State,
    Sublayer,
    empty_cache,
    softmax_cost,
    visibility_of,
)
from paribus.registry import Registry
from paribus.testing import examine

NO_HOOKS: PositionTraits = {"hooks": [], "bias": "none", "owner": "stack"}
FailureOf = Callable[[type[Any], str], str]


@pytest.fixture
def failure_of(components: Registry) -> FailureOf:
    """Return a function that runs one check on a component; it returns the failure, or "" if the check passes."""

    def failure_of(component: type[Any], check: str) -> str:
        report = examine(component, registry=components, only=[check])
        assert check not in report.skipped
        return "\n".join(map(str, report.findings))

    return failure_of


Factory = Callable[..., Any]


@pytest.fixture(scope="session")
def attention() -> Factory:
    """Return a factory of multi-head attention classes with replaced members."""

    def init(self: Any, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super(Attention, self).__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self: Any, x: Tensor, ctx: Context) -> Any:
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self: Any, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self: Any, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)

    members: dict[str, Any] = {
        "traits": SOFTMAX_TRAITS,
        "__init__": init,
        "forward": forward,
        "start": start,
        "cost": cost,
    }
    return lambda **overrides: make_class(Attention, {**members, **overrides})


@pytest.fixture(scope="session")
def position() -> Factory:
    """Return a factory of position classes without hooks, with replaced members."""

    def init(self: Any, shape: Shape) -> None:
        super(Position, self).__init__()

    members: dict[str, Any] = {"traits": NO_HOOKS, "__init__": init, "position_limit": lambda self: None}
    return lambda **overrides: make_class(Position, {**members, **overrides})


@pytest.fixture(scope="session")
def norm() -> Factory:
    """Return a factory of identity norm classes with replaced members."""

    def init(self: Any, width: int) -> None:
        super(Norm, self).__init__()

    return lambda **overrides: make_class(Norm, {"__init__": init, "forward": lambda self, x: x, **overrides})


@pytest.fixture(scope="session")
def feedforward() -> Factory:
    """Return a factory of feed-forward classes without parameters and FLOPs, with replaced members."""

    def init(self: Any, shape: Shape) -> None:
        super(FeedForward, self).__init__()

    members: dict[str, Any] = {
        "__init__": init,
        "forward": lambda self, x: (x.sin(), None),
        "cost": lambda self, load: Cost(),
    }
    return lambda **overrides: make_class(FeedForward, {**members, **overrides})


@pytest.fixture(scope="session")
def placement() -> Factory:
    """Return a factory of pre-norm placement classes with replaced members."""

    def init(self: Any, shape: Shape, norm: Callable[[], Norm]) -> None:
        super(Placement, self).__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return x

    members: dict[str, Any] = {"traits": {"final_norm": True}, "__init__": init, "forward": forward}
    return lambda **overrides: make_class(Placement, {**members, **overrides})


@pytest.fixture(scope="session")
def component_class() -> Factory:
    """Return a function that makes a class of a slot from its members."""
    return make_class


def make_class(contract: type[Any], members: Mapping[str, Any]) -> Any:
    return type("Faulty", (contract,), {"__doc__": "Component with a fault.", "__module__": __name__, **members})
