"""Whether each option that a variant sets does anything: without it, the model is another one, or acts otherwise.

That a whole variant did nothing shows in its outputs and losses. Where it changes several things at once one of them
may hide behind the others, so each is put back to its default by itself. Models are moved off where they start, as what
starts at 0 has its say only there, and are run as in training, too.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from paribus.errors import ParibusError
from paribus.hookspecs import SLOTS
from paribus.keyed import key32
from paribus.parts.draw import Draw
from paribus.parts.rows import Batch
from paribus.registry import Index, Registry
from paribus.schema import Option
from paribus.train.assemble import assembled, data_of
from paribus.train.data import VALIDATION
from paribus.train.digests import tensor_digest
from paribus.train.model import Model
from paribus.train.tokens import Encoded

EXAMPLES: Final = 4
AROUND: Final = 0.1  # how far parameters are moved
TRAINING: Final = ("objective", "corpus", "tokenizer", "optimizer", "schedule", "launcher", "measure")


class Setting(NamedTuple):
    """One option that was set: where, to what, and what it would be else."""

    path: str
    value: Any
    other: Any  # its default, or its example


def ignored(spec: Mapping[str, Any], varied: Mapping[str, Any], classes: Registry, text: Encoded) -> list[str]:
    """The dotted paths of the options of an architecture that were set and change nothing.

    Of a variant that changes one thing alone nothing is asked: its certificate tells.
    """
    if sum(1 for _ in _changes(varied)) < 2:
        return []
    asked = [each for each in settings(spec, varied, classes.index) if each.value != each.other]
    if not asked:
        return []
    with torch.random.fork_rng():
        first = _acts(spec, classes, text)
        return [each.path for each in asked if _acts(_put(spec, each), classes, text) == first]


def _changes(varied: Mapping[str, Any]) -> Iterator[str]:
    for key, value in varied.items():
        yield key
        if isinstance(value, Mapping) and "name" in value:
            yield from (f"{key}.{option}" for option in value if option != "name")


def settings(spec: Mapping[str, Any], varied: Mapping[str, Any], index: Index) -> Iterator[Setting]:
    """The options of components that are among what was varied; what has no default is put to its example."""
    for key, value in varied.items():
        words = key.split(".")
        places = [at for at, word in enumerate(words) if word in SLOTS and word not in TRAINING]
        if not places or words[0] in TRAINING:
            continue
        slot = places[-1]
        node = _at(spec, words[: slot + 1])
        if not isinstance(node, Mapping) or "name" not in node:
            continue
        inside = words[slot + 1 :]
        given = [inside] if inside else [way for way in _leaves(value) if way != ["name"]]
        options = index.find(words[slot], str(node["name"])).options
        for way in given:
            option = _option(options, way)
            if option is None or option.sample is None:
                continue  # null leaves the choice to the component, which may choose what was set
            if option.kind.name not in ("slot", "group"):
                path = [*words[: slot + 1], *way]
                yield Setting(".".join(path), _at(spec, path), option.sample)


def _leaves(value: Any) -> Iterator[list[str]]:
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(inner, Mapping) and "name" not in inner:
            yield from ([key, *way] for way in _leaves(inner))
        else:
            yield [key]


def _option(options: tuple[Option, ...], way: list[str]) -> Option | None:
    found = next((option for option in options if option.name == way[0]), None)
    if found is None or len(way) == 1:
        return found
    return _option(found.kind.options, way[1:]) if found.kind.name == "group" else None


def _at(spec: Any, path: list[str]) -> Any:
    for key in path:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec


def _put(spec: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    changed = copy.deepcopy(dict(spec))
    *way, last = setting.path.split(".")
    _at(changed, way)[last] = copy.deepcopy(setting.other)
    return changed


def _acts(spec: Mapping[str, Any], classes: Registry, text: Encoded) -> str:
    """A digest of what parameters a model has and what it does with a few examples; unique where it cannot be."""
    plain = {**spec, "from": None, "teacher": None}
    try:
        model = assembled(plain, classes, text.vocabulary)
        data = data_of(plain, classes, text)
        batch = data.val_examples.batch(Draw(0, VALIDATION, torch.arange(min(EXAMPLES, data.val_count))))
        model.tokenizer = text.tokenizer_fingerprint
        return _digest(model, batch)
    except (ParibusError, ValueError, RuntimeError, KeyError) as error:
        return f"{type(error).__name__}: {error} ({spec['seed']}, {id(spec)})"


def _digest(model: Model, batch: Batch) -> str:
    """Of names and shapes, of what comes out in evaluation and in training, and of the gradients that follow."""
    hashed = hashlib.sha256()
    for path, parameter in sorted(model.named_parameters()):
        hashed.update(f"{path} {tuple(parameter.shape)}".encode())
        generator = torch.Generator().manual_seed(key32("probe", path))
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=AROUND)
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
    terms = [term.total for name in model.evaluated for term in model.objective(name)(run.of(name)).values()]
    return [
        *(output.hidden for output in outputs),
        *(output.auxiliary for output in outputs if output.auxiliary is not None),
        *terms,
    ]
