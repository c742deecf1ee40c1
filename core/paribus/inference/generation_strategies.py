"""Generation strategies: greedy decoding, beam search, and sampling (top-k, top-p, min-p, repetition penalty)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.parts.random_draws import Draw

GENERATION_EPOCH: Final = -2  # epoch in the keys of these draws, which no epoch of training has


def penalize(scores: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Divide the scores (N, V) of used tokens, (N, V) bool, by the penalty (Keskar et al. 2019, section 4.1).

    A score below 0 is multiplied by it: to divide that would encourage it.
    """
    return torch.where(used, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def filter_scores(scores: Tensor, config: GenerationConfig) -> Tensor:
    """Return the scores (N, V), with -inf for tokens that top-k, top-p and min-p exclude, in this order."""
    scores = scores / config.temperature
    if config.top_k is not None and config.top_k < scores.shape[-1]:
        minimum = scores.topk(config.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < minimum, -torch.inf)
    if config.top_p is not None and config.top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, config.top_p), -torch.inf)
    if config.min_p is not None:
        probable = scores.softmax(-1)
        scores = scores.masked_fill(probable < config.min_p * probable.amax(-1, keepdim=True), -torch.inf)
    return scores


def _nucleus(scores: Tensor, share: float) -> Tensor:
    """Return a mask of the fewest tokens with the total probability `share` (Holtzman et al. 2020)."""
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    probable = ranked.softmax(-1).cpu()  # CUDA sums in no fixed order
    cumulative = probable.cumsum(-1) - probable  # total probability of the more probable tokens
    mask = (cumulative < share).to(scores.device)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, mask)


def sample_tokens(scores: Tensor, config: GenerationConfig, rows: Tensor, step: int) -> Tensor:
    """Sample one token from each of the scores (N, V).

    Draws are keyed by (seed, row, step), so that the rest of the batch does not matter.
    """
    return tokens_at(scores, config, Draw(config.seed, GENERATION_EPOCH, rows.cpu()).uniform(f"token {step}", 1))


def tokens_at(scores: Tensor, config: GenerationConfig, shares: Tensor) -> Tensor:
    """Return the token at which the cumulative probability of each of the scores (N, V) exceeds a share (N, 1)."""
    probable = filter_scores(scores.double(), config).softmax(-1).cpu()
    upto = probable.cumsum(-1)
    index = shares.double() * upto[:, -1:]
    tokens = torch.searchsorted(upto, index, right=True).squeeze(-1)
    lower = (probable > 0).long().mul(torch.arange(probable.shape[-1])).amax(-1)  # against rounding
    return torch.minimum(tokens, lower).to(scores.device)


@final
class RepetitionPenalty:
    """Repetition penalty for the tokens of each sequence, with its prompt."""

    def __init__(self, reader: Reader, config: GenerationConfig, scores: Tensor) -> None:
        """`scores` (B, V) are those of the first new tokens."""
        self.penalty = config.repetition_penalty
        self.table: Tensor | None = None
        if self.penalty != 1:
            self.table = torch.zeros_like(scores, dtype=torch.bool)
            for row, prompt in enumerate(reader.prompts):
                self.table[row, list(prompt.body)] = True

    def penalize(self, scores: Tensor) -> Tensor:
        """(N, V) -> (N, V)."""
        return scores if self.table is None else penalize(scores, self.table, self.penalty)

    def take(self, index: Tensor) -> None:
        self.table = None if self.table is None else self.table[index]

    def add(self, tokens: Tensor) -> None:
        self.table = None if self.table is None else self.table.scatter(1, tokens.unsqueeze(1), value=True)


OnProgress = Callable[[int, int], None]  # number of new tokens so far, and the maximum


class Hypothesis(NamedTuple):
    """Generated continuation of a prompt."""

    ids: tuple[int, ...]  # without the stop token
    score: float  # log-probability in nats, with the stop token; in beam search, divided by the length penalty
    ended: bool  # whether the stop token ended it, not the length limit


def sample_texts(
    reader: Reader, config: GenerationConfig, numbers: Sequence[int], on_progress: OnProgress
) -> list[list[Hypothesis]]:
    """Generate the continuations of each prompt, greedily or by sampling; `numbers` are the prompts' keys of draws."""
    scores = reader.begin()
    penalty = RepetitionPenalty(reader, config, scores)
    index = torch.arange(len(scores), device=scores.device).repeat_interleave(config.n)
    if config.n > 1:  # prompts are computed once
        reader.take(index)
        penalty.take(index)
        scores = scores[index]
    samples = torch.arange(config.n).repeat(len(numbers))
    draw_keys = torch.tensor(numbers).repeat_interleave(config.n) + (samples << 32)
    open_texts = _OpenTexts(stop_tokens(reader)[index], torch.tensor(reader.limits, device=index.device)[index])
    for step in range(max(reader.limits)):
        scores = penalty.penalize(scores)
        tokens = (
            sample_tokens(scores, config, draw_keys[open_texts.indices.cpu()], step)
            if config.draws
            else scores.argmax(-1)
        )
        indices = open_texts.add(tokens, scores.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1))
        on_progress(step + 1, max(reader.limits))
        if not len(indices):
            break
        if len(indices) < len(tokens):
            reader.take(indices)
            penalty.take(indices)
            tokens = tokens[indices]
        penalty.add(tokens)
        scores = reader.step(tokens)
    return [open_texts.lines[start : start + config.n] for start in range(0, len(index), config.n)]


def stop_tokens(reader: Reader) -> Tensor:
    """Return the stop token of each prompt (B,), or -1."""
    return torch.tensor([-1 if p.stop is None else p.stop for p in reader.prompts], device=reader.decoder.device)


@final
class _OpenTexts:
    """Unfinished hypotheses. Finished ones are removed from the batch, since they may exceed the positions."""

    def __init__(self, stops: Tensor, limits: Tensor) -> None:
        self.lines = [Hypothesis((), 0.0, ended=False)] * len(stops)
        self.stops, self.limits = stops, limits
        self.indices = torch.arange(len(stops), device=stops.device)  # index of the hypothesis of each sequence
        self.length = 0

    def add(self, tokens: Tensor, logarithms: Tensor) -> Tensor:
        """Append tokens (N,) with log-probabilities (N,), and return the indices (N',) of unfinished sequences."""
        self.length += 1
        stopped = tokens == self.stops
        columns = (column.tolist() for column in (self.indices, tokens, logarithms, stopped))
        for number, token, logarithm, stop in zip(*columns, strict=True):
            line = self.lines[number]
            self.lines[number] = Hypothesis(line.ids if stop else (*line.ids, token), line.score + logarithm, stop)
        remaining = (~stopped & (self.length < self.limits)).nonzero().squeeze(1)
        self.indices, self.stops, self.limits = self.indices[remaining], self.stops[remaining], self.limits[remaining]
        return remaining


def beam_search(reader: Reader, config: GenerationConfig, on_progress: OnProgress) -> list[list[Hypothesis]]:
    """Return the `n` best hypotheses of each prompt by beam search, the best first.

    The `beam` best continuations of a prompt are kept. A finished one leaves the beam, and the next step fills its
    place. A prompt is done when no open hypothesis can exceed the finished ones.
    """
    scores = reader.begin()
    penalty = RepetitionPenalty(reader, config, scores)
    search = _Search(config, reader.limits, stop_tokens(reader))
    index = torch.arange(len(scores), device=scores.device).repeat_interleave(config.beam)
    reader.take(index)  # prompts are computed once
    penalty.take(index)
    scores = scores[index]
    for step in range(max(reader.limits)):
        tokens, index = search.step(penalty.penalize(scores).log_softmax(-1))
        on_progress(step + 1, max(reader.limits))
        if not len(index):
            break
        reader.take(index)
        penalty.take(index)
        penalty.add(tokens)
        scores = reader.step(tokens)
    return search.best()


@final
class _Search:
    """Open hypotheses of each prompt, W of each, and the finished ones."""

    def __init__(self, config: GenerationConfig, limits: Sequence[int], stops: Tensor) -> None:
        self.config, self.limits, self.stops = config, limits, stops
        prompts = len(limits)
        self.lines: list[list[Hypothesis]] = [[] for _ in range(prompts)]
        self.open = torch.arange(prompts, device=stops.device)  # (P,): indices of unfinished prompts
        self.totals = torch.full((prompts, config.beam), -torch.inf, dtype=torch.float64, device=stops.device)
        self.totals[:, 0] = 0  # one hypothesis of each prompt at first; -inf: none
        self.ids = torch.zeros(prompts, config.beam, 0, dtype=torch.long, device=stops.device)

    def step(self, logarithms: Tensor) -> tuple[Tensor, Tensor]:
        """Extend the beams by log-probabilities (P*W, V); return new tokens (N,) and their hypotheses (N,)."""
        width, size = self.config.beam, logarithms.shape[-1]
        sums = self.totals.unsqueeze(-1) + logarithms.view(*self.totals.shape, size)  # (P, W, V)
        totals, flat_index = sums.flatten(1).topk(width, dim=1)
        parents, tokens = flat_index // size, flat_index % size
        previous_ids = self.ids.gather(1, parents.unsqueeze(-1).expand_as(self.ids))
        self.ids = torch.cat([previous_ids, tokens.unsqueeze(-1)], dim=-1)
        stopped = (tokens == self.stops[self.open].unsqueeze(1)) & totals.isfinite()
        self._finish(totals, stopped, ended=True)
        full = [self.limits[prompt] == self.ids.shape[-1] for prompt in self.open.tolist()]
        is_full = torch.tensor(full, device=totals.device).unsqueeze(1) & totals.isfinite() & ~stopped
        self._finish(totals, is_full, ended=False)
        self.totals = totals.masked_fill(stopped | is_full, -torch.inf)
        active = self._active_prompts()
        rows = active.unsqueeze(1) * width + parents[active]
        self.open, self.totals, self.ids = self.open[active], self.totals[active], self.ids[active]
        return tokens[active].flatten(), rows.flatten()

    def best(self) -> list[list[Hypothesis]]:
        return [sorted(lines, key=lambda line: -line.score)[: self.config.n] for lines in self.lines]

    def _finish(self, totals: Tensor, mask: Tensor, *, ended: bool) -> None:
        """Finish the hypotheses of a mask (P, W)."""
        length = self.ids.shape[-1]
        penalty = self.config.penalty(length)
        for index, column in mask.nonzero().tolist():
            ids = self.ids[index, column].tolist()
            line = Hypothesis(tuple(ids[:-1] if ended else ids), float(totals[index, column]) / penalty, ended)
            self.lines[int(self.open[index])].append(line)

    def _active_prompts(self) -> Tensor:
        """Return the prompts with an open hypothesis that may still exceed the worst finished one."""
        active = []
        for index, (prompt, total) in enumerate(zip(self.open.tolist(), self.totals.amax(1).tolist(), strict=True)):
            bound = total / self.config.penalty(self.limits[prompt])  # the largest divisor
            scores = sorted((line.score for line in self.lines[prompt]), reverse=True)[: self.config.n]
            if bound > -torch.inf and (len(scores) < self.config.n or bound > scores[-1]):
                active.append(index)
        return torch.tensor(active, dtype=torch.long, device=self.open.device)
