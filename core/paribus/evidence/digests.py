"""Digests that show that two trials differ in the varied options and in nothing else.

They are taken in `train`: by `trial` before the first step, by `trial_callback` at each step, by `trial_result` at the
end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paribus.assembly.cost import model_cost
from paribus.datamodule.data import VALIDATION, Data, share_of
from paribus.hookspecs import SLOTS
from paribus.models.evaluate import to_device
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import FACTORS
from paribus.parts.batch import Batch
from paribus.parts.random_draws import Draw
from paribus.slots.initialisation import OptimizerFactors, ParameterInfo
from paribus.storage.atomic import digest_json

DIGEST_LENGTH = 16  # hexadecimal digits of a digest that is only compared for equality
DIGESTED_EXAMPLES = 8  # validation examples in the digest
MAX_DIGEST_FLOPS = 10**11  # of a forward pass; some seconds of one thread
FEW_EXAMPLES = 2
ROUNDED_DIGITS = 9  # of an option that is divided by a factor


def initial_tensors(model: Model) -> dict[str, dict[str, Any]]:
    """Describe each parameter before the first step: its random draws, its initialisation, and its values.

    A scale changes every value and no sign, so equal draws with different scales have equal `signs`.
    """
    tensors: dict[str, dict[str, Any]] = {}
    named = dict(model.named_parameters(remove_duplicate=False))
    for path, info in model.parameter_info.items():
        origin = _origin(model, path)
        tensors[path] = {
            "shape": list(info.shape),
            "origin": origin,
            "draws": digest_json([origin or model.seed, path, list(info.shape)])[:DIGEST_LENGTH],
            "initialisation": digest_json([_scheme(model), _initialisation_inputs(info)])[:DIGEST_LENGTH],
            "value": tensor_digest(named[path])[:DIGEST_LENGTH],
            "signs": _signs(named[path]),
        }
    for path, buffer in model.named_buffers():
        tensors[path] = _buffer(model, path, buffer)
    return tensors


def _initialisation_inputs(info: ParameterInfo) -> list[Any]:
    """Return what the initial values of a parameter depend on, besides its draws; biases start at 0."""
    *inputs, _ = info._replace(path="", shape=(), bias_of=None)
    return inputs


def _buffer(model: Model, path: str, buffer: Tensor) -> dict[str, Any]:
    """Describe a tensor that is computed and not trained, from the seed, its component and the dims."""
    slot = next((word for word in reversed(path.split(".")) if word in SLOTS), None)
    options = model.spec if slot is None else list(_nodes(model.spec, slot))
    shape = list(buffer.shape)
    return {
        "shape": shape,
        "origin": "",
        "draws": digest_json([model.seed, path, shape])[:DIGEST_LENGTH],
        "initialisation": digest_json([options, model.spec["dims"], model.spec["topology"]])[:DIGEST_LENGTH],
        "value": tensor_digest(buffer)[:DIGEST_LENGTH],
        "signs": "",
        "buffer": True,
    }


def _nodes(spec: Any, slot: str) -> Iterator[Any]:
    """Yield the components in a slot, at any depth of a spec."""
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        if key == slot:
            yield value
        else:
            yield from _nodes(value, slot)


def optimizer_options(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return a digest of each parameter's optimizer options, without the learning rate, which changes, and without the
    factors of the initialisation, which depend on the width.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    digests: dict[str, str] = {}
    for group in optimizer.param_groups:
        options = {key: str(value) for key, value in _unscaled(group).items() if key not in ("params", "lr")}
        digest = digest_json(options)[:DIGEST_LENGTH]
        digests |= {names[id(parameter)]: digest for parameter in group["params"] if id(parameter) in names}
    return digests


def unscaled_rates(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the learning rate of each group, without the factors of the initialisation."""
    rates: dict[int, tuple[bool, str]] = {}  # by the group that an optimizer formed: whether it is exact, and the rate
    for place, group in enumerate(optimizer.param_groups):
        index, factor, *_ = group.get(FACTORS, (place, 1.0))
        if index not in rates or (factor == 1.0 and not rates[index][0]):
            rates[index] = factor == 1.0, str(_unscaled(group)["lr"])
    return [rate for _, rate in rates.values()]


def _unscaled(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group without the factors of the initialisation, up to rounding."""
    plain = {key: value for key, value in group.items() if key != FACTORS}
    if FACTORS in group:
        factors = dict(zip(OptimizerFactors._fields, group[FACTORS][1:], strict=True))
        for key, factor in {**factors, "initial_lr": factors["lr"]}.items():
            if key in plain and factor != 1.0:
                plain[key] = float(f"{plain[key] / factor:.{ROUNDED_DIGITS}g}")
    return plain


def _origin(model: Model, path: str) -> str:
    """Return the saved model that a tensor comes from, and how it was converted; empty for drawn tensors."""
    conversion = model.transferred_tensors.get(path)
    return "" if conversion is None else f"{model.source_sha256[:DIGEST_LENGTH]} {conversion}"


def untrained_outputs_digest(model: Model, data: Data) -> str:
    """Return a digest of the untrained model's outputs; equal digests mean that a swap has no effect."""
    training = model.training
    model.eval()
    hashed = hashlib.sha256()
    with torch.no_grad():
        run = model.run(to_device(_digested_examples(model, data), model))
        for part in model.topology.parts:
            hashed.update(tensor_digest(run.output(part.path).hidden).encode())
        for name in model.evaluated:
            for term in model.objective(name)(run.of(name)).values():
                hashed.update(tensor_digest(term.total).encode())
    model.train(training)
    return hashed.hexdigest()


def _digested_examples(model: Model, data: Data) -> Batch:
    """Return the first validation batch, or two or three examples of it where a pass of one CPU thread takes long."""
    batch = data.validation_batch(0)
    flops = model_cost(model.assembled, model.spec["dims"]["length"]).flops * len(batch.index)
    if flops <= MAX_DIGEST_FLOPS:
        return batch
    return share_of(batch, 0, max(1, len(batch.index) // FEW_EXAMPLES))._replace(counts=None, micro_batches=1)


def validation_digest(data: Data) -> str:
    """Return a digest of the first validation examples, whatever the batch size."""
    index = torch.arange(min(DIGESTED_EXAMPLES, data.val_count))
    return batch_digest(data.val_examples.batch(Draw(0, VALIDATION, index)))


def batch_digest(batch: Batch) -> str:
    """Return a digest of all tensors of a batch."""
    hashed = hashlib.sha256()
    for name, tensor in _tensors(batch):
        hashed.update(name.encode())
        hashed.update(tensor_digest(tensor).encode())
    return hashed.hexdigest()


def chain_digest(previous: str, current: str) -> str:
    """Return the digest of a sequence that is extended by one item."""
    return hashlib.sha256(f"{previous}{current}".encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes."""
    hashed = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    hashed.update(_flat_values(tensor).data)
    return hashed.hexdigest()


def _flat_values(tensor: Tensor) -> NDArray[Any]:
    """Return the values of a tensor in one dimension, or their bytes if numpy does not have the type."""
    try:
        values: NDArray[Any] = tensor.numpy(force=True)
    except TypeError:  # bfloat16 and smaller
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return values.ravel()


def _signs(tensor: Tensor) -> str:
    """Return a digest of the signs; empty for a constant tensor, which is not drawn."""
    plain = tensor.detach().cpu().reshape(-1)
    if not plain.numel() or bool((plain == plain[0]).all()):
        return ""
    return hashlib.sha256(np.packbits(torch.signbit(plain).numpy()).data).hexdigest()[:DIGEST_LENGTH]


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    yield "index", batch.index
    for name, stream in sorted(batch.streams.items()):
        for field, tensor in zip(stream._fields, stream, strict=True):
            if tensor is not None:
                yield f"streams.{name}.{field}", tensor
    for name, targets in sorted(batch.targets.items()):
        for key, tensor in sorted(targets.items()):
            yield f"targets.{name}.{key}", tensor


def _scheme(model: Model) -> Any:
    return dict(model.spec["initialisation"])
