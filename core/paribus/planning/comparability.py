"""Comparability of a study's trials as far as their specs show it, checked before any trial runs.

Conditions that only records show, such as other code or other batches, are in `paribus.analysis.comparability`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from paribus.errors import Problem, SpecError, join_names
from paribus.planning.plan import Plan
from paribus.planning.tuning import format_cell
from paribus.registry import Index
from paribus.storage.atomic import digest_json
from paribus.storage.store import Trial
from paribus.studies.designs import BASELINE
from paribus.studies.study import Study

Spec = Mapping[str, Any]
MetricNames = Callable[[Spec], Sequence[str]]  # all metrics of a spec's trial
ExamplesDigest = Callable[[Spec], str]  # of the validation examples of a spec's trial
MAX_NAMES: Final = 8
TEXTUAL: Final = ("other-tokenizer",)  # conditions that a metric per byte does not need


@final
class Condition(NamedTuple):
    """A property that all variants of a study must share."""

    code: str
    name: str
    value_of: Callable[[Trial], Any]
    valid: str


def is_per_byte(metric: str) -> bool:
    """Return whether a metric is per byte of text, so that it does not depend on the tokenizer."""
    return metric.endswith("/bits-per-byte")


def evaluation_objectives(spec: Spec) -> list[Mapping[str, Any]]:
    """Return the objectives of a trial's evaluation: those of `evaluate`, or else those of training."""
    return _as_list(spec.get("evaluate")) or _as_list(spec["objective"])


def evaluation_nodes(spec: Spec) -> list[Any]:
    """Return the names of the evaluated objectives, and the measures with their options."""
    return [*(node["name"] for node in evaluation_objectives(spec)), *_as_list(spec.get("measure"))]


def _as_list(node: Any) -> list[Mapping[str, Any]]:
    return list(node) if isinstance(node, list | tuple) else [node] if node else []


CONDITIONS: Final = (
    Condition("other-corpus", "the corpus", lambda trial: trial.corpus, "one corpus in a study"),
    Condition(
        "other-tokenizer",
        "the tokenizer",
        lambda trial: trial.spec["tokenizer"],
        "one tokenizer in a study, since metrics per token are not comparable across tokenizers; "
        "or a metric per byte, such as val/clm/bits-per-byte",
    ),
    Condition(
        "other-objective",
        "the evaluated objectives and measures",
        lambda trial: evaluation_nodes(trial.spec),
        "`evaluate:` and `measure:` in the study, the same for every variant",
    ),
    Condition("other-length", "`dims.length`", lambda trial: trial.spec["dims"]["length"], "one length in a study"),
    Condition(
        "other-validation",
        "`data.validation`",
        lambda trial: trial.spec["data"]["validation"],
        "as many validation examples for every variant",
    ),
)


def check_comparable(plan: Plan, index: Index, metric_names: MetricNames, examples: ExamplesDigest) -> None:
    """Raise a `SpecError` with every reason why variants cannot be compared.

    `metric_names` is called only for a metric that is not a term of a loss, and `examples` only where variants evaluate
    an objective with different options.
    """
    problems: list[Problem] = []
    for trials in _trials_by_setting(plan):
        new = [*condition_problems(plan.study, trials), *metric_problems(plan.study, trials, index, metric_names)]
        problems += new or _examples_problems(plan, trials, examples)
    if problems:
        raise SpecError(*dict.fromkeys(problems))


def _trials_by_setting(plan: Plan) -> Iterator[dict[str, Trial]]:
    """Yield a trial of each variant of a setting, and of each of its tuning candidates."""
    for setting in plan.settings:
        if not setting.tuned:
            names = [variant.name for variant in setting.variants]
            trials = {name: setting.untimed.get(name) or setting.trials_of(name)[0] for name in names}
            for tuning in plan.tuned:
                if tuning.setting == setting.name:
                    for candidate in tuning.candidates:
                        trials[f"{tuning.variant} with {format_cell(candidate.cell)}"] = candidate.trials[0]
            yield trials


def condition_problems(study: Study, trials: Mapping[str, Trial]) -> Iterator[Problem]:
    """Yield the conditions in which a variant's trial differs from the baseline's."""
    for condition in CONDITIONS:
        if condition.code in TEXTUAL and is_per_byte(study.metric.name):
            continue
        baseline = digest_json([condition.value_of(trials[BASELINE])])
        others = [name for name, trial in trials.items() if digest_json([condition.value_of(trial)]) != baseline]
        if others:
            message = f"{join_names(others, MAX_NAMES)} and {BASELINE} differ in {condition.name}, "
            message += "so no table could compare them"
            yield _difference(study, trials, others, condition.code, message, condition.valid)


def _difference(
    study: Study, trials: Mapping[str, Trial], others: Sequence[str], code: str, message: str, valid: str
) -> Problem:
    return Problem(
        code=code,
        path=others[0] if len(others) == 1 else "",
        location=study.location_of(next(iter(trials[others[0]].changes), "")),
        message=message,
        valid=valid,
    )


def metric_problems(
    study: Study, trials: Mapping[str, Trial], index: Index, metric_names: MetricNames
) -> Iterator[Problem]:
    """Yield a problem for variants that do not measure the metric of the verdict."""
    metric = study.metric.name
    missing: list[str] = []
    cache: dict[str, Sequence[str]] = {}
    for name, trial in trials.items():
        if metric in _loss_terms(trial.spec, index):
            continue
        objectives = [trial.spec["objective"], trial.spec.get("evaluate")]
        key = digest_json([trial.spec] if trial.spec.get("measure") else objectives)
        if key not in cache:
            cache[key] = metric_names(trial.spec)
        if metric not in cache[key]:
            missing.append(name)
    if missing:
        subject = "no variant would" if len(missing) == len(trials) else f"{join_names(missing, MAX_NAMES)} would not"
        yield Problem(
            code="no-metric",
            path="metric.name",
            location=study.location(("metric", "name")),
            message=f"{subject} measure `{metric}`",
            valid=join_names(dict.fromkeys(name for names in cache.values() for name in names)),
        )


def _examples_problems(plan: Plan, trials: Mapping[str, Trial], examples: ExamplesDigest) -> Iterator[Problem]:
    """Yield a problem for variants whose validation examples differ, as with another masking rate or vocabulary."""
    learned = {name: (trial.spec.get("from") or {}).get("learned") for name, trial in trials.items()}
    keys = {name: digest_json([evaluation_objectives(trial.spec), learned[name]]) for name, trial in trials.items()}
    if len(set(keys.values())) == 1:
        return
    digests = {key: examples(trials[name].spec) for name, key in keys.items()}
    others = [name for name, key in keys.items() if digests[key] != digests[keys[BASELINE]]]
    valid = "`evaluate:` in the study, the same for every variant"
    if any(learned[name] != learned[BASELINE] for name in others):
        valid = "one vocabulary for all: a tokenizer without training, or a stage with `vocabulary: new`"
    if others:
        message = f"{join_names(others, MAX_NAMES)} and {BASELINE} would not be measured on the same examples"
        yield _difference(plan.study, trials, others, "other-validation", message, valid)


def _loss_terms(spec: Spec, index: Index) -> set[str]:
    """Return the metrics that are terms of losses: they are known without building a model."""
    return {
        f"val/{node['name']}/{term}"
        for node in evaluation_objectives(spec)
        for term in index.find("objective", node["name"]).terms
    }
