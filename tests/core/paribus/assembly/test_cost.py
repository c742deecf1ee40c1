"""Declared costs of a model, compared with measured ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus.assembly.build import ModelParts
from paribus.assembly.cost import ModelCost, count_parameters, model_cost, tokens_per_part
from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import Data
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.parts.context import Capture
from paribus.registry import Registry
from paribus.specs import resolved

Assemble = Callable[..., Model]
Feed = Callable[..., Data]

MODELS = {
    "decoder": ["gpt-tiny"],
    "decoder, gqa": ["gpt-tiny", "attention=gqa", "feedforward=glu", "embedding.tie=false", "position=rope"],
    "decoder, mqa": ["gpt-tiny", "attention=mqa", "attention.scores.soft_cap=3", "dims.head_width=6"],
    "decoder, gates": ["gpt-tiny", "attention={name: gqa, scores: {gate: elementwise}}"],
    "encoder-decoder, gates": ["seq2seq-tiny", "attention={name: differential, scores: {gate: headwise}}"],
    "decoder, gated norms": ["gpt-tiny", "norm={name: gated, rank: 3}", "placement=sandwich", "dims.groups=1"],
    "encoder, gated norms": ["bert-tiny", "norm=gated"],
    "factorised, gated norms": ["bert-tiny", "norm=gated", "embedding={name: factorised, width: 24, normed: true}"],
    "encoder-decoder, gated norms": ["seq2seq-tiny", "norm=gated", "embedding.normed=true"],
    "decoder, shaw": ["gpt-tiny", "position=shaw", "attention=mqa"],
    "decoder, shaw without values": ["gpt-tiny", "position=[shaw, none]", "position.0.values=false"],
    "encoder-decoder, shaw": ["seq2seq-tiny", "parts.decoder.cross.position=shaw", "dims.length=40"],
    "decoder, fire": ["gpt-tiny", "position=[fire, none]", "dims.layers=4", "data.batch=1"],
    "encoder-decoder, fire": ["seq2seq-tiny", "position=fire", "parts.decoder.cross.position=fire", "data.batch=1"],
    "decoder, cycles": ["gpt-tiny", "attention=[mha, gqa]", "feedforward=[glu, mlp]", "dims.layers=3"],
    "decoder, loop": ["gpt-tiny", "dims.layers=4", "dims.loops=2", "dims.loop_embedding=true"],
    "decoder, hyper-connections": ["gpt-tiny", "placement=hyper"],
    "encoder-decoder, attention residuals": ["seq2seq-tiny", "placement=attention-residual"],
    "encoder": ["encoder-tiny"],
    "encoder, alibi": ["encoder-tiny", "position=alibi", "objective.transform=false", "objective.rate=0.4"],
    "both of BERT's objectives": ["bert-tiny"],
    "nsp alone": ["bert-tiny", "objective=[nsp]"],
    "spans, factorised, groups": [
        "bert-tiny",
        "objective=sbo",
        "embedding={name: factorised, width: 24}",
        "dims.groups=1",
    ],
    "sop alone": ["bert-tiny", "objective=[sop]"],
    "two streams": ["xlnet-tiny"],
    "the last layer again": ["deberta-tiny", "data.batch=1"],
    "the last layer again, hyper-connections": ["deberta-tiny", "placement=hyper", "data.batch=1"],
    "what is only evaluated": ["gpt-tiny", "evaluate=[clm]"],
    "encoder-decoder": ["seq2seq-tiny"],
    "generator-discriminator": ["electra-tiny"],
    "generator-discriminator, disentangled": ["deberta-v3-tiny", "data.batch=1"],
    "encoder-decoder, unlike": [
        "seq2seq-tiny",
        "parts.encoder.dims.layers=3",
        "parts.encoder.attention=gqa",
        "parts.decoder.cross.attention=mqa",
        "objective.mean_span=2",
        "dims.length=40",
    ],
}


@pytest.mark.few(8)
@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_declared_flops_equal_those_counted_by_torch(spec: list[str], assemble: Assemble, feed: Feed) -> None:
    model = assemble(*spec)
    batch = on_meta(feed(*spec).step(0))
    counted = torch_flops(model.to("meta").assembled, batch)
    assert model_cost(model.assembled, int(model.spec["dims"]["length"])).flops * len(batch.index) == counted


def torch_flops(model: ModelParts, batch: Batch) -> int:
    """Return torch's FLOP count of one forward pass, on the meta device: on a CPU it skips fused attention."""
    with FlopCounterMode(display=False) as counter:
        run = BatchForward(model.topology, batch, capture=Capture(last_layer_input=True))
        for name in model.trained:
            model.objectives[name](run.of(name))
    return int(counter.get_total_flops())


def on_meta(batch: Batch) -> Batch:
    streams = {name: stream.apply(lambda vector: vector.to("meta")) for name, stream in batch.streams.items()}
    targets = {name: {key: value.to("meta") for key, value in labels.items()} for name, labels in batch.targets.items()}
    return batch._replace(streams=streams, targets=targets)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
def test_a_window_reduces_flops_by_its_hidden_pairs(preset: str, window: int, assemble: Assemble) -> None:
    full = model_cost(assemble(preset).assembled, 16)
    windowed = model_cost(assemble(preset, "attention=restricted", f"attention.window={window}").assembled, 16)
    span = window if preset == "gpt-tiny" else 2 * window - 1
    layers, width = 2, 16
    assert full.flops - windowed.flops == layers * 4 * 16 * (16 - span) * width
    assert full.state == windowed.state


def test_flops_are_quadratic_in_the_length_and_linear_with_a_window(
    components: Registry,
) -> None:
    def pairs(length: int, *overrides: str) -> int:
        spec = resolved("gpt-tiny", "position=rope", f"dims.length={length}", *overrides, registry=components)
        model = meta_model(spec, components)
        attention = next(line for line in model_cost(model, length).lines if line.path == "body.attention")
        projections = 2 * 4 * 2 * length * 64 * 64
        return attention.flops - projections

    window = ["attention=restricted", "attention.window=32"]
    for length in (64, 128, 256, 512):
        assert pairs(2 * length) == 4 * pairs(length)
        assert pairs(2 * length, *window) == 2 * pairs(length, *window)


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_declared_parameters_equal_those_of_the_model(spec: list[str], assemble: Assemble) -> None:
    model = assemble(*spec)
    cost = model_cost(model.assembled, 16)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert cost.parameters == numbers == sum(line.parameters for line in cost.lines)
    assert count_parameters(model.assembled.children()) == numbers


@pytest.mark.parametrize(
    ("position", "numbers"), [("none", 0), ("learned", 256), ("[shaw, learned]", 256 + 2 * 33 * 4)]
)
def test_position_parameters_have_their_own_line(position: str, numbers: int, assemble: Assemble) -> None:
    lines = model_cost(assemble("gpt-tiny", f"position={position}").assembled, 16).lines
    assert next(line.parameters for line in lines if line.path == "body.position") == numbers


DECODERS = {
    "mha": ["gpt-tiny"],
    "gqa": ["gpt-tiny", "attention=gqa"],
    "mqa": ["gpt-tiny", "attention=mqa", "dims.head_width=6"],
    "restricted": ["gpt-tiny", "attention=restricted", "attention.window=3", "attention.kv_heads=2"],
    "a cycle": ["gpt-tiny", "attention=[mha, mqa]", "dims.layers=5"],
    "with a memory": ["seq2seq-tiny", "attention=gqa", "parts.decoder.cross.attention=mqa"],
}


@pytest.mark.parametrize("spec", DECODERS.values(), ids=DECODERS)
def test_declared_state_equals_the_decoding_state(spec: list[str], assemble: Assemble) -> None:
    model = assemble(*spec)
    tokens = torch.arange(16).view(1, 16)
    states = model.start(1)
    model(tokens[:, :3], states, **({"source": tokens} if spec[0] == "seq2seq-tiny" else {}))
    state_size = sum(tensor.numel() for tensor in state_tensors(states.layers))
    cost = model_cost(model.assembled, 16)
    assert cost.state == state_size
    assert cost.cache_bytes_per_token(2) == state_size * 2 / 16


def state_tensors(layers: Any) -> Iterator[Tensor]:
    for layer in layers:
        for state in layer.values():
            yield from state.values()


@pytest.mark.parametrize("preset", ["encoder-tiny", "bert-tiny"])
def test_a_bidirectional_model_has_no_decoding_state(preset: str, assemble: Assemble) -> None:
    assert model_cost(assemble(preset).assembled, 16).state == 0


@pytest.mark.few(8)
@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_tokens_per_part_equal_those_of_a_batch(spec: list[str], assemble: Assemble, feed: Feed) -> None:
    model, batch = assemble(*spec), feed(*spec).step(0)
    counts = tokens_per_part(model.assembled, int(model.spec["dims"]["length"]))
    expected = {
        path: 0 if stream.query_positions is None else stream.query_positions.shape[1]
        for path, stream in batch.streams.items()
    }
    assert counts == {path: (stream.tokens.shape[1], expected[path]) for path, stream in batch.streams.items()}


def test_an_evaluated_objective_has_no_training_cost(assemble: Assemble) -> None:
    trained = model_cost(assemble("bert-tiny", "objective=[mlm, nsp]").assembled, 16)
    assembled = assemble("bert-tiny", "objective=[mlm, nsp]").assembled
    evaluated = model_cost(assembled._replace(trained=("nsp",)), 16)

    def line(cost: ModelCost, path: str) -> Any:
        return next(item for item in cost.lines if item.path == path)

    assert line(trained, "objectives.mlm").flops > line(evaluated, "objectives.mlm").flops == 0
    assert line(trained, "embedding").flops > line(evaluated, "embedding").flops == 0
    assert line(trained, "objectives.mlm").parameters == line(evaluated, "objectives.mlm").parameters


PUBLISHED = {"gpt2": 124_439_808, "bert-base": 110_106_428}


@pytest.mark.parametrize(("preset", "published"), PUBLISHED.items())
def test_a_published_model_has_the_published_number_of_parameters(
    preset: str, published: int, components: Registry
) -> None:
    model = meta_model(resolved(preset, registry=components), components)
    assert model_cost(model, 512).parameters == published


def test_a_tied_tensor_is_counted_once() -> None:
    one = nn.Linear(3, 2, bias=False)
    second_linear = nn.Linear(3, 2, bias=False)
    second_linear.weight = one.weight
    assert count_parameters({"one": one, "other": second_linear}) == 6
