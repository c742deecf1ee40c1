"""Dropout of a model in training: its rates are those of the spec, and it keeps the mean of an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paribus.assembly.devices import generator_state
from paribus.evidence.leaks import ModelPass
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

DROPOUT: Final = "has another dropout"
DROPOUTS: Final = (functional.dropout, functional.dropout1d, functional.dropout2d, functional.alpha_dropout)
UNIFORM: Final = (torch.rand, torch.rand_like, Tensor.uniform_)
BERNOULLI: Final = (torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_)
EXAMPLES: Final = 3  # of a batch
KEPT: Final = (1 - 1e-6, 0.0)  # uniform draws above or below any rate: one of them keeps everything


@final
class _FixedDropout(TorchFunctionMode):
    """Replaces torch's dropout by its mean, the input, and collects its rates. `uniform` replaces uniform draws."""

    def __init__(self, uniform: float | None = None) -> None:
        super().__init__()
        self.rates: set[float] = set()
        self.drops_twice = False
        self.batches: set[int] = set()  # sizes of the first axis of what is dropped
        self._dropped: list[Tensor] = []
        self._uniform = uniform

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            if given.get("training", True) and given.get("p", 0.5):
                self.rates.add(float(given.get("p", 0.5)))
                self.drops_twice |= any(tensor is given["input"] for tensor in self._dropped)
                kept = given["input"].view_as(given["input"])  # another object, to tell it from its input
                self._dropped.append(kept)
                self.batches |= {len(kept)} if kept.ndim > 2 else set()
                return kept
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
    elif fixed.drops_twice:
        yield DROPOUT, "it is applied to the same tensor twice"
    elif is_other and not all(differs(_FixedDropout(value)) for value in KEPT):
        # By hand: where it keeps everything, an output that is scaled as it should be is larger.
        yield DROPOUT, "it does not divide what it keeps by 1 - rate"
    elif (is_other and _is_equal_for_all(forward, example)) or _drops_for_all(forward, example):
        yield DROPOUT, "all examples of a batch lose the same"


def _is_equal_for_all(forward: ModelPass, example: Batch) -> bool:
    """Return whether dropout by hand takes the same from all examples of a batch."""
    with _FixedDropout():
        hidden = forward.hidden(example.rows([0] * EXAMPLES))
    one, other = ({path: state[row : row + 1] for path, state in hidden.items()} for row in (0, 1))
    return not forward.differs(one, other, example)


def _drops_for_all(forward: ModelPass, example: Batch) -> bool:
    """Return whether torch's dropout gets a tensor that all examples of a batch share."""
    fixed = _FixedDropout()
    with fixed:
        forward.hidden(example.rows([0] * EXAMPLES))
    return any(size % EXAMPLES for size in fixed.batches)


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
