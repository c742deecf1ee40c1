"""The head that scores rows against the vocabulary: what it is made of, what it says, and what it keeps of another.

Its tensors are the objective's own, under the names that `made` gives them: checkpoints know them by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ConvertedTensor, Cost, Load, Norm, Norms, Role, Shape, Unembed, copy_table_rows
from paribus_objective.activation import Curve
from paribus_objective.narrowing import Narrow

ROLES: Final[Mapping[str, Role]] = {"dense.weight": "head", "dense.bias": "bias", "bias": "bias"}


class Parts(NamedTuple):
    """What a head has, in the order in which an objective takes it over; None: it has no such."""

    narrow: Narrow | None  # brings rows to the width of the table, where no dense layer does
    dense: nn.Linear | None
    norm: Norm | None
    bias: nn.Parameter | None  # of each entry of the vocabulary


@runtime_checkable
class Headed(Protocol):
    """Who has taken such parts over."""

    @property
    def narrow(self) -> Narrow | None: ...

    @property
    def dense(self) -> nn.Linear | None: ...

    @property
    def norm(self) -> Norm | None: ...

    @property
    def bias(self) -> nn.Parameter | None: ...


def made(shape: Shape, norm: Norms, *, transform: bool = True, transform_bias: bool = True, bias: bool = True) -> Parts:
    """A dense layer to the width of the table and a norm, "BERT" (Devlin et al. 2019); or, without `transform`, no more
    than brings rows to that width."""
    return Parts(
        None if transform else Narrow(shape),
        nn.Linear(shape.width, shape.embedding_width, bias=transform_bias) if transform else None,
        norm(shape.embedding_width) if transform else None,
        nn.Parameter(torch.zeros(shape.vocabulary)) if bias else None,
    )


def logits(head: Headed, hidden: Tensor, unembed: Unembed, activation: Curve = functional.gelu) -> Tensor:
    """(…, D) -> (…, V)."""
    if head.narrow is not None:
        hidden = head.narrow(hidden)
    if head.dense is not None:
        hidden = activation(head.dense(hidden))
    return unembed(hidden if head.norm is None else head.norm(hidden), head.bias)


def cost(head: Headed, load: Load) -> Cost:
    """What it does for `load.head_positions` rows, up to where they are scored."""
    if head.narrow is not None:
        return head.narrow.cost(load)
    return Cost() if head.dense is None else Cost(flops=2 * load.head_positions * head.dense.weight.numel())


def adopted(head: Headed, other: nn.Module) -> Mapping[str, ConvertedTensor]:
    """Of a larger or smaller vocabulary, the biases of the ids that both have."""
    if not isinstance(other, Headed) or head.bias is None or other.bias is None:
        return {}
    kept = copy_table_rows(head.bias, other.bias)
    return {} if kept is None else {"bias": kept}
