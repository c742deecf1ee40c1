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
from paribus.analysis.formatting import MAX_NAMES, percent, plural
from paribus.analysis.pairing import PairedTrials, baseline_row, pair_trials, paired_differences, variant_row
from paribus.analysis.select_trials import Selection, TrialsByVariant, check_records_comparable, select
from paribus.analysis.table import Family, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide
from paribus.errors import NotComparableError, Problem, join_names


def ladder_steps(trials: TrialsByVariant, comparison: ComparisonSpec, settings: int = 1) -> Iterator[Family]:
    """Yield the steps of a ladder, each rung against the rung below it, as a family of its own.

    Nothing is yielded for other designs. All `settings` of a study share its alpha.
    """
    if not comparison.rungs_below:
        return
    alpha = comparison.alpha / settings
    steps = {name: replace(comparison, baseline=below) for name, below in comparison.rungs_below.items()}
    paired = {name: pair_trials(trials, name, step) for name, step in steps.items()}
    verdicts = decide(
        {name: paired_differences(trials, name, paired[name], step) for name, step in steps.items()},
        better=comparison.better,
        margin=comparison.margin,
        alpha=alpha,
    )
    together = f", and so those of all {settings} settings together at {percent(1 - comparison.alpha)}"
    rows = (variant_row(trials, name, paired[name], verdicts[name], step) for name, step in steps.items())
    yield Family(
        key="steps",
        title="steps, each rung against the one below",
        rows=tuple(replace(row, baseline=comparison.rungs_below[row.variant]) for row in rows),
        caption=(
            f"A step is a rung - the rung below it on the same seed. The steps are a family of their own: Holm over "
            f"{plural(len(steps), 'step')} at {percent(1 - alpha)}{together if settings > 1 else ''}; with the "
            f"verdicts above, {percent(1 - 2 * comparison.alpha)} for both together.",
        ),
        certificates={name: pairs.certificate for name, pairs in paired.items() if pairs.certificate is not None},
        withheld=True,
    )


def compare(entries: Iterable[TrialEntry], comparison: ComparisonSpec) -> Table:
    """Return the verdict table of a study; a `NotComparableError` if its trials cannot be compared.

    A verdict uses the seeds that both sides finished. A pair with two versions of torch, or of a CPU and an
    accelerator, is skipped, because they would contribute to its difference. Other packages that differ are a warning.
    """
    return compare_settings([(entries, comparison)])


def compare_settings(
    settings: Sequence[tuple[Iterable[TrialEntry], ComparisonSpec]],
    *,
    strict: bool = False,
) -> Table:
    """Return the verdict tables of all settings of a study, corrected as one family.

    A setting without any record has no table, but its variants count in the family. Pairs of two processors or numbers
    of threads are marked, and refused if `strict`.
    """
    loaded = [(list(entries), comparison) for entries, comparison in settings]
    for _, comparison in loaded:
        if comparison.baseline not in comparison.variants:
            names = join_names(comparison.variants)
            raise ValueError(f"`baseline` must be one of the variants, but is `{comparison.baseline}`; valid: {names}.")
    selections = [select(entries, comparison) for entries, comparison in loaded]
    states_by_setting: Sequence[Mapping[str, VariantState]] = [{} for _ in loaded]
    if loaded[0][1].look_seeds:
        states_by_setting = variant_states(
            [(selection.trials, comparison) for selection, (_, comparison) in zip(selections, loaded, strict=True)]
        )
    compared_settings = [
        _compare_setting(entries, comparison, selection, states)
        for (entries, comparison), selection, states in zip(loaded, selections, states_by_setting, strict=True)
    ]
    started = [setting for setting in compared_settings if setting.started] or compared_settings[:1]
    for setting in started:
        check_records_comparable(setting.trials, setting.comparison, setting.selection.notes)
    if strict:
        _refuse_mixed_machines(started)
    verdicts = _verdicts(compared_settings, states_by_setting)
    family = len(verdicts) if len(compared_settings) > 1 else 0
    tables = [
        _table(setting, {name: verdicts[index, name] for name in setting.paired}, family, len(compared_settings))
        for index, setting in enumerate(compared_settings)
        if setting in started
    ]
    missing = [setting.comparison.setting for setting in compared_settings if setting not in started]
    note = (f"No trial has run yet of: {'; '.join(missing)}. Its verdicts count in the family.",) if missing else ()
    return replace(tables[0], other_settings=tuple(tables[1:]), notes=(*tables[0].notes, *note))


def _verdicts(
    settings: Sequence[_ComparedSetting], states_by_setting: Sequence[Mapping[str, VariantState]]
) -> Mapping[tuple[int, str], Verdict]:
    """Return the verdict of each variant, by index of its setting and name; all of them are one family."""
    sequential_verdicts = {
        (index, name): state.verdict for index, states in enumerate(states_by_setting) for name, state in states.items()
    }
    main = settings[0].comparison
    return sequential_verdicts or decide(
        {
            (index, name): differences
            for index, setting in enumerate(settings)
            for name, differences in setting.differences()
        },
        better=main.better,
        margin=main.margin,
        alpha=main.alpha,
    )


def _refuse_mixed_machines(settings: Sequence[_ComparedSetting]) -> None:
    across = [line for setting in settings for line in across_machines(setting.paired)]
    if across:
        message = f"pairs of two processors or numbers of threads: {join_names(across, MAX_NAMES)}"
        valid = "both trials of a pair on one model of processor with one number of threads, or no `--strict`"
        raise NotComparableError(Problem(code="mixed-machines", message=message, valid=valid))


@final
@dataclass(frozen=True, eq=False)
class _ComparedSetting:
    """The trials of one setting, paired and certified."""

    comparison: ComparisonSpec
    selection: Selection
    row_inputs: Mapping[str, RowInput]
    seed_counts: Mapping[str, int]  # variant -> number of seeds that it needs

    @property
    def paired(self) -> Mapping[str, PairedTrials]:
        return {name: row_input.paired for name, row_input in self.row_inputs.items()}

    @property
    def trials(self) -> TrialsByVariant:
        return self.selection.trials

    @property
    def started(self) -> bool:
        """Return whether any trial has a record."""
        return any(
            entry.record is not None for variant_trials in self.trials.values() for entry in variant_trials.values()
        )

    def differences(self) -> Iterator[tuple[str, PairedDifferences]]:
        """Yield the differences of each variant."""
        for name, pairs in self.paired.items():
            yield name, paired_differences(self.trials, name, pairs, self.comparison)


def _compare_setting(
    entries: Sequence[TrialEntry],
    comparison: ComparisonSpec,
    selection: Selection,
    states: Mapping[str, VariantState],
) -> _ComparedSetting:
    """Pair and certify the trials of a setting. `states` is empty unless the study may stop early."""
    counts = seeds_by_variant(states, comparison)
    if states:
        selection = select((entry for entry in entries if is_needed(entry, counts, comparison)), comparison)
    return _ComparedSetting(comparison, selection, row_inputs(selection.trials, comparison, states), counts)


def _table(compared: _ComparedSetting, verdicts: Mapping[str, Verdict], family: int, settings: int) -> Table:
    """Return the table of one setting, with the verdicts that all settings together allow."""
    comparison, selection, trials, paired = compared.comparison, compared.selection, compared.trials, compared.paired
    rows = tuple(
        variant_row(row_input.trials, name, row_input.paired, verdicts[name], row_input.comparison)
        for name, row_input in compared.row_inputs.items()
    )
    counts = compared.seed_counts
    baseline = baseline_row(trials, first_seeds(trials, comparison, counts[comparison.baseline])[1])
    entries = [entry for variant_trials in trials.values() for entry in variant_trials.values()]
    families = (*ladder_steps(trials, comparison, settings), *effects(trials, paired, comparison, settings))
    dropped = tuple(_dropped(trials, paired, comparison, counts))
    return Table(
        study=comparison.study,
        stage=comparison.stage,
        setting=comparison.setting,
        metric=comparison.metric,
        better=comparison.better,
        margin=comparison.margin,
        last=comparison.last,
        alpha=comparison.alpha,
        seeds=comparison.seeds,
        baseline=baseline,
        rows=rows,
        correction=correction(rows, family, comparison.scope),
        open_ended=comparison.open_ended,
        caption=tuple(caption_lines(comparison, rows, entries, family, families)),
        warnings=tuple(warning_lines(comparison, (baseline, *rows), entries, paired)),
        notes=(*dropped, *skipped_notes(counts, comparison), *selection.notes),
        certificates={name: pairs.certificate for name, pairs in paired.items() if pairs.certificate is not None},
        families=families,
        differences={name: _differences(pairs, comparison) for name, pairs in paired.items() if not pairs.reason},
        values={
            name: _values(trials[name], comparison)
            for name in (comparison.baseline, *(name for name, pairs in paired.items() if not pairs.reason))
        },
    )


def _values(variant_trials: Mapping[int, TrialEntry], comparison: ComparisonSpec) -> dict[int, float]:
    """Return the metric of each seed that has finished."""
    values = {seed: entry.value(comparison.metric) for seed, entry in variant_trials.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _differences(paired: PairedTrials, comparison: ComparisonSpec) -> dict[int, float]:
    """Return the difference of each seed."""
    differences: dict[int, float] = {}
    for baseline, variant in paired.finished:
        baseline_value, variant_value = baseline.value(comparison.metric), variant.value(comparison.metric)
        assert baseline_value is not None, "both trials have finished"
        assert variant_value is not None, "both trials have finished"
        differences[variant.seed] = variant_value - baseline_value
    return differences


def _dropped(
    trials: TrialsByVariant,
    paired: Mapping[str, PairedTrials],
    comparison: ComparisonSpec,
    seed_counts: Mapping[str, int],
) -> Iterator[str]:
    """Yield the finished trials that the verdict does not use."""
    baseline_seeds = _finished_seeds(trials[comparison.baseline], comparison)
    for name, pairs in paired.items():
        for mixed in pairs.mixed_runtimes:
            yield f"{name}: skipped {mixed}"
        base_seeds = baseline_seeds & set(comparison.seeds[: seed_counts.get(name, len(comparison.seeds))])
        variant_seeds = _finished_seeds(trials[name], comparison)
        unpaired = [(variant_seeds - base_seeds, name), (base_seeds - variant_seeds, comparison.baseline)]
        counts = [f"seed {join_names(sorted(seeds), MAX_NAMES)} of {side}" for seeds, side in unpaired if seeds]
        if counts:
            yield f"{name}: {plural(len(variant_seeds & base_seeds), 'common seed')}; unpaired: {join_names(counts)}"


def _finished_seeds(variant_trials: Mapping[int, TrialEntry], comparison: ComparisonSpec) -> set[int]:
    return {seed for seed, entry in variant_trials.items() if entry.value(comparison.metric) is not None}
