"""Checks of training steps for a fairness certificate: repeatability, tensors that are changed, and target counts."""

from __future__ import annotations

import copy
import hashlib
import pickle
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.devices import fork_generators, generator_state, seed_generators
from paribus.datamodule.data import share_of
from paribus.evidence.digests import DIGEST_LENGTH, tensor_digest
from paribus.models.distributed import is_sharded
from paribus.models.evaluate import evaluation_mode
from paribus.models.layers import configure_layers, is_compiled_in_part
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.random_keys import key32

REPEATED_EXAMPLES: Final = 2  # of the first step, or 3: every n-th one
TENSOR_DIGITS: Final = 8  # hexadecimal, of the digest of one gradient
DAY: Final = 86400  # seconds
HOURS: Final = 5 * 3600 + 17 * 60 + 41.3  # in seconds
CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
RELATIVE_TOLERANCE: Final = 1e-3  # of losses on accelerators, which add up in any order
MODULE_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
ALL_MODULES: Final = "all modules"
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@final
class StepChecks:
    """Results of the checks, saved in checkpoints."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.first_step: dict[str, Any] = {}
        self.changed: set[str] = set()  # parameters that changed outside of the optimizer's steps
        self.hooked: set[str] = set()  # parameters and modules with hooks, which may change gradients and outputs
        self.generators: set[str] = set()  # generators that a step uses and must not
        self.training: dict[str, dict[str, float]] = {}  # targets up to a step, by loss term
        self.evaluation: dict[str, float] = {}  # targets of the last evaluation, by loss term
        self._totals: dict[str, float] = {}
        self._bits: Tensor | None = None
        self._generators: dict[str, object] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what a record has of the checks."""
        return {
            "first_step": self.first_step,
            "changed_tensors": sorted(self.changed),
            "hooks": sorted(self.hooked),
            "generators": sorted(self.generators),
            "targets": {"training": self.training, "evaluation": self.evaluation},
        }

    def state(self) -> dict[str, Any]:
        return {**self.to_json(), "totals": self._totals}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.first_step, self.changed = dict(state["first_step"]), set(state["changed_tensors"])
        self.hooked, self.generators = set(state.get("hooks", ())), set(state.get("generators", ()))
        self.training = {step: dict(counts) for step, counts in state["targets"]["training"].items()}
        self.evaluation, self._totals = dict(state["targets"]["evaluation"]), dict(state["totals"])

    def store_parameters(self) -> None:
        """Store the bits of all parameters, for `compare_parameters`."""
        self._bits = None if is_sharded(self.model) else parameter_bits(self.model)

    def compare_parameters(self) -> None:
        """Collect the parameters that changed since `store_parameters`, and forget what was stored."""
        if self._bits is not None:
            names = [name for name, _ in self.model.named_parameters()]
            differing = (parameter_bits(self.model) != self._bits.to(self.model.device)).tolist()
            self.changed.update(name for name, differs in zip(names, differing, strict=True) if differs)
        self._bits = None

    def begin_forward(self) -> None:
        """Store the states of the generators that a forward pass must not use."""
        self._generators = _global_generators()

    def end_forward(self, seed: int) -> None:
        """Collect the generators that were used since `begin_forward`, and all hooks; `seed` is that of the step."""
        if self._generators is None:
            return
        states = _global_generators()
        self.generators |= {name for name, state in states.items() if state != self._generators[name]}
        self.generators |= {"torch, seeded"} if torch.initial_seed() != seed else set()
        self.hooked |= hooked_paths(self.model)
        self._generators = None

    def count_targets(self, step: int, counts: Mapping[str, float], *, is_last: bool) -> None:
        """Add the targets of one step."""
        for name, count in counts.items():
            self._totals[name] = self._totals.get(name, 0) + _plain(count)
        if is_last or step & (step - 1) == 0:
            self.training[str(step)] = dict(self._totals)

    def count_evaluated(self, counts: Mapping[str, Tensor]) -> None:
        """Set the targets of the last evaluation."""
        self.evaluation = {name: _plain(float(count)) for name, count in counts.items()}

    def repeat(self, batch: Batch, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Repeat the first step, unless the model cannot be copied."""
        try:
            self.first_step = repeat_step(self.model, batch, context)
        except Exception as error:  # of any component; training itself reports errors of a step
            self.first_step = {"unchecked": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


def _plain(count: float) -> float:
    return int(count) if count.is_integer() else count


def hooked_paths(model: torch.nn.Module) -> set[str]:
    """Return the paths of parameters and modules with hooks."""
    hooked = {
        name
        for name, parameter in model.named_parameters()
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    }
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in MODULE_HOOKS):
            hooked.add(name or "model")
    if any(getattr(torch.nn.modules.module, f"_global{hooks}") for hooks in MODULE_HOOKS):
        hooked.add(ALL_MODULES)
    return hooked


def parameter_bits(model: torch.nn.Module) -> Tensor:
    """Return a checksum of the bits of each parameter, which depends on their order; comparable on one device."""
    tensors = [parameter.detach() for parameter in model.parameters()]
    return torch.stack([crc32(tensor) if tensor.device.type == "cpu" else sum_of_bits(tensor) for tensor in tensors])


def crc32(tensor: Tensor) -> Tensor:
    """Return the CRC-32 of a tensor on a CPU, where it takes a ninth of the time of `sum_of_bits`."""
    return torch.tensor(zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data))


def sum_of_bits(tensor: Tensor) -> Tensor:
    """Return a checksum of a tensor on any device, which need not be synchronized for it."""
    words = _WORDS[min(tensor.element_size(), 4)]  # a sum of larger ones loses their highest bit
    bits = tensor.contiguous().reshape(-1).view(words)
    count = max(1, tensor.shape[0]) if tensor.dim() else 1
    matrix = bits.reshape(count, bits.numel() // count)
    rows, columns = (matrix.sum(axis, dtype=torch.int64) for axis in (1, 0))
    weights = (torch.arange(1, len(sums) + 1, device=tensor.device) for sums in (rows, columns))
    return sum(
        ((sums * weight).sum() for sums, weight in zip((rows, columns), weights, strict=True)), rows.new_zeros(())
    )


# -- repetition of a step -----------------------------------------------------------------------------------------


@final
class _Step(NamedTuple):
    """Result of a step on a copy of the model."""

    digests: Mapping[str, str]
    tensors: Mapping[str, str]  # digest of each gradient
    values: Mapping[str, Tensor]  # numbers by which two steps on an accelerator are compared, by the name of the digest
    generators: frozenset[str]  # generators that are read or seeded where they must not be
    draws: bool  # the forward pass in training draws from torch's generator, which has a seed of its own at each step


def repeat_step(model: Model, batch: Batch, context: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """Return digests of the first step of some examples, and what differs in another process state.

    The step is run on two copies of the model, with another clock and with other seeds of the generators of Python,
    numpy and torch. It may depend on the spec and the seed only. The second copy's gradients are returned by autograd
    and not accumulated, so code that writes to `.grad` in a backward pass makes a difference.
    """
    shares = max(1, len(batch.index) // REPEATED_EXAMPLES)
    examples = share_of(batch, 0, shares)._replace(counts=None, micro_batches=1)
    steps = []
    for seed, shift, differentiate in ((1, 0.0, _accumulated), (2, clock_shift(time.time()), _returned)):
        with process_state(seed, shift, model.device):
            steps.append(_run(model, examples, context, differentiate))
    first, second = steps
    if model.device.type == "cpu":
        unrepeatable = [name for name, digest in first.digests.items() if digest != second.digests[name]]
    else:
        unrepeatable = [name for name in first.values if _differs(first.values[name], second.values[name])]
    return {
        **first.digests,
        "tensors": first.tensors,
        "unrepeatable": unrepeatable,
        "generators": sorted(first.generators | second.generators),
        "draws": first.draws,
    }


def clock_shift(now: float) -> float:
    """Return seconds to another hour, weekday and year, and to a date that is an odd number of days away."""
    return 1003 * DAY + (HOURS if now % DAY + HOURS < DAY else -HOURS)


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
    return _Step(digests, short, values, frozenset(used), before["torch"] != after["torch"])


def _differs(one: Tensor, other: Tensor) -> bool:
    """Return True if numbers differ by more than rounding, relative to the largest of their row."""
    largest = torch.maximum(one.abs(), other.abs())
    scale = largest.amax(-1, keepdim=True) if one.dim() == 2 else largest
    return not bool(((one - other).abs() <= RELATIVE_TOLERANCE * scale).all())


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
    return {**_global_generators(), "torch": "".join(tensor_digest(state) for state in states if state is not None)}


def _global_generators() -> dict[str, object]:
    """Return the states of the global generators of Python and numpy, which no step may use."""
    state = np.random.get_state(legacy=False)  # the global generator is what is checked
    return {"python": random.getstate(), "numpy": pickle.dumps(state)}


@contextmanager
def process_state(seed: int, seconds: float, device: torch.device) -> Iterator[None]:
    """Seed the global generators and advance the clocks of this thread for the block, and restore all of them."""
    python, numpy = random.getstate(), np.random.get_state()  # as above
    with fork_generators(device), advanced_clocks(seconds):
        random.seed(seed)
        np.random.seed(seed)  # as above
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # as above


@contextmanager
def advanced_clocks(seconds: float) -> Iterator[None]:
    """Advance the clocks of module `time` for this thread; others may check leases with them."""
    thread, originals = threading.get_ident(), {name: getattr(time, name) for name in CLOCKS}
    originals |= {f"{name}_ns": getattr(time, f"{name}_ns") for name in CLOCKS}

    def advanced(clock: Callable[[], float], shift: float) -> Callable[[], float]:
        return lambda: clock() + shift if threading.get_ident() == thread else clock()

    for name, clock in originals.items():
        setattr(time, name, advanced(clock, int(seconds * 1e9) if name.endswith("_ns") else seconds))
    try:
        yield
    finally:
        for name, clock in originals.items():
            setattr(time, name, clock)
