"""Corpus of shapes: images, classes and random draws."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from paribus import Document, text_to_pixels
from paribus_text.shapes import SHAPES, Shapes

TINY = {"image": 12, "channels": 1, "images": 16, "held_out": 8}


def pixels(document: Document, side: int, channels: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return text_to_pixels(document.text).reshape(side, side, channels)


def label(document: Document) -> int:
    (number,) = document.labels
    return int(number)


def test_every_class_has_equally_many_images() -> None:
    for classes in (2, 5, len(SHAPES)):
        documents = list(Shapes(**TINY | {"images": 40}, classes=classes).documents("train"))
        counts = Counter(map(label, documents))
        assert set(counts) == set(range(classes))
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(document.name.endswith(f"a {list(SHAPES)[label(document)]}") for document in documents)


def test_an_image_depends_only_on_seed_split_and_number() -> None:
    few, many = Shapes(**TINY), Shapes(**TINY | {"images": 30, "held_out": 9})
    assert list(many.documents("train"))[:16] == list(few.documents("train"))
    assert list(many.documents("val"))[:8] == list(few.documents("val"))
    other_seed = Shapes(**TINY, seed=1)
    texts = [{it.text for it in corpus.documents(split)} for corpus in (few, other_seed) for split in ("train", "val")]
    assert len(set.union(*texts)) == sum(map(len, texts)) == 2 * (16 + 8)


def test_images_are_the_same_on_every_machine() -> None:
    """A fixed digest: records of studies depend on the exact images."""
    texts = "".join(document.text for document in Shapes(**TINY, classes=8).documents("train"))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "0801746eaff702e5"


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_lies_within_its_image_and_differs_from_the_background(name: str) -> None:
    kind = list(SHAPES).index(name)
    corpus = Shapes(image=20, channels=3, classes=len(SHAPES), images=40, noise=0)
    for document in list(corpus.documents("train"))[kind :: len(SHAPES)]:
        image = pixels(document, 20, 3)
        border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        ground = np.median(border, axis=0)
        inside = (image != ground).any(-1)
        assert 20 <= inside.sum() <= 250
        assert len(np.unique(image.reshape(-1, 3), axis=0)) == 2
        assert (abs(image[inside][0] - ground) >= 255 - 2 * 79).all()


def test_noise_is_limited_by_its_option() -> None:
    plain, noisy = (list(Shapes(**TINY, noise=noise).documents("train")) for noise in (0, 9))
    moves = np.concatenate([text_to_pixels(b.text) - text_to_pixels(a.text) for a, b in zip(plain, noisy, strict=True)])
    visible = np.concatenate([(text_to_pixels(a.text) > 9) & (text_to_pixels(a.text) < 246) for a in plain])
    assert set(moves[visible].tolist()) == set(range(-9, 10))
    assert abs(moves[visible].mean()) < 0.5


def test_light_and_dark_shapes_are_equally_frequent() -> None:
    corpus = Shapes(**TINY | {"images": 400}, noise=0)
    lights = [pixels(document, 12, 1)[0, 0, 0] < 128 for document in corpus.documents("train")]
    assert 150 < sum(lights) < 250
