"""A family of models elsewhere: how its configurations and its tensors are said here."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from paribus.conversion.config import Config, Key, at, place
from paribus.conversion.tensor_mapping import Move
from paribus.errors import Problem, SpecError, join_names


class Architecture(NamedTuple):
    """One class of a family: a body with certain heads."""

    prefix: str = ""  # what stands before its tensors' names in the whole model, and not in this one
    spec: Mapping[str, Any] = {}  # how its spec differs from that of the family
    unread: tuple[str, ...] = ()  # tensors that the class has and never reads, by their names in it


class Alone(NamedTuple):
    """One of several networks of a model, as a model of its own."""

    spec: Mapping[str, Any]
    whole: Callable[[str], str]  # what a tensor of it is called in the whole


class Family(ABC):
    """One file says how a family maps onto a spec: a table of keys, and a table of tensors.

    `keys` are read in both directions; `fixed` and `former` are keys that exist here at one value; `ignored` change
    nothing that a model computes. A key in none of them is refused when a configuration has it. What no table can say
    is said in `read` and `write`. Nothing here needs the library that the model comes from.
    """

    kind: ClassVar[str]  # their `model_type`
    architectures: ClassVar[Mapping[str, Architecture]]
    spec: ClassVar[Mapping[str, Any]]  # what all models of the family have in common
    keys: ClassVar[tuple[Key, ...]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    former: ClassVar[Mapping[str, Any]] = {}  # as `fixed`, of older configurations: read, and never written
    ignored: ClassVar[frozenset[str]] = frozenset()
    varies: ClassVar[frozenset[str]] = frozenset()  # slots of `spec` that `read` may fill with another component
    renamed: ClassVar[Mapping[str, str]] = {}  # parts of names in older files, in turn, and what they are now
    buffers: ClassVar[tuple[str, ...]] = ()  # ends of names of tensors that are computed and not learned

    @abstractmethod
    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Every tensor of a model with this spec."""

    def constants(self, spec: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Tensors of theirs that no parameter of ours is, each one number everywhere, in every model with this spec."""
        return {}

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:  # noqa: B027  # most have nothing to add
        """What no table can say, from theirs to ours."""

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:  # noqa: B027  # as above
        """The same, from ours to theirs."""

    def alone(self, spec: Mapping[str, Any], architecture: str) -> Alone:
        """What one of their classes says of a spec, where several say it together: each has a network of it."""
        return Alone(spec, str)

    def together(self, specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """The spec of which each class, by its name, has a network."""
        what = f"{join_names(specs)} of the family `{self.kind}` are no networks of one model"
        raise SpecError(
            Problem(code="no-pair", path="architectures", message=what, valid="one model, or a pair of two")
        )

    def spec_of(self, given: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """The spec of one of their configurations."""
        config = Config(given, self.kind)
        spec = {**copy.deepcopy(dict(self.spec)), **copy.deepcopy(dict(self.of(architecture).spec))}
        for key in self.keys:
            config.put(spec, key)
        for name, value in (*self.fixed.items(), *self.former.items()):
            config.only(name, value)
        config.ignore(self.ignored)
        self.read(config, spec)
        config.done()
        return spec

    def stranger(self, spec: Mapping[str, Any]) -> str:
        """The first slot that holds what no model of the family has, or nothing."""
        for slot, node in self.spec.items():
            name = node["name"] if isinstance(node, Mapping) else node
            held = spec.get(slot)
            if slot not in (*self.varies, "preset", "objective") and (
                not isinstance(held, Mapping) or held["name"] != name
            ):
                return slot
        return ""

    def settled(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The spec with each number said outright that it says as so many times another."""
        made: dict[str, Any] = copy.deepcopy(dict(spec))
        for key in self.keys:
            if key.times is not None:
                factor, unit = key.times
                if at(made, key.ours) is None and at(made, factor) is not None:
                    place(made, key.ours, round(at(made, factor) * at(made, unit)))
                if at(made, key.ours) is not None:
                    place(made, factor, None)
        return made

    def config_of(self, spec: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """Their configuration of a spec that came from one, or of one like it; whether it says all is not looked at."""
        config: dict[str, Any] = {"model_type": self.kind, "architectures": [architecture], **self.fixed}
        for key in self.keys:
            value = at(spec, key.ours)
            back = {ours: theirs for theirs, ours in reversed(list((key.values or {}).items()))}
            config[key.theirs] = key.write(value) if key.values is None else back.get(value, value)
        self.write(spec, config)
        return config

    def name_of(self, name: str, architecture: str) -> str:
        """What the whole model calls a tensor of one of its classes, which an older file may call otherwise."""
        name = self.of(architecture).prefix + name
        for older, now in self.renamed.items():
            name = name.replace(older, now)
        return name

    def of(self, architecture: str) -> Architecture:
        if architecture not in self.architectures:
            what = f"`{architecture}` is a class of the family `{self.kind}` with heads that are not known here"
            raise SpecError(
                Problem(
                    code="unknown-architecture",
                    path="architectures",
                    message=what,
                    valid=join_names(self.architectures),
                )
            )
        return self.architectures[architecture]
