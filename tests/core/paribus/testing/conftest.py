"""Components with one thing wrong, and what the kit says of them."""

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

NOWHERE: PositionTraits = {"hooks": [], "bias": "none", "owner": "stack"}
Found = Callable[[type[Any], str], str]


@pytest.fixture
def found(components: Registry) -> Found:
    """What one check says of a component: its counterexample, or "" where it holds."""

    def found(component: type[Any], check: str) -> str:
        report = examine(component, registry=components, only=[check])
        assert check not in report.skipped
        return "\n".join(map(str, report.findings))

    return found


Faulty = Callable[..., Any]


@pytest.fixture(scope="session")
def attention() -> Faulty:
    """A multi-head attention as it should be, but for what is replaced in it."""

    def begin(self: Any, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
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

    own: dict[str, Any] = {
        "traits": SOFTMAX_TRAITS,
        "__init__": begin,
        "forward": forward,
        "start": start,
        "cost": cost,
    }
    return lambda **replaced: made(Attention, {**own, **replaced})


@pytest.fixture(scope="session")
def position() -> Faulty:
    """A position that declares no moment and has none, but for what is replaced in it."""

    def begin(self: Any, shape: Shape) -> None:
        super(Position, self).__init__()

    own: dict[str, Any] = {"traits": NOWHERE, "__init__": begin, "position_limit": lambda self: None}
    return lambda **replaced: made(Position, {**own, **replaced})


@pytest.fixture(scope="session")
def norm() -> Faulty:
    """A norm that leaves rows as they are, but for what is replaced in it."""

    def begin(self: Any, width: int) -> None:
        super(Norm, self).__init__()

    return lambda **replaced: made(Norm, {"__init__": begin, "forward": lambda self, x: x, **replaced})


@pytest.fixture(scope="session")
def feedforward() -> Faulty:
    """A feed-forward that has no parameter and costs nothing, but for what is replaced in it."""

    def begin(self: Any, shape: Shape) -> None:
        super(FeedForward, self).__init__()

    own: dict[str, Any] = {
        "__init__": begin,
        "forward": lambda self, x: (x.sin(), None),
        "cost": lambda self, load: Cost(),
    }
    return lambda **replaced: made(FeedForward, {**own, **replaced})


@pytest.fixture(scope="session")
def placement() -> Faulty:
    """A placement that adds each sublayer to the stream, but for what is replaced in it."""

    def begin(self: Any, shape: Shape, norm: Callable[[], Norm]) -> None:
        super(Placement, self).__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return x

    own: dict[str, Any] = {"traits": {"final_norm": True}, "__init__": begin, "forward": forward}
    return lambda **replaced: made(Placement, {**own, **replaced})


@pytest.fixture(scope="session")
def filling() -> Faulty:
    """A class that fills a slot, from nothing but its members."""
    return made


def made(contract: type[Any], members: Mapping[str, Any]) -> Any:
    return type("Faulty", (contract,), {"__doc__": "A fault.", "__module__": __name__, **members})
