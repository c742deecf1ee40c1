"""Layer: order of its sublayers, their contexts, dropout and auxiliary loss."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, FeedForward, Load, Placement, Shape, State, Sublayer, TokenLayout
from paribus.parts.stack import Layer

ROWS = TokenLayout(torch.zeros(1, 1, dtype=torch.long))
OWN = Context((), ROWS, ROWS)
CROSS = Context((), ROWS, ROWS, memory=torch.full((1, 1, 2), 100.0))


@final
class Shift(Attention):
    """Attention that adds a number, and records its contexts."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.by = shift
        self.contexts: list[Context] = []

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        self.contexts.append(ctx)
        return x + self.by

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Double(FeedForward):
    """Feedforward network that doubles its input, with an optional auxiliary loss."""

    def __init__(self, auxiliary: float | None = None) -> None:
        super().__init__()
        self.auxiliary = auxiliary

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x * 2, None if self.auxiliary is None else torch.tensor(self.auxiliary)

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Chain(Placement):
    """Placement that applies sublayers one after another, without a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            self.names.append(name)
            x = sublayer(x)
        return x


def layer(*, dropout: float = 0.0, cross: bool = False, auxiliary: float | None = None) -> Layer:
    return Layer(
        attention=Shift(1.0),
        cross=Shift(10.0) if cross else None,
        feedforward=Double(auxiliary),
        placement=Chain(),
        dropout=dropout,
    )


def names_of(tested_layer: Layer) -> list[str]:
    assert isinstance(tested_layer.placement, Chain)
    return tested_layer.placement.names


def test_a_placement_receives_the_sublayers_in_the_order_of_the_shape() -> None:
    tested_layer = layer()
    (x,), _ = tested_layer((torch.zeros(1, 3, 2),), OWN)
    assert names_of(tested_layer) == list(Shape(2, 1, 2, 3, 11, 1).sublayers)
    assert torch.equal(x, torch.full((1, 3, 2), 2.0))  # (0 + 1) * 2


def test_cross_attention_runs_before_the_feedforward_and_reads_the_memory() -> None:
    tested_layer = layer(cross=True)
    (x,), _ = tested_layer((torch.zeros(1, 3, 2),), OWN, CROSS)
    assert names_of(tested_layer) == ["attention", "cross", "feedforward"]
    assert torch.equal(x, torch.full((1, 3, 2), 22.0))  # (0 + 1 + 10) * 2
    assert isinstance(tested_layer.attention, Shift)
    assert isinstance(tested_layer.cross, Shift)
    assert tested_layer.attention.contexts == [OWN]
    assert tested_layer.cross.contexts == [CROSS]


def test_a_layer_returns_the_auxiliary_loss() -> None:
    assert layer()((torch.zeros(1, 3, 2),), OWN)[1] is None
    assert layer(auxiliary=0.5)((torch.zeros(1, 3, 2),), OWN)[1].item() == 0.5


def test_each_sublayer_is_followed_by_dropout_in_training_only() -> None:
    tested_layer = layer(dropout=0.5, cross=True)
    x = torch.ones(4, 16, 2)
    assert torch.equal(tested_layer.eval()((x,), OWN, CROSS)[0][0], torch.full_like(x, 24.0))
    torch.manual_seed(0)
    trained = tested_layer.train()((x,), OWN, CROSS)[0][0]
    after_attention = {0.0, 2 * (1 + 1.0)}  # a dropout of one half doubles the remaining values
    after_cross = {0.0, *(2 * (value + 10) for value in after_attention)}
    after_feed_forward = {0.0, *(2 * (value * 2) for value in after_cross)}
    assert set(trained.unique().tolist()) == after_feed_forward
