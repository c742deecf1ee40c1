"""The author's reference: a slow function that a component must agree with, on single examples.

It is a function of the component and of the inputs of one example, or functions by the method that they repeat:
`{"forward": slow_norm}`. The function of `forward`, which needs no name, of a component of each slot:

- attention: `(module, x, source, visible)`: (T, D), (S, M), (T, S) bool -> (T, D), without positions. `source` is `x`,
  or the memory. `visible` is True for keys of the same document that are not in the future; windows are the author's.
  The function may also return the attention weights, (H, T, S): a pair of output and weights.
- position: `(module, q, k, i, j, head)` -> the score of a query at position i and a key at position j, unscaled, if it
  rotates or has a bias; else `(module, x, i)`: (E,) -> (E,). A position that adds to the output (`mix`) returns the
  score and the vector (K,) that the value of the key gets. The model has more heads than its preset. An IndexError at
  `position_limit` means that the position must raise a DataError there.
- norm and feedforward: `(module, x)`: (D,) -> (D,).
- placement: `(module, x, sublayers)`: (T, D) -> (T, D).
- embedding: `(module, token, part)` -> (D,), `part` is the `stack_part` of the stack; of images `(module, values,
  part)`: (P,) -> (T, D).
- initialisation: `(component, unit, about)` -> initial weights.
- topology: `(module, path, stream, source)`: a `Stream` of (T,) -> (T, D) of the part at `path`, with learned
  positions; `source` is the stream of the part that it attends to, or None. Gradients are compared as well.
- optimizer: `(component, weight, gradients)` -> the weight after one step for each gradient, of tens or hundreds.
- schedule: `(component, step, steps)` -> factor.
- objective, corpus and measure: values by name, as `paribus.testing.data_references` describes.

Other methods: `auxiliary` of a feed-forward, `(module, x)`: (N, D) -> the loss of N tokens; `gain` of a placement,
`(module, role)` -> factor; `unembed` of an embedding, `(module, h, token)`: (E,) -> score.

A function receives further arguments if it has parameters of these names:

- `options`: the component's options in the spec. It is then compared with other values of every option, alone and
  together, and an attention with a raw memory (`shape.raw_memory`), which has no projections of its own; it returns
  NotImplemented for what it does not cover.
- `positions`, of an attention: the positions of its queries and of its keys, (T,) and (S,).
- `first`, of an attention: the first layer's attention and its source, for values of the first layer.
- `inputs`, of an attention that needs them: the embedded tokens of its queries and of its keys, (T, D) and (S, D).
- `layer`, of a position: the layer; its `attention` has the projections, its `position` what it has for itself.
- `segments`, of a position: the segments of the query and of the key.
- `keys`, of a position: the keys that the query sees, (S, K), from the first; `scale`: the factor of the scores.
- `initial`: True if no parameter was changed since its initialisation. The component is then compared twice.
- `shape`: the `Shape` of the stack, of a placement; its `layer` is the index of the layer.
- `factors`, of an optimizer: the learning rate of each step, relative to that of its options; else all are 1.
- `about`, of an optimizer: the `ParameterInfo` of the tensor, such as its role.
- `position`, `segment`, `language`: the vector that `place` adds to the token of an embedding, and the token's segment
  and language; without them, nothing is added, and both are 0. `dropout`: function that the embedding applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.assembly.build import as_list
from paribus.assembly.components import make
from paribus.errors import SpecError, join_names
from paribus.parts.batch import Stream
from paribus.parts.shape import Shape
from paribus.parts.stack import Layer
from paribus.slots.feedforward import FeedForward
from paribus.slots.initialisation import Initialisation
from paribus.slots.norm import Norm
from paribus.slots.optimizer import TrainedTensor
from paribus.slots.placement import Placement, Sublayer
from paribus.slots.schedule import Schedule
from paribus.specs import resolved
from paribus.testing.attention_reference import (
    Comparison,
    Function,
    attention_comparisons,
    bind,
    position_comparisons,
    reads,
)
from paribus.testing.component_checks import join_inputs
from paribus.testing.data_references import difference, document_values, measured_values, objective_values
from paribus.testing.embedding_checks import DRAWN_ROLES, USED_TOKENS, parameter_info, standard_draws
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.optimizer_checks import CHANGING_RATES, HORIZON, STEPS, TENSORS, OptimizerRun, describe_tensor
from paribus.testing.option_specs import OUTSIDE_MODELS, option_models
from paribus.testing.small_model import SmallModel, fed_apart, noise, tokens

Reference = Function | Mapping[str, Function]


LENGTH: Final = 12
MAX_VALUES: Final = 8  # other values of a number of a component outside models
MAX_VALUES_IN_MODELS: Final = 2
DRAWS: Final = 6  # of values of all options
SHORTER: Final = 40  # steps of an optimizer with other options
Comparer = Callable[[Case, HostModel, Function], Iterator[Comparison]]
FORWARD: Final = "forward"
SCALES: Final = (1.0, 1e-3, 1e-6)  # of vectors; options such as `eps` matter for short ones
DROPOUT: Final = 0.5


def author_reference(case: Case, host: HostModel) -> Verdict:
    """The output equals that of the author's reference, with each option, at padding and in documents."""
    if case.reference is None or ", position=" in host.label:  # an attention is compared without positions
        return DOES_NOT_APPLY
    compared = False
    for name, function in functions_by_name(case.entry.slot, case.reference).items():
        for description, variant in _variants(case, host, function):
            reference = bind(_covered(function), options=as_list(variant.spec[case.entry.slot])[0])
            try:
                for place, output, expected in _COMPARISONS[name](case, variant, reference):
                    message = difference(output, expected)
                    compared = True
                    if message:
                        return f"{place}{description} {message}"
            except _UncoveredError:
                continue
    return HOLDS if compared else DOES_NOT_APPLY


def functions_by_name(slot: str, reference: Reference) -> dict[str, Function]:
    """Return the functions of a reference by the names of their comparisons: `placement`, `placement.gain`."""
    functions = reference if isinstance(reference, Mapping) else {FORWARD: reference}
    names = {method: slot if method == FORWARD else f"{slot}.{method}" for method in functions}
    for name in names.values():
        if name not in _COMPARISONS:
            raise ValueError(f"a reference of {name} is not supported; valid: {join_names(_COMPARISONS)}")
    return {names[method]: function for method, function in functions.items()}


class _UncoveredError(Exception):
    """The reference does not cover these options."""


def _covered(function: Function) -> Function:
    """Return a function that raises an error in place of returning NotImplemented."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        output = function(*arguments, **named)
        if output is NotImplemented:
            raise _UncoveredError
        return output

    return call


def _variants(case: Case, host: HostModel, reference: Function) -> Iterator[tuple[str, HostModel]]:
    """Yield the model, then with other options of the component if the reference takes them into account."""
    is_outside = case.entry.slot in OUTSIDE_MODELS
    if not host.is_preset or not (is_outside or reads(reference, "options")):
        yield "", host
        return
    yield from option_models(case, host, MAX_VALUES if is_outside else MAX_VALUES_IN_MODELS, DRAWS)


def _models(case: Case, host: HostModel, reference: Function) -> Iterator[tuple[str, SmallModel, Function]]:
    """Yield the model, and another with initial weights if the reference reads `initial`."""
    yield "", case.small_model(host), bind(reference, initial=False)
    if reads(reference, "initial"):
        model = SmallModel(host.spec, case.registry, perturbed=False)
        yield " with initial weights", model, partial(reference, initial=True)


def _per_vector(contract: type[Any]) -> Comparer:
    def compare(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
        for state, model, function in _models(case, host, reference):
            module = _component_in(case, model, contract)
            if module is None:
                return
            x = noise("rows", 2, 3, model.stack().shape.width) * torch.tensor(SCALES).view(-1, 1)
            output = fed_apart(module, x) if contract is FeedForward else module(x)
            expected = torch.stack([function(module, vector) for vector in x.flatten(0, 1)]).view_as(x)
            yield f"the output for 6 vectors{state}", output[0] if contract is FeedForward else output, expected

    return compare


def _component_in(case: Case, model: SmallModel, contract: type[Any]) -> Any:
    """Return the first module of the model that is the component, or None."""
    modules = model.topology.modules()
    return next((module for module in modules if isinstance(module, contract) and type(module) is case.component), None)


def _auxiliary(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare the losses that a feed-forward adds: of several tokens, and of one."""
    for state, model, function in _models(case, host, reference):
        module = _component_in(case, model, FeedForward)
        for count in (6, 1) if module is not None else ():
            x = noise("rows", count, model.stack().shape.width)
            loss = module(x.unsqueeze(0))[1]
            yield f"the loss of {count} tokens{state}", 0.0 if loss is None else loss, function(module, x)


def _placement(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    for description, placement, shape, function in _placements(case, host, reference):
        x = noise("rows", 1, 3, shape.width)
        sublayers = {name: _sublayer(noise(name, *x.shape[1:])) for name in shape.sublayers}
        yield f"the output of {description}", placement(x, sublayers)[0], function(placement, x[0], sublayers)


def _placement_gain(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    for description, placement, _, function in _placements(case, host, reference):
        for role in DRAWN_ROLES:
            yield f"the gain of the role `{role}` in {description}", placement.gain(role), function(placement, role)


def _placements(case: Case, host: HostModel, reference: Function) -> Iterator[tuple[str, Placement, Shape, Function]]:
    """Yield the placement of each layer of each stack; stacks have unequal depths, or one layer that is repeated."""
    for variant in (host, *_other_depths(case, host)):
        for state, model, function in _models(case, variant, reference):
            for part in model.topology.parts:
                stack = model.stack(part.path)
                for index, layer in enumerate(stack.layers):
                    assert isinstance(layer, Layer)
                    assert isinstance(layer.placement, Placement)
                    shape = replace(stack.shape, layer=index)
                    description = f"layer {index} of `{part.path}`{variant.label[len(host.label) :]}{state}"
                    yield description, layer.placement, shape, bind(function, shape=shape)


def _other_depths(case: Case, host: HostModel) -> Iterator[HostModel]:
    dims, parts = host.spec["dims"], host.spec.get("parts") or {}
    for part in case.registry.index.entries["topology"][host.spec["topology"]["name"]].parts:
        if part.path != "body":
            overrides = parts.get(part.name, {})
            deeper = {**dims, **overrides.get("dims", {}), "layers": dims["layers"] + 1}
            spec = {**host.spec, "parts": {**parts, part.name: {**overrides, "dims": deeper}}}
            yield host._replace(label=f"{host.label}, with a deeper {part.name}", spec=spec)
    if host.is_preset and dims["groups"] is None:
        try:
            spec = resolved({**host.spec, "dims": {**dims, "groups": 1}}, registry=case.registry)
        except SpecError:
            return  # the component needs an instance for each layer
        yield host._replace(label=f"{host.label}, with shared layers", spec=spec)


def _sublayer(values: Tensor) -> Sublayer:
    return lambda h: values.tanh() * join_inputs(h).sin() + values


def _embedding(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare whole examples, then one token after the other with dropout, which draws as the reference does."""
    options = host.spec["embedding"]
    for state, model, function in _models(case, host, bind(reference, dropout=lambda x: x)):
        yield from _embedded(model, function, options, slice(LENGTH), state)
    if host.is_preset and reads(reference, "dropout"):
        model = SmallModel({**host.spec, "dropout": DROPOUT}, case.registry)
        model.topology.train()
        function = bind(reference, initial=False, dropout=partial(functional.dropout, p=DROPOUT))
        for index in range(1 if model.has_fixed_length else LENGTH):
            yield from _embedded(model, function, options, slice(index, index + 1), " with dropout")


def _embedded(
    model: SmallModel, reference: Function, options: Mapping[str, Any], tokens: slice, state: str
) -> Iterator[Comparison]:
    """Compare an image, or some tokens of a text with segments, languages and positions that the reference reads."""
    module, part = model.topology.embedding, model.stack().embedding
    ids = model.tokens(1, LENGTH)[:, slice(None) if model.has_fixed_length else tokens]
    index = torch.arange(ids.shape[1]) + (tokens.start or 0)
    segments = index % max(1, options.get("segments", 0)) if reads(reference, "segment") else 0 * index
    languages = index // 2 % max(1, options.get("languages", 0)) if reads(reference, "language") else 0 * index
    added = noise("positions", model.stack().shape.length, model.stack().shape.embedding_width)
    added = added if reads(reference, "position") else torch.zeros_like(added)
    stream = Stream(ids, segments=segments.unsqueeze(0), languages=languages.unsqueeze(0))
    output, _ = _with_equal_draws(module, stream, 0, lambda x, positions: x + added[positions], part)
    if model.has_fixed_length:
        bound = bind(reference, position=added)
        yield f"the embedding of an image{state}", output[0], _with_equal_draws(bound, module, ids[0], part)
        return
    for row, token in enumerate(ids[0].tolist()):
        bound = bind(reference, position=added[row], segment=int(segments[row]), language=int(languages[row]))
        yield f"the vector of token {token}{state}", output[0, row], _with_equal_draws(bound, module, token, part)


def _with_equal_draws(function: Callable[..., Any], *inputs: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function(*inputs)


def _unembed(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    for state, model, function in _models(case, host, reference):
        module = model.topology.embedding
        hidden = noise("hidden", 3, model.stack().shape.embedding_width)
        for h in hidden if module.traits.get("unembeds", True) else ():
            for token in USED_TOKENS:
                yield f"the score of token {token}{state}", module.unembed(h)[token], function(module, h, token)


def _initialisation(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare the weights of each role, and of each parameter of the model."""
    scheme = make(case.registry, "initialisation", host.spec["initialisation"], kind=Initialisation)
    for role in DRAWN_ROLES:
        unit, about = standard_draws(role).double(), parameter_info(role)._replace(gain=0.7)
        yield f"a tensor of the role `{role}`", scheme.draw(unit, about), reference(scheme, unit, about)
    for about in case.small_model(host).parameter_info.values() if host.is_preset else ():
        if about.role in DRAWN_ROLES:
            unit = noise(about.path, *about.shape)
            yield f"`{about.path}`", scheme.draw(unit, about), reference(scheme, unit, about)


def _topology(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare each part for one example with learned positions, and the gradients of all parameters."""
    position = {"position": "learned"} if host.spec.get("position") else {}
    model = SmallModel(resolved({**host.spec, **position}, registry=case.registry), case.registry)
    source = Stream(tokens(1, 6, "source"))
    for part in model.topology.parts:
        stream = model.full_stream(tokens(1, LENGTH)) if part.path == "body" else Stream(tokens(1, LENGTH))
        read = _first_example(source) if part.cross else None
        with torch.enable_grad():
            memory = model.memory(source) if part.cross else None
            output = model.topology.run({part.path: stream}, part.path, memory=memory).hidden[0]
            expected = reference(model.topology, part.path, _first_example(stream), read)
            gradients = list(_gradients(model, output, expected))
        yield f"the output of `{part.path}`", output, expected
        for path, gradient, expected_gradient in gradients:
            yield f"the gradient of `{path}` by the output of `{part.path}`", gradient, expected_gradient


def _first_example(stream: Stream) -> Stream:
    return stream.apply(lambda vector: vector[0])


def _gradients(model: SmallModel, *outputs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the gradients of each parameter by two outputs."""
    parameters = dict(model.topology.named_parameters())
    of_each = (
        torch.autograd.grad((output * noise("loss", *output.shape)).sum(), [*parameters.values()], allow_unused=True)
        for output in outputs
    )
    for path, *gradients in zip(parameters, *of_each, strict=True):
        gradient, expected = (torch.zeros(1) if value is None else value for value in gradients)
        yield path, gradient, expected.expand_as(gradient) if expected.numel() == 1 else expected


def _optimizer(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    run, is_changing = OptimizerRun(case, host.spec["optimizer"]), reads(reference, "factors")
    for count in (STEPS, HORIZON if host.is_preset else SHORTER):
        factors = CHANGING_RATES[:count] if is_changing else [1.0] * count
        for index, (output, start) in enumerate(zip(run.steps(count=count, factors=factors), run.start(), strict=True)):
            gradients = [run.gradient(step, start) for step in range(count)]
            about = TrainedTensor.of(nn.Parameter(start), TENSORS[index][0]).about
            expected = bind(reference, factors=factors, about=about)(run.optimizer, start, gradients)
            yield f"{describe_tensor(index)} after {count} steps", output, expected


def _schedule(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    schedule = make(case.registry, "schedule", host.spec["schedule"], kind=Schedule)
    for steps in (1, 7, 100):
        for step in range(steps):
            expected = reference(schedule, step, steps)
            yield f"the factor at step {step} of {steps}", schedule.factor(step, steps), expected


_COMPARISONS: Final[Mapping[str, Comparer]] = {
    "attention": attention_comparisons,
    "position": position_comparisons,
    "norm": _per_vector(Norm),
    "feedforward": _per_vector(FeedForward),
    "feedforward.auxiliary": _auxiliary,
    "placement": _placement,
    "placement.gain": _placement_gain,
    "embedding": _embedding,
    "embedding.unembed": _unembed,
    "initialisation": _initialisation,
    "topology": _topology,
    "optimizer": _optimizer,
    "schedule": _schedule,
    "objective": objective_values,
    "corpus": document_values,
    "measure": measured_values,
}

REFERENCE_SLOTS: Final = tuple(name for name in _COMPARISONS if "." not in name)
