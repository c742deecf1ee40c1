"""Pairing of the trials of a variant with the baseline's, by seed, and the row of a variant in the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

from paribus.analysis.certificates import Certificate, certify_chain, merge_certificates
from paribus.analysis.costs import Pairs, costs
from paribus.analysis.p_values import variance_reduction
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant
from paribus.analysis.table import UNLEARNED, Row, verdict_fields
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, Verdict
from paribus.errors import join_names
from paribus.planning.comparability import CONDITIONS
from paribus.specs.diff import MISSING
from paribus.specs.tree import get_path
from paribus.studies.designs import format_value

MAX_LABEL: Final = 4  # values of the baseline in its name


@final
@dataclass(frozen=True, kw_only=True)
class PairedTrials:
    """The trials of a variant and of the baseline, paired by seed."""

    pairs: Pairs  # both have a record, and ran on the same torch and kind of device
    mixed_runtimes: tuple[str, ...]  # pairs that did not
    certificate: Certificate | None
    finished: Pairs  # of the pairs, those with a number on both sides
    across: Mapping[int, str]  # of those, the seeds on two processors or with two numbers of threads

    @property
    def reason(self) -> str:
        """Return why there is no verdict; empty where there is one."""
        if self.certificate is not None and not self.certificate.ok:
            return self.certificate.reason
        return "versions or devices differ from the baseline's" if self.mixed_runtimes and not self.pairs else ""


def pair_trials(trials: TrialsByVariant, name: str, question: ComparisonSpec) -> PairedTrials:
    """Pair the trials of a variant with the baseline's."""
    both = [
        (trials[question.baseline][seed], entry)
        for seed, entry in sorted(trials[name].items())
        if seed in trials[question.baseline]
    ]
    recorded = [pair for pair in both if pair[0].record is not None and pair[1].record is not None]
    pairs = [pair for pair in recorded if not _mixed(pair)]
    certificates = [certify_chain(*pair) for pair in recorded]
    finished = [pair for pair in pairs if all(entry.value(question.metric) is not None for entry in pair)]
    return PairedTrials(
        pairs=pairs,
        mixed_runtimes=tuple(f"seed {pair[1].seed}: {_mixed(pair)}" for pair in recorded if _mixed(pair)),
        certificate=_turned(merge_certificates(certificates), question.knob_notes.get(name)) if certificates else None,
        finished=finished,
        across={pair[1].seed: text for pair in finished if (text := _mixed(pair, "strict verdicts"))},
    )


def _turned(certificate: Certificate, knob: str | None) -> Certificate:
    """Add what was changed for the variant to match a budget."""
    return certificate if knob is None else replace(certificate, confirmed=(*certificate.confirmed, knob))


def _mixed(pair: tuple[TrialEntry, TrialEntry], withheld: str = "pair") -> str:
    """Describe the conditions in which the runs of a pair differ; empty where there are none."""
    texts = []
    for condition in CONDITIONS:
        if condition.withholds == withheld and condition.recorded is not None:
            baseline, variant = map(condition.recorded, pair)
            if None not in (baseline, variant) and baseline != variant:
                texts.append(f"{condition.subject} {baseline} against {variant}")
    return ", ".join(texts)


def _values(pairs: Pairs, metric: str) -> tuple[list[float], list[float]]:
    """Return the metrics of the baseline and of the variant, of finished pairs."""
    sides = [
        [value for value in (entry.value(metric) for entry in side) if value is not None]
        for side in zip(*pairs, strict=True)
    ]
    return (sides[0], sides[1]) if sides else ([], [])


def paired_differences(
    trials: TrialsByVariant, name: str, paired: PairedTrials, question: ComparisonSpec
) -> PairedDifferences:
    """Return the differences to decide on. A withheld variant stays in the family, where it proves nothing."""
    baseline, variant = _values(paired.finished, question.metric)
    return PairedDifferences(
        differences=() if paired.reason else tuple(b - a for a, b in zip(baseline, variant, strict=True)),
        seeds=() if paired.reason else tuple(entry.seed for _, entry in paired.finished),
        diverged=_diverged(trials[name], question),
        baseline_diverged=_diverged(trials[question.baseline], question),
        planned=len(question.seeds),
    )


def variant_row(
    trials: TrialsByVariant, name: str, paired: PairedTrials, verdict: Verdict, question: ComparisonSpec
) -> Row:
    """Return the row of a variant, with its verdict or the reason why it has none."""
    baseline_values, variant_values = _values(paired.finished, question.metric)
    variant_trials = list(trials[name].values())
    common: dict[str, Any] = {
        **count_outcomes(variant_trials, question),
        "variant": name,
        "n": len(variant_values),
        "mean": mean_or_none(variant_values)
        if variant_values
        else mean_or_none(metric_values(variant_trials, question)),
        "learned": has_learned(variant_trials, question),
        "across": tuple(paired.across),
        "costs": costs(variant_trials, list(trials[question.baseline].values()), paired.pairs, question.throughput),
    }
    if paired.reason:
        return Row(kind="withheld", verdict=f"withheld ({paired.reason})", **common)
    if text := _failed(common, count_outcomes(list(trials[question.baseline].values()), question)):
        return Row(kind="failed", verdict=text, **common)
    learned = (has_learned(list(trials[question.baseline].values()), question), common["learned"])
    if not question.allow_unlearned and is_vacuous(verdict.kind, *learned):
        return Row(kind="withheld", verdict=UNLEARNED, **common)
    return Row(
        **verdict_fields(verdict),
        variance_reduction=variance_reduction(baseline_values, variant_values),
        **common,
    )


def _failed(variant: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """`failed 2/2` where every trial of the variant or of the baseline failed; else empty."""
    sides = (("", variant), ("baseline ", baseline))
    return ", ".join(
        f"{side}failed {outcomes['failed']}/{outcomes['planned']}"
        for side, outcomes in sides
        if outcomes["failed"] == outcomes["planned"] > 0
    )


def is_vacuous(kind: str, baseline: bool | None, variant: bool | None) -> bool:
    """Return whether a claim would be about models that learned nothing.

    It is a finding that one side learned and the other did not. It is none that both perform alike where one did
    not learn.
    """
    if kind == "equivalent":
        return baseline is False or variant is False
    return kind in ("better", "worse") and baseline is False and variant is False


def baseline_row(trials: TrialsByVariant, question: ComparisonSpec) -> Row:
    """Return the row of the baseline."""
    entries = list(trials[question.baseline].values())
    numbers = metric_values(entries, question)
    return Row(
        variant=question.baseline,
        label=_baseline_label(entries, question),
        kind="baseline",
        verdict="baseline",
        n=len(numbers),
        mean=mean_or_none(numbers),
        learned=has_learned(entries, question),
        costs=costs(entries, entries, [(entry, entry) for entry in entries], question.throughput),
        **count_outcomes(entries, question),
    )


def _baseline_label(trials: Sequence[TrialEntry], question: ComparisonSpec) -> str:
    """`baseline (attention=mha)`: the values of the baseline in everything that its variants change.

    An argument of the trainer that the baseline does not set has the default of Lightning.
    """
    keys = dict.fromkeys(key for changes in question.variants.values() for key in changes)
    if not trials:
        return question.baseline
    spec = trials[0].spec
    defaults = {key: "default" if key.startswith("trainer.") else MISSING for key in keys}
    baseline_values = {key: get_path(spec, key, default) for key, default in defaults.items()}
    values = [f"{key}={_short_value(value)}" for key, value in baseline_values.items() if value is not MISSING]
    return f"{question.baseline} ({join_names(values, MAX_LABEL)})" if values else question.baseline


def _short_value(value: Any) -> str:
    """Return the name of a component without its options, or of several in a list."""
    if isinstance(value, Mapping):
        return str(value.get("name", "none"))
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_short_value, value)) + "]"
    return "none" if value is None else format_value(value)


def count_outcomes(entries: Sequence[TrialEntry], question: ComparisonSpec) -> dict[str, Any]:
    """Count how the trials of a variant ended."""
    failed = sum(entry.record is None and entry.state in FAILED_STATES for entry in entries)
    diverged = sum(entry.diverged(question.metric) for entry in entries)
    done = sum(entry.done for entry in entries)
    unlearned = sum(map(partial(is_unlearned, metric=question.metric), entries))
    return {
        "planned": len(question.seeds),
        "done": done,
        "diverged": diverged,
        "failed": failed,
        "unlearned": unlearned,
    }


def is_unlearned(entry: TrialEntry, metric: str) -> bool:
    """Return whether a finished trial does not beat the unigram baseline by more than the tolerance."""
    value, threshold = entry.value(metric), entry.learning_threshold(metric) if entry.done else None
    return value is not None and threshold is not None and value >= threshold


def _diverged(entries: Mapping[int, TrialEntry], question: ComparisonSpec) -> int:
    return sum(entry.diverged(question.metric) for entry in entries.values())


def metric_values(entries: Sequence[TrialEntry], question: ComparisonSpec) -> list[float]:
    """Return the metric of each finished trial."""
    return [value for value in (entry.value(question.metric) for entry in entries) if value is not None]


def mean_or_none(numbers: Sequence[float]) -> float | None:
    """Return the mean, or None of no numbers."""
    return math.fsum(numbers) / len(numbers) if numbers else None


def has_learned(entries: Sequence[TrialEntry], question: ComparisonSpec) -> bool | None:
    """Return whether the mean loss beats the unigram baseline by the tolerance; None where that is unknown."""
    mean = mean_or_none(metric_values(entries, question))
    threshold = next((entry.learning_threshold(question.metric) for entry in entries if entry.done), None)
    return None if mean is None or threshold is None else bool(mean < threshold)
