"""Contextual embeddings: pooled, of several texts, and what cannot be."""

from typing import Any

import pytest
import torch

import paribus
from paribus import DataError, SpecError
from paribus.train.model import Model

TINY = ("dims.width=16", "dims.layers=3", "dims.length=24", "dims.vocabulary=300")
TEXTS = ["The while statement.", "Two", "A text that is longer than the others are, by far."]


@pytest.fixture(scope="module")
def bert() -> Model:
    return paribus.assemble(paribus.spec("bert-tiny", *TINY, "dims.length=64")).double()


def test_texts_are_pooled_as_they_are_asked_to_be(bert: Model) -> None:
    assert bert.text is not None
    specials = bert.text.vocabulary.specials
    rows = paribus.embed(bert, TEXTS, layer=2, pool="none")
    for place, text in enumerate(TEXTS):
        ids = bert.text.encode(text)
        assert list(rows.ids[place]) == ids
        assert [bert.text.decode([token]) for token in ids] == list(rows.tokens[place])
        assert rows.vectors[place].shape == (len(ids), 16)
    for pool, wanted in {
        "mean": [vectors.mean(0) for vectors in rows.vectors],
        "first": [read(bert, [specials["cls"], *ids, specials["sep"]])[0] for ids in rows.ids],
        "last": [read(bert, [specials["cls"], *ids, specials["sep"]])[-1] for ids in rows.ids],
    }.items():
        found: Any = paribus.embed(bert, TEXTS, layer=2, pool=pool)  # type: ignore[arg-type]  # a key of the mapping
        for one, other in zip(found.vectors, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def read(model: Model, ids: list[int]) -> torch.Tensor:
    """(T, D) of layer 2, by cutting the model off behind it."""
    layers = model.topology.body.layers  # type: ignore[union-attr]  # of a stack
    kept, model.topology.body.layers = layers, layers[:2]  # type: ignore[union-attr,index]  # as above
    try:
        with torch.no_grad():
            rows: torch.Tensor = model.eval().hidden(torch.tensor([ids]))[0]
        return rows
    finally:
        model.topology.body.layers = kept  # type: ignore[union-attr]  # as above


def test_a_text_is_the_same_in_any_batch_and_nothing_is_left_behind(bert: Model) -> None:
    bert.train()
    together = paribus.embed(bert, TEXTS, layer=1)
    assert bert.training
    assert not any(module._forward_hooks for module in bert.modules())
    for batch in (1, 2):
        again = paribus.embed(bert, TEXTS, layer=1, batch=batch)
        for one, other in zip(again.vectors, together.vectors, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    last, third = (paribus.embed(bert, TEXTS, layer=layer).vectors for layer in (-1, 3))
    assert all(torch.equal(one, other) for one, other in zip(last, third, strict=True))


def test_a_decoder_reads_a_text_as_it_stands_and_a_saved_model_is_asked_by_its_folder(tmp_path: Any) -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", *TINY))
    paribus.save(model, tmp_path / "gpt")
    found = paribus.embed(tmp_path / "gpt", "a while", pool="last")
    with torch.no_grad():
        wanted = model.eval().hidden(torch.tensor([found.ids[0]]))[0, -1]
    torch.testing.assert_close(found.vectors[0], wanted)


def test_of_two_stacks_the_one_that_reads_a_source_is_asked_and_no_layer_of_what_has_none() -> None:
    model = paribus.assemble(paribus.spec("rnnsearch-tiny", "dims.width=16", "dims.length=24"))
    found = paribus.embed(model, [[9, 10], [11]], pool="none")
    assert [len(vectors) for vectors in found.vectors] == [2, 1]
    with pytest.raises(SpecError, match=r"layer: the part `encoder` has no layers, got layer 1"):
        paribus.embed(model, [[9]], layer=1)
    with pytest.raises(SpecError, match="part: `body`: this part needs a source; valid: encoder"):
        paribus.embed(model, [[9]], part="body")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layer": 4}, r"layer: unknown layer 4 of `body`, which has 3; valid: from 0, the embedding's rows, to 3"),
        ({"layer": -5}, r"unknown layer -5"),
        ({"pool": "max"}, r"pool: unknown pool \"max\"; valid: mean, first, last, none"),
        ({"batch": 0}, r"batch: expected at least 1, got 0; valid: ≥ 1"),
        ({"part": "encoder"}, r"part: `encoder`: unknown part; valid: body"),
    ],
)
def test_what_there_is_not_is_refused(asked: Any, message: str, bert: Model) -> None:
    with pytest.raises(SpecError, match=message):
        paribus.embed(bert, "A text.", **asked)


def test_texts_that_are_empty_or_too_long_are_named_together(bert: Model) -> None:
    with pytest.raises(DataError, match="empty-text") as caught:
        paribus.embed(bert, ["", "fine", "one two " * 40])
    first, second = caught.value.problems
    assert (first.path, first.message) == ("text 1", "expected at least one token, got none")
    assert second.path == "text 3"
    assert "2 marks, but the positions of this model end at 64" in second.message
    assert second.valid == "≤ 62 tokens"


def test_a_model_of_images_has_no_texts() -> None:
    with pytest.raises(SpecError, match=r"a model of text, got one of images; valid: a model of text"):
        paribus.embed(paribus.assemble(paribus.spec("vit-tiny", "dims.width=16", "dims.layers=1")), [[1, 2]])
