"""What would keep the trials of a study out of one table, as far as their specs tell: refused before any of them runs.

What only records can tell (other code, other batches, other versions) is asked of them by
`paribus.analysis.comparability`.
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
MetricNames = Callable[[Spec], Sequence[str]]  # the names of all metrics that a spec's trial will have
ExamplesDigest = Callable[[Spec], str]  # a digest of the validation examples that a spec's trial will be measured on
MAX_NAMES: Final = 8
TEXTUAL: Final = ("other-tokenizer",)  # of what is measured of the text itself, a tokenizer makes no other thing


@final
class Condition(NamedTuple):
    """Something that all variants of a study must have in common."""

    code: str
    what: str
    of: Callable[[Trial], Any]
    valid: str


def is_per_byte(metric: str) -> bool:
    """Whether what is measured is told of each byte of a text, whatever its tokens."""
    return metric.endswith("/bits-per-byte")


def evaluation_objectives(spec: Spec) -> list[Mapping[str, Any]]:
    """The objectives that a trial is evaluated with, and how: as `evaluate:` says, or else as it was trained."""
    return _listed(spec.get("evaluate")) or _listed(spec["objective"])


def evaluation_nodes(spec: Spec) -> list[Any]:
    """The names of the objectives that a trial is evaluated with, and the measures, how they are asked included."""
    return [*(node["name"] for node in evaluation_objectives(spec)), *_listed(spec.get("measure"))]


def _listed(node: Any) -> list[Mapping[str, Any]]:
    return list(node) if isinstance(node, list | tuple) else [node] if node else []


CONDITIONS: Final = (
    Condition("other-corpus", "the corpus", lambda trial: trial.corpus, "one corpus in a study"),
    Condition(
        "other-tokenizer",
        "the tokenizer",
        lambda trial: trial.spec["tokenizer"],
        "one tokenizer in a study, as what is measured per token is not comparable across tokenizers; "
        "or a metric of bytes, such as val/clm/bits-per-byte",
    ),
    Condition(
        "other-objective",
        "what is measured",
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


def check_comparable(plan: Plan, index: Index, measured: MetricNames, examples: ExamplesDigest) -> None:
    """A `SpecError` with every reason.

    `measured` is only asked about a metric that is no term of a loss, and `examples` only where variants evaluate an
    objective with other options.
    """
    problems: list[Problem] = []
    for trials in _compared(plan):
        found = [*condition_problems(plan.study, trials), *metric_problems(plan.study, trials, index, measured)]
        problems += found or _examples(plan, trials, examples)
    if problems:
        raise SpecError(*dict.fromkeys(problems))


def _compared(plan: Plan) -> Iterator[dict[str, Trial]]:
    """A trial of each variant of a setting, and of whatever may be chosen for it."""
    for setting in plan.settings:
        if not setting.tuned:
            names = [variant.name for variant in setting.variants]
            found = {name: setting.untimed.get(name) or setting.trials_of(name)[0] for name in names}
            for each in plan.tuned:
                if each.setting == setting.name:
                    found |= {
                        f"{each.variant} with {format_cell(tried.cell)}": tried.trials[0] for tried in each.candidates
                    }
            yield found


def condition_problems(study: Study, trials: Mapping[str, Trial]) -> Iterator[Problem]:
    """What a trial of each variant does not share with the baseline's."""
    for condition in CONDITIONS:
        if condition.code in TEXTUAL and is_per_byte(study.metric.name):
            continue
        wanted = digest_json([condition.of(trials[BASELINE])])
        others = [name for name, trial in trials.items() if digest_json([condition.of(trial)]) != wanted]
        if others:
            yield Problem(
                code=condition.code,
                path=others[0] if len(others) == 1 else "",
                location=study.location_of(next(iter(trials[others[0]].changes), "")),
                message=f"{join_names(others, MAX_NAMES)} and {BASELINE} would not share {condition.what}, "
                "so that no table could compare them",
                valid=condition.valid,
            )


def metric_problems(
    study: Study, trials: Mapping[str, Trial], index: Index, measured: MetricNames
) -> Iterator[Problem]:
    """Whether every variant will measure what the verdict is about."""
    metric = study.metric.name
    missing: list[str] = []
    known: dict[str, Sequence[str]] = {}
    for name, trial in trials.items():
        if metric in _losses(trial.spec, index):
            continue
        told = [trial.spec["objective"], trial.spec.get("evaluate")]
        key = digest_json([trial.spec] if trial.spec.get("measure") else told)
        if key not in known:
            known[key] = measured(trial.spec)
        if metric not in known[key]:
            missing.append(name)
    if missing:
        who = "no variant would" if len(missing) == len(trials) else f"{join_names(missing, MAX_NAMES)} would not"
        yield Problem(
            code="no-metric",
            path="metric.name",
            location=study.location(("metric", "name")),
            message=f"{who} measure `{metric}`",
            valid=join_names(dict.fromkeys(name for names in known.values() for name in names)),
        )


def _examples(plan: Plan, trials: Mapping[str, Trial], examples: ExamplesDigest) -> Iterator[Problem]:
    """Another share of hidden tokens is another task; another head is not. Neither are tokens of another vocabulary."""
    learned = {name: (trial.spec.get("from") or {}).get("learned") for name, trial in trials.items()}
    nodes = {name: digest_json([evaluation_objectives(trial.spec), learned[name]]) for name, trial in trials.items()}
    if len(set(nodes.values())) == 1:
        return
    known = {node: examples(trials[name].spec) for name, node in nodes.items()}
    others = [name for name, node in nodes.items() if known[node] != known[nodes[BASELINE]]]
    valid = "`evaluate:` in the study, the same for every variant"
    if any(learned[name] != learned[BASELINE] for name in others):
        valid = "one vocabulary for all: a tokenizer that learns nothing, or a stage with `vocabulary: new`"
    if others:
        yield Problem(
            code="other-validation",
            path=others[0] if len(others) == 1 else "",
            location=plan.study.location_of(next(iter(trials[others[0]].changes), "")),
            message=f"{join_names(others, MAX_NAMES)} and {BASELINE} would not be measured on the same validation "
            "examples, corrupted alike",
            valid=valid,
        )


def _losses(spec: Spec, index: Index) -> set[str]:
    """The terms of the losses, which are known without building anything."""
    return {
        f"val/{node['name']}/{term}"
        for node in evaluation_objectives(spec)
        for term in index.find("objective", node["name"]).terms
    }
