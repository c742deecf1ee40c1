"""Inputs of predictions: texts or pairs of texts, their choices, or images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.slots.corpus import Pixels

Texts: TypeAlias = "str | Sequence[str] | Pixels | Sequence[Pixels]"
Choices = Sequence[str] | Sequence[Sequence[str]]


class Inputs(NamedTuple):
    """Texts, with what belongs to each."""

    texts: Sequence[str]  # of an image, its name
    pairs: Sequence[str] | None = None  # second texts
    choices: Sequence[tuple[str, ...]] | None = None
    images: Sequence[Pixels] | None = None


def as_inputs(texts: Texts, pairs: str | Sequence[str] | None, choices: Choices | None) -> Inputs:
    """Return the inputs of a prediction, after checking them."""
    items: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    if any(isinstance(item, np.ndarray) for item in items):
        images = _images(items)
        if pairs is not None or choices is not None:
            message = "images have no second texts and no choices"
            raise SpecError(Problem(code="unused-option", path="images", message=message, valid="images alone"))
        return Inputs([f"image {number}" for number in range(1, len(images) + 1)], images=images)
    pair_list = [pairs] if isinstance(pairs, str) else None if pairs is None else list(pairs)
    blank = [
        f"{kind} {index + 1}"
        for kind, column in (("text", items), ("pair", pair_list or ()))
        for index, text in enumerate(column)
        if not text.strip()
    ]
    if blank:
        raise DataError(Problem(code="empty-prompt", path=blank[0], message="it is empty", valid="at least one word"))
    return Inputs(items, pair_list, as_choices(choices, len(items)))


def as_choices(choices: Choices | None, count: int) -> list[tuple[str, ...]] | None:
    """Return the choices of each of `count` texts."""
    if choices is None:
        return None
    shared = [choice for choice in choices if isinstance(choice, str)]
    lists = [tuple(shared)] * count if shared or not choices else [tuple(choice) for choice in choices]
    if len(lists) != count or 0 < len(shared) < len(choices):
        message = f"expected choices for each of {count:,} texts, got {len(lists):,} lists"
        raise SpecError(Problem(code="choices", path="choices", message=message, valid="a list for all, or for each"))
    for number, names in enumerate(lists, start=1):
        if len(set(names)) < max(2, len(names)) or not all(name.strip() for name in names):
            message, valid = f"got {join_names(map(repr, names)) or 'none'}", "two or more, none empty or twice"
            raise SpecError(Problem(code="choices", path=f"text {number}", message=message, valid=valid))
    return lists


def _images(items: Sequence[Any]) -> list[Pixels]:
    """Return images as (height, width, channels), all of one shape."""
    valid = "arrays of whole numbers from 0 to 255, (height, width) or (height, width, channels), of one shape"
    images = []
    for number, item in enumerate(items, start=1):
        array = np.asarray(item)
        is_whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
        if array.ndim not in (2, 3) or not is_whole or array.min(initial=0) < 0 or array.max(initial=0) > 255:
            message = f"got an array of {array.dtype} and of the shape {array.shape}"
            raise DataError(Problem(code="not-an-image", path=f"image {number}", message=message, valid=valid))
        images.append(array.astype(np.uint8).reshape(*array.shape[:2], -1))
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        message = f"got images of the shapes {join_names(map(str, sorted(shapes)))}"
        raise DataError(Problem(code="image-size-mismatch", path="images", message=message, valid=valid))
    return images
