"""Saved tokenizers: a saved model can be used without its training corpus."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import DataError, StoreError
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.atomic import read_json, write_json
from paribus.storage.saved_model import MODEL, RECORD, TEXT, WEIGHTS
from paribus.train.trial import TrialContext, run_trial

SENTENCE = "The 7th paragraph says nothing."


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    place.write_text("\n\n".join(f"The {number}th paragraph says {number * number} words." for number in range(99)))
    return place


@pytest.fixture(scope="module")
def trained(corpus: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished trial whose corpus no longer exists and whose tokenizer was trained on it."""
    folder = tmp_path_factory.mktemp("trial")
    spec = resolved(
        {
            "preset": "gpt-tiny",
            "dims": {"width": 12, "layers": 1, "heads": 3, "length": 8, "vocabulary": 320},
            "tokenizer": "bpe",
            "corpus": {"name": "text", "path": [str(corpus)], "documents": "paragraph"},
            "data": {"batch": 4, "validation": 8},
            "trainer": {"max_steps": 1},
        },
        registry=registry,
    )
    run_trial(spec, registry, TrialContext("trial", folder))
    corpus.rename(corpus.with_suffix(".gone"))
    return folder


@pytest.fixture
def trial(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the trial that a test may damage."""
    for name in (RECORD, WEIGHTS, TEXT):
        shutil.copy(trained / name, tmp_path / name)
    return tmp_path


def test_a_trial_encodes_and_decodes_text_without_its_corpus(trial: Path) -> None:
    model = paribus.load(trial)
    assert model.text is not None
    ids = model.text.encode(SENTENCE)
    assert len(ids) < len(SENTENCE)
    assert model.text.decode(ids) == SENTENCE
    assert model.text.fingerprint == model.tokenizer != ""
    assert model.text.vocabulary.size <= 320


def test_a_saved_copy_has_the_tokenizer(trial: Path, tmp_path: Path) -> None:
    model = paribus.load(trial)
    paribus.save(model, tmp_path / "again")
    codec = paribus.load(tmp_path / "again").text
    assert codec is not None
    assert model.text is not None
    assert codec.encode(SENTENCE) == model.text.encode(SENTENCE)
    assert (tmp_path / "again" / TEXT).read_bytes() == (trial / TEXT).read_bytes()


def test_saving_a_model_without_a_tokenizer_removes_an_older_one(trial: Path, tmp_path: Path) -> None:
    model = paribus.load(trial)
    paribus.save(model, tmp_path / "again")
    model.text = None
    paribus.save(model, tmp_path / "again")
    assert not (tmp_path / "again" / TEXT).exists()


def test_a_trial_without_a_saved_tokenizer_reads_its_corpus(corpus: Path, trial: Path) -> None:
    whole = paribus.load(trial).text
    (trial / TEXT).unlink()
    with raises_problem(DataError, "missing-file", "corpus.txt"):
        paribus.load(trial)
    corpus.with_suffix(".gone").rename(corpus)
    try:
        codec = paribus.load(trial).text
    finally:
        corpus.rename(corpus.with_suffix(".gone"))
    assert codec is not None
    assert whole is not None
    assert codec.encode(SENTENCE) == whole.encode(SENTENCE)


def test_a_saved_model_without_a_tokenizer_loads(trial: Path, tmp_path: Path) -> None:
    place = tmp_path / "older"
    paribus.save(paribus.load(trial), place)
    (place / TEXT).unlink()
    model = paribus.load(place)
    assert model.text is None
    assert model.tokenizer != ""


@pytest.mark.thorough
def test_a_damaged_or_foreign_tokenizer_is_rejected(trial: Path, tmp_path: Path) -> None:
    model = paribus.load(trial)
    place = tmp_path / "again"
    paribus.save(model, place)
    original = (place / TEXT).read_text()
    (place / TEXT).write_text(original.replace("A", "B", 1))
    with raises_problem(StoreError, "damaged", "text.json"):
        paribus.load(place)
    write_json(place / TEXT, {"tokenizer": "no state", "languages": [], "classes": []})
    with raises_problem(StoreError, "damaged", "text.json"):
        paribus.load(place)
    (place / TEXT).write_text(original)
    document = read_json(place / MODEL)
    write_json(place / MODEL, {**document, "tokenizer": "0" * 64})
    with raises_problem(StoreError, "other-tokenizer", "text.json"):
        paribus.load(place)


def test_special_tokens_are_parsed_by_their_names(trial: Path) -> None:
    text = paribus.load(trial).text
    assert text is not None
    mask, sentinel = text.vocabulary.specials["mask"], text.vocabulary.sentinels[0]
    assert text.read("The <mask> says <sentinel 0><x>") == [
        *text.encode("The "), mask, *text.encode(" says "), sentinel, *text.encode("<x>")
    ]  # fmt: skip
    assert mask not in text.encode("The <mask> says")


def test_a_special_token_without_text_is_never_parsed(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = paribus.load(trial).text
    assert text is not None
    ids = text.encode("The 7th")
    monkeypatch.setattr(type(text.tokenizer), "decode", lambda self, ids: "")
    assert text.named == {}
    assert text.read("The 7th") == ids


def test_languages_and_classes_are_saved_in_order(trial: Path, tmp_path: Path) -> None:
    model = paribus.load(trial)
    assert model.text is not None
    model.text = TextCodec(model.text.tokenizer, ("de", "en"), ("yes", "no"))
    paribus.save(model, tmp_path / "two")
    codec = paribus.load(tmp_path / "two").text
    assert codec is not None
    assert (codec.languages, codec.classes) == (("de", "en"), ("yes", "no"))
