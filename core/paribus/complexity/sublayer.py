"""One attention alone, in a stack of one layer, at any length and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from paribus.assembly.components import make
from paribus.assembly.initialise import initialise
from paribus.errors import Problem, SpecError
from paribus.kernels import KERNELS
from paribus.parts.batch import TokenLayout
from paribus.parts.shape import Shape
from paribus.parts.stack import Layer, Stack
from paribus.registry import Registry
from paribus.schema import AtMost, Divides, Option
from paribus.slots.attention import Attention
from paribus.slots.initialisation import Initialisation
from paribus.slots.position import Position
from paribus.specs import resolved
from paribus.specs.fields import NO_POSITION
from paribus.specs.yaml_reader import read_yaml

SPAN: Final = 64  # of a window, a block or a rank that has no default
BASES: Final = {False: "encoder-tiny", True: "gpt-tiny"}  # presets that an attention is validated in


class Size(NamedTuple):
    """Size of a place: n tokens of width d in h heads, in a causal stack or not, and the number of its layer."""

    length: int
    width: int
    heads: int
    causal: bool = False
    layer: int = 0

    @property
    def shape(self) -> Shape:
        head_width = self.width // self.heads
        layers = self.layer + 1
        return Shape(self.width, self.heads, head_width, self.length, 2, layers, self.layer, causal=self.causal)


@final
@dataclass(frozen=True)
class Candidate:
    """An attention with its options."""

    label: str  # the name, and the options that were set
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, **options: Any) -> Candidate:
        """Return the attention with other options."""
        return Candidate(self.label, self.name, {**self.options, **options})


def candidates(registry: Registry, words: Sequence[str]) -> list[Candidate]:
    """Return the attentions of the words, `mha` or `{name: restricted, window: 128}`; all of them without words.

    An option without a default that is limited by the length, such as a window, is 64; another one is its example.
    """
    given = [_read(word) for word in words] if words else [(name, {}) for name in registry.index.entries["attention"]]
    problems: list[Problem] = []
    result: list[Candidate] = []
    for name, options in given:
        try:
            entry = registry.index.find("attention", name)
        except SpecError as error:
            problems += error.problems
            continue
        samples = {
            option.name: SPAN if is_limited_by_length(option) else option.sample
            for option in entry.options
            if option.required
        }
        set_options = ", ".join(f"{key} {value}" for key, value in options.items())
        label = f"{name} ({set_options})" if set_options else name
        result.append(Candidate(label, name, {**samples, **options}))
    if problems:
        raise SpecError(*problems)
    return list({candidate.label: candidate for candidate in result}.values())


def _read(word: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of an argument."""
    tree = read_yaml(word, "argument", lines=False)
    if tree.problems:
        raise SpecError(*tree.problems)
    if isinstance(tree.data, dict) and isinstance(tree.data.get("name"), str):
        return tree.data["name"], {key: value for key, value in tree.data.items() if key != "name"}
    return word, {}


def is_limited_by_length(option: Option) -> bool:
    return any(isinstance(limit, AtMost) and limit.dim == "length" for limit in option.limits)


def is_limited_by_heads(option: Option) -> bool:
    return any(isinstance(limit, Divides) and limit.dim == "heads" for limit in option.limits)


def node_of(registry: Registry, candidate: Candidate, size: Size) -> dict[str, Any]:
    """Return the node of an attention with all of its options, or raise an error if it does not fit the size."""
    dims = {"width": size.width, "heads": size.heads, "length": size.length, "head_width": None}
    base = resolved(BASES[size.causal], f"position={NO_POSITION}", registry=registry)
    attention = {"name": candidate.name, **candidate.options}
    spec = resolved({**base, "dims": {**base["dims"], **dims}, "attention": attention}, registry=registry)
    node: dict[str, Any] = spec["attention"]
    return node


def attention_of(registry: Registry, node: Mapping[str, Any], size: Size) -> Attention:
    """Return an attention without storage, whose cost can be computed."""
    with torch.device("meta"):
        return make(registry, "attention", node, size.shape, kind=Attention)


def stack_of(registry: Registry, node: Mapping[str, Any], size: Size) -> Stack:
    """Return a stack of one layer without storage that has only an attention."""
    shape = size.shape
    with torch.device("meta"):
        layer = Layer(
            attention=make(registry, "attention", node, shape, kind=Attention),
            feedforward=None,
            placement=None,
            dropout=0.0,
        )
        position = make(registry, "position", {"name": NO_POSITION}, shape, kind=Position)
        return Stack(shape, [layer], [position], [(position, None)], None, KERNELS).eval()


def with_weights(stack: Stack, registry: Registry) -> Stack:
    """Give a stack the initial weights of the preset."""
    spec = resolved(BASES[stack.shape.causal], registry=registry)
    initialise({"body": stack}, make(registry, "initialisation", spec["initialisation"], kind=Initialisation), seed=0)
    return stack


def layout_of(length: int, device: str | torch.device = "cpu") -> TokenLayout:
    return TokenLayout(torch.arange(length, device=device).unsqueeze(0))


def forward(stack: Stack, x: Tensor) -> Tensor:
    """Return the output of the attention: (B, T, D) -> (B, T, D)."""
    return stack(x, layout_of(x.shape[1], x.device)).hidden  # type: ignore[no-any-return]  # nn.Module calls are untyped
