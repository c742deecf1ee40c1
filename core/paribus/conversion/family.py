"""Families of Hugging Face models: mapping of configurations to specs, and of tensor names."""

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
    """Class of a family: a body with certain heads."""

    prefix: str = ""  # prefix of its tensors' names in the whole model
    spec: Mapping[str, Any] = {}  # overrides of the spec of the family
    unread: tuple[str, ...] = ()  # unused tensors of the class


class Alone(NamedTuple):
    """One of several networks of a model, as a model of its own."""

    spec: Mapping[str, Any]
    whole: Callable[[str], str]  # from the name of a tensor to that in the whole model


class Family(ABC):
    """Mapping of a family to specs: a table of configuration keys, and a table of tensors.

    `keys` are read in both directions; `fixed` and `former` are keys with one supported value; `ignored` do not change
    the outputs. Any other key of a configuration is an error. `read` and `write` handle what no table can express. The
    original library is not needed.
    """

    kind: ClassVar[str]  # `model_type` of the configuration
    architectures: ClassVar[Mapping[str, Architecture]]
    spec: ClassVar[Mapping[str, Any]]  # common to all models of the family
    keys: ClassVar[tuple[Key, ...]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    former: ClassVar[Mapping[str, Any]] = {}  # as `fixed`, for older configurations: read, but never written
    ignored: ClassVar[frozenset[str]] = frozenset()
    varies: ClassVar[frozenset[str]] = frozenset()  # slots of `spec` that `read` may fill with another component
    renamed: ClassVar[Mapping[str, str]] = {}  # replacements in tensor names of older files
    buffers: ClassVar[tuple[str, ...]] = ()  # suffixes of names of buffers

    @abstractmethod
    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield the mapping of every tensor of a model with this spec."""

    def constants(self, spec: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return constant tensors of the original model that have no parameter here."""
        return {}

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:  # noqa: B027  # most have nothing to add
        """Convert what no table can express, from configuration to spec."""

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:  # noqa: B027  # as above
        """Convert what no table can express, from spec to configuration."""

    def alone(self, spec: Mapping[str, Any], architecture: str) -> Alone:
        """Return the network of one class, for a model of several networks."""
        return Alone(spec, str)

    def together(self, specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the spec of a model of several networks, from the spec of each class."""
        message = f"{join_names(specs)} of the family `{self.kind}` are not networks of one model"
        raise SpecError(
            Problem(code="no-pair", path="architectures", message=message, valid="one model, or a pair of two")
        )

    def spec_of(self, hf_config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """The spec of one of their configurations."""
        config = Config(hf_config, self.kind)
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
        """Return the first slot with a component that no model of the family has, or an empty string."""
        for slot, node in self.spec.items():
            name = node["name"] if isinstance(node, Mapping) else node
            component = spec.get(slot)
            if slot not in (*self.varies, "preset", "objective") and (
                not isinstance(component, Mapping) or component["name"] != name
            ):
                return slot
        return ""

    def settled(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec with multiples replaced by numbers, such as `expand` by `inner`."""
        settled_spec: dict[str, Any] = copy.deepcopy(dict(spec))
        for key in self.keys:
            if key.times is not None:
                factor, unit = key.times
                if at(settled_spec, key.ours) is None and at(settled_spec, factor) is not None:
                    place(settled_spec, key.ours, round(at(settled_spec, factor) * at(settled_spec, unit)))
                if at(settled_spec, key.ours) is not None:
                    place(settled_spec, factor, None)
        return settled_spec

    def config_of(self, spec: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """Return the configuration of a spec, without checking that it expresses everything."""
        config: dict[str, Any] = {"model_type": self.kind, "architectures": [architecture], **self.fixed}
        for key in self.keys:
            value = at(spec, key.ours)
            hf_values = {value_here: hf_value for hf_value, value_here in reversed(list((key.values or {}).items()))}
            config[key.theirs] = key.write(value) if key.values is None else hf_values.get(value, value)
        self.write(spec, config)
        return config

    def name_of(self, name: str, architecture: str) -> str:
        """Return the name of a tensor in the whole model, from that in a class or in an older file."""
        name = self.of(architecture).prefix + name
        for older, now in self.renamed.items():
            name = name.replace(older, now)
        return name

    def of(self, architecture: str) -> Architecture:
        if architecture not in self.architectures:
            message = f"`{architecture}` is an unknown class of the family `{self.kind}`"
            raise SpecError(
                Problem(
                    code="unknown-architecture",
                    path="architectures",
                    message=message,
                    valid=join_names(self.architectures),
                )
            )
        return self.architectures[architecture]
