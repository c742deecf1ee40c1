"""Initialisation of components that are not registered: ties, buffers, roles and gains."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    AddPositions,
    Cost,
    Embedding,
    FeedForward,
    Initialisation,
    KeyedDraws,
    Load,
    Norm,
    ParameterInfo,
    Placement,
    PlacementTraits,
    PluginError,
    Role,
    Shape,
    Stream,
    Sublayer,
    TokenLayout,
    token_layout,
)
from paribus.assembly.cost import model_cost
from paribus.assembly.initialise import standard_normal
from paribus.models.checkpoint import load_weights, save_weights
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.registry import Registry

Assemble = Callable[..., Model]


@final
class TiedHead(Embedding):
    """Embedding with a separate head that shares its parameter."""

    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(
        self, stream: Stream, past: int, place: AddPositions, parts: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        rows = token_layout(stream, past)
        return place(self.tokens(stream.tokens), rows.positions), rows

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return nn.functional.linear(h, self.head.weight, bias)

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.head_positions * self.head.weight.numel())


@pytest.fixture(scope="module")
def tied(assemble: Assemble, components: Registry) -> Callable[[], Model]:
    classes = components.with_components(embedding={"tied-head": TiedHead})
    return lambda: assemble("gpt-tiny", "embedding=tied-head", registry=classes)


def is_tied(model: Model) -> bool:
    return model.get_parameter("embedding.head.weight") is model.get_parameter("embedding.tokens.weight")


def test_tied_parameters_stay_tied_after_copies_and_casts(tied: Callable[[], Model]) -> None:
    model = tied()
    assert is_tied(model)
    assert is_tied(copy.deepcopy(model))
    assert is_tied(model.double())
    assert is_tied(model.to(torch.bfloat16))
    assert is_tied(model.to("cpu"))


def test_a_tied_parameter_is_drawn_once_by_its_first_path(tied: Callable[[], Model], assemble: Assemble) -> None:
    model, plain = tied(), assemble("gpt-tiny")
    assert torch.equal(model.get_parameter("embedding.head.weight"), plain.get_parameter("embedding.tokens.weight"))
    assert model_cost(model.assembled, 16).parameters == model_cost(plain.assembled, 16).parameters
    assert len(list(model.parameters())) == len({id(parameter) for parameter in model.parameters()})


def test_an_optimizer_step_changes_both_tied_parameters(tied: Callable[[], Model]) -> None:
    model = tied()
    optimizer = build_optimizer(model.optimizer, model)
    original = model.get_parameter("embedding.tokens.weight").detach().clone()
    model(torch.arange(8).view(1, 8))[0].square().sum().backward()
    optimizer.step()
    assert is_tied(model)
    assert not torch.equal(model.get_parameter("embedding.head.weight"), original)


def test_tied_parameters_stay_tied_after_saving_and_loading(tied: Callable[[], Model], tmp_path: Path) -> None:
    model, restored = tied(), tied()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    save_weights(tmp_path / "weights", model, {})
    load_weights(tmp_path / "weights", restored)
    assert is_tied(restored)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in restored.state_dict().items())


class CustomFeedForward(FeedForward):
    """Feed-forward whose `__init__` a test provides."""

    fill: ClassVar[Callable[[Any], None]]

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.outer = nn.Linear(shape.width, shape.width)
        type(self).fill(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.outer(x), None

    def cost(self, load: Load) -> Cost:
        return Cost()


@pytest.fixture
def build_custom(assemble: Assemble, components: Registry) -> Callable[..., Model]:
    """Return a model whose feed-forwards are built by `fill`."""

    def build(fill: Callable[[Any], None], **members: Any) -> Model:
        kind = type(
            "Filled",
            (CustomFeedForward,),
            {"__doc__": CustomFeedForward.__doc__, "__module__": __name__, "fill": fill, **members},
        )
        return assemble(
            "gpt-tiny", "feedforward=custom", registry=components.with_components(feedforward={"custom": kind})
        )

    return build


FILLS: Mapping[str, Callable[[Any], None]] = {
    "a buffer": lambda module: module.register_buffer("scale", torch.ones(3)),
    "a buffer that is not saved": lambda module: module.register_buffer("scale", torch.ones(3), persistent=False),
    "an attribute": lambda module: setattr(module, "scale", torch.arange(4)),
    "a list": lambda module: setattr(module, "scale", [torch.ones(3), torch.ones(2)]),
    "a mapping of tuples": lambda module: setattr(module, "scale", {"a": (1, torch.ones(3))}),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_a_tensor_computed_on_the_meta_device_is_rejected(
    fill: Callable[[Any], None], build_custom: Callable[..., Model]
) -> None:
    with raises_problem(PluginError, "tensor-in-init", "body.layers.0.feedforward.scale"):
        build_custom(fill)


def test_a_buffer_drawn_in_prepare_is_keyed_by_its_path(build_custom: Callable[..., Model]) -> None:
    def prepare(self: Any, keyed: KeyedDraws) -> None:
        self.register_buffer("features", keyed("features", (4, 3)))

    model = build_custom(lambda module: None, prepare=prepare)
    for layer in range(2):
        features = model.get_buffer(f"body.layers.{layer}.feedforward.features")
        assert torch.equal(features, standard_normal(0, f"body.layers.{layer}.feedforward.features", (4, 3)))


def test_a_vector_without_a_role_is_rejected(build_custom: Callable[..., Model]) -> None:
    with raises_problem(PluginError, "missing-role", "body.layers.0.feedforward.temperature", "temperature"):
        build_custom(lambda module: setattr(module, "temperature", nn.Parameter(torch.ones(3))))


@pytest.mark.parametrize(("role", "expected"), [("gain", 1.0), ("bias", 0.0)])
def test_a_vector_is_initialised_by_its_role(role: Role, expected: float, build_custom: Callable[..., Model]) -> None:
    def fill(module: Any) -> None:
        module.temperature = nn.Parameter(torch.full((3,), 7.0))

    model = build_custom(fill, roles={"temperature": role})
    temperature = model.get_parameter("body.layers.1.feedforward.temperature")
    assert torch.equal(temperature, torch.full((3,), expected))


def test_the_outermost_class_decides_a_role(build_custom: Callable[..., Model]) -> None:
    model = build_custom(lambda module: None, roles={"outer.weight": "residual"})
    assert model.parameter_info["body.layers.0.feedforward.outer.weight"].role == "residual"
    assert build_custom(lambda module: None).parameter_info["body.layers.0.feedforward.outer.weight"].role == "weight"


def test_a_frozen_parameter_stays_frozen(build_custom: Callable[..., Model]) -> None:
    model = build_custom(lambda module: module.outer.weight.requires_grad_(False))
    assert not model.get_parameter("body.layers.0.feedforward.outer.weight").requires_grad
    assert model.get_parameter("body.layers.0.feedforward.outer.bias").requires_grad


@final
class ScaledPlacement(Placement):
    """x + f(x), with a gain for weights that write into the residual stream."""

    traits: ClassVar[PlacementTraits] = {"final_norm": False}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = functional.relu(x) + sublayer(x)
        return x

    def gain(self, role: Role) -> float:
        return 0.25 if role == "residual" else 1.0


@pytest.mark.parametrize("scheme", ["normal", "gpt2", "xavier"])
def test_a_placement_scales_the_roles_of_its_own_layers(scheme: str, assemble: Assemble, components: Registry) -> None:
    classes = components.with_components(placement={"deep": ScaledPlacement})
    plain = assemble("gpt-tiny", f"initialisation={scheme}", "placement=post")
    scaled = assemble("gpt-tiny", f"initialisation={scheme}", "placement=deep", registry=classes)
    for path, parameter in scaled.named_parameters():
        about = scaled.parameter_info[path]
        factor = 0.25 if about.role == "residual" else 1.0
        assert about.gain == (factor if ".layers." in path else 1.0)
        torch.testing.assert_close(parameter, plain.get_parameter(path) * factor)


@final
class RecordingInitialisation(Initialisation):
    """Initialisation that records the parameter information it receives."""

    infos: ClassVar[dict[str, ParameterInfo]] = {}

    def draw(self, unit: Tensor, info: ParameterInfo) -> Tensor:
        self.infos[info.path] = info
        return unit


@pytest.mark.thorough
def test_parameter_info_describes_the_stack_of_a_parameter(assemble: Assemble, components: Registry) -> None:
    classes = components.with_components(initialisation={"recording": RecordingInitialisation})
    overrides = ["initialisation=recording", "dims.layers=3", "parts.encoder.dims.layers=1"]
    model = assemble("seq2seq-tiny", *overrides, registry=classes)
    for path, about in RecordingInitialisation.infos.items():
        part = path.partition(".")[0]
        expected = {"body": (3, 9), "encoder": (1, 2)}.get(part, (0, 0))
        assert (about.layers, about.branches) == expected
        assert about.shape == tuple(model.get_parameter(path).shape)
        assert (about.fan_out, about.fan_in) == about.shape
