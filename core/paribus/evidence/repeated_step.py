"""Repetition of the first step in another process state, to see whether it depends on the spec and the seed only."""

from __future__ import annotations

import copy
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from paribus.assembly.devices import determinism_restored, generator_state, seed_generators
from paribus.datamodule.data import share_of
from paribus.errors import join_names
from paribus.evidence.digests import DIGEST_LENGTH, tensor_digest
from paribus.evidence.process_state import clock_shift, global_generators, process_state
from paribus.models.evaluate import evaluation_mode
from paribus.models.layers import configure_layers, is_compiled_in_part
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import HALF
from paribus.parts.batch import Batch
from paribus.random_keys import key32

NOT_REPEATABLE: Final = "takes other steps at another time"
REPEATED_EXAMPLES: Final = 2  # of the first step, or 3: every n-th one
TENSOR_DIGITS: Final = 8  # hexadecimal, of the digest of one gradient
RELATIVE_TOLERANCE: Final = 1e-3  # on accelerators, some of whose sums have no fixed order
HALF_TOLERANCE: Final = 1e-2  # the same in bfloat16 or float16
SMALL_SHARE: Final = 0.01  # of the norm of all gradients: those that are zero but for rounding are much smaller


@final
class _Step(NamedTuple):
    """Result of a step on a copy of the model."""

    digests: Mapping[str, str]
    tensors: Mapping[str, str]  # digest of each gradient
    values: Mapping[str, Tensor]  # numbers by which two steps on an accelerator are compared, by the name of the digest
    tolerance: float  # relative, of these numbers
    generators: frozenset[str]  # generators that are read or seeded where they must not be
    draws: bool  # the forward pass in training draws from torch's generator, which has a seed of its own at each step


def repeat_step(model: Model, batch: Batch, context: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """Return digests of the first step of some examples, and what differs in another process state.

    The step is run on two copies of the model, with another clock and with other seeds of the generators of Python,
    numpy and torch. It may depend on the spec and the seed only. The second copy's gradients are returned by autograd
    and not accumulated, so code that writes to `.grad` in a backward pass makes a difference.

    On an accelerator, both use deterministic algorithms where torch has them, and a difference is one above rounding.
    """
    shares = max(1, len(batch.index) // REPEATED_EXAMPLES)
    examples = share_of(batch, 0, shares)._replace(counts=None, micro_batches=1)
    steps = []
    for seed, shift, differentiate in ((1, 0.0, _accumulated), (2, clock_shift(time.time()), _returned)):
        with process_state(seed, shift, model.device), _deterministic_algorithms(model.device):
            steps.append(_run(model, examples, context, differentiate))
    first, second = steps
    if model.device.type == "cpu":
        unrepeatable = [name for name, digest in first.digests.items() if digest != second.digests[name]]
    else:
        values = {name: (value, second.values[name]) for name, value in first.values.items()}
        unrepeatable = [name for name, pair in values.items() if _differs(*pair, first.tolerance)]
    return {
        **first.digests,
        "tensors": first.tensors,
        "unrepeatable": unrepeatable,
        "generators": sorted(first.generators | second.generators),
        "draws": first.draws,
    }


def repetition_faults(model: Model, batch: Batch, context: Callable[[], AbstractContextManager[Any]]) -> dict[str, str]:
    """Return what differs if a step of a trained model is repeated: it may have begun to read a clock."""
    differing = repeat_step(model, batch, context)["unrepeatable"]
    if not differing:
        return {}
    return {NOT_REPEATABLE: f"other {join_names(differing)} after training, with another clock and other global seeds"}


@contextmanager
def _deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms of an accelerator for the block, without a warning where torch has none."""
    if device.type == "cpu":
        yield
        return
    with determinism_restored(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*determinis", UserWarning)
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield


Gradients = dict[str, Tensor | None]  # by parameter


def _accumulated(loss: Tensor, model: Model) -> Gradients:
    """Return gradients as a training step computes them."""
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _returned(loss: Tensor, model: Model) -> Gradients:
    """Return gradients that nothing can change after autograd has computed them."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {**dict.fromkeys(dict(model.named_parameters())), **dict(zip(trained, gradients, strict=True))}


def _run(
    model: Model,
    batch: Batch,
    context: Callable[[], AbstractContextManager[Any]],
    differentiate: Callable[[Tensor, Model], Gradients],
) -> _Step:
    """Run forward and backward pass in training, and a forward pass in evaluation, on a copy of the model."""
    replica, device = _copied(model), model.device
    configure_layers(replica, {"compile": False}, device)  # the components' own code is checked, for any batch
    seed = key32(model.seed, "step", 0, 0)
    seed_generators(seed, device)
    before = _generators(device)
    with torch.enable_grad(), context():
        loss = replica.train().loss(batch)
        gradients = differentiate(loss, replica)
        is_half = torch.is_autocast_enabled(device.type) or any(tensor.dtype in HALF for tensor in replica.parameters())
    after = _generators(device)
    with evaluation_mode(replica), context():
        terms = replica.terms(replica.run(batch, replica.trained), replica.trained)
    evaluated = _generators(device)
    used = {name for name in ("python", "numpy") if evaluated[name] != before[name]}
    used |= {"torch, in evaluation"} if evaluated["torch"] != after["torch"] else set()
    used |= {"torch, seeded"} if torch.initial_seed() != seed else set()
    tensors = {name: _gradient_digest(gradient) for name, gradient in gradients.items()}
    whole = hashlib.sha256()
    for name, digest in sorted(tensors.items()):
        whole.update(f"{name} {digest}".encode())
    totals = torch.stack([term.total.detach().double() for term in terms.values()])
    digests = {
        "loss": tensor_digest(loss)[:DIGEST_LENGTH],
        "gradients": whole.hexdigest()[:DIGEST_LENGTH],
        "evaluation": tensor_digest(totals)[:DIGEST_LENGTH],
    }
    values: dict[str, Tensor] = {"loss": loss.detach().double(), "evaluation": totals}
    if device.type != "cpu":
        values["gradients"] = gradient_projections(gradients, device)
    short = {name: digest[:TENSOR_DIGITS] for name, digest in tensors.items()}
    tolerance = HALF_TOLERANCE if is_half else RELATIVE_TOLERANCE
    return _Step(digests, short, values, tolerance, frozenset(used), before["torch"] != after["torch"])


def _differs(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Return True if numbers differ by more than rounding.

    Projections of gradients, (number of gradients, 2), are compared relative to the norm of their gradient, to which a
    small share of the norm of all is added: the gradient of a bias of keys is zero but for rounding.
    """
    scale = torch.maximum(one.abs(), other.abs())
    if one.dim() == 2:
        scale = scale.amax(-1, keepdim=True)
        scale = scale + SMALL_SHARE * scale.norm()
    return not bool(((one - other).abs() <= tolerance * scale).all())


def gradient_projections(gradients: Gradients, device: torch.device) -> Tensor:
    """Return the norm of each gradient, and its product with a vector of length 1 that is no multiple of it.

    They are (number of gradients, 2), and near those of gradients that differ by rounding.
    """
    projections = []
    for gradient in gradients.values():
        if gradient is None:
            projections.append(torch.zeros(2, dtype=torch.float64, device=device))
            continue
        values = (gradient.to_dense() if gradient.is_sparse else gradient).flatten().double()
        weights = torch.arange(len(values), device=values.device, dtype=torch.float64).cos()
        projections.append(torch.stack([values.norm(), values @ weights / weights.norm()]))
    return torch.stack(projections)


def _gradient_digest(gradient: Tensor | None) -> str:
    if gradient is None:
        return "-"
    return tensor_digest(gradient.to_dense() if gradient.is_sparse else gradient)


def _copied(model: Model) -> Model:
    """Return a copy of a model with its Python state; whatever it does not change is shared."""
    shared = (vars(model).get("_trainer"), model.teacher, model.text, model.clock, model.spec)
    replica: Model = copy.deepcopy(model, {id(item): item for item in shared if item is not None})
    replica.zero_grad(set_to_none=True)
    return replica


def compile_step(model: Model, batch: Batch, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Take a step on a copy of a compiled model, so that the first step need not wait for the compiler."""
    if is_compiled_in_part(model):
        with process_state(1, 0.0, model.device), torch.enable_grad(), context():
            _copied(model).train().loss(batch).backward()


def _generators(device: torch.device) -> dict[str, object]:
    """Return the states of the global generators, that of torch as a digest."""
    states = [torch.get_rng_state(), generator_state(device)]
    return {**global_generators(), "torch": "".join(tensor_digest(state) for state in states if state is not None)}
