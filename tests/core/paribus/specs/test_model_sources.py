"""Saved models in the `from` and `teacher` keys of a spec: folder, hash, tokenizer and width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import SpecError
from paribus.registry import Index, index
from paribus.specs import resolved
from paribus.storage.atomic import read_json, write_json
from paribus.storage.saved_model import MODEL, WEIGHTS, read_model

TINY = ("gpt-tiny", "dims={width: 12, heads: 3, layers: 1, length: 8}")


@pytest.fixture(scope="module")
def component_index() -> Index:
    return index()


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    folder = tmp_path / "gpt"
    paribus.save(paribus.assemble(paribus.spec(*TINY)), folder)
    return folder


def error_text(*overrides: str, component_index: Index) -> str:
    with pytest.raises(SpecError, match="error") as caught:
        resolved(*TINY, *overrides, registry=component_index)
    return str(caught.value)


def test_a_folder_resolves_to_its_name_and_hash(gpt: Path, component_index: Index) -> None:
    spec = resolved(*TINY, f"from={gpt}", "attention=mqa", registry=component_index)
    assert spec["from"] == {"name": str(gpt), "sha256": read_model(gpt).sha256}
    assert resolved(spec, registry=component_index) == spec
    assert "from" not in resolved(spec, "from=null", registry=component_index)
    assert "from" not in resolved(*TINY, registry=component_index)


def test_a_model_that_changed_after_resolution_is_refused(gpt: Path, component_index: Index) -> None:
    spec = resolved(*TINY, f"from={gpt}", registry=component_index)
    paribus.save(paribus.assemble(paribus.spec(*TINY, "seed=1")), gpt)
    with raises_problem(SpecError, "model-changed", "from"):
        resolved(spec, registry=component_index)
    assert resolved(spec, f"from={{name: {gpt}, sha256: {read_model(gpt).sha256}}}", registry=component_index) != spec


@pytest.mark.parametrize(
    ("value", "code", "values"),
    [
        ("3", "wrong-type", ("from", "3")),
        ("{sha256: 0}", "wrong-type", ("from", "a mapping")),
        (
            "nowhere/at/all",
            "missing-record",
            ("from", "nowhere/at/all"),
        ),
    ],
)
def test_an_invalid_saved_model_is_reported_with_all_other_mistakes(
    component_index: Index, value: str, code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values) as caught:
        resolved(*TINY, f"from={value}", "dropout=2", registry=component_index)
    assert "dropout" in str(caught.value)


def test_an_unknown_key_is_refused(gpt: Path, component_index: Index) -> None:
    assert 'unknown key "hash"; valid: name, sha256' in error_text(
        f"from={{name: {gpt}, hash: 1}}", component_index=component_index
    )


def test_a_damaged_model_is_refused(gpt: Path, component_index: Index) -> None:
    (gpt / WEIGHTS).write_bytes((gpt / WEIGHTS).read_bytes()[:-9])
    assert "this file was cut, edited or damaged" in error_text(f"from={gpt}", component_index=component_index)


def test_another_or_an_unknown_tokenizer_is_refused(gpt: Path, component_index: Index) -> None:
    overrides = (f"from={gpt}", "tokenizer=bpe", "dims.vocabulary=400")
    assert "the saved model has the tokenizer `bytes`, got `bpe`" in error_text(
        *overrides, component_index=component_index
    )
    document: dict[str, Any] = read_json(gpt / MODEL)
    write_json(gpt / MODEL, {**document, "tokenizer": ""})
    assert "error[unknown-tokenizer] from" in error_text(*overrides, component_index=component_index)
    unchecked = f"from={{name: {gpt}, vocabulary: unchecked}}"
    assert resolved(*TINY, unchecked, *overrides[1:], registry=component_index)["tokenizer"]["name"] == "bpe"
    write_json(gpt / MODEL, document)
    new_vocabulary = f"from={{name: {gpt}, vocabulary: new}}"
    spec = resolved(*TINY, new_vocabulary, *overrides[1:], registry=component_index)
    assert spec["from"] == {"name": str(gpt), "sha256": read_model(gpt).sha256, "vocabulary": "new"}
    assert "expected a word, got the text" in error_text(
        f"from={{name: {gpt}, vocabulary: old}}", component_index=component_index
    )
    assert "valid: kept, unchecked" in error_text(
        f"teacher={{name: {gpt}, vocabulary: new}}", component_index=component_index
    )


def test_a_teacher_of_another_width_is_refused(gpt: Path, component_index: Index) -> None:
    """Hidden states are compared with those of the teacher, and no option gives their width."""
    overrides = (f"teacher={gpt}", "objective=[clm, distill-hidden]")
    assert resolved(*TINY, *overrides, registry=component_index)["teacher"]["name"] == str(gpt)
    wider = ("dims.width=24", "dims.head_width=null")
    message = error_text(*overrides, *wider, component_index=component_index)
    assert "error[does-not-fit] objective.1.width" in message
    assert "the teacher's `dims.width` is 12, and the model's 24; valid: width: 12" in message
    explicit = (f"teacher={gpt}", "objective=[clm, {name: distill-hidden, width: 12}]", *wider)
    assert resolved(*TINY, *explicit, registry=component_index)["dims"]["width"] == 24
    mismatch_message = error_text(
        f"teacher={gpt}", "objective={name: distill-hidden, width: 16}", component_index=component_index
    )
    assert "objective.width" in mismatch_message
    assert "`dims.width` (12), got 16; valid: 12" in mismatch_message


def test_without_a_preset_the_sizes_are_those_of_the_saved_model(gpt: Path, component_index: Index) -> None:
    spec = resolved({"from": str(gpt)}, "optimizer.lr=0.5", registry=component_index)
    assert (spec["dims"]["width"], spec["optimizer"]["lr"], spec["from"]["name"]) == (12, 0.5, str(gpt))
    with raises_problem(SpecError, "missing-record", "from", "nowhere/at/all") as caught:
        resolved({"from": "nowhere/at/all"}, registry=component_index)
    assert len(caught.value.problems) == 1


def test_a_reused_vocabulary_records_the_data_it_was_learned_from(gpt: Path, component_index: Index) -> None:
    corpus = "corpus={name: text, path: [mine.txt]}"
    spec = resolved(*TINY, f"from={gpt}", corpus, registry=component_index)
    base_spec = resolved(*TINY, registry=component_index)
    learned = {"corpus": base_spec["corpus"], "tokenizer": base_spec["tokenizer"], "vocabulary": None}
    assert spec["from"]["learned"] == learned
    assert resolved(spec, registry=component_index) == spec
    alone = resolved(*TINY, corpus, f"from={{learned: {learned}}}".replace("None", "null"), registry=component_index)
    assert alone["from"] == {"learned": learned}
    wrong = "from={learned: {corpus: python-docs, tokenizer: bpe, vocabulary: 0}}"
    assert "the kept vocabulary has the tokenizer `bpe`" in error_text(wrong, component_index=component_index)
    assert "got the number 0; valid: a number of ids, or null" in error_text(wrong, component_index=component_index)
    assert "expected the training data of the vocabulary" in error_text(
        "from={learned: {corpus: x}}", component_index=component_index
    )
