"""Corpus of Python's documentation."""

import subprocess
import sys

import pytest

from paribus import Document
from paribus_text import reference
from paribus_text.python_docs import PythonDocs

CORPUS = PythonDocs()
TRAIN, VAL = list(CORPUS.documents("train")), list(CORPUS.documents("val"))


def words(documents: list[Document]) -> int:
    return sum(len(document.text.split()) for document in documents)


def test_every_document_lies_in_exactly_one_split() -> None:
    names = [document.name for document in TRAIN + VAL]
    assert len(set(names)) == len(names) > 60
    assert [document.name for document in TRAIN] == sorted(document.name for document in TRAIN)


def test_a_tenth_of_the_text_is_held_out() -> None:
    assert 0.08 < words(VAL) / (words(TRAIN) + words(VAL)) < 0.12
    assert words(TRAIN) > 40_000


def test_the_held_out_share_follows_the_option() -> None:
    corpus = PythonDocs(held_out=0.3)
    share = words(list(corpus.documents("val"))) / (words(TRAIN) + words(VAL))
    assert 0.27 < share < 0.33
    assert corpus.fingerprint() != CORPUS.fingerprint()


def test_no_long_paragraph_is_in_both_splits() -> None:
    # The reference repeats whole sections: naively, a sixth of the text is there twice.
    seen = {sentence for document in TRAIN for sentence in document.sentences if len(sentence) >= 200}
    assert [sentence for document in VAL for sentence in document.sentences if sentence in seen] == []
    assert next(iter(CORPUS.skipped_inputs().values())) > 0


def test_prose_is_unwrapped_and_code_keeps_its_lines() -> None:
    result = next(document for document in TRAIN + VAL if document.name == "while").sentences
    assert result[0] == 'The "while" statement'
    assert any("repeatedly tests the expression and" in sentence for sentence in result)
    assert any(sentence.startswith("while_stmt") and "\n" in sentence for sentence in result)
    assert not any("***" in sentence for sentence in result)


def test_torch_and_tokenizers_are_not_imported() -> None:
    code = (
        "import sys, paribus_text; list(paribus_text.corpus()['python-docs']().documents('train'));"
        "paribus_text.tokenizer(); print(sorted({'torch', 'tokenizers', 'lightning'} & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"


def test_docstrings_are_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"module {letter}": f"About the module {letter}. It does nothing." for letter in "ab"}
    texts |= {f"module of_{letter}": "As another has it." for letter in "ab"}
    monkeypatch.setattr(reference, "read_frozen_text", {"topics": {}, "docstrings": texts}.__getitem__)
    corpus = PythonDocs(docstrings=True)
    result = {document.name: document for document in [*corpus.documents("train"), *corpus.documents("val")]}
    assert {"module a", "module b"} < set(result)
    assert len({"module of_a", "module of_b"} & set(result)) == 1  # the same text twice would be in both splits
    assert result["module a"].sentences == ("About the module a.", "It does nothing.")
