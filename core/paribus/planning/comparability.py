"""Conditions of comparability, each stated once, and their check before any trial runs.

A condition is a property that trials must share to be compared. What a spec shows is checked here, before the trials
run; what only a record shows, and the same properties once more, by `paribus.analysis.select_trials` after they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, final

from paribus.errors import ParibusError, Problem, join_names
from paribus.planning.last_evaluations import evaluation_problems
from paribus.registry import Index
from paribus.specs.program_spec import is_program
from paribus.specs.tree import join_keys
from paribus.storage.atomic import digest_json
from paribus.storage.store import Trial
from paribus.studies.designs import BASELINE
from paribus.studies.study import Study

Spec = Mapping[str, Any]
MetricNames = Callable[[Spec], Sequence[str]]  # all metrics of a spec's trial
ExamplesDigest = Callable[[Spec], str]  # of the validation examples of a spec's trial
LostBytes = Callable[[Spec], float]  # share of the validation text that the tokenizer of a spec does not restore
AnyTrial = TypeVar("AnyTrial")
MAX_NAMES: Final = 8
BUDGET: Final = ("trainer", "data.batch", "dims.length")  # options that set the budget of a trial


class RecordedTrial(Protocol):
    """A trial with its record."""

    @property
    def spec(self) -> Spec:
        """The resolved spec."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The reproducible part of the record."""

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The digests of the record."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where and how the trial ran."""

    @property
    def done(self) -> bool:
        """Whether the trial trained to its end."""


def is_per_byte(metric: str) -> bool:
    """Return whether a metric is per byte of text, so that it does not depend on the tokenizer."""
    return metric.endswith("/bits-per-byte")


def is_bound(metric: str) -> bool:
    """Return whether a metric is an upper bound of a negative log-likelihood, which is compared with no loss."""
    return metric.endswith("/bound")


def evaluation_objectives(spec: Spec) -> list[Mapping[str, Any]]:
    """Return the objectives of a trial's evaluation: those of `evaluate`, or else those of training."""
    return _as_list(spec.get("evaluate")) or _as_list(spec["objective"])


def evaluation_nodes(spec: Spec) -> list[Any]:
    """Return the names of the evaluated objectives, and the measures with their options."""
    return [*(node["name"] for node in evaluation_objectives(spec)), *_as_list(spec.get("measure"))]


def _as_list(node: Any) -> list[Mapping[str, Any]]:
    return list(node) if isinstance(node, list | tuple) else [node] if node else []


@final
class Condition(NamedTuple):
    """A property that trials must share.

    `planned` reads it from a trial before it runs, `recorded` from its record; None where it is not checked then.
    Trials that differ from the baseline's in a condition of the table withhold the verdict of their variant; a study in
    which all do is refused. A pair that differs in a condition of pairs is left out of the verdict on its variant. A
    pair that differs in a condition of strict verdicts is marked, and refused by `compare --strict`.
    """

    code: str
    subject: str
    valid: str
    planned: Callable[[Trial], Any] | None = None
    recorded: Callable[[RecordedTrial], Any] | None = None
    metrics: Literal["all", "per token", "per byte"] = "all"
    varied_by: tuple[str, ...] = ()  # options whose variation changes the property on purpose
    withholds: Literal["table", "pair", "strict verdicts"] = "table"
    describe: Callable[[RecordedTrial], str] | None = None  # value of a trial, for the message

    def applies_to(self, metric: str) -> bool:
        """Return whether verdicts on this metric need the condition."""
        return self.metrics in ("all", "per byte" if is_per_byte(metric) else "per token")

    def problem(
        self, names: Sequence[str], reference: str, *, location: str = "", valid: str = "", details: str = ""
    ) -> Problem:
        """Return the problem of variants that differ in this from another one, whose own seeds may differ as well."""
        others = [name for name in names if name != reference]
        sides = f"{join_names(others, MAX_NAMES)} and {reference}" if others else f"the seeds of {reference}"
        return Problem(
            code=self.code,
            path=names[0] if len(names) == 1 else "",
            location=location,
            message=f"{sides} differ in {self.subject}, so no table can compare them{details and f' ({details})'}",
            valid=valid or self.valid,
        )


EXAMPLES: Final = Condition(
    "other-validation",
    "the validation examples",
    "the same examples, corrupted alike, for every variant",
    recorded=lambda trial: [trial.spec["data"].get("validation"), trial.certificate.get("validation")],
    metrics="per token",
)
"""The digest covers the first examples only, so their number counts as well."""


def describe_loss(name: str, share: float | None) -> str:
    """Describe how much of the text a tokenizer loses: `wordpiece loses 7.3 % of the bytes`."""
    if share is None:
        return f"{name} was not measured"
    return f"{name} loses {100 * share:.2g} % of the bytes" if share else f"{name} restores the text"


def _lossy_tokenizer(trial: RecordedTrial) -> Any:
    """Return the tokenizer unless it restores the text: bits per byte of two such trials need the same one."""
    return trial.result["data"]["tokenizer"] if trial.result["data"].get("lost_bytes") != 0 else None


LOSSY: Final = Condition(
    "lossy-tokenizer",
    "the text that their tokenizers can restore",
    "tokenizers that restore the text exactly, such as bytes, bpe and unigram; what encoding discards is not predicted",
    recorded=_lossy_tokenizer,
    metrics="per byte",
    describe=lambda trial: describe_loss(trial.spec["tokenizer"]["name"], trial.result["data"].get("lost_bytes")),
)


def engine_of(provenance: Mapping[str, Any]) -> str | None:
    """Return the engine that a trial of an accelerator ran with, or that a replay showed to compute the same.

    None for a trial of a CPU, whose identity has the epoch of its engine.
    """
    if (provenance.get("machine") or {}).get("device") == "cpu":
        return None
    return str((provenance.get("verified") or provenance).get("engine"))


def kernel_versions(provenance: Mapping[str, Any]) -> str:
    """Return the version of torch, and on an accelerator that of `fla-core`, whose kernels recurrences use there."""
    versions = provenance.get("versions") or {}
    # The part after "+" names the build, which depends on the device.
    torch = str(versions.get("torch")).partition("+")[0]
    kernels = versions.get("fla-core")
    if kernels is None or (provenance.get("machine") or {}).get("device") == "cpu":
        return torch
    return f"{torch} with fla-core {kernels}"


CONDITIONS: Final = (
    Condition(
        "other-corpus",
        "the corpus",
        "one corpus in a study",
        planned=lambda trial: trial.corpus,
        recorded=lambda trial: trial.result["data"]["corpus"],
    ),
    Condition(
        "other-tokenizer",
        "the tokenizer",
        "one tokenizer in a study, since metrics per token are not comparable across tokenizers; "
        "or a metric per byte, such as val/clm/bits-per-byte",
        planned=lambda trial: trial.spec["tokenizer"],
        recorded=lambda trial: trial.result["data"]["tokenizer"],
        metrics="per token",
    ),
    Condition(
        "other-objective",
        "the evaluated objectives and measures",
        "`evaluate:` and `measure:` in the study, the same for every variant",
        planned=lambda trial: evaluation_nodes(trial.spec),
        recorded=lambda trial: evaluation_nodes(trial.spec),
    ),
    Condition(
        "other-length",
        "`dims.length`",
        "one length in a study",
        planned=lambda trial: trial.spec["dims"]["length"],
        recorded=lambda trial: trial.spec["dims"]["length"],
    ),
    Condition(
        "other-validation",
        "`data.validation`",
        "as many validation examples for every variant",
        planned=lambda trial: trial.spec["data"]["validation"],
    ),
    EXAMPLES,
    LOSSY,
    Condition(
        "other-validation",
        "the validation text",
        "a `data.validation` of as many examples as the split has: the same text for every tokenizer",
        recorded=lambda trial: bool(trial.result["data"].get("full_validation")) or trial.certificate.get("validation"),
        metrics="per byte",
    ),
    Condition(
        "other-steps",
        "the number of steps",
        "one budget",
        recorded=lambda trial: trial.result["steps"] if trial.done else "diverged",
        varied_by=BUDGET,
    ),
    Condition(
        "other-tokens",
        "the number of tokens",
        "one budget",
        recorded=lambda trial: trial.result["tokens"],
        varied_by=BUDGET,
    ),
    Condition(
        "other-versions",
        "torch",
        "one version of torch, and on accelerators of fla-core",
        recorded=lambda trial: kernel_versions(trial.provenance),
        withholds="pair",
    ),
    Condition(
        "other-machine",
        "device",
        "one kind of device",
        recorded=lambda trial: str((trial.provenance.get("machine") or {}).get("device")),
        withholds="pair",
    ),
    Condition(
        "other-processor",
        "processor",
        "one model of processor, since another one rounds sums in another order",
        recorded=lambda trial: (trial.provenance.get("machine") or {}).get("name"),
        withholds="strict verdicts",
    ),
    Condition(
        "other-threads",
        "threads",
        "one number of threads, since another one rounds sums in another order",
        recorded=lambda trial: (trial.provenance.get("machine") or {}).get("threads"),
        withholds="strict verdicts",
    ),
    Condition(
        "other-engine",
        "engine",
        "one engine on accelerators, since equal numbers were proven on CPUs; `paribus verify` replays the records",
        recorded=lambda trial: engine_of(trial.provenance),
        withholds="pair",
    ),
    Condition(
        "other-host",
        "host",
        "one machine, since the steps of a trial with a time limit depend on it",
        recorded=lambda trial: str(trial.provenance.get("host")) if trial.result.get("time_budget") else None,
        withholds="pair",
    ),
)


PROGRAM_CONDITIONS: Final = (
    Condition(
        "other-inputs",
        "the files of the program",
        "the same files for every trial; `paribus run` repeats the trials of older files",
        recorded=lambda trial: trial.certificate.get("inputs"),
    ),
    *(it for it in CONDITIONS if it.code in ("other-machine", "other-processor", "other-threads")),
)


def conditions(trial: RecordedTrial) -> tuple[Condition, ...]:
    """Return the conditions under which a trial of this kind can be compared."""
    return PROGRAM_CONDITIONS if is_program(trial.spec) else CONDITIONS


def differing_names(
    read: Callable[[AnyTrial], Any], reference: AnyTrial, trials: Mapping[str, Sequence[AnyTrial]]
) -> list[str]:
    """Return the variants of which a trial has another value than the reference."""
    expected = digest_json([read(reference)])
    return [
        name
        for name, variant_trials in trials.items()
        if any(digest_json([read(trial)]) != expected for trial in variant_trials)
    ]


@final
class EvaluationPreview(NamedTuple):
    """Metrics and validation examples of a spec's trial, found without training.

    `metric_names` is called only for a metric that is not a term of a loss, `examples` only where variants evaluate
    an objective with different options, and `lost_bytes` only where a metric per byte compares tokenizers.
    """

    metric_names: MetricNames
    examples: ExamplesDigest
    lost_bytes: LostBytes


def comparability_problems(
    study: Study, trials: Mapping[str, Trial], index: Index, preview: EvaluationPreview
) -> list[Problem]:
    """Return every condition that the trials of one setting, one for each variant, violate."""
    problems = [
        *_condition_problems(study, trials),
        *metric_problems(study, trials, index, preview.metric_names),
        *evaluation_problems(study, trials, index),
    ]
    return problems or [
        *_examples_problems(study, trials, preview.examples),
        *_lossy_problems(study, trials, preview.lost_bytes),
    ]


def spec_problems(
    study: Study, trials: Mapping[str, Trial], index: Index, metric_names: MetricNames
) -> Iterator[Problem]:
    """Yield the conditions that specs alone show to be violated, for the trials of a study with other problems."""
    yield from _condition_problems(study, trials)
    yield from evaluation_problems(study, trials, index)
    with suppress(ParibusError):  # a component that cannot be built is reported where it is built
        yield from [*metric_problems(study, trials, index, metric_names)]


def _condition_problems(study: Study, trials: Mapping[str, Trial]) -> Iterator[Problem]:
    """Yield the conditions in which a variant's trial differs from the baseline's."""
    for condition in CONDITIONS:
        if condition.planned is None or not condition.applies_to(study.metric.name):
            continue
        names = differing_names(condition.planned, trials[BASELINE], {name: [trial] for name, trial in trials.items()})
        if names:
            yield condition.problem(names, BASELINE, location=_location(study, trials[names[0]]))


def _location(study: Study, trial: Trial) -> str:
    """Return where the study sets the first change of a trial."""
    return study.location_of(next(iter(trial.changes), ""))


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
        keys = ("metric", "tasks", study.metric.task) if study.metric.task else ("metric", "name")
        yield Problem(
            code="unknown-metric",
            path=join_keys(keys),
            location=study.location(keys),
            message=f"{subject} measure `{metric}`{_bound_note(metric, cache)}",
            valid=join_names(dict.fromkeys(name for names in cache.values() for name in names)),
        )


def _bound_note(metric: str, measured: Mapping[str, Sequence[str]]) -> str:
    """Return why a bound cannot stand for a loss, if the one is asked for and the other is measured."""
    names = [name for names in measured.values() for name in names if is_bound(name) or name.endswith("/loss")]
    other = next((name for name in names if is_bound(name) != is_bound(metric)), None)
    if other is None:
        return ""
    bound, loss = (metric, other) if is_bound(metric) else (other, metric)
    return f": `{bound}` is an upper bound of a negative log-likelihood, which is not compared with `{loss}`"


def _examples_problems(study: Study, trials: Mapping[str, Trial], examples: ExamplesDigest) -> Iterator[Problem]:
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
        yield EXAMPLES.problem(others, BASELINE, location=_location(study, trials[others[0]]), valid=valid)


def _lossy_problems(study: Study, trials: Mapping[str, Trial], lost_bytes: LostBytes) -> Iterator[Problem]:
    """Yield a problem for a metric per byte where tokenizers differ and one of them does not restore the text."""
    if not is_per_byte(study.metric.name):
        return
    keys = {
        name: digest_json([trial.spec["tokenizer"], trial.spec["dims"]["vocabulary"]]) for name, trial in trials.items()
    }
    if len(set(keys.values())) == 1:
        return
    shares = {key: lost_bytes(trials[name].spec) for key, name in {key: name for name, key in keys.items()}.items()}
    lossy = {key for key, share in shares.items() if share}
    baseline = keys[BASELINE]
    others = [name for name, key in keys.items() if key != baseline and lossy & {key, baseline}]
    if others:
        yield LOSSY.problem(
            others,
            BASELINE,
            location=_location(study, trials[others[0]]),
            details=", ".join(
                dict.fromkeys(
                    describe_loss(trials[name].spec["tokenizer"]["name"], shares[keys[name]])
                    for name in (others[0], BASELINE)
                )
            ),
        )


def _loss_terms(spec: Spec, index: Index) -> set[str]:
    """Return the metrics that are terms of losses: they are known without building a model."""
    return {
        f"val/{node['name']}/{term}"
        for node in evaluation_objectives(spec)
        for term in index.find("objective", node["name"]).terms
    }
