"""Predictions for masked tokens, compared with the logits of the objective at the same positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import DataError, SpecError
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch, Stream

Assembled = Callable[..., Model]
TEXT = "The <mask>th para<mask>raph"


@pytest.mark.parametrize("preset", ["encoder-tiny", "electra-tiny", "deberta-tiny", "spanbert-tiny"])
def test_candidates_are_the_tokens_with_the_highest_training_scores(assembled: Assembled, preset: str) -> None:
    model = assembled(preset, "tokenizer=bytes")
    predictions = paribus.fill(model, TEXT, top=7)
    assert model.text is not None
    ids = torch.tensor([model.text.read(TEXT)])
    mask = model.text.vocabulary.specials["mask"]
    pick = (ids[0] == mask).nonzero().T
    name = model.trained[0]
    targets: dict[str, Any] = {name: {"pick": pick, "labels": ids.gather(1, pick)}}
    streams = {"body": Stream(ids), "generator": Stream(ids)}
    with torch.inference_mode():
        run = model.eval().run(Batch(streams, targets, torch.zeros(1, dtype=torch.long)))
        filled = model.objective(name).fill_logits(run.of(name))
    assert filled is not None
    shares = filled[0].softmax(-1)
    assert len(predictions) == 2
    for candidates, share in zip(predictions, shares, strict=True):
        best = share.sort(descending=True)
        assert [candidate.id for candidate in candidates] == best.indices[:7].tolist()
        assert [candidate.probability for candidate in candidates] == pytest.approx(best.values[:7].tolist(), abs=1e-12)
        assert [candidate.text for candidate in candidates] == [
            model.text.decode([candidate.id]) for candidate in candidates
        ]


def test_mlm_probabilities_equal_the_softmax_of_the_head(assembled: Assembled) -> None:
    model = assembled("encoder-tiny")
    assert model.text is not None
    ids = model.text.read(TEXT)
    with torch.inference_mode():
        scores = model.eval()(torch.tensor([ids]))[0][0]
    place = ids.index(model.text.vocabulary.specials["mask"])
    candidates = paribus.fill(model, TEXT, top=400)[0]
    assert len(candidates) == model.text.vocabulary.size
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1, abs=1e-12)
    share = scores[place].softmax(-1)
    assert candidates[0].probability == pytest.approx(float(share.max()), abs=1e-12)


@pytest.mark.thorough
def test_a_model_with_segments_reads_the_special_tokens_of_training(assembled: Assembled) -> None:
    model = assembled("bert-tiny", "tokenizer=bytes")
    assert model.text is not None
    specials = model.text.vocabulary.specials
    inputs: list[list[int]] = []
    model.topology.embedding.register_forward_pre_hook(lambda _, args: inputs.append(args[0].tokens[0].tolist()))
    paribus.fill(model, TEXT)
    assert inputs == [[specials["cls"], *model.text.read(TEXT), specials["sep"]]]


def test_a_mask_of_a_whole_word_includes_the_space_before_it(assembled: Assembled) -> None:
    model = assembled("encoder-tiny", "tokenizer=bpe", "dims.vocabulary=340")
    assert model.text is not None
    assert len(model.text.encode(" a")) == 1
    inputs: list[list[int]] = []
    model.topology.embedding.register_forward_pre_hook(lambda _, args: inputs.append(args[0].tokens[0].tolist()))
    paribus.fill(model, "The <mask> paragraph")
    mask = model.text.vocabulary.specials["mask"]
    assert inputs == [[*model.text.encode("The"), mask, *model.text.encode(" paragraph")]]


@pytest.mark.thorough
def test_an_invalid_text_model_or_option_is_refused(assembled: Assembled) -> None:
    encoder, gpt = assembled("encoder-tiny"), assembled("gpt-tiny")
    with raises_problem(DataError, "missing-mask", "text", "<mask>"):
        paribus.fill(encoder, "The statement")
    with raises_problem(SpecError, "out-of-range", "top", "≥ 1", "0"):
        paribus.fill(encoder, TEXT, top=0)
    with raises_problem(SpecError, "cannot-fill", "objective", "clm"):
        paribus.fill(gpt, TEXT)
    learned = assembled("encoder-tiny", "position=learned")
    with raises_problem(DataError, "position-out-of-range", "text", "41"):
        paribus.fill(learned, "<mask>" + "x" * 40)
    learned.text, learned.tokenizer = None, ""
    with raises_problem(DataError, "missing-mask", "tokenizer"):
        paribus.fill(learned, [1, 2])
