"""Inner width of a feed-forward, from `inner` or `expand`."""

from __future__ import annotations

EITHER = "set only one of them; leave the other at its default or null"


def inner_width(width: int, expand: float | None, default: float, inner: int | None) -> int:
    """Return `inner`, or `expand` times the width; `default` is the default of `expand`."""
    if inner is not None:
        if expand not in (None, default):
            raise ValueError(f"got both `inner` ({inner}) and `expand` ({expand:g}); {EITHER}")
        return inner
    if expand is None:
        raise ValueError(f"`inner` and `expand` are both null; set one of them, such as expand: {default:g}")
    return max(1, round(expand * width))
