"""Linear warm-up, shared by every schedule of this plugin."""

from __future__ import annotations


def warmup_steps(share: float, steps: int) -> int:
    return round(share * steps)


def warmup_factor(step: int, warmup: int) -> float:
    """Rise linearly to 1 at the last step of the warm-up; never 0, since such a step would be wasted."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
