"""`paribus.generate` as its user sees it: texts and scores, what takes no part in them, and what cannot be asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import paribus
from paribus.errors import DataError, SpecError, StoreError
from paribus.inference.prompts import require_text
from paribus.slots.tokenizer import Vocabulary
from paribus.storage.saved_model import TEXT
from paribus.testing.small_model import noise
from paribus.train.model import Model
from paribus.train.tokenizer_state import TextCodec

Assembled = Callable[..., Model]
PROMPTS = ("The import statement", "A", "Something else ")


def shaken(model: Model) -> Model:
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


def same(found: Sequence[paribus.GeneratedText], wanted: Sequence[paribus.GeneratedText]) -> None:
    assert [line[:2] + line[3:] for line in found] == [line[:2] + line[3:] for line in wanted]
    assert [line.score for line in found] == pytest.approx([line.score for line in wanted], abs=1e-9)


@pytest.mark.parametrize("said", [{}, {"beam": 3, "n": 2}, {"repetition_penalty": 1.3}], ids=str)
def test_prompts_of_different_lengths_are_written_together_as_each_alone(
    gpt: Model, t5: Model, said: dict[str, Any]
) -> None:
    for model in (gpt, t5):
        together = paribus.generate(model, PROMPTS, tokens=5, **said)
        for prompt, lines in zip(PROMPTS, together.results, strict=True):
            same(lines, paribus.generate(model, prompt, tokens=5, **said).results[0])
            same(lines, paribus.generate(model, prompt, tokens=5, cache=False, **said).results[0])
        few = paribus.generate(model, PROMPTS, tokens=5, batch=2, **said)
        for lines, others in zip(together.results, few.results, strict=True):
            same(lines, others)


def test_what_is_drawn_depends_on_the_seed_and_not_on_what_else_is_read(gpt: Model, t5: Model) -> None:
    for model in (gpt, t5):
        said: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "n": 2, "tokens": 8}
        found = paribus.generate(model, PROMPTS, seed=1, **said)
        for batch in (1, 2):
            other = paribus.generate(model, PROMPTS, seed=1, batch=batch, **said)
            for lines, others in zip(found.results, other.results, strict=True):
                same(lines, others)
        more = paribus.generate(model, PROMPTS, seed=1, **{**said, "n": 3})
        for lines, others in zip(found.results, more.results, strict=True):
            same(lines, others[:2])
        assert found.results[0][0].ids != found.results[0][1].ids
        assert found.texts != paribus.generate(model, PROMPTS, seed=2, **said).texts
        torch.manual_seed(5)
        assert paribus.generate(model, PROMPTS, seed=1, **said) == found


def test_a_text_and_its_ids_are_asked_alike(gpt: Model) -> None:
    assert gpt.text is not None
    ids = [gpt.text.encode(prompt) for prompt in PROMPTS]
    found = paribus.generate(gpt, PROMPTS, tokens=5)
    assert paribus.generate(gpt, ids, tokens=5) == found
    assert paribus.generate(gpt, ids[0], tokens=5).results[0] == found.results[0]
    assert found.prompts == tuple(map(tuple, ids))
    for lines in found.results:
        assert lines[0].text == gpt.text.decode(lines[0].ids)
        assert len(lines[0].ids) == 5 or lines[0].ended


def test_it_stops_at_the_mark_that_ends_a_text_and_at_the_length_of_the_model(gpt: Model) -> None:
    (line,) = paribus.generate(gpt, PROMPTS[0]).results[0]
    assert line.ended or len(line.ids) == 32 + 1 - len(PROMPTS[0])
    assert gpt.text is not None
    mark = gpt.text.vocabulary.specials["eos"]
    with torch.inference_mode():
        scores = gpt(torch.tensor([gpt.text.encode("A")]))[0][0, -1].clone()
    first = int(scores.argmax())
    found = paribus.generate(gpt, "A", beam=300, n=300, tokens=1).results[0]
    ended = [line for line in found if line.ended]
    assert [line.ids for line in ended] == [()]
    assert ended[0].score == pytest.approx(float(scores.log_softmax(0)[mark]), abs=1e-9)
    assert found[0].ids == (first,)


def test_the_cache_is_as_large_as_keys_and_values_are(gpt: Model) -> None:
    found = paribus.generate(gpt, PROMPTS, tokens=7)
    rows = max(map(len, PROMPTS)) + 7 - 1
    assert found.cache_bytes == 2 * 2 * len(PROMPTS) * rows * 16 * 8  # keys and values of two layers in float64
    assert paribus.generate(gpt, PROMPTS, tokens=7, cache=False).cache_bytes == 0
    assert paribus.generate(gpt, PROMPTS, tokens=7, beam=3).cache_bytes == 3 * found.cache_bytes


def test_an_encoder_decoder_is_asked_by_its_source(t5: Model) -> None:
    found = paribus.generate(t5, ["The <sentinel 0> statement", "else"], tokens=4)
    assert t5.text is not None
    assert t5.text.vocabulary.sentinels[0] in found.prompts[0]
    assert found.texts[0] != paribus.generate(t5, "else", tokens=4).texts[0]


def test_progress_is_told_for_all_prompts_at_once(gpt: Model) -> None:
    told: list[tuple[int, int]] = []
    paribus.generate(gpt, PROMPTS, tokens=3, batch=1, on_progress=lambda done, most: told.append((done, most)))
    assert {most for _, most in told} == {9}
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_model_is_left_in_the_mode_in_which_it_was_found(gpt: Model) -> None:
    for training in (True, False):
        gpt.train(training)
        paribus.generate(gpt, "A", tokens=1)
        assert gpt.training == training


def test_a_folder_is_asked_as_well_and_an_older_one_without_its_tokenizer(gpt: Model, tmp_path: Path) -> None:
    paribus.save(gpt, tmp_path / "gpt")
    found = paribus.generate(gpt, "A", tokens=4)
    assert paribus.generate(tmp_path / "gpt", "A", tokens=4) == found
    (tmp_path / "gpt" / TEXT).unlink()
    assert paribus.generate(str(tmp_path / "gpt"), "A", tokens=4) == found
    with pytest.raises(StoreError, match="this folder does not exist"):
        paribus.generate(tmp_path / "nowhere", "A")
    shutil.rmtree(tmp_path / "gpt")


@pytest.mark.parametrize("locales", [("en-us", "de"), ("en-us", "de", "ja")])
def test_languages_are_asked_for_by_name_and_of_two_the_other_is_read(locales: tuple[str, ...]) -> None:
    corpus = f"corpus={{name: dates, locales: [{', '.join(locales)}], directions: all, pairs: 40, held_out: 8}}"
    objective = f"objective={{name: seq2seq, languages: {len(locales)}}}"
    small = ("dims.width=16", "dims.layers=1", "dims.heads=4", "dims.length=48", "embedding.languages=3")
    model = shaken(paribus.assemble(paribus.spec("transformer-tiny", *small, corpus, objective)))
    assert model.text is not None
    assert set(model.text.languages) == set(locales)
    asked: list[tuple[int, int, int]] = []  # the first token that each part reads, its language, and how many there are

    def watched(_: Any, given: Any) -> None:
        stream = given[0]
        asked.append((int(stream.tokens[0, 0]), int(stream.languages.unique()), stream.tokens.shape[1]))

    hook = model.topology.embedding.register_forward_pre_hook(watched)
    to, of = model.text.languages.index("de"), model.text.languages.index("en-us")
    marks = model.text.vocabulary.sentinels
    paribus.generate(model, "1/2/2021", language="de", source_language="en-us", tokens=2)
    assert asked == [(marks[of], of, 10), (marks[to], to, 1), (asked[2][0], to, 1)]
    found = [list(asked)]
    for said in ({"language": "de"}, {"source_language": "en-us"}, {"language": str(to), "source_language": str(of)}):
        asked.clear()
        options: dict[str, Any] = {**said, "tokens": 2}
        if len(locales) == 2 or len(said) == 2:
            paribus.generate(model, "1/2/2021", **options)
            found.append(list(asked))
        else:
            with pytest.raises(SpecError, match=r"error\[no-language\]"):
                paribus.generate(model, "1/2/2021", **options)
    assert all(each == found[0] for each in found)
    hook.remove()
    shown = paribus.attend(model, "1.", source="1/2/2021", language="de", source_language="en-us")
    assert shown.rows == ("1", ".", "<eos>")
    known = ", ".join(model.text.languages)
    refused(
        model,
        "1",
        f'error[unknown-language] language: unknown language "d"; did you mean "de"? valid: {known}',
        language="d",
    )


# -- what cannot be asked ----------------------------------------------------------------------------------------


def refused(model: Model, prompt: Any, said: str, **options: Any) -> None:
    with pytest.raises((DataError, SpecError)) as raised:  # matched below, with its brackets as they are
        paribus.generate(model, prompt, **options)
    assert str(raised.value) == said


def test_a_prompt_that_is_too_long_is_told_with_what_would_do(gpt: Model, assembled: Assembled) -> None:
    learned = assembled("gpt-tiny", "position=learned")
    long = "x" * 40
    refused(
        gpt,
        ["A", long],
        "error[too-long] prompt 2: it has 40 tokens, got a model of length 32 (dims.length); valid: ≤ 32 tokens, "
        "or set `tokens`",
    )
    assert len(paribus.generate(gpt, long, tokens=3).results[0][0].ids) == 3
    past = "but the positions of this model end at 32; valid"
    refused(learned, long, f"error[past-the-table] prompt 1: it has 40 tokens, {past}: ≤ 32 tokens", tokens=3)
    refused(
        learned,
        "x" * 30,
        f"error[past-the-table] prompt 1: it has 30 tokens, and 4 new ones are requested, {past}: `tokens` ≤ 3",
        tokens=4,
    )
    assert len(paribus.generate(learned, ["x" * 30, "x"], tokens=3).results[0][0].ids) == 3
    assert [len(w[0].ids) for w in paribus.generate(learned, ["x" * 30, "x"]).results] == [3, 32]
    source = assembled("seq2seq-tiny", "position=learned")
    what = "its source has 41 tokens"
    refused(source, long, f"error[past-the-table] prompt 1: {what}, {past}: ≤ 32 tokens")


def test_an_empty_prompt_needs_a_mark_that_texts_begin_or_end_with(gpt: Model) -> None:
    assert paribus.generate(gpt, "", tokens=2).prompts == ((),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt.objective("clm"), "mark", None)
        refused(
            gpt,
            ["A", ""],
            "error[empty-prompt] prompt 2: it is empty, and the tokenizer has no mark that a text begins or ends with; "
            "valid: at least one token",
        )


def test_what_is_no_token_is_told_with_its_place(gpt: Model) -> None:
    refused(
        gpt,
        [[1, 2], [3, 999, -1]],
        "error[id-outside] prompt 2: unknown id 999 at position 1, of a vocabulary of 294; valid: ids from 0 to 293",
    )


def test_a_model_that_was_not_trained_to_write_is_told_so(assembled: Assembled) -> None:
    refused(
        assembled("encoder-tiny"),
        "A",
        "error[cannot-write] objective: a model that was trained for mlm cannot generate: it was not trained to "
        "predict the next token; valid: a model that was trained to generate",
    )
    refused(
        assembled(
            "gpt-tiny", "objective={name: classify-causal, classes: 6}", "corpus=sections", "tokenizer=wordpiece"
        ),
        [[5]],
        "error[cannot-write] objective: a model that was trained for classify-causal cannot write: its head scores no "
        "tokens that could come next; valid: a model that was trained to generate",
    )


def test_options_that_are_no_options_are_told(gpt: Model) -> None:
    refused(gpt, "A", "error[out-of-range] batch: expected at least 1, got 0; valid: ≥ 1", batch=0)
    refused(gpt, "A", "error[out-of-range] beam: got 0; valid: ≥ 1; 1 takes the most probable token", beam=0)
    refused(
        gpt,
        "A",
        'error[unknown-language] language: unknown language "de"; valid: none: the model has no languages',
        language="de",
    )


def test_a_text_is_of_the_class_that_is_asked_for_by_name_or_number(assembled: Assembled) -> None:
    model = assembled("ctrl-tiny", "corpus=sections", "tokenizer.sentinels=6")
    model.text = TextCodec(require_text(model).tokenizer, classes=("library", "howto"))
    named, first = (paribus.generate(model, "A", tokens=5, label=label) for label in ("howto", None))
    assert named.results == paribus.generate(model, "A", tokens=5, label="1").results
    assert named.results[0][0].score != first.results[0][0].score
    refused(
        model,
        "A",
        'error[unknown-class] label: unknown class "howtoo"; did you mean "howto"? valid: library, howto',
        label="howtoo",
    )
    model.text = TextCodec(model.text.tokenizer)
    refused(
        model,
        "A",
        "error[unknown-class] label: unknown class 9; control has codes for 6 classes; valid: 0 to 5",
        label="9",
    )


def test_a_class_that_nothing_reads_is_refused(gpt: Model) -> None:
    refused(
        gpt,
        "A",
        "error[not-read] label: a model that writes as it was trained for clm has no classes, so this has no "
        "effect; valid: none",
        label="1",
    )


def test_a_model_without_a_tokenizer_is_asked_by_ids(assemble_bare: Model) -> None:
    found = paribus.generate(assemble_bare, [15, 16, 17], tokens=3)
    assert found.results[0][0].text is None
    refused(
        assemble_bare,
        "A",
        "error[no-tokenizer] tokenizer: this model has no tokenizer: it was converted "
        "or made without one; valid: ids in place of text, or a model that was trained or adapted here",
    )


@pytest.fixture
def assemble_bare(assemble: Any, vocabulary: Vocabulary) -> Model:
    model: Model = assemble("gpt-tiny")
    assert vocabulary.size == 40
    return model


def test_a_corpus_that_is_another_by_now_does_not_stand_in_for_a_tokenizer(gpt: Model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt, "text", None)
        patch.setattr(gpt, "tokenizer", "0" * 64)
        refused(
            gpt,
            "A",
            "error[other-tokenizer] tokenizer: the corpus gives another tokenizer than that of the training, and "
            "none was saved; valid: the corpus of the training",
        )
