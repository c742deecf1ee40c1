"""Registration of a plugin's components: each import in its `__init__.py` registers one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

C = TypeVar("C")


def registered(namespace: Mapping[str, object], slot: type[C]) -> dict[str, type[C]]:
    """Return the components of `slot` in a plugin's namespace, by their registered names.

        from paribus_attention.grouped_query import GroupedQuery as gqa
        from paribus_objective.span_corruption import SpanCorruption as span_corruption

    registers `gqa` and `span-corruption`: an underscore stands for a hyphen, which an identifier cannot contain.
    Classes of other packages are ignored. A class of the plugin's own files that belongs to no slot is an error, and so
    is a plugin without any component.
    """
    from paribus.slots.component import Component

    package = str(namespace["__name__"]).partition(".")[0]
    components: dict[str, type[C]] = {}
    ignored: list[str] = []
    for name, value in namespace.items():
        if not isinstance(value, type) or name.startswith("_"):
            continue
        if value.__module__.partition(".")[0] != package:
            if issubclass(value, slot) and value is not slot:
                ignored.append(f"`{name}` is of {value.__module__}")
        elif issubclass(value, slot):
            components[name.replace("_", "-")] = value
        elif not issubclass(value, Component):
            raise TypeError(f"{package}: `{name}` ({value.__qualname__}) is not a component of any slot")
    if not components:
        reason = f": {', '.join(ignored)}, another package, which registers it itself" if ignored else ""
        raise TypeError(f"{package} has no {slot.__name__} of its own to register{reason}")
    return components
