"""Concatenated documents: examples equal slices of the whole concatenation."""

from itertools import pairwise

import numpy as np
import pytest

from paribus.datamodule.packing import ConcatenatedDocuments
from paribus.datamodule.token_store import SplitTokens
from paribus.slots.tokenizer import Vocabulary


def side(lengths: list[int], languages: bool = False) -> SplitTokens:
    """Return documents of one sentence each; ids count up from 100 to show their positions."""
    bounds = np.cumsum([0, *lengths])
    language_numbers = np.arange(len(lengths)) % 3 if languages else None
    return SplitTokens(np.arange(100, 100 + bounds[-1]), bounds, np.arange(len(bounds)), languages=language_numbers)


@pytest.mark.parametrize("length", [1, 2, 5, 16, 50])
@pytest.mark.parametrize("mark", [7, None])
def test_an_example_equals_a_slice_of_the_concatenation(length: int, mark: int | None) -> None:
    rng = np.random.default_rng(length)
    tokens = side(rng.integers(1, 9, size=40).tolist(), languages=True)
    whole, owners = [], []
    for number, (start, stop) in enumerate(pairwise(tokens.sentences.tolist())):
        document = [*tokens.ids[start:stop].tolist(), *([] if mark is None else [mark])]
        whole += document
        owners += [number] * len(document)
    flow = ConcatenatedDocuments(tokens, Vocabulary(1000, {} if mark is None else {"eos": mark}), apart=True)
    assert (flow.size, flow.count(length)) == (len(whole), len(whole) // length)
    index = rng.permutation(flow.count(length))
    cut = flow.examples(index, length)
    assert cut.documents is not None
    assert cut.languages is not None
    for piece_index, ids, documents, languages in zip(index, cut.tokens, cut.documents, cut.languages, strict=True):
        piece = slice(piece_index * length, (piece_index + 1) * length)
        assert ids.tolist() == whole[piece]
        assert documents.tolist() == [owner - owners[piece][0] for owner in owners[piece]]
        assert languages.tolist() == [owner % 3 for owner in owners[piece]]
