"""Enhanced mask decoder, compared row by row with the authors' code."""

import math
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.nn import functional

from paribus import Capture, Draw, SpecError, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.testing.small_model import SmallModel, noise, tokens

SMALL = "dims={width: 12, layers: 3, heads: 3, length: 16, vocabulary: 64}"
LENGTH, DISTANCE = 9, 3


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


def passed(specimen: SmallModel, stream: Stream) -> tuple[Any, Any]:
    """The objective with perturbed float64 parameters, and a forward pass of a corrupted batch."""
    objective: Any = specimen.children["objectives"].double().get_submodule("emd")
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            parameter.add_(noise(name, *parameter.shape), alpha=0.3)
    streams, targets = objective.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(2)))
    return objective, BatchForward(
        specimen.topology, Batch(streams, {"emd": targets}, torch.arange(2)), capture=objective.captures
    ).of("emd")


def test_hidden_states_equal_those_of_the_authors_code(components: Registry) -> None:
    overrides = [SMALL, f"position.distance={DISTANCE}", "objective.rate=0.3"]
    specimen = SmallModel(resolved("deberta-tiny", *overrides, registry=components), components)
    objective, run = passed(specimen, Stream(tokens(2, LENGTH)))
    pick = run.targets["pick"]
    with torch.no_grad():
        layer_input = run.last_layer_input()
        queries = layer_input.gather(1, pick.unsqueeze(-1).expand(-1, -1, 12)) + objective.places.weight[pick]
        for _ in range(2):
            queries = layer(specimen, layer_input, queries, pick)
        torch.testing.assert_close(objective.decode(run), queries, rtol=0, atol=1e-12)
        inner = functional.layer_norm(
            functional.gelu(queries @ objective.dense.weight.T + objective.dense.bias), (12,),
            objective.norm.weight, objective.norm.bias, 1e-7,
        )  # fmt: skip
        scores = inner @ specimen.topology.get_parameter("embedding.tokens.weight").T + objective.bias
        total = functional.cross_entropy(scores.flatten(0, 1), run.targets["labels"].flatten(), reduction="sum")
        torch.testing.assert_close(objective(run)["loss"].total, total, rtol=0, atol=1e-10)


def layer(specimen: SmallModel, content: Tensor, queries: Tensor, pick: Tensor) -> Tensor:
    """The authors' last layer, a row at a time: queries of one stream, keys and values of the other."""
    stack: Any = specimen.stack()
    last_layer, table = stack.layers[-1], stack.position[0].table.weight
    heads, norms = last_layer.attention.heads, last_layer.placement.norms
    by_query, by_key = (
        project(table).view(-1, 3, 4) for project in (last_layer.position.query, last_layer.position.key)
    )
    k, v = (project(content).view(2, -1, 3, 4) for project in (heads.k, heads.v))
    mixed = torch.zeros_like(queries)
    for b in range(2):
        for n in range(pick.shape[1]):
            q, i = heads.q(queries[b, n]).view(3, 4), int(pick[b, n])
            outputs = []
            for h in range(3):
                scores = []
                for j in range(content.shape[1]):
                    distance = min(max(i - j, -DISTANCE), DISTANCE - 1) + DISTANCE
                    terms = q[h] @ k[b, j, h] + q[h] @ by_key[distance, h] + k[b, j, h] @ by_query[distance, h]
                    scores.append(terms / math.sqrt(3 * 4))
                outputs.append(torch.stack(scores).softmax(0) @ v[b, :, h])
            mixed[b, n] = heads.o(torch.cat(outputs))
    x = norms["attention"](queries + mixed)
    output: Tensor = norms["feedforward"](x + last_layer.feedforward(x)[0])
    return output


@pytest.mark.parametrize(
    "overrides",
    [
        ("attention=mqa", "position=rope"),
        ("placement=pre", "norm=rmsnorm"),
        ("attention=[mha, restricted]", "attention.1.window=3", "position=t5"),
        ("dims.groups=1", "feedforward=moe", "position=transformer-xl"),
    ],
    ids=" ".join,
)
def test_any_last_layer_can_be_reused_and_every_parameter_has_a_gradient(
    overrides: tuple[str, ...], components: Registry
) -> None:
    specimen = SmallModel(resolved("deberta-tiny", SMALL, *overrides, registry=components), components)
    objective, run = passed(specimen, Stream(tokens(2, LENGTH)))
    total = objective(run)["loss"].total
    parameters = [*objective.parameters(), *specimen.topology.parameters()]
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(total, parameters))


def test_absolute_positions_are_added_to_hidden_states(components: Registry) -> None:
    specimen = SmallModel(resolved("deberta-tiny", SMALL, "position=none", registry=components), components)
    text, positions = tokens(2, LENGTH), torch.arange(LENGTH).unsqueeze(0)
    objective, run = passed(specimen, Stream(text, positions=positions))
    with torch.no_grad():
        moved = Batch(
            {"body": run.streams["body"]._replace(positions=positions + 1)}, {"emd": run.targets}, positions[0]
        )
        moved_run = BatchForward(specimen.topology, moved, capture=Capture(last_layer_input=True)).of("emd")
        torch.testing.assert_close(moved_run.hidden(), run.hidden(), rtol=0, atol=0)
        assert (objective.decode(moved_run) - objective.decode(run)).abs().amax(-1).min() > 1e-3


def test_a_body_without_a_last_attention_layer_is_refused(components: Registry) -> None:
    with raises_problem(SpecError, "does-not-fit", "conv"):
        resolved("deberta-tiny", "attention=conv", "position=learned", registry=components)
    with raises_problem(SpecError, "does-not-fit", "emd", "decoder"):
        resolved("deberta-tiny", "topology=decoder", registry=components)
