"""The warm-up that every schedule of this plugin begins with."""

from __future__ import annotations


def warmup_steps(share: float, steps: int) -> int:
    return round(share * steps)


def warmed(step: int, warmup: int) -> float:
    """Rises evenly to 1 at the last step of the warm-up; never 0, since a step that moves nothing is lost."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
