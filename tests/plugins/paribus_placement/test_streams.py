"""Placements that pass several residual streams on: their formulas, and what they start as."""

import dataclasses
import runpy
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.nn import functional

import paribus
from paribus import Context, Shape, StreamPlacement, TokenLayout
from paribus_norm.layer_norm import LayerNorm
from paribus_norm.root_mean_square_norm import RootMeanSquareNorm
from paribus_placement.attention_residual import AttentionResidual, DepthAttention
from paribus_placement.canon import Canon
from paribus_placement.dense_former import DenseFormer
from paribus_placement.embedding_residual import EmbeddingResidual
from paribus_placement.hyper_connections import (
    Connections,
    HyperConnections,
    ManifoldConnections,
    doubly_stochastic,
)
from paribus_placement.pre_norm import PreNorm
from paribus_placement.u_net import UNet

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
LAYOUT = TokenLayout(torch.arange(3).unsqueeze(0))
ONE_DOCUMENT = Context((), LAYOUT, LAYOUT)
NAMES = ("attention", "cross", "feedforward")
TINY = ("dims.width=16", "dims.heads=2", "dims.layers=5", "dims.length=16", "tokenizer=bytes", "corpus=null")


@pytest.fixture
def stack(shape: Shape) -> Callable[..., list[StreamPlacement]]:
    """Make the placements of a stack, whose parameters all have other values."""

    def make(kind: type[StreamPlacement], layers: int, **options: object) -> list[StreamPlacement]:
        generator = torch.Generator().manual_seed(0)
        placements: list[StreamPlacement] = []
        for index in range(layers):
            place = dataclasses.replace(shape, layers=layers, layer=index)
            placement = kind(place, lambda: LayerNorm(8), **options).double()
            for parameter in placement.parameters():
                parameter.data += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            placements.append(placement)
        return placements

    return make


def run(placements: Iterable[StreamPlacement], x: Tensor, sublayers: Sublayers) -> Tensor:
    streams, last = None, None
    for placement in placements:
        streams = placement.begin(x) if streams is None else streams
        streams, last = placement.advance(streams, sublayers, ONE_DOCUMENT), placement
    assert last is not None
    assert streams is not None
    return last.end(streams)


def block(placement: StreamPlacement, x: Tensor, sublayers: Sublayers) -> Tensor:
    """Return the output of a pre-norm layer."""
    for name in NAMES:
        x = x + sublayers[name](placement.get_submodule(f"norms.{name}")(x))
    return x


def test_x0_adds_the_embeddings_before_each_layer(
    stack: Callable[..., list[StreamPlacement]], sublayers: Sublayers, x: Tensor
) -> None:
    placements = stack(EmbeddingResidual, 3, start=0.3)
    y = x
    for placement in placements:
        a, b = 1 + placement.get_parameter("stream"), 0.3 + placement.get_parameter("embedding")
        y = block(placement, a * y + b * x, sublayers)
    torch.testing.assert_close(run(placements, x, sublayers), y, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 5, 6])
def test_u_net_adds_outputs_of_the_first_half_in_reverse_order(
    layers: int, stack: Callable[..., list[StreamPlacement]], sublayers: Sublayers, x: Tensor
) -> None:
    placements = stack(UNet, layers)
    y: Tensor = x
    kept: list[Tensor] = []
    for index, placement in enumerate(placements):
        if index >= layers // 2 and kept:
            y = y + placement.get_parameter("skip") * kept.pop()
        y = block(placement, y, sublayers)
        if index < layers // 2:
            kept.append(y)
    torch.testing.assert_close(run(placements, x, sublayers), y, atol=1e-10, rtol=1e-12)


def test_dense_averages_all_outputs_with_weights_of_each_layer(
    stack: Callable[..., list[StreamPlacement]], sublayers: Sublayers, x: Tensor
) -> None:
    placements = stack(DenseFormer, 3)
    outputs = [x]
    for index, placement in enumerate(placements):
        weights = torch.eye(index + 1, dtype=torch.float64)[-1]
        if index:
            weights = weights + placement.get_parameter("weights")
        y = torch.einsum("n, n b t d -> b t d", weights, torch.stack(outputs))
        outputs.append(block(placement, y, sublayers))
    weights = torch.eye(4, dtype=torch.float64)[-1] + placements[-1].get_parameter("output_weights")
    expected = torch.einsum("n, n b t d -> b t d", weights, torch.stack(outputs))
    torch.testing.assert_close(run(placements, x, sublayers), expected, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("block", [1, 2, 4, 6, 7])
def test_attention_residuals_average_all_sums_of_sublayer_outputs_by_softmax(
    block: int, stack: Callable[..., list[StreamPlacement]], sublayers: Sublayers, x: Tensor
) -> None:
    placements = stack(AttentionResidual, 2, block=block)
    outputs, count = [x], 0  # of the embeddings and of blocks, and the number of sublayers so far

    def average(placement: StreamPlacement, path: str) -> Tensor:
        stacked = torch.stack(outputs)
        keys = functional.rms_norm(stacked, (8,), placement.get_parameter(f"{path}.scale"), 1e-6)
        weights = (keys @ placement.get_parameter(f"{path}.query")).softmax(0)
        return (weights.unsqueeze(-1) * stacked).sum(0)

    for placement in placements:
        for name in NAMES:
            y = average(placement, f"averages.{name}") if count else x
            y = sublayers[name](placement.get_submodule(f"norms.{name}")(y))
            if count % block:
                outputs[-1] = outputs[-1] + y
            else:
                outputs.append(y)
            count += 1
    expected = average(placements[-1], "output_average")
    torch.testing.assert_close(run(placements, x, sublayers), expected, atol=1e-10, rtol=1e-12)


def test_attention_over_depth_agrees_with_fla(x: Tensor) -> None:
    """`fla-core` has a reference in float32. It is read by path, since an import of `fla` needs Triton."""
    package = find_spec("fla")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("fla-core is not installed")
    peer = runpy.run_path(str(Path(package.submodule_search_locations[0], "ops", "attnres", "naive.py")))
    average, outputs = DepthAttention(8).double(), (x, x.sin(), x.exp())
    for parameter in average.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    expected = peer["naive_attnres"](average.query, outputs, average.scale)
    torch.testing.assert_close(average(outputs), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_mix_streams_by_matrices(
    dynamic: bool, stack: Callable[..., list[StreamPlacement]], sublayers: Sublayers, x: Tensor
) -> None:
    placements = stack(HyperConnections, 2, streams=3, dynamic=dynamic)
    h = x.unsqueeze(2).repeat(1, 1, 3, 1)
    for index, placement in enumerate(placements):
        for number, name in enumerate(NAMES):
            path = f"connections.{name}"
            of = dict(placement.get_submodule(path).named_parameters())
            mixing = torch.eye(3, dtype=torch.float64)
            mixing = torch.cat([mixing[:, [(3 * index + number) % 3]], mixing], 1) + of["mixing"]
            output = 1 + of["output"]
            if dynamic:
                normalised = placement.get_submodule(f"{path}.norm")(h)
                mixing = mixing + (0.01 + of["scale_mixing"]) * (normalised @ of["read_mixing"]).tanh()
                output = output + (0.01 + of["scale_output"]) * (normalised @ of["read_output"]).tanh()
            mixing, output = mixing.expand(2, 3, 3, 4), output.expand(2, 3, 3)
            read = torch.einsum("b t s, b t s d -> b t d", mixing[..., 0], h)
            y = sublayers[name](placement.get_submodule(f"norms.{name}")(read))
            h = torch.einsum("b t s r, b t s d -> b t r d", mixing[..., 1:], h)
            h = h + torch.einsum("b t r, b t d -> b t r d", output, y)
    torch.testing.assert_close(run(placements, x, sublayers), h.sum(2), atol=1e-10, rtol=1e-12)


def test_hyper_connections_agree_with_their_peer(stack: Callable[..., list[StreamPlacement]], x: Tensor) -> None:
    peer_class = pytest.importorskip("hyper_connections.hyper_connections").HyperConnections
    placement = HyperConnections(
        Shape(8, 2, 4, 16, 11, 1, layer=0, sublayers=("attention",)), lambda: RootMeanSquareNorm(8, eps=0.0), streams=3
    ).double()
    generator = torch.Generator().manual_seed(0)
    connections = placement.connections["attention"]
    assert isinstance(connections, Connections)
    for parameter in connections.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
    peer = peer_class(3, dim=8, branch=lambda h: h.sin(), layer_index=0).double()
    with torch.no_grad():
        peer.static_alpha += connections.mixing
        peer.static_beta += connections.output
        peer.dynamic_alpha_fn.copy_(connections.read_mixing)
        peer.dynamic_beta_fn.copy_(connections.read_output)
        peer.dynamic_alpha_scale += connections.scale_mixing
        peer.dynamic_beta_scale += connections.scale_output
        peer.norm.gamma.copy_(connections.get_parameter("norm.weight") - 1)
    placement.norms["attention"] = torch.nn.Identity()
    expected = peer(x.repeat_interleave(3, 0)).reshape(2, 3, *x.shape[1:]).sum(1)
    torch.testing.assert_close(run([placement], x, {"attention": torch.sin}), expected, atol=1e-9, rtol=1e-7)


def test_doubly_stochastic_matrices_have_sums_of_1() -> None:
    matrices = doubly_stochastic(torch.randn(5, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert (matrices > 0).all()
    for axis in (-1, -2):
        torch.testing.assert_close(matrices.sum(axis), torch.ones(5, 4, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.thorough
def test_doubly_stochastic_connections_agree_with_deepseek_v4(x: Tensor) -> None:
    name = "transformers.models.deepseek_v4"
    peer_class = pytest.importorskip(f"{name}.modeling_deepseek_v4").DeepseekV4HyperConnection
    config = pytest.importorskip(f"{name}.configuration_deepseek_v4").DeepseekV4Config
    peer = peer_class(config(hidden_size=8, hc_mult=3, hc_eps=0.0, rms_norm_eps=1e-6)).double()
    connections, generator = ManifoldConnections(8, 3).double(), torch.Generator().manual_seed(0)
    for parameter in connections.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    with torch.no_grad():
        peer.fn.copy_(connections.read.weight)
        peer.base.copy_(connections.bias)
        peer.scale.copy_(0.01 + connections.scales)
    h = torch.stack([x, x.sin(), x.exp()], 2)
    mixing, outputs = connections(h)
    expected_outputs, expected_mixing, read = peer(h)
    torch.testing.assert_close(outputs, expected_outputs, rtol=0, atol=1e-6)
    torch.testing.assert_close(mixing[..., 1:], expected_mixing, rtol=0, atol=1e-6)
    torch.testing.assert_close((mixing[..., :1] * h).sum(2), read, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mixing", ["free", "doubly-stochastic"])
def test_hyper_connections_start_as_pre_norm(
    mixing: Literal["free", "doubly-stochastic"], shape: Shape, sublayers: Sublayers, x: Tensor
) -> None:
    shape = dataclasses.replace(shape, layer=0)
    hyper = HyperConnections(shape, lambda: LayerNorm(8), mixing=mixing).double()
    for connections in hyper.connections.values():
        if isinstance(connections, ManifoldConnections):
            torch.nn.init.zeros_(connections.read.weight)  # whose share is 0.01
    pre = PreNorm(shape, lambda: LayerNorm(8)).double()
    torch.testing.assert_close(run([hyper], x, sublayers), 4 * pre(x, sublayers), atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize("mixing", ["free", "doubly-stochastic"])
def test_streams_differ_after_a_step(mixing: Literal["free", "doubly-stochastic"], x: Tensor) -> None:
    """Streams that begin as copies, with weights that treat them alike, would remain copies."""
    shape = Shape(8, 2, 4, 16, 11, 1, layer=0)
    placement = HyperConnections(shape, lambda: LayerNorm(8), mixing=mixing).double()
    sublayers = {"attention": torch.sin, "feedforward": torch.exp}
    optimizer = torch.optim.SGD(placement.parameters(), 0.01)
    run([placement], x, sublayers).sin().sum().backward()
    optimizer.step()
    (h,) = placement.advance(placement.begin(x), sublayers, ONE_DOCUMENT)
    assert (h - h.mean(2, keepdim=True)).abs().max() > 1e-3


def test_doubly_stochastic_connections_without_tokens_are_refused() -> None:
    with raises_problem(paribus.SpecError, "component-error", "dynamic: true", "mixing: free"):
        placement = "placement={name: hyper, mixing: doubly-stochastic, dynamic: false}"
        paribus.assemble(paribus.spec("gpt-tiny", *TINY, placement))


@pytest.mark.parametrize("causal", [True, False])
def test_canon_layers_add_neighbours_to_what_sublayers_read(
    causal: bool, shape: Shape, sublayers: Sublayers, x: Tensor
) -> None:
    place = dataclasses.replace(shape, causal=causal)
    placement = Canon(place, lambda: LayerNorm(8), kernel=2).double()
    for parameter in placement.parameters():
        torch.nn.init.normal_(parameter)
    y = x
    for name in NAMES:
        h = placement.get_submodule(f"norms.{name}")(y)
        before, own = placement.get_parameter(f"convolutions.{name}.weight").unbind(1)
        summed = own * h + before * functional.pad(h, (0, 0, 1, 0))[:, :-1]  # an even window is one longer before
        y = y + sublayers[name](h + summed)
    torch.testing.assert_close(run([placement], x, sublayers), y, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize(
    ("preset", "override"),
    [
        ("xlnet-tiny", "placement=canon"),
        ("deberta-tiny", "placement=canon"),
        ("deberta-tiny", "attention.scores.kernel=4"),
        ("vit-tiny", "attention.scores.value_embedding=true"),
    ],
)
def test_what_has_no_neighbours_or_ids_is_refused(preset: str, override: str) -> None:
    with raises_problem(paribus.SpecError, "does-not-fit"):
        paribus.spec(preset, override)


def test_layers_of_different_streams_are_refused() -> None:
    with raises_problem(paribus.SpecError, "does-not-fit", "placement"):
        paribus.assemble(paribus.spec("gpt-tiny", *TINY, "placement=[x0, pre]"))


def test_streams_that_are_no_tuple_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", *TINY, "placement=x0"))
    monkeypatch.setattr(EmbeddingResidual, "advance", lambda self, streams, sublayers, ctx: streams[-1])
    with pytest.raises(TypeError, match="`advance` of EmbeddingResidual returned a Tensor"):
        model.hidden(torch.zeros(1, 3, dtype=torch.long))
