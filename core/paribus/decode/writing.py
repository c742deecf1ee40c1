"""One token after the other: the most probable, or one that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from paribus.decode.choosing import drawn
from paribus.decode.manner import Manner
from paribus.decode.reading import Reader
from paribus.decode.seen import Seen

Tell = Callable[[int, int], None]  # how many tokens are written behind each prompt, and how many may be


class Line(NamedTuple):
    """What was written behind a prompt."""

    ids: tuple[int, ...]  # without the one that stopped it
    score: float  # its logarithmic probability in nats, that of the stop included; in a beam, over the length penalty
    ended: bool  # by the stop token, and not as there was no more room


def written(reader: Reader, manner: Manner, numbers: Sequence[int], tell: Tell) -> list[list[Line]]:
    """For each of the reader's prompts, whose `numbers` among all prompts what is drawn is keyed by, its lines."""
    scores = reader.begin()
    seen = Seen(reader, manner, scores)
    index = torch.arange(len(scores), device=scores.device).repeat_interleave(manner.n)
    if manner.n > 1:  # each prompt was read once
        reader.take(index)
        seen.take(index)
        scores = scores[index]
    samples = torch.arange(manner.n).repeat(len(numbers))
    rows = torch.tensor(numbers).repeat_interleave(manner.n) + (samples << 32)
    found = _Open(stops_of(reader)[index], torch.tensor(reader.most, device=index.device)[index])
    for step in range(max(reader.most)):
        scores = seen.discouraged(scores)
        tokens = drawn(scores, manner, rows[found.where.cpu()], step) if manner.draws else scores.argmax(-1)
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


def stops_of(reader: Reader) -> Tensor:
    """(B,): the token that stops what is written behind each prompt; -1 where none does."""
    return torch.tensor([-1 if p.stop is None else p.stop for p in reader.prompts], device=reader.voice.device)


@final
class _Open:
    """Lines while they are written. One that has ended is read no further: it might go past what positions reach."""

    def __init__(self, stops: Tensor, most: Tensor) -> None:
        self.lines = [Line((), 0.0, ended=False)] * len(stops)
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
            self.lines[at] = Line(line.ids if stop else (*line.ids, token), line.score + logarithm, stop)
        kept = (~stopped & (self.length < self.most)).nonzero().squeeze(1)
        self.where, self.stops, self.most = self.where[kept], self.stops[kept], self.most[kept]
        return kept
