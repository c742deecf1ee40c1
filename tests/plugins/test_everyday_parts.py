"""Registered names of plugins, one file a variant, and no option without an effect."""

import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus import ParameterInfo, Range, Role, Shape, Stream
from paribus.registry.class_reader import schema_of
from paribus.schema import Option

REGISTERED = {
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


def registered(slot: str) -> Mapping[str, type[Any]]:
    components: Mapping[str, type[Any]] = getattr(importlib.import_module(REGISTERED[slot][0]), slot)()
    return components


@pytest.mark.parametrize("slot", REGISTERED)
def test_plugins_register_these_names(slot: str) -> None:
    assert set(registered(slot)) == REGISTERED[slot][1]


@pytest.mark.parametrize("slot", REGISTERED)
def test_every_variant_is_a_final_class_in_its_own_file(slot: str) -> None:
    classes = registered(slot).values()
    assert len({component.__module__ for component in classes}) == len(classes)
    assert all(component.__final__ for component in classes)


def slots(component: type[Any]) -> list[Option]:
    """Return the options whose values are components."""
    hashable: type = component
    return [option for option in schema_of(hashable, component.injects) if option.kind.name == "slot"]


def randomise(module: nn.Module) -> nn.Module:
    """Randomise the parameters of a module by name, in float64."""
    module.double()
    for name, parameter in module.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def norm(width: int | None = None) -> nn.Module:
    layer: nn.Module = registered("norm")["layernorm"](width or SHAPE.width)
    return layer


def random_input(width: int = SHAPE.width) -> Tensor:
    return torch.randn(2, 3, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def norm_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    output: Tensor = randomise(component(SHAPE.width, **options))(torch.cat([random_input(), random_input() * 1e-7]))
    return output


def placement_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    placement: Any = component(SHAPE, norm, **options).double()
    output: Tensor = placement(random_input(), {"attention": torch.sin, "feedforward": torch.cos})
    return output if len(list(placement.parameters())) > 2 else output + 1  # distinguishes placements by their norms


def feedforward_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    nested = {option.name: registered(option.kind.slot)[option.default] for option in slots(component)}
    y, added = randomise(component(SHAPE, **nested, **options))(random_input())
    output: Tensor = y if added is None else torch.cat([y.flatten(), added.view(1)])
    return output


def embedding_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    embedding: Any = randomise(component(SHAPE, norm, **options))
    part = embedding.stack_part(SHAPE, norm)
    x, _ = embedding(Stream(torch.arange(6).view(2, 3)), 0, lambda x, positions: x, part and randomise(part))
    return torch.cat([x, embedding.unembed(random_input(embedding.width or SHAPE.width))], dim=-1)


def initialisation_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    roles: tuple[Role, ...] = ("residual", "head", "embedding", "query")
    parameters = [
        ParameterInfo("body.layers.0.some.weight", role, (6, 24), layers=2, branches=4, gain=1.0) for role in roles
    ]
    return torch.cat([component(**options).draw(torch.ones(parameter.shape), parameter) for parameter in parameters])


def optimizer_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    """Optimize a matrix and a tiny one, with gradients that differ by element and step."""
    values = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    parameters = [nn.Parameter(values.clone()), nn.Parameter(values * 1e-6)]
    optimizer = component(**options).build(parameters, [])
    for gradients in (values.flip(0), -0.5 * values, 9 * values.flip(1)):
        for parameter in parameters:
            parameter.grad = gradients.clone()
        optimizer.step()
    return torch.stack([parameter.detach() for parameter in parameters])


def schedule_output(component: type[Any], options: Mapping[str, Any]) -> Tensor:
    return torch.tensor([component(**options).factor(step, 200) for step in range(200)])


OUTPUTS: Mapping[str, Callable[[type[Any], Mapping[str, Any]], Tensor]] = {
    "norm": norm_output,
    "placement": placement_output,
    "feedforward": feedforward_output,
    "embedding": embedding_output,
    "initialisation": initialisation_output,
    "optimizer": optimizer_output,
    "schedule": schedule_output,
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
    for slot in OUTPUTS:  # options of topologies are tested in whole models, by the conformance checks
        for name, component in registered(slot).items():
            hashable: type = component
            for option in schema_of(hashable, component.injects):
                if option.kind.name == "slot":
                    continue  # a component with options
                if component.traits.get("modality") == "images":
                    continue  # sizes depend on each other; tested separately
                yield pytest.param(slot, component, option, id=f"{name}.{option.name}")


@pytest.mark.parametrize(("slot", "component", "option"), list(options()))
def test_every_value_of_an_option_changes_the_output(slot: str, component: type[Any], option: Option) -> None:
    results = [OUTPUTS[slot](component, {})]
    results += [OUTPUTS[slot](component, {option.name: value}) for value in other_values(option)]
    for index, result in enumerate(results):
        assert not any(result.shape == previous.shape and torch.equal(result, previous) for previous in results[:index])
