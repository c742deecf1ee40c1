"""Checks of one component: tokens of norms and feed-forwards, sublayers of placements, queries of topologies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paribus.parts.batch import StepInput, Stream, TokenLayout
from paribus.parts.stack import Layer
from paribus.slots.norm import Norm
from paribus.slots.placement import Sublayer
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
)
from paribus.testing.small_model import (
    TOLERANCE,
    SmallModel,
    fed_apart,
    max_difference,
    noise,
    relative_change,
    replace_tokens,
    tokens,
)

QUERIES = 12  # of a second stream, and steps with feedback


def norm_per_token(case: Case, host: HostModel) -> Verdict:
    """A norm keeps shape and dtype, and normalizes each token independently of others."""
    model = case.small_model(host)
    norms = [module for module in model.topology.modules() if isinstance(module, Norm)]
    for norm in norms[:1]:
        x = noise("rows", 2, 5, model.stack().shape.width)
        return _per_token_fault(norm, x, norm(x))
    return "expected a norm in the model, got none"


def norm_inputs(case: Case, host: HostModel) -> Verdict:
    """A norm accepts any number of axes, and has a finite output and gradient for zeros and constants."""
    model = case.small_model(host)
    norm = next(module for module in model.topology.modules() if isinstance(module, Norm))
    x = noise("rows", 2, 2, 3, model.stack().shape.width)
    expected = norm(x.flatten(0, 1))  # (B, T, D)
    for shape in (x.shape, (12, x.shape[-1])):
        difference = max_difference(norm(x.reshape(shape)).reshape(expected.shape), expected)
        if difference > TOLERANCE:
            return f"vectors of shape {tuple(shape)} differ by {difference:.2g} from the same ones with three axes"
    if norm(x[0, 0, 0]).shape != x.shape[-1:]:
        return "a single vector does not keep its shape"
    for value in (0.0, 1.0):
        with torch.enable_grad():
            constant = torch.full_like(expected, value).requires_grad_()
            y = norm(constant)
            (grad,) = torch.autograd.grad(y.sum(), constant)
        if not (torch.isfinite(y).all() and torch.isfinite(grad).all()):
            return (
                f"the output or the gradient of a vector of {value:g} is not finite. Usual cause: a root or a division "
                "at 0; add `eps` inside the root"
            )
    return HOLDS


def feedforward_per_token(case: Case, host: HostModel) -> Verdict:
    """A feed-forward keeps the shape and transforms each token independently; an auxiliary loss is a mean.

    One that mixes tokens does so within a document: here, each token is one.
    An expert that no token is routed to runs without tokens.
    """
    model = case.small_model(host)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    x = noise("rows", 2, 5, model.stack().shape.width)
    feedforward = layer.feedforward
    assert feedforward is not None
    y, auxiliary = fed_apart(feedforward, x)
    if auxiliary is not None and auxiliary.ndim:
        return f"its auxiliary loss has the shape {tuple(auxiliary.shape)}; expected a scalar"
    twice = fed_apart(feedforward, torch.cat([x, x]))[1]
    if auxiliary is not None and max_difference(twice, auxiliary) > TOLERANCE:
        return (
            f"its auxiliary loss is {float(auxiliary):.4g}, but {float(twice):.4g} if each token occurs twice; "
            "expected a mean over tokens, so that its weight does not depend on the batch"
        )
    empty, auxiliary = fed_apart(feedforward, x[:, :0])
    if empty.shape != x[:, :0].shape or not (auxiliary is None or torch.isfinite(auxiliary).all()):
        return (
            "without tokens, as in an unused expert, its output has another shape, or its auxiliary loss is not finite"
        )
    return _per_token_fault(lambda tokens: fed_apart(feedforward, tokens)[0], x, y)


def _per_token_fault(function: Any, x: Tensor, y: Tensor) -> str:
    if y.shape != x.shape or y.dtype != x.dtype:
        return (
            f"the output has shape {tuple(y.shape)} and dtype {y.dtype}; expected {tuple(x.shape)} and {x.dtype} of "
            "the input"
        )
    for index in range(x.shape[1]):
        difference = max_difference(function(x[:, index : index + 1]), y[:, index : index + 1])
        if difference > TOLERANCE:
            return (
                f"the output at position {index} of {x.shape[1]} differs by {difference:.2g} from that of the same "
                "token "
                "alone. Usual cause: an operation over the sequence dimension"
            )
    return HOLDS


def output_role(case: Case, host: HostModel) -> Verdict:
    """A matrix by which the output of a feed-forward is linear has the role `residual`."""
    model = SmallModel(host.spec, case.registry)
    path, module = next((path, part) for path, part in model.topology.named_modules() if type(part) is case.component)
    role = {name: model.parameter_info[f"{path}.{name}"].role for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        if role[name] == "bias":
            parameter.zero_()
    for name, weight in module.named_parameters():
        if role[name] != "residual" and _writes_output(module, weight, model.stack().shape.width):
            return f"`{name}` writes the output, but has the role `{role[name]}`; expected `residual`"
    return HOLDS


def _writes_output(module: nn.Module, weight: Tensor, width: int) -> bool:
    """Return True if a feed-forward without biases is a linear map by this matrix."""
    if weight.ndim != 2 or weight.shape[0] != width:
        return False
    x, original = noise("rows", 2, 5, width), weight.clone()
    outputs = []
    for factor in (1, 2, -1):
        weight.copy_(factor * original)
        outputs.append(module(x)[0] / factor)
    weight.copy_(original)
    return max(max_difference(output, outputs[0]) for output in outputs[1:]) <= TOLERANCE


def second_stream(case: Case, host: HostModel) -> Verdict:
    """A query of a second stream reads the tokens before its position in the order, and not its own token."""
    if "second-stream" not in case.entry.traits.get("provides", []):
        return DOES_NOT_APPLY
    model, length = case.small_model(host), QUERIES
    order = (torch.arange(length) * 5 + 1) % length
    token_ids = tokens(1, length)
    stream = Stream(token_ids, order=2 * order.unsqueeze(0), query_positions=torch.arange(length).unsqueeze(0))
    changed = torch.where(torch.eye(length, dtype=torch.bool), replace_tokens(token_ids), token_ids)
    every = stream.apply(lambda vector: vector.expand(length, -1))
    outputs = model.hidden(every._replace(tokens=changed))[:, length:]
    influence = relative_change(outputs, model.hidden(stream)[:, length:])  # (token, query)
    is_earlier = order.unsqueeze(1) < order
    for token, query in (~((influence > TOLERANCE) == is_earlier)).nonzero().tolist():
        relation = "its own token" if token == query else "a token before it" if is_earlier[token, query] else "a later"
        return (
            f"in the order {order.tolist()}, the query for position {query} "
            f"{'reads' if influence[token, query] > TOLERANCE else 'does not read'} {relation} ({token})"
        )
    return HOLDS


def separate_directions(case: Case, host: HostModel) -> Verdict:
    """The first half of an output depends on no later token, and the second half on no earlier one."""
    if "separate-directions" not in case.entry.traits.get("provides", []):
        return DOES_NOT_APPLY
    model, token_ids = case.small_model(host), tokens(1, QUERIES)
    changed = torch.where(torch.eye(QUERIES, dtype=torch.bool), replace_tokens(token_ids), token_ids)
    outputs, output = model.hidden(changed), model.hidden(token_ids)
    distance = torch.arange(QUERIES) - torch.arange(QUERIES).unsqueeze(1)  # (token, output)
    halves = zip(outputs.chunk(2, -1), output.chunk(2, -1), (distance >= 0, distance <= 0), strict=True)
    for name, (half, original, is_read) in zip(("first", "second"), halves, strict=True):
        influence = relative_change(half, original)
        for token, place in (~((influence > TOLERANCE) == is_read)).nonzero().tolist():
            verb = "does not read" if is_read[token, place] else "reads"
            return f"the {name} half of the output at position {place} {verb} the token at position {token}"
    return HOLDS


def feedback(case: Case, host: HostModel) -> Verdict:
    """Tokens that are fed back give the output of a pass over a sequence that contains them."""
    if "feedback" not in case.entry.traits.get("provides", []):
        return DOES_NOT_APPLY
    model, token_ids = case.small_model(host), tokens(2, QUERIES)
    memory, other_ids = model.memory(tokens(2, 6, "source")), replace_tokens(token_ids)
    is_fed = torch.arange(QUERIES) % 3 == 1
    output = model.topology.run_with_feedback(
        {"body": Stream(token_ids)}, lambda t, hidden: StepInput(other_ids[:, t]) if is_fed[t] else None, memory
    ).hidden
    combined = Stream(torch.where(is_fed, other_ids, token_ids))
    difference = max_difference(output, model.topology.run({"body": combined}, "body", memory=memory).hidden)
    if difference > TOLERANCE:
        return f"with every third token fed back, the output differs by {difference:.2g} from a pass over these tokens"
    return HOLDS


def placement_wiring(case: Case, host: HostModel) -> Verdict:
    """A placement runs each sublayer once, uses its output, and keeps the shape."""
    model = case.small_model(host)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    placement = layer.placement
    assert placement is not None
    names = model.stack().shape.sublayers
    x = noise("rows", 2, 3, model.stack().shape.width)
    called: list[str] = []
    with _counted_calls(placement) as norm_calls:
        y = placement(x, _sublayers(names, called, ""))
    if sorted(called) != sorted(names):
        return f"it runs the sublayers {', '.join(called) or 'none'}; expected each of {', '.join(names)} once"
    if y.shape != x.shape:
        return f"the output has shape {tuple(y.shape)}; expected {tuple(x.shape)} of the input"
    for name in names:
        if torch.equal(placement(x, _sublayers(names, [], name)), y):
            return f"the output of the sublayer `{name}` does not change the output of the layer"
    for path, calls in norm_calls.items():
        if calls != 1:
            return f"it applies the norm `{path}` {calls} times; expected once"
    return HOLDS


@contextmanager
def _counted_calls(placement: nn.Module) -> Iterator[dict[str, int]]:
    """Count the calls of each norm of a placement."""
    norms = {path: module for path, module in placement.named_modules() if isinstance(module, Norm)}
    calls = dict.fromkeys(norms, 0)

    def count(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls[path] += 1

        return hook

    handles = [module.register_forward_hook(count(path)) for path, module in norms.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def residual_stream(case: Case, host: HostModel) -> Verdict:
    """A layer passes its input on: without sublayer outputs, a multiple of it, or a function of it if normalized.

    The trait `identity_path: False` declares a placement with final norm that changes the residual stream otherwise.
    """
    model = case.small_model(host)
    layer = model.stack().layers[-1]
    assert isinstance(layer, Layer)
    assert layer.placement is not None
    x = noise("rows", 2, 3, model.stack().shape.width)
    silent: Mapping[str, Sublayer] = dict.fromkeys(
        model.stack().shape.sublayers, lambda h: torch.zeros_like(join_inputs(h))
    )
    y, y_of_other = layer.placement(x, silent), layer.placement(noise("other", *x.shape), silent)
    if max_difference(y, y_of_other) <= TOLERANCE:
        return "without sublayer outputs, the output of the last layer does not depend on its input"
    y = y - layer.placement(torch.zeros_like(x), silent)  # without biases of norms behind the sublayers
    factor = (x * y).sum() / x.square().sum()
    difference = max_difference(factor * x, y)
    if case.entry.traits.get("final_norm") and case.entry.traits.get("identity_path", True) and difference > TOLERANCE:
        return (
            f"without sublayer outputs, the output of the last layer differs by {difference:.2g} from a multiple of "
            "its input. Usual cause: a norm or a scale on the residual stream"
        )
    return HOLDS


INPUT_SCALE = 7.0  # of hidden states, unlike that of a normalized output
NORM_TOLERANCE = 1e-2


def normalized_once(case: Case, host: HostModel) -> Verdict:
    """A stack with norms returns normalized states, by the last layer or by a final norm, and not by both.

    The trait `output_normalized: False` declares a placement with norms whose output is not normalized.
    """
    model = SmallModel(host.spec, case.registry, perturbed=False)
    stack, layer = model.stack(), model.stack().layers[-1]
    assert isinstance(layer, Layer)
    assert layer.placement is not None
    norm = next((module for module in layer.placement.modules() if isinstance(module, Norm)), None)
    x = INPUT_SCALE * noise("rows", 2, 6, stack.shape.width)
    if norm is None or not _is_normalized(norm(x)) or not case.entry.traits.get("output_normalized", True):
        return DOES_NOT_APPLY  # the norm is none, or does not set the length of vectors
    before_final: list[Tensor] = []
    layer_handle = layer.register_forward_hook(
        lambda module, arguments, output: before_final.append(layer.end(output[0]))
    )
    try:
        layout = TokenLayout(torch.arange(6).unsqueeze(0))
        hidden = stack(x, layout, model.memory(tokens(2, 6, "source"))).hidden
    finally:
        layer_handle.remove()
    if not _is_normalized(hidden):
        return (
            "the output of the stack is not normalized, though its layers have norms. Usual cause: the trait "
            "`final_norm` is False for a pre-norm placement"
        )
    if stack.normed and _is_normalized(before_final[-1]):
        return (
            "the last layer returns normalized states, and a final norm follows. Usual cause: the trait `final_norm` "
            "is True for a post-norm placement"
        )
    return HOLDS


def _is_normalized(x: Tensor) -> bool:
    """Return True if each vector has a root mean square of 1."""
    return bool(((x.square().mean(-1).sqrt() - 1).abs() < NORM_TOLERANCE).all())


def separate_inputs(case: Case, host: HostModel) -> Verdict:
    """Self-attention reads separate inputs of queries, keys and values, if its trait `separate_inputs` declares so."""
    if not case.entry.traits.get("separate_inputs"):
        return DOES_NOT_APPLY
    model = case.small_model(host)
    attention: Any = model.layers()[0].attention
    given: list[Any] = []
    handle = attention.register_forward_pre_hook(lambda module, inputs: given.append(inputs))
    try:
        model.hidden(model.tokens(2, 6), source=tokens(2, 6, "source"))
    finally:
        handle.remove()
    x, ctx = given[0]

    def output(*inputs: Tensor) -> Tensor:
        y: Tensor = attention(inputs[0], ctx._replace(key_input=inputs[1], value_input=inputs[2], carry={}))
        return y

    same, other = output(x, x, x), noise("other", *x.shape)
    if max_difference(same, attention(x, ctx._replace(carry={}))) > TOLERANCE:
        return "with equal inputs of queries, keys and values, the output differs from that of one input"
    for index, name in enumerate(("queries", "keys", "values")):
        if max_difference(output(*(other if place == index else x for place in range(3))), same) <= TOLERANCE:
            return f"the input of {name} changes no output. Usual cause: it is not read from the context"
    return HOLDS


def join_inputs(h: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the input of a sublayer, or a function of the inputs of queries, keys and values that depends on each."""
    return h if isinstance(h, Tensor) else sum((part.cos() for part in h[1:]), h[0])


def _sublayers(names: tuple[str, ...], called: list[str], changed: str) -> Mapping[str, Sublayer]:
    """Return sublayers, one of which has outputs of another direction: a placement may ignore their length."""

    def sublayer(name: str) -> Sublayer:
        def run(h: Tensor | tuple[Tensor, ...]) -> Tensor:
            called.append(name)
            h = join_inputs(h)
            fixed = noise(name, *h.shape[1:])
            return fixed.tanh() * h.sin() * (2 if name == changed else 1) + fixed

        return run

    return {name: sublayer(name) for name in names}
