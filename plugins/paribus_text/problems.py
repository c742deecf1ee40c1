"""Summary of problems in input files: repeated problems become one, with their number and their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from paribus import DataError, Problem

LIMIT: Final = 20  # problems in one error
REPEAT_LIMIT: Final = 3  # problems of one kind before they are summarized, and places in a summary


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise a DataError with all problems, if any; those of one code with the same valid values are summarized."""
    kinds: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.code, problem.path, problem.valid), []).append(problem)
    summary = [problem for kind in kinds.values() for problem in _summarize(kind)]
    if len(summary) > LIMIT:
        message = f"{len(summary) - LIMIT:,} more problems"
        summary[LIMIT:] = [Problem(code="more", path=summary[0].path, message=message)]
    if summary:
        raise DataError(*summary)


def _summarize(problems: Sequence[Problem]) -> Iterator[Problem]:
    if len(problems) <= REPEAT_LIMIT:
        yield from problems
        return
    first, *repeats = problems
    places = [problem.location for problem in repeats[:REPEAT_LIMIT] if problem.location]
    location = f" ({', '.join(places)}{', …' if len(repeats) > REPEAT_LIMIT else ''})" if places else ""
    message = f"{first.message}; {len(repeats):,} more like it{location}"
    yield Problem(code=first.code, path=first.path, location=first.location, message=message, valid=first.valid)
