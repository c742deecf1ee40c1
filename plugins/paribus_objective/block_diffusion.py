"""Block diffusion: masked diffusion within blocks, each given the blocks before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    IGNORED,
    PADDING,
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Shape,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import special_tokens, vocabulary_head
from paribus_objective.masked_diffusion import (
    SCHEDULES,
    Array,
    MinRate,
    Samples,
    ScheduleOption,
    forward,
    logits,
    mask_counts,
    metrics,
    text_mask,
    update_metrics,
)

GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2


@final
class BlockDiffusion(Objective, WeightConverter):
    """Block diffusion: the text is split into blocks, and each is predicted as by `masked-diffusion`, given the blocks
    before it: "BD3-LM" (Arriola et al. 2025).

    `bound` is the sum of the bounds of all blocks over the number of tokens: that of masked diffusion with one block,
    and the negative log-likelihood with blocks of one token. Blocks begin anew in each document. The body reads the
    text twice in one sequence, without masks and with masks: a token with masks sees its own block, and the blocks
    before it without masks; a token without masks sees no masks. Blocks are generated from left to right. (B, T) ->
    tokens (B, 2T), labels (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "sets_order": True,
        "copies_tokens": True,
        "packs_documents": True,
        "needs": ["mask"],
        "token_terms": ["bound"],
    }
    terms: ClassVar[Mapping[str, str]] = {"bound": "labels"}
    logits = logits
    forward = forward
    metrics = metrics
    update_metrics = update_metrics
    head_positions = vocabulary_head.head_positions
    cost = vocabulary_head.cost
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        block: Annotated[int, "tokens of a block (BD3-LM: 4, 8 or 16); 1: from left to right", Range(1)] = 4,
        schedule: ScheduleOption = "linear",
        min_rate: MinRate = 0.0,
        samples: Samples = 4,
    ) -> None:
        super().__init__()
        self.classes, self.block, self.samples = shape.vocabulary, block, samples
        self.schedule, self.min_rate = SCHEDULES[schedule], min_rate
        self.mask = special_tokens.require(vocabulary, "mask", "block-diffusion")
        self.end_of_text = vocabulary.end_token
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """Append a copy with masks to the body. Targets are as in `masked-diffusion`, with a weight of each token."""
        body = streams["body"]
        is_text = text_mask(body)
        blocks = blocks_of(body, self.block)
        masked, weights = self._masks(is_text, blocks, draw)
        tokens: Array = body.tokens.numpy()
        inputs = np.where(masked, self.mask, tokens[:, None])
        inputs = np.concatenate([np.broadcast_to(tokens[:, None], inputs.shape), inputs], axis=2)
        examples = {
            "labels": body.tokens.masked_fill(torch.from_numpy(~is_text), IGNORED),
            "masked": torch.from_numpy(masked),
            "weights": torch.from_numpy(weights.astype(np.float32)),
            "inputs": torch.from_numpy(inputs[:, 1:]),
        }
        length, numbers = body.tokens.shape[1], torch.from_numpy(blocks)
        positions = torch.arange(length).expand_as(numbers) if body.positions is None else body.positions
        twice = body._replace(positions=positions).apply(lambda vector: torch.cat([vector, vector], dim=1))
        stream = twice._replace(
            tokens=torch.from_numpy(inputs[:, 0].copy()), order=torch.cat([numbers, -1 - numbers], dim=1)
        )
        return TrainingExamples({**streams, "body": stream}, examples)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return Prompt(tuple(ids), stop=self.end_of_text, mask=self.mask, block=self.block)

    def _masks(self, is_text: Array, block: Array, draw: Draw) -> tuple[Array, Array]:
        """Return which tokens are masked in each sample, and their weights: (B, T), (B, T) -> (B, K, T) twice."""
        is_evaluation = draw.epoch < 0  # as in `masked-diffusion`
        samples, min_rate = (self.samples, 0.0) if is_evaluation else (1, self.min_rate)
        schedule = SCHEDULES["linear"] if is_evaluation else self.schedule
        lengths = np.zeros_like(block)  # (B, T): of each block, followed by zeros
        np.add.at(lengths, (np.arange(len(block))[:, None], block), is_text)
        start = draw.spread("time").numpy()[:, None] + GOLDEN_RATIO * np.arange(block.shape[1])
        counts, weights = mask_counts(lengths.ravel(), start.ravel(), samples, schedule, min_rate)
        counts, weights = (
            np.take_along_axis(values.reshape(*block.shape, samples), block[:, :, None], axis=1).transpose(0, 2, 1)
            for values in (counts, weights)
        )
        ranks = [ranks_in_blocks(is_text, block, draw, f"mask {sample}") for sample in range(samples)]
        return (np.stack(ranks, axis=1) < counts) & is_text[:, None], weights


def blocks_of(body: Stream, size: int) -> Array:
    """Return the number of the block of each token, from 0, (B, T); the last block of a document may be shorter."""
    index = np.broadcast_to(np.arange(body.tokens.shape[1]), body.tokens.shape)
    documents = np.zeros_like(index) if body.documents is None else body.documents.numpy()
    is_first = np.diff(documents, axis=1, prepend=PADDING - 1) != 0
    start = np.maximum.accumulate(np.where(is_first, index, 0), axis=1)
    numbers: Array = ((index - start) % size == 0).cumsum(axis=1) - 1
    return numbers


def ranks_in_blocks(is_text: Array, block: Array, draw: Draw, name: str) -> Array:
    """Return the place of each token of the text in a random order of its block, from 0: (B, T), (B, T) -> (B, T)."""
    length = block.shape[1]
    shares = draw.uniform(name, length).numpy()
    order = np.lexsort((shares, ~is_text, block))  # by block, then text before other tokens
    sorted_blocks = np.take_along_axis(block, order, axis=1)
    first = np.maximum.accumulate(
        np.where(np.diff(sorted_blocks, axis=1, prepend=-1) != 0, np.arange(length), 0), axis=1
    )
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(length) - first, axis=1)
    return ranks
