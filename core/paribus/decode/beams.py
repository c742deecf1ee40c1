"""Several hypotheses at once, of which the most probable go on: beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paribus.decode.manner import Manner
from paribus.decode.reading import Reader
from paribus.decode.seen import Seen
from paribus.decode.writing import Line, Tell, stops_of


def searched(reader: Reader, manner: Manner, tell: Tell) -> list[list[Line]]:
    """For each of the reader's prompts the `manner.n` best lines that a beam finds, the best one first.

    Of all continuations of the hypotheses of a prompt the `beam` best stay; one that stops leaves the beam, and its
    place is filled again by the next step. A prompt is done when no hypothesis can come to more than its lines have.
    """
    scores = reader.begin()
    seen = Seen(reader, manner, scores)
    search = _Search(manner, reader.most, stops_of(reader))
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

    def __init__(self, manner: Manner, most: Sequence[int], stops: Tensor) -> None:
        self.manner, self.most, self.stops = manner, most, stops
        prompts = len(most)
        self.lines: list[list[Line]] = [[] for _ in range(prompts)]
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

    def best(self) -> list[list[Line]]:
        return [sorted(lines, key=lambda line: -line.score)[: self.manner.n] for lines in self.lines]

    def _finish(self, totals: Tensor, which: Tensor, *, ended: bool) -> None:
        """Makes lines of some hypotheses, (P, W) bool."""
        length = self.ids.shape[-1]
        penalty = self.manner.penalty(length)
        for place, column in which.nonzero().tolist():
            ids = self.ids[place, column].tolist()
            line = Line(tuple(ids[:-1] if ended else ids), float(totals[place, column]) / penalty, ended)
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
