"""Pairing of the trials of a variant with the baseline's, by seed, and the row of a variant in the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

from paribus.analysis.answers import answer_interval, paired_answers
from paribus.analysis.certificates import Certificate, certify_chain, merge_certificates
from paribus.analysis.costs import Pairs, costs
from paribus.analysis.p_values import variance_reduction
from paribus.analysis.program_certificate import complete_certificate
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant, incomparable_reason
from paribus.analysis.table import Row, verdict_fields
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdict_words import UNLEARNED, failure_text, saturated_text, withheld_text
from paribus.analysis.verdicts import Better, PairedDifferences, Verdict
from paribus.errors import join_names
from paribus.planning.comparability import conditions
from paribus.specs.diff import MISSING
from paribus.specs.program_spec import is_program
from paribus.specs.tree import get_path
from paribus.studies.designs import format_value

MAX_LABEL_VALUES: Final = 4
BEST_VALUES: Final[Mapping[Better, float]] = {"lower": 0.0, "higher": 1.0}  # of losses, and of shares such as accuracy


@final
@dataclass(frozen=True, kw_only=True)
class PairedTrials:
    """The trials of a variant and of the baseline, paired by seed."""

    pairs: Pairs  # pairs with two records, of one version of torch and one kind of device
    mixed_runtimes: tuple[str, ...]  # descriptions of the pairs of two versions of torch or two kinds of device
    certificate: Certificate | None
    finished: Pairs  # the `pairs` with a metric on both sides
    across: Mapping[int, str]  # seed -> difference of processors or numbers of threads, in `finished`
    incomparable: str = ""  # the reason why the records of the variant do not belong in the table

    @property
    def reason(self) -> str:
        """The reason why the verdict is withheld, or an empty string."""
        if self.incomparable:
            return self.incomparable
        if self.certificate is not None and not self.certificate.ok:
            return self.certificate.reason
        return "versions or devices differ from the baseline's" if self.mixed_runtimes and not self.pairs else ""


def pair_trials(trials: TrialsByVariant, name: str, comparison: ComparisonSpec) -> PairedTrials:
    """Pair the trials of a variant with the baseline's."""
    planned = [
        (trials[comparison.baseline][seed], entry)
        for seed, entry in sorted(trials[name].items())
        if seed in trials[comparison.baseline]
    ]
    recorded = [pair for pair in planned if pair[0].record is not None and pair[1].record is not None]
    pairs = [pair for pair in recorded if not _differing_conditions(pair)]
    certificates = [certify_chain(*pair) for pair in recorded]
    certificate = None
    if certificates:
        is_of_program = is_program(recorded[0][0].spec)
        merged = (
            complete_certificate(certificates, recorded, comparison)
            if is_of_program
            else merge_certificates(certificates)
        )
        certificate = _with_note(merged, comparison.matched_option_notes.get(name))
    finished = [pair for pair in pairs if all(entry.value(comparison.metric) is not None for entry in pair)]
    return PairedTrials(
        pairs=pairs,
        mixed_runtimes=tuple(
            f"seed {pair[1].seed}: {_differing_conditions(pair)}" for pair in recorded if _differing_conditions(pair)
        ),
        certificate=certificate,
        finished=finished,
        across={pair[1].seed: text for pair in finished if (text := _differing_conditions(pair, "strict verdicts"))},
        incomparable=incomparable_reason(trials, name, comparison),
    )


def _with_note(certificate: Certificate, note: str | None) -> Certificate:
    """Return the certificate with a note on the option that matches the variant to the baseline's budget."""
    return certificate if note is None else replace(certificate, confirmed=(*certificate.confirmed, note))


def _differing_conditions(pair: tuple[TrialEntry, TrialEntry], withheld: str = "pair") -> str:
    """Describe the conditions in which the trials of a pair differ, or return an empty string."""
    if pair[1].tasks:
        parts = ((a.entry, b.entry) for a, b in zip(pair[0].tasks, pair[1].tasks, strict=True))
        return ", ".join(dict.fromkeys(text for part in parts if (text := _differing_conditions(part, withheld))))
    texts = []
    for condition in conditions(pair[0]):
        if condition.withholds == withheld and condition.recorded is not None:
            baseline, variant = map(condition.recorded, pair)
            if None not in (baseline, variant) and baseline != variant:
                texts.append(f"{condition.subject} {baseline} against {variant}")
    return ", ".join(texts)


def _values(pairs: Pairs, metric: str) -> tuple[list[float], list[float]]:
    """Return the metrics of the baseline and of the variant in finished pairs."""
    sides = [
        [value for value in (entry.value(metric) for entry in side) if value is not None]
        for side in zip(*pairs, strict=True)
    ]
    return (sides[0], sides[1]) if sides else ([], [])


def paired_differences(
    trials: TrialsByVariant, name: str, paired: PairedTrials, comparison: ComparisonSpec
) -> PairedDifferences:
    """Return the differences to test. A withheld variant has none, but still counts in the family."""
    baseline, variant = _values(paired.finished, comparison.metric)
    return PairedDifferences(
        differences=() if paired.reason else tuple(b - a for a, b in zip(baseline, variant, strict=True)),
        seeds=() if paired.reason else tuple(entry.seed for _, entry in paired.finished),
        diverged=_count_diverged(trials[name], comparison),
        baseline_diverged=_count_diverged(trials[comparison.baseline], comparison),
        planned=len(comparison.seeds),
        open_ended=comparison.open_ended,
    )


def variant_row(
    trials: TrialsByVariant, name: str, paired: PairedTrials, verdict: Verdict, comparison: ComparisonSpec
) -> Row:
    """Return the row of a variant with its verdict, or with the reason why it has no verdict."""
    baseline_values, variant_values = _values(paired.finished, comparison.metric)
    variant_trials = list(trials[name].values())
    shown_values = variant_values or metric_values(variant_trials, comparison)
    common: dict[str, Any] = {
        **count_outcomes(variant_trials, comparison),
        "variant": name,
        "n": len(variant_values),
        "mean": None if paired.incomparable else mean_or_none(shown_values),
        "learned": has_learned(variant_trials, comparison),
        "across": tuple(paired.across),
        "costs": costs(variant_trials, list(trials[comparison.baseline].values()), paired.pairs, comparison.throughput),
    }
    if paired.reason:
        return Row(kind="withheld", verdict=withheld_text(paired.reason), **common)
    if text := failure_text(common, count_outcomes(list(trials[comparison.baseline].values()), comparison)):
        return Row(kind="failed", verdict=text, **common)
    learned = (has_learned(list(trials[comparison.baseline].values()), comparison), common["learned"])
    if not comparison.allow_unlearned and is_vacuous(verdict.kind, *learned):
        return Row(kind="withheld", verdict=UNLEARNED, **common)
    fields = verdict_fields(verdict)
    if verdict.kind == "identical" and {*baseline_values, *variant_values} == {BEST_VALUES[comparison.better]}:
        fields["verdict"] = saturated_text(BEST_VALUES[comparison.better])
    return Row(
        **fields,
        variance_reduction=variance_reduction(baseline_values, variant_values),
        answers=answer_interval(
            paired_answers(paired.finished, comparison.metric),
            verdict,
            comparison.margin,
            open_ended=comparison.open_ended,
        ),
        **common,
    )


def is_vacuous(kind: str, baseline: bool | None, variant: bool | None) -> bool:
    """Return whether a verdict of this kind would claim something about models that learned nothing.

    - `equivalent` and `identical` are vacuous if either side did not learn: models that only predict frequencies
      perform alike, whatever was changed.
    - `better` and `worse` are vacuous only if neither side learned. If one side learned, the difference is a finding.
    - Other kinds claim nothing, so they are never vacuous.

    `baseline` and `variant` are whether that side learned. None is unknown, and counts as learned.
    """
    if kind in ("equivalent", "identical"):
        return baseline is False or variant is False
    return kind in ("better", "worse") and baseline is False and variant is False


def baseline_row(trials: TrialsByVariant, comparison: ComparisonSpec) -> Row:
    """Return the row of the baseline."""
    entries = list(trials[comparison.baseline].values())
    numbers = metric_values(entries, comparison)
    return Row(
        variant=comparison.baseline,
        label=_baseline_label(entries, comparison),
        kind="baseline",
        verdict="baseline",
        n=len(numbers),
        mean=mean_or_none(numbers),
        learned=has_learned(entries, comparison),
        costs=costs(entries, entries, [(entry, entry) for entry in entries], comparison.throughput),
        **count_outcomes(entries, comparison),
    )


def _baseline_label(trials: Sequence[TrialEntry], comparison: ComparisonSpec) -> str:
    """`baseline (attention=mha)`: the baseline's values of the options that its variants change.

    An argument of Lightning's Trainer that the baseline does not set is shown as `default`. Groups of options, such as
    `dims`, are left out.
    """
    keys = dict.fromkeys(key for changes in comparison.variants.values() for key in changes)
    if not trials:
        return comparison.baseline
    spec = trials[0].spec
    defaults = {key: "default" if key.startswith("trainer.") else MISSING for key in keys}
    baseline_values = {key: get_path(spec, key, default) for key, default in defaults.items()}
    values = [
        f"{key}={_short_value(value)}"
        for key, value in baseline_values.items()
        if value is not MISSING and not (isinstance(value, Mapping) and "name" not in value)
    ]
    return f"{comparison.baseline} ({join_names(values, MAX_LABEL_VALUES)})" if values else comparison.baseline


def _short_value(value: Any) -> str:
    """Return a value as text: of a component its name without options, of a list its items."""
    if isinstance(value, Mapping):
        return str(value["name"])
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_short_value, value)) + "]"
    return "none" if value is None else format_value(value)


def count_outcomes(entries: Sequence[TrialEntry], comparison: ComparisonSpec) -> dict[str, Any]:
    """Return the numbers of planned, done, diverged, failed and unlearned trials."""
    failed = sum(entry.record is None and entry.state in FAILED_STATES for entry in entries)
    diverged = sum(entry.diverged(comparison.metric) for entry in entries)
    done = sum(entry.done for entry in entries)
    unlearned = sum(map(partial(is_unlearned, metric=comparison.metric), entries))
    return {
        "planned": len(comparison.seeds),
        "done": done,
        "diverged": diverged,
        "failed": failed,
        "unlearned": unlearned,
    }


def is_unlearned(entry: TrialEntry, metric: str) -> bool:
    """Return whether a finished trial does not beat the unigram baseline by more than the tolerance."""
    return entry.has_learned(metric) is False


def _count_diverged(entries: Mapping[int, TrialEntry], comparison: ComparisonSpec) -> int:
    return sum(entry.diverged(comparison.metric) for entry in entries.values())


def metric_values(entries: Sequence[TrialEntry], comparison: ComparisonSpec) -> list[float]:
    """Return the metric of each finished trial."""
    return [value for value in (entry.value(comparison.metric) for entry in entries) if value is not None]


def mean_or_none(numbers: Sequence[float]) -> float | None:
    """Return the mean, or None if `numbers` is empty."""
    return math.fsum(numbers) / len(numbers) if numbers else None


def has_learned(entries: Sequence[TrialEntry], comparison: ComparisonSpec) -> bool | None:
    """Return whether the mean beats the unigram baseline by the tolerance; None if unknown.

    For a metric without such a baseline, whether half of the trials have learned.
    """
    mean = mean_or_none(metric_values(entries, comparison))
    threshold = next((entry.learning_threshold(comparison.metric) for entry in entries if entry.done), None)
    if mean is not None and threshold is not None:
        return mean < threshold
    known = [learned for entry in entries if (learned := entry.has_learned(comparison.metric)) is not None]
    return 2 * sum(known) >= len(known) if known else None
