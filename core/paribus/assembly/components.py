"""Creation of components from the nodes of a resolved spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from paribus.errors import Problem, SpecError
from paribus.registry.class_reader import group_class, schema_of
from paribus.schema import Option

C = TypeVar("C")
Node = Mapping[str, Any]


class Classes(Protocol):
    """Registry interface that assembly needs."""

    def get(self, slot: str, name: str) -> type: ...


def make(classes: Classes, slot: str, node: Node, *injected: object, kind: type[C]) -> C:
    """Return the component that `node` names, with its options; `kind` is the slot's abstract class."""
    component = classes.get(slot, node["name"])
    options = schema_of(component, component.injects)  # type: ignore[attr-defined]  # the registry holds components only
    values = {option.name: _value(classes, component, option, node[option.name], injected) for option in options}
    try:
        instance = component(*injected, **values)
    except (ValueError, OverflowError) as error:  # a limit across options, which only the component can state
        raise SpecError(Problem(code="component-error", path=slot, message=f"`{node['name']}`: {error}")) from error
    assert isinstance(instance, kind)
    return instance


def _value(classes: Classes, component: type, option: Option, value: Any, injected: tuple[object, ...]) -> Any:
    if value is None:
        return None
    if option.kind.name == "group":
        group = group_class(component, option.name)
        assert group is not None
        return group(**{field.name: _scalar(field, value[field.name]) for field in option.kind.options})
    if option.kind.name == "slot":
        return _factory(classes, option.kind.slot, value)
    return _scalar(option, value)


def _factory(classes: Classes, slot: str, node: Node) -> Callable[..., Any]:
    return partial(make, classes, slot, node, kind=object)


def _scalar(option: Option, value: Any) -> Any:
    if option.kind.name == "float" and isinstance(value, int):
        return float(value)
    return tuple(value) if option.kind.name == "list" and value is not None else value
