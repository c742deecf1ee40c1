"""A model begins from the tensors of another: what fits is kept, what can be is converted, and all is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus.errors import PluginError, Problem, StoreError, join_names
from paribus.parts.shape import Role
from paribus.parts.weight_conversion import ConvertedTensor, WeightConverter
from paribus.slots.component import Component
from paribus.train.model import Model
from paribus.train.states import distinct_tensors, named_tensors, tied_names
from paribus.train.vocab_remap import RemappedTables

Kind = Literal["kept", "converted", "new", "dropped"]
_SILENT: Final[tuple[Kind, ...]] = ("kept", "dropped")  # of these there is no more to say than which
_TELLING: Final[tuple[Kind, ...]] = ("converted", "new")


class TensorTransfer(NamedTuple):
    """What became of one tensor; `how` it was converted, or what a new one begins as."""

    path: str
    kind: Kind
    size: int
    how: str = ""


@final
@dataclass(frozen=True)
class WeightTransfer:
    """What became of every tensor on either side."""

    transfers: tuple[TensorTransfer, ...]

    def of(self, kind: Kind) -> tuple[TensorTransfer, ...]:
        """Those that were kept, converted, are new, or were dropped."""
        return tuple(fate for fate in self.transfers if fate.kind == kind)

    @property
    def by_path(self) -> dict[str, TensorTransfer]:
        """The fate of each tensor that the model has, by its path."""
        return {fate.path: fate for fate in self.transfers if fate.kind != "dropped"}

    def to_json(self) -> dict[str, Any]:
        """Paths by kind, with how, where there is something to say."""
        told: dict[str, Any] = {kind: [fate.path for fate in self.of(kind)] for kind in _SILENT}
        return {**told, **{kind: {fate.path: fate.how for fate in self.of(kind)} for kind in _TELLING}}


def transfer_weights(model: Model, source: Model, ids: RemappedTables | None = None) -> WeightTransfer:
    """Puts what `source` has into `model`, which has its first values; `source` is left as it is.

    A tensor is kept where path, shape and role are the same. Where several layers share one, the first that was saved
    counts. `ids` says what becomes of tables where the two models read other ids: there, equal shapes mean nothing.
    """
    ours, theirs = _Side(model), _Side(source)
    _finite(theirs.named)
    made = {ours.first(path): converted for path, converted in _converted(model, source)}
    tables = frozenset(ours.first(path) for path in ids.tables) if ids is not None else frozenset()
    if ids is not None:
        made = {path: converted for path, converted in made.items() if path not in tables}
        made |= {ours.first(path): converted for path, converted in ids.made.items()}
    _possible(made, ours.named)
    fates: list[TensorTransfer] = []
    used: set[str] = set()
    for path, tensor in distinct_tensors(ours.named).items():
        names = ours.names(path)
        at = None if path in tables else next((name for name in names if _fits(name, ours, theirs)), None)
        kind: Kind = "new"
        value, how = tensor, _beginning(tensor)
        if path in made:
            kind, value, how = "converted", made[path].value, made[path].method
            used.update(theirs.first(name) for name in names)
        elif at is not None:
            kind, value, how = "kept", theirs.named[at], _rounded(theirs.named[at], tensor)
            used.add(theirs.first(at))
        with torch.no_grad():
            tensor.copy_(value)
        fates.append(TensorTransfer(path, kind, tensor.numel(), how))
    left = [(path, tensor) for path, tensor in distinct_tensors(theirs.named).items() if path not in used]
    return WeightTransfer((*fates, *(TensorTransfer(path, "dropped", tensor.numel()) for path, tensor in left)))


@final
class _Side:
    """A model's tensors, by each of their names."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.named = named_tensors(model)
        self._tied = tied_names(self.named)

    def first(self, path: str) -> str:
        """The name that counts, of a tensor with several."""
        return self._tied.get(path, path)

    def names(self, path: str) -> list[str]:
        return [path, *(alias for alias, first in self._tied.items() if first == path)]

    def role(self, path: str) -> Role | None:
        """What a parameter is for; a buffer is for nothing that is known."""
        about = self.model.parameter_info.get(self.first(path))
        return about.role if about is not None else None

    def component(self, path: str) -> Component | None:
        """The innermost component that a tensor belongs to."""
        words = path.split(".")[:-1]
        for end in range(len(words), 0, -1):
            module = self.model.get_submodule(".".join(words[:end]))
            if isinstance(module, Component):
                return module
        return None


def _converted(model: nn.Module, source: nn.Module) -> Iterator[tuple[str, ConvertedTensor]]:
    """What modules make of those in their places, the inner ones first: an outer one has the last word."""
    others = dict(source.named_modules(remove_duplicate=False))
    for path, module in reversed(list(model.named_modules())):
        if isinstance(module, WeightConverter) and path in others:
            for name, made in module.convert_weights(others[path]).items():
                yield f"{path}.{name}", made


def _fits(path: str, ours: _Side, theirs: _Side) -> bool:
    if path not in theirs.named or theirs.named[path].shape != ours.named[path].shape:
        return False
    owner, other = ours.component(path), theirs.component(path)
    alone = owner is not None and owner.class_specific
    return ours.role(path) == theirs.role(path) and (not alone or type(owner) is type(other))


def _possible(made: Mapping[str, ConvertedTensor], ours: Mapping[str, Tensor]) -> None:
    """Refuses conversions into what the model has not."""
    for path, converted in made.items():
        shape = tuple(ours[path].shape) if path in ours else None
        if shape != tuple(converted.value.shape):
            what = f"`adopt` made a tensor of the shape {tuple(converted.value.shape)}"
            valid = "a tensor that the module has" if shape is None else f"its own shape, {shape}"
            raise PluginError(Problem(code="misshapen", path=path, message=what, valid=valid))


def _rounded(theirs: Tensor, own: Tensor) -> str:
    return "" if theirs.dtype == own.dtype else f"rounded to {str(own.dtype).removeprefix('torch.')}"


def _beginning(tensor: Tensor) -> str:
    """What a new tensor begins as: one of zeros that is added changes nothing."""
    plain = tensor.detach().reshape(-1)
    if not len(plain) or not bool((plain == plain[0]).all()):
        return "drawn"
    return f"all {float(plain[0]):g}"


def _finite(tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        what = f"the saved model has tensors with NaN or infinity in them: {join_names(broken, 6)}"
        raise StoreError(Problem(code="not-finite", message=what, valid="a model whose training did not diverge"))
