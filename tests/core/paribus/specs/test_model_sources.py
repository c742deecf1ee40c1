"""`from:` in a spec: a saved model that is there, is whole, reads the same tokens, and is the one that was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.errors import SpecError
from paribus.registry import Index, index
from paribus.specs import resolved
from paribus.storage.atomic import read_json, write_json
from paribus.storage.saved_model import MODEL, WEIGHTS, read_model

TINY = ("gpt-tiny", "dims={width: 12, heads: 3, layers: 1, length: 8}")


@pytest.fixture(scope="module")
def known() -> Index:
    return index()


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    folder = tmp_path / "gpt"
    paribus.save(paribus.assemble(paribus.spec(*TINY)), folder)
    return folder


def told(*overrides: str, known: Index) -> str:
    with pytest.raises(SpecError, match="error") as caught:
        resolved(*TINY, *overrides, registry=known)
    return str(caught.value)


def test_a_folder_becomes_its_name_and_its_hash_and_stays_so(gpt: Path, known: Index) -> None:
    found = resolved(*TINY, f"from={gpt}", "attention=mqa", registry=known)
    assert found["from"] == {"name": str(gpt), "sha256": read_model(gpt).sha256}
    assert resolved(found, registry=known) == found
    assert "from" not in resolved(found, "from=null", registry=known)
    assert "from" not in resolved(*TINY, registry=known)


def test_a_spec_is_of_the_model_that_was_there(gpt: Path, known: Index) -> None:
    found = resolved(*TINY, f"from={gpt}", registry=known)
    paribus.save(paribus.assemble(paribus.spec(*TINY, "seed=1")), gpt)
    with pytest.raises(SpecError, match=r"has changed since this spec was resolved: .*valid: from="):
        resolved(found, registry=known)
    assert resolved(found, f"from={{name: {gpt}, sha256: {read_model(gpt).sha256}}}", registry=known) != found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", r"error\[wrong-type\] from .*expected the folder of a saved model, got the number 3"),
        ("{sha256: 0}", "expected the folder of a saved model, got a mapping"),
        (
            "nowhere/at/all",
            r"error\[no-record\] from .*`nowhere/at/all`: this folder does not exist; valid",
        ),
    ],
)
def test_what_is_no_saved_model_is_told_of_with_all_else(known: Index, value: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        resolved(*TINY, f"from={value}", "dropout=2", registry=known)
    assert "dropout" in str(caught.value)


def test_an_unknown_key_is_told_of(gpt: Path, known: Index) -> None:
    assert 'unknown key "hash"; valid: name, sha256' in told(f"from={{name: {gpt}, hash: 1}}", known=known)


def test_a_damaged_model_is_told_of(gpt: Path, known: Index) -> None:
    (gpt / WEIGHTS).write_bytes((gpt / WEIGHTS).read_bytes()[:-9])
    assert "this file was cut, edited or damaged" in told(f"from={gpt}", known=known)


def test_another_tokenizer_is_refused_unless_none_is_known(gpt: Path, known: Index) -> None:
    words = (f"from={gpt}", "tokenizer=bpe", "dims.vocabulary=400")
    assert "the saved model has the tokenizer `bytes`, got `bpe`" in told(*words, known=known)
    document: dict[str, Any] = read_json(gpt / MODEL)
    write_json(gpt / MODEL, {**document, "tokenizer": ""})
    assert resolved(*TINY, *words, registry=known)["tokenizer"]["name"] == "bpe"
    write_json(gpt / MODEL, document)
    new = f"from={{name: {gpt}, vocabulary: new}}"
    found = resolved(*TINY, new, *words[1:], registry=known)
    assert found["from"] == {"name": str(gpt), "sha256": read_model(gpt).sha256, "vocabulary": "new"}
    assert "expected a word, got the text" in told(f"from={{name: {gpt}, vocabulary: old}}", known=known)
    assert 'unknown key "vocabulary"' in told(f"teacher={{name: {gpt}, vocabulary: new}}", known=known)


def test_a_teacher_of_another_width_is_refused_before_anything_is_read(gpt: Path, known: Index) -> None:
    """Where rows are held against the teacher's, and no option says how wide those are."""
    words = (f"teacher={gpt}", "objective=[clm, distill-hidden]")
    assert resolved(*TINY, *words, registry=known)["teacher"]["name"] == str(gpt)
    wider = ("dims.width=24", "dims.head_width=null")
    said = told(*words, *wider, known=known)
    assert "error[does-not-fit] objective.1.width" in said
    assert "the teacher's `dims.width` is 12, and the model's 24; valid: width: 12" in said
    brought = (f"teacher={gpt}", "objective=[clm, {name: distill-hidden, width: 12}]", *wider)
    assert resolved(*TINY, *brought, registry=known)["dims"]["width"] == 24
    wrong = told(f"teacher={gpt}", "objective={name: distill-hidden, width: 16}", known=known)
    assert "objective.width" in wrong
    assert "`dims.width` (12), got 16; valid: 12" in wrong


def test_without_a_preset_the_shape_is_that_of_the_saved_model(gpt: Path, known: Index) -> None:
    found = resolved({"from": str(gpt)}, "optimizer.lr=0.5", registry=known)
    assert (found["dims"]["width"], found["optimizer"]["lr"], found["from"]["name"]) == (12, 0.5, str(gpt))
    with pytest.raises(SpecError, match=r"^error\[no-record\] from .*: this folder does not exist; valid: [^\n]*$"):
        resolved({"from": "nowhere/at/all"}, registry=known)


def test_a_kept_vocabulary_says_of_what_it_was_learned_where_the_corpus_is_another(gpt: Path, known: Index) -> None:
    corpus = "corpus={name: text, path: [mine.txt]}"
    found = resolved(*TINY, f"from={gpt}", corpus, registry=known)
    own = resolved(*TINY, registry=known)
    learned = {"corpus": own["corpus"], "tokenizer": own["tokenizer"], "vocabulary": None}
    assert found["from"]["learned"] == learned
    assert resolved(found, registry=known) == found
    alone = resolved(*TINY, corpus, f"from={{learned: {learned}}}".replace("None", "null"), registry=known)
    assert alone["from"] == {"learned": learned}
    wrong = "from={learned: {corpus: python-docs, tokenizer: bpe, vocabulary: 0}}"
    assert "the kept vocabulary has the tokenizer `bpe`" in told(wrong, known=known)
    assert "got the number 0; valid: a number of ids, or null" in told(wrong, known=known)
    assert "expected the training data of the vocabulary" in told("from={learned: {corpus: x}}", known=known)
