"""Updates of a model after each step of its optimizer, besides those of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from paribus.slots.component import Component
from paribus.slots.initialisation import ParameterInfo
from paribus.slots.placement import Placement


@final
class StepUpdates:
    """Components that update buffers, and weights whose vectors along the residual stream keep length 1."""

    def __init__(self, model: nn.Module) -> None:
        components = [module for module in model.modules() if isinstance(module, Component)]
        self._updated = [part for part in components if type(part).after_step is not Component.after_step]
        placements = [part for part in components if isinstance(part, Placement)]
        self._has_unit_weights = any(placement.traits.get("unit_weights", False) for placement in placements)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Let components collect what their updates need for the block: not while activations are recomputed."""
        for component in self._updated:
            component.in_step = True
        try:
            yield
        finally:
            for component in self._updated:
                component.in_step = False

    def finish_step(
        self, model: nn.Module, described: Mapping[str, ParameterInfo], total: Callable[[Tensor], Tensor]
    ) -> None:
        """Scale weights and update components; `total` sums a tensor over all processes."""
        if self._has_unit_weights:
            for path, info in described.items():
                if info.stream_axis is not None:
                    scale_to_unit_norm(model.get_parameter(path), info.stream_axis)
        for component in self._updated:
            component.after_step(total)


@torch.no_grad()
def scale_to_unit_norm(parameter: nn.Parameter, axis: int) -> None:
    """Divide the vectors of a parameter along an axis by their lengths, unless it is frozen."""
    if parameter.requires_grad:
        length = torch.linalg.vector_norm(parameter, dim=axis, keepdim=True)
        parameter.div_(length.clamp(min=torch.finfo(length.dtype).tiny))
