"""Two texts are read as the pairs of segments that a model was trained on."""

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import SpecError
from paribus.inference.prompts import text_stream
from paribus.models.assemble import build_data, build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import PADDING, Stream
from paribus.registry import Registry
from paribus.specs import resolved

TINY = ("dims.width=16", "dims.layers=2", "dims.heads=2", "dims.length=32", "dims.vocabulary=400")
ONE, OTHER = "The first text.", "Another one"


@pytest.fixture(scope="module")
def bert() -> Model:
    return paribus.assemble(paribus.spec("bert-tiny", *TINY)).double()


def stream_of(model: Model) -> Stream:
    return text_stream(model, ONE, OTHER)


@pytest.mark.parametrize("kinds", [2, 0])
def test_a_pair_is_laid_out_as_in_training(kinds: int, components: Registry) -> None:
    spec = resolved("bert-tiny", "objective=nsp", f"embedding.segments={kinds}", *TINY, registry=components)
    text = encode_synthetic_corpus(spec, components)
    model, data = build_model(spec, components, text.vocabulary), build_data(spec, components, text)
    model.text = TextCodec.of(text)
    body, separator = data.step(0).streams["body"], text.vocabulary.specials["sep"]
    assert body.documents is not None
    assert body.segments is not None
    for row in range(4):
        tokens = body.tokens[row][body.documents[row] != PADDING].tolist()
        middle = tokens.index(separator)
        stream = text_stream(model, tokens[1:middle], tokens[middle + 1 : -1])
        assert stream.tokens[0].tolist() == tokens
        if kinds > 1:
            assert stream.segments is not None
            assert torch.equal(stream.segments[0], body.segments[row][: len(tokens)])
        else:  # the embedding reads none
            assert stream.segments is None


def test_attention_maps_of_a_pair_are_those_of_both_segments(bert: Model) -> None:
    maps, stream = paribus.attend(bert, ONE, OTHER), stream_of(bert)
    assert len(maps.query_tokens) == stream.tokens.shape[1]
    assert maps.query_tokens.count("<sep>") == 2
    with torch.inference_mode():
        captured = bert.eval().topology.run({"body": stream}, "body", capture=True).captured
    for weights, layer in zip(captured, maps.layers, strict=True):
        assert layer is not None
        torch.testing.assert_close(weights["weights"][0], layer, rtol=0, atol=0)


def test_a_mask_of_a_pair_is_filled_with_both_segments(bert: Model) -> None:
    ((best, *_),) = paribus.fill(bert, "The <mask> text.", OTHER, top=1)
    ((alone, *_),) = paribus.fill(bert, "The <mask> text.", top=1)
    assert best.probability != alone.probability


def test_embeddings_of_pairs_do_not_depend_on_the_batch(bert: Model) -> None:
    texts, pairs = [ONE, OTHER, "a"], [OTHER, "b c d e", ONE]
    together = paribus.embed(bert, texts, pairs, layers=[1, -1], combine="concat")
    for index, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
        alone = paribus.embed(bert, text, pair, layers=[1, -1], combine="concat", pool="none")
        torch.testing.assert_close(together.vectors[index], alone.vectors[0].mean(0), rtol=0, atol=1e-12)
        assert len(alone.ids[0]) == len(alone.vectors[0])
    with torch.inference_mode():
        hidden = bert.eval().topology.run({"body": stream_of(bert)}, "body").hidden[0]
    torch.testing.assert_close(paribus.embed(bert, ONE, OTHER, pool="first").vectors[0], hidden[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(paribus.embed(bert, ONE, OTHER, pool="last").vectors[0], hidden[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
def test_a_model_that_was_not_trained_on_pairs_is_refused(preset: str) -> None:
    model = paribus.assemble(paribus.spec(preset, *TINY))
    for function in (paribus.attend, paribus.embed):
        with raises_problem(SpecError, "no-pairs", "pair"):
            function(model, ONE, OTHER)


def test_invalid_pairs_are_refused(bert: Model) -> None:
    with raises_problem(SpecError, "wrong-count", "pairs", "2", "1"):
        paribus.embed(bert, [ONE, OTHER], [ONE])
    model = paribus.assemble(paribus.spec("seq2seq-tiny", *TINY))
    with raises_problem(SpecError, "unused-option", "pair"):
        paribus.attend(model, ONE, OTHER, source="a")
