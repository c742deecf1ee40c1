"""Bidirectional language modelling: labels, loss, and what a prediction must not see."""

from typing import Any

import pytest
import torch
from torch import Tensor

import paribus
from paribus import IGNORED, PADDING, Batch, Draw, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.lightning_module import Model

TEXT = [30, 14, 41, 51, 92, 65]
DRAW = Draw(0, 0, torch.zeros(1, dtype=torch.long))


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(5)
    spec = paribus.spec("elmo-tiny", "tokenizer=bytes", "dims.width=6", "dims.length=8", "dims.vocabulary=300")
    assembled = paribus.assemble(spec).double().eval()
    with torch.no_grad():
        for parameter in assembled.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return assembled


def examples(model: Model, tokens: list[int], documents: list[int] | None = None) -> Any:
    stream = Stream(torch.tensor([tokens]), None if documents is None else torch.tensor([documents]))
    return model.objective("bilm").corrupt({"body": stream}, {}, DRAW)


def losses(model: Model, tokens: list[int], documents: list[int] | None = None) -> dict[str, Tensor]:
    """Return the summed loss of each direction."""
    formed = examples(model, tokens, documents)
    batch = Batch(formed.streams, {"bilm": formed.targets}, torch.zeros(1, dtype=torch.long))
    terms = model.objective("bilm")(BatchForward(model.topology, batch).of("bilm"))
    return {name: term.total for name, term in terms.items()}


def test_labels_are_the_neighbours_of_each_token(model: Model) -> None:
    formed = examples(model, TEXT)
    assert formed.streams["body"].tokens.tolist() == [TEXT[1:-1]]
    assert formed.targets["labels"].tolist() == [TEXT[2:]]
    assert formed.targets["backward_labels"].tolist() == [TEXT[:-2]]
    assert model.objective("bilm").text_length(4) == 6


def test_no_label_is_of_another_document_or_padding(model: Model) -> None:
    formed = examples(model, TEXT, [0, 0, 1, 1, 1, PADDING])
    assert formed.targets["labels"].tolist() == [[IGNORED, TEXT[3], TEXT[4], IGNORED]]
    assert formed.targets["backward_labels"].tolist() == [[TEXT[0], IGNORED, TEXT[2], TEXT[3]]]


def test_the_loss_is_that_of_two_language_models(model: Model) -> None:
    """-sum_t log p(x_t+1 | x_1 … x_t) and -sum_t log p(x_t-1 | x_t … x_n), with one softmax layer."""
    hidden = model.topology.run({"body": Stream(torch.tensor([TEXT[1:-1]]))}, "body").hidden[0]
    table, bias = model.get_parameter("embedding.tokens.weight"), model.get_parameter("objectives.bilm.bias")
    ahead, behind = ((table @ half.T).T + bias for half in hidden.chunk(2, dim=-1))
    expected: dict[str, Any] = {"loss": 0.0, "backward": 0.0}
    for t in range(4):
        expected["loss"] -= ahead[t].log_softmax(0)[TEXT[t + 2]]
        expected["backward"] -= behind[t].log_softmax(0)[TEXT[t]]
    torch.testing.assert_close(losses(model, TEXT), expected, rtol=0, atol=1e-11)


def test_no_prediction_sees_its_own_token(model: Model) -> None:
    """A prediction of token t, forwards, depends on tokens before t, and backwards on tokens after t."""

    def scores(tokens: list[int]) -> tuple[Tensor, Tensor]:
        hidden = model.topology.run({"body": Stream(torch.tensor([tokens]))}, "body").hidden[0]
        halves = hidden.chunk(2, dim=-1)
        return tuple(model.topology.embedding.unembed(half) for half in halves)  # type: ignore[return-value]  # two

    ahead, behind = scores(TEXT)
    for place in range(len(TEXT)):
        changed = [*TEXT[:place], 77, *TEXT[place + 1 :]]
        other_ahead, other_behind = scores(changed)
        for t in range(len(TEXT)):  # token t is predicted at t - 1 forwards, and at t + 1 backwards
            if t > 0:
                assert bool((ahead[t - 1] != other_ahead[t - 1]).any()) == (place < t)
            if t < len(TEXT) - 1:
                assert bool((behind[t + 1] != other_behind[t + 1]).any()) == (place > t)
