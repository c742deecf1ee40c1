"""Two opposite decoders, and the encoder over a mix of their layers."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import PADDING, SpecError, Stream
from paribus.assembly.cost import model_cost
from paribus.complexity.counting import flop_counter
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.registry import installed

TEXT = [30, 14, 41, 51, 92, 65]
SIZES = ("dims.width=5", "dims.length=16", "dims.vocabulary=2048", "tokenizer=bytes")
Recurrent = Callable[..., Model]
PaddedStream = Callable[..., Stream]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def lstm_layers(model: Model, side: str, tokens: list[int]) -> list[Tensor]:
    """Return the embedding and the states of each layer of one direction, (T, K) each, in the order of the text."""
    x = model.get_parameter("embedding.tokens.weight")[tokens]
    backwards = side == "backwards"
    layers = [x]
    for layer in range(model.spec["dims"]["layers"]):
        direction = model.get_submodule(f"body.{side}.layers.{layer}.attention.directions.0")
        layers.append(lstm(direction, layers[-1].flip(0)).flip(0) if backwards else lstm(direction, layers[-1]))
    return layers


def lstm(direction: Any, x: Tensor) -> Tensor:
    """Run the equations of the LSTM over the rows of (T, D): (T, K)."""
    h = c = x.new_zeros(direction.repeats.in_features)
    states = []
    for row in x:
        i, f, new, o = (direction.reads(row) + direction.repeats(h)).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states)


def mixed_layers(model: Model, tokens: list[int]) -> Tensor:
    """Return gamma sum_j s_j [h_j forwards; h_j backwards], equation 1 of the paper: (T, 2 K)."""
    weights, gamma = model.get_parameter("body.mix.weights"), model.get_parameter("body.mix.gamma")
    shares = weights.exp() / weights.exp().sum()
    pairs = zip(lstm_layers(model, "forwards", tokens), lstm_layers(model, "backwards", tokens), strict=True)
    return gamma * sum(
        (share * torch.cat(pair, dim=-1) for share, pair in zip(shares, pairs, strict=True)), torch.zeros(())
    )


def run(model: Model, stream: Stream) -> Tensor:
    return model.topology.run({"body": stream}, "body").hidden


@pytest.fixture(scope="module")
def language_model(recurrent: Recurrent) -> Model:
    return recurrent("elmo-tiny", "tokenizer=bytes", "dims.layers=2")


@pytest.fixture(scope="module")
def mix(recurrent: Recurrent) -> Model:
    return recurrent("elmo-tagger", "tokenizer=bytes", "dims.layers=2", "topology.task_layers=0")


def test_each_half_is_an_lstm_in_one_direction(language_model: Model) -> None:
    hidden = run(language_model, Stream(torch.tensor([TEXT])))[0]
    expected = [lstm_layers(language_model, side, TEXT)[-1] for side in ("forwards", "backwards")]
    same(hidden, torch.cat(expected, dim=-1))


def test_the_mix_is_a_softmax_weighted_sum_of_all_layers(mix: Model) -> None:
    hidden = run(mix, Stream(torch.tensor([TEXT])))[0]
    expected = mixed_layers(mix, TEXT)
    same(hidden, expected)
    parameters = list(mix.topology.parameters())
    same(*(torch.autograd.grad(y.cos().sum(), parameters) for y in (hidden, expected)))


def test_a_bilstm_reads_the_mix(recurrent: Recurrent) -> None:
    model = recurrent("elmo-tagger", "tokenizer=bytes", "topology.task_width=3", "topology.task_layers=2")
    x = mixed_layers(model, TEXT)
    peer = torch.nn.LSTM(10, 3, num_layers=2, bidirectional=True).double()
    for layer in range(2):
        for way, suffix in enumerate(("", "_reverse")):
            path = f"body.task.layers.{layer}.{way}"
            getattr(peer, f"weight_ih_l{layer}{suffix}").data = model.get_parameter(f"{path}.reads.weight").data
            getattr(peer, f"weight_hh_l{layer}{suffix}").data = model.get_parameter(f"{path}.repeats.weight").data
            getattr(peer, f"bias_ih_l{layer}{suffix}").data = model.get_parameter(f"{path}.reads.bias").data
            getattr(peer, f"bias_hh_l{layer}{suffix}").data.zero_()
    same(run(model, Stream(torch.tensor([TEXT])))[0], peer(x)[0])


@pytest.mark.parametrize("attention", ["lstm", "qrnn", "mha"])
@pytest.mark.parametrize("name", ["elmo-tiny", "elmo-tagger"])
def test_no_half_depends_on_tokens_of_the_other_direction(name: str, attention: str, recurrent: Recurrent) -> None:
    """Gradients at the embedded tokens: the first half reads tokens up to its own, the second half those from it on."""
    options = ["topology.task_layers=0"] if name == "elmo-tagger" else []
    model: Any = recurrent(name, "tokenizer=bytes", f"attention={attention}", *options)
    x = model.get_parameter("embedding.tokens.weight")[torch.tensor([TEXT])].detach().requires_grad_()
    layout = paribus.token_layout(Stream(torch.tensor([TEXT])))
    halves = model.topology.body(x, layout).hidden[0].chunk(2, dim=-1)
    places = range(len(TEXT))
    for half, is_seen in zip(halves, (operator.le, operator.ge), strict=True):
        for t in places:
            (gradient,) = torch.autograd.grad(half[t].cos().sum(), [x], retain_graph=True)
            reached = gradient[0].abs().sum(-1) > 0
            assert reached.tolist() == [is_seen(s, t) for s in places]


@pytest.mark.parametrize("attention", ["lstm", "mha"])
@pytest.mark.parametrize("name", ["elmo-tiny", "elmo-tagger"])
def test_documents_and_padding_stay_apart(name: str, attention: str, recurrent: Recurrent) -> None:
    model = recurrent(name, "tokenizer=bytes", f"attention={attention}", "position=none")
    documents = torch.tensor([[PADDING, 0, 0, 0, 1, 1, PADDING, 1, PADDING]])
    tokens = torch.tensor([[77, *TEXT[:5], 77, TEXT[5], 77]])
    packed = run(model, Stream(tokens, documents))[0]
    for document, text in enumerate((TEXT[:3], TEXT[3:])):
        same(packed[documents[0] == document], run(model, Stream(torch.tensor([text])))[0])


@pytest.mark.parametrize("position", ["rope", "alibi", "t5"])
def test_positions_of_the_reversed_text_have_the_same_distances(position: str, recurrent: Recurrent) -> None:
    """Equal weights in both stacks: the backward half of a text is the forward half of the reversed text."""
    model = recurrent("elmo-tiny", "tokenizer=bytes", "attention=mha", f"position={position}", "dims.width=8")
    own = dict(model.topology.stage("body").named_parameters())
    with torch.no_grad():
        for name, parameter in own.items():
            if name.startswith("backwards."):
                parameter.copy_(own[name.replace("backwards", "forwards")])
    backward = run(model, Stream(torch.tensor([TEXT])))[0, :, 8:]
    forward = run(model, Stream(torch.tensor([TEXT[::-1]])))[0, :, :8]
    same(backward, forward.flip(0))


def test_pretrained_decoders_start_a_tagger() -> None:
    """Everything but the mix, the BiLSTM and the head of the task is copied."""
    model = paribus.assemble(paribus.spec("elmo-tiny", *SIZES))
    tagger = paribus.assemble(paribus.spec("elmo-tagger", *SIZES))
    saved = {name for name, _ in model.named_parameters()}
    new = {name.rpartition(".")[0].split(".layers")[0] for name, _ in tagger.named_parameters() if name not in saved}
    assert new == {"body.mix", "body.task", "objectives.tag.head"}
    assert {name for name in saved if name not in dict(tagger.named_parameters())} == {"objectives.bilm.bias"}


@pytest.mark.parametrize("name", ["elmo-tiny", "elmo-tagger"])
def test_cost_matches_the_torch_flop_counter(name: str) -> None:
    model = meta_model(paribus.spec(name, *SIZES, "dims.width=16"), installed())
    lines = {line.path: line.flops for line in model_cost(model, 16).lines}
    with flop_counter() as counter:
        run(model, Stream(torch.zeros(1, 16, dtype=torch.long, device="meta")))  # type: ignore[arg-type]  # its parts
    assert sum(flops for path, flops in lines.items() if path.startswith("body.")) == counter.get_total_flops()


def test_an_attention_that_sees_both_sides_is_rejected() -> None:
    with raises_problem(SpecError, "does-not-fit", "fourier", "lstm"):
        paribus.assemble(paribus.spec("elmo-tiny", *SIZES, "attention=fourier"))


def test_other_topologies_cannot_be_trained_as_two_language_models() -> None:
    for preset in ("encoder-tiny", "gpt-tiny"):
        with raises_problem(SpecError, "does-not-fit", "bilm", "bidirectional-decoder"):
            paribus.spec(preset, "objective=bilm")
    with raises_problem(SpecError, "does-not-fit", "bilm", "separate-directions"):
        paribus.spec("elmo-tagger", "objective=bilm")


def test_attention_weights_of_both_directions_are_captured(recurrent: Recurrent) -> None:
    model = recurrent("elmo-tiny", "tokenizer=bytes", "attention=mha", "dims.layers=2")
    captured = model.topology.run({"body": Stream(torch.tensor([TEXT]))}, "body", capture=True).captured
    assert len(captured) == 4
    for layer, weights in enumerate(item["weights"][0, 0] for item in captured):
        same(weights.sum(-1), torch.ones(6, dtype=torch.float64))
        same(weights, weights.tril() if layer < 2 else weights.triu())
