"""What a model does with a few examples, as a digest: two specs whose digests are one differ in nothing there.

Models are moved off where they start, as what starts at 0 has its say only there, and are run as in training, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from paribus.assembly.build import build
from paribus.assembly.components import make
from paribus.assembly.cost import parameters
from paribus.errors import ParibusError
from paribus.kernels import KERNELS
from paribus.keyed import key32
from paribus.parts.draw import Draw
from paribus.parts.rows import Batch
from paribus.registry import Registry
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.train.assemble import assembled, data_of
from paribus.train.data import VALIDATION
from paribus.train.digests import tensor_digest
from paribus.train.model import Model
from paribus.train.tokens import Encoded

Spec = Mapping[str, Any]

EXAMPLES: Final = 4
AROUND: Final = 0.1  # how far parameters are moved
TINY: Final = 1e-7  # what they are multiplied by, for what has its say only where rows are short
FEW: Final = 2  # layers of a model that is looked at first
WORK: Final = 2**34  # parameters times rows that are run through at a time, or one example
LARGE: Final = 2**38  # of which more is not run at all: a start would take longer than many a step
STEPS: Final = 64  # of a schedule
SIZES: Final = (1.0, 1e-4, 1e-8)  # of the gradients that an optimizer is given in turn
ERRORS: Final = (ParibusError, ValueError, RuntimeError, LookupError, TypeError, AssertionError, ArithmeticError)


class Subject(NamedTuple):
    """Of what specs are looked at."""

    classes: Registry
    text: Encoded


def outline(spec: Spec, of: Subject) -> str | None:
    """The names and shapes of its parameters, without storage; None where it cannot be built."""
    with suppress(*ERRORS):
        children = build(_plain(spec), of.classes, of.text.vocabulary, KERNELS).children()
        named = nn.ModuleDict(children).named_parameters(remove_duplicate=False)
        return repr(sorted((path, tuple(parameter.shape)) for path, parameter in named))
    return None


def briefly(spec: Spec, of: Subject) -> str | None:
    """What it does with few of its layers, which is nearly always enough to tell two apart."""
    dims = spec["dims"]
    if not isinstance(dims["layers"], int) or dims["layers"] <= FEW:
        return None
    return _acts({**spec, "dims": {**dims, "layers": FEW}}, of)


def wholly(spec: Spec, of: Subject) -> str | None:
    """What it does in evaluation and in training, and the gradients that follow."""
    return _acts(spec, of)


def elsewhere(spec: Spec, of: Subject) -> str | None:
    """What it does where training does not come: token by token, and with rows that are next to nothing."""
    with suppress(*ERRORS):
        model, batch = _made(spec, of)
        hashed = hashlib.sha256()
        _moved(model)
        with torch.no_grad(), suppress(*ERRORS):  # what has no step by step has no say in one
            for hidden in _stepped(model.eval(), batch):
                hashed.update(tensor_digest(hidden).encode())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(TINY)
            for found in _found(model.eval(), batch):
                hashed.update(tensor_digest(found).encode())
        return hashed.hexdigest()
    return None


def rates(spec: Spec, of: Subject) -> str | None:
    """What a schedule makes of each step of a run."""
    with suppress(*ERRORS):
        schedule = make(of.classes, "schedule", spec["schedule"], kind=Schedule)
        return repr([schedule.factor(step, STEPS) for step in range(STEPS)])
    return None


def updates(spec: Spec, of: Subject) -> str | None:
    """What an optimizer makes of a matrix and a vector, with gradients of several sizes."""
    with suppress(*ERRORS):
        generator = torch.Generator().manual_seed(0)
        given = [nn.Parameter(torch.randn(size, generator=generator)) for size in ((8, 6), (6,))]
        optimizer = make(of.classes, "optimizer", spec["optimizer"], kind=Optimizer).build(given[:1], given[1:])
        hashed = hashlib.sha256()
        for size in SIZES * 3:
            for each in given:
                each.grad = torch.randn(each.shape, generator=generator) * size
            optimizer.step()
            hashed.update("".join(map(tensor_digest, given)).encode())
        return hashed.hexdigest()
    return None


def _plain(spec: Spec) -> Spec:
    return {**spec, "from": None, "teacher": None}


def _acts(spec: Spec, of: Subject) -> str | None:
    with suppress(*ERRORS):
        return _digest(*_made(spec, of))
    return None


def _made(spec: Spec, of: Subject) -> tuple[Model, Batch]:
    plain = _plain(spec)
    rows = parameters(build(plain, of.classes, of.text.vocabulary, KERNELS).children()) * int(spec["dims"]["length"])
    if rows > LARGE:
        raise ValueError("too large to be asked")
    model = assembled(plain, of.classes, of.text.vocabulary)
    data = data_of(plain, of.classes, of.text)
    count = min(max(1, min(EXAMPLES, WORK // rows)), data.val_count)
    model.tokenizer = of.text.tokenizer_fingerprint
    return model, data.val_examples.batch(Draw(0, VALIDATION, torch.arange(count)))


def _moved(model: Model) -> None:
    for path, parameter in sorted(model.named_parameters()):
        generator = torch.Generator().manual_seed(key32("probe", path))
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=AROUND)


def _digest(model: Model, batch: Batch) -> str:
    """Of names and shapes, of what comes out in evaluation and in training, and of the gradients that follow."""
    hashed = hashlib.sha256()
    for path, parameter in sorted(model.named_parameters()):
        hashed.update(f"{path} {tuple(parameter.shape)}".encode())
    _moved(model)
    with torch.no_grad():
        for found in _found(model.eval(), batch):
            hashed.update(tensor_digest(found).encode())
    trained = _found(model.train(), batch)
    losses = [each.sum() for each in trained if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = [parameter.grad for _, parameter in sorted(model.named_parameters())]
    for each in (*trained, *gradients):
        hashed.update(b"-" if each is None else tensor_digest(each).encode())
    return hashed.hexdigest()


def _found(model: Model, batch: Batch) -> list[Tensor]:
    """What each part makes of the examples, and what it costs."""
    torch.manual_seed(0)
    run = model.run(batch)
    outputs = [run.output(part.path) for part in model.topology.parts]
    found = [output.hidden for output in outputs]
    found += [output.auxiliary for output in outputs if output.auxiliary is not None]
    for name in model.evaluated:
        with suppress(*ERRORS):  # of one that asks a teacher, who is not here
            found += [term.total for term in model.objective(name)(run.of(name)).values()]
    return found


def _stepped(model: Model, batch: Batch) -> Iterator[Tensor]:
    """The first half of each example at once, and then two tokens one by one."""
    tokens = batch.streams["body"].tokens
    cross = next(part.cross for part in model.topology.parts if part.path == "body")
    source = batch.streams[cross].tokens if cross is not None else None
    half, states = tokens.shape[1] // 2, model.start(len(tokens))
    for start, end in ((0, half), (half, half + 1), (half + 1, half + 2)):
        yield model.hidden(tokens[:, start:end], states, source=source)
