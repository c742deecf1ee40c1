"""Checks of measures: values, side effects, padding, options and dependence on the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.errors import ParibusError
from paribus.models.assemble import build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import PADDING, Batch, Stream
from paribus.parts.random_draws import Draw
from paribus.slots.corpus import Corpus
from paribus.slots.measure import GeneratedPair
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.measure_setup import (
    BATCHES,
    Replace,
    Setup,
    Values,
    changed_batches,
    make_measure,
    measure_setup,
    run_measure,
    used_members,
)
from paribus.testing.purity_checks import (
    component_folder,
    external_reads,
    generator_states,
    restored_settings,
    seed_generators,
)
from paribus.train.measures import MeasuredModel

RELATIVE_TOLERANCE: Final = 1e-4  # float32 sums in another order
SCALE: Final = 20.0  # of the scores of perfect predictions
DIRECTIONS: Final = {"loss": -1, "perplexity": -1, "accuracy": 1}  # of names, as `compare` knows them


def measure_values(case: Case, host: HostModel) -> Verdict:
    """A measure returns a number or a reason for each of its names, equal for any batch size and repetition.

    A measure whose library is not installed is skipped.
    """
    setup = measure_setup(case, host)
    return DOES_NOT_APPLY if setup is None else next(_value_faults(case, setup), HOLDS)


def _value_faults(case: Case, setup: Setup) -> Iterator[str]:
    values, names, _ = run_measure(case, setup)
    unnamed = {name for name, value in values.items() if name not in names and not isinstance(value, str)}
    if unnamed or not names <= set(values):
        yield f"`measure` returns {sorted(values)}; expected the names of `names`: {sorted(names)}"
    for name, value in values.items():
        if not isinstance(value, str) and not (isinstance(value, int | float) and math.isfinite(value)):
            yield f"`{name}` is {value}; expected a finite number, or a string with the reason"
    if run_measure(case, setup).values != values:
        yield "a second measurement of the same model gives other values. Usual cause: unseeded random draws"
    spec = {**setup.spec, "seed": setup.spec["seed"] + 1}
    other = setup._replace(model=build_model(spec, case.registry, setup.text.vocabulary))
    measure = make_measure(case, setup, {})
    run_measure(case, setup, measure=measure)
    if run_measure(case, other, measure=measure).values != run_measure(case, other).values:
        yield "a measure gives other values for a model after another one. Usual cause: sums that are kept between"
    other_values = run_measure(case, setup, batch_size=BATCHES[1]).values
    for name, value in values.items():
        if not _is_close(value, other_values[name]):
            message = f"`{name}` is {value} with batch size {BATCHES[0]}, but {other_values[name]} with {BATCHES[1]}"
            yield f"{message}. Usual cause: an average of batch averages"
    yield from _length_faults(case, setup)


def _length_faults(case: Case, setup: Setup) -> Iterator[str]:
    """Compare values with `names` for a model whose longest sequence is exactly as long as one that is measured."""
    requested: set[int] = set()

    def record(model: MeasuredModel) -> Mapping[str, Any]:
        def batches(examples: int, *, times: int = 1, corpus: Corpus | None = None) -> Iterator[Batch]:
            requested.add(times)
            return model.batches(examples, times=times, corpus=corpus)

        return {"batches": batches}

    run_measure(case, setup, replace=record)
    for times in sorted(requested):
        values, names, _ = run_measure(case, setup, replace=partial(_limited, times=times))
        unnamed = {name for name, value in values.items() if name not in names and not isinstance(value, str)}
        if unnamed or not names <= set(values):
            yield (
                f"for a model that reads at most {times} times the length of an example, `measure` returns numbers for "
                f"{sorted(unnamed | (names & values.keys()))}; expected the names of `names`: {sorted(names)}"
            )


def _limited(model: MeasuredModel, times: int) -> Mapping[str, Any]:
    limit, length = model.trial.max_length, times * model.trial.length
    return {"trial": model.trial._replace(max_length=length if limit is None else min(limit, length))}


def _is_close(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return type(a) is type(b)  # two reasons may have other numbers in them
    return abs(a - b) <= RELATIVE_TOLERANCE * max(1.0, abs(a))


def measure_side_effects(case: Case, host: HostModel) -> Verdict:
    """A measurement leaves parameters, buffers, modes, hooks, gradients, learning curve and generators unchanged."""
    setup = measure_setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    curves: list[Any] = []

    def keep_curve(model: MeasuredModel) -> Mapping[str, Any]:
        curves.extend([model.learning_curve, copy.deepcopy(model.learning_curve)])
        return {}

    model = build_model(setup.spec, case.registry, setup.text.vocabulary).eval()
    fresh = setup._replace(model=model)  # the other one has been measured
    before = _model_state(model)
    with restored_settings():
        seed_generators(7)
        generators = generator_states()
        run_measure(case, fresh)
        advanced = [name for name, state in generator_states().items() if state != generators[name]]
    changed = [name for name, value in _model_state(model).items() if value != before[name]]
    if advanced:
        return f"it draws from the global generator of {advanced[0]}, which changes later training; use `model.draw`"
    if changed:
        return f"it changes the {changed[0]} of the model that it measures"
    run_measure(case, setup, replace=keep_curve)
    return "it changes the learning curve" if curves[0] != curves[1] else HOLDS


def _model_state(model: Model) -> dict[str, Any]:
    """Return what a measurement must not change, by name."""
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    return {
        "parameters or buffers": {name: value.tolist() for name, value in model.state_dict().items()},
        "training mode": {name: module.training for name, module in modules.items()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in modules.items()},
        "trainable parameters": {name: value.requires_grad for name, value in parameters.items()},
        "gradients": {name: value.grad is None for name, value in parameters.items()},
    }


def measure_inputs(case: Case, host: HostModel) -> Verdict:
    """A measure reads the members of `EvaluatedModel` only, and no clock, file or environment variable."""
    setup = measure_setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    expected = run_measure(case, setup).values
    if run_measure(case, setup, replace=lambda model: {}).values != expected:
        return "its values change if the model has only the members of `EvaluatedModel`"
    reads = external_reads(lambda: run_measure(case, setup), folder=component_folder(case))
    return f"it calls {reads[0]}; expected a value that depends on the model only" if reads else HOLDS


def measure_model(case: Case, host: HostModel) -> Verdict:
    """Other weights and another learning curve change a value."""
    setup = measure_setup(case, host)
    if setup is None or "generate" in used_members(case, setup):  # untrained models may generate the same text
        return DOES_NOT_APPLY
    spec = {**setup.spec, "seed": setup.spec["seed"] + 1}
    other = Setup(spec, build_model(spec, case.registry, setup.text.vocabulary), setup.text)
    values = run_measure(case, setup).values
    if all(isinstance(value, str) for value in values.values()):
        return DOES_NOT_APPLY
    if run_measure(case, other, factor=0.25).values == values:
        return "two models with other weights and another learning curve have the same values"
    return HOLDS


def measure_padding(case: Case, host: HostModel) -> Verdict:
    """The tokens of padding change no value."""
    setup = measure_setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    if not _reads_documents(case, host, setup):
        return DOES_NOT_APPLY
    texts = sorted(set(range(setup.text.vocabulary.size)) - setup.text.vocabulary.reserved)
    values, other_values = (
        run_measure(case, setup, replace=_padded(token)).values for token in (texts[0], texts[len(texts) // 2])
    )
    for name, value in values.items():
        if not _is_close(value, other_values[name]):
            return f"`{name}` changes from {value} to {other_values[name]} with the tokens of padding"
    other_values = run_measure(case, setup, batch_size=BATCHES[1], replace=_padded(texts[0])).values
    for name, value in values.items():
        if not _is_close(value, other_values[name]):
            return (
                f"for examples of different lengths, `{name}` is {value} with batch size {BATCHES[0]}, but "
                f"{other_values[name]} with {BATCHES[1]}. Usual cause: an average of batch averages"
            )
    return HOLDS


def _reads_documents(case: Case, host: HostModel, setup: Setup) -> bool:
    """Return True if a measure computes its values from batches; metrics and generated text are the engine's."""
    used = used_members(case, setup)
    has_documents = not case.small_model(host).has_fixed_length and case.all_attentions_declare(host, "documents")
    return has_documents and "batches" in used and not used & {"metrics", "generate"}


def _padded(token: int) -> Replace:
    """Return batches in which `token` is padding: two thirds of every second example, and the end of the others."""

    def pad(batch: Batch) -> Batch:
        body = batch.streams["body"]
        length = body.tokens.shape[1]
        start = torch.where(batch.index.cpu() % 2 == 0, length // 3, length - 3).unsqueeze(1)
        is_padding = (torch.arange(length) >= start).to(body.tokens.device)
        documents = torch.zeros_like(body.tokens) if body.documents is None else body.documents
        padded = body._replace(
            tokens=body.tokens.masked_fill(is_padding, token), documents=documents.masked_fill(is_padding, PADDING)
        )
        return batch._replace(streams={**batch.streams, "body": padded})

    return changed_batches(pad)


def measure_documents(case: Case, host: HostModel) -> Verdict:
    """Two packed documents with the same tokens have the values of one of them."""
    setup = measure_setup(case, host)
    parts = case.small_model(host).topology.parts
    if setup is None or len(parts) > 1 or not _reads_documents(case, host, setup):  # other parts read other documents
        return DOES_NOT_APPLY
    packed, single = (run_measure(case, setup, replace=_halves(second)).values for second in (1, PADDING))
    for name, value in packed.items():
        if not _is_close(value, single[name]):
            return (
                f"`{name}` is {value} for two packed documents with the same tokens, but {single[name]} for one of "
                "them. Usual cause: tokens of another document are counted"
            )
    return HOLDS


def _halves(second: int) -> Replace:
    """Return batches whose examples are their first half twice; the second time as the document `second`."""

    def repeat(batch: Batch) -> Batch:
        tokens = batch.streams["body"].tokens
        half = tokens.shape[1] // 2
        positions = torch.arange(half).repeat(len(tokens), 2)
        documents = torch.tensor([0, second]).repeat_interleave(half).repeat(len(tokens), 1)
        body = Stream(tokens[:, :half].repeat(1, 2), documents=documents, positions=positions)
        return batch._replace(streams={"body": body}, targets={})

    return changed_batches(repeat)


def measure_arguments(case: Case, host: HostModel) -> Verdict:
    """At most `examples` examples are requested, and numeric options of generation have their values there."""
    setup = measure_setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    calls: list[Mapping[str, Any]] = []
    is_compared = False
    for option in case.entry.options:
        for value in {"int": (1, 2), "float": (0.5,)}.get(option.kind.name, ()):
            calls.clear()
            try:
                run_measure(case, setup, options={option.name: value}, replace=partial(_recorded, calls=calls))
            except (ParibusError, ValueError):  # the constructor rejects the value
                continue
            for call in calls:
                requested = call.get(option.name, value)
                is_compared = is_compared or option.name in call
                if requested != value and not (option.name == "examples" and requested < value):
                    return f"with `{option.name}={value}`, the model is called with `{option.name}={requested}`"
    return HOLDS if is_compared else DOES_NOT_APPLY


def _recorded(model: MeasuredModel, calls: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the methods that request examples, which record their arguments; no text is generated."""

    def batches(examples: int, *, times: int = 1, corpus: Corpus | None = None) -> Iterator[Batch]:
        calls.append({"examples": examples})
        return model.batches(examples, times=times, corpus=corpus)

    def draw(examples: int) -> Draw:
        calls.append({"examples": examples})
        return model.draw(examples)

    def generate(examples: int, **arguments: Any) -> list[GeneratedPair]:
        calls.append({"examples": examples, **arguments})
        return [GeneratedPair("a source", "a target", "a translation")]

    return {"batches": batches, "draw": draw, "generate": generate}


def measure_directions(case: Case, host: HostModel) -> Verdict:
    """Values named `loss`, `perplexity` or `accuracy` are better for perfect predictions than for uniform ones."""
    setup = measure_setup(case, host)
    if setup is None or "logits" not in used_members(case, setup):
        return DOES_NOT_APPLY
    perfect, uniform = (run_measure(case, setup, replace=_predictions(scale)).values for scale in (SCALE, 0.0))
    compared = False
    for name, value in perfect.items():
        direction, other = DIRECTIONS.get(name.rpartition(".")[2]), uniform[name]
        if direction is None or isinstance(value, str) or isinstance(other, str):
            continue
        compared = True
        if direction * value <= direction * other:
            return f"`{name}` is {value:.4g} for perfect predictions, and {other:.4g} for uniform ones"
    return HOLDS if compared else DOES_NOT_APPLY


def _predictions(scale: float) -> Replace:
    """Return scores of the next token: 0 for all others, `scale` for the right one."""

    def replace(model: MeasuredModel) -> Mapping[str, Any]:
        def logits(batch: Batch) -> Tensor:
            scores, tokens = model.logits(batch), batch.streams["body"].tokens
            if scores.shape[:2] != tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return scores
            return scale * functional.one_hot(tokens.roll(-1, 1), scores.shape[-1]).to(scores.dtype)

        return {"logits": logits}

    return replace


def behaviour(case: Case, host: HostModel, spec: Mapping[str, Any]) -> Values | None:
    """Return the values of a measure; None if it needs a library, or text of an untrained model, which may be equal."""
    setup = measure_setup(case, host)
    if setup is None or "generate" in used_members(case, setup):
        return None
    return run_measure(case, setup, options=spec["measure"][0]).values
