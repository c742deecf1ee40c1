"""Verdict tables of planned studies: load the trials from the store, compare them, and record the look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from paribus.analysis.compare import compare_settings
from paribus.analysis.early_stopping import seeds_by_variant, variant_states
from paribus.analysis.factorial import factorial_cells
from paribus.analysis.matching_notes import matched_option_notes, matching_note, mismatch_note
from paribus.analysis.program_certificate import repetition
from paribus.analysis.scale_transfer import transfer_sections
from paribus.analysis.select_trials import select
from paribus.analysis.table import Section, Table
from paribus.analysis.task_average import Question, average_question
from paribus.analysis.throughput import Throughput
from paribus.analysis.trials import ComparisonSpec, Repetition, TrialEntry, load_entries, read_records
from paribus.analysis.tuning_section import tuning_sections
from paribus.analysis.worth_section import worth_sections
from paribus.planning.api import PlannedStudy, study
from paribus.planning.identity import identity_of
from paribus.planning.settings import Setting
from paribus.runner.match_time import unsolved_matches
from paribus.runner.timing import timing_document
from paribus.storage.atomic import digest_json
from paribus.storage.store import FINISHED, Trial
from paribus.studies.designs import BASELINE, describe_design
from paribus.studies.study_keys import Metric
from paribus.studies.task_metrics import AVERAGE

UNRECORDED: Final = (
    "This look could not be recorded: the store is not writable. A later comparison cannot warn about seeds that are "
    "added after it."
)


def compare(planned: PlannedStudy | str | Path, *, strict: bool = False) -> Table:
    """Return the verdict table of a study, from the records in its store."""
    if not isinstance(planned, PlannedStudy):
        planned = study(planned)
    planned = planned.replan()
    records = read_records(planned.store)
    questions = [question for _, question in _questions(planned, records)]
    table = compare_settings(questions, strict=strict)
    if not _record_looks(planned, table):
        table = replace(table, notes=(*table.notes, UNRECORDED))
    sections = (
        *_unsolved_matches_section(planned),
        *transfer_sections(_by_setting(planned, table), planned.plan.settings),
        *tuning_sections(planned.plan, records),
        *worth_sections(planned.plan, _by_setting(planned, table), records),
    )
    return replace(table, sections=sections)


def _record_looks(planned: PlannedStudy, table: Table) -> bool:
    """Record in the store that these verdicts were shown; return False if the store is not writable."""
    study_spec = planned.plan.study
    shown_variants = {
        setting_table.setting: {row.variant for row in setting_table.rows if row.n} for setting_table in table.settings
    }
    keys = [
        key
        for setting in planned.plan.settings
        for metric in study_spec.metrics
        for variant, key in _comparison_keys(planned, setting, metric).items()
        if variant in shown_variants.get(_question_name(planned, setting, metric), ())
    ]
    results = [planned.store.add_look(key, study_spec.seeds, study_spec.looks) for key in keys]
    return all(results)


def _unsolved_matches_section(planned: PlannedStudy) -> Iterator[Section]:
    """Yield a section that lists the variants whose match on time needs a timing pass first."""
    if lines := tuple(unsolved_matches(planned)):
        document = {"unmatched": list(lines)}
        yield Section(key="matching", title="matched on time", lines=lines, document=document, ok=False)


def table_trials(planned: PlannedStudy) -> dict[str, list[TrialEntry]]:
    """Return the trials in the table of each setting, without stale records; an average has none of its own."""
    settings = entries_by_setting(planned.replan())
    return {
        comparison.setting: [
            entry
            for variant_trials in select(entries, comparison).trials.values()
            for entry in variant_trials.values()
            if not entry.tasks
        ]
        for entries, comparison in settings
    }


def entries_by_setting(planned: PlannedStudy) -> list[Question]:
    """Return the trials of each setting and task with their records, and its comparison."""
    return [question for _, question in _questions(planned, read_records(planned.store))]


def _questions(planned: PlannedStudy, records: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Setting, Question]]:
    """Yield what each table compares: in each setting the metric, or the average over tasks and then each task."""
    metrics = planned.plan.study.metrics
    second_run = _repetition(planned)
    for setting in planned.plan.settings:
        questions = [
            (
                _entries(planned, setting, metric, records),
                replace(comparison_spec(planned, setting, metric), repetition=second_run),
            )
            for metric in metrics
        ]
        if len(metrics) > 1:
            entries, comparison = average_question(questions, metrics)
            name = ", ".join(filter(None, (setting.name, AVERAGE)))
            yield setting, (entries, replace(comparison, setting=name))
        yield from ((setting, question) for question in questions)


def _question_name(planned: PlannedStudy, setting: Setting, metric: Metric) -> str:
    """Return the name of a table: of the setting, with the task, and with the metric if the task has several."""
    names = [other.name.split("/")[1:] for other in planned.plan.study.task_metrics if other.task == metric.task]
    words = metric.name.split("/")[1:]
    if len({name[0] for name in names}) == 1:
        words = words[1:]  # all are metrics of one objective or measure
    task = " ".join([metric.task, *(words if len(names) > 1 else [])]) if names else ""
    return ", ".join(filter(None, (setting.name, task)))


def _by_setting(planned: PlannedStudy, table: Table) -> Table:
    """Return the table with one table for each setting: of several tasks, that of their average."""
    if not planned.plan.study.task_metrics:
        return table
    name_by_table = {", ".join(filter(None, (it.name, AVERAGE))): it.name for it in planned.plan.settings}
    first, *others = (
        replace(it, setting=name_by_table[it.setting], other_settings=())
        for it in table.settings
        if it.setting in name_by_table
    )
    return replace(first, other_settings=tuple(others))


@final
@dataclass(frozen=True)
class StoppingDecision:
    """State of a study that stops early, according to its records."""

    trials_to_run: tuple[Trial, ...]  # trials of the next look, with the trials that they start from
    skipped: frozenset[str]  # identities of trials that no look needs
    verdicts: Mapping[str, str]  # variant -> its final verdict, and after how many seeds


def stopping_decision(planned: PlannedStudy) -> StoppingDecision:
    """Return the trials that the next looks of a study need, according to its records."""
    settings, questions = zip(*_questions(planned, read_records(planned.store)), strict=True)
    comparisons = [comparison for _, comparison in questions]
    trials_by_setting = [select(entries, comparison).trials for entries, comparison in questions]
    states_by_setting = variant_states(list(zip(trials_by_setting, comparisons, strict=True)))
    needed_now: set[str] = set()
    needed_at_most: set[str] = set()
    verdicts: dict[str, str] = {}
    for setting, comparison, states in zip(settings, comparisons, states_by_setting, strict=True):
        counts = seeds_by_variant(states, comparison)
        limits = {name: state.seeds_needed if state.decided else None for name, state in states.items()}
        limits[BASELINE] = counts[BASELINE] if all(state.decided for state in states.values()) else None
        needed_now |= _identities(setting, counts)
        needed_at_most |= _identities(setting, limits)
        suffix = f", {comparison.setting}" if comparison.setting else ""
        verdicts |= {
            f"{name}{suffix}": f"{state.verdict.text} after {state.n} seeds"
            for name, state in states.items()
            if state.decided
        }
    return StoppingDecision(
        tuple(trial for trial in planned.plan.trials if trial.identity in needed_now),
        frozenset(trial.identity for trial in planned.plan.trials if trial.identity not in needed_at_most),
        verdicts,
    )


def skipped_trials(planned: PlannedStudy) -> frozenset[str]:
    """Return the identities of trials that never need to run, as the verdict of their variant is final."""
    return stopping_decision(planned).skipped if planned.plan.study.looks else frozenset()


def pending_trials(planned: PlannedStudy) -> list[Trial]:
    """Return the trials that need to run: without a record, and not skipped."""
    skipped = skipped_trials(planned)
    return [
        trial
        for trial in planned.plan.trials
        if trial.identity not in skipped and planned.store.state(trial.identity) not in FINISHED
    ]


def trial_to_repeat(planned: PlannedStudy) -> Trial | None:
    """Return the trial of a program that has to run again: the baseline's first seed in the first setting.

    None for other studies, and if a trial of the baseline was repeated already, or has no record.
    """
    if planned.plan.study.program is None or _repetition(planned) is not None:
        return None
    trials = planned.plan.settings[0].trials_of(BASELINE, planned.plan.study.metric.stage)
    return next((trial for trial in trials if planned.store.state(trial.identity) in FINISHED), None)


def _repetition(planned: PlannedStudy) -> Repetition | None:
    """Return how a trial of the baseline of a program compares with its second run; None if there is none."""
    if planned.plan.study.program is None:
        return None
    setting, metric = planned.plan.settings[0], planned.plan.study.metric
    for trial in setting.trials_of(BASELINE, metric.stage):
        again = planned.store.rehearsal(trial.identity)
        record = planned.store.record(trial.identity) if again is not None and "failure" not in again else None
        if record is not None and again is not None:
            return repetition(record, again, metric.name, trial.label, _question_name(planned, setting, metric))
    return None


def _identities(setting: Setting, counts: Mapping[str, int | None]) -> set[str]:
    """Return the identities of the trials of the first `counts[variant]` seeds, at every stage; None stands for all."""
    return {
        trial.identity
        for name, count in counts.items()
        for stage in setting.study.stages
        for trial in setting.trials_of(name, stage.name)[:count]
    }


def _entries(
    planned: PlannedStudy, setting: Setting, metric: Metric, records: Mapping[str, Mapping[str, Any]]
) -> list[TrialEntry]:
    """Return the trials of a setting that measure a metric, with their records."""
    trials = [trial for variant in setting.variants for trial in setting.trials_of(variant.name, metric.stage)]
    trials_of_stages = [trial for variant_trials in setting.trials.values() for trial in variant_trials]
    parents = [*planned.plan.trials, *trials_of_stages]
    return load_entries(planned.store, trials, planned.index, parents, records, metric=metric.name, last=metric.last)


def _comparison_keys(planned: PlannedStudy, setting: Setting, metric: Metric) -> dict[str, str]:
    """Return a digest for each variant: of its spec, the baseline's, the metric and the budget.

    It is independent of seeds and code. A variant whose spec is not known yet has none.
    """
    study_spec = planned.plan.study
    keys = {
        name: _spec_key(planned, trials[0])
        for name in (variant.name for variant in setting.variants)
        if (trials := setting.trials_of(name, metric.stage))
    }
    shared = [keys.get(BASELINE), metric.name, metric.stage, study_spec.budget]
    return {name: digest_json([*shared, key]) for name, key in keys.items() if name != BASELINE and BASELINE in keys}


def _spec_key(planned: PlannedStudy, last_trial: Trial) -> str:
    """Return a digest of the specs of a trial and of the trials that it starts from, without their seeds and code."""
    specs = []
    trial: Trial | None = last_trial
    while trial is not None:
        parent = {"from": {**trial.spec["from"], "trial": ""}} if trial.parent_id else {}
        specs.append(identity_of({**trial.spec, **parent, "seed": 0}, "", ""))
        trial = planned.plan.trial_by_identity.get(trial.parent_id)
    return digest_json(specs)


def rungs_below(setting: Setting) -> dict[str, str]:
    """Map each rung of a ladder to the rung below it. An excluded rung is replaced by the one with the same spec."""
    same_as = {item.variant: item.same_as for item in setting.excluded}
    return {item.name: same_as.get(item.previous, item.previous) for item in setting.variants if item.previous}


def comparison_spec(
    planned: PlannedStudy, setting: Setting | None = None, metric: Metric | None = None
) -> ComparisonSpec:
    """Return the comparison of one setting of a study and one metric, by default the first of each."""
    study_spec, setting = planned.plan.study, setting or planned.plan.settings[0]
    metric = metric or study_spec.metric
    keys = _comparison_keys(planned, setting, metric).values()
    return ComparisonSpec(
        study=study_spec.name,
        baseline=BASELINE,
        variants={variant.name: dict(variant.changes) for variant in setting.variants},
        metric=metric.name,
        better=metric.better,
        margin=metric.margin,
        last=metric.last,
        seeds=study_spec.seeds,
        store=str(planned.store.root.resolve()),
        allow_unlearned=metric.unlearned,
        stage=metric.stage,
        design_note=describe_design(study_spec.design, study_spec.varied),
        rungs_below=rungs_below(setting),
        factorial=factorial_cells(study_spec.varied, setting) if study_spec.design == "factorial" else None,
        excluded=tuple((cell.variant, cell.reason) for cell in setting.excluded),
        budget=next(stage.budget or study_spec.budget for stage in study_spec.stages if stage.name == metric.stage),
        setting=_question_name(planned, setting, metric),
        scope="over all tasks and the average" if study_spec.task_metrics else "in all settings",
        matching_note=matching_note(setting),
        mismatch_note=mismatch_note(setting),
        matched_option_notes=matched_option_notes(setting),
        previous_looks=tuple(dict.fromkeys(look for key in keys for look in planned.store.looks(key))),
        look_seeds=study_spec.looks,
        open_ended=study_spec.open_ended,
        replanned=any(planned.store.has_other_stops(key, study_spec.seeds, study_spec.looks) for key in keys),
        throughput=None if (document := timing_document(planned.store)) is None else Throughput(document),
    )
