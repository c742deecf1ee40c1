"""Encoder-decoder examples: the text that the encoder reads, and the text that the decoder writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, PADDING, Prompt, Stream, TrainingExamples, Vocabulary
from paribus_objective import special_tokens

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Side(NamedTuple):
    """Texts, (B, N), whose tokens each belong to a position of the original text."""

    tokens: Array
    origins: Array  # (B, N): the position in the original whose document and language the token has
    lengths: Array | None = None  # (B,): number of tokens before the padding; None: no padding


@final
class Sides:
    """The encoder reads one side; the decoder writes the other, and its inputs are that side shifted right by one. They
    start with pad (bos if the tokenizer has no pad, and eos if it has neither).

    Both sides end in eos, except if they are `split` from one text: these end where a document does.
    """

    def __init__(self, vocabulary: Vocabulary, component: str, *, split: bool = False) -> None:
        self.eos = special_tokens.require(vocabulary, "eos", component)
        self.start = vocabulary.specials.get("pad", vocabulary.specials.get("bos", self.eos))
        self.pad = vocabulary.specials.get("pad", self.eos)  # any id serves: no token attends to padding
        self.split = split

    def example(self, streams: Mapping[str, Stream], source: Side, target: Side) -> TrainingExamples:
        """Return the streams of both stacks, and `labels`: the tokens that the decoder writes."""
        body = streams["body"]
        encoder, decoder = self._stream(source, body), self._stream(target, body)
        labels = decoder.tokens
        if decoder.documents is not None:
            labels = labels.masked_fill(decoder.documents < 0, IGNORED)
        inputs = decoder.tokens.roll(1, dims=1)
        inputs[:, 0] = self.start
        if decoder.documents is not None:  # a document does not read the last token of the one before it
            inputs[:, 1:][decoder.documents[:, 1:] != decoder.documents[:, :-1]] = self.start
        return TrainingExamples(
            {**streams, "encoder": encoder, "body": decoder._replace(tokens=inputs)}, {"labels": labels}
        )

    def prompt(self, ids: Sequence[int], target: Sequence[int] = ()) -> Prompt:
        """Prompt with `ids` as the encoder's text and `target` as the start of the decoder's."""
        return Prompt((self.start, *target), tuple(ids) if self.split else (*ids, self.eos), self.eos)

    def _stream(self, side: Side, body: Stream) -> Stream:
        tokens, origins = side.tokens, side.origins
        ends = np.full(len(tokens), tokens.shape[1]) if side.lengths is None else side.lengths
        if not self.split:
            tokens = np.pad(tokens, ((0, 0), (0, 1)))
            origins = np.pad(origins, ((0, 0), (0, 1)))
            np.put_along_axis(tokens, ends[:, None], self.eos, axis=1)
            last_origin = np.take_along_axis(origins, np.maximum(ends[:, None] - 1, 0), axis=1)
            np.put_along_axis(origins, ends[:, None], last_origin, axis=1)
            ends = ends + 1

        def at_origins(values: Tensor | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(np.take_along_axis(values.numpy(), origins, axis=1))

        documents = at_origins(body.documents)
        if side.lengths is not None:
            is_padding = np.arange(tokens.shape[1]) >= ends[:, None]
            tokens = np.where(is_padding, self.pad, tokens)
            if documents is None:
                documents = torch.zeros(tokens.shape, dtype=torch.int64)
            documents = documents.masked_fill(torch.from_numpy(is_padding), PADDING)
        return Stream(torch.from_numpy(tokens), documents, languages=at_origins(body.languages))
