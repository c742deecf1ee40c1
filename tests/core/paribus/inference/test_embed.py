"""Contextual embeddings of texts: pooling, batches, layers and refused options."""

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import DataError, SpecError
from paribus.models.lightning_module import Model
from paribus.testing.simulated_device import NAME, simulated_device

TINY = ("dims.width=16", "dims.layers=3", "dims.length=24", "dims.vocabulary=300")
TEXTS = ["The while statement.", "Two", "A text that is longer than the others are, by far."]


@pytest.fixture(scope="module")
def bert() -> Model:
    return paribus.assemble(paribus.spec("bert-tiny", *TINY, "dims.length=64")).double()


@pytest.mark.thorough
def test_embeddings_are_pooled_by_the_selected_method(bert: Model) -> None:
    assert bert.text is not None
    specials = bert.text.vocabulary.specials
    tokens_embedded = paribus.embed(bert, TEXTS, layers=2, pool="none")
    for index, text in enumerate(TEXTS):
        ids = bert.text.encode(text)
        assert list(tokens_embedded.ids[index]) == ids
        assert [bert.text.decode([token]) for token in ids] == list(tokens_embedded.tokens[index])
        assert tokens_embedded.vectors[index].shape == (len(ids), 16)
    for pool, expected in {
        "mean": [vectors.mean(0) for vectors in tokens_embedded.vectors],
        "first": [hidden_states(bert, [specials["cls"], *ids, specials["sep"]])[0] for ids in tokens_embedded.ids],
        "last": [hidden_states(bert, [specials["cls"], *ids, specials["sep"]])[-1] for ids in tokens_embedded.ids],
    }.items():
        embeddings: Any = paribus.embed(bert, TEXTS, layers=2, pool=pool)  # type: ignore[arg-type]  # a key of the mapping
        for actual, reference in zip(embeddings.vectors, expected, strict=True):
            torch.testing.assert_close(actual, reference, rtol=0, atol=1e-12)


def hidden_states(model: Model, ids: list[int]) -> torch.Tensor:
    """Return the hidden states (T, D) after layer 2, from a model without the later layers."""
    layers = model.topology.body.layers  # type: ignore[union-attr]  # of a stack
    all_layers, model.topology.body.layers = layers, layers[:2]  # type: ignore[union-attr,index]  # as above
    try:
        with torch.no_grad():
            rows: torch.Tensor = model.eval().hidden(torch.tensor([ids]))[0]
        return rows
    finally:
        model.topology.body.layers = all_layers  # type: ignore[union-attr]  # as above


def test_layers_are_combined(bert: Model) -> None:
    every = [paribus.embed(bert, TEXTS, layers=layer).vectors for layer in range(4)]
    stacked = [torch.stack(rows) for rows in zip(*every, strict=True)]  # (layers, D) of each text
    assert paribus.embed(bert, TEXTS, layers=slice(-2, None)).layers == (2, 3)
    for layers, numbers in ((slice(None), [0, 1, 2, 3]), ([3, 1], [3, 1]), (slice(-2, None), [2, 3]), (-1, [3])):
        for combine, expected in {
            "mean": [rows[numbers].mean(0) for rows in stacked],
            "sum": [rows[numbers].sum(0) for rows in stacked],
            "concat": [rows[numbers].flatten() for rows in stacked],
        }.items():
            combined: Any = paribus.embed(bert, TEXTS, layers=layers, combine=combine)  # type: ignore[arg-type]  # a key
            torch.testing.assert_close(list(combined.vectors), expected, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_an_embedding_does_not_depend_on_the_batch_and_hooks_are_removed(bert: Model) -> None:
    bert.train()
    together = paribus.embed(bert, TEXTS, layers=1)
    assert bert.training
    assert not any(module._forward_hooks for module in bert.modules())
    for batch in (1, 2):
        batched = paribus.embed(bert, TEXTS, layers=1, batch=batch)
        for actual, reference in zip(batched.vectors, together.vectors, strict=True):
            torch.testing.assert_close(actual, reference, rtol=0, atol=1e-12)
    last_layer, third_layer = (paribus.embed(bert, TEXTS, layers=layer).vectors for layer in (-1, 3))
    assert all(torch.equal(actual, reference) for actual, reference in zip(last_layer, third_layer, strict=True))


def test_a_decoder_embeds_a_text_without_special_tokens_from_a_saved_folder(tmp_path: Any) -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", *TINY))
    paribus.save(model, tmp_path / "gpt")
    embeddings = paribus.embed(tmp_path / "gpt", "a while", pool="last")
    with torch.no_grad():
        expected = model.eval().hidden(torch.tensor([embeddings.ids[0]]))[0, -1]
    torch.testing.assert_close(embeddings.vectors[0], expected)


@pytest.mark.thorough
def test_an_encoder_decoder_embeds_with_its_encoder() -> None:
    model = paribus.assemble(paribus.spec("rnnsearch-tiny", "dims.width=16", "dims.length=24"))
    embeddings = paribus.embed(model, [[9, 10], [11]], pool="none")
    assert [len(vectors) for vectors in embeddings.vectors] == [2, 1]
    with raises_problem(SpecError, "unknown-layer", "layer", "encoder", "1"):
        paribus.embed(model, [[9]], layers=1)
    with raises_problem(SpecError, "unknown-part", "part", "encoder", "body"):
        paribus.embed(model, [[9]], part="body")


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"layers": 4}, "unknown-layer", ("layers", "4", "body", "3", "0")),
        ({"layers": -5}, "unknown-layer", ("layers", "-5")),
        ({"layers": [1, 9]}, "unknown-layer", ("layers", "9")),
        ({"layers": slice(3, 1)}, "unknown-layer", ("layers",)),
        ({"layers": slice(-2, None), "combine": "max"}, "unknown-combine", ("combine", "max", "mean, sum, concat")),
        ({"pool": "max"}, "unknown-pool", ("pool", "max", "mean, first, last, none")),
        ({"batch": 0}, "out-of-range", ("batch", "0", "≥ 1")),
        ({"part": "encoder"}, "unknown-part", ("part", "encoder", "body")),
    ],
)
def test_an_invalid_option_is_refused(options: Any, code: str, values: tuple[str, ...], bert: Model) -> None:
    with raises_problem(SpecError, code, *values):
        paribus.embed(bert, "A text.", **options)


def test_empty_and_too_long_texts_are_reported_together(bert: Model) -> None:
    with raises_problem(DataError, "empty-text", "text 1") as caught:
        paribus.embed(bert, ["", "fine", "one two " * 40])
    empty_text, long_text = caught.value.problems
    assert (empty_text.path, empty_text.message) == ("text 1", "expected at least one token, got none")
    assert long_text.path == "text 3"
    assert "2 marks, but the positions of this model end at 64" in long_text.message
    assert long_text.valid == "≤ 62 tokens"


@pytest.mark.thorough
def test_a_model_of_images_is_refused() -> None:
    with raises_problem(SpecError, "no-text", "images"):
        paribus.embed(paribus.assemble(paribus.spec("vit-tiny", "dims.width=16", "dims.layers=1")), [[1, 2]])


@pytest.mark.device
@pytest.mark.parametrize("pool", ["mean", "first", "none"])
def test_vectors_of_a_batch_leave_the_device(pool: Any) -> None:
    model = paribus.assemble(paribus.spec("bert-tiny", *TINY, "dims.length=64"))
    expected = paribus.embed(model, TEXTS, pool=pool).vectors
    with simulated_device():
        vectors = paribus.embed(model.to(NAME), TEXTS, pool=pool).vectors
    assert {vector.device.type for vector in vectors} == {"cpu"}
    for vector, reference in zip(vectors, expected, strict=True):
        torch.testing.assert_close(vector, reference, rtol=0, atol=1e-5)
