"""The public way to a verdict: a study and its store in, a table out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from paribus.durable import digest_json
from paribus.report.compare import compare as compared
from paribus.report.entry import Question, gathered
from paribus.report.table import Table
from paribus.studies.designs import BASELINE, about
from paribus.studies.identity import identity_of
from paribus.studies.planned import Planned, study
from paribus.studies.settings import Setting
from paribus.studies.store import Trial


def compare(planned: Planned | str | Path, *, accept_code: Collection[str] = ()) -> Table:
    """The verdict table of a study, from the records that it has.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`
    """
    if not isinstance(planned, Planned):
        planned = study(planned)
    question = question_of(planned)
    trials = [trial for variant in planned.plan.variants for trial in planned.plan.of(variant.name)]
    found = gathered(planned.store, trials, planned.plan.trials)
    table = compared(found, question, accept_code=accept_code)
    if any(row.n for row in table.rows):  # means alone tell which way it goes
        planned.store.looked(_baseline(planned), question.seeds)
    return table


def _baseline(planned: Planned) -> str:
    """What a study's verdicts are held against, whatever the seeds and the code."""
    known = {trial.identity: trial for trial in planned.plan.trials}
    trial: Trial | None = planned.plan.of(BASELINE)[0]
    specs = []
    while trial is not None:
        began = {"from": {**trial.spec["from"], "trial": ""}} if trial.begins else {}
        specs.append(identity_of({**trial.spec, **began, "seed": 0}, "", ""))
        trial = known.get(trial.begins)
    return specs[0] if len(specs) == 1 else digest_json(specs)


def below(held: Setting) -> dict[str, str]:
    """For each rung of a ladder that is run, the one below it, or whichever has the same spec as that."""
    same = {each.variant: each.same for each in held.excluded}
    return {each.name: same.get(each.after, each.after) for each in held.variants if each.after}


def question_of(planned: Planned) -> Question:
    """What the study asks."""
    asked = planned.plan.study
    return Question(
        study=asked.name,
        baseline=BASELINE,
        variants={variant.name: dict(variant.changes) for variant in planned.plan.variants},
        metric=asked.metric.name,
        better=asked.metric.better,
        margin=asked.metric.margin,
        seeds=asked.seeds,
        store=str(planned.store.root.resolve()),
        unlearned=asked.metric.unlearned,
        stage=asked.metric.stage,
        about=about(asked.design, asked.varied),
        below=below(planned.plan.setting()),
        excluded=tuple((each.variant, each.why) for each in planned.plan.excluded),
        budget=next(stage.budget or asked.budget for stage in asked.stages if stage.name == asked.metric.stage),
        looks=tuple(planned.store.looks(_baseline(planned))),
    )
