"""One token after the other: the most probable, or one that is drawn.

Several hypotheses at once, of which the most probable go on: beam search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.sampling import RepetitionPenalty, sample_tokens

OnProgress = Callable[[int, int], None]  # how many tokens are written behind each prompt, and how many may be


class Hypothesis(NamedTuple):
    """What was written behind a prompt."""

    ids: tuple[int, ...]  # without the one that stopped it
    score: float  # its logarithmic probability in nats, that of the stop included; in a beam, over the length penalty
    ended: bool  # by the stop token, and not as there was no more room


def sample_texts(
    reader: Reader, manner: GenerationConfig, numbers: Sequence[int], tell: OnProgress
) -> list[list[Hypothesis]]:
    """For each of the reader's prompts, whose `numbers` among all prompts what is drawn is keyed by, its lines."""
    scores = reader.begin()
    seen = RepetitionPenalty(reader, manner, scores)
    index = torch.arange(len(scores), device=scores.device).repeat_interleave(manner.n)
    if manner.n > 1:  # each prompt was read once
        reader.take(index)
        seen.take(index)
        scores = scores[index]
    samples = torch.arange(manner.n).repeat(len(numbers))
    rows = torch.tensor(numbers).repeat_interleave(manner.n) + (samples << 32)
    found = _Open(stop_tokens(reader)[index], torch.tensor(reader.most, device=index.device)[index])
    for step in range(max(reader.most)):
        scores = seen.discouraged(scores)
        tokens = sample_tokens(scores, manner, rows[found.where.cpu()], step) if manner.draws else scores.argmax(-1)
        kept = found.add(tokens, scores.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1))
        tell(step + 1, max(reader.most))
        if not len(kept):
            break
        if len(kept) < len(tokens):
            reader.take(kept)
            seen.take(kept)
            tokens = tokens[kept]
        seen.add(tokens)
        scores = reader.step(tokens)
    return [found.lines[at : at + manner.n] for at in range(0, len(index), manner.n)]


def stop_tokens(reader: Reader) -> Tensor:
    """(B,): the token that stops what is written behind each prompt; -1 where none does."""
    return torch.tensor([-1 if p.stop is None else p.stop for p in reader.prompts], device=reader.voice.device)


@final
class _Open:
    """Lines while they are written. One that has ended is read no further: it might go past what positions reach."""

    def __init__(self, stops: Tensor, most: Tensor) -> None:
        self.lines = [Hypothesis((), 0.0, ended=False)] * len(stops)
        self.stops, self.most = stops, most
        self.where = torch.arange(len(stops), device=stops.device)  # which line each sequence is
        self.length = 0

    def add(self, tokens: Tensor, logarithms: Tensor) -> Tensor:
        """(N,), (N,): what was chosen for each sequence -> (N',): those that go on."""
        self.length += 1
        stopped = tokens == self.stops
        columns = (each.tolist() for each in (self.where, tokens, logarithms, stopped))
        for at, token, logarithm, stop in zip(*columns, strict=True):
            line = self.lines[at]
            self.lines[at] = Hypothesis(line.ids if stop else (*line.ids, token), line.score + logarithm, stop)
        kept = (~stopped & (self.length < self.most)).nonzero().squeeze(1)
        self.where, self.stops, self.most = self.where[kept], self.stops[kept], self.most[kept]
        return kept


def beam_search(reader: Reader, manner: GenerationConfig, tell: OnProgress) -> list[list[Hypothesis]]:
    """For each of the reader's prompts the `manner.n` best lines that a beam finds, the best one first.

    Of all continuations of the hypotheses of a prompt the `beam` best stay; one that stops leaves the beam, and its
    place is filled again by the next step. A prompt is done when no hypothesis can come to more than its lines have.
    """
    scores = reader.begin()
    seen = RepetitionPenalty(reader, manner, scores)
    search = _Search(manner, reader.most, stop_tokens(reader))
    index = torch.arange(len(scores), device=scores.device).repeat_interleave(manner.beam)
    reader.take(index)  # each prompt was read once
    seen.take(index)
    scores = scores[index]
    for step in range(max(reader.most)):
        tokens, index = search.step(seen.discouraged(scores).log_softmax(-1))
        tell(step + 1, max(reader.most))
        if not len(index):
            break
        reader.take(index)
        seen.take(index)
        seen.add(tokens)
        scores = reader.step(tokens)
    return search.best()


@final
class _Search:
    """Hypotheses of some prompts, W of each, and the lines that have come of them."""

    def __init__(self, manner: GenerationConfig, most: Sequence[int], stops: Tensor) -> None:
        self.manner, self.most, self.stops = manner, most, stops
        prompts = len(most)
        self.lines: list[list[Hypothesis]] = [[] for _ in range(prompts)]
        self.open = torch.arange(prompts, device=stops.device)  # (P,): which prompts are not done
        self.totals = torch.full((prompts, manner.beam), -torch.inf, dtype=torch.float64, device=stops.device)
        self.totals[:, 0] = 0  # all hypotheses of a prompt are one as yet; -inf: there is none
        self.ids = torch.zeros(prompts, manner.beam, 0, dtype=torch.long, device=stops.device)

    def step(self, logarithms: Tensor) -> tuple[Tensor, Tensor]:
        """(P*W, V) -> (N,), (N,): the tokens that go on, and which of the P*W hypotheses each of them continues."""
        width, size = self.manner.beam, logarithms.shape[-1]
        sums = self.totals.unsqueeze(-1) + logarithms.view(*self.totals.shape, size)  # (P, W, V)
        totals, at = sums.flatten(1).topk(width, dim=1)
        parents, tokens = at // size, at % size
        before = self.ids.gather(1, parents.unsqueeze(-1).expand_as(self.ids))
        self.ids = torch.cat([before, tokens.unsqueeze(-1)], dim=-1)
        stopped = (tokens == self.stops[self.open].unsqueeze(1)) & totals.isfinite()
        self._finish(totals, stopped, ended=True)
        full = [self.most[prompt] == self.ids.shape[-1] for prompt in self.open.tolist()]
        whole = torch.tensor(full, device=totals.device).unsqueeze(1) & totals.isfinite() & ~stopped
        self._finish(totals, whole, ended=False)
        self.totals = totals.masked_fill(stopped | whole, -torch.inf)
        going = self._going()
        rows = going.unsqueeze(1) * width + parents[going]
        self.open, self.totals, self.ids = self.open[going], self.totals[going], self.ids[going]
        return tokens[going].flatten(), rows.flatten()

    def best(self) -> list[list[Hypothesis]]:
        return [sorted(lines, key=lambda line: -line.score)[: self.manner.n] for lines in self.lines]

    def _finish(self, totals: Tensor, which: Tensor, *, ended: bool) -> None:
        """Makes lines of some hypotheses, (P, W) bool."""
        length = self.ids.shape[-1]
        penalty = self.manner.penalty(length)
        for place, column in which.nonzero().tolist():
            ids = self.ids[place, column].tolist()
            line = Hypothesis(tuple(ids[:-1] if ended else ids), float(totals[place, column]) / penalty, ended)
            self.lines[int(self.open[place])].append(line)

    def _going(self) -> Tensor:
        """Which of the open prompts have a hypothesis that may still come to more than the last of their lines."""
        kept = []
        for place, (prompt, total) in enumerate(zip(self.open.tolist(), self.totals.amax(1).tolist(), strict=True)):
            bound = total / self.manner.penalty(self.most[prompt])  # the longest is divided by the most
            scores = sorted((line.score for line in self.lines[prompt]), reverse=True)[: self.manner.n]
            if bound > -torch.inf and (len(scores) < self.manner.n or bound > scores[-1]):
                kept.append(place)
        return torch.tensor(kept, dtype=torch.long, device=self.open.device)
