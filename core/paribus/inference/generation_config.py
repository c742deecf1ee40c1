"""Options of text generation, validated before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.errors import Problem, SpecError, join_names


@final
@dataclass(frozen=True)
class GenerationConfig:
    """Options of text generation; the default is greedy decoding."""

    tokens: int | None = None  # maximum number of new tokens; None: up to the model's sequence length
    temperature: float = 0.0  # 0: greedy
    top_k: int | None = None  # sample from the k most probable tokens
    top_p: float | None = None  # sample from the fewest tokens with this total probability
    min_p: float | None = None  # minimum probability relative to the most probable token
    repetition_penalty: float = 1.0  # CTRL: 1.2
    beam: int = 1
    length_penalty: float = 0.0
    n: int = 1
    seed: int = 0
    steps: int | None = None  # of a model that fills masks; None: as many as new tokens
    remasking: str | None = None  # of such a model; None: `random` with a temperature, else `low-confidence`

    def __post_init__(self) -> None:
        problems = [*_outside(self), *_unread(self)]
        if problems:
            raise SpecError(*problems)

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    @property
    def fills_the_surest(self) -> bool:
        """Whether a model that fills masks keeps its most probable tokens in each step, in place of random ones."""
        return (self.remasking or ("random" if self.draws else "low-confidence")) == "low-confidence"

    def penalty(self, length: int) -> float:
        """Return the divisor of a score, ((5 + length) / 6) ^ length_penalty (Wu et al. 2016, eq. 14)."""
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
    "steps": (lambda value: value >= 1, "≥ 1"),
}
REMASKING: Final = ("random", "low-confidence")
_CUTS: Final = ("top_k", "top_p", "min_p")


def _outside(config: GenerationConfig) -> Iterator[Problem]:
    """Yield options outside of their limits."""
    for name, (is_valid, valid) in _LIMITS.items():
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and is_valid(value)):
            yield Problem(code="out-of-range", path=name, message=f"got {value}", valid=valid)
    if config.remasking is not None and config.remasking not in REMASKING:
        yield Problem(
            code="out-of-range", path="remasking", message=f"got {config.remasking!r}", valid=join_names(REMASKING)
        )


def _unread(config: GenerationConfig) -> Iterator[Problem]:
    """Yield options that would have no effect."""
    if not config.draws:
        for name in _CUTS:
            if getattr(config, name) is not None:
                message = "it has no effect at temperature 0"
                yield Problem(code="unused-option", path=name, message=message, valid="a temperature above 0")
    if config.beam > 1 and config.draws:
        message = "beam search does not sample, so a temperature has no effect"
        yield Problem(code="unused-option", path="temperature", message=message, valid="0, or a beam of 1")
    if config.beam == 1 and config.length_penalty:
        message = "it has no effect without beam search"
        yield Problem(code="unused-option", path="length_penalty", message=message, valid="a beam of at least 2")
    if config.n > 1 and not config.draws and config.n > config.beam:
        message = f"expected at most {config.beam} texts from a beam of {config.beam}, got {config.n}"
        yield Problem(code="too-many", path="n", message=message, valid="as many as `beam`, or a temperature above 0")


def check_order_options(config: GenerationConfig, *, fills_masks: bool) -> None:
    """Raise an error for options without effect: those of beam search where masks are filled, and the reverse."""
    if fills_masks:
        given = [
            name for name, default in (("beam", 1), ("repetition_penalty", 1.0)) if getattr(config, name) != default
        ]
        message, valid = "it has no effect on a model that fills masks in any order", "a model such as one of clm"
    else:
        given = [name for name in ("steps", "remasking") if getattr(config, name) is not None]
        message, valid = "it has no effect on a model that writes from left to right", "a model of masked-diffusion"
    if given:
        raise SpecError(*(Problem(code="unused-option", path=name, message=message, valid=valid) for name in given))
