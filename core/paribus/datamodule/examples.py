"""Examples of a split, formed and corrupted by objectives as a function of (seed, epoch, number).

Batches of examples of similar lengths need less padding; an epoch has the same examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from torch import Tensor

from paribus.datamodule.packing import ConcatenatedDocuments, PackedDocuments
from paribus.errors import Problem, SpecError
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.parts.random_draws import Draw
from paribus.random_keys import key64
from paribus.slots.corpus import Ints, Tokens
from paribus.slots.objective import Objective, TrainingExamples
from paribus.slots.tokenizer import Vocabulary


@final
class Examples:
    """Examples of one split, as the objectives form and corrupt them."""

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
        self.former = next(
            (name for name, objective in objectives.items() if objective.traits.get("example_kind")), None
        )
        self.packed: PackedDocuments | None = None  # for packed documents
        self._flow: ConcatenatedDocuments | None = None  # for concatenated documents
        if self.former is not None:
            self.count = objectives[self.former].example_count(tokens, length)
            return
        self.raw = max(objective.text_length(length) for objective in objectives.values())
        needs_sentences = any("sentences" in objective.traits.get("needs", []) for objective in objectives.values())
        if documents == "packed":
            self.packed = PackedDocuments(tokens, vocabulary, self.raw, sentences=needs_sentences)
            self.count = self.packed.count
        else:
            self._flow = ConcatenatedDocuments(
                tokens, vocabulary, apart=documents == "apart", sentences=needs_sentences
            )
            self.count = self._flow.count(self.raw)

    def lengths(self) -> Ints:
        """Return the length of each example."""
        lengths = (
            self.objectives[self.former].example_lengths(self.tokens, self.length) if self.former is not None else None
        )
        if lengths is None:
            raise _equal_lengths(", ".join(self.objectives))
        return np.asarray(lengths)

    def batch(self, draw: Draw, length: int | None = None) -> Batch:
        """Return the examples `draw.index`, padded to `length` tokens."""
        formed = self.form(draw, length or self.length)
        targets = {self.former: formed.targets} if self.former else {}
        return form_batch(formed.streams, targets, self.objectives, draw)

    def batches(self, draw: Draw, size: int) -> list[Batch]:
        """Return the examples `draw.index` in batches of `size`, made at once."""
        whole = self.batch(draw)
        parts = (whole.rows(slice(start, start + size)) for start in range(0, len(draw.index), size))
        return [part._replace(counts=_counts(part.targets, self.objectives)) for part in parts]

    def form(self, draw: Draw, length: int) -> TrainingExamples:
        """Return the examples `draw.index` before any corruption, with the targets of the objective that forms them."""
        if self.former is not None:
            return self.objectives[self.former].form(self.tokens, length, draw)
        index = draw.index.numpy()
        if self.packed is not None:
            return TrainingExamples({"body": self.packed.examples(index)}, {})
        assert self._flow is not None
        return TrainingExamples({"body": self._flow.examples(index, self.raw)}, {})


def form_batch(
    streams: Mapping[str, Stream],
    targets: Mapping[str, Mapping[str, Tensor]],
    objectives: Mapping[str, Objective],
    draw: Draw,
) -> Batch:
    """Return a batch of formed examples, as the objectives corrupt them."""
    targets = dict(targets)
    # Objectives that corrupt the input come first, so that the others use the corrupted input.
    for name, objective in sorted(objectives.items(), key=lambda item: not item[1].traits.get("corrupts")):
        streams, targets[name] = objective.corrupt(streams, targets.get(name, {}), draw)
    return Batch(streams, targets, draw.index, _counts(targets, objectives))


def _counts(targets: Mapping[str, Mapping[str, Tensor]], objectives: Mapping[str, Objective]) -> dict[str, Tensor]:
    return {
        f"{name}/{term}": (targets[name][label] != IGNORED).sum()
        for name, objective in objectives.items()
        for term, label in objective.terms.items()
    }


def _equal_lengths(objective: str) -> SpecError:
    message = f"data.bucket sorts examples by length, but all examples of `{objective}` have the same length"
    return SpecError(
        Problem(code="unused-option", path="data.bucket", message=message, valid="0, or examples that are padded")
    )


LENGTH_MULTIPLE: Final = 8  # lengths of batches are multiples of this: few shapes, and efficient ones


def bucket_order(order: Ints, lengths: Ints, batch: int, window: int, *, seed: int, epoch: int) -> Ints:
    """Return the order of an epoch's examples, sorted by length within each `window` of batches.

    The last examples of `order` that fill no batch are dropped, as without sorting. Batches of a window are shuffled
    by seed and epoch, so that lengths do not rise and fall.
    """
    used = order[: len(order) // batch * batch]
    parts = []
    for number, start in enumerate(range(0, len(used), batch * window)):
        part = used[start : start + batch * window]
        part = part[np.argsort(lengths[part], kind="stable")].reshape(-1, batch)
        rng = np.random.Generator(np.random.Philox(key=key64(seed, epoch, "bucket", number)))
        parts.append(part[rng.permutation(len(part))].reshape(-1))
    return np.concatenate(parts) if parts else used


def padded_length(lengths: Ints, limit: int) -> int:
    """Return the length to which a batch of examples of these lengths is padded."""
    return min(limit, -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
