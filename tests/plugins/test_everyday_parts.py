"""What the everyday plugins offer: their names, one variant a file, and no option that changes nothing."""

import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus import ParameterInfo, Range, Role, Shape, Stream
from paribus.schema import Option
from paribus.signatures import schema_of

OFFERED = {
    "norm": ("paribus_norm", {"layernorm", "rmsnorm", "scalenorm", "dyt", "none"}),
    "placement": (
        "paribus_placement",
        {"pre", "post", "sandwich", "peri", "deepnorm", "parallel", "rezero", "layerscale"},
    ),
    "feedforward": ("paribus_feedforward", {"mlp", "glu", "moe"}),
    "embedding": ("paribus_embedding", {"factorised", "patches", "tokens"}),
    "topology": (
        "paribus_topology",
        {
            "encoder",
            "decoder",
            "encoder-decoder",
            "generator-discriminator",
            "plain-decoder",
            "recurrent-encoder-decoder",
            "two-stream",
        },
    ),
    "initialisation": ("paribus_initialisation", {"normal", "gpt2", "xavier", "t5", "truncated"}),
    "optimizer": ("paribus_optim", {"adadelta", "adafactor", "adagrad", "adamw", "lamb", "sgd", "stable-adamw"}),
    "schedule": ("paribus_optim", {"constant", "halved", "inverse-sqrt", "polynomial", "trapezoid", "warmup-cosine"}),
}
SHAPE = Shape(width=6, heads=2, head_width=3, length=8, vocabulary=11, layers=2, layer=0, branches=4)


def offered(slot: str) -> Mapping[str, type[Any]]:
    found: Mapping[str, type[Any]] = getattr(importlib.import_module(OFFERED[slot][0]), slot)()
    return found


@pytest.mark.parametrize("slot", OFFERED)
def test_a_plugin_offers_its_components_by_these_names(slot: str) -> None:
    assert set(offered(slot)) == OFFERED[slot][1]


@pytest.mark.parametrize("slot", OFFERED)
def test_a_variant_is_a_file_and_cannot_be_inherited_from(slot: str) -> None:
    classes = offered(slot).values()
    assert len({component.__module__ for component in classes}) == len(classes)
    assert all(component.__final__ for component in classes)


def slots(component: type[Any]) -> list[Option]:
    """The options that are components themselves."""
    hashable: type = component
    return [option for option in schema_of(hashable, component.injects) if option.kind.name == "slot"]


def filled(module: nn.Module) -> nn.Module:
    """`module` in float64, each parameter random and keyed by its name."""
    module.double()
    for name, parameter in module.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def norm(width: int | None = None) -> nn.Module:
    made: nn.Module = offered("norm")["layernorm"](width or SHAPE.width)
    return made


def rows(width: int = SHAPE.width) -> Tensor:
    return torch.randn(2, 3, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def seen_norm(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    seen: Tensor = filled(component(SHAPE.width, **options))(torch.cat([rows(), rows() * 1e-7]))
    return seen


def seen_placement(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    placement: Any = component(SHAPE, norm, **options).double()
    seen: Tensor = placement(rows(), {"attention": torch.sin, "feedforward": torch.cos})
    return seen if len(list(placement.parameters())) > 2 else seen + 1  # as many norms as say so


def seen_feedforward(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    nested = {option.name: offered(option.kind.slot)[option.default] for option in slots(component)}
    y, added = filled(component(SHAPE, **nested, **options))(rows())
    seen: Tensor = y if added is None else torch.cat([y.flatten(), added.view(1)])
    return seen


def seen_embedding(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    embedding: Any = filled(component(SHAPE, norm, **options))
    own = embedding.stack_part(SHAPE, norm)
    x, _ = embedding(Stream(torch.arange(6).view(2, 3)), 0, lambda x, positions: x, own and filled(own))
    return torch.cat([x, embedding.unembed(rows(embedding.width or SHAPE.width))], dim=-1)


def seen_initialisation(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    roles: tuple[Role, ...] = ("residual", "head", "embedding", "query")
    abouts = [
        ParameterInfo("body.layers.0.some.weight", role, (6, 24), layers=2, branches=4, gain=1.0) for role in roles
    ]
    return torch.cat([component(**options).draw(torch.ones(about.shape), about) for about in abouts])


def seen_optimizer(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    """Of a matrix and of one that is all but nothing, whose gradients differ from place to place and step to step."""
    values = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    parameters = [nn.Parameter(values.clone()), nn.Parameter(values * 1e-6)]
    optimizer = component(**options).build(parameters, [])
    for gradients in (values.flip(0), -0.5 * values, 9 * values.flip(1)):
        for parameter in parameters:
            parameter.grad = gradients.clone()
        optimizer.step()
    return torch.stack([parameter.detach() for parameter in parameters])


def seen_schedule(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    return torch.tensor([component(**options).factor(step, 200) for step in range(200)])


SEEN: Mapping[str, Callable[[type[Any], Mapping[str, Any]], Tensor]] = {
    "norm": seen_norm,
    "placement": seen_placement,
    "feedforward": seen_feedforward,
    "embedding": seen_embedding,
    "initialisation": seen_initialisation,
    "optimizer": seen_optimizer,
    "schedule": seen_schedule,
}


def other_values(option: Option) -> list[Any]:
    value = option.default
    if option.kind.name == "choice":
        return [choice for choice in option.kind.choices if choice != value]
    if option.kind.name == "bool":
        return [not value]
    if option.kind.name == "int":
        return [3]
    below = value / 2 if value else 0.5
    valid = all(limit.contains(below) for limit in option.limits if isinstance(limit, Range))
    return [below if valid else 2 * value]


def options() -> Iterator[Any]:
    for slot in SEEN:  # those of a topology change a whole model, in which the conformance kit tries them
        for name, component in offered(slot).items():
            hashable: type = component
            for option in schema_of(hashable, component.injects):
                if option.kind.name == "slot":
                    continue  # its values are components, each with options of its own
                if component.traits.get("modality") == "images":
                    continue  # sizes that only go together; its own tests change them
                yield pytest.param(slot, component, option, id=f"{name}.{option.name}")


@pytest.mark.parametrize(("slot", "component", "option"), list(options()))
def test_every_value_of_an_option_changes_something(slot: str, component: type[Any], option: Option) -> None:
    results = [SEEN[slot](component, {})]
    results += [SEEN[slot](component, {option.name: value}) for value in other_values(option)]
    for index, result in enumerate(results):
        assert not any(result.shape == other.shape and torch.equal(result, other) for other in results[:index])
