"""Conversion of Hugging Face models: `paribus.convert` and `paribus.export`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor

from paribus.assembly.components import make
from paribus.conversion.exported_text import exported_tokenizer, generation_settings, missing_tokenizer, special_ids
from paribus.conversion.source_model import SourceModel, SourceTokenizer, read_source
from paribus.conversion.tensor_mapping import convert_tensors, export_tensors
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import Problem, SpecError, StoreError, closest_match, join_names
from paribus.models.assemble import build_model, expected_vocabulary
from paribus.models.lightning_module import Model
from paribus.registry import Registry, installed
from paribus.slots.family import Family, Network
from paribus.slots.tokenizer import Tokenizer
from paribus.specs import resolved
from paribus.storage.saved_model import TOKENIZER

_EXPRESSED: Final = (
    "topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "dropout", "parts",
)  # fmt: skip
"""Keys of a spec that a configuration must express."""


def convert(source: Any, *, registry: Registry | None = None, **changes: Any) -> Model:
    """Convert a Hugging Face model to a paribus model with the same outputs.

    `source` is a folder with `config.json` and safetensors, or a model in memory: `paribus.convert(hf_model)`. Networks
    that were trained together are a list, as ELECTRA's: `paribus.convert([discriminator, generator])`. The tokenizer is
    the `tokenizer.json` of the folder; without one, it is unknown.
    `changes` are keys of its configuration to be read otherwise: `paribus.convert(folder, attn_pdrop=0.0)`.
    """
    classes = registry or installed()
    sources = [
        read_source(model_source) for model_source in (source if isinstance(source, (list, tuple)) else [source])
    ]
    family = _family(classes, sources[0])
    tokenizer = _common_tokenizer(sources)
    specs = {
        model_source.architecture: resolved(
            {
                **family.spec_of({**model_source.config, **changes}, model_source.architecture),
                **_tokenizer_options(tokenizer),
            },
            registry=classes,
        )
        for model_source in sources
    }
    spec = specs[sources[0].architecture]
    if len(sources) > 1:
        spec = resolved(family.combine(specs), registry=classes)
    text = None if tokenizer is None else _text_codec(tokenizer, spec, sources[0].config, classes)
    model = build_model(spec, classes, expected_vocabulary(spec, classes) if text is None else text.vocabulary)
    if text is not None:
        model.text, model.tokenizer = text, text.fingerprint
    if any(tensor.dtype == torch.float64 for tensor in sources[0].tensors.values()):
        model.double()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in _parameters_of_networks(
            family, sources, specs, spec, {name: model_source.shape for name, model_source in named.items()}
        ):
            named[name].copy_(tensor)
    return model


def _common_tokenizer(sources: Sequence[SourceModel]) -> SourceTokenizer | None:
    """Return the tokenizer of all networks of a model."""
    tokenizers = [model_source.tokenizer for model_source in sources if model_source.tokenizer is not None]
    if len({tokenizer.text for tokenizer in tokenizers}) > 1:
        message = f"the networks have different files `{TOKENIZER}`"
        raise StoreError(Problem(code="other-tokenizer", message=message, valid="networks trained together"))
    return tokenizers[0] if tokenizers else None


def _tokenizer_options(tokenizer: SourceTokenizer | None) -> dict[str, Any]:
    if tokenizer is None:
        return {}
    path = tokenizer.path or Path(TOKENIZER)
    return {"tokenizer": {"name": "file", "path": str(path), "specials": tokenizer.specials}}


def _class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes of a configuration, if it has other names than the default."""
    names = [str(name) for _, name in sorted((config.get("id2label") or {}).items(), key=lambda item: int(item[0]))]
    return () if names == [f"LABEL_{number}" for number in range(len(names))] else tuple(names)


def _named_classes(model: Model, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of a model's classes as a configuration has them, where it has classes at all."""
    names = () if model.text is None else model.text.classes
    if "id2label" not in config or not names:
        return {}
    labels = {**config["id2label"], **{str(number): name for number, name in enumerate(names)}}
    return {"id2label": labels, "label2id": {name: int(number) for number, name in labels.items()}}


def _text_codec(
    source: SourceTokenizer, spec: Mapping[str, Any], source_config: Mapping[str, Any], classes: Registry
) -> TextCodec:
    """Return the tokenizer of a converted model; one in memory is read from a temporary file."""
    with TemporaryDirectory() as folder:
        path = source.path or Path(folder, TOKENIZER)
        if source.path is None:
            path.write_text(source.text, encoding="utf-8")
        tokenizer = make(classes, "tokenizer", {**spec["tokenizer"], "path": str(path)}, kind=Tokenizer)
        tokenizer.train([], spec["dims"]["vocabulary"])
    return TextCodec(tokenizer, classes=_class_names(source_config))


def _parameters_of_networks(
    family: Family,
    sources: Sequence[SourceModel],
    specs: Mapping[str, Any],
    spec: Mapping[str, Any],
    shapes: Mapping[str, torch.Size],
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a model from all of its networks; shared ones must be equal."""
    tensors: dict[str, Tensor] = {}
    for model_source in sources:
        full_name = family.network(spec, model_source.architecture).full_name
        source_spec, constants = specs[model_source.architecture], family.constants(specs[model_source.architecture])
        names = {move.parameter: full_name(move.parameter) for move in family.moves(source_spec)}
        source_tensors = dict(_canonical(family, model_source))
        part_shapes = {name: shapes[path] for name, path in names.items()} if len(sources) > 1 else shapes
        for name, tensor in convert_tensors(family.moves(source_spec), source_tensors, part_shapes, constants).items():
            path = names[name]
            if path in tensors and not torch.equal(tensors[path], tensor):
                message = f"all of {join_names(specs)} have `{path}`, but their values differ"
                raise StoreError(
                    Problem(code="tied-weights-differ", path=name, message=message, valid="networks trained together")
                )
            tensors[path] = tensor
    assert tensors.keys() == shapes.keys(), "every tensor of the whole is in one of its networks"
    yield from tensors.items()


def export(
    model: Model, family: str | None = None, *, architecture: str | None = None, registry: Registry | None = None
) -> SourceModel:
    """Export a paribus model to a Hugging Face configuration and tensors, or raise the reason why no family fits.

    `paribus.export(model).save("folder")` writes what `from_pretrained("folder")` reads. Of a model that is several
    there, `architecture` names the class of one: `paribus.export(model, architecture="ElectraForMaskedLM")`.
    """
    families_by_name = families(registry or installed())
    if family is not None and family not in families_by_name:
        message = f'unknown family "{family}"'
        raise SpecError(
            Problem(
                code="unknown-family",
                message=message,
                valid=join_names(families_by_name),
                suggestion=closest_match(family, families_by_name),
            )
        )
    whole_spec = _with_vocabulary(model)
    pad = None if model.text is None else model.text.vocabulary.specials.get("pad")
    misfits: list[Problem] = []
    for name in [family] if family is not None else families_by_name:
        for architecture_name, architecture_info in families_by_name[name].architectures.items():
            if architecture_info.prefix or architecture_name != (
                architecture or architecture_name
            ):  # the whole model also covers a body without a head
                continue
            network = families_by_name[name].network(whole_spec, architecture_name)
            spec: Mapping[str, Any] = network.spec if network.is_whole else resolved(network.spec, registry=registry)
            spec, parameters = families_by_name[name].numbered(spec, dict(model.named_parameters()), pad)
            config = _config_or_reason(families_by_name[name], architecture_name, spec, registry)
            paths = {} if isinstance(config, str) else _paths(families_by_name[name], spec, network)
            lost = sorted(parameters.keys() - paths.values()) if network.is_whole and paths else []
            if lost:
                config = f"it has no tensor for {join_names(lost, 3)}"
            if not isinstance(config, str):
                named = {name_there: parameters[path] for name_there, path in paths.items()}
                return _exported(model, families_by_name[name], spec, config, named)
            if family is not None:
                misfits.append(Problem(code="cannot-export", path=name, message=f"as {architecture_name}: {config}"))
    if not misfits:
        message = "no family can express this model"
        misfits = [Problem(code="cannot-export", message=message, valid="name a family, to see the reason")]
    raise SpecError(*misfits)


def _paths(family: Family, spec: Mapping[str, Any], network: Network) -> dict[str, str]:
    """Return the path in the whole model of each parameter that a family moves."""
    return {move.parameter: network.full_name(move.parameter) for move in family.moves(spec)}


def _with_vocabulary(model: Model) -> Mapping[str, Any]:
    """Return the spec of a model with the size of its vocabulary, which may be null for the tokenizer's own."""
    spec: Mapping[str, Any] = model.spec
    if model.topology.embedding.values_per_example is not None:
        return spec
    return {**spec, "dims": {**spec["dims"], "vocabulary": model.topology.stage("body").shape.vocabulary}}


def _exported(
    model: Model, family: Family, spec: Mapping[str, Any], config: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> SourceModel:
    """Return a model of a family with its tokenizer."""
    tokenizer = exported_tokenizer(model)
    is_text = model.topology.embedding.values_per_example is None
    return SourceModel(
        {**config, **(special_ids(model, family, config) if is_text else {}), **_named_classes(model, config)},
        config["architectures"][0],
        export_tensors(family.moves(spec), parameters, family.constants(spec)),
        tokenizer,
        generation_settings(model),
        missing_tokenizer(model.text, model.spec) if is_text and tokenizer is None else "",
    )


def families(classes: Registry) -> dict[str, Family]:
    """Return the installed families, by `model_type`."""
    families_by_type: dict[str, Family] = {}
    for plugin_families in classes.hook.families():
        families_by_type.update({kind: family() for kind, family in plugin_families.items()})
    return dict(sorted(families_by_type.items()))


def _family(classes: Registry, model_source: SourceModel) -> Family:
    families_by_type, kind = families(classes), model_source.config.get("model_type")
    if kind not in families_by_type:
        message = f"`model_type` is {kind!r}, a family that is not known here"
        near = closest_match(str(kind), families_by_type)
        raise SpecError(
            Problem(
                code="unknown-family",
                path="model_type",
                message=message,
                valid=join_names(families_by_type),
                suggestion=near,
            )
        )
    return families_by_type[kind]


def _canonical(family: Family, model_source: SourceModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by their names in the whole model, without buffers and unused tensors."""
    architecture_info = family.architecture(model_source.architecture)
    for name, tensor in model_source.tensors.items():
        if name not in architecture_info.unused_tensors and not name.endswith(family.buffers):
            yield family.canonical_name(name, model_source.architecture), tensor


def _config_or_reason(
    family: Family, architecture: str, spec: Mapping[str, Any], registry: Registry | None
) -> dict[str, Any] | str:
    """Return the configuration of a spec, or the reason why the family cannot express it."""
    slot = family.unsupported_slot(spec)
    if slot:
        return f"`{slot}` would be {_short(family.spec[slot])}, and is {_short(spec.get(slot))}"
    spec = family.resolve_multiples(spec)
    config = family.config_of(spec, architecture)
    try:
        exported = family.spec_of(config, architecture)
        reimported = family.resolve_multiples(resolved(exported, registry=registry))
    except SpecError as error:
        return str(error.problems[0].message)
    for key in _EXPRESSED:
        if reimported.get(key) != spec.get(key):
            return f"`{key}` would be {_short(reimported.get(key))}, and is {_short(spec.get(key))}"
    heads, exported_heads = (_heads(objective_spec["objective"]) for objective_spec in (spec, reimported))
    if [head["name"] for head in heads] != [head["name"] for head in exported_heads]:
        names, exported_names = ([head["name"] for head in group] for group in (heads, exported_heads))
        return f"expected the objectives {join_names(exported_names)}, got {join_names(names)}"
    for head, exported_head in zip(heads, _heads(exported["objective"]), strict=True):
        for key in exported_head:  # other options concern the data, not the head
            if head[key] != exported_head[key]:
                return f"`{key}` of objective `{head['name']}` would be {exported_head[key]}, and is {head[key]}"
    return config


def _heads(node: Any) -> list[dict[str, Any]]:
    nodes = node if isinstance(node, (list, tuple)) else [node]
    return [{"name": item} if isinstance(item, str) else dict(item) for item in nodes]


def _short(value: Any) -> str:
    name = value.get("name") if isinstance(value, Mapping) else None
    options = {key: item for key, item in value.items() if key != "name"} if isinstance(value, Mapping) else value
    return f"{name} {options}" if name else f"{options}"
