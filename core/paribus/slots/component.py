"""Base class of all components, with their traits and keyed draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, TypedDict

from paribus.parts.shape import Role

if TYPE_CHECKING:  # corpora and tokenizers need no torch
    from collections.abc import Callable

    import torch
    from torch import Tensor


class Traits(TypedDict, total=False):
    """Traits of a component of any slot; each slot with traits of its own extends it.

    Traits state what a component needs, provides and cannot be combined with. Values are literals: the component index
    stores them as JSON, so that specs are checked without an import of torch.
    """

    compiles: bool  # runs under torch.compile; default: True
    exact_gradients: bool  # gradients are those of the output; default: True (False: straight-through estimators)
    exact_conversions: bool  # weights that are converted to more parameters keep the output; default: True
    waits: bool  # in each step, the CPU waits for values from the device; default: False
    stochastic: bool  # draws noise in training, also with a dropout of 0; default: False


class KeyedDraws(Protocol):
    """Random draws for buffers that a component makes itself, keyed like the draws of parameters."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal float32 draws, keyed by (seed, path of the component, name)."""
        ...


class Component:
    """Base class of everything that fills a slot.

    The keyword-only parameters of `__init__` are the options of the component: each has a type, and an annotation with
    a one-line description and its limits. Positional parameters are injected by the engine; `injects` of the slot names
    them, and a component cannot declare others.
    """

    injects: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = {}
    roles: ClassVar[Mapping[str, Role]] = {}
    class_specific: ClassVar[bool] = (
        False  # whether its tensors mean nothing to another class, were they alike in all else
    )
    in_step: bool = False  # in the forward pass of a training step, and not while its activations are recomputed

    def prepare(self, keyed: KeyedDraws) -> None:
        """Make the buffers of the component. Called once, after all parameters are drawn."""

    def after_step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Update buffers after a step of the optimizer, from what forward passes with `in_step` have collected.

        `total` sums a tensor over the processes of a training; each calls it as often as the others. A persistent
        buffer is saved in checkpoints. What a component collects within a step is a plain attribute, reset here.
        """

    def float32_reason(self, device: torch.device, dtype: torch.dtype) -> str:
        """Return why the component computes in float32 under autocast to `dtype`; empty if it does not.

        `paribus summary` prints it. `AutocastOperation` returns it for an operation that this processor lacks.
        """
        return ""
