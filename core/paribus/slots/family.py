"""Family of Hugging Face models: mapping of its configurations to specs, and of its tensors to parameters.

A configuration is read key by key. Unread keys are errors, so that none is lost.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, NamedTuple, final

from torch import Tensor

from paribus.errors import Problem, SpecError, join_names

GENERIC: Final = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
        "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
        "early_stopping", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
        "forced_eos_token_id", "id2label", "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length",
        "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
        "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
        "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
        "suppress_tokens", "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype",
        "torchscript", "transformers_version", "typical_p", "use_bfloat16", "use_cache",
    }
)  # fmt: skip
"""Keys that every family of `transformers` may have and that do not change the outputs."""


def same(value: Any) -> Any:
    return value


class Key(NamedTuple):
    """Key of a configuration, and its path in a spec."""

    hf_name: str
    path: str  # in a spec, dotted: "dims.width"
    default: Any  # value if the configuration does not have the key
    values: Mapping[Any, Any] | None = None  # values of the spec by those of the configuration
    read: Callable[[Any], Any] = same  # from configuration to spec
    write: Callable[[Any], Any] = same
    factors: tuple[str, str] | None = None  # paths of two values whose product replaces a null: a width, by `expand`


@final
class Config:
    """Configuration that records which keys were read, and collects problems."""

    def __init__(self, values: Mapping[str, Any], family: str) -> None:
        self.values = values
        self.family = family
        self.problems: list[Problem] = []
        self._read: set[str] = set(GENERIC)
        self._sources: dict[str, str] = {}  # the configuration key of each path of the spec

    def take(self, name: str, default: Any) -> Any:
        """Return a value, or its default."""
        self._read.add(name)
        return self.values.get(name, default)

    def require(self, name: str, value: Any) -> None:
        """Require that a key has the only supported value."""
        actual = self.take(name, value)
        if actual != value:
            self.add_problem(name, f"`{name}` is {actual!r}, which no component supports", repr(value))

    def ignore(self, names: Iterable[str]) -> None:
        self._read.update(names)

    def read_key(self, spec: MutableMapping[str, Any], key: Key) -> None:
        """Read a key into the spec."""
        hf_value = self.take(key.hf_name, key.default)
        if key.values is not None:
            if hf_value not in key.values:
                self.add_problem(
                    key.hf_name, f"`{key.hf_name}` is {hf_value!r}, which no component supports", join_names(key.values)
                )
                return
            value = key.values[hf_value]
        else:
            value = key.read(hf_value)
        previous = value_at(spec, key.path)
        if key.path in self._sources and previous != value:
            previous_name = self._sources[key.path]
            message = (
                f"`{key.hf_name}` is {hf_value!r} and `{previous_name}` {previous!r}, but `{key.path}` has one value"
            )
            self.add_problem(
                key.hf_name, message, f"one value for the two: {key.hf_name}={previous!r} when you convert"
            )
            return
        self._sources[key.path] = key.hf_name
        set_value(spec, key.path, value)

    def add_problem(self, name: str, message: str, valid: str = "") -> None:
        self.problems.append(Problem(code="unsupported-option", path=name, message=message, valid=valid))

    def raise_problems(self) -> None:
        """Raise all problems, with one for each unread key."""
        for name in sorted(set(self.values) - self._read):
            message = f"`{name}` ({self.values[name]!r}) is an unknown option of the family `{self.family}`"
            self.problems.append(Problem(code="unknown-option", path=name, message=message))
        if self.problems:
            raise SpecError(*self.problems)


def value_at(spec: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a spec at a dotted path, or None."""
    value: Any = spec
    for word in dotted.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def set_value(spec: MutableMapping[str, Any], dotted: str, value: Any) -> None:
    *outer, last_key = dotted.split(".")
    inner: Any = spec
    for word in outer:
        inner = inner.setdefault(word, {})
    inner[last_key] = value


class Architecture(NamedTuple):
    """Class of a family: a body with certain heads."""

    prefix: str = ""  # prefix of its tensors' names in the whole model
    spec: Mapping[str, Any] = {}  # overrides of the spec of the family
    unused_tensors: tuple[str, ...] = ()  # names of tensors that no parameter equals


class Network(NamedTuple):
    """One of several networks of a model, as a model of its own."""

    spec: Mapping[str, Any]
    full_name: Callable[[str], str]  # from the name of a tensor to that in the whole model
    is_whole: bool = True  # False: the model has tensors of other networks


class Family(ABC):
    """Mapping of a family to specs: a table of configuration keys, and a table of tensors.

    `keys` are read in both directions; `fixed` and `legacy` are keys with one supported value; `ignored` do not change
    the outputs. Any other key of a configuration is an error. `read` and `write` handle what no table can express. The
    original library is not needed.
    """

    kind: ClassVar[str]  # `model_type` of the configuration
    architectures: ClassVar[Mapping[str, Architecture]]
    spec: ClassVar[Mapping[str, Any]]  # common to all models of the family
    keys: ClassVar[tuple[Key, ...]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    legacy: ClassVar[Mapping[str, Any]] = {}  # as `fixed`, for older configurations: read, but never written
    ignored: ClassVar[frozenset[str]] = frozenset()
    same_heads: ClassVar[frozenset[str]] = frozenset()  # objectives whose head is that of the family's objective
    variable_slots: ClassVar[frozenset[str]] = frozenset()  # slots that `read` may fill with another component
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

    def network(self, spec: Mapping[str, Any], architecture: str) -> Network:
        """Return the network of one class, for a model of several networks. One that was trained with an objective of
        `same_heads` is returned as trained with the family's.
        """
        node, head = spec["objective"], self.spec.get("objective")
        if not isinstance(node, Mapping) or node["name"] not in self.same_heads:
            return Network(spec, str)
        replacement = {"name": head} if isinstance(head, str) else dict(head or {})
        options = {key: node.get(key, value) for key, value in replacement.items() if key != "name"}
        prefix, trained_prefix = f"objectives.{replacement['name']}.", f"objectives.{node['name']}."
        return Network(
            {**spec, "objective": {**options, "name": replacement["name"]}, "evaluate": None},
            lambda path: path.replace(prefix, trained_prefix),
        )

    def numbered(
        self, spec: Mapping[str, Any], parameters: Mapping[str, Tensor], pad: int | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Return the spec and the parameters of an equal model, if the family needs another one for a tokenizer whose
        padding has the id `pad`.
        """
        return spec, parameters

    def combine(self, specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the spec of a model of several networks, from the spec of each class."""
        message = f"{join_names(specs)} of the family `{self.kind}` are not networks of one model"
        raise SpecError(
            Problem(code="not-a-pair", path="architectures", message=message, valid="one model, or a pair of two")
        )

    def spec_of(self, hf_config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """Return the spec of a configuration."""
        config = Config(hf_config, self.kind)
        spec = {**copy.deepcopy(dict(self.spec)), **copy.deepcopy(dict(self.architecture(architecture).spec))}
        for key in self.keys:
            config.read_key(spec, key)
        for name, value in (*self.fixed.items(), *self.legacy.items()):
            config.require(name, value)
        config.ignore(self.ignored)
        self.read(config, spec)
        config.raise_problems()
        return spec

    def unsupported_slot(self, spec: Mapping[str, Any]) -> str:
        """Return the first slot with a component that no model of the family has, or an empty string."""
        for slot, node in self.spec.items():
            name = node["name"] if isinstance(node, Mapping) else node
            component = spec.get(slot)
            if slot not in (*self.variable_slots, "preset", "objective") and (
                not isinstance(component, Mapping) or component["name"] != name
            ):
                return slot
        return ""

    def resolve_multiples(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec with multiples replaced by numbers, such as `expand` by `inner`."""
        numeric_spec: dict[str, Any] = copy.deepcopy(dict(spec))
        for key in self.keys:
            if key.factors is not None:
                factor, unit = key.factors
                if value_at(numeric_spec, key.path) is None and value_at(numeric_spec, factor) is not None:
                    set_value(
                        numeric_spec, key.path, round(value_at(numeric_spec, factor) * value_at(numeric_spec, unit))
                    )
                if value_at(numeric_spec, key.path) is not None:
                    set_value(numeric_spec, factor, None)
        return numeric_spec

    def config_of(self, spec: Mapping[str, Any], architecture: str) -> dict[str, Any]:
        """Return the configuration of a spec, without checking that it expresses everything."""
        config: dict[str, Any] = {"model_type": self.kind, "architectures": [architecture], **self.fixed}
        for key in self.keys:
            value = value_at(spec, key.path)
            hf_values = {value_here: hf_value for hf_value, value_here in reversed(list((key.values or {}).items()))}
            config[key.hf_name] = key.write(value) if key.values is None else hf_values.get(value, value)
        self.write(spec, config)
        return config

    def canonical_name(self, name: str, architecture: str) -> str:
        """Return the name of a tensor in the whole model, from that in a class or in an older file."""
        name = self.architecture(architecture).prefix + name
        for older, now in self.renamed.items():
            name = name.replace(older, now)
        return name

    def architecture(self, name: str) -> Architecture:
        """Return the class `name` of the family."""
        if name not in self.architectures:
            message = f"`{name}` is an unknown class of the family `{self.kind}`"
            raise SpecError(
                Problem(
                    code="unknown-architecture",
                    path="architectures",
                    message=message,
                    valid=join_names(self.architectures),
                )
            )
        return self.architectures[name]


class Move(NamedTuple):
    """Mapping of one parameter to a tensor of the original model."""

    parameter: str
    hf_name: str
    transposed: bool = False  # the original matrix is transposed
    part: int = 0  # index of the part,
    parts: int = 1  # of this many equal parts along the first dimension
    tied_names: tuple[str, ...] = ()  # further names of the same tensor
    hf_shape: tuple[int, ...] = ()  # original shape, if it has more dimensions
    hf_alternative: str = ""  # alternative name; read, but never written
    interleaved: int = 1  # number of times that the parts interleave (DeBERTa: once for each head)
