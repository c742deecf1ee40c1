"""Digests by which two trials are shown to differ in what was varied and in nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paribus.hookspecs import SLOTS
from paribus.parts.batch import Batch
from paribus.parts.draw import Draw
from paribus.storage.atomic import digest_json
from paribus.train.data import VALIDATION, Data
from paribus.train.evaluate import to_device
from paribus.train.model import Model

DIGEST_LENGTH = 16  # hexadecimal digits kept of a digest that is only ever compared with its like
DIGESTED_EXAMPLES = 8  # validation examples whose digest stands for all


def initial_tensors(model: Model) -> dict[str, dict[str, Any]]:
    """Each parameter before the first step: what it was drawn from, what shaped it, and what it came to.

    A scale changes every value and no sign, so two that were drawn alike and scaled otherwise share their `signs`.
    """
    found: dict[str, dict[str, Any]] = {}
    named = dict(model.named_parameters(remove_duplicate=False))
    for path, about in model.parameter_info.items():
        origin = _origin(model, path)
        found[path] = {
            "shape": list(about.shape),
            "origin": origin,
            "draws": digest_json([origin or model.seed, path, list(about.shape)])[:DIGEST_LENGTH],
            "shaped": digest_json([_scheme(model), about._replace(path="", shape=())])[:DIGEST_LENGTH],
            "value": tensor_digest(named[path])[:DIGEST_LENGTH],
            "signs": _signs(named[path]),
        }
    for path, buffer in model.named_buffers():
        found[path] = _buffer(model, path, buffer)
    return found


def _buffer(model: Model, path: str, buffer: Tensor) -> dict[str, Any]:
    """A tensor that is computed and not trained: of the seed, and of what its component and the sizes are."""
    slot = next((word for word in reversed(path.split(".")) if word in SLOTS), None)
    told = model.spec if slot is None else list(_nodes(model.spec, slot))
    shape = list(buffer.shape)
    return {
        "shape": shape,
        "origin": "",
        "draws": digest_json([model.seed, path, shape])[:DIGEST_LENGTH],
        "shaped": digest_json([told, model.spec["dims"], model.spec["topology"]])[:DIGEST_LENGTH],
        "value": tensor_digest(buffer)[:DIGEST_LENGTH],
        "signs": "",
        "buffer": True,
    }


def _nodes(spec: Any, slot: str) -> Iterator[Any]:
    """What a spec has in a slot, wherever that is."""
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        if key == slot:
            yield value
        else:
            yield from _nodes(value, slot)


def optimizer_options(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """How each parameter is trained: a digest of what the optimizer was told of its group, but the rate of the hour."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, str] = {}
    for group in optimizer.param_groups:
        told = {key: str(value) for key, value in group.items() if key not in ("params", "lr")}
        digest = digest_json(told)[:DIGEST_LENGTH]
        found |= {names[id(each)]: digest for each in group["params"] if id(each) in names}
    return found


def _origin(model: Model, path: str) -> str:
    """Where a tensor's value comes from, if not from its own draws: how it was had of which saved model."""
    fate = model.weight_transfer.by_path.get(path) if model.weight_transfer is not None else None
    if fate is None or fate.kind == "new":
        return ""
    return f"{model.source_sha256[:DIGEST_LENGTH]} {fate.how or fate.kind}"


def untrained_outputs_digest(model: Model, data: Data) -> str:
    """What the untrained model makes of the first validation batch: equal in two trials, the swap had no effect."""
    training = model.training
    model.eval()
    hashed = hashlib.sha256()
    with torch.no_grad():
        run = model.run(to_device(data.validation_batch(0), model))
        for part in model.topology.parts:
            hashed.update(tensor_digest(run.output(part.path).hidden).encode())
        for name in model.evaluated:
            for term in model.objective(name)(run.of(name)).values():
                hashed.update(tensor_digest(term.total).encode())
    model.train(training)
    return hashed.hexdigest()


def validation_digest(data: Data) -> str:
    """What is measured: the first validation examples, however many of them make a batch."""
    index = torch.arange(min(DIGESTED_EXAMPLES, data.val_count))
    return batch_digest(data.val_examples.batch(Draw(0, VALIDATION, index)))


def batch_digest(batch: Batch) -> str:
    """All that a batch holds, and the order of its rows."""
    hashed = hashlib.sha256()
    for name, tensor in _tensors(batch):
        hashed.update(name.encode())
        hashed.update(tensor_digest(tensor).encode())
    return hashed.hexdigest()


def chain_digest(before: str, now: str) -> str:
    """A digest of a sequence, one link further."""
    return hashlib.sha256(f"{before}{now}".encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """sha256 of a tensor's type, shape and bytes."""
    plain = tensor.detach().cpu().contiguous()
    hashed = hashlib.sha256(f"{plain.dtype}{tuple(plain.shape)}".encode())
    hashed.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _signs(tensor: Tensor) -> str:
    """A digest of which numbers are negative; nothing for a tensor of one number throughout, which was not drawn."""
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
