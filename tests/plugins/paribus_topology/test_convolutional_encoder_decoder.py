"""Convolutional encoder-decoder: ConvS2S and ByteNet compared with their equations, token by token, and its parts."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Output, SpecError, Stream, memory_of
from paribus.complexity.counting import flop_counter

SOURCES = torch.tensor([[30, 14, 41, 51, 92], [65, 35, 89, 79, 32]])
TARGETS = torch.tensor([[79, 32, 38, 46], [26, 43, 38, 32]])
ROOT = math.sqrt(0.5)
RunBoth = Callable[..., Output]
SMALL = ("dims.width=8", "dims.layers=2", "tokenizer=bytes", "corpus=null")


@pytest.fixture(scope="module")
def convs2s() -> Any:
    return model("convs2s-tiny", *SMALL, "topology.shared_embedding=false")


def model(*options: str) -> Any:
    """A model in float64, with weights of about 1 / sqrt(fan in)."""
    built: Any = paribus.assemble(paribus.spec(*options)).double().eval()
    torch.manual_seed(0)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return built


def block(convolution: Any, line: list[Tensor], start: int) -> Tensor:
    """Section 3.2 of Gehring et al. 2017: three states make 2 D channels, and half of them gates the others."""
    states = [line[place] if 0 <= place < len(line) else torch.zeros_like(line[0]) for place in range(start, start + 3)]
    a, b = (convolution.weight @ torch.cat(states) + convolution.bias).chunk(2)
    gated: Tensor = a * torch.sigmoid(b)
    return gated


def equations(model: Any, source: Tensor, target: Tensor) -> list[Tensor]:
    """Sections 3.1 to 3.3 of Gehring et al. 2017, for one pair."""
    topology = model.topology
    embedded, own = (
        [table.tokens.weight[token] + stack.position[0].table.weight[place] for place, token in enumerate(tokens)]
        for table, stack, tokens in (
            (topology.source_embedding, topology.encoder, source),
            (topology.embedding, topology.body, target),
        )
    )
    z = embedded
    for layer in topology.encoder.layers:
        z = [(z[j] + block(layer.attention.convolution, z, j - 1)) * ROOT for j in range(len(z))]
    h = own
    for layer in topology.body.layers:
        rows = []
        for i in range(len(h)):
            state = block(layer.attention.convolution, h, i - 2)
            d = (layer.cross.q(state) + own[i]) * ROOT
            weights = torch.stack([d @ key for key in z]).exp()
            weights = weights / weights.sum()
            context = sum(weights[j] * (z[j] + embedded[j]) * ROOT for j in range(len(z))) * math.sqrt(len(z))
            rows.append((h[i] + (state + context) * ROOT) * ROOT)
        h = rows
    return h


def test_convs2s_equals_its_equations(convs2s: Any, run_both: RunBoth) -> None:
    actual = run_both(convs2s, Stream(SOURCES), Stream(TARGETS)).hidden
    for row in range(2):
        expected = torch.stack(equations(convs2s, SOURCES[row], TARGETS[row]))
        torch.testing.assert_close(actual[row], expected, rtol=0, atol=1e-11)


def test_gradients_equal_those_of_the_equations(convs2s: Any, run_both: RunBoth) -> None:
    parameters = dict(convs2s.topology.named_parameters())
    outputs = (
        run_both(convs2s, Stream(SOURCES[:1]), Stream(TARGETS[:1])).hidden[0],
        torch.stack(equations(convs2s, SOURCES[0], TARGETS[0])),
    )
    both = [  # the weights of the scores have no gradient
        torch.autograd.grad(output.cos().sum(), list(parameters.values()), materialize_grads=True, allow_unused=True)
        for output in outputs
    ]
    for name, actual, expected in zip(parameters, *both, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10, msg=name)


def residual_block(layer: Any, line: list[Tensor], stride: int, causal: bool) -> list[Tensor]:
    """Figure 3, left, of Kalchbrenner et al. 2016, at each of the tokens."""
    block, norm = layer.attention, layer.placement.norms["attention"]
    reduced = [block.before(block.reduce(norm(h).relu())).relu() for h in line]
    left, middle, right = block.convolution.weight.chunk(3, dim=1)
    rows = []
    for i, h in enumerate(line):
        places = (i - 2 * stride, i - stride, i) if causal else (i - stride, i, i + stride)
        y = block.convolution.bias.clone()
        for matrix, place in zip((left, middle, right), places, strict=True):
            if 0 <= place < len(line):
                y = y + matrix @ reduced[place]
        rows.append(h + block.outer(block.after(y).relu()))
    return rows


def bytenet_equations(model: Any, source: Tensor, target: Tensor) -> list[Tensor]:
    """The decoder is stacked on the encoder: the token at t reads the encoder's output at t, if there is one."""
    topology = model.topology
    encoded = [topology.embedding.tokens.weight[token] for token in source]
    for layer, stride in zip(topology.encoder.layers, (1, 2, 4, 8, 16), strict=True):
        encoded = residual_block(layer, encoded, stride, causal=False)
    encoded = [topology.encoder.norm(z) for z in encoded]
    h = [topology.embedding.tokens.weight[token] for token in target]
    for layer, stride in zip(topology.body.layers, (1, 2, 4, 8, 16), strict=True):
        h = residual_block(layer, h, stride, causal=True)
        normed = [layer.placement.norms["cross"](state) for state in h]
        read = [encoded[t] if t < len(encoded) else torch.zeros_like(h[0]) for t in range(len(h))]
        h = [h[t] + layer.cross.outer(torch.cat([normed[t], read[t]])) for t in range(len(h))]
    return [topology.body.norm(state) for state in h]


@pytest.mark.parametrize(("source", "target"), [(SOURCES, TARGETS), (TARGETS, SOURCES)], ids=["shorter", "longer"])
def test_bytenet_equals_its_equations(source: Tensor, target: Tensor, run_both: RunBoth) -> None:
    bytenet = model("bytenet-tiny", "dims.width=8", "corpus=null")
    actual = run_both(bytenet, Stream(source), Stream(target)).hidden
    for row in range(2):
        expected = torch.stack(bytenet_equations(bytenet, source[row], target[row]))
        torch.testing.assert_close(actual[row], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk", [1, 3])
def test_decoding_in_steps_equals_one_pass(chunk: int, convs2s: Any, run_both: RunBoth) -> None:
    memory = memory_of(convs2s.topology.run({"encoder": Stream(SOURCES)}, "encoder"))
    states = convs2s.topology.start(2, 4)
    outputs = [
        convs2s.topology.run({"body": Stream(tokens)}, "body", memory=memory, states=states).hidden
        for tokens in TARGETS.split(chunk, dim=1)
    ]
    expected = run_both(convs2s, Stream(SOURCES), Stream(TARGETS)).hidden
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=0, atol=1e-12)
    assert states.layers[0]["attention"]["inputs"].shape == (2, 2, 8)  # kernel - 1 tokens


def test_the_memory_has_embedded_tokens_only_for_an_attention_that_needs_them(convs2s: Any) -> None:
    encoded = convs2s.topology.run({"encoder": Stream(SOURCES)}, "encoder")
    table, position = convs2s.topology.source_embedding.tokens.weight, convs2s.topology.encoder.position[0].table
    extra = memory_of(encoded).extra
    assert extra is not None
    assert torch.equal(extra, table[SOURCES] + position.weight[:5])
    plain = model("convs2s-tiny", *SMALL, "parts.decoder.cross.attention=mha")
    assert memory_of(plain.topology.run({"encoder": Stream(SOURCES)}, "encoder")).extra is None


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "separate"])
def test_source_and_target_may_share_a_table(is_shared: bool) -> None:
    topology = model("convs2s-tiny", *SMALL, f"topology.shared_embedding={str(is_shared).lower()}").topology
    tables = [name for name, parameter in topology.named_parameters() if name.endswith("tokens.weight")]
    assert tables == ["embedding.tokens.weight", *([] if is_shared else ["source_embedding.tokens.weight"])]


def test_layers_have_no_feed_forward(convs2s: Any) -> None:
    assert convs2s.topology.body.shape.sublayers == ("attention", "cross")
    assert convs2s.topology.encoder.shape.sublayers == ("attention",)
    with raises_problem(SpecError, "unused-option", "feedforward"):
        paribus.spec("convs2s-tiny", "feedforward=mlp")


def test_flops_of_both_stacks_are_those_that_torch_counts(convs2s: Any, run_both: RunBoth) -> None:
    source, target = (Stream(tokens[:1].to("meta")) for tokens in (SOURCES, TARGETS))
    with flop_counter() as counter:
        run_both(copy.deepcopy(convs2s).to("meta"), source, target)
    encoder = 2 * 5 * (2 * 3 * 8 * 16)
    decoder = 2 * (4 * (2 * 3 * 8 * 16) + 4 * 2 * 8 * 8 + 4 * 4 * 5 * 8)  # convolution; query; scores and means
    assert counter.get_total_flops() == encoder + decoder


def test_a_memory_of_another_width_is_rejected() -> None:
    with raises_problem(SpecError, "component-error", "multi-step", "16, got 8 and 8"):
        model("convs2s-tiny", *SMALL, "dims.head_width=16")
