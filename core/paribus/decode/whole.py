"""A text as a model reads it that goes on from nothing: whole, and with the marks that it was trained with."""

from __future__ import annotations

from paribus.decode.asking import Given, check_room, ids_of, text_needed
from paribus.registry import Registry
from paribus.train.model import Model


def whole(model: Model, text: Given, registry: Registry | None = None, *, joined: int | None = None) -> list[int]:
    """The ids of a text, between the marks of one segment where the model was trained on such.

    Where words carry the space before them, the one before a `joined` token, which stands for a word, is its own.
    """
    if isinstance(text, str) and joined is not None:
        text = _joined(model, text, joined, registry)
    (ids,) = ids_of(model, [text], registry)
    if isinstance(text, str) and any(model.objective(name).traits.get("segments") for name in model.trained):
        specials = text_needed(model, registry).vocabulary.specials
        marks = [specials.get(name) for name in ("cls", "sep")]
        ids = [token for token in (marks[0], *ids, marks[1]) if token is not None]
    check_room(model, ids)
    return ids


def _joined(model: Model, text: str, token: int, registry: Registry | None) -> str:
    reads = text_needed(model, registry)
    shown = reads.decode([token])
    return text.replace(f" {shown}", shown) if len(reads.encode(" a")) == 1 else text
