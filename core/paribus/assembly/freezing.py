"""Frozen parameters: those that `freeze:` of a spec names, by their paths and by layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from paribus.assembly.build import ModelParts
from paribus.errors import Problem, SpecError, closest_match, join_names


def frozen_parameters(model: ModelParts, freeze: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the paths of the parameters that `freeze` names.

    A pattern matches a parameter whose path, or that of a module around it, it equals. `*` stands for any part of a
    word, and `**` for any words: `body.layers.*.attention`, `**.bias`. A pattern that matches nothing is an error, and
    so is a model without any trained parameter.
    """
    if not freeze:
        return frozenset()
    paths = _paths(model)
    named = list(dict.fromkeys(path for shared in paths for path in shared))
    frozen = set(_matching("paths", freeze["paths"], named))
    frozen |= set(_matching("layers", list(_first_layers(model, freeze["layers"])), named))
    frozen -= set(_matching("trained", freeze["trained"], sorted(frozen)))
    for shared in paths:
        trained = [path for path in shared if path not in frozen]
        if trained and len(trained) < len(shared):
            both = next(path for path in shared if path in frozen)
            message = f"`{both}` and `{trained[0]}` are one parameter, and only one of the two paths is frozen"
            raise SpecError(Problem(code="shared-parameter", path="freeze", message=message, valid="both, or neither"))
    if len(frozen) == len(named):
        message = f"all {len(paths)} parameters are frozen, so nothing is trained"
        valid = "fewer paths, or `trained`: the paths that are trained all the same, such as objectives"
        raise SpecError(Problem(code="nothing-to-train", path="freeze", message=message, valid=valid))
    return frozenset(shared[0] for shared in paths if shared[0] in frozen)


def untrained_parameters(model: ModelParts, freeze: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the paths of the parameters that are frozen at every step."""
    return frozen_parameters(model, freeze) if freeze and freeze["steps"] is None else frozenset()


def _paths(model: ModelParts) -> list[list[str]]:
    """Return all paths of each parameter, the first of which is its name."""
    paths: dict[int, list[str]] = {}
    for child, module in model.children().items():
        for path, parameter in module.named_parameters(prefix=child, remove_duplicate=False):
            paths.setdefault(id(parameter), []).append(path)
    return list(paths.values())


def _first_layers(model: ModelParts, count: int) -> Iterator[str]:
    for part in model.topology.parts if count else ():
        layers = model.topology.stage(part.path).shape.layers
        if count > layers:
            message = f"got {count}, but the {part.name} has {layers} layers"
            raise SpecError(Problem(code="out-of-range", path="freeze.layers", message=message, valid=f"≤ {layers}"))
        yield from (f"{part.path}.layers.{index}" for index in range(count))


def _matching(option: str, patterns: Collection[str], paths: Collection[str]) -> Iterator[str]:
    """Yield the paths that a pattern matches; report a pattern that matches none."""
    for pattern in patterns:
        expression = re.compile(re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*") + r"(\..*)?")
        matching = [path for path in paths if expression.fullmatch(path)]
        if not matching:
            _report_unknown(option, pattern, paths)
        yield from matching


def _prefixes(path: str) -> Iterator[str]:
    """Yield the paths of the modules around a parameter, and its own."""
    words = path.split(".")
    return (".".join(words[: end + 1]) for end in range(len(words)))


def _report_unknown(option: str, pattern: str, paths: Collection[str]) -> None:
    known = list(dict.fromkeys(prefix for path in paths for prefix in _prefixes(path)))
    roots = join_names([prefix for prefix in known if "." not in prefix])
    kind = "parameter" if option != "trained" else "frozen parameter"
    raise SpecError(
        Problem(
            code="unknown-path",
            path=f"freeze.{option}",
            message=f"`{pattern}` matches no {kind}",
            valid=f"{roots}, a path below one, or a pattern such as **.bias" if roots else "an empty list",
            suggestion=closest_match(pattern, known),
        )
    )
