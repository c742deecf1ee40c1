"""A model begins from one that reads other ids: the rows of the pieces that both vocabularies have are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch

from paribus.assembly.build import build
from paribus.assembly.components import Classes
from paribus.kernels import KERNELS
from paribus.parts.weight_conversion import ConvertedTensor
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.train.model import Model
from paribus.train.states import named_tensors

Spec = Mapping[str, Any]


@final
class RemappedTables(NamedTuple):
    """What becomes of the tensors that have a row for each id."""

    tables: frozenset[str]  # all of the model's
    made: Mapping[str, ConvertedTensor]  # of those that the saved model has as well


def remap_tables(model: Model, source: Model, new: Tokenizer, old: Tokenizer, classes: Classes) -> RemappedTables:
    """`new` numbers the ids of `model`, and `old` those of `source`; a piece that only `new` has begins as drawn."""
    both = shared_tokens(new, old)
    ours, theirs = named_tensors(model), named_tensors(source)
    tables = vocabulary_tensors(model.spec, classes, new.vocabulary())
    there = vocabulary_tensors(source.spec, classes, old.vocabulary())
    to, of = (torch.tensor(ids, dtype=torch.long) for ids in ([*both], [*both.values()]))
    made: dict[str, ConvertedTensor] = {}
    for path in sorted(tables & there):
        if ours[path].shape[1:] == theirs[path].shape[1:]:
            value = ours[path].detach().clone()
            value[to] = theirs[path].detach()[of].to(value)
            drawn = len(value) - len(both)
            made[path] = ConvertedTensor(value, f"the rows of {len(both):,} pieces that both have kept, {drawn:,} new")
    return RemappedTables(tables, made)


def shared_tokens(new: Tokenizer, old: Tokenizer) -> dict[int, int]:
    """The ids of `new` whose pieces `old` has as well, and their ids there; one that two ids share tells neither."""
    ours, theirs = _pieces(new), _pieces(old)
    return {token: theirs[piece] for piece, token in ours.items() if piece in theirs}


def vocabulary_tensors(spec: Spec, classes: Classes, vocabulary: Vocabulary) -> frozenset[str]:
    """The tensors with a row for each id: those that would be longer, were there one id more."""
    plain = {**spec, "dims": {**spec["dims"], "vocabulary": None}}
    shapes = [
        {
            f"{name}.{path}": tensor.shape
            for name, child in build(plain, classes, vocabulary._replace(size=size), KERNELS).children().items()
            for path, tensor in child.named_parameters(remove_duplicate=False)
        }
        for size in (vocabulary.size, vocabulary.size + 1)
    ]
    return frozenset(path for path in shapes[0] if shapes[0][path][:1] != shapes[1][path][:1])


def _pieces(tokenizer: Tokenizer) -> dict[str, int]:
    named = [tokenizer.piece(token) for token in range(tokenizer.vocabulary().size)]
    counts = Counter(named)
    return {piece: token for token, piece in enumerate(named) if counts[piece] == 1}
