"""Tests of `paribus.generate`: texts, scores, batches, languages, classes and assert_refused options."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import ParibusError, SpecError, StoreError
from paribus.inference.prompts import require_text
from paribus.models.lightning_module import Model
from paribus.slots.tokenizer import Vocabulary
from paribus.storage.saved_model import TEXT
from paribus.testing.small_model import noise

Assembled = Callable[..., Model]
PROMPTS = ("The import statement", "A", "Something else ")


def perturb(model: Model) -> Model:
    model.double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.add_(noise(path, *parameter.shape), alpha=0.3)
    return model


@pytest.fixture(scope="module")
def gpt(assembled: Assembled) -> Model:
    return assembled("gpt-tiny", "position=rope")


@pytest.fixture(scope="module")
def t5(assembled: Assembled) -> Model:
    return assembled("seq2seq-tiny")


def assert_same_texts(actual: Sequence[paribus.GeneratedText], expected: Sequence[paribus.GeneratedText]) -> None:
    assert [line[:2] + line[3:] for line in actual] == [line[:2] + line[3:] for line in expected]
    assert [line.score for line in actual] == pytest.approx([line.score for line in expected], abs=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"beam": 3, "n": 2}, {"repetition_penalty": 1.3}], ids=str)
def test_a_text_does_not_depend_on_the_other_prompts(gpt: Model, t5: Model, options: dict[str, Any]) -> None:
    for model in (gpt, t5):
        together = paribus.generate(model, PROMPTS, tokens=5, **options)
        for prompt, lines in zip(PROMPTS, together.results, strict=True):
            assert_same_texts(lines, paribus.generate(model, prompt, tokens=5, **options).results[0])
            assert_same_texts(lines, paribus.generate(model, prompt, tokens=5, cache=False, **options).results[0])
        batched = paribus.generate(model, PROMPTS, tokens=5, batch=2, **options)
        for lines, batched_lines in zip(together.results, batched.results, strict=True):
            assert_same_texts(lines, batched_lines)


@pytest.mark.thorough
def test_sampled_texts_depend_on_the_seed_only(gpt: Model, t5: Model) -> None:
    for model in (gpt, t5):
        options: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "n": 2, "tokens": 8}
        generated = paribus.generate(model, PROMPTS, seed=1, **options)
        for batch in (1, 2):
            batched = paribus.generate(model, PROMPTS, seed=1, batch=batch, **options)
            for lines, other_lines in zip(generated.results, batched.results, strict=True):
                assert_same_texts(lines, other_lines)
        more_texts = paribus.generate(model, PROMPTS, seed=1, **{**options, "n": 3})
        for lines, other_lines in zip(generated.results, more_texts.results, strict=True):
            assert_same_texts(lines, other_lines[:2])
        assert generated.results[0][0].ids != generated.results[0][1].ids
        assert generated.texts != paribus.generate(model, PROMPTS, seed=2, **options).texts
        torch.manual_seed(5)
        assert paribus.generate(model, PROMPTS, seed=1, **options) == generated


def test_a_prompt_may_be_a_text_or_token_ids(gpt: Model) -> None:
    assert gpt.text is not None
    ids = [gpt.text.encode(prompt) for prompt in PROMPTS]
    generated = paribus.generate(gpt, PROMPTS, tokens=5)
    assert paribus.generate(gpt, ids, tokens=5) == generated
    assert_same_texts(paribus.generate(gpt, ids[0], tokens=5).results[0], generated.results[0])  # another batch
    assert generated.prompts == tuple(map(tuple, ids))
    for lines in generated.results:
        assert lines[0].text == gpt.text.decode(lines[0].ids)
        assert len(lines[0].ids) == 5 or lines[0].ended


def test_generation_stops_at_the_end_of_text_and_at_the_length_of_the_model(gpt: Model) -> None:
    (line,) = paribus.generate(gpt, PROMPTS[0]).results[0]
    assert line.ended or len(line.ids) == 32 + 1 - len(PROMPTS[0])
    assert gpt.text is not None
    end_of_text = gpt.text.vocabulary.specials["eos"]
    with torch.inference_mode():
        scores = gpt(torch.tensor([gpt.text.encode("A")]))[0][0, -1].clone()
    best_token = int(scores.argmax())
    lines = paribus.generate(gpt, "A", beam=300, n=300, tokens=1).results[0]
    ended = [line for line in lines if line.ended]
    assert [line.ids for line in ended] == [()]
    assert ended[0].score == pytest.approx(float(scores.log_softmax(0)[end_of_text]), abs=1e-9)
    assert lines[0].ids == (best_token,)


def test_the_cache_size_is_that_of_its_keys_and_values(gpt: Model) -> None:
    generated = paribus.generate(gpt, PROMPTS, tokens=7)
    positions = max(map(len, PROMPTS)) + 7 - 1
    assert (
        generated.cache_bytes == 2 * 2 * len(PROMPTS) * positions * 16 * 8
    )  # keys and values of two layers in float64
    assert paribus.generate(gpt, PROMPTS, tokens=7, cache=False).cache_bytes == 0
    assert paribus.generate(gpt, PROMPTS, tokens=7, beam=3).cache_bytes == 3 * generated.cache_bytes


def test_the_prompt_of_an_encoder_decoder_is_its_source(t5: Model) -> None:
    generated = paribus.generate(t5, ["The <sentinel 0> statement", "else"], tokens=4)
    assert t5.text is not None
    assert t5.text.vocabulary.sentinels[0] in generated.prompts[0]
    assert generated.texts[0] != paribus.generate(t5, "else", tokens=4).texts[0]


def test_progress_is_reported_over_all_prompts(gpt: Model) -> None:
    reports: list[tuple[int, int]] = []
    paribus.generate(gpt, PROMPTS, tokens=3, batch=1, on_progress=lambda done, total: reports.append((done, total)))
    assert {total for _, total in reports} == {9}
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_the_training_mode_of_the_model_is_restored(gpt: Model) -> None:
    for training in (True, False):
        gpt.train(training)
        paribus.generate(gpt, "A", tokens=1)
        assert gpt.training == training


@pytest.mark.thorough
def test_a_saved_model_generates_even_without_a_saved_tokenizer(gpt: Model, tmp_path: Path) -> None:
    paribus.save(gpt, tmp_path / "gpt")
    generated = paribus.generate(gpt, "A", tokens=4)
    assert paribus.generate(tmp_path / "gpt", "A", tokens=4) == generated
    (tmp_path / "gpt" / TEXT).unlink()
    assert paribus.generate(str(tmp_path / "gpt"), "A", tokens=4) == generated
    with raises_problem(StoreError, "missing-record", "nowhere"):
        paribus.generate(tmp_path / "nowhere", "A")
    shutil.rmtree(tmp_path / "gpt")


@pytest.mark.thorough
@pytest.mark.parametrize("locales", [("en-us", "de"), ("en-us", "de", "ja")])
def test_languages_are_selected_by_name_and_the_second_of_two_is_inferred(locales: tuple[str, ...]) -> None:
    corpus = f"corpus={{name: dates, locales: [{', '.join(locales)}], directions: all, pairs: 40, held_out: 8}}"
    objective = f"objective={{name: seq2seq, languages: {len(locales)}}}"
    small = ("dims.width=16", "dims.layers=1", "dims.heads=4", "dims.length=48", "embedding.languages=3")
    model = perturb(paribus.assemble(paribus.spec("transformer-tiny", *small, corpus, objective)))
    assert model.text is not None
    assert set(model.text.languages) == set(locales)
    inputs: list[tuple[int, int, int]] = []  # first token, language and length of each call

    def record_input(_: Any, arguments: Any) -> None:
        stream = arguments[0]
        inputs.append((int(stream.tokens[0, 0]), int(stream.languages.unique()), stream.tokens.shape[1]))

    hook = model.topology.embedding.register_forward_pre_hook(record_input)
    target_id, source_id = model.text.languages.index("de"), model.text.languages.index("en-us")
    language_tokens = model.text.vocabulary.sentinels
    paribus.generate(model, "1/2/2021", language="de", source_language="en-us", tokens=2)
    assert inputs == [
        (language_tokens[source_id], source_id, 10),
        (language_tokens[target_id], target_id, 1),
        (inputs[2][0], target_id, 1),
    ]
    runs = [list(inputs)]
    for selection in (
        {"language": "de"},
        {"source_language": "en-us"},
        {"language": str(target_id), "source_language": str(source_id)},
    ):
        inputs.clear()
        options: dict[str, Any] = {**selection, "tokens": 2}
        if len(locales) == 2 or len(selection) == 2:
            paribus.generate(model, "1/2/2021", **options)
            runs.append(list(inputs))
        else:
            with raises_problem(SpecError, "missing-language", "language"):
                paribus.generate(model, "1/2/2021", **options)
    assert all(run == runs[0] for run in runs)
    hook.remove()
    maps = paribus.attend(model, "1.", source="1/2/2021", language="de", source_language="en-us")
    assert maps.query_tokens == ("1", ".", "<eos>")
    languages = ", ".join(model.text.languages)
    assert_refused(model, "1", "unknown-language", "language", "d", "de", languages, language="d")


# -- refused options ------------------------------------------------------------------------------------------


def assert_refused(model: Model, prompt: Any, code: str, *values: object, **options: Any) -> None:
    with raises_problem(ParibusError, code, *values):
        paribus.generate(model, prompt, **options)


@pytest.mark.thorough
def test_a_prompt_that_is_too_long_is_refused_with_the_limit(gpt: Model, assembled: Assembled) -> None:
    learned = assembled("gpt-tiny", "position=learned")
    long_prompt = "x" * 40
    assert_refused(gpt, ["A", long_prompt], "too-long", "prompt 2", "40", "≤ 32")
    assert len(paribus.generate(gpt, long_prompt, tokens=3).results[0][0].ids) == 3
    assert_refused(learned, long_prompt, "position-out-of-range", "prompt 1", "40", "≤ 32", tokens=3)
    assert_refused(learned, "x" * 30, "position-out-of-range", "prompt 1", "30", "4", "`tokens` ≤ 3", tokens=4)
    assert len(paribus.generate(learned, ["x" * 30, "x"], tokens=3).results[0][0].ids) == 3
    assert [len(w[0].ids) for w in paribus.generate(learned, ["x" * 30, "x"]).results] == [3, 32]
    source = assembled("seq2seq-tiny", "position=learned")
    assert_refused(source, long_prompt, "position-out-of-range", "prompt 1", "41", "≤ 32")


def test_an_empty_prompt_needs_a_special_token_to_start_from(gpt: Model) -> None:
    assert paribus.generate(gpt, "", tokens=2).prompts == ((),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt.objective("clm"), "end_of_text", None)
        assert_refused(gpt, ["A", ""], "empty-prompt", "prompt 2")


def test_an_unknown_token_id_is_refused_with_its_position(gpt: Model) -> None:
    assert_refused(gpt, [[1, 2], [3, 999, -1]], "id-out-of-range", "prompt 2", "999", "position 1", "294")


@pytest.mark.thorough
def test_a_model_that_was_not_trained_to_generate_is_refused(assembled: Assembled) -> None:
    assert_refused(assembled("encoder-tiny"), "A", "cannot-write", "objective", "mlm")
    assert_refused(
        assembled(
            "gpt-tiny", "objective={name: classify-causal, classes: 6}", "corpus=sections", "tokenizer=wordpiece"
        ),
        [[5]],
        "cannot-write",
        "objective",
        "classify-causal",
    )


def test_an_invalid_option_is_refused(gpt: Model) -> None:
    assert_refused(gpt, "A", "out-of-range", "batch", "0", "≥ 1", batch=0)
    assert_refused(gpt, "A", "out-of-range", "beam", "0", "≥ 1", beam=0)
    assert_refused(gpt, "A", "unknown-language", "language", "de", "none", language="de")


@pytest.mark.thorough
def test_a_class_is_selected_by_name_or_number(assembled: Assembled) -> None:
    model = assembled("ctrl-tiny", "corpus=sections", "tokenizer.sentinels=6")
    model.text = TextCodec(require_text(model).tokenizer, classes=("library", "howto"))
    labelled, unlabelled = (paribus.generate(model, "A", tokens=5, label=label) for label in ("howto", None))
    assert labelled.results == paribus.generate(model, "A", tokens=5, label="1").results
    assert labelled.results[0][0].score != unlabelled.results[0][0].score
    assert_refused(model, "A", "unknown-class", "label", "howtoo", "howto", "library, howto", label="howtoo")
    model.text = TextCodec(model.text.tokenizer)
    assert_refused(model, "A", "unknown-class", "label", "9", "0 to 5", label="9")


def test_a_class_is_refused_by_a_model_without_classes(gpt: Model) -> None:
    assert_refused(gpt, "A", "unused-option", "label", "clm", label="1")


def test_a_model_without_a_tokenizer_accepts_token_ids(assemble_bare: Model) -> None:
    generated = paribus.generate(assemble_bare, [15, 16, 17], tokens=3)
    assert generated.results[0][0].text is None
    assert_refused(assemble_bare, "A", "missing-tokenizer", "tokenizer")


@pytest.fixture
def assemble_bare(assemble: Any, vocabulary: Vocabulary) -> Model:
    model: Model = assemble("gpt-tiny")
    assert vocabulary.size == 40
    return model


def test_the_tokenizer_of_a_changed_corpus_is_not_used(gpt: Model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt, "text", None)
        patch.setattr(gpt, "tokenizer", "0" * 64)
        assert_refused(gpt, "A", "other-tokenizer", "tokenizer")
