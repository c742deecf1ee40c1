"""The two sides of an example: what an encoder reads, and what a decoder writes and is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, PADDING, Prompt, Stream, TrainingExamples, Vocabulary
from paribus_objective import specials

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Side(NamedTuple):
    """A text, (B, N), of which each token belongs where one of the original stood."""

    tokens: Array
    places: Array  # (B, N): the row of the original, whose document and language it shares
    lengths: Array | None = None  # (B,): how much of it is there, the rest being padding; None: all


@final
class Sides:
    """An encoder reads one side; a decoder writes the other, and is fed with it shifted by one behind pad (bos where
    there is no pad, and eos where there is neither).

    Both sides end in eos; those that are `cut` out of one text do not, and end where a document does.
    """

    def __init__(self, vocabulary: Vocabulary, who: str, *, cut: bool = False) -> None:
        self.eos = specials.needed(vocabulary, "eos", who)
        self.start = vocabulary.specials.get("pad", vocabulary.specials.get("bos", self.eos))
        self.pad = vocabulary.specials.get("pad", self.eos)  # no row sees it, whatever it is
        self.cut = cut

    def formed(self, streams: Mapping[str, Stream], read: Side, written: Side) -> TrainingExamples:
        """The streams of both stacks, and `labels`: what the decoder writes."""
        body = streams["body"]
        encoder, decoder = self._stream(read, body), self._stream(written, body)
        labels = decoder.tokens
        if decoder.documents is not None:
            labels = labels.masked_fill(decoder.documents < 0, IGNORED)
        fed = decoder.tokens.roll(1, dims=1)
        fed[:, 0] = self.start
        return TrainingExamples(
            {**streams, "encoder": encoder, "body": decoder._replace(tokens=fed)}, {"labels": labels}
        )

    def prompt(self, ids: Sequence[int], written: Sequence[int] = ()) -> Prompt:
        """A text that is read whole, and what is written of the other already."""
        return Prompt((self.start, *written), tuple(ids) if self.cut else (*ids, self.eos), self.eos)

    def _stream(self, side: Side, body: Stream) -> Stream:
        tokens, places = side.tokens, side.places
        ends = np.full(len(tokens), tokens.shape[1]) if side.lengths is None else side.lengths
        if not self.cut:
            tokens = np.pad(tokens, ((0, 0), (0, 1)))
            places = np.pad(places, ((0, 0), (0, 1)))
            np.put_along_axis(tokens, ends[:, None], self.eos, axis=1)
            last = np.take_along_axis(places, np.maximum(ends[:, None] - 1, 0), axis=1)
            np.put_along_axis(places, ends[:, None], last, axis=1)
            ends = ends + 1

        def taken(vector: Tensor | None) -> Tensor | None:
            return None if vector is None else torch.from_numpy(np.take_along_axis(vector.numpy(), places, axis=1))

        documents = taken(body.documents)
        if side.lengths is not None:
            padding = np.arange(tokens.shape[1]) >= ends[:, None]
            tokens = np.where(padding, self.pad, tokens)
            here = torch.zeros(tokens.shape, dtype=torch.int64) if documents is None else documents
            documents = here.masked_fill(torch.from_numpy(padding), PADDING)
        return Stream(torch.from_numpy(tokens), documents, languages=taken(body.languages))
