"""Deep recurrent encoder-decoder, compared with the equations of GNMT's paper."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Output, SpecError, Stream, memory_of
from paribus.assembly.cost import model_cost, tokens_per_part
from paribus.complexity.counting import flop_counter
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.registry import installed

SOURCES, TARGETS = [[30, 14, 41, 51, 92], [65, 35, 89]], [[79, 32, 38, 46], [26, 43, 38, 32]]
FLAT = ("attention.scores.scaled=false", "attention.scores.bias=false")
Recurrent = Callable[..., Model]
RunBoth = Callable[..., Output]
PaddedStream = Callable[..., Stream]
State = tuple[Tensor, Tensor]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
ZERO = torch.zeros(5, dtype=torch.float64)


def lstm(model: Model, path: str, x: Tensor, state: State, context: Tensor | None = None) -> State:
    """Run one token: x, or x and the context side by side."""
    get, (h, c) = model.get_parameter, state
    weight: Tensor = get(f"{path}.reads.weight")
    if context is not None:
        x, weight = torch.cat([x, context]), torch.cat([weight, get(f"{path}.fed.weight")], dim=1)
    gates = weight @ x + get(f"{path}.reads.bias") + get(f"{path}.repeats.weight") @ h
    i, f, new, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(c), c


def read(model: Model, path: str, xs: list[Tensor]) -> list[State]:
    states = [(ZERO, ZERO)]
    for x in xs:
        states.append(lstm(model, path, x, states[-1]))
    return states[1:]


def encode(model: Model, source: list[int]) -> tuple[list[Tensor], list[State]]:
    """Return the encoder's output at each token, and the last state of each layer (3.1 and 3.2)."""
    xs = [model.get_parameter("embedding.tokens.weight")[word] for word in source]
    ahead, behind = read(model, "encoder.layers.0.0", xs), read(model, "encoder.layers.0.1", xs[::-1])[::-1]
    final = [ahead[-1]]
    xs = [torch.cat([forward[0], backward[0]]) for forward, backward in zip(ahead, behind, strict=True)]
    for layer in range(1, model.spec["dims"]["layers"]):
        states = read(model, f"encoder.layers.{layer}.0", xs)
        final.append(states[-1])
        is_residual = layer >= 2  # from the third layer on
        xs = [state[0] + x if is_residual else state[0] for state, x in zip(states, xs, strict=True)]
    return xs, final


def decode(model: Model, source: list[int], target: list[int]) -> Tensor:
    """Return the scores (T, V) of section 3."""
    get = model.get_parameter
    memory, states = encode(model, source)
    if model.spec["topology"]["initial_state"] == "learned":
        states = [(layer[0], layer[1]) for layer in get("body.first.states")]
    w_a, u_a, v_a = get("body.cross.heads.q.weight"), get("body.cross.heads.k.weight"), get("body.cross.outer")[0]
    scores = []
    for word in target:
        energies = torch.stack([v_a @ torch.tanh(w_a @ states[0][0] + u_a @ item) for item in memory])
        weights = energies.exp() / energies.exp().sum()  # equation 4: the bottom state of the step before attends
        context = sum((weight * item for weight, item in zip(weights, memory, strict=True)), ZERO)
        x = get("embedding.tokens.weight")[word]
        for layer in range(len(states)):
            states[layer] = lstm(model, f"body.layers.{layer}", x, states[layer], context)
            x = states[layer][0] + x if layer >= 2 else states[layer][0]  # equation 6
        scores.append(get("embedding.head.weight") @ x)
    return torch.stack(scores)


@pytest.fixture(scope="module", params=["encoder", "learned"])
def model(request: Any, recurrent: Recurrent) -> Model:
    return recurrent("gnmt-tiny", "dims.layers=4", f"topology.initial_state={request.param}", *FLAT)


@pytest.mark.parametrize("side", ["right", "left"])
def test_matches_the_equations_of_the_paper(
    side: str, model: Model, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    output = run_both(model, padded_stream(SOURCES, side), Stream(torch.tensor(TARGETS)), capture=True)
    scores = model.topology.embedding.unembed(output.hidden)
    expected = torch.stack([decode(model, source, target) for source, target in zip(SOURCES, TARGETS, strict=True)])
    same(scores, expected)
    same(output.captured[0]["cross"].sum(-1), torch.ones(2, 1, 4, dtype=torch.float64))
    if side == "right":
        parameters = list(model.topology.parameters())
        same(*(torch.autograd.grad(y.cos().sum(), parameters) for y in (scores, expected)))


def test_packed_documents_and_padding_start_anew(model: Model, padded_stream: PaddedStream, run_both: RunBoth) -> None:
    source, target = (
        Stream(torch.tensor([[*left, 77, *right]]), torch.tensor([[0] * len(left) + [-1] + [1] * len(right)]))
        for left, right in (SOURCES, TARGETS)
    )
    scores = model.topology.embedding.unembed(run_both(model, source, target).hidden)[0]
    same(scores[:4], decode(model, SOURCES[0], TARGETS[0]))
    same(scores[5:], decode(model, SOURCES[1], TARGETS[1]))


@pytest.mark.parametrize(("cell", "layers"), [("lstm", 3), ("gru", 1), ("gru-after", 2)])
def test_decoding_in_chunks_equals_one_pass(
    cell: str, layers: int, recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent("gnmt-tiny", f"dims.layers={layers}", f"topology.cell={cell}")
    source, tokens = padded_stream(SOURCES), torch.tensor(TARGETS)
    memory = memory_of(model.topology.run({"encoder": source}, "encoder"))
    states, steps = model.topology.start(2, 4), []
    for a, b in pairwise([0, 1, 3, 4]):
        steps.append(model.topology.run({"body": Stream(tokens[:, a:b])}, "body", memory=memory, states=states).hidden)
    same(torch.cat(steps, dim=1), run_both(model, source, Stream(tokens)).hidden)
    declared = sum(line.state for line in model_cost(model.assembled, 5).lines)
    saved = [tensor[0].numel() for layer in states.layers for state in layer.values() for tensor in state.values()]
    assert declared == sum(saved)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [(), ("topology.initial_state=learned", "topology.cell=gru")])
def test_cost_matches_the_torch_flop_counter(options: tuple[str, ...]) -> None:
    model = meta_model(paribus.spec("gnmt-tiny", *options, "dims.length=16"), installed())
    lines = {line.path: line.flops for line in model_cost(model, 16).lines}
    layout = {path: inputs.tokens for path, inputs in tokens_per_part(model, 16).items()}
    tokens = {path: Stream(torch.zeros(1, count, dtype=torch.long, device="meta")) for path, count in layout.items()}
    with flop_counter() as counter:
        memory = memory_of(model.topology.run(tokens, "encoder"))
        model.topology.run(tokens, "body", memory=memory)
    declared = sum(flops for path, flops in lines.items() if path.partition(".")[0] in ("body", "encoder"))
    assert declared == counter.get_total_flops()


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        (["topology.residual_from=1"], "out-of-range", ("residual_from", "≥ 2")),
        (["parts.encoder.dims.layers=5"], "component-error", ("5", "4")),
        (["topology.embedding_width=5"], "unknown-key", ("embedding_width",)),
    ],
)
def test_invalid_sizes_are_rejected(overrides: list[str], code: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *values):
        paribus.assemble(paribus.spec("gnmt-tiny", "dims.vocabulary=300", *overrides))


def test_a_learned_state_fits_an_encoder_of_another_depth() -> None:
    options = ("parts.encoder.dims.layers=5", "topology.initial_state=learned", "dims.vocabulary=300")
    assert paribus.assemble(paribus.spec("gnmt-tiny", *options)).get_parameter("body.first.states").shape == (4, 2, 64)
