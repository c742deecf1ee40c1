"""Warm start: initialize a model from the tensors of a saved one, which may read another vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus.assembly.build import build
from paribus.assembly.components import Classes
from paribus.errors import PluginError, Problem, StoreError, join_names
from paribus.kernels import KERNELS
from paribus.models.lightning_module import Model
from paribus.models.states import distinct_tensors, named_tensors, tied_names
from paribus.parts.shape import Role
from paribus.parts.weight_conversion import ConvertedTensor, WeightConverter
from paribus.slots.component import Component
from paribus.slots.tokenizer import Tokenizer, Vocabulary

Spec = Mapping[str, Any]
Kind = Literal["kept", "converted", "new", "dropped"]
_LISTED: Final[tuple[Kind, ...]] = ("kept", "dropped")
_DESCRIBED: Final[tuple[Kind, ...]] = ("converted", "new")


class TensorTransfer(NamedTuple):
    """Result for one tensor; `how` describes its conversion, or the initial values of a new one."""

    path: str
    kind: Kind
    size: int
    how: str = ""


@final
@dataclass(frozen=True)
class WeightTransfer:
    """Results for all tensors of both models."""

    transfers: tuple[TensorTransfer, ...]

    def of(self, kind: Kind) -> tuple[TensorTransfer, ...]:
        """Return the tensors of one kind: kept, converted, new or dropped."""
        return tuple(transfer for transfer in self.transfers if transfer.kind == kind)

    @property
    def conversions(self) -> dict[str, str]:
        """Conversion of each kept or converted tensor, by its path in the new model; `kept` for an exact copy."""
        taken = (transfer for transfer in self.transfers if transfer.kind in ("kept", "converted"))
        return {transfer.path: transfer.how or transfer.kind for transfer in taken}

    def to_json(self) -> dict[str, Any]:
        """Return the paths by kind, with a description for converted and new tensors."""
        return {
            **{kind: [transfer.path for transfer in self.of(kind)] for kind in _LISTED},
            **{kind: {transfer.path: transfer.how for transfer in self.of(kind)} for kind in _DESCRIBED},
        }


@final
class RemappedTables(NamedTuple):
    """Tensors with one row per id, for a model that reads another vocabulary than the saved one."""

    tables: frozenset[str]  # all paths in the new model
    values: Mapping[str, ConvertedTensor]  # of the tables that the saved model has as well


def transfer_weights(model: Model, source: Model, remapped: RemappedTables | None = None) -> WeightTransfer:
    """Copy the tensors of `source` into an initialized model; `source` does not change.

    A tensor is kept where path, shape and role are equal. Where several layers share a tensor, the first that was saved
    is used. `remapped` replaces tables where the models read different vocabularies: equal shapes mean nothing there.
    """
    new, saved = _ModelTensors(model), _ModelTensors(source)
    _check_finite(saved.named)
    converted = {new.first_name(path): tensor for path, tensor in _conversions(model, source)}
    tables: frozenset[str] = frozenset()
    if remapped is not None:
        tables = frozenset(new.first_name(path) for path in remapped.tables)
        converted = {path: tensor for path, tensor in converted.items() if path not in tables}
        converted |= {new.first_name(path): tensor for path, tensor in remapped.values.items()}
    _check_shapes(converted, new.named)
    transfers: list[TensorTransfer] = []
    used: set[str] = set()
    for path, tensor in distinct_tensors(new.named).items():
        names = new.names(path)
        match = None if path in tables else next((name for name in names if _matches(name, new, saved)), None)
        kind: Kind = "new"
        value, description = tensor, _initial_values(tensor)
        if path in converted:
            kind, value, description = "converted", converted[path].value, converted[path].method
            used.update(saved.first_name(name) for name in names)
        elif match is not None:
            value = saved.named[match]
            kind = "kept"
            description = (
                "" if value.dtype == tensor.dtype else f"rounded to {str(tensor.dtype).removeprefix('torch.')}"
            )
            used.add(saved.first_name(match))
        with torch.no_grad():
            tensor.copy_(value)
        transfers.append(TensorTransfer(path, kind, tensor.numel(), description))
    for path, tensor in distinct_tensors(saved.named).items():
        if path not in used:
            transfers.append(TensorTransfer(path, "dropped", tensor.numel()))
    return WeightTransfer(tuple(transfers))


@final
class _ModelTensors:
    """Tensors of a model, by each of their names."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.named = named_tensors(model)
        self._tied = tied_names(self.named)

    def first_name(self, path: str) -> str:
        """Return the first name of a tensor that may have several."""
        return self._tied.get(path, path)

    def names(self, path: str) -> list[str]:
        return [path, *(name for name, first_name in self._tied.items() if first_name == path)]

    def role(self, path: str) -> Role | None:
        """Return the role of a parameter; None for a buffer."""
        info = self.model.parameter_info.get(self.first_name(path))
        return info.role if info is not None else None

    def component(self, path: str) -> Component | None:
        """Return the innermost component that a tensor belongs to."""
        words = path.split(".")[:-1]
        for end in range(len(words), 0, -1):
            module = self.model.get_submodule(".".join(words[:end]))
            if isinstance(module, Component):
                return module
        return None


def _conversions(model: nn.Module, source: nn.Module) -> Iterator[tuple[str, ConvertedTensor]]:
    """Yield the tensors that modules convert from the modules at the same paths; outer modules come last and win."""
    source_modules = dict(source.named_modules(remove_duplicate=False))
    for path, module in reversed(list(model.named_modules())):
        if isinstance(module, WeightConverter) and path in source_modules:
            for name, converted in module.convert_weights(source_modules[path]).items():
                yield f"{path}.{name}", converted


def _matches(path: str, new: _ModelTensors, saved: _ModelTensors) -> bool:
    if path not in saved.named or saved.named[path].shape != new.named[path].shape:
        return False
    component, saved_component = new.component(path), saved.component(path)
    needs_same_class = component is not None and component.class_specific
    return new.role(path) == saved.role(path) and (not needs_same_class or type(component) is type(saved_component))


def _check_shapes(converted: Mapping[str, ConvertedTensor], named: Mapping[str, Tensor]) -> None:
    for path, tensor in converted.items():
        shape = tuple(named[path].shape) if path in named else None
        if shape != tuple(tensor.value.shape):
            message = f"`convert_weights` made a tensor of the shape {tuple(tensor.value.shape)}"
            valid = "a tensor that the module has" if shape is None else f"the shape of the module's tensor, {shape}"
            raise PluginError(Problem(code="wrong-shape", path=path, message=message, valid=valid))


def _initial_values(tensor: Tensor) -> str:
    """Describe the initial values of a new tensor; adding zeros, for one, changes nothing."""
    flat = tensor.detach().reshape(-1)
    if not len(flat) or not bool((flat == flat[0]).all()):
        return "drawn"
    return f"all {float(flat[0]):g}"


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        message = f"tensors of the saved model contain NaN or infinity: {join_names(broken, 6)}"
        raise StoreError(Problem(code="not-finite", message=message, valid="a model whose training did not diverge"))


# -- vocabularies -------------------------------------------------------------------------------------------------


def remap_tables(model: Model, source: Model, new: Tokenizer, old: Tokenizer, classes: Classes) -> RemappedTables:
    """Copy the rows of tokens that both vocabularies share; the rows of tokens that only `new` has stay as drawn.

    `new` is the tokenizer of `model`, and `old` that of `source`.
    """
    shared = shared_tokens(new, old)
    new_tensors, old_tensors = named_tensors(model), named_tensors(source)
    tables = vocabulary_tensors(model.spec, classes, new.vocabulary())
    old_tables = vocabulary_tensors(source.spec, classes, old.vocabulary())
    new_ids, old_ids = (torch.tensor(ids, dtype=torch.long) for ids in ([*shared], [*shared.values()]))
    values: dict[str, ConvertedTensor] = {}
    for path in sorted(tables & old_tables):
        if new_tensors[path].shape[1:] == old_tensors[path].shape[1:]:
            value = new_tensors[path].detach().clone()
            value[new_ids] = old_tensors[path].detach()[old_ids].to(value)
            new_rows = len(value) - len(shared)
            values[path] = ConvertedTensor(value, f"kept the rows of {len(shared):,} shared tokens, {new_rows:,} new")
    return RemappedTables(tables, values)


def shared_tokens(new: Tokenizer, old: Tokenizer) -> dict[int, int]:
    """Return the ids of `new` whose tokens `old` has as well, with their ids there; ambiguous tokens are left out."""
    new_ids, old_ids = _ids_by_token(new), _ids_by_token(old)
    return {token_id: old_ids[token] for token, token_id in new_ids.items() if token in old_ids}


def vocabulary_tensors(spec: Spec, classes: Classes, vocabulary: Vocabulary) -> frozenset[str]:
    """Return the paths of tensors with one row per id: those that grow with the vocabulary."""
    plain = {**spec, "dims": {**spec["dims"], "vocabulary": None}}
    shapes, larger_shapes = (
        {
            f"{name}.{path}": tensor.shape
            for name, child in build(plain, classes, vocabulary._replace(size=size), KERNELS).children().items()
            for path, tensor in child.named_parameters(remove_duplicate=False)
        }
        for size in (vocabulary.size, vocabulary.size + 1)
    )
    return frozenset(path for path in shapes if shapes[path][:1] != larger_shapes[path][:1])


def _ids_by_token(tokenizer: Tokenizer) -> dict[str, int]:
    tokens = [tokenizer.piece(token_id) for token_id in range(tokenizer.vocabulary().size)]
    counts = Counter(tokens)
    return {token: token_id for token_id, token in enumerate(tokens) if counts[token] == 1}
