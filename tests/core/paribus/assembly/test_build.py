"""Model builder: each slot gets the component that the spec names, with the shape of its part."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, final

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus import Pair, Position, PositionTraits, Role, Shape, SpecError
from paribus.assembly.build import ModelParts
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.parts.stack import Stack
from paribus.registry import Registry
from paribus.specs import resolved

Assemble = Callable[..., Model]
PRESETS = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny", "gpt2", "bert-base")


def stack(model: Model, path: str = "body") -> Any:
    module = model.topology.get_submodule(path)
    assert isinstance(module, Stack)
    return module


def names(modules: Any, part: str) -> list[str]:
    return [type(getattr(layer, part)).__name__ for layer in modules.layers]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_is_built_on_the_meta_device_within_two_seconds(preset: str, components: Registry) -> None:
    spec = resolved(preset, registry=components)
    spec["dims"]["vocabulary"] = spec["dims"]["vocabulary"] or 400
    began = time.process_time()
    model = meta_model(spec, components)
    assert time.process_time() - began < 2
    tensors = [value for child in model.children().values() for value in (*child.parameters(), *child.buffers())]
    assert tensors
    assert all(tensor.is_meta for tensor in tensors)


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny"])
def test_parameter_paths_contain_no_component_names(preset: str, assemble: Assemble, components: Registry) -> None:
    model = assemble(preset)
    assert {path.partition(".")[0] for path in model.state_dict()} <= {"embedding", "body", "encoder", "objectives"}
    slots = ("attention", "position", "norm", "placement", "feedforward", "topology", "embedding")
    taken = {name for slot in slots for name in components.index.names(slot)} - {"encoder", "tokens"}
    for path in model.state_dict():
        assert not taken & set(path.split(".")), path


def test_a_list_is_cycled_over_the_layers(assemble: Assemble) -> None:
    model = assemble(
        "gpt-tiny",
        "dims.layers=5",
        "attention=[{name: restricted, window: 3}, mha]",
        "feedforward=[mlp, glu]",
        "norm=[layernorm, rmsnorm]",
        "placement=[post, pre]",
        "position=[rope, none, alibi]",
    )
    body = stack(model)
    assert names(body, "attention") == ["Restricted", "MultiHead"] * 2 + ["Restricted"]
    assert names(body, "feedforward") == ["MultiLayerPerceptron", "GatedLinearUnit"] * 2 + ["MultiLayerPerceptron"]
    assert names(body, "placement") == ["PostNorm", "PreNorm"] * 2 + ["PostNorm"]
    norm_names = [type(layer.placement.norms["attention"]).__name__ for layer in body.layers]
    assert norm_names == ["LayerNorm", "RootMeanSquareNorm"] * 2 + ["LayerNorm"]
    read = [type(layer.attention.attend.position).__name__ for layer in body.layers]
    assert read == ["Rotary", "NoPosition", "LinearBiases", "Rotary", "NoPosition"]
    assert body.layers[0].attention.attend.position is body.layers[3].attention.attend.position


@pytest.mark.parametrize(("placements", "expected"), [("[pre, post]", False), ("[post, pre]", True)])
def test_the_placement_of_the_last_layer_decides_on_the_final_norm(
    placements: str, expected: bool, assemble: Assemble
) -> None:
    assert stack(assemble("gpt-tiny", f"placement={placements}")).normed is expected


def test_the_final_norm_is_that_of_the_last_layer(assemble: Assemble) -> None:
    body = stack(assemble("gpt-tiny", "norm=[layernorm, rmsnorm]", "dims.layers=4"))
    assert type(body.norm).__name__ == "RootMeanSquareNorm"


def test_a_part_has_its_own_components(assemble: Assemble) -> None:
    model = assemble(
        "seq2seq-tiny",
        "parts.encoder.dims.layers=3",
        "parts.encoder.dims.heads=2",
        "parts.encoder.attention=mqa",
        "parts.decoder.attention=[gqa, mha]",
        "parts.decoder.cross.attention=[mqa, gqa]",
        "parts.decoder.cross.position=rope",
    )
    body, encoder = stack(model), stack(model, "encoder")
    assert names(encoder, "attention") == ["MultiQuery"] * 3
    assert names(body, "attention") == ["GroupedQuery", "MultiHead"]
    assert names(body, "cross") == ["MultiQuery", "GroupedQuery"]
    assert {type(layer.cross.attend.position).__name__ for layer in body.layers} == {"Rotary"}
    assert {type(layer.attention.attend.position).__name__ for layer in body.layers} == {"Sinusoidal"}
    assert encoder.layers[0].attention.heads.head_width == 8
    assert body.layers[0].attention.heads.head_width == 4


def test_a_component_receives_the_shape_of_its_layer(assemble: Assemble) -> None:
    model = assemble("seq2seq-tiny", "dims.layers=3", "parts.encoder.dims.layers=2", "dropout=0.1")
    body, encoder = stack(model), stack(model, "encoder")
    sublayers = ("attention", "cross", "feedforward")
    body_shape = Shape(16, 4, 4, 16, 40, 3, branches=9, causal=True, sublayers=sublayers, dropout=0.1)
    for index, layer in enumerate(body.layers):
        assert layer.attention.shape == dataclasses.replace(body_shape, layer=index)
        assert layer.cross.shape == dataclasses.replace(body_shape, layer=index, causal=False, memory_width=16)
    encoder_shape = Shape(16, 4, 4, 16, 40, 2, branches=4, stack="encoder", dropout=0.1, cross_layers=3)
    assert [layer.attention.shape for layer in encoder.layers] == [
        dataclasses.replace(encoder_shape, layer=index) for index in (0, 1)
    ]


def test_the_shape_of_an_encoder_has_the_depth_of_the_decoder(assemble: Assemble) -> None:
    model = assemble("seq2seq-tiny", "parts.encoder.dims.layers=1", "parts.decoder.dims.layers=3")
    assert (stack(model, "encoder").shape.cross_layers, stack(model).shape.cross_layers) == (3, 0)
    assert stack(assemble("gpt-tiny")).shape.cross_layers == 0


def test_a_cross_attention_has_no_position_unless_it_is_given_one(assemble: Assemble) -> None:
    body = stack(assemble("seq2seq-tiny", "position=rope"))
    assert {type(layer.cross.attend.position).__name__ for layer in body.layers} == {"NoPosition"}
    assert {type(layer.attention.attend.position).__name__ for layer in body.layers} == {"Rotary"}


def test_heads_may_be_wider_or_narrower_than_the_stream(assemble: Assemble) -> None:
    heads = stack(assemble("gpt-tiny", "dims.heads=3", "dims.head_width=6")).layers[0].attention.heads
    assert heads.q.weight.shape == (18, 16)
    assert heads.o.weight.shape == (16, 18)


def test_an_evaluated_objective_is_built_once_and_not_trained(assemble: Assemble) -> None:
    model = assemble("bert-tiny", "evaluate=[mlm]")
    assert list(model.assembled.objectives) == ["mlm", "nsp"]
    assert (model.trained, model.evaluated) == (("mlm", "nsp"), ("mlm",))
    assert model.assembled.trained == ("mlm", "nsp")


def test_an_error_of_a_constructor_is_a_spec_error(assemble: Assemble) -> None:
    with raises_problem(SpecError, "component-error", "feedforward", "mlp"):
        assemble("gpt-tiny", "feedforward.inner=5", "feedforward.expand=2")


class Sloped(Position):
    """Learned bias that records the shapes it was built with; subclasses declare its owner."""

    roles: ClassVar[Mapping[str, Role]] = {"slope": "gain"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.slope = nn.Parameter(torch.ones(1))

    def bias(self, pair: Pair) -> Tensor:
        distance = pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)  # (B|1, T, S)
        return (distance.abs() * self.slope).unsqueeze(1).expand(-1, pair.heads, -1, -1).to(pair.dtype)


@final
class OfLayer(Sloped):
    """Bias that each layer owns."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "owner": "layer"}

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def position_limit(self) -> None:
        return None


@final
class OfStack(Sloped):
    """Bias that all layers of a stack share."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def position_limit(self) -> None:
        return None


@final
class OfBoth(Sloped):
    """Bias that all layers of a stack share, multiplied by a number per layer."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "content", "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def layer_part(self, shape: Shape) -> nn.Module:
        return nn.Linear(1, shape.layer + 1 if shape.layer is not None else 1)

    def bias(self, pair: Pair) -> Tensor:
        assert isinstance(pair.position_part, nn.Linear)
        return super().bias(pair) * pair.position_part.weight[-1]

    def position_limit(self) -> None:
        return None


@pytest.fixture(scope="module")
def sloped(components: Registry) -> Registry:
    return components.with_components(position={"of-layer": OfLayer, "of-stack": OfStack, "of-both": OfBoth})


def test_a_position_owned_by_layers_is_built_with_each_layer_index(assemble: Assemble, sloped: Registry) -> None:
    model = assemble("gpt-tiny", "position=[of-layer, learned, of-layer]", "dims.layers=6", registry=sloped)
    body = stack(model)
    position_paths = {path for path in model.state_dict() if ".position." in path}
    assert position_paths == {
        *(f"body.layers.{layer}.position.slope" for layer in (0, 2, 3, 5)),
        "body.position.0.table.weight",
    }
    assert [body.layers[layer].position.shape.layer for layer in (0, 2, 3, 5)] == [0, 2, 3, 5]
    for layer in (0, 2, 3, 5):
        assert body.layers[layer].attention.attend.position is body.layers[layer].position
    model(torch.arange(12).view(1, 12))[0].sum().backward()
    assert all(model.get_parameter(path).grad is not None for path in position_paths)


PARTS = {
    "gpt-tiny": ("position=of-both", "position", 0),
    "seq2seq-tiny": ("parts.decoder.cross.position=of-both", "cross_position", 1),
}


@pytest.mark.parametrize("preset", PARTS)
def test_a_position_owned_by_the_stack_may_have_a_part_per_layer(
    preset: str, assemble: Assemble, sloped: Registry
) -> None:
    override, place, index = PARTS[preset]
    model = assemble(preset, override, "dims.layers=3", registry=sloped)
    body, tokens = stack(model), torch.arange(12).view(1, 12)
    paths = [f"body.position.{index}.slope", *(f"body.layers.{layer}.{place}.weight" for layer in range(3))]
    assert [model.get_parameter(path).numel() for path in paths] == [1, 1, 2, 3]
    attends = [(layer.cross if place.startswith("cross") else layer.attention).attend for layer in body.layers]
    assert len({id(attend.position) for attend in attends}) == len({attend.plan for attend in attends}) == 1
    model(tokens, **({"source": tokens} if index else {}))[0].sum().backward()
    assert all(model.get_parameter(path).grad is not None for path in paths)


def test_shared_layers_share_their_position_part(assemble: Assemble, sloped: Registry) -> None:
    model = assemble("gpt-tiny", "position=of-both", "dims.layers=4", "dims.groups=1", registry=sloped)
    parts = {path for path in model.state_dict() if path.endswith("position.weight")}
    assert parts == {f"body.layers.{layer}.position.weight" for layer in range(4)}
    assert len({id(layer.position) for layer in stack(model).layers}) == 1


CROSS = {
    "of-stack": ["body.position.1.slope"],
    "of-layer": ["body.layers.0.cross_position.slope", "body.layers.1.cross_position.slope"],
    "[of-stack, of-layer]": ["body.position.1.slope", "body.layers.1.cross_position.slope"],
}


@pytest.mark.parametrize(("positions", "paths"), CROSS.items(), ids=CROSS)
def test_the_position_of_a_cross_attention_is_held_by_its_declared_owner(
    positions: str, paths: list[str], assemble: Assemble, sloped: Registry
) -> None:
    model = assemble("seq2seq-tiny", f"parts.decoder.cross.position={positions}", registry=sloped)
    assert {path for path in model.state_dict() if "slope" in path} == set(paths)
    tokens = torch.arange(12).view(1, 12)
    model(tokens, source=tokens)[0].sum().backward()
    assert all(model.get_parameter(path).grad is not None for path in paths)
    built = [
        module for path, module in model.named_modules() if f"{path}.slope" in paths and isinstance(module, Sloped)
    ]
    assert {(position.shape.causal, position.shape.memory_width) for position in built} == {(False, 16)}


def test_children_of_a_model_are_the_first_words_of_its_paths(assemble: Assemble) -> None:
    assembled: ModelParts = assemble("seq2seq-tiny").assembled
    assert list(assembled.children()) == ["embedding", "body", "encoder", "objectives"]


@final
class Overflowing(Sloped):
    """Bias whose constructor fails in one of several ways."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "owner": "layer"}

    def __init__(self, shape: Shape, *, failure: Annotated[str, "kind of failure"] = "arithmetic") -> None:
        super().__init__(shape)
        match failure:
            case "arithmetic":
                math.exp(1_000)
            case "value":
                raise ValueError("the slope is too large")
            case "runtime":
                raise RuntimeError("the table is too large: overflow")
            case "storage":
                torch.empty(1 << 62, 4)
            case "size":
                torch.empty(10**20)

    def position_limit(self) -> None:
        return None


@pytest.mark.parametrize(
    ("failure", "error", "code", "path"),
    [
        ("arithmetic", SpecError, "component-error", "position"),
        ("value", SpecError, "component-error", "position"),
        ("storage", SpecError, "too-large", "dims"),
        ("size", SpecError, "too-large", "dims"),
        ("runtime", RuntimeError, "", ""),
    ],
)
def test_only_an_overflow_of_a_tensor_size_is_reported_at_dims(
    failure: str, error: type[Exception], code: str, path: str, assemble: Assemble, components: Registry
) -> None:
    registry = components.with_components(position={"overflowing": Overflowing})
    with pytest.raises(error) as caught:
        assemble("gpt-tiny", f"position={{name: overflowing, failure: {failure}}}", registry=registry)
    if isinstance(caught.value, SpecError):
        (problem,) = caught.value.problems
        assert (problem.code, problem.path) == (code, path)
