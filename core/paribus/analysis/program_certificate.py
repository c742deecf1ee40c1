"""Certificate of a variant of a program: what its seeds together and a second run of the baseline show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.analysis.certificates import Certificate
from paribus.analysis.trials import ComparisonSpec, Repetition, TrialEntry
from paribus.specs.program_spec import PROGRAM

Pair = tuple[TrialEntry, TrialEntry]

REPEATED: Final = "repeated"
NOT_RUN_AGAIN: Final = "not known to be repeatable: no trial was run again"


def complete_certificate(certificate: Certificate, pairs: Sequence[Pair], comparison: ComparisonSpec) -> Certificate:
    """Return the certificate of all seeds of a variant with what no single pair shows."""
    failures = [*map(seed_failure, zip(*pairs, strict=True)), _noise_failure(pairs, comparison)]
    certificate = replace(certificate, failures=(*certificate.failures, *filter(None, failures)))
    again = comparison.repetition
    if again is None:
        return replace(certificate, unrepeated=NOT_RUN_AGAIN)
    if not again.is_equal:
        return replace(certificate, unrepeated=f"not repeatable (differs by {again.deviation:.2g})")
    return replace(certificate, confirmed=(*certificate.confirmed, REPEATED))


def repetition(
    record: Mapping[str, Any], again: Mapping[str, Any], metric: str, label: str, setting: str
) -> Repetition:
    """Return how the record of a trial of a program compares with its second run."""
    first, second = record["result"], again
    is_equal = first["certificate"]["values"] == second["certificate"]["values"]
    if record["provenance"].get("machine") != again["provenance"].get("machine"):
        label = f"{label}, on another machine"
    values = [result["metrics"].get(metric) for result in (first, second)]
    deviation = 0.0 if is_equal else math.inf if None in values else abs(float(values[0]) - float(values[1]))
    return Repetition(label, setting, is_equal, deviation)


def repetition_warning(again: Repetition | None, metric: str) -> Iterator[str]:
    """Warn of a program whose values are not repeatable."""
    if again is not None and not again.is_equal:
        yield (
            f"Not repeatable: the second run of {again.label} differs by {again.deviation:.2g} in {metric}. So an "
            "option that the program does not read is not noticed, and differences include those between runs."
        )


def _noise_failure(pairs: Sequence[Pair], comparison: ComparisonSpec) -> str:
    """Return that the differences of a variant are no larger than that of a second run; or an empty string."""
    again = comparison.repetition
    values = [[entry.value(comparison.metric) for entry in pair] for pair in pairs if all(it.done for it in pair)]
    differences = [
        abs(variant - baseline) for baseline, variant in values if baseline is not None and variant is not None
    ]
    if again is None or again.is_equal or comparison.setting != again.setting:
        return ""
    if not differences or max(differences) > again.deviation:
        return ""
    return (
        f"no effect beyond noise: every difference is within that of the second run of {again.label} "
        f"({again.deviation:.2g}); does the program read the option?"
    )


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
