# objective focal-mlm | mistake: the term is the mean over labels where a sum is expected, so the engine divides by the number of labels twice | property: losses are sums over labels (wrong scaling: the loss and its gradients are too small, and depend on the micro-batch)
"""Masked language modelling with a focal loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

import torch
from torch.nn import functional

from paribus import IGNORED, ForwardPass, LossTerm, Norms, Objective, Range, Shape, Vocabulary, hookimpl
from paribus_objective.masked_language_modelling import MaskedLanguageModelling  # the head and the masks of `mlm`


@final
class FocalMasked(MaskedLanguageModelling):
    """Masked language modelling that weighs a token by (1 - p)^focus: "Focal Loss" (Lin et al. 2017)."""

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        focus: Annotated[float, "exponent of the weights; 0: cross-entropy", Range(0)] = 0.0,
    ) -> None:
        super().__init__(shape, vocabulary, norm)
        self.focus = focus

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels = run.targets["labels"]
        logits = self.logits(self.scored_hidden(run), run.unembed)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        counted = labels.flatten() != IGNORED
        weighted = (1 - (-losses).exp()).pow(self.focus) * losses if self.focus else losses
        return {"loss": LossTerm(weighted.sum() / counted.sum(), counted.sum())}


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"focal-mlm": FocalMasked}
