"""How wide a feed-forward is inside: said once for every feed-forward of this plugin."""

from __future__ import annotations

EITHER = "one of them decides; the other is to be null, or left as it is"


def inner_width(width: int, expand: float | None, usual: float, inner: int | None) -> int:
    """`inner`, or `expand` times the width; `usual` is the `expand` of who says nothing of it."""
    if inner is not None:
        if expand not in (None, usual):
            raise ValueError(f"`inner` is {inner} and `expand` is {expand:g}, but {EITHER}")
        return inner
    if expand is None:
        raise ValueError(
            f"`inner` and `expand` are both null, but one of them decides the inner width; valid: expand: {usual:g}"
        )
    return max(1, round(expand * width))
