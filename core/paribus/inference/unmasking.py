"""Generation by a model that predicts masked tokens: masks are filled in any order, several in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from paribus.inference.decoder import Decoder
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.generation_strategies import GENERATION_EPOCH, Hypothesis, OnProgress, tokens_at
from paribus.parts.batch import Stream
from paribus.parts.chunked_loss import map_in_chunks
from paribus.parts.random_draws import Draw
from paribus.slots.objective import Prompt

SAMPLE_BITS: Final = 32  # of the key of a draw, below the number of the sample


def fill_masks(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    limit: int,
    config: GenerationConfig,
    numbers: Sequence[int],
    on_progress: OnProgress,
) -> list[list[Hypothesis]]:
    """Generate `limit` tokens after each prompt, which have one length; `numbers` are the prompts' keys of draws.

    A step predicts all masked tokens independently and keeps some of them: each with the probability 1 / steps left,
    the ancestral sampling of "MDLM" (Sahoo et al. 2024), or an equal share, the most probable ones, the low-confidence
    remasking of "LLaDA" (Nie et al. 2025). A prompt and a token that was kept never change. With `Prompt.block`, blocks
    are filled one after the other, each in its share of the steps: "BD3-LM" (Arriola et al. 2025).
    """
    tokens, start = _masked_texts(decoder, prompts, limit, config.n)
    samples = torch.arange(config.n).repeat(len(numbers))
    keys = torch.tensor(numbers).repeat_interleave(config.n) + (samples << SAMPLE_BITS)
    draw = Draw(config.seed, GENERATION_EPOCH, keys)
    is_open = torch.zeros_like(tokens, dtype=torch.bool)
    is_open[:, start:] = True
    scores = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    block = prompts[0].block
    plan = _plan(start, limit, config.steps or limit, block)
    for step, (left, end) in enumerate(plan):
        part, is_open_part = tokens[:, :end], is_open[:, :end]
        candidates = is_open_part if config.fills_the_surest else is_open_part & _random(draw, step, left, is_open_part)
        if candidates.any():
            written, logarithms = _predict(decoder, part, candidates, draw, step, config, block)
            kept = _surest(logarithms, candidates, left) if config.fills_the_surest else candidates
            tokens = _replaced(tokens, torch.where(kept, written, part))
            scores = _replaced(scores, torch.where(kept, logarithms, scores[:, :end]))
            is_open = _replaced(is_open, is_open_part & ~kept)
        on_progress(limit * (step + 1) // len(plan), limit)
    lines = [
        _hypothesis(ids, logarithms, prompts[row // config.n].stop)
        for row, (ids, logarithms) in enumerate(
            zip(tokens[:, start:].tolist(), scores[:, start:].tolist(), strict=True)
        )
    ]
    return [lines[first : first + config.n] for first in range(0, len(lines), config.n)]


def _plan(start: int, limit: int, steps: int, block: int | None) -> list[tuple[int, int]]:
    """Return for each step the number of steps left in its block, and the end of the block."""
    plan: list[tuple[int, int]] = []
    stop, end = start + limit, start
    while end < stop:
        first, end = end, stop if block is None else min(stop, (end // block + 1) * block)
        plan += [(left, end) for left in range(-(-steps * (end - first) // limit), 0, -1)]
    return plan


def _replaced(whole: Tensor, part: Tensor) -> Tensor:
    """Return (B, T) with other values at its start, (B, N)."""
    return torch.cat([part, whole[:, part.shape[1] :]], dim=1)


def _masked_texts(decoder: Decoder, prompts: Sequence[Prompt], limit: int, copies: int) -> tuple[Tensor, int]:
    """Return the prompts, each followed by masks, (B, T), `copies` of each, and the number of tokens of a prompt."""
    rows = [[*prompt.body, *[prompt.mask or 0] * limit] for prompt in prompts]
    return torch.tensor(rows, device=decoder.device).repeat_interleave(copies, 0), len(prompts[0].body)


def _random(draw: Draw, step: int, left: int, is_open: Tensor) -> Tensor:
    """(B, T) bool: tokens that are chosen with the probability 1 / steps left; in the last step, all."""
    shares = draw.uniform(f"mask {step}", is_open.shape[1])
    return (shares * left < 1).to(is_open.device)


def _predict(
    decoder: Decoder,
    tokens: Tensor,
    places: Tensor,
    draw: Draw,
    step: int,
    config: GenerationConfig,
    block: int | None,
) -> tuple[Tensor, Tensor]:
    """Return a token and its log-probability for each of the places, (B, T) bool: (B, T), (B, T)."""
    language = None if decoder.language is None else torch.full_like(tokens, decoder.language)
    order = None if block is None else (torch.arange(tokens.shape[1], device=tokens.device) // block).expand_as(tokens)
    stream = Stream(tokens, languages=language, order=order)
    hidden = decoder.topology.run({"body": stream}, "body").hidden[places]  # (N, D)
    shares = draw.uniform(f"token {step}", tokens.shape[1]).to(tokens.device)[places].unsqueeze(1)

    def choose(part: Tensor, part_shares: Tensor) -> tuple[Tensor, Tensor]:
        logits = decoder.head(part).double()
        chosen = tokens_at(logits, config, part_shares.cpu()) if config.draws else logits.argmax(-1)
        return chosen, logits.log_softmax(-1).gather(1, chosen.unsqueeze(1)).squeeze(1)

    classes = decoder.topology.stage("body").shape.vocabulary
    chosen, logarithms = map_in_chunks(choose, classes, hidden, shares)
    return (
        tokens.masked_scatter(places, chosen),
        torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device).masked_scatter(places, logarithms),
    )


def _surest(logarithms: Tensor, is_open: Tensor, steps_left: int) -> Tensor:
    """(B, T) bool: an equal share for each step of the open tokens, rounded up, those with the highest probability."""
    counts = -(-is_open.sum(1, keepdim=True) // steps_left)
    order = logarithms.masked_fill(~is_open, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return torch.zeros_like(is_open).scatter(1, order, torch.arange(is_open.shape[1], device=order.device) < counts)


def _hypothesis(ids: Sequence[int], logarithms: Sequence[float], stop: int | None) -> Hypothesis:
    """Return a text up to its stop token."""
    end = ids.index(stop) if stop is not None and stop in ids else len(ids)
    return Hypothesis(tuple(ids[:end]), sum(logarithms[: end + 1]), end < len(ids))
