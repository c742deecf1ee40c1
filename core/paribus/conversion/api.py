"""The public way from a model of another library to ours, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from paribus.conversion.family import Family
from paribus.conversion.source_model import SourceModel, read_source
from paribus.conversion.tensor_mapping import convert_tensors, export_tensors
from paribus.errors import Problem, SpecError, StoreError, closest_match, join_names
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.assemble import build_model, expected_vocabulary
from paribus.train.model import Model

_SAID: Final = (
    "topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "dropout", "parts",
)  # fmt: skip
"""What of a spec another library's configuration must say as well."""


def convert(source: Any, *, registry: Registry | None = None, **changes: Any) -> Model:
    """A model of another library as ours: its spec, its weights, and the same numbers that come out.

    `source` is a folder with `config.json` and safetensors, or a model in memory: `paribus.convert(hf_model)`. Networks
    that were trained together are a list, as ELECTRA's: `paribus.convert([discriminator, generator])`.
    `changes` are keys of its configuration to be read otherwise: `paribus.convert(folder, attn_pdrop=0.0)`.
    """
    classes = registry or installed()
    found = [read_source(each) for each in (source if isinstance(source, (list, tuple)) else [source])]
    family = _family(classes, found[0])
    specs = {
        each.architecture: resolved(family.spec_of({**each.config, **changes}, each.architecture), registry=classes)
        for each in found
    }
    spec = specs[found[0].architecture]
    if len(found) > 1:
        spec = resolved(family.together(specs), registry=classes)
    model = build_model(spec, classes, expected_vocabulary(spec, classes))
    if any(tensor.dtype == torch.float64 for tensor in found[0].tensors.values()):
        model.double()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in _of_all(family, found, specs, spec, {name: each.shape for name, each in named.items()}):
            named[name].copy_(tensor)
    return model


def _of_all(
    family: Family,
    found: Sequence[SourceModel],
    specs: Mapping[str, Any],
    spec: Mapping[str, Any],
    shapes: Mapping[str, torch.Size],
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model, of all that it was found in; one that two have must be the same in both."""
    made: dict[str, Tensor] = {}
    for each in found:
        whole = family.alone(spec, each.architecture).whole
        own, constants = specs[each.architecture], family.constants(specs[each.architecture])
        names = {move.ours: whole(move.ours) for move in family.moves(own)}
        theirs = dict(_canonical(family, each))
        of = {name: shapes[path] for name, path in names.items()} if len(found) > 1 else shapes
        for name, tensor in convert_tensors(family.moves(own), theirs, of, constants).items():
            path = names[name]
            if path in made and not torch.equal(made[path], tensor):
                what = f"all of {join_names(specs)} have `{path}`, and it is not the same in them"
                raise StoreError(
                    Problem(code="wrongly-tied", path=name, message=what, valid="networks trained together")
                )
            made[path] = tensor
    assert made.keys() == shapes.keys(), "every tensor of the whole is in one of its networks"
    yield from made.items()


def export(
    model: Model, family: str | None = None, *, architecture: str | None = None, registry: Registry | None = None
) -> SourceModel:
    """Our model as one of another library: its configuration and its tensors, or why no family can say it.

    `paribus.export(model).save("folder")` writes what `from_pretrained("folder")` reads. Of a model that is several
    there, `architecture` names the class of one: `paribus.export(model, architecture="ElectraForMaskedLM")`.
    """
    known = families(registry or installed())
    if family is not None and family not in known:
        what = f'unknown family "{family}"'
        raise SpecError(
            Problem(
                code="unknown-family", message=what, valid=join_names(known), suggestion=closest_match(family, known)
            )
        )
    misfits: list[Problem] = []
    for name in [family] if family is not None else known:
        for said, about in known[name].architectures.items():
            if about.prefix or said != (architecture or said):  # the whole model says a body without its head as well
                continue
            one = known[name].alone(model.spec, said)
            spec = one.spec if one.spec is model.spec else resolved(one.spec, registry=registry)
            made = _said(known[name], said, spec, registry)
            if not isinstance(made, str):
                ours = dict(model.named_parameters())
                named = {move.ours: ours[one.whole(move.ours)] for move in known[name].moves(spec)}
                return SourceModel(
                    made, said, export_tensors(known[name].moves(spec), named, known[name].constants(spec))
                )
            if family is not None:
                misfits.append(Problem(code="cannot-be-said", path=name, message=f"as {said}: {made}"))
    if not misfits:
        what = "no family that is known here can say this model"
        misfits = [Problem(code="cannot-be-said", message=what, valid="name a family, and it says why")]
    raise SpecError(*misfits)


def families(classes: Registry) -> dict[str, Family]:
    """All families that are installed, by the name that their configurations give them."""
    found: dict[str, Family] = {}
    for offered in classes.hook.families():
        found.update({kind: family() for kind, family in offered.items()})
    return dict(sorted(found.items()))


def _family(classes: Registry, found: SourceModel) -> Family:
    known, kind = families(classes), found.config.get("model_type")
    if kind not in known:
        what = f"`model_type` is {kind!r}, a family that is not known here"
        near = closest_match(str(kind), known)
        raise SpecError(
            Problem(code="unknown-family", path="model_type", message=what, valid=join_names(known), suggestion=near)
        )
    return known[kind]


def _canonical(family: Family, found: SourceModel) -> Iterator[tuple[str, Tensor]]:
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
        return str(error.problems[0].message)
    for key in _SAID:
        if back.get(key) != spec.get(key):
            return f"`{key}` would be {_short(back.get(key))}, and is {_short(spec.get(key))}"
    ours, theirs = (_heads(each["objective"]) for each in (spec, back))
    if [head["name"] for head in ours] != [head["name"] for head in theirs]:
        return (
            f"its objectives are {join_names(h['name'] for h in theirs)}, and not {join_names(h['name'] for h in ours)}"
        )
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
