"""The loggers of a study: Lightning's, by name, told of every trial while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.errors import listed, nearest
from paribus.specs.tree import shown
from paribus.specs.values import Checking
from paribus.train.loggers import LOGGERS

EXAMPLE: Final = "loggers: [csv, {name: tensorboard}]"


def loggers_of(checking: Checking, given: Any) -> tuple[Mapping[str, Any], ...]:
    """What `loggers:` says, each as a mapping with a name; a package that is missing is told now."""
    if given is None:
        return ()
    nodes = list(_nodes(checking, given if isinstance(given, list) else [given]))
    names = [node["name"] for node in nodes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        checking.wrong("too-many", ("loggers",), f"`{name}` stands here {names.count(name)} times", "each once")
    return tuple(nodes)


def _nodes(checking: Checking, given: list[Any]) -> Iterator[Mapping[str, Any]]:
    for place, each in enumerate(given):
        node = {"name": each} if isinstance(each, str) else each
        name = node.get("name") if isinstance(node, Mapping) else None
        at = ("loggers", place)
        if not isinstance(name, str):
            checking.wrong("wrong-type", at, f"this is {shown(each)}", EXAMPLE)
        elif name not in LOGGERS:
            what = f"there is no logger `{name}`"
            checking.wrong("unknown-logger", at, what, listed(LOGGERS), nearest(name, LOGGERS))
        elif not LOGGERS[name].there:
            package = LOGGERS[name].package
            what = f"the logger `{name}` needs the package `{package}`, which is not installed"
            checking.wrong("no-package", at, what, f"pip install 'paribus[{name}]'")
        else:
            _options(checking, node, at)
            yield dict(node)


def _options(checking: Checking, node: Mapping[str, Any], at: tuple[Any, ...]) -> None:
    known = LOGGERS[node["name"]].options
    for key, value in node.items():
        if key == "name":
            continue
        if key not in known:
            checking.unknown(key, (*at, key), tuple(known))
        elif type(value) is not known[key]:
            checking.wrong(
                "wrong-type", (*at, key), f"this is {shown(value)}", f"a value of type {known[key].__name__}"
            )
