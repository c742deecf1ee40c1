"""How layers run in training: compiled by `torch.compile` (`trainer.compile`), with activations that are computed again
in the backward pass (`trainer.activation_checkpointing`), both, or neither.

Each layer is compiled by itself, so that compilation takes as long for 48 layers as for one: layers that are alike
share a graph. The head of a cross-entropy is compiled with its loss. The embedding is not compiled, nor are evaluation
and decoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from paribus.errors import Problem, SpecError
from paribus.models.lightning_module import Model
from paribus.parts.chunked_loss import LossCall, head_loss
from paribus.parts.matrix_recurrence import uses_kernel
from paribus.parts.stack import CompiledCall, Layer, call_layer
from paribus.specs.fields import ACTIVATION_CHECKPOINTING
from paribus.specs.trainer_options import uses_sharding

GRAPHS_PER_LAYER: Final = 8  # recompilations, which torch counts over all layers: lengths, document masks, dtypes
CUDA_GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")
DISABLED: Final = "trainer.compile=false"
_NO_COMPILER: Final = ("InvalidCxxCompiler", "No working C++ compiler", "Python.h", "Cannot find a working triton")
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class ConfiguredLayers(NamedTuple):
    """Result of `configure_layers`."""

    compiled: int  # number of layers
    losses: int = 0  # number of objectives whose cross-entropy, if they compute one, is compiled
    note: str = ""  # which layers are not compiled although the spec demands it


def is_compiled(trainer: Mapping[str, Any] | None, device: torch.device) -> bool:
    """Return True if a trial compiles its layers: as `compile` says, and by default on CUDA unless they are sharded."""
    options = trainer or {}
    requested = options.get("compile")
    return device.type == "cuda" and not uses_sharding(options) if requested is None else requested is not False


def uses_cuda_graphs(trainer: Mapping[str, Any] | None) -> bool:
    """Return True if the mode of compilation records CUDA graphs."""
    options = (trainer or {}).get("compile")
    return isinstance(options, Mapping) and options.get("mode") in CUDA_GRAPH_MODES


def accumulated_batches(trainer: Mapping[str, Any] | None) -> int:
    return int((trainer or {}).get("accumulate_grad_batches") or 1)


def configure_layers(model: Model, trainer: Mapping[str, Any] | None, device: torch.device) -> ConfiguredLayers:
    """Set how the layers and losses of a model run in training; they are compiled as far as their components compile.

    Where the spec demands compilation, a graph break is an error; by default it only makes the layer slower. Kernels of
    linear recurrences are always a break.
    """
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    for layer in layers:
        layer.compiled = None
        layer.recomputes = bool((trainer or {}).get(ACTIVATION_CHECKPOINTING.name))
    model.compiled_losses = {}
    if not is_compiled(trainer, device):
        return ConfiguredLayers(0)
    options = (trainer or {}).get("compile")
    chosen = [layer for layer in layers if _compiles(layer)]
    import torch._dynamo
    import torch._inductor.config

    if device.type == "cpu":  # no thread pool, after which no process of a data worker could be forked
        torch._inductor.config.compile_threads = 1
    limit = GRAPHS_PER_LAYER * max(1, len(chosen))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    given = dict(options) if isinstance(options, Mapping) else {}
    if uses_cuda_graphs(trainer):
        # A graph writes its outputs to the same memory each time. Between the forward and the backward pass of the
        # layers, the head runs a backward pass for each chunk; between two micro-batches, gradients are kept.
        head_mode = {key: value for key, value in given.items() if key != "mode"}
        given = head_mode if accumulated_batches(trainer) > 1 else given
    else:
        head_mode = given
    has_breaks = any(uses_kernel(module, device) for layer in chosen for module in layer.modules())
    call: CompiledCall = torch.compile(call_layer, fullgraph=options is not None and not has_breaks, **given)
    for layer in chosen:
        layer.compiled = call
    objectives = [name for name in model.trained if _compiles(model.objective(name))]
    if _compiles(model.topology.embedding):
        loss: LossCall = torch.compile(head_loss, fullgraph=options is not None, **head_mode)
        model.compiled_losses = dict.fromkeys(objectives, loss)
    note = ""
    if options is not None and len(chosen) < len(layers):
        note = f"{len(layers) - len(chosen)} of {len(layers)} layers are not compiled: a component does not compile"
    elif options is not None and not layers:
        note = "no layer is compiled: this topology has no stack of layers"
    return ConfiguredLayers(len(chosen), len(model.compiled_losses), note)


def is_compiled_in_part(model: Model) -> bool:
    """Return True if a layer or a loss of the model is compiled."""
    is_any_layer = any(isinstance(module, Layer) and module.compiled is not None for module in model.modules())
    return is_any_layer or bool(model.compiled_losses)


def _compiles(component: nn.Module) -> bool:
    """Return True unless a component, or one within it, declares that it does not compile."""
    return all(getattr(module, "traits", {}).get("compiles", True) for module in component.modules())


@contextmanager
def report_compile_errors() -> Iterator[None]:
    """Raise errors of `torch.compile` as problems of `trainer.compile`."""
    try:
        yield
    except RuntimeError as error:
        if not any(base.__module__.startswith(("torch._dynamo", "torch._inductor")) for base in type(error).__mro__):
            raise
        raise SpecError(_problem(error)) from error


def _problem(error: Exception) -> Problem:
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if any(sign in text for sign in _NO_COMPILER):
        message = f"torch.compile found no working compiler: {reason}"
        hint = "a C++ compiler and Python's headers (Debian: g++ and python3-dev)"
        return Problem(code="cannot-compile", path="trainer.compile", message=message, valid=f"{hint}, or {DISABLED}")
    frames = [match for match in _FRAME.finditer(text) if "/torch/" not in match["file"]]
    place = f" at {frames[-1]['file']}:{frames[-1]['line']}" if frames else ""
    message = f"torch.compile cannot compile the model{place}: {reason}"
    valid = f'{DISABLED}, or a component with `traits = {{"compiles": False}}`, whose layers are not compiled'
    return Problem(code="cannot-compile", path="trainer.compile", message=message, valid=valid)
