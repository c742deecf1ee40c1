"""Embeddings of n-grams: sums of rows by hash, the tokens that they read, and decoding."""

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_embedding.test_token_table import TOKENS, embed, table
from torch import Tensor

import paribus
from paribus import PADDING, SpecError, Stream
from paribus.testing import conform
from paribus.testing.conformance import CHECKS
from paribus_embedding.ngrams import NGrams, hash_rows

PRIME = 2**31 - 1
RULES = {
    name for name in CHECKS if name.startswith(("no access", "appended", "padding", "packed", "permuted", "chunked"))
}


def by_hand(embedding: Any, documents: list[list[int]]) -> Tensor:
    """Return the vectors of documents, each token by itself; 0 stands for no token, and token t for t + 1."""
    options, vectors = embedding.ngram_options, []
    for document in documents:
        for place, token in enumerate(document):
            vector, index = embedding.tokens.weight[token], 0
            for size in range(2, options.longest + 1):
                gram = [document[at] + 1 if at >= 0 else 0 for at in range(place, place - size, -1)]
                for _ in range(options.hashes):
                    powers = [pow(48271, 1 + index * options.longest + offset, PRIME) for offset in range(size)]
                    total = sum(a * b for a, b in zip(gram, powers, strict=True)) % PRIME
                    row = (total ^ total // 65536) * 48271**7 % PRIME % options.rows
                    vector, index = vector + embedding.ngrams[index].weight[row], index + 1
            vectors.append(vector)
    return torch.stack(vectors)


@pytest.mark.parametrize("options", [NGrams(2, 7), NGrams(3, 5, 2), NGrams(4, 1000)], ids=str)
def test_a_vector_is_the_sum_of_its_token_and_ngrams(options: NGrams) -> None:
    embedding = table(ngrams=options)
    expected = torch.stack([by_hand(embedding, [row]) for row in TOKENS.tolist()])
    torch.testing.assert_close(embed(embedding, Stream(TOKENS)), expected, rtol=0, atol=1e-15)


def test_ngrams_end_at_documents_and_skip_padding() -> None:
    embedding = table(ngrams=NGrams(3, 1000))
    documents = torch.tensor([[0, 0, PADDING, 0, 1, 1]])
    stream = Stream(torch.tensor([[3, 1, 9, 4, 1, 5]]), documents, torch.tensor([[0, 1, 2, 2, 0, 1]]))
    expected = by_hand(embedding, [[3, 1, 4], [1, 5]])
    torch.testing.assert_close(embed(embedding, stream)[documents != PADDING], expected, rtol=0, atol=1e-15)


def test_a_token_of_a_later_order_is_absent() -> None:
    """The second token comes first and reads no other; the third reads both."""
    embedding = table(ngrams=NGrams(3, 1000))
    x = embed(embedding, Stream(torch.tensor([[3, 1, 4]]), order=torch.tensor([[1, 0, 2]])))[0]
    expected = torch.stack(
        [by_hand(embedding, [[3]])[0], by_hand(embedding, [[1]])[0], by_hand(embedding, [[3, 1, 4]])[2]]
    )
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-15)


def test_hashes_are_spread_and_differ_between_tables() -> None:
    """Of 2,500 bigrams in 5,000 rows, 5,000 (1 - exp(-1 / 2)) = 1,967 rows are expected."""
    ids = torch.arange(50)
    grams = [ids.repeat_interleave(50), ids.repeat(50)]
    rows = [hash_rows(grams, index, NGrams(2, 5000, 2)) for index in range(2)]
    assert all(1900 < len(its_rows.unique()) < 2030 for its_rows in rows)
    assert len(torch.stack(rows).unique(dim=1).T) > 2450


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "transformer-tiny"])
def test_a_model_with_ngrams_keeps_the_rules_of_sequences(preset: str) -> None:
    spec = paribus.spec(preset, "embedding.ngrams={longest: 3, rows: 50, hashes: 2}")
    conform("feedforward.mlp", base=spec, only=RULES)


def test_generation_with_a_cache_equals_that_without() -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", "embedding.ngrams.longest=3", "embedding.ngrams.rows=50"))
    tokens = torch.arange(12).view(2, 6) * 7 % 40
    whole = model(tokens)[0]
    states = model.start(2)
    parts = [model(tokens[:, :3], states)[0]]
    states.take(torch.tensor([1, 0]))  # as beam search reorders sequences
    parts.append(model(tokens[[1, 0], 3:4], states)[0][[1, 0]])
    states.take(torch.tensor([1, 0]))
    parts += [model(tokens[:, at : at + 1], states)[0] for at in (4, 5)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-6)


def test_a_topology_that_reads_backwards_is_rejected() -> None:
    with raises_problem(SpecError, "does-not-fit", "bidirectional-decoder"):
        paribus.assemble(paribus.spec("elmo-tiny", "embedding.ngrams.longest=2"))
