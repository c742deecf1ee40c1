"""Conformance checks of a component: the table of checks, `conform` and `examine` to run them, and the report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

import torch

from paribus.errors import ParibusError, join_names
from paribus.hookspecs import SLOTS
from paribus.registry import Registry, installed
from paribus.registry.class_reader import slot_class
from paribus.registry.plugin_loading import summarize_error
from paribus.specs.load import Source
from paribus.testing import (
    component_checks,
    corpus_checks,
    cost_checks,
    data_checks,
    device_checks,
    dropout_checks,
    embedding_checks,
    example_checks,
    forward_checks,
    gradient_checks,
    head_checks,
    launcher_checks,
    length_checks,
    loss_checks,
    loss_input_checks,
    measure_checks,
    metric_checks,
    objective_checks,
    objective_options,
    optimizer_checks,
    option_checks,
    position_checks,
    precision_checks,
    prediction_checks,
    purity_checks,
    token_checks,
    tokenizer_checks,
    training_checks,
)
from paribus.testing.host_models import DOES_NOT_APPLY, Case, HostModel, Verdict, base_specs, host_models
from paribus.testing.purity_checks import restored_settings
from paribus.testing.reference import REFERENCE_SLOTS, Reference, author_reference, functions_by_name
from paribus.testing.small_model import draw_seed

UNDER_TEST: Final = "under-test"
OUTSIDE_MODELS: Final = frozenset({"launcher"})  # slots whose components are tested without a model
SCHEMA: Final = "schema is valid"
REFERENCE: Final = "output equals the author's reference"
BUILD: Final = "models can be built"
CONSTRUCTION: Final = "building changes nothing else"
ARCHITECTURE: Final = ("attention", "position", "norm", "placement", "feedforward", "embedding", "topology")
BUILT: Final = tuple(slot for slot in SLOTS if slot not in OUTSIDE_MODELS)
LAYERS: Final = ("attention", "position", "norm", "placement", "feedforward")


class Check(NamedTuple):
    """Conformance check, with the slots that it applies to and the models that it runs in."""

    run: Callable[[Case, HostModel], Verdict]
    slots: tuple[str, ...]
    scope: Literal["once", "presets", "options", "everywhere"] = "presets"

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]

    def select_models(self, models: Sequence[HostModel]) -> Sequence[HostModel]:
        if self.scope == "once":
            return models[:1]
        if self.scope == "options":  # of the component, and not of its neighbours
            return [model for model in models if not model.neighbour]
        return [model for model in models if model.is_preset or self.scope == "everywhere"]


CHECKS: Final[Mapping[str, Check]] = {
    CONSTRUCTION: Check(purity_checks.construction, BUILT, "options"),
    "hooks match their declaration": Check(position_checks.position_hooks, ("position",), "once"),
    "every sublayer runs once": Check(component_checks.placement_wiring, ("placement",)),
    "residual stream is kept": Check(component_checks.residual_stream, ("placement",)),
    "output is normalized once": Check(component_checks.normalized_once, ("placement",)),
    "output matrices have their role": Check(component_checks.output_role, ("feedforward",)),
    "norm treats tokens separately": Check(component_checks.norm_per_token, ("norm",)),
    "norm accepts any input": Check(component_checks.norm_inputs, ("norm",)),
    "feed-forward treats tokens separately": Check(component_checks.feedforward_per_token, ("feedforward",)),
    "positions are valid up to the limit": Check(position_checks.position_range, ("position",)),
    "bias depends on distance only": Check(position_checks.distance_bias, ("position",), "once"),
    "rotation depends on distance only": Check(position_checks.relative_rotation, ("position",), "once"),
    "separate inputs are read": Check(component_checks.separate_inputs, ("attention",)),
    "near and far tokens are distinguished": Check(position_checks.far_positions, ("position",)),
    "no access to future tokens": Check(token_checks.causality, ARCHITECTURE, "everywhere"),
    "appended tokens change no earlier output": Check(token_checks.prefix, ARCHITECTURE, "everywhere"),
    "tokens reach other positions": Check(token_checks.token_mixing, ("attention", "placement", "topology")),
    "output depends on positions": Check(token_checks.position_sensitivity, ("position",)),
    "batch equals single examples": Check(token_checks.batch_independence, ARCHITECTURE),
    "repeated passes are equal": Check(token_checks.determinism, ARCHITECTURE),
    "low precision gives the same function": Check(precision_checks.low_precision, ARCHITECTURE),
    "rules hold for long sequences": Check(length_checks.long_sequences, ARCHITECTURE),
    "forward depends on its inputs only": Check(purity_checks.inputs_only, ARCHITECTURE),
    "passes leave no state": Check(purity_checks.no_state, ARCHITECTURE),
    "inputs are not modified": Check(
        purity_checks.inputs_kept, ("attention", "norm", "placement", "feedforward"), "options"
    ),
    "training equals evaluation without dropout": Check(purity_checks.training_mode, ARCHITECTURE),
    "dropout keeps the mean of outputs": Check(dropout_checks.dropout, ARCHITECTURE),
    "rules hold with dropout": Check(dropout_checks.training_causality, ARCHITECTURE),
    "padding changes nothing": Check(token_checks.padding, ARCHITECTURE, "everywhere"),
    "packed documents equal separate ones": Check(token_checks.documents, ARCHITECTURE, "everywhere"),
    "permuted tokens keep their output": Check(token_checks.order, LAYERS, "everywhere"),
    "extra queries change no other output": Check(token_checks.extra_queries, LAYERS, "everywhere"),
    "feedback equals a pass over its tokens": Check(component_checks.feedback, ("topology",), "everywhere"),
    "halves read one direction each": Check(component_checks.separate_directions, ("topology",)),
    "queries do not read their own token": Check(component_checks.second_stream, ("topology",)),
    "chunked decoding equals one pass": Check(forward_checks.decoding, ARCHITECTURE, "everywhere"),
    "attention weights match their declaration": Check(forward_checks.weights, ("attention", "position", "topology")),
    "decoding state has the declared size": Check(forward_checks.state_size, ("attention",)),
    "kernels agree": Check(forward_checks.kernels, ("attention", "position"), "everywhere"),
    "embedding has one vector per token": Check(forward_checks.embedding_length, ("embedding",)),
    "tokens have distinct vectors": Check(embedding_checks.distinct_vectors, ("embedding",), "everywhere"),
    "scores belong to their tokens": Check(embedding_checks.scores_of_tokens, ("embedding",), "everywhere"),
    "gradient reaches every parameter": Check(forward_checks.gradients, ARCHITECTURE),
    "gradients match finite differences": Check(gradient_checks.finite_differences, ARCHITECTURE),
    "every unit gets a gradient": Check(gradient_checks.living_units, ("attention", "feedforward")),
    "FLOPs match their declaration": Check(
        cost_checks.cost, ("attention", "position", "placement", "feedforward", "embedding"), "options"
    ),
    "memories of any size are read": Check(cost_checks.memories, ("attention",), "once"),
    "initial weights depend on the seed only": Check(training_checks.seeded_weights, (*ARCHITECTURE, "initialisation")),
    "initial weights have the declared scale": Check(embedding_checks.weight_scale, ("initialisation",), "once"),
    "every option has an effect": Check(option_checks.options, tuple(option_checks.BEHAVIOURS), "once"),
    "converted weights keep the output": Check(training_checks.conversions, ("attention", "position", "embedding")),
    "shared layers have all parameters": Check(training_checks.shared_layers, LAYERS),
    "other initial weights stay the same": Check(training_checks.unrelated_weights, LAYERS),
    "tokenizer round trip": Check(data_checks.tokenization, ("tokenizer",), "once"),
    "any text is encoded": Check(tokenizer_checks.any_text, ("tokenizer",), "once"),
    "text is restored exactly": Check(tokenizer_checks.exact_text, ("tokenizer",), "once"),
    "training is deterministic": Check(tokenizer_checks.training_and_state, ("tokenizer",), "once"),
    "documents are reproducible": Check(corpus_checks.corpus_documents, ("corpus",), "once"),
    "splits share no document": Check(corpus_checks.corpus_splits, ("corpus",), "once"),
    "documents depend on their options only": Check(corpus_checks.corpus_inputs, ("corpus",), "once"),
    "contents match their declaration": Check(corpus_checks.corpus_contents, ("corpus",), "once"),
    "documents are valid text": Check(corpus_checks.corpus_texts, ("corpus",), "once"),
    "images match their declaration": Check(corpus_checks.corpus_images, ("corpus",), "once"),
    "token ids match the documents": Check(corpus_checks.corpus_ids, ("corpus",), "once"),
    "longer documents match their declaration": Check(corpus_checks.longer_documents, ("corpus",), "once"),
    "measured values are reproducible": Check(measure_checks.measure_values, ("measure",)),
    "measurements have no side effects": Check(measure_checks.measure_side_effects, ("measure",)),
    "measures read the evaluated model only": Check(measure_checks.measure_inputs, ("measure",)),
    "measured values depend on the model": Check(measure_checks.measure_model, ("measure",)),
    "measures ignore padding": Check(measure_checks.measure_padding, ("measure",)),
    "measures keep documents apart": Check(measure_checks.measure_documents, ("measure",)),
    "options reach the evaluated model": Check(measure_checks.measure_arguments, ("measure",), "once"),
    "better predictions have better values": Check(measure_checks.measure_directions, ("measure",)),
    "examples depend on their keys only": Check(objective_checks.keyed_examples, ("objective",), "once"),
    "examples match their declaration": Check(objective_checks.example_traits, ("objective",)),
    "labels are hidden from the model": Check(objective_checks.hidden_labels, ("objective",)),
    "labels stay within documents": Check(objective_checks.label_documents, ("objective",)),
    "examples have valid tokens and labels": Check(example_checks.example_content, ("objective",)),
    "examples come from their documents": Check(example_checks.example_origin, ("objective",), "once"),
    "loss depends on its inputs": Check(loss_input_checks.loss_inputs, ("objective",)),
    "baseline is learned from labels": Check(loss_checks.unigram_baseline, ("objective",), "once"),
    "rules hold for every option value": Check(objective_options.option_values, ("objective",), "once"),
    "loss is a sum over labels": Check(loss_checks.loss_sums, ("objective",)),
    "metrics agree with the loss": Check(metric_checks.metric_values, ("objective",), "once"),
    "predictions are those of each text": Check(prediction_checks.predictions, ("objective",), "once"),
    "head matches its declared cost": Check(head_checks.head_cost, ("objective",), "once"),
    "optimizer steps follow the contract": Check(optimizer_checks.optimizer_steps, ("optimizer",), "once"),
    "learning rates are valid": Check(optimizer_checks.learning_rates, ("schedule",), "once"),
    "jobs end as they are reported": Check(launcher_checks.launched_jobs, ("launcher",), "once"),
    "stopped jobs end": Check(launcher_checks.stopped_jobs, ("launcher",), "once"),
    REFERENCE: Check(author_reference, REFERENCE_SLOTS, "everywhere"),
    "training runs on an accelerator": Check(device_checks.accelerator, (*ARCHITECTURE, "objective", "optimizer")),
    "loss falls on one batch": Check(
        training_checks.training, (*ARCHITECTURE, "initialisation", "objective", "tokenizer", "optimizer", "schedule")
    ),
}


def checks_of(slot: str) -> dict[str, Check]:
    """Return the checks of a slot by name, besides those of the schema and of building models."""
    return {name: check for name, check in CHECKS.items() if slot in check.slots}


class Finding(NamedTuple):
    """Failed check, with the model and a counterexample."""

    check: str
    model: str  # "gpt-tiny, position=rope"; empty if the failure concerns no model
    message: str

    def __str__(self) -> str:
        return f"{self.check}" + (f" ({self.model})" if self.model else "") + f": {self.message}"


@final
@dataclass(frozen=True)
class Report:
    """Conformance report of one component."""

    topic: str  # attention.gqa
    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # checks that do not apply to the traits of the component
    findings: tuple[Finding, ...] = ()
    models: int = 0  # number of models that the checks ran in
    not_tested: str = ""  # the reason why no check of the slot ran

    @property
    def ok(self) -> bool:
        """Return whether something was tested and nothing failed."""
        return not self.findings and not self.not_tested

    def __str__(self) -> str:
        count = len(self.passed) + len(self.findings)
        if self.not_tested:
            return f"{self.topic} is not tested: {self.not_tested}"
        if self.ok:
            return f"{self.topic} conforms: {count} checks pass" + (f" in {self.models} models" if self.models else "")
        by_message: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_message.setdefault(finding.message, []).append(finding)
        lines = [f"  {first._replace(check=_joined_checks(first, rest))}" for first, *rest in by_message.values()]
        return "\n".join([f"{self.topic} does not conform: {len(self.findings)} of {count} checks fail", *lines])

    def to_json(self) -> dict[str, Any]:
        return {
            "component": self.topic,
            "ok": self.ok,
            "models": self.models,
            "passed": list(self.passed),
            "skipped": list(self.skipped),
            "findings": [finding._asdict() for finding in self.findings],
            "not_tested": self.not_tested,
        }


def _joined_checks(first: Finding, rest: Sequence[Finding]) -> str:
    """Return the name of the first check that fails with a message, and the number of the others."""
    if not rest:
        return first.check
    return f"{first.check} and {len(rest)} other {'check' if len(rest) == 1 else 'checks'}"


class NotConformingError(AssertionError):
    """Error for a component that breaks the contract of its slot; carries the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(str(report))


def conform(
    component: type[Any] | str,
    *,
    registry: Registry | None = None,
    base: Source | None = None,
    only: Collection[str] | None = None,
    reference: Reference | None = None,
) -> Report:
    """Run the checks of a component; raise `NotConformingError` if any fails.

    `component` is a class or the name of an installed component: `conform("attention.gqa")`. The checks run in small
    models, next to every kind of position, norm or attention that it may be combined with. `base` is a spec to use
    instead of the tiny presets. `only` selects checks by the names that `paribus conform COMPONENT` prints.

    `reference` is a slow function that the component must agree with: for an attention `(module, x, source, visible)`,
    for a norm or a feed-forward `(module, x)` of one vector; `paribus.testing.reference` lists the other slots, and
    further methods.
    """
    report = examine(component, registry=registry, base=base, only=only, reference=reference)
    if not report.ok:
        raise NotConformingError(report)
    return report


def examine(
    component: type[Any] | str,
    *,
    registry: Registry | None = None,
    base: Source | None = None,
    only: Collection[str] | None = None,
    reference: Reference | None = None,
    seed: int = 0,
) -> Report:
    """Run the checks of a component and return a report that includes the failures.

    `seed` changes the noise in weights and the tokens that the checks draw, and the initial weights of the models.
    """
    names = (SCHEMA, BUILD, *CHECKS)
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise ValueError(f'unknown check "{unknown[0]}"; valid: {join_names(names, limit=len(names))}')
    registry, slot, name = _resolve_component(component, registry or installed())
    if reference is not None:
        functions_by_name(slot, reference)  # raises an error that lists the valid slots and methods
    specs = {label: {**spec, **({"seed": seed} if seed else {})} for label, spec in base_specs(base, registry).items()}
    case = Case(registry, registry.index.find(slot, name), specs, reference)
    selected = {name: check for name, check in CHECKS.items() if only is None or name in only}
    if reference is None:
        selected.pop(REFERENCE, None)
    with restored_settings(), torch.no_grad(), draw_seed(seed):
        torch.set_num_threads(1)
        return _run_checks(case, selected, builds_all=only is None or BUILD in only or reference is not None)


def _resolve_component(component: type[Any] | str, registry: Registry) -> tuple[Registry, str, str]:
    """Return a registry that contains the component, with its slot and name there."""
    if isinstance(component, str):
        slot, _, name = component.partition(".")
        registry.get(slot, name)  # raises an error that lists the valid names
        return registry, slot, name
    for (slot, name), claimants in registry.index.claims.items():
        if len(claimants) == 1 and registry.get(slot, name) is component:
            return registry, slot, name
    slots = [slot for slot in SLOTS if issubclass(component, slot_class(slot))]
    if not slots:
        raise TypeError(f"{component.__qualname__} fills no slot; valid: a subclass of one of {join_names(SLOTS)}")
    return registry.with_components(**{slots[0]: {UNDER_TEST: component}}), slots[0], UNDER_TEST


def _run_checks(case: Case, checks: Mapping[str, Check], *, builds_all: bool) -> Report:
    """Run the checks of a component; without `builds_all`, only the models that these checks use are built."""
    if case.entry.slot in OUTSIDE_MODELS:
        case.host_models.append(HostModel("", {}))
        return _run_on_models(case, checks, [SCHEMA], 0)
    case.host_models.extend(host_models(case))
    if not case.host_models:
        message = "the rules reject the component in every model: " + "; ".join(case.rejections)
        return Report(case.topic, findings=(Finding(BUILD, "", message),))
    build_failure = _build_models(case) if builds_all else None
    if build_failure is not None:
        return Report(case.topic, (SCHEMA,), findings=(build_failure,), models=len(case.host_models))
    return _run_on_models(case, checks, [SCHEMA, *([BUILD] if builds_all else [])], len(case.host_models))


def _run_on_models(case: Case, checks: Mapping[str, Check], passed: list[str], models: int) -> Report:
    """Run the checks of the slot; `passed` are those that were run before."""
    skipped, previous = list[str](), len(passed)
    findings: list[Finding] = []
    for name, check in checks.items():
        if case.entry.slot in check.slots:
            result = _run_check(case, name, check)
            if name == REFERENCE and result is DOES_NOT_APPLY:
                result = Finding(name, "", "the reference was compared in no model; does it return NotImplemented?")
            if isinstance(result, Finding):
                findings.append(result)
            else:
                (skipped if result is DOES_NOT_APPLY else passed).append(name)
    is_tested = bool(findings) or any(name != CONSTRUCTION for name in passed[previous:]) or not skipped
    reason = "" if is_tested else next(iter(case.obstacles), "no check applies to its traits")
    return Report(case.topic, tuple(passed), tuple(skipped), tuple(findings), models, reason)


def _build_models(case: Case) -> Finding | None:
    """Build every model, so that a component that cannot be built is reported once."""
    for host in case.host_models:
        try:
            case.small_model(host)
        except Exception as error:
            return Finding(BUILD, host.label, _error_message(case, error))
    return None


def _run_check(case: Case, name: str, check: Check) -> Finding | Verdict:
    """Return the first counterexample, or HOLDS or DOES_NOT_APPLY."""
    verdict: Verdict = DOES_NOT_APPLY
    for host in check.select_models(case.host_models):
        try:
            result = check.run(case, host)
        except Exception as error:  # a component that raises does not conform; other checks continue
            result = _error_message(case, error)
        if result:
            return Finding(name, host.label, result)
        verdict = result if verdict is DOES_NOT_APPLY else verdict
    return verdict


def _error_message(case: Case, error: Exception) -> str:
    """Return the problems of an error of the library; other errors have their last place in the component's file."""
    if isinstance(error, ParibusError):
        return "; ".join(f"{problem.place}: {problem.sentence}".removeprefix(": ") for problem in error.problems)
    return summarize_error(error, file=inspect.getsourcefile(case.component) or "")
