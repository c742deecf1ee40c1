"""How a plugin's `__init__.py` offers its components with one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

C = TypeVar("C")


def offered(namespace: Mapping[str, object], slot: type[C]) -> dict[str, type[C]]:
    """The components of `slot` that a plugin's namespace imports under their registered names.

        from paribus_attention.grouped_query import GroupedQuery as gqa
        from paribus_objective.span_corruption import SpanCorruption as span_corruption

    offers `gqa` and `span-corruption`: an underscore stands for a hyphen, since a name here must be an identifier.
    Classes of other packages are left alone. A class from the plugin's own files that fills no slot at all is a
    mistake, and so is a plugin that has nothing to offer: both are said to be one.
    """
    from paribus.slots.component import Component

    package = str(namespace["__name__"]).partition(".")[0]
    found: dict[str, type[C]] = {}
    elsewhere: list[str] = []
    for name, value in namespace.items():
        if not isinstance(value, type) or name.startswith("_"):
            continue
        if value.__module__.partition(".")[0] != package:
            elsewhere += [f"`{name}` is of {value.__module__}"] if issubclass(value, slot) and value is not slot else []
        elif issubclass(value, slot):
            found[name.replace("_", "-")] = value
        elif not issubclass(value, Component):
            raise TypeError(f"{package} offers `{name}`, but {value.__qualname__} is no component of any slot")
    if not found:
        why = f": {', '.join(elsewhere)}, another package, which offers it itself" if elsewhere else ""
        raise TypeError(f"{package} has no {slot.__name__} of its own to offer{why}")
    return found
