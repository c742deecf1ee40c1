"""`from:` in a spec: a saved model that is there, is whole, reads the same tokens, and is the one that was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.durable import read_json, write_json
from paribus.errors import SpecError
from paribus.registry import Index, index
from paribus.saved import MODEL, WEIGHTS, saved
from paribus.specs import resolved

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
    assert found["from"] == {"name": str(gpt), "sha256": saved(gpt).sha256}
    assert resolved(found, registry=known) == found
    assert "from" not in resolved(found, "from=null", registry=known)
    assert "from" not in resolved(*TINY, registry=known)


def test_a_spec_is_of_the_model_that_was_there(gpt: Path, known: Index) -> None:
    found = resolved(*TINY, f"from={gpt}", registry=known)
    paribus.save(paribus.assemble(paribus.spec(*TINY, "seed=1")), gpt)
    with pytest.raises(SpecError, match=r"holds another model than when this spec was resolved: .*valid: from="):
        resolved(found, registry=known)
    assert resolved(found, f"from={{name: {gpt}, sha256: {saved(gpt).sha256}}}", registry=known) != found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", r"error\[wrong-type\] from .*expected the folder of a saved model, but this is the number 3"),
        ("{sha256: 0}", "expected the folder of a saved model, but this is a mapping"),
        (
            "nowhere/at/all",
            r"error\[no-record\] from .*`nowhere/at/all`: there is no such folder; valid",
        ),
    ],
)
def test_what_is_no_saved_model_is_told_of_with_all_else(known: Index, value: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        resolved(*TINY, f"from={value}", "dropout=2", registry=known)
    assert "dropout" in str(caught.value)


def test_an_unknown_key_is_told_of(gpt: Path, known: Index) -> None:
    assert "there is no `hash` here; valid: name, sha256" in told(f"from={{name: {gpt}, hash: 1}}", known=known)


def test_a_damaged_model_is_told_of(gpt: Path, known: Index) -> None:
    (gpt / WEIGHTS).write_bytes((gpt / WEIGHTS).read_bytes()[:-9])
    assert "this file was cut, edited or damaged" in told(f"from={gpt}", known=known)


def test_another_tokenizer_is_refused_unless_none_is_known(gpt: Path, known: Index) -> None:
    words = (f"from={gpt}", "tokenizer=bpe", "dims.vocabulary=400")
    assert "the saved model reads the tokenizer `bytes`, and this is `bpe`" in told(*words, known=known)
    document: dict[str, Any] = read_json(gpt / MODEL)
    write_json(gpt / MODEL, {**document, "tokenizer": ""})
    assert resolved(*TINY, *words, registry=known)["tokenizer"]["name"] == "bpe"
