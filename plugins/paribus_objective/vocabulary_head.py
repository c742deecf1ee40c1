"""Vocabulary head: its modules, and the methods that objectives with such a head share.

The modules are attributes of the objective, under the names of `HeadModules`, which are their names in checkpoints. An
objective assigns the functions it shares in its class body: `forward = vocabulary_head.forward`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    ConvertedTensor,
    Cost,
    ForwardPass,
    Load,
    LossTerm,
    Norm,
    Norms,
    Role,
    Shape,
    Unembed,
    copy_table_rows,
)
from paribus_objective import masking, scoring
from paribus_objective.activation import ActivationFunction
from paribus_objective.projection import OutputProjection

if TYPE_CHECKING:
    from torchmetrics import Metric

ROLES: Final[Mapping[str, Role]] = {"dense.weight": "head", "dense.bias": "bias", "bias": "bias"}


class HeadModules(NamedTuple):
    """Modules of a head, in the order in which an objective unpacks them; None: the head has no such module."""

    narrow: OutputProjection | None  # to the width of the embedding table, without a dense layer
    dense: nn.Linear | None
    norm: Norm | None
    bias: nn.Parameter | None  # of each entry of the vocabulary


class VocabularyHead(Protocol):
    """Module with the attributes of `HeadModules`."""

    @property
    def narrow(self) -> OutputProjection | None: ...

    @property
    def dense(self) -> nn.Linear | None: ...

    @property
    def norm(self) -> Norm | None: ...

    @property
    def bias(self) -> nn.Parameter | None: ...


def has_vocabulary_head(module: object) -> TypeGuard[VocabularyHead]:
    """Return True if a module has the attributes of a head.

    From Python 3.12 on, `isinstance` with a protocol does not see modules and parameters, which are attributes by
    `nn.Module.__getattr__`.
    """
    return all(hasattr(module, name) for name in HeadModules._fields)


class TokenPredictor(Protocol):
    """Objective whose main loss is the cross-entropy of tokens."""

    @property
    def classes(self) -> int: ...

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor: ...

    def scored_hidden(self, run: ForwardPass) -> Tensor:
        """Hidden states of the positions that have labels: (B, N, D)."""
        ...


def build(
    shape: Shape, norm: Norms, *, transform: bool = True, transform_bias: bool = True, bias: bool = True
) -> HeadModules:
    """Build a dense layer to the width of the embedding table and a norm, "BERT" (Devlin et al. 2019); without
    `transform`, only a projection to that width."""
    return HeadModules(
        None if transform else OutputProjection(shape),
        nn.Linear(shape.width, shape.embedding_width, bias=transform_bias) if transform else None,
        norm(shape.embedding_width) if transform else None,
        nn.Parameter(torch.zeros(shape.vocabulary)) if bias else None,
    )


def logits(
    head: VocabularyHead, hidden: Tensor, unembed: Unembed, activation: ActivationFunction = functional.gelu
) -> Tensor:
    """(…, D) -> (…, V)."""
    if head.narrow is not None:
        hidden = head.narrow(hidden)
    if head.dense is not None:
        hidden = activation(head.dense(hidden))
    return unembed(hidden if head.norm is None else head.norm(hidden), head.bias)


def cost(head: VocabularyHead, load: Load) -> Cost:
    """Return the cost of the head for `load.head_positions` tokens, without the embedding table."""
    if head.narrow is not None:
        return head.narrow.cost(load)
    return Cost() if head.dense is None else Cost(flops=2 * load.head_positions * head.dense.weight.numel())


def convert_weights(head: VocabularyHead, other: nn.Module) -> Mapping[str, ConvertedTensor]:
    """Copy the biases of ids that both vocabularies have."""
    if not has_vocabulary_head(other) or head.bias is None or other.bias is None:
        return {}
    bias = copy_table_rows(head.bias, other.bias)
    return {} if bias is None else {"bias": bias}


def body_hidden(objective: TokenPredictor, run: ForwardPass) -> Tensor:
    """(B, T, D): hidden states of every position of the body."""
    return run.hidden("body")


def masked_hidden(objective: TokenPredictor, run: ForwardPass) -> Tensor:
    """(B, N, D): hidden states of the masked positions of the body."""
    return masking.gather(run.hidden(), run.targets["pick"])


def token_loss(objective: TokenPredictor, run: ForwardPass, smoothing: float = 0.0) -> LossTerm:
    """Return the cross-entropy of the tokens."""
    return scoring.token_cross_entropy(*labelled(objective, run), smoothing=smoothing)


def token_predictions(objective: TokenPredictor, run: ForwardPass) -> Tensor:
    """(B, N): the most likely token of each label."""
    return scoring.label_scores(*labelled(objective, run)).predictions


def labelled(objective: TokenPredictor, run: ForwardPass) -> tuple[ForwardPass, scoring.Head, Tensor, Tensor, int]:
    """Return what scores the labels."""

    def head(hidden: Tensor) -> Tensor:
        return objective.logits(hidden, run.unembed)

    return run, head, objective.scored_hidden(run), run.targets["labels"], objective.classes


def forward(objective: TokenPredictor, run: ForwardPass) -> Mapping[str, LossTerm]:
    return {"loss": token_loss(objective, run)}


def fill_logits(objective: TokenPredictor, run: ForwardPass) -> Tensor:
    """(B, N, V): logits of the masked positions."""
    return objective.logits(objective.scored_hidden(run), run.unembed)


def head_positions(objective: TokenPredictor, length: int) -> int:
    """Return `length`: the head runs on every position."""
    return length


def metrics(objective: TokenPredictor) -> Mapping[str, Metric]:
    return {"accuracy": scoring.accuracy(objective.classes)}


def update_metrics(objective: TokenPredictor, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
    scoring.update(metrics["accuracy"], token_predictions(objective, run), run.targets["labels"])


def exact_match_metrics(objective: TokenPredictor) -> Mapping[str, Metric]:
    return {"accuracy": scoring.accuracy(objective.classes), "exact": scoring.exact_match()}


def update_exact_match_metrics(objective: TokenPredictor, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
    predictions, labels = token_predictions(objective, run), run.targets["labels"]
    scoring.update(metrics["accuracy"], predictions, labels)
    scoring.update_exact_match(metrics["exact"], predictions, labels)
