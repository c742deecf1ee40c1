"""Translations of the validation pairs, compared with `paribus.generate` on each source alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.datamodule.data import Data
from paribus.errors import DataError, SpecError
from paribus.inference.generate import translate_validation
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.testing.small_model import noise

SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=4", "data.batch=8", "data.validation=8")
DATES = "corpus={name: dates, pairs: 40, held_out: 12}"
EXACT = "measure=[{name: translation, scores: []}]"


def make_model(*overrides: str, preset: str = "transformer-tiny", corpus: str = DATES) -> tuple[Model, Data]:
    """Return a float64 model with perturbed weights, and its data."""
    spec = paribus.spec(preset, *SMALL, corpus, *overrides)
    model = paribus.assemble(spec).double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.add_(noise(path, *parameter.shape), alpha=0.3)
    return model, paribus.data(spec)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{"tokens": 6}, {"tokens": 6, "beam": 3, "length_penalty": 0.6}], ids=str)
def test_translations_equal_those_of_each_source_alone(options: dict[str, Any]) -> None:
    model, data = make_model()
    translations = translate_validation(model, data.encoded, 5, **options)
    assert len(translations) == 5
    for pair in translations:
        assert pair.generated == paribus.generate(model, pair.source, **options).texts[0]
    assert len({pair.source for pair in translations}) == 5


@pytest.mark.thorough
def test_pairs_follow_the_order_of_the_corpus() -> None:
    model, data = make_model()
    corpus = paribus.installed().get("corpus", "dates")(pairs=40, held_out=12)
    documents = list(corpus.documents("val"))
    translations = translate_validation(model, data.encoded, len(documents) + 1, tokens=1)
    expected = [(document.text, " ".join(document.target)) for document in documents]
    assert [(pair.source, pair.target) for pair in translations] == expected


@pytest.mark.thorough
def test_a_pair_that_is_too_long_is_skipped() -> None:
    model, data = make_model("dims.length=12")
    translations = translate_validation(model, data.encoded, 100, tokens=1)
    whole = translate_validation(make_model()[0], data.encoded, 100, tokens=1)
    room = [pair for pair in whole if max(len(pair.source), len(pair.target)) <= 11]  # bytes, and one special token
    assert [pair[:2] for pair in translations] == [pair[:2] for pair in room]
    assert 0 < len(translations) < len(whole)


@pytest.mark.thorough
def test_each_pair_uses_its_own_languages() -> None:
    corpus = "corpus={name: dates, locales: [en-us, de, ja], directions: all, pairs: 40, held_out: 12}"
    objective = "objective={name: seq2seq, languages: 3}"
    model, data = make_model("dims.length=48", "embedding.languages=3", objective, corpus=corpus)
    translations = translate_validation(model, data.encoded, 12, tokens=4)
    val, names = data.encoded.val, data.encoded.languages
    assert val.targets is not None
    language_pairs = set()
    for index, pair in enumerate(translations):
        assert val.languages is not None
        assert val.targets.languages is not None
        source_language, target_language = (
            names[int(languages[index])] for languages in (val.languages, val.targets.languages)
        )
        language_pairs.add((source_language, target_language))
        alone = paribus.generate(
            model, pair.source, language=target_language, source_language=source_language, tokens=4
        )
        assert pair.generated == alone.texts[0]
    assert len(language_pairs) > 2


def test_a_decoder_only_model_continues_the_source() -> None:
    model, data = make_model("objective=completion", "position=rope", "dims.length=64", preset="gpt-tiny")
    translations = translate_validation(model, data.encoded, 3, tokens=4)
    assert [pair.generated for pair in translations] == [
        paribus.generate(model, pair.source, tokens=4).texts[0] for pair in translations
    ]


@pytest.mark.thorough
def test_a_model_or_corpus_without_translations_is_refused() -> None:
    model, _ = make_model()
    _, alone = make_model(preset="gpt-tiny", corpus="corpus=python-docs")
    with raises_problem(DataError, "missing-pairs", "corpus"):
        translate_validation(model, alone.encoded, 1)
    encoder, data = make_model("objective=mlm", preset="encoder-tiny")
    with raises_problem(SpecError, "cannot-write", "objective", "mlm"):
        translate_validation(encoder, data.encoded, 1)


@pytest.mark.thorough
def test_ask_reports_the_translation_metrics() -> None:
    model, data = make_model(EXACT)
    evaluation = paribus.measure(model, data)
    assert evaluation.metrics == {"val/translation/exact": 0.0, "val/translation/pairs": 12.0}
    assert not evaluation.unmeasured
    assert paribus.measure(*make_model()).metrics == {}


@pytest.mark.thorough
def test_exact_matches_of_greedy_decoding_equal_the_metric_of_the_objective() -> None:
    """With teacher forcing, a pair whose tokens are all predicted first is also decoded without an error."""
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
            assert paribus.measure(model, data).metrics["val/translation/exact"] == pytest.approx(shares[-1])
    assert max(shares) == 1
    assert any(0 < share < 1 for share in shares)
