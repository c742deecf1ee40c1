"""Checks of training steps for a fairness certificate: repeatability, tensors that are changed, and target counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from paribus.assembly.components import Classes
from paribus.datamodule.data import Data
from paribus.evidence.digests import DIGEST_LENGTH, chain_digest, unscaled_rates
from paribus.evidence.leaks import Context
from paribus.evidence.model_properties import broken_properties, trained_faults
from paribus.evidence.objective_properties import example_faults
from paribus.evidence.optimizer_properties import optimizer_faults
from paribus.evidence.parameter_bits import parameter_bits
from paribus.evidence.process_state import global_generators, process_settings
from paribus.evidence.property_names import UNCHECKED
from paribus.evidence.repeated_step import repeat_step, repetition_faults
from paribus.evidence.saved_model_check import saved_model_faults
from paribus.models.distributed import is_sharded
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import LRSchedulerConfig

OPTIMIZER_HOOKS: Final = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
MODULE_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
ALL_MODULES: Final = "all modules"


@final
class StepChecks:
    """Results of the checks, saved in checkpoints."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.first_step: dict[str, Any] = {}
        self.properties: dict[str, str] | None = None  # that the model lacks, where they are checked
        self.changed: set[str] = set()  # parameters that changed outside of the optimizer's steps
        self.hooked: set[str] = set()  # parameters and modules with hooks, which may change gradients and outputs
        self.generators: set[str] = set()  # generators that a step uses and must not
        self.settings: set[str] = set()  # settings of the process that a step changes
        self.training: dict[str, dict[str, float]] = {}  # targets up to a step, by loss term
        self.evaluation: dict[str, float] = {}  # targets of the last evaluation, by loss term
        self.rates: dict[str, str] = {}  # digests of the learning rates up to a step
        self.updates: int | None = None  # of the optimizer; counted in float16, where steps that overflow are skipped
        self._counter: Callable[..., None] | None = None  # the hook of an optimizer that counts its updates
        self._totals: dict[str, float] = {}
        self._bits: Tensor | None = None
        self._process: tuple[dict[str, object], dict[str, object]] | None = None  # generators and settings

    def to_json(self) -> dict[str, Any]:
        """Return what a record has of the checks."""
        return {
            "first_step": self.first_step,
            "changed_tensors": sorted(self.changed),
            "hooks": sorted(self.hooked),
            "generators": sorted(self.generators),
            "settings": sorted(self.settings),
            "rates": self.rates,
            "targets": {"training": self.training, "evaluation": self.evaluation},
            **({} if self.properties is None else {"properties": self.properties}),
        }

    def state(self) -> dict[str, Any]:
        return {**self.to_json(), "totals": self._totals, "updates": self.updates}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.first_step, self.changed = dict(state["first_step"]), set(state["changed_tensors"])
        self.properties = state.get("properties")
        self.hooked, self.generators = set(state.get("hooks", ())), set(state.get("generators", ()))
        self.settings = set(state.get("settings", ()))
        self.training = {step: dict(counts) for step, counts in state["targets"]["training"].items()}
        self.evaluation, self._totals = dict(state["targets"]["evaluation"]), dict(state["totals"])
        self.rates = dict(state.get("rates") or {})
        self.updates = state.get("updates")

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
        """Store the states of the generators that a forward pass must not use, and settings that it must not change."""
        self._process = global_generators(), process_settings()

    def end_forward(self, seed: int) -> None:
        """Collect what was used and changed since `begin_forward`, and all hooks; `seed` is that of the step."""
        if self._process is None:
            return
        generators, settings = self._process
        self.generators |= {name for name, state in global_generators().items() if state != generators[name]}
        self.settings |= {name for name, value in process_settings().items() if value != settings[name]}
        self.generators |= {"torch, seeded"} if torch.initial_seed() != seed else set()
        self.hooked |= hooked_paths(self.model)
        self._process = None

    def check_optimizer(self, optimizer: torch.optim.Optimizer, schedulers: Sequence[LRSchedulerConfig]) -> None:
        """Collect hooks of an optimizer, and learning rates that its schedule has not set."""
        pre, post = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        if any(hook is not self._counter for hook in (*pre.values(), *post.values())) or any(OPTIMIZER_HOOKS):
            self.hooked.add("optimizer")
        rates = [group["lr"] for group in optimizer.param_groups]
        if any(list(config.scheduler.get_last_lr()) != rates for config in schedulers):
            self.hooked.add("learning rate")

    def digest_rates(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Store a digest of the learning rates at this and all earlier checked steps."""
        previous = self.rates[max(self.rates, key=int)] if self.rates else ""
        self.rates[str(step)] = chain_digest(previous, " ".join(unscaled_rates(optimizer)))[:DIGEST_LENGTH]

    def count_updates(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Count the updates of an optimizer from `step` on; those before it count as made if nothing counted them."""
        self.updates = step if self.updates is None else self.updates

        def count(*_: object) -> None:
            self.updates = (self.updates or 0) + 1

        self._counter = count
        optimizer.register_step_post_hook(count)

    def count_targets(self, step: int, counts: Mapping[str, float], *, is_last: bool) -> None:
        """Add the targets of one step."""
        for name, count in counts.items():
            self._totals[name] = self._totals.get(name, 0) + _plain(count)
        if is_last or step & (step - 1) == 0:
            self.training[str(step)] = dict(self._totals)

    def count_evaluated(self, counts: Mapping[str, Tensor]) -> None:
        """Set the targets of the last evaluation."""
        self.evaluation = {name: _plain(float(count)) for name, count in counts.items()}

    def repeat(self, batch: Batch, context: Context) -> None:
        """Repeat the first step, unless the model cannot be copied."""
        try:
            self.first_step = repeat_step(self.model, batch, context)
        except Exception as error:  # of any component; training itself reports errors of a step
            self.first_step = {UNCHECKED: _summary(error)}

    def check_properties(self, classes: Classes, data: Data, batch: Batch, context: Context) -> None:
        """Check what the components promise, each as far as it does not fail: training itself reports errors."""
        self.properties = {}
        checks: tuple[Callable[[], dict[str, str]], ...] = (
            lambda: broken_properties(self.model, classes, data.encoded.vocabulary, batch, context),
            lambda: dict(example_faults(data)),
            lambda: dict(optimizer_faults(self.model)),
        )
        for check in checks:
            self._add_faults(check)

    def check_trained(self, batch: Batch, context: Context) -> None:
        """Check what the trained model reads, and whether a step can still be repeated."""
        self._add_faults(lambda: trained_faults(self.model, batch, context))
        self._add_faults(lambda: repetition_faults(self.model, batch, context))

    def check_saved(self, data: Data, classes: Registry, weights: Path) -> None:
        """Check that the saved weights, loaded in a new process, give the trained model."""
        self._add_faults(lambda: dict(saved_model_faults(self.model, data, classes, weights)))

    def _add_faults(self, check: Callable[[], dict[str, str]]) -> None:
        try:
            faults = check()
        except Exception as error:  # as above
            faults = {UNCHECKED: _summary(error)}
        self.properties = {**faults, **(self.properties or {})}


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


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
