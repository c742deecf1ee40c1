"""Dropout of a model in training: its rates are those of the spec, and it keeps the mean of an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paribus.assembly.devices import generator_state
from paribus.evidence.token_access import ModelPass
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

DROPOUT: Final = "has another dropout"
DROPOUTS: Final = (functional.dropout, functional.dropout1d, functional.dropout2d, functional.alpha_dropout)
UNIFORM: Final = (torch.rand, torch.rand_like, Tensor.uniform_)
BERNOULLI: Final = (torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_)
KEPT: Final = (1 - 1e-6, 0.0)  # uniform draws above or below any rate: one of them keeps everything


@final
class _FixedDropout(TorchFunctionMode):
    """Replaces torch's dropout by its mean, the input, and collects its rates. `uniform` replaces uniform draws."""

    def __init__(self, uniform: float | None = None) -> None:
        super().__init__()
        self.rates: set[float] = set()
        self._uniform = uniform

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            if given.get("training", True):
                self.rates.add(float(given.get("p", 0.5)))
            return given["input"]
        if func is functional.scaled_dot_product_attention:
            given = (
                dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
            )
            self.rates.add(float(given.get("dropout_p", 0.0)))
            return func(**{**given, "dropout_p": 0.0})
        result = func(*args, **kwargs)
        if self._uniform is not None and func in UNIFORM:
            return result.fill_(self._uniform)
        return result.fill_(1) if self._uniform is not None and func in BERNOULLI else result


def dropout_faults(forward: ModelPass, example: Batch) -> Iterator[tuple[str, str]]:
    """Yield dropout at a rate that the spec does not name, and dropout that changes the mean of an output."""
    evaluated, states = forward.hidden(example), _generator_states(forward.model)
    forward.model.train()

    def differs(fixed: _FixedDropout) -> bool:
        with fixed:
            return forward.differs(evaluated, forward.hidden(example), example)

    fixed, spec = _FixedDropout(), forward.model.spec
    is_other = differs(fixed)
    if unnamed := sorted(fixed.rates - {0.0} - set(_named_rates(spec))):
        yield DROPOUT, f"its rate is {unnamed[0]:g}, where the spec has {spec['dropout']:g}"
    elif is_other and states == _generator_states(forward.model):
        yield DROPOUT, "where torch's dropout keeps everything, its output in training is not that in evaluation"
    elif is_other and not all(differs(_FixedDropout(value)) for value in KEPT):
        # By hand: where it keeps everything, an output that is scaled as it should be is larger.
        yield DROPOUT, "it does not divide what it keeps by 1 - rate"


def _generator_states(model: Model) -> list[bytes]:
    """Return the states of torch's generators on the CPU and on the device of a model."""
    states = (torch.get_rng_state(), generator_state(model.device))
    return [state.numpy(force=True).tobytes() for state in states if state is not None]


def _named_rates(node: Any, key: str = "") -> Iterator[float]:
    """Yield the numbers of a spec whose key names a dropout."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _named_rates(value, name)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _named_rates(value, key)
    elif isinstance(node, (int, float)) and "drop" in key:
        yield float(node)
