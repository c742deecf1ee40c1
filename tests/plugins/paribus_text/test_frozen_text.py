"""Frozen text of CPython: the package's data, and the documents that every Python reads from it."""

import hashlib
import json
import sys

import pytest

from paribus import Split
from paribus_text.frozen_text import FOLDER, read_frozen_text
from paribus_text.python_docs import PythonDocs

DOCUMENTS = {  # digests of the names and sentences of each split, which Python 3.11.2, 3.11.7, 3.12 and 3.13 agree on
    (False, "train"): "a7ba138938dec9e26fc218428a1c3b085eab26c11415f5d3a22db7923fd6515d",
    (False, "val"): "5612ced05f2040cd9dc3940ce52777e67b865af6b9ef9e60e4682e309f7616d5",
    (True, "train"): "e16c6961d50f469fdf0abc5fd65a2f3e78c34633698f5c33d6105a79087968b7",
    (True, "val"): "fdcdab946863975cac18ce00b0fc49d1ad68536a90859193046f4d7cb992fb79",
}


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("topics", 79, "c3591dfe9e80b9699a432f2b5ffa1e87335aac86f33703e5aa652b097c62c3fb"),
        ("docstrings", 506, "3beb7ef5c2ec65d9d74643b07d0fb5fa37f4d3cb416ddb676f7ffa40a2d8401a"),
    ],
)
def test_the_text_in_the_package_has_its_digest(name: str, count: int, expected: str) -> None:
    texts = read_frozen_text(name)
    digest = hashlib.sha256(json.dumps(sorted(texts.items())).encode()).hexdigest()
    assert (len(texts), digest) == (count, expected)


@pytest.mark.parametrize("docstrings", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_documents_do_not_depend_on_the_python_that_reads_them(
    docstrings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data", None)  # an import fails
    corpus = PythonDocs(docstrings=docstrings)
    splits: tuple[Split, ...] = ("train", "val")
    for split in splits:
        documents = [[document.name, *document.sentences] for document in corpus.documents(split)]
        assert hashlib.sha256(json.dumps(documents).encode()).hexdigest() == DOCUMENTS[docstrings, split]


def test_the_text_has_its_licence_beside_it() -> None:
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (FOLDER / "LICENSE.txt").read_text(encoding="utf-8")
    notices = (FOLDER / "NOTICES.txt").read_text(encoding="utf-8")
    assert all(
        author in notices for author in ("Sam Rushing", "Timothy O'Malley", "Fredrik Lundh", "Lance Ellinghouse")
    )
