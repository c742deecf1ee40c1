"""Findings on two trials of a program: what the files, the command and the values of the metric show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from paribus.analysis.trial_pair import Finding, TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.program.input_files import input_names
from paribus.specs.program_spec import PROGRAM

UNWITNESSED: Final = ("initial weights", "batches", "tokens", "targets")
"""What makes a comparison fair, and what a program does not show by itself."""


def program_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield what the records of two trials of a program show."""
    baseline, variant = pair
    metric = variant.spec[PROGRAM]["metric"]["name"]
    if baseline.done and variant.done and pair.equal("values"):
        keys = join_names(f"`{key}`" for key in sorted(pair.varied))
        yield (
            "failure",
            f"no effect: every value of {metric} is the baseline's; does the program read {keys}?",
        )
    names = input_names(variant.certificate["inputs"])
    if pair.equal("inputs") and names:
        yield "confirmed", f"same files ({join_names(names)})"
    programs = [str(entry.provenance.get("executable")) for entry in pair]
    if programs[0] != programs[1]:
        yield "failure", f"another program: {programs[0]} in the baseline, and {programs[1]}"
    commits = [(entry.provenance.get("source") or {}).get("commit") for entry in pair]
    if commits[0] != commits[1]:
        yield "side effect", "the two trials ran at different commits"
    if baseline.done and variant.done and pair.steps[0] != pair.steps[1]:
        yield "side effect", f"measured at step {pair.steps[0]:,} in the baseline, and {pair.steps[1]:,}"


def seed_failure(entries: Sequence[TrialEntry]) -> str:
    """Return why the seeds of a variant of a program are no replicates: all have equal values; or an empty string."""
    done = [entry for entry in entries if entry.done]
    values = {entry.certificate["values"] for entry in done}
    if len(done) < 2 or len(values) > 1:
        return ""
    option = done[0].spec[PROGRAM]["seed_option"]
    return (
        f"the seed has no effect: all {len(done)} seeds of {done[0].variant} have equal values; does the program read "
        f"`{option}`?"
    )
