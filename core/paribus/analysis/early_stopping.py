"""A study that stops early, from its records: where each variant stands, and which trials are needed yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from paribus.analysis.formatting import plural
from paribus.analysis.pairing import Held, held_of, paired_of
from paribus.analysis.select_trials import ENDED, Chosen
from paribus.analysis.sequential import Seen, Turn, decide_in_turn
from paribus.analysis.trials import Entry, Question
from paribus.analysis.verdicts import Verdict
from paribus.errors import listed

MOST = 8


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """What of a study one row is made of: the trials that are needed, of the seeds that are, and what they say."""

    trials: Chosen
    question: Question
    held: Held
    verdict: Verdict | None = None  # None where none was told by looks


def parts_of(trials: Chosen, question: Question, turns: Mapping[str, Turn]) -> Mapping[str, Part]:
    """The row of each variant: of all seeds, or, of a study that stops early, of those of its last look."""
    if not turns:
        held = {name: held_of(trials, name, question) for name in question.others}
        return {name: Part(trials=trials, question=question, held=each) for name, each in held.items()}
    found = {}
    for name, turn in turns.items():
        seen, at = first_of(trials, question, turn.n)
        part, asked = first_of(trials, question, turn.upto)
        found[name] = Part(trials=part, question=asked, held=held_of(seen, name, at), verdict=turn.verdict)
    return found


def turns_of(asked: Sequence[tuple[Chosen, Question]]) -> list[Mapping[str, Turn]]:
    """Where each variant of each setting stands, all of which are one family.

    It depends on the order of seeds alone, and on nothing that ran beyond a look.
    """

    def see(which: tuple[int, str], n: int) -> Seen:
        (trials, question), name = asked[which[0]], which[1]
        part, at = first_of(trials, question, n)
        held = held_of(part, name, at)
        sides = [part[side].get(seed) for side in (question.baseline, name) for seed in at.seeds]
        return Seen(
            paired=paired_of(part, name, held, at),
            ended=all(entry is not None and _ended(entry) for entry in sides),
            whole=all(entry is not None and entry.record is not None for entry in sides),
            withheld=bool(held.reason),
        )

    first = asked[0][1]
    found = decide_in_turn(
        [(place, name) for place, (_, question) in enumerate(asked) for name in question.others],
        see,
        looks=first.stops,
        better=first.better,
        margin=first.margin,
        alpha=first.alpha,
    )
    return [{name: found[place, name] for name in question.others} for place, (_, question) in enumerate(asked)]


def _ended(entry: Entry) -> bool:
    return entry.record is not None or entry.state in ENDED


def first_of(trials: Chosen, question: Question, n: int) -> tuple[Chosen, Question]:
    """The trials of the first `n` seeds, and the question of them alone."""
    seeds = question.seeds[:n]
    kept = frozenset(seeds)
    part = {name: {seed: entry for seed, entry in own.items() if seed in kept} for name, own in trials.items()}
    return part, replace(question, seeds=seeds)


def seeds_needed(turns: Mapping[str, Turn], question: Question) -> dict[str, int]:
    """How many seeds of each variant are needed by now; of the baseline as many as of any."""
    found = {name: turn.upto for name, turn in turns.items()}
    return {question.baseline: max(found.values(), default=len(question.seeds)), **found}


def needed(entry: Entry, counts: Mapping[str, int], question: Question) -> bool:
    """Whether a look has asked for a trial."""
    return entry.seed in question.seeds[: counts.get(entry.variant, len(question.seeds))]


def not_needed(counts: Mapping[str, int], question: Question) -> Iterator[str]:
    """What is said of the trials that did not have to run."""
    total = len(question.seeds)
    saved = {name: total - count for name, count in counts.items() if count < total}
    if saved:
        trials = plural(sum(saved.values()), "trial")
        own = listed((f"{name} after {counts[name]} seeds" for name in saved), MOST)
        yield f"Not needed{' here' if question.setting else ''}: {trials} of {total * len(counts)} ({own})"
