"""What a model makes of the pairs of its validation split, against what it writes for each source alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paribus
from paribus.errors import DataError, SpecError
from paribus.inference.translate import translate_validation
from paribus.testing.small_model import noise
from paribus.train.data import Data
from paribus.train.evaluate import evaluate
from paribus.train.model import Model

SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=4", "data.batch=8", "data.validation=8")
DATES = "corpus={name: dates, pairs: 40, held_out: 12}"
EXACT = "measure=[{name: translation, scores: []}]"


def made(*overrides: str, preset: str = "transformer-tiny", corpus: str = DATES) -> tuple[Model, Data]:
    """A model in float64, far off where it starts, and its data."""
    spec = paribus.spec(preset, *SMALL, corpus, *overrides)
    model = paribus.assemble(spec).double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.add_(noise(path, *parameter.shape), alpha=0.3)
    return model, paribus.data(spec)


@pytest.mark.parametrize("manner", [{"tokens": 6}, {"tokens": 6, "beam": 3, "length_penalty": 0.6}], ids=str)
def test_what_is_written_is_what_is_written_for_each_source_alone(manner: dict[str, Any]) -> None:
    model, data = made()
    found = translate_validation(model, data.encoded, 5, **manner)
    assert len(found) == 5
    for each in found:
        assert each.generated == paribus.generate(model, each.source, **manner).texts[0]
    assert len({each.source for each in found}) == 5


def test_pairs_are_those_of_the_corpus_as_they_come() -> None:
    model, data = made()
    corpus = paribus.installed().get("corpus", "dates")(pairs=40, held_out=12)
    documents = list(corpus.documents("val"))
    found = translate_validation(model, data.encoded, len(documents) + 1, tokens=1)
    told = [(each.text, " ".join(each.target)) for each in documents]
    assert [(each.source, each.target) for each in found] == told


def test_a_pair_for_which_there_is_no_room_is_left_out() -> None:
    model, data = made("dims.length=12")
    found = translate_validation(model, data.encoded, 100, tokens=1)
    whole = translate_validation(made()[0], data.encoded, 100, tokens=1)
    room = [each for each in whole if max(len(each.source), len(each.target)) <= 11]  # bytes, and a mark of each side
    assert [each[:2] for each in found] == [each[:2] for each in room]
    assert 0 < len(found) < len(whole)


def test_each_pair_is_read_and_written_in_its_own_languages() -> None:
    corpus = "corpus={name: dates, locales: [en-us, de, ja], directions: all, pairs: 40, held_out: 12}"
    objective = "objective={name: seq2seq, languages: 3}"
    model, data = made("dims.length=48", "embedding.languages=3", objective, corpus=corpus)
    found = translate_validation(model, data.encoded, 12, tokens=4)
    val, names = data.encoded.val, data.encoded.languages
    assert val.targets is not None
    ways = set()
    for at, each in enumerate(found):
        assert val.languages is not None
        assert val.targets.languages is not None
        of, to = (names[int(it[at])] for it in (val.languages, val.targets.languages))
        ways.add((of, to))
        alone = paribus.generate(model, each.source, language=to, source_language=of, tokens=4)
        assert each.generated == alone.texts[0]
    assert len(ways) > 2


def test_a_decoder_writes_behind_the_source() -> None:
    model, data = made("objective=completion", "position=rope", "dims.length=64", preset="gpt-tiny")
    found = translate_validation(model, data.encoded, 3, tokens=4)
    assert [each.generated for each in found] == [
        paribus.generate(model, each.source, tokens=4).texts[0] for each in found
    ]


def test_who_cannot_write_is_told() -> None:
    model, _ = made()
    _, alone = made(preset="gpt-tiny", corpus="corpus=python-docs")
    with pytest.raises(DataError, match=r"error\[no-pairs\] corpus: the corpus has no pairs, so there is nothing that"):
        translate_validation(model, alone.encoded, 1)
    encoder, data = made("objective=mlm", preset="encoder-tiny")
    with pytest.raises(SpecError, match="trained for mlm cannot write: nothing taught it what comes next"):
        translate_validation(encoder, data.encoded, 1)


def test_a_trained_model_is_asked_by_the_public_door() -> None:
    model, data = made(EXACT)
    found = paribus.ask(model, data)
    assert found.metrics == {"val/translation/exact": 0.0, "val/translation/pairs": 12.0}
    assert not found.unmeasured
    assert paribus.ask(*made()).metrics == {}


def test_the_share_that_greedy_decoding_writes_is_the_objectives_exact_all_along() -> None:
    """A pair of which every token is the first guess behind the true ones is one that is written without a fault."""
    all_of_them = ("corpus.held_out=8", "measure.0.examples=8")
    spec = paribus.spec("transformer-tiny", *SMALL, DATES, EXACT, *all_of_them, "dims.width=32")
    model, data = paribus.assemble(spec), paribus.data(spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = data.validation_batch(0)  # learnt by heart
    shares = []
    for step in range(50):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
        if step % 10 == 9:
            shares.append(evaluate(model, data)["val/seq2seq/exact"])
            assert paribus.ask(model, data).metrics["val/translation/exact"] == pytest.approx(shares[-1])
    assert max(shares) == 1
    assert any(0 < share < 1 for share in shares)
