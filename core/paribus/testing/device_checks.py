"""Check that a component runs on an accelerator, which a simulated one stands for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from paribus.assembly.devices import move_batch
from paribus.models.evaluate import compute_metrics
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.parts.batch import Batch
from paribus.specs.components import components_of
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.simulated_device import NAME, SimulatedDevice, simulated_device, unavailable_reason
from paribus.testing.small_model import tokens
from paribus.testing.training_checks import model_and_data

TOLERANCE: Final = 1e-6  # relative to the largest value, in float64; kernels sum in another order
CHUNKS: Final = (5, 1, 1, 3)  # tokens of each step of decoding
STEPS: Final = 3


class DeviceResults(NamedTuple):
    """Results of training steps, an evaluation and decoding, on the CPU."""

    losses: Tensor
    gradients: Tensor  # of the first step, all in one
    evaluation: Tensor
    decoded: Tensor


def accelerator(case: Case, host: HostModel) -> Verdict:
    """On a simulated accelerator, training, evaluation and decoding equal those on a CPU; a step never waits for it.

    The trait `waits` declares a component that reads values of the device in each step.
    """
    if unavailable_reason():
        return DOES_NOT_APPLY
    built = model_and_data(case, HostModel(host.label, {**host.spec, "dropout": 0.0}))
    if built is None:
        return DOES_NOT_APPLY
    (model, data), decodes = built, case.small_model(host).body.causal and case.all_attentions_declare(host, "decodes")
    model.double()
    replica, batch, evaluated = copy.deepcopy(model), data.step(0), data.validation_batch(0)
    if model.teacher is not None:
        replica.set_teacher(copy.deepcopy(model.teacher))
    replica.loss(batch)  # what a component caches on the CPU must not be used on another device
    expected = _results(model, batch, evaluated, decodes=decodes)
    with simulated_device() as device:
        results = _results(replica.to(NAME), batch, evaluated, decodes=decodes, device=device)
    for name, value in expected._asdict().items():
        difference = _difference(getattr(results, name), value)
        if not difference <= TOLERANCE:
            return (
                f"on an accelerator, the {name} differ from those on a CPU by {difference:.2g} of the largest value; "
                f"expected at most {TOLERANCE:.0g}. Usual cause: code that depends on the device, or reads memory that "
                "a copy has not filled yet"
            )
    names = components_of(host.spec, case.registry.index)
    if any(case.registry.index.find(slot, name).traits.get("waits", False) for slot, name in names):
        return HOLDS
    if device.waits:
        return (
            f"a training step waits for the device {len(device.waits)} times, first at {device.waits[0]}. On a GPU, "
            "nothing is queued meanwhile; keep the value on the device, or declare the trait `waits`"
        )
    return HOLDS


def _results(
    model: Model, batch: Batch, evaluated: Batch, *, decodes: bool, device: SimulatedDevice | None = None
) -> DeviceResults:
    """Run a model where it is. The waits of the last training step stay in `device`."""
    optimizer = build_optimizer(model.optimizer, model.train())
    batch = move_batch(batch, model.device)
    losses, gradients = list[Tensor](), list[Tensor]()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        for step in range(STEPS):
            if device is not None:
                device.waits.clear()
            loss = model.loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if step == 0:
                gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    waits = [] if device is None else list(device.waits)
    with torch.no_grad():
        metrics: Mapping[str, float] = compute_metrics(model.eval(), [evaluated])
        decoded = _decoded(model) if decodes else torch.zeros(0)
    results = DeviceResults(
        torch.stack(losses).cpu(), torch.cat(gradients).cpu(), torch.tensor(list(metrics.values())), decoded.cpu()
    )
    if device is not None:
        device.waits[:] = waits
    return results


def _decoded(model: Model) -> Tensor:
    """Return the hidden states of tokens that are decoded in chunks."""
    device = model.device
    states = model.start(2, sum(CHUNKS))
    body = next(part for part in model.topology.parts if part.path == "body")
    source = None if body.cross is None else tokens(2, 6, "source").to(device)
    chunks = tokens(2, sum(CHUNKS)).to(device).split(CHUNKS, dim=1)
    return torch.cat([model.hidden(chunk, states, source=source) for chunk in chunks], dim=1)


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value; infinite if one of them is not finite."""
    if one.shape != other.shape:
        return float("inf")
    if not other.numel():
        return 0.0
    difference = (one - other).nan_to_num(0.0).abs().max() / other.nan_to_num(0.0).abs().max().clamp(min=1e-12)
    same_finite = torch.equal(one.isfinite(), other.isfinite())
    return float(difference) if same_finite else float("inf")
