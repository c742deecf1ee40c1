"""Certificate of a variant of a program: what its seeds together and a second run of the baseline show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.analysis.certificates import MAX_SEEDS, Certificate, merge_certificates
from paribus.analysis.program_findings import NO_EFFECT
from paribus.analysis.trial_pair import TrialPair
from paribus.analysis.trials import ComparisonSpec, Repetition, TrialEntry
from paribus.errors import join_names
from paribus.specs.program_spec import EFFECTS, PROGRAM

Pair = tuple[TrialEntry, TrialEntry]

REPEATED: Final = "repeated"
NOT_RUN_AGAIN: Final = "not known to be repeatable: no trial was run again"


def complete_certificate(
    certificates: Sequence[Certificate], pairs: Sequence[Pair], comparison: ComparisonSpec
) -> Certificate:
    """Return the certificate of all seeds of a variant with what no single pair shows."""
    again = comparison.repetition
    if again is not None and again.is_equal:
        certificates = _with_effect(certificates, pairs)
    certificate, trials = merge_certificates(certificates), [TrialPair(*pair) for pair in pairs]
    failures = [
        *_seed_effects(certificates, trials),
        *map(seed_failure, zip(*pairs, strict=True)),
        _noise_failure(pairs, comparison),
    ]
    hint = _hint(certificate, trials[0])
    certificate = replace(certificate, failures=(*certificate.failures, *filter(None, failures)), hint=hint)
    if again is None:
        return replace(certificate, unrepeated=NOT_RUN_AGAIN)
    if not again.is_equal:
        return replace(certificate, unrepeated=f"not repeatable (differs by {again.deviation:.2g})")
    return replace(certificate, confirmed=(*certificate.confirmed, REPEATED))


def _with_effect(certificates: Sequence[Certificate], pairs: Sequence[Pair]) -> list[Certificate]:
    """Return the certificates in which an option with an effect on some seeds may have none on others.

    Only of a program that is repeatable: otherwise, a difference may be noise.
    """
    idle = [any(text.startswith(f"{NO_EFFECT}:") for text in certificate.failures) for certificate in certificates]
    if all(is_idle or not all(it.done for it in pair) for is_idle, pair in zip(idle, pairs, strict=True)):
        return list(certificates)
    return [
        replace(
            certificate,
            failures=tuple(text for text in certificate.failures if not text.startswith(f"{NO_EFFECT}:")),
            side_effects=(*certificate.side_effects, "all values are the baseline's"),
        )
        if is_idle
        else certificate
        for is_idle, certificate in zip(idle, certificates, strict=True)
    ]


def _hint(certificate: Certificate, pair: TrialPair) -> str:
    """Return what the study has to state if an option changes more than the model on purpose; or an empty string."""
    stated = [name for name in EFFECTS if name in pair.effects]
    missing = [name for name in EFFECTS if name in certificate.effects and name not in stated]
    if not missing:
        return ""
    names = sorted((*stated, *missing), key=EFFECTS.index)
    value = f"[{', '.join(names)}]" if len(names) > 1 else names[0]
    keys = sorted(pair.varied)
    subject = f"{' or '.join(f'`{key}`' for key in keys)} changes {'this' if len(missing) == 1 else 'all of this'}"
    return f"if {subject} on purpose: `effects: {{{', '.join(f'{key}: {value}' for key in keys[:1])}}}`"


def _seed_effects(certificates: Sequence[Certificate], pairs: Sequence[TrialPair]) -> Iterator[str]:
    """Yield the effects that some seeds of a variant lack: an option that has them has them on every seed.

    A variant that fixes the seed differs from the baseline on all seeds but this one.
    """
    finished = [
        certificate for certificate, pair in zip(certificates, pairs, strict=True) if all(it.done for it in pair)
    ]
    for name in pairs[0].effects:
        seeds = [seed for certificate in finished if name in certificate.effects for seed in certificate.seeds]
        if seeds and len(seeds) < len(finished):
            names = join_names(seeds, MAX_SEEDS)
            yield f"another seed: other {name} on seed {names} only; an effect of an option is on every seed"


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
