"""A layer: which sublayers it hands to its placement, what each reads, what comes back."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, FeedForward, Load, Placement, Shape, State, Sublayer, TokenLayout
from paribus.parts.layer import Layer

ROWS = TokenLayout(torch.zeros(1, 1, dtype=torch.long))
OWN = Context((), ROWS, ROWS)
CROSS = Context((), ROWS, ROWS, memory=torch.full((1, 1, 2), 100.0))


@final
class Shift(Attention):
    """Adds a number, and remembers what it was given."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.given: list[Context] = []

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        self.given.append(ctx)
        return x + self.by

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Double(FeedForward):
    """Doubles rows, with an auxiliary loss where it is given one."""

    def __init__(self, auxiliary: float | None = None) -> None:
        super().__init__()
        self.auxiliary = auxiliary

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x * 2, None if self.auxiliary is None else torch.tensor(self.auxiliary)

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Chain(Placement):
    """One sublayer behind the other, without a residual stream."""

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


def names_of(made: Layer) -> list[str]:
    assert isinstance(made.placement, Chain)
    return made.placement.names


def test_a_placement_is_given_the_sublayers_in_the_order_that_a_shape_names_them() -> None:
    made = layer()
    x, _ = made(torch.zeros(1, 3, 2), OWN)
    assert names_of(made) == list(Shape(2, 1, 2, 3, 11, 1).sublayers)
    assert torch.equal(x, torch.full((1, 3, 2), 2.0))  # (0 + 1) * 2


def test_cross_attention_stands_between_the_two_and_reads_the_memory_alone() -> None:
    made = layer(cross=True)
    x, _ = made(torch.zeros(1, 3, 2), OWN, CROSS)
    assert names_of(made) == ["attention", "cross", "feedforward"]
    assert torch.equal(x, torch.full((1, 3, 2), 22.0))  # (0 + 1 + 10) * 2
    assert isinstance(made.attention, Shift)
    assert isinstance(made.cross, Shift)
    assert made.attention.given == [OWN]
    assert made.cross.given == [CROSS]


def test_an_auxiliary_loss_comes_back_beside_the_rows() -> None:
    assert layer()(torch.zeros(1, 3, 2), OWN)[1] is None
    assert layer(auxiliary=0.5)(torch.zeros(1, 3, 2), OWN)[1].item() == 0.5


def test_each_sublayer_is_followed_by_dropout_in_training_and_by_none_otherwise() -> None:
    made = layer(dropout=0.5, cross=True)
    x = torch.ones(4, 16, 2)
    assert torch.equal(made.eval()(x, OWN, CROSS)[0], torch.full_like(x, 24.0))
    torch.manual_seed(0)
    trained = made.train()(x, OWN, CROSS)[0]
    after_attention = {0.0, 2 * (1 + 1.0)}  # what survives a dropout of one half is doubled
    after_cross = {0.0, *(2 * (value + 10) for value in after_attention)}
    after_feed_forward = {0.0, *(2 * (value * 2) for value in after_cross)}
    assert set(trained.unique().tolist()) == after_feed_forward
