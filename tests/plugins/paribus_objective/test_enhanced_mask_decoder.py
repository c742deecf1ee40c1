"""What the authors' decoder does, row by row, is what comes out."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus import Capture, Draw, SpecError, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.testing.small_model import Specimen, noise, tokens

SMALL = "dims={width: 12, layers: 3, heads: 3, length: 16, vocabulary: 64}"
LENGTH, DISTANCE = 9, 3


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


def passed(made: Specimen, stream: Stream) -> tuple[Any, Any]:
    """The objective, in float64 and away from where it starts, and a pass of a batch that it corrupted."""
    objective: Any = made.children["objectives"].double().get_submodule("emd")
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            parameter.add_(noise(name, *parameter.shape), alpha=0.3)
    streams, targets = objective.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(2)))
    return objective, BatchForward(
        made.topology, Batch(streams, {"emd": targets}, torch.arange(2)), capture=objective.captures
    ).of("emd")


def test_rows_are_those_of_the_authors_code(components: Registry) -> None:
    overrides = [SMALL, f"position.distance={DISTANCE}", "objective.rate=0.3"]
    made = Specimen(resolved("deberta-tiny", *overrides, registry=components), components)
    objective, run = passed(made, Stream(tokens(2, LENGTH)))
    pick = run.targets["pick"]
    with torch.no_grad():
        read = run.last_layer_input()
        asking = read.gather(1, pick.unsqueeze(-1).expand(-1, -1, 12)) + objective.places.weight[pick]
        for _ in range(2):
            asking = layer(made, read, asking, pick)
        torch.testing.assert_close(objective.decode(run), asking, rtol=0, atol=1e-12)
        inner = functional.layer_norm(
            functional.gelu(asking @ objective.dense.weight.T + objective.dense.bias), (12,),
            objective.norm.weight, objective.norm.bias, 1e-7,
        )  # fmt: skip
        scores = inner @ made.topology.get_parameter("embedding.tokens.weight").T + objective.bias
        total = functional.cross_entropy(scores.flatten(0, 1), run.targets["labels"].flatten(), reduction="sum")
        torch.testing.assert_close(objective(run)["loss"].total, total, rtol=0, atol=1e-10)


def layer(made: Specimen, content: Tensor, asking: Tensor, pick: Tensor) -> Tensor:
    """The last layer as the authors have it: queries of one stream, keys and values of the other, a row at a time."""
    stack: Any = made.stack()
    last, table = stack.layers[-1], stack.position[0].table.weight
    heads, norms = last.attention.heads, last.placement.norms
    by_query, by_key = (project(table).view(-1, 3, 4) for project in (last.position.query, last.position.key))
    k, v = (project(content).view(2, -1, 3, 4) for project in (heads.k, heads.v))
    mixed = torch.zeros_like(asking)
    for b in range(2):
        for n in range(pick.shape[1]):
            q, i = heads.q(asking[b, n]).view(3, 4), int(pick[b, n])
            found = []
            for h in range(3):
                scores = []
                for j in range(content.shape[1]):
                    far = min(max(i - j, -DISTANCE), DISTANCE - 1) + DISTANCE
                    terms = q[h] @ k[b, j, h] + q[h] @ by_key[far, h] + k[b, j, h] @ by_query[far, h]
                    scores.append(terms / math.sqrt(3 * 4))
                found.append(torch.stack(scores).softmax(0) @ v[b, :, h])
            mixed[b, n] = heads.o(torch.cat(found))
    x = norms["attention"](asking + mixed)
    made_rows: Tensor = norms["feedforward"](x + last.feedforward(x)[0])
    return made_rows


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
def test_any_last_layer_is_asked_again_and_every_parameter_of_the_head_learns(
    overrides: tuple[str, ...], components: Registry
) -> None:
    made = Specimen(resolved("deberta-tiny", SMALL, *overrides, registry=components), components)
    objective, run = passed(made, Stream(tokens(2, LENGTH)))
    total = objective(run)["loss"].total
    parameters = [*objective.parameters(), *made.topology.parameters()]
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(total, parameters))


def test_a_hidden_row_knows_its_place_and_its_position_may_say_another(components: Registry) -> None:
    made = Specimen(resolved("deberta-tiny", SMALL, "position=none", registry=components), components)
    text, places = tokens(2, LENGTH), torch.arange(LENGTH).unsqueeze(0)
    objective, here = passed(made, Stream(text, positions=places))
    with torch.no_grad():
        moved = Batch({"body": here.streams["body"]._replace(positions=places + 1)}, {"emd": here.targets}, places[0])
        there = BatchForward(made.topology, moved, capture=Capture(last_layer_input=True)).of("emd")
        torch.testing.assert_close(there.hidden(), here.hidden(), rtol=0, atol=0)
        assert (objective.decode(there) - objective.decode(here)).abs().amax(-1).min() > 1e-3


def test_what_has_no_last_layer_to_ask_is_refused(components: Registry) -> None:
    with pytest.raises(SpecError, match="`conv` lets none ask behind its keys"):
        resolved("deberta-tiny", "attention=conv", "position=learned", registry=components)
    with pytest.raises(SpecError, match="needs rows that see both sides"):
        resolved("deberta-tiny", "topology=decoder", registry=components)
