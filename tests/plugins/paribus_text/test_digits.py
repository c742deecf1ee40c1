"""Corpus of digits, with and without scikit-learn."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, text_to_pixels
from paribus_text.digits import Digits


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fake scikit-learn with ten consecutive images and a repeated one."""
    images = np.arange(10 * 64).reshape(10, 8, 8) % 17.0
    dataset = SimpleNamespace(images=np.concatenate([images, images[:1]]), target=np.array([*range(10), 0]))
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["sklearn.datasets"], "load_digits", lambda: dataset, raising=False)
    return dataset


def test_images_are_scaled_to_all_values(library: Any) -> None:
    documents = [*Digits().documents("train"), *Digits().documents("val")]
    assert len(documents) == 10
    for number, document in enumerate(documents):
        wanted = library.images[number].reshape(-1) * 255 // 16
        assert text_to_pixels(document.text).tolist() == wanted.tolist()
        assert document.labels == (number,)


def test_the_last_images_are_held_out_and_repeated_ones_dropped(library: Any) -> None:
    assert [len(list(Digits(held_out=0.3).documents(split))) for split in ("train", "val")] == [7, 3]
    assert Digits().skipped_inputs() == {"images that repeat another": 1}
    assert Digits().fingerprint() == Digits().fingerprint() != Digits(held_out=0.3).fingerprint()


def test_a_missing_library_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with raises_problem(DataError, "not-installed", "corpus", "paribus[digits]", "shapes"):
        Digits().fingerprint()


@pytest.mark.extras
def test_the_images_are_those_of_the_library() -> None:
    pytest.importorskip("sklearn")
    documents = [*Digits().documents("train"), *Digits().documents("val")]
    assert len(documents) + sum(Digits().skipped_inputs().values()) == 1797
    assert {len(document.text) for document in documents} == {64}
