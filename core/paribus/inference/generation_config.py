"""How a text is written: what may be said of that, and what is refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.errors import Problem, SpecError


@final
@dataclass(frozen=True)
class GenerationConfig:
    """Without any of it the most probable token is taken, each time."""

    tokens: int | None = None  # at most so many are written; None: until the model's length is full
    temperature: float = 0.0  # scores are divided by it, and a token is drawn; 0: the most probable one is taken
    top_k: int | None = None  # of the so many most probable
    top_p: float | None = None  # of the fewest that are as probable as this together
    min_p: float | None = None  # of those that are at least this probable, as a share of what the most probable is
    repetition_penalty: float = 1.0  # CTRL: 1.2
    beam: int = 1
    length_penalty: float = 0.0
    n: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [*_outside(self), *_unread(self)]
        if problems:
            raise SpecError(*problems)

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    def penalty(self, length: int) -> float:
        """What a score of so many tokens is divided by: ((5 + length) / 6) ^ length_penalty, "Google's Neural Machine
        Translation System" (Wu et al. 2016), equation 14."""
        return float(((5 + length) / 6) ** self.length_penalty)


_LIMITS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "tokens": (lambda value: value >= 1, "≥ 1"),
    "temperature": (lambda value: value >= 0, "≥ 0; 0 takes the most probable token"),
    "top_k": (lambda value: value >= 1, "≥ 1"),
    "top_p": (lambda value: 0 < value <= 1, "above 0, up to 1"),
    "min_p": (lambda value: 0 <= value <= 1, "0 to 1"),
    "repetition_penalty": (lambda value: value > 0, "above 0; 1 changes nothing"),
    "beam": (lambda value: value >= 1, "≥ 1; 1 takes the most probable token"),
    "length_penalty": (lambda value: value >= 0, "≥ 0; 0 is a sum of logarithms"),
    "n": (lambda value: value >= 1, "≥ 1"),
}
_CUTS: Final = ("top_k", "top_p", "min_p")


def _outside(manner: GenerationConfig) -> Iterator[Problem]:
    """What no number may be."""
    for name, (holds, valid) in _LIMITS.items():
        value = getattr(manner, name)
        if value is not None and not (math.isfinite(value) and holds(value)):
            yield Problem(code="out-of-range", path=name, message=f"it is {value}", valid=valid)


def _unread(manner: GenerationConfig) -> Iterator[Problem]:
    """What would be ignored in silence."""
    if not manner.draws:
        for name in _CUTS:
            if getattr(manner, name) is not None:
                what = "it says which tokens may be drawn, and none is drawn at a temperature of 0"
                yield Problem(code="unread", path=name, message=what, valid="a temperature above 0")
    if manner.beam > 1 and manner.draws:
        what = f"a beam of {manner.beam} keeps the most probable, and nothing is drawn, so a temperature has no meaning"
        yield Problem(code="unread", path="temperature", message=what, valid="0, or a beam of 1")
    if manner.beam == 1 and manner.length_penalty:
        what = "it compares the hypotheses of a beam, and there is one"
        yield Problem(code="unread", path="length_penalty", message=what, valid="a beam of at least 2")
    if manner.n > 1 and not manner.draws and manner.n > manner.beam:
        what = f"{manner.n} texts are asked for, and a beam of {manner.beam} keeps no more than it is wide"
        yield Problem(code="too-many", path="n", message=what, valid="as many as `beam`, or a temperature above 0")
