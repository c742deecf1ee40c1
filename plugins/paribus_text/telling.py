"""What was wrong with what was read: a mistake that every row makes is told once, with how many and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from paribus import DataError, Problem

MOST: Final = 20  # problems told one by one
FEW: Final = 3  # of one kind that are, and of one told together whose places are


def check(problems: Iterable[Problem]) -> None:
    """Raises them, if there are any: alike are those of one code for which the same would do."""
    kinds: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.code, problem.path, problem.valid), []).append(problem)
    told = [each for alike in kinds.values() for each in _told(alike)]
    if len(told) > MOST:
        what = f"{len(told) - MOST:,} more problems like these"
        told[MOST:] = [Problem(code="more", path=told[0].path, message=what)]
    if told:
        raise DataError(*told)


def _told(alike: Sequence[Problem]) -> Iterator[Problem]:
    if len(alike) <= FEW:
        yield from alike
        return
    first, *others = alike
    places = [each.location for each in others[:FEW] if each.location]
    where = f" ({', '.join(places)}{', …' if len(others) > FEW else ''})" if places else ""
    what = f"{first.message}, and there are {len(others):,} more like it{where}"
    yield Problem(code=first.code, path=first.path, location=first.location, message=what, valid=first.valid)
