"""Comparison of the trials of a study: pairing, certificates and verdicts, in all settings together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from paribus.analysis.captions import across_machines, caption_lines, correction, warning_lines
from paribus.analysis.early_stopping import (
    RowInput,
    VariantState,
    first_seeds,
    is_needed,
    row_inputs,
    seeds_by_variant,
    skipped_notes,
    variant_states,
)
from paribus.analysis.factorial import effects
from paribus.analysis.formatting import percent, plural
from paribus.analysis.pairing import PairedTrials, baseline_row, pair_trials, paired_differences, variant_row
from paribus.analysis.select_trials import Selection, TrialsByVariant, check_records_comparable, select
from paribus.analysis.table import Family, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide
from paribus.errors import NotComparableError, Problem, join_names


def ladder_steps(trials: TrialsByVariant, question: ComparisonSpec, settings: int = 1) -> Iterator[Family]:
    """Yield the steps of a ladder, each rung against the rung below it, as a family of its own.

    Nothing is yielded for other designs. All `settings` of a study share its alpha.
    """
    if not question.rungs_below:
        return
    alpha = question.alpha / settings
    specs = {name: replace(question, baseline=below) for name, below in question.rungs_below.items()}
    paired = {name: pair_trials(trials, name, spec) for name, spec in specs.items()}
    verdicts = decide(
        {name: paired_differences(trials, name, paired[name], spec) for name, spec in specs.items()},
        better=question.better,
        margin=question.margin,
        alpha=alpha,
    )
    of_all = f", and so those of all {settings} settings together at {percent(1 - question.alpha)}"
    rows = (variant_row(trials, name, paired[name], verdicts[name], spec) for name, spec in specs.items())
    yield Family(
        key="steps",
        title="steps, each rung against the one below",
        rows=tuple(replace(row, baseline=question.rungs_below[row.variant]) for row in rows),
        caption=(
            f"A step is a rung - the rung below it on the same seed. The steps are a family of their own: Holm over "
            f"{plural(len(specs), 'step')} at {percent(1 - alpha)}{of_all if settings > 1 else ''}; with the verdicts "
            f"above, {percent(1 - 2 * question.alpha)} for both together.",
        ),
        certificates={name: spec.certificate for name, spec in paired.items() if spec.certificate is not None},
        withheld=True,
    )


def compare(entries: Iterable[TrialEntry], question: ComparisonSpec) -> Table:
    """Return the verdict table of a study; a `NotComparableError` where its trials cannot be compared.

    A verdict uses the seeds that both sides finished. A pair with two versions of torch, or with a CPU and an
    accelerator, is skipped: its difference would include theirs. Other packages may differ, and are named.
    """
    return compare_settings([(entries, question)])


def compare_settings(
    settings: Sequence[tuple[Iterable[TrialEntry], ComparisonSpec]],
    *,
    strict: bool = False,
) -> Table:
    """Return the verdict tables of all settings of a study, corrected as one family.

    A setting without any record has no table, but its variants count in the family. Pairs of two processors or numbers
    of threads are marked, and refused if `strict`.
    """
    loaded = [(list(entries), question) for entries, question in settings]
    chosen = [_select(entries, question) for entries, question in loaded]
    stops = bool(loaded[0][1].look_seeds)
    asks = [(selection.trials, question) for selection, (_, question) in zip(chosen, loaded, strict=True)]
    turns = variant_states(asks) if stops else [{} for _ in loaded]
    every = [
        _compared(entries, question, selection, states)
        for (entries, question), selection, states in zip(loaded, chosen, turns, strict=True)
    ]
    started = [setting for setting in every if setting.started] or every[:1]
    for setting in started:
        check_records_comparable(setting.trials, setting.question, setting.selection.notes)
    if strict:
        _refuse_mixed_machines(started)
    first_spec = every[0].question
    stopped = {
        (place, name): turn.verdict for place, setting_turns in enumerate(turns) for name, turn in setting_turns.items()
    }
    verdicts = stopped or decide(
        {(place, name): paired for place, setting in enumerate(every) for name, paired in setting.paired()},
        better=first_spec.better,
        margin=first_spec.margin,
        alpha=first_spec.alpha,
    )
    family = len(verdicts) if len(every) > 1 else 0
    tables = [
        _table(setting, {name: verdicts[place, name] for name in setting.held}, family, len(every))
        for place, setting in enumerate(every)
        if setting in started
    ]
    missing = [setting.question.setting for setting in every if setting not in started]
    late = (f"No trial has run yet of: {'; '.join(missing)}. Its verdicts count in the family.",) if missing else ()
    return replace(tables[0], other_settings=tuple(tables[1:]), notes=(*tables[0].notes, *late))


def _refuse_mixed_machines(settings: Sequence[_Compared]) -> None:
    across = [line for setting in settings for line in across_machines(setting.held)]
    if across:
        message = f"pairs of two processors or numbers of threads: {join_names(across, 8)}"
        valid = "both trials of a pair on one model of processor with one number of threads, or no `--strict`"
        raise NotComparableError(Problem(code="mixed-machines", message=message, valid=valid))


@final
@dataclass(frozen=True, eq=False)
class _Compared:
    """The trials of one setting, paired and certified."""

    question: ComparisonSpec
    selection: Selection
    parts: Mapping[str, RowInput]
    counts: Mapping[str, int]  # of seeds that are needed

    @property
    def held(self) -> Mapping[str, PairedTrials]:
        return {name: part.paired for name, part in self.parts.items()}

    @property
    def trials(self) -> TrialsByVariant:
        return self.selection.trials

    @property
    def started(self) -> bool:
        """Return whether any trial has a record."""
        return any(
            entry.record is not None for variant_trials in self.trials.values() for entry in variant_trials.values()
        )

    def paired(self) -> Iterator[tuple[str, PairedDifferences]]:
        """Yield the differences of each variant."""
        for name, pairs in self.held.items():
            yield name, paired_differences(self.trials, name, pairs, self.question)


def _select(entries: Sequence[TrialEntry], question: ComparisonSpec) -> Selection:
    if question.baseline not in question.variants:
        names = join_names(question.variants)
        raise ValueError(f"`baseline` must be one of the variants, but is `{question.baseline}`; valid: {names}.")
    return select(entries, question)


def _compared(
    entries: Sequence[TrialEntry],
    question: ComparisonSpec,
    selection: Selection,
    turns: Mapping[str, VariantState],
) -> _Compared:
    """Pair and certify the trials of a setting. `turns` has the state of each variant where a study may stop early."""
    counts = seeds_by_variant(turns, question)
    if turns:
        selection = select((entry for entry in entries if is_needed(entry, counts, question)), question)
    return _Compared(question, selection, row_inputs(selection.trials, question, turns), counts)


def _table(compared: _Compared, verdicts: Mapping[str, Verdict], family: int, settings: int) -> Table:
    """Return the table of one setting, with the verdicts that all settings together allow."""
    question, selection, trials, paired = compared.question, compared.selection, compared.trials, compared.held
    rows = tuple(
        variant_row(part.trials, name, part.paired, verdicts[name], part.question)
        for name, part in compared.parts.items()
    )
    counts = compared.counts
    baseline = baseline_row(trials, first_seeds(trials, question, counts[question.baseline])[1])
    every = [entry for variant_trials in trials.values() for entry in variant_trials.values()]
    families = (*ladder_steps(trials, question, settings), *effects(trials, paired, question, settings))
    dropped = tuple(_dropped(trials, paired, question, counts))
    return Table(
        study=question.study,
        stage=question.stage,
        setting=question.setting,
        metric=question.metric,
        better=question.better,
        margin=question.margin,
        alpha=question.alpha,
        seeds=question.seeds,
        baseline=baseline,
        rows=rows,
        correction=correction(rows, family),
        caption=tuple(caption_lines(question, rows, every, family, families)),
        warnings=tuple(warning_lines(question, (baseline, *rows), every, paired)),
        notes=(*dropped, *skipped_notes(counts, question), *selection.notes),
        certificates={
            name: pairs_of_variant.certificate
            for name, pairs_of_variant in paired.items()
            if pairs_of_variant.certificate is not None
        },
        families=families,
        differences={
            name: _differences(pairs_of_variant, question)
            for name, pairs_of_variant in paired.items()
            if not pairs_of_variant.reason
        },
    )


def _differences(paired: PairedTrials, question: ComparisonSpec) -> dict[int, float]:
    """Return the difference by seed."""
    differences: dict[int, float] = {}
    for baseline, variant in paired.finished:
        baseline_value, variant_value = baseline.value(question.metric), variant.value(question.metric)
        assert baseline_value is not None  # both have finished
        assert variant_value is not None
        differences[variant.seed] = variant_value - baseline_value
    return differences


def _dropped(
    trials: TrialsByVariant,
    paired: Mapping[str, PairedTrials],
    question: ComparisonSpec,
    seed_counts: Mapping[str, int],
) -> Iterator[str]:
    """Yield the finished trials that the verdict does not use."""
    finished = _seeds(trials[question.baseline], question)
    for name, pairs in paired.items():
        for mixed in pairs.mixed_runtimes:
            yield f"{name}: skipped {mixed}"
        base = finished & set(question.seeds[: seed_counts.get(name, len(question.seeds))])
        variant_seeds = _seeds(trials[name], question)
        alone = [(variant_seeds - base, name), (base - variant_seeds, question.baseline)]
        counts = [f"seed {join_names(sorted(seeds), 8)} of {side}" for seeds, side in alone if seeds]
        if counts:
            yield f"{name}: {plural(len(variant_seeds & base), 'common seed')}; unpaired: {join_names(counts)}"


def _seeds(variant_trials: Mapping[int, TrialEntry], question: ComparisonSpec) -> set[int]:
    return {seed for seed, entry in variant_trials.items() if entry.value(question.metric) is not None}
