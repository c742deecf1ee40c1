"""The public way from a model of another library to ours, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from paribus.conversion.family import Family
from paribus.conversion.moves import into_ours, into_theirs
from paribus.conversion.outside import Outside, outside
from paribus.errors import Problem, SpecError, listed, nearest
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.assemble import assembled, known_vocabulary
from paribus.train.model import Model

_SAID: Final = (
    "topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "dropout", "parts",
)  # fmt: skip
"""What of a spec another library's configuration must say as well."""


def convert(source: Any, *, registry: Registry | None = None, **changes: Any) -> Model:
    """A model of another library as ours: its spec, its weights, and the same numbers that come out.

    `source` is a folder with `config.json` and safetensors, or a model in memory: `paribus.convert(hf_model)`.
    `changes` are keys of its configuration to be read otherwise: `paribus.convert(folder, attn_pdrop=0.0)`.
    """
    classes = registry or installed()
    found = outside(source)
    family = _family(classes, found)
    spec = resolved(family.spec_of({**found.config, **changes}, found.architecture), registry=classes)
    model = assembled(spec, classes, known_vocabulary(spec, classes))
    if any(tensor.dtype == torch.float64 for tensor in found.tensors.values()):
        model.double()
    named = dict(model.named_parameters())
    theirs = dict(_canonical(family, found))
    shapes = {name: parameter.shape for name, parameter in named.items()}
    made = into_ours(family.moves(spec), theirs, shapes, family.constants(spec))
    with torch.no_grad():
        for name, tensor in made.items():
            named[name].copy_(tensor)
    return model


def export(model: Model, family: str | None = None, *, registry: Registry | None = None) -> Outside:
    """Our model as one of another library: its configuration and its tensors, or why no family can say it.

    `paribus.export(model).save("folder")` writes what `from_pretrained("folder")` reads.
    """
    known = families(registry or installed())
    if family is not None and family not in known:
        what = f"there is no family `{family}`"
        raise SpecError(Problem(code="unknown-family", what=what, valid=listed(known), nearest=nearest(family, known)))
    spec: Mapping[str, Any] = model.spec
    misfits: list[Problem] = []
    for name in [family] if family is not None else known:
        for architecture, about in known[name].architectures.items():
            if about.prefix:  # a body without its head: the whole model says it as well
                continue
            made = _said(known[name], architecture, spec, registry)
            if not isinstance(made, str):
                named = dict(model.named_parameters())
                tensors = into_theirs(known[name].moves(spec), named, known[name].constants(spec))
                return Outside(made, architecture, tensors)
            if family is not None:
                misfits.append(Problem(code="cannot-be-said", path=name, what=f"as {architecture}: {made}"))
    if not misfits:
        what = "no family that is known here can say this model"
        misfits = [Problem(code="cannot-be-said", what=what, valid="name a family, and it says why")]
    raise SpecError(*misfits)


def families(classes: Registry) -> dict[str, Family]:
    """All families that are installed, by the name that their configurations give them."""
    found: dict[str, Family] = {}
    for offered in classes.hook.families():
        found.update({kind: family() for kind, family in offered.items()})
    return dict(sorted(found.items()))


def _family(classes: Registry, found: Outside) -> Family:
    known, kind = families(classes), found.config.get("model_type")
    if kind not in known:
        what = f"`model_type` is {kind!r}, a family that is not known here"
        near = nearest(str(kind), known)
        raise SpecError(Problem(code="unknown-family", path="model_type", what=what, valid=listed(known), nearest=near))
    return known[kind]


def _canonical(family: Family, found: Outside) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by the names that they have in the whole model, without what is computed, or what nothing reads."""
    about = family.of(found.architecture)
    for name, tensor in found.tensors.items():
        if name not in about.unread and not name.endswith(family.buffers):
            yield family.name_of(name, found.architecture), tensor


def _said(
    family: Family, architecture: str, spec: Mapping[str, Any], registry: Registry | None
) -> dict[str, Any] | str:
    """The configuration of a spec, or what of it the family cannot say."""
    stranger = family.stranger(spec)
    if stranger:
        return f"`{stranger}` would be {_short(family.spec[stranger])}, and is {_short(spec.get(stranger))}"
    spec = family.settled(spec)
    config = family.config_of(spec, architecture)
    try:
        said = family.spec_of(config, architecture)
        back = family.settled(resolved(said, registry=registry))
    except SpecError as error:
        return str(error.problems[0].what)
    for key in _SAID:
        if back.get(key) != spec.get(key):
            return f"`{key}` would be {_short(back.get(key))}, and is {_short(spec.get(key))}"
    ours, theirs = (_heads(each["objective"]) for each in (spec, back))
    if [head["name"] for head in ours] != [head["name"] for head in theirs]:
        return f"its objectives are {listed(h['name'] for h in theirs)}, and not {listed(h['name'] for h in ours)}"
    for head, meant in zip(ours, _heads(said["objective"]), strict=True):
        for key in meant:  # an option that the family is silent of is one of data, and none of the head
            if head[key] != meant[key]:
                return f"`{key}` of objective `{head['name']}` would be {meant[key]}, and is {head[key]}"
    return config


def _heads(node: Any) -> list[dict[str, Any]]:
    nodes = node if isinstance(node, (list, tuple)) else [node]
    return [{"name": each} if isinstance(each, str) else dict(each) for each in nodes]


def _short(value: Any) -> str:
    name = value.get("name") if isinstance(value, Mapping) else None
    options = {key: item for key, item in value.items() if key != "name"} if isinstance(value, Mapping) else value
    return f"{name} {options}" if name else f"{options}"
