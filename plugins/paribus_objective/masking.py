"""Which tokens are predicted, and what stands in their place: whole batches at a time, each row keyed by itself."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, Draw, Problem, SpecError, Stream, Vocabulary


@final
class Text:
    """Tells the tokens of a text from those that only hold it together."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.reserved = np.zeros(max(vocabulary.size, max(vocabulary.reserved, default=-1) + 1), dtype=bool)
        self.reserved[sorted(vocabulary.reserved)] = True

    def eligible(self, stream: Stream) -> Tensor:
        """(B, T) bool: neither special nor padding."""
        outside = self.reserved.take(stream.tokens.numpy(), mode="clip")
        if stream.special is not None:
            outside |= stream.special.numpy()
        if stream.documents is not None:
            outside |= stream.documents.numpy() < 0
        return torch.from_numpy(~outside)


@final
class Disguise:
    """Puts the mask token, a random token of the text's, or the token itself in the place of what was picked."""

    def __init__(self, vocabulary: Vocabulary, mask: float, random: float) -> None:
        if mask + random > 1 + 1e-9:
            raise ValueError(f"`mask` ({mask:g}) and `random` ({random:g}) are shares of one whole; valid: a sum ≤ 1")
        if "mask" not in vocabulary.specials:
            raise SpecError(Problem(code="no-mask", what="masking needs a tokenizer that has a mask token"))
        self.token = vocabulary.specials["mask"]
        self.mask, self.random = mask, random
        self.words = np.array([i for i in range(vocabulary.size) if i not in vocabulary.reserved], dtype=np.int64)

    def __call__(self, tokens: Tensor, pick: Tensor, labels: Tensor, draw: Draw) -> Tensor:
        """(B, T), (B, N), (B, N) -> (B, T)."""
        fate = draw.uniform("fate", pick.shape[1])
        other = torch.from_numpy(self.words[draw.below("other", len(self.words), pick.shape[1]).numpy()])
        shown = torch.where(fate < self.mask + self.random, other, tokens.gather(1, pick))
        shown = torch.where(fate < self.mask, self.token, shown)
        shown = torch.where(labels == IGNORED, tokens.gather(1, pick), shown)
        return tokens.scatter(1, pick, shown)


def picked(stream: Stream, eligible: Tensor, rate: float, most: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Which rows are predicted, (B, N), and their tokens, (B, N), IGNORED where fewer than `most` were picked.

    A row gives `rate` of its eligible tokens, rounded up or down at random so that the expected share is exact, and at
    least one. The indices of a row are distinct, those that are ignored included.
    """
    count = eligible.sum(1)
    share = torch.floor(count * rate + draw.uniform("share", 1)[:, 0].double()).long()
    share = share.clamp(min=1).minimum(count).clamp(max=most)
    keys = draw.uniform("pick", eligible.shape[1]).masked_fill(~eligible, 2.0)
    pick = keys.topk(most, dim=1, largest=False, sorted=True).indices
    labels = stream.tokens.gather(1, pick).masked_fill(torch.arange(most) >= share[:, None], IGNORED)
    return pick, labels


def rows(hidden: Tensor, pick: Tensor) -> Tensor:
    """(B, T, D), (B, N) -> (B, N, D): a gather of fixed size, which a GPU need not wait for."""
    return hidden.gather(1, pick.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
