"""Whole models under torch.compile: one graph, for any components."""

from collections.abc import Callable, Iterator
from typing import Any, final

import pytest
import torch

from paribus import Stream, memory_of
from paribus.datamodule.data import Data
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # dynamo's own
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # the same
]

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]

SPARSE = [
    "dims.length=96",
    "attention=[{name: dilated, window: 3, global_tokens: 1}, {name: block-sparse, block_size: 2}]",
]
MODELS = {
    "decoder": ["gpt-tiny"],
    "decoder, apart": ["gpt-tiny", "attention=gqa", "position=rope", "data.documents=apart"],
    "decoder, windows": [
        "gpt-tiny",
        "attention=[{name: restricted, window: 3}, mha]",
        "position=alibi",
        "norm=rmsnorm",
        "feedforward=glu",
    ],
    "decoder, eager": ["gpt-tiny", "attention.scores.soft_cap=5", "embedding.tie=false"],
    "decoder, sparse": ["gpt-tiny", *SPARSE, "position=alibi", "data.documents=apart"],
    "encoder, sparse": ["encoder-tiny", *SPARSE, "position=rope"],
    "encoder": ["encoder-tiny"],
    "encoder, post": ["bert-tiny", "attention=mqa", "placement=post", "position=sinusoidal"],
    "encoder-decoder": ["seq2seq-tiny", "parts.decoder.cross.position=rope"],
    "decoder, disentangled": [
        "gpt-tiny",
        "position={name: disentangled, separate_projections: true}",
        "data.documents=apart",
    ],
    "decoder, disentangled by its own projections": ["gpt-tiny", "attention=gqa", "position=disentangled"],
    "encoder-decoder, far": ["seq2seq-tiny", "position=transformer-xl", "parts.decoder.cross.position=shaw"],
    "decoder, decaying": ["gpt-tiny", "position=xpos"],
    "decoder, interpolated": ["gpt-tiny", "position=fire", "data.documents=apart"],
    "encoder-decoder, bucketed": ["seq2seq-tiny", "position=t5"],
    "decoder, scaled": ["gpt-tiny", "position=rope", "position.scaling={kind: yarn, factor: 4, length: 8}"],
    "encoder, bare": ["encoder-tiny", "placement={name: pre, bare_first: true}", "norm=scalenorm"],
    "encoder, peripheral": ["encoder-tiny", "placement=peri", "norm=dyt"],
    "decoder, parallel": ["gpt-tiny", "placement=[parallel, {name: parallel, shared_norm: false}]"],
    "decoder, small branches": ["gpt-tiny", "placement=[rezero, layerscale]"],
    "encoder-decoder, deep": ["seq2seq-tiny", "placement=deepnorm"],
    "two streams": ["xlnet-tiny"],
    "the last layer again": ["deberta-tiny"],
    "encoder-decoder, sandwiched": ["seq2seq-tiny", "placement=sandwich"],
}


@final
class Counting:
    """Backend that runs each graph and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_a_loss_compiles_into_one_graph_without_a_break(
    spec: list[str], assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    model, data, backend = shake(assemble(*spec)), feed(*spec), Counting()
    compiled = torch.compile(model.loss, fullgraph=True, backend=backend)
    for step in range(2):
        batch = data.step(step)
        actual, expected = compiled(batch), model.loss(batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
        parameters = list(model.parameters())
        grads = zip(torch.autograd.grad(actual, parameters), torch.autograd.grad(expected, parameters), strict=True)
        for actual_gradient, expected_gradient in grads:
            torch.testing.assert_close(actual_gradient, expected_gradient, rtol=0, atol=1e-12)
    assert backend.graphs == 1


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_all_lengths_need_at_most_two_graphs(spec: list[str], assemble: Assemble) -> None:
    model, backend = assemble(*spec).eval(), Counting()
    compiled = torch.compile(model.topology.run, fullgraph=True, backend=backend)
    for length in (5, 7, 9, 12, 16):
        tokens = torch.arange(length).view(1, length) + 15
        memory = None
        if model.spec["topology"]["name"] == "encoder-decoder":
            memory = memory_of(model.topology.run({"encoder": Stream(tokens)}, "encoder"))
        compiled({"body": Stream(tokens)}, "body", memory=memory)
    assert backend.graphs <= 2


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
def test_all_lengths_need_two_graphs_with_gathered_keys(preset: str, assemble: Assemble) -> None:
    model, backend = assemble(preset, *SPARSE).eval(), Counting()
    assert set(model.topology.get_submodule("body").kernels(queries=80)) == {"gathered"}  # type: ignore[operator]  # a Stack says which
    compiled = torch.compile(model.topology.run, fullgraph=True, backend=backend)
    for length in (80, 83, 91, 96):
        stream = {"body": Stream(torch.arange(length).view(1, length) % 20 + 15)}
        actual, expected = compiled(stream, "body").hidden, model.topology.run(stream, "body").hidden
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert backend.graphs <= 2


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
@pytest.mark.parametrize("position", ["learned", "rope", "alibi"])
def test_layers_compiled_separately_share_a_graph(preset: str, position: str, assemble: Assemble, feed: Feed) -> None:
    spec = [preset, "dims.layers=12", f"position={position}", "attention=gqa"]
    model, backend = assemble(*spec), Counting()
    batch: Batch = feed(*spec).step(0)
    expected = model.loss(batch)
    for layer in model.topology.get_submodule("body").layers:  # type: ignore[union-attr]  # a Stack has layers
        layer.compile(fullgraph=True, backend=backend)
    torch.testing.assert_close(model.loss(batch), expected)
    assert backend.graphs <= 2
    assert all("_orig_mod" not in path for path in model.state_dict())
