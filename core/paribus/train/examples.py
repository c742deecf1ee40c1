"""The examples of a split: formed, then corrupted, and nothing in them but what (seed, epoch, number) says.

Batches of examples of about one length, where examples differ: less padding, and the same examples an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from torch import Tensor

from paribus.errors import Problem, SpecError
from paribus.keyed import key64
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.parts.draw import Draw
from paribus.slots.objective import Objective, TrainingExamples
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.tokens import Ints, Tokens
from paribus.train.packing import ConcatenatedDocuments, PackedDocuments


@final
class Examples:
    """The examples of one split, as a list of objectives forms and corrupts them."""

    def __init__(
        self,
        tokens: Tokens,
        objectives: Mapping[str, Objective],
        length: int,
        vocabulary: Vocabulary,
        documents: str = "mixed",
    ) -> None:
        self.tokens = tokens
        self.objectives = objectives
        self.length = length
        self.former = next((name for name, each in objectives.items() if each.traits.get("example_kind")), None)
        self.packed: PackedDocuments | None = None  # where whole documents share rows
        self._flow: ConcatenatedDocuments | None = None  # where documents are cut as they come
        if self.former is not None:
            self.count = objectives[self.former].example_count(tokens, length)
            return
        self.raw = max(objective.text_length(length) for objective in objectives.values())
        told = any("sentences" in objective.traits.get("needs", []) for objective in objectives.values())
        if documents == "packed":
            self.packed = PackedDocuments(tokens, vocabulary, self.raw, sentences=told)
            self.count = self.packed.count
        else:
            self._flow = ConcatenatedDocuments(tokens, vocabulary, apart=documents == "apart", sentences=told)
            self.count = self._flow.count(self.raw)

    def lengths(self) -> Ints:
        """How many rows each example takes, for whoever wants those of about one length together."""
        found = (
            self.objectives[self.former].example_lengths(self.tokens, self.length) if self.former is not None else None
        )
        if found is None:
            raise _all_alike(", ".join(self.objectives))
        return np.asarray(found)

    def batch(self, draw: Draw, length: int | None = None) -> Batch:
        """The examples `draw.index`; of `length` rows, where the longest of them takes no more."""
        formed = self._formed(draw, length or self.length)
        streams = formed.streams
        targets: dict[str, Mapping[str, Tensor]] = {self.former: formed.targets} if self.former else {}
        # Whoever changes what the model sees comes first, so that the others see what it will see.
        for name, objective in sorted(self.objectives.items(), key=lambda each: not each[1].traits.get("corrupts")):
            streams, targets[name] = objective.corrupt(streams, targets.get(name, {}), draw)
        return Batch(streams, targets, draw.index, self._counts(targets))

    def batches(self, draw: Draw, size: int) -> list[Batch]:
        """The examples `draw.index` in batches of `size`, all of them made at once."""
        whole = self.batch(draw)
        return [self._part(whole, slice(start, start + size)) for start in range(0, len(draw.index), size)]

    def _part(self, whole: Batch, rows: slice) -> Batch:
        streams = {
            name: Stream(*(None if vector is None else vector[rows] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
            for name, stream in whole.streams.items()
        }
        targets = {name: {key: value[rows] for key, value in own.items()} for name, own in whole.targets.items()}
        return Batch(streams, targets, whole.index[rows], self._counts(targets))

    def _formed(self, draw: Draw, length: int) -> TrainingExamples:
        if self.former is not None:
            return self.objectives[self.former].form(self.tokens, length, draw)
        index = draw.index.numpy()
        if self.packed is not None:
            return TrainingExamples({"body": self.packed.examples(index)}, {})
        assert self._flow is not None
        return TrainingExamples({"body": self._flow.examples(index, self.raw)}, {})

    def _counts(self, targets: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            f"{name}/{term}": (targets[name][label] != IGNORED).sum()
            for name, objective in self.objectives.items()
            for term, label in objective.terms.items()
        }


def _all_alike(objective: str) -> SpecError:
    message = f"data.bucket puts examples of about one length together, but those of `{objective}` are all of one"
    return SpecError(
        Problem(code="not-read", path="data.bucket", message=message, valid="0, or examples that are padded")
    )


LENGTH_MULTIPLE: Final = 8  # lengths of batches are whole numbers of these: few shapes, and those that hardware likes


def bucket_order(order: Ints, lengths: Ints, batch: int, window: int, *, seed: int, epoch: int) -> Ints:
    """The examples of an epoch, batch behind batch: sorted by length within each `window` of batches.

    Those that are left over by whole batches are the ones that `order` has last, as if none were sorted; the batches of
    a window come in an order of their own, keyed by seed and epoch, so that lengths do not grow and fall.
    """
    kept = order[: len(order) // batch * batch]
    found = []
    for number, start in enumerate(range(0, len(kept), batch * window)):
        part = kept[start : start + batch * window]
        part = part[np.argsort(lengths[part], kind="stable")].reshape(-1, batch)
        luck = np.random.Generator(np.random.Philox(key=key64(seed, epoch, "bucket", number)))
        found.append(part[luck.permutation(len(part))].reshape(-1))
    return np.concatenate(found) if found else kept


def padded_length(lengths: Ints, most: int) -> int:
    """How many rows a batch of examples of these lengths is padded to."""
    return min(most, -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
