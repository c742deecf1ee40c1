"""The public way to a verdict: a study and its store in, a table out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paribus.analysis.compare import codes_by_setting, compare_settings
from paribus.analysis.early_stopping import seeds_by_variant, variant_states
from paribus.analysis.factorial import factorial_cells
from paribus.analysis.select_trials import select
from paribus.analysis.table import Section, Table
from paribus.analysis.transfer import knob_notes, matching_note, mismatch_note, transfer_sections, tuning_sections
from paribus.analysis.trials import ComparisonSpec, Throughput, TrialEntry, load_entries, read_records
from paribus.planning.api import PlannedStudy, study
from paribus.planning.identity import identity_of
from paribus.planning.settings import Setting
from paribus.runner.api import StoppingDecision
from paribus.runner.match_time import unsolved_matches
from paribus.runner.timing import timing_document
from paribus.storage.atomic import digest_json
from paribus.storage.store import Trial
from paribus.studies.designs import BASELINE, describe_design


def compare(planned: PlannedStudy | str | Path, *, accept_code: Collection[str] = ()) -> Table:
    """Return the verdict table of a study, from the records in its store."""
    if not isinstance(planned, PlannedStudy):
        planned = study(planned)
    planned = planned.replan()
    settings = planned.plan.settings
    records = read_records(planned.store)
    asked = [(_entries(planned, setting, records), comparison_spec(planned, setting)) for setting in settings]
    table = compare_settings(asked, accept_code=accept_code)
    for setting in settings:
        found = next((each for each in table.settings if each.setting == setting.name), None)
        if found is not None and any(row.n for row in found.rows):  # means alone tell which way it goes
            asks = planned.plan.study
            planned.store.add_look(_baseline(planned, setting), asks.seeds, asks.looks)
    return replace(
        table,
        sections=(*_untimed(planned), *transfer_sections(table, settings), *tuning_sections(planned.plan, records)),
    )


def _untimed(planned: PlannedStudy) -> Iterator[Section]:
    """What is not known before steps were timed; nothing, once they were."""
    if lines := tuple(unsolved_matches(planned)):
        document = {"not_known": list(lines)}
        yield Section(key="matching", title="matched on time", lines=lines, document=document, ok=False)


def table_trials(planned: PlannedStudy, *, accept_code: Collection[str] = ()) -> dict[str, list[TrialEntry]]:
    """Return the trials in the table of each setting: no stale record that was not accepted."""
    settings = entries_by_setting(planned.replan())
    codes = codes_by_setting([entries for entries, _ in settings], accept_code)
    return {
        spec.setting: [
            entry
            for variant_trials in select(entries, spec, accepted).trials.values()
            for entry in variant_trials.values()
        ]
        for (entries, spec), accepted in zip(settings, codes, strict=True)
    }


def entries_by_setting(planned: PlannedStudy) -> list[tuple[list[TrialEntry], ComparisonSpec]]:
    """The trials of each setting, as the store has them, and what is asked of them."""
    records = read_records(planned.store)
    settings = planned.plan.settings
    return [(_entries(planned, setting, records), comparison_spec(planned, setting)) for setting in settings]


def stopping_decision(planned: PlannedStudy) -> StoppingDecision:
    """Return the trials that the looks of a study need next, judged by the records that it has."""
    settings, records = planned.plan.settings, read_records(planned.store)
    questions = [comparison_spec(planned, setting) for setting in settings]
    chosen = [
        select(_entries(planned, setting, records), question).trials
        for setting, question in zip(settings, questions, strict=True)
    ]
    asked: set[str] = set()
    may_be: set[str] = set()
    reached: dict[str, str] = {}
    every = variant_states(list(zip(chosen, questions, strict=True)))
    for setting, question, turns in zip(settings, questions, every, strict=True):
        counts = seeds_by_variant(turns, question)
        most = {name: turn.seeds_needed if turn.decided else None for name, turn in turns.items()}
        most[BASELINE] = None if any(not turn.decided for turn in turns.values()) else counts[BASELINE]
        asked |= _first(setting, counts)
        may_be |= _first(setting, most)
        where = f", {setting.name}" if setting.name else ""
        told = {name: f"{turn.verdict.text} after {turn.n} seeds" for name, turn in turns.items() if turn.decided}
        reached |= {f"{name}{where}": text for name, text in told.items()}
    return StoppingDecision(
        tuple(trial for trial in planned.plan.trials if trial.identity in asked),
        frozenset(trial.identity for trial in planned.plan.trials if trial.identity not in may_be),
        reached,
    )


def skipped_trials(planned: PlannedStudy) -> frozenset[str]:
    """Return the identities of trials that are not needed because earlier records decided their variant."""
    return stopping_decision(planned).skipped if planned.plan.study.looks else frozenset()


def _first(setting: Setting, counts: Mapping[str, int | None]) -> set[str]:
    """The trials of the first seeds of each variant of a setting, at every stage."""
    return {
        trial.identity
        for name, count in counts.items()
        for stage in setting.study.stages
        for trial in setting.trials_of(name, stage.name)[:count]
    }


def _entries(planned: PlannedStudy, setting: Setting, records: Mapping[str, Mapping[str, Any]]) -> list[TrialEntry]:
    """The trials of a setting, as it has them: what a pair may differ in is the setting's own."""
    trials = [trial for variant in setting.variants for trial in setting.trials_of(variant.name)]
    through = [trial for own in setting.trials.values() for trial in own]
    return load_entries(planned.store, trials, [*planned.plan.trials, *through], records)


def _baseline(planned: PlannedStudy, setting: Setting) -> str:
    """What a setting's verdicts are held against, whatever the seeds and the code; nothing, while that is not known."""
    known = planned.plan.trial_by_identity
    trial: Trial | None = next(iter(setting.trials_of(BASELINE)), None)
    if trial is None:
        return ""
    specs = []
    while trial is not None:
        began = {"from": {**trial.spec["from"], "trial": ""}} if trial.parent_id else {}
        specs.append(identity_of({**trial.spec, **began, "seed": 0}, "", ""))
        trial = known.get(trial.parent_id)
    return specs[0] if len(specs) == 1 else digest_json(specs)


def rungs_below(held: Setting) -> dict[str, str]:
    """For each rung of a ladder that is run, the one below it, or whichever has the same spec as that."""
    same = {each.variant: each.same_as for each in held.excluded}
    return {each.name: same.get(each.previous, each.previous) for each in held.variants if each.previous}


def comparison_spec(planned: PlannedStudy, setting: Setting | None = None) -> ComparisonSpec:
    """What the study asks, in one of its settings: the first, unless one is given."""
    asked, setting = planned.plan.study, setting or planned.plan.settings[0]
    return ComparisonSpec(
        study=asked.name,
        baseline=BASELINE,
        variants={variant.name: dict(variant.changes) for variant in setting.variants},
        metric=asked.metric.name,
        better=asked.metric.better,
        margin=asked.metric.margin,
        seeds=asked.seeds,
        store=str(planned.store.root.resolve()),
        allow_unlearned=asked.metric.unlearned,
        stage=asked.metric.stage,
        design_note=describe_design(asked.design, asked.varied),
        rungs_below=rungs_below(setting),
        factorial=factorial_cells(asked.varied, setting) if asked.design == "factorial" else None,
        excluded=tuple((each.variant, each.reason) for each in setting.excluded),
        budget=next(stage.budget or asked.budget for stage in asked.stages if stage.name == asked.metric.stage),
        setting=setting.name,
        matching_note=matching_note(setting),
        mismatch_note=mismatch_note(setting),
        knob_notes=knob_notes(setting),
        previous_looks=tuple(planned.store.looks(_baseline(planned, setting))),
        look_seeds=asked.looks,
        replanned=planned.store.has_other_stops(_baseline(planned, setting), asked.seeds, asked.looks),
        throughput=None if (found := timing_document(planned.store)) is None else Throughput(found),
    )
