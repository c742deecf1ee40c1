"""Captions and warnings under a table: how to read it, how far it generalises, and what weakens it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from paribus.analysis.answer_notes import answer_lines
from paribus.analysis.costs import is_contended, machine_key, on_same_host
from paribus.analysis.early_stopping import alpha_shares
from paribus.analysis.formatting import MAX_NAMES, percent, plural, span
from paribus.analysis.optimizer_findings import recorded_optimizers
from paribus.analysis.pairing import PairedTrials
from paribus.analysis.program_certificate import repetition_warning
from paribus.analysis.program_findings import UNWITNESSED
from paribus.analysis.table import Family, Row
from paribus.analysis.throughput import Throughput
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import join_names
from paribus.planning.comparability import evaluation_objectives, is_bound
from paribus.planning.paired_ratio import FORWARD, GENERATION
from paribus.specs.diff import differences
from paribus.specs.program_spec import is_program

MAX_GAIN: Final = 1_000.0  # a larger reduction of the variance is an accident of few seeds


def caption_lines(
    comparison: ComparisonSpec,
    rows: Sequence[Row],
    trials: Sequence[TrialEntry],
    family: int = 0,
    families: Sequence[Family] = (),
) -> Iterator[str]:
    """Yield how to read the table, and what it generalises over.

    `family` is the number of verdicts of all settings, which are corrected together; 0 for a single setting. `families`
    are the other families of the table, each with the same error rate.
    """
    margin_text = (
        f"; a difference below {comparison.margin:g} either way counts as equivalent"
        if comparison.margin is not None
        else ""
    )
    yield f"A difference is variant - {comparison.baseline} on the same seed{margin_text}."
    if is_bound(comparison.metric):
        yield "The metric is an upper bound of a negative log-likelihood, which is not comparable with the loss of clm."
    if comparison.last > 1:
        yield f"The metric of a trial is the mean of its last {comparison.last} evaluations."
    if comparison.averaged:
        yield f"The average is that of {join_names(comparison.averaged)}, each with the same weight."
    if comparison.design_note:
        yield comparison.design_note
    if comparison.matching_note:
        yield comparison.matching_note
    level_text = levels(rows)
    yield (
        f"All verdicts{' of variants' if families else ''} together {holding(rows)} with "
        f"{percent(1 - comparison.alpha)} confidence{_with_families(comparison, families)}"
        f"{test_on_differences(open_ended=comparison.open_ended)}, "
        f"{correction(rows, family, comparison.scope)}{_alpha_spending(comparison)}"
        f"{f'; {level_text}' if level_text and not family else ''}."
    )
    # The levels differ between settings. As a separate line, they do not keep settings from sharing the line above.
    if family and level_text:
        yield f"{level_text[0].upper()}{level_text[1:]}."
    done = [entry for entry in trials if entry.done]
    if done and is_program(done[0].spec):
        yield (
            f"They generalise over what the seed changes in the program (n = {span([row.n for row in rows])}), not "
            "beyond its data and its other options."
        )
        yield from _witnessed_lines(done)
        yield from assumption(rows)
        yield from pairing_gain(rows)
        yield from _contention(rows, done)
        return
    steps, tokens = span([entry.result["steps"] for entry in done]), span([entry.result["tokens"] for entry in done])
    starts_from_saved = bool(done) and all("sha256" in (entry.spec.get("from") or {}) for entry in done)
    randomness = (
        "order of the data, initial weights of new tensors"
        if starts_from_saved
        else "initial weights, order of the data"
    )
    model = "the saved model that all start from, " if starts_from_saved else ""
    scope = f"this corpus and its validation split{_validation_size(done)}, this size, and {steps} steps"
    if comparison.averaged:
        scope = "these corpora and their validation splits, this size, and these numbers of steps"
    yield (
        f"They generalise over seeds ({randomness}; n = {span([row.n for row in rows])}), not beyond {model}{scope}"
        f"{'' if comparison.averaged else f' ({tokens} tokens)'}."
    )
    yield from answer_lines(rows)
    yield from assumption(rows)
    yield from _budget_lines(comparison, done)
    if comparison.throughput is not None and any(row.costs["tokens_per_second"].low is not None for row in rows):
        yield from comparison.throughput.caption()
        yield from _inference_lines(comparison.throughput)
    if stages := list(dict.fromkeys(_earlier_stages(entry) for entry in trials if entry.parent is not None)):
        fresh = join_names(dict.fromkeys(entry.variant for entry in trials if entry.parent is None))
        those = f"Each trial but those of {fresh}" if fresh else "Each trial"
        yield f"{those} starts from {join_names(stages)} of the same variant and seed, and its costs include both."
    yield from pairing_gain(rows)
    yield from _contention(rows, done)


def _contention(rows: Sequence[Row], done: Sequence[TrialEntry]) -> Iterator[str]:
    """Yield why speed is marked as approximate. No verdict depends on it, and a gate on speed has its own reason."""
    if any(row.costs["tokens_per_second"].rough for row in rows) and any(map(is_contended, done)):
        yield "Trials shared a machine (contended): speed is approximate (~)."


def _witnessed_lines(done: Sequence[TrialEntry]) -> Iterator[str]:
    """Yield what was compared of what scripts recorded, and what their witness does not see."""
    witnessed = [entry.certificate for entry in done if "witness" in entry.certificate]
    if not witnessed:
        return
    has_optimizer = all(map(recorded_optimizers, witnessed))
    seen = "environment and optimizer" if has_optimizer else "and environment"
    unseen = "how the metric was computed" if has_optimizer else "optimizer, learning rate, how the metric was computed"
    yield (
        f"Weights, batches{',' if has_optimizer else ''} {seen} were compared as the script recorded them with "
        f"`paribus.witness`. Not seen: {unseen}, and what the script does not pass to it."
    )


def correction(rows: Sequence[Row], family: int = 0, scope: str = "in all settings") -> str:
    """`Holm over 3 variants`: the correction, and what it covers; `family` is as in `caption_lines`."""
    return f"Holm over {f'{family} verdicts, {scope}' if family else plural(len(rows), 'variant')}"


def pairing_gain(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the factor by which pairing reduced the variance, or that its estimates are too noisy."""
    gains = [row.variance_reduction for row in rows if row.variance_reduction is not None]
    credible = [gain for gain in gains if 1 / MAX_GAIN <= gain <= MAX_GAIN]
    if credible:
        low, high = (f"{gain:.2g}" if gain < 10 else f"{gain:,.0f}" for gain in (min(credible), max(credible)))
        times = low if low == high else f"{low} to {high}"
        noisy = f" ({len(gains) - len(credible)} of {len(gains)} estimates are too noisy to show)"
        yield (
            f"Pairing by seed divided the variance of a difference by {times}, compared with independent seeds"
            f"{noisy if len(credible) < len(gains) else ''}."
        )
    elif gains:
        yield "The variance reduction by pairing is not known: the estimates are too noisy."


def test_name(*, open_ended: bool) -> str:
    """Return the name of the test of a verdict."""
    return "always-valid t" if open_ended else "Student-t"


def test_on_differences(*, open_ended: bool) -> str:
    """Return the words after the confidence of all verdicts: where it holds, and the test."""
    scope = " at every number of seeds, so seeds may be added" if open_ended else ""
    return f"{scope}: {test_name(open_ended=open_ended)} on paired differences"


def holding(rows: Sequence[Row]) -> str:
    """Return the verb of the sentence on all verdicts, which outliers weaken."""
    return "would hold without outliers" if any(row.outliers for row in rows) else "hold"


def assumption(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the assumption of the verdicts, with the highest failure rate that the seeds cannot exclude.

    n seeds without a failure have probability (1 - r)^n at a failure rate r. This is 5 % at r = 1 - 0.05^(1/n), the
    upper 95 % confidence limit of the rate. The row with the fewest seeds counts.
    """
    counts = [row.n for row in rows if row.low is not None]
    if counts:
        rate = 1 - 0.05 ** (1 / min(counts))
        yield (
            "They assume that differences scatter symmetrically around one value, without rare failures: "
            f"{min(counts)} seeds without one are compatible with a failure rate of up to {percent(round(rate, 2))}."
        )


def _family_name(family: Family) -> str:
    return family.title.partition(",")[0].partition(" of ")[0]


def _with_families(comparison: ComparisonSpec, families: Sequence[Family]) -> str:
    """Return the confidence of all families of the table together, in parentheses."""
    if not families:
        return ""
    together = percent(max(0.0, 1 - (1 + len(families)) * comparison.alpha))
    return f" ({together} together with the {join_names(map(_family_name, families))} below)"


def _validation_size(done: Sequence[TrialEntry]) -> str:
    """Return the numbers of evaluated and available examples of the split; empty if a record lacks them."""
    sizes = [(entry.result.get("data") or {}).get("validation_examples") for entry in done]
    if not sizes or None in sizes:
        return ""
    evaluated, available = (span([size[side] for size in sizes if size is not None]) for side in (0, 1))
    return f" ({evaluated} of its {available} examples)"


def _budget_lines(comparison: ComparisonSpec, done: Sequence[TrialEntry]) -> Iterator[str]:
    """Yield the budget of each trial, unless it is a number of steps or tokens."""
    for unit, amount in comparison.budget.items():
        if unit == "flops":
            yield (
                f"Each trial had a budget of {amount:.4g} training FLOPs, to the nearest step: a cheaper variant "
                "trains for more steps."
            )
        elif unit == "seconds":
            clocks = {(entry.result.get("time_budget") or {}).get("clock") for entry in done}
            clock = "CPU seconds" if clocks == {"cpu"} else "seconds"
            names = join_names(sorted({str(dict(machine_key(entry)).get("name")) for entry in done}), MAX_NAMES)
            yield (
                f"Each trial stopped after {amount:g} {clock} of training on {names}: its steps depend on this "
                "machine and its load, so a repetition gives other numbers."
            )


def _inference_lines(throughput: Throughput) -> Iterator[str]:
    """Describe how inference was timed."""
    if not throughput.inference:
        return
    texts = {
        GENERATION: "generation after half of an example, with the latency of a token at batch 1",
        FORWARD: "a forward pass without a head, with the latency of an example at batch 1",
    }
    *_, last = throughput.inference
    described = join_names(text for kind, text in texts.items() if kind in last.kinds)
    noise = max(timed.noise for timed in throughput.inference)
    yield (
        f"Inference is {described}, and tokens/s and the memory of all tensors at batch {last.batch}. It was timed as "
        f"training was; the baseline differs from itself by up to {percent(round(noise, 2))}."
    )


def _alpha_spending(comparison: ComparisonSpec) -> str:
    """Describe the share of alpha of each look; empty unless the study may stop early."""
    if comparison.open_ended or not comparison.look_seeds:
        return ""
    shares = zip(comparison.look_seeds, alpha_shares(comparison.look_seeds), strict=True)
    text = ", ".join(f"{percent(share * comparison.alpha)} after {n}" for n, share in shares)
    return (
        f", its error rate of {percent(comparison.alpha)} divided among looks that were fixed in advance ({text} seeds)"
    )


def _earlier_stages(entry: TrialEntry) -> str:
    """Return the stages that a trial starts from, the earliest first."""
    parent = entry.parent
    assert parent is not None
    earlier = f"{_earlier_stages(parent)}, " if parent.parent is not None else ""
    return f"{earlier}`{parent.trial.get('stage')}`"


def levels(rows: Sequence[Row]) -> str:
    """Describe the confidence level of the intervals, with the variants where it differs."""
    variants_by_level: dict[str, list[str]] = {}
    for row in rows:
        if row.level is not None:
            variants_by_level.setdefault(percent(row.level), []).append(row.variant)
    if not variants_by_level:
        return ""
    if len(variants_by_level) == 1:
        scope = ", each by itself" if len(rows) > 1 else ""
        return f"the intervals have {next(iter(variants_by_level))} confidence{scope}"
    texts = (f"{level} ({join_names(names, MAX_NAMES)})" for level, names in variants_by_level.items())
    return f"the intervals have a confidence of {', '.join(texts)}, each by itself"


def _learning_limit(comparison: ComparisonSpec, trials: Sequence[TrialEntry]) -> str:
    """Return what a model that has not learned does not reach."""
    metric = comparison.metric
    entry = next((entry for entry in trials if entry.done and entry.unigram_baseline(metric) is not None), None)
    if entry is None:  # of an accuracy, for example
        return "No loss was below its unigram baseline"
    baseline, threshold = entry.unigram_baseline(metric), entry.learning_threshold(metric)
    assert baseline is not None
    assert threshold is not None, "a record with a baseline has a threshold"
    tolerance = f" by more than {baseline - threshold:.2g}" if threshold < baseline else ""
    return f"Not below the unigram baseline ({baseline:.3f}){tolerance}"


def warning_lines(
    comparison: ComparisonSpec, rows: Sequence[Row], trials: Sequence[TrialEntry], paired: Mapping[str, PairedTrials]
) -> Iterator[str]:
    """Yield the warnings about the table, the most severe first."""
    yield from _look_warnings(comparison)
    if comparison.mismatch_note:
        yield comparison.mismatch_note
    unlearned = [row.variant for row in rows if row.learned is False]
    if unlearned:
        yield f"{_learning_limit(comparison, trials)}: no learning yet in {join_names(unlearned, MAX_NAMES)}."
    partly_unlearned = [f"{row.variant} {row.unlearned}/{row.planned}" for row in rows if row.unlearned and row.learned]
    if partly_unlearned:
        names = join_names(partly_unlearned, MAX_NAMES)
        yield f"The means include trials that did not beat the unigram baseline: {names}."
    yield from outlier_warning(rows)
    if across := list(across_machines(paired)):
        yield (
            f"Pairs of two processors or numbers of threads: {join_names(across, MAX_NAMES)}. Their differences "
            "include those of rounding, which training magnifies; `compare --strict` refuses them."
        )
    recorded = [entry for entry in trials if entry.record is not None]
    if recorded and is_program(recorded[0].spec):
        yield from repetition_warning(comparison.repetition, comparison.metric)
        yield from _program_warnings(recorded, paired)
    else:
        yield from _evaluation_warnings(recorded)
        yield from _version_warnings(recorded)
    rough = any(row.costs["tokens_per_second"].rough for row in rows)
    machines = {machine_key(entry) for entry in recorded}
    if len(machines) > 1:
        machine_names = join_names((" ".join(value for _, value in key) for key in sorted(machines)), MAX_NAMES)
        yield f"{len(machines)} kinds of machine ({machine_names}): speed and memory are compared only within one kind."
    elif rough and any(not on_same_host(pair) for pairs in paired.values() for pair in pairs.pairs):
        yield "The trials of a pair ran on different machines of one kind: speed is approximate (~)."


def outlier_warning(rows: Sequence[Row]) -> Iterator[str]:
    """Warn of outliers among the differences."""
    texts = [f"{row.variant} seed {join_names(map(str, row.outliers), MAX_NAMES)}" for row in rows if row.outliers]
    if texts:
        yield (
            f"Outliers among the differences: {join_names(texts, MAX_NAMES)}. Their intervals are widened by a "
            "sign-flip test, which decides nothing below six seeds. Look at what happened on these seeds, and add "
            "seeds. If seeds fail now and then, other variants may have been lucky with few seeds."
        )


def across_machines(paired: Mapping[str, PairedTrials]) -> Iterator[str]:
    """Yield the pairs of each variant that ran on two processors or with two numbers of threads."""
    for name, pairs in paired.items():
        seeds_by_text: dict[str, list[int]] = {}
        for seed, text in pairs.across.items():
            seeds_by_text.setdefault(text, []).append(seed)
        for text, seeds in seeds_by_text.items():
            yield f"{name} seed {join_names(seeds, MAX_NAMES)} ({text})"


def _look_warnings(comparison: ComparisonSpec) -> Iterator[str]:
    """Warn of seeds or looks that were changed after a verdict had been shown, unless verdicts hold at any of them."""
    if comparison.open_ended:
        return
    seeds = set(comparison.seeds)
    earlier = [set(look) for look in comparison.previous_looks if seeds & set(look)]
    if comparison.replanned:
        yield (
            "The looks of the study were changed after a verdict had been shown: "
            f"the confidence of {percent(1 - comparison.alpha)} no longer holds exactly."
        )
    if any(look != seeds for look in earlier):
        counts = [key for key, _ in groupby([*map(len, earlier), len(seeds)])]
        verb = "added" if all(look <= seeds for look in earlier) else "changed"
        yield (
            f"Seeds were {verb} after a verdict had been shown ({' → '.join(map(str, counts))}): "
            f"the confidence of {percent(1 - comparison.alpha)} no longer holds exactly."
        )


def _program_warnings(trials: Sequence[TrialEntry], paired: Mapping[str, PairedTrials]) -> Iterator[str]:
    """Warn of what the records of a program do not show, and of which variants."""
    certificates = [pairs.certificate for pairs in paired.values() if pairs.certificate is not None]
    variants = {name: [it.variant for it in certificates if name in it.unwitnessed] for name in UNWITNESSED}
    missing = [
        name if len(lacking) == len(certificates) else f"{name} ({join_names(lacking, MAX_NAMES)})"
        for name, lacking in variants.items()
        if lacking
    ]
    if missing:
        names = join_names(missing)
        yield (
            f"Not certified: the program does not show whether the trials of a pair had the same {names}. "
            "Checked are its files, options and values; `paribus.witness` in the script records the rest."
        )
    states = {json.dumps(entry.provenance.get("source") or {}, sort_keys=True) for entry in trials}
    if len(states) > 1:
        yield "The trials ran at different commits, or with different uncommitted changes."


def _evaluation_warnings(trials: Sequence[TrialEntry]) -> Iterator[str]:
    """Warn where variants evaluate an objective with different options."""
    paths = {
        difference.path.partition(".")[2]
        for entry in trials
        for difference in differences(evaluation_objectives(trials[0].spec), evaluation_objectives(entry.spec))
    }
    if paths:
        yield f"The variants evaluate an objective with different options: {join_names(sorted(paths), MAX_NAMES)}."


def _version_warnings(trials: Sequence[TrialEntry]) -> Iterator[str]:
    """Warn where trials ran with different versions of a package."""
    versions_by_package: dict[str, dict[str, None]] = {}
    for entry in trials:
        for package, version in (entry.provenance.get("versions") or {}).items():
            versions_by_package.setdefault(package, {})[str(version)] = None
    mixed = [
        f"{package} {' and '.join(versions)}" for package, versions in versions_by_package.items() if len(versions) > 1
    ]
    if mixed:
        yield f"Mixed versions: {join_names(mixed, MAX_NAMES)}; no pair mixes versions of torch."
