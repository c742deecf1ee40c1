"""The LightningDataModule: which examples a step sees is a function of (seed, step), and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from paribus.errors import DataError, Problem
from paribus.parts.draw import Draw, order
from paribus.parts.rows import IGNORED, Batch, Stream
from paribus.slots.objective import Formed, Objective, Tokens
from paribus.train.tokens import Encoded

VALIDATION = -1  # the epoch that validation draws are keyed by, with seed 0: the same for every trial of a study


@dataclass(frozen=True)
class Feed:
    """What a spec says under `data:`."""

    batch: int
    workers: int = 0
    validation: int = 512  # at most so many examples are evaluated
    documents: str = "mixed"  # apart: rows of one document do not see those of another


@final
class Data(LightningDataModule):
    """Batches of a corpus, formed and corrupted by objectives. It needs no model and touches no parameter."""

    def __init__(
        self,
        encoded: Encoded,
        trained: Mapping[str, Objective],
        evaluated: Mapping[str, Objective],
        options: Feed,
        *,
        length: int,
        seed: int,
        steps: int | None = None,
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        self.encoded = encoded
        self.options = options
        self.batch_size = options.batch
        self.seed = seed
        self.steps = steps
        self.accumulate = accumulate
        self.done = 0  # steps taken before: a resumed run starts behind them
        self.train_examples = Examples(encoded.train, trained, length, encoded, options.documents)
        self.val_examples = Examples(encoded.val, evaluated, length, encoded, options.documents)
        self.val_count = min(options.validation, self.val_examples.count)
        self._order: tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]] | None = None
        if self.train_examples.count < options.batch:
            raise DataError(_too_small("training", self.train_examples.count, options.batch, "data.batch"))
        if self.val_count < 1:
            raise DataError(_too_small("validation", self.val_count, 1, "corpus"))

    @property
    def steps_an_epoch(self) -> int:
        return self.train_examples.count // self.batch_size

    def step(self, step: int) -> Batch:
        """The batch of optimizer step `step`, whole."""
        epoch, at = divmod(step, self.steps_an_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, order(self.seed, epoch, self.train_examples.count))
        index = torch.from_numpy(self._order[1][at * self.batch_size : (at + 1) * self.batch_size])
        return self.train_examples.batch(Draw(self.seed, epoch, index))

    def micro(self, item: int, rank: int = 0, ranks: int = 1) -> Batch:
        """Micro-batch `item` of the run: a share of its step's rows, with the counts of the whole step."""
        step, share = divmod(item, self.accumulate)
        whole = self.step(step)
        return whole if self.accumulate * ranks == 1 else _rows(whole, share * ranks + rank, self.accumulate * ranks)

    def validation_batch(self, number: int) -> Batch:
        first = number * self.batch_size
        index = torch.arange(first, min(first + self.batch_size, self.val_count))
        return self.val_examples.batch(Draw(0, VALIDATION, index))

    def train_dataloader(self) -> DataLoader[Batch]:
        steps = self.steps if self.steps is not None else self.steps_an_epoch
        rank, ranks = (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)
        items = range(self.done * self.accumulate, steps * self.accumulate)
        return self._loader(_Batches(lambda item: self.micro(item, rank, ranks), items), self.options.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        count = -(-self.val_count // self.batch_size)
        return self._loader(_Batches(self.validation_batch, range(count)), 0)

    def _loader(self, batches: _Batches, workers: int) -> DataLoader[Batch]:
        # fork: the default, a fork server of the worker's own, imports torch anew for each trial.
        context = "fork" if workers else None
        return DataLoader(batches, batch_size=None, num_workers=workers, multiprocessing_context=context)


@final
class Examples:
    """The examples of one split, as a list of objectives forms and corrupts them."""

    def __init__(
        self, tokens: Tokens, objectives: Mapping[str, Objective], length: int, encoded: Encoded, documents: str
    ) -> None:
        self.tokens = tokens
        self.objectives = objectives
        self.length = length
        self.former = next((name for name, each in objectives.items() if each.traits.get("forms")), None)
        self._flow = Flow(tokens, encoded, apart=documents == "apart") if self.former is None else None
        if self._flow is not None:
            self.raw = max(objective.raw(length) for objective in objectives.values())
            self.count = len(self._flow.ids) // self.raw
        else:
            assert self.former is not None
            self.count = objectives[self.former].examples(tokens, length)

    def batch(self, draw: Draw) -> Batch:
        formed = self._formed(draw)
        streams = formed.streams
        targets: dict[str, Mapping[str, Tensor]] = {self.former: formed.targets} if self.former else {}
        for name, objective in self.objectives.items():
            streams, targets[name] = objective.corrupt(streams, targets.get(name, {}), draw)
        return Batch(streams, targets, draw.index, self._counts(targets))

    def _formed(self, draw: Draw) -> Formed:
        if self._flow is None:
            assert self.former is not None
            return self.objectives[self.former].form(self.tokens, self.length, draw)
        return Formed({"body": self._flow.cut(draw.index.numpy(), self.raw)}, {})

    def _counts(self, targets: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            f"{name}/{term}": (targets[name][label] != IGNORED).sum()
            for name, objective in self.objectives.items()
            for term, label in objective.terms.items()
        }


@final
class Flow:
    """All documents of a split in one flow of ids, each closed by the tokenizer's end mark."""

    def __init__(self, tokens: Tokens, encoded: Encoded, *, apart: bool) -> None:
        ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        specials = encoded.vocabulary.specials
        mark = specials.get("eos", specials.get("sep"))
        ids = np.asarray(tokens.ids, dtype=np.int64)
        self.ids = ids if mark is None else np.insert(ids, ends, mark)
        self._ends = ends if mark is None else ends + np.arange(1, len(ends) + 1)
        self._apart = apart

    def cut(self, index: np.ndarray[tuple[int], np.dtype[np.int64]], length: int) -> Stream:
        """Pieces number `index` of `length` ids; kept apart by document where that was asked for."""
        places = index[:, None] * length + np.arange(length)[None, :]
        tokens = torch.from_numpy(self.ids[places])
        if not self._apart:
            return Stream(tokens)
        document = np.searchsorted(self._ends, places, side="right")
        return Stream(tokens, documents=torch.from_numpy(document - document[:, :1]))


@final
class _Batches(Dataset[Batch]):
    """Batches by number: with no sampler but `range`, workers cannot change their order."""

    def __init__(self, make: Any, items: range) -> None:
        self.make = make
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Batch:
        batch: Batch = self.make(self.items[number])
        return batch


def _rows(batch: Batch, share: int, shares: int) -> Batch:
    """Every `shares`-th row of a batch, from `share` on; the counts stay those of the whole."""
    streams = {
        name: Stream(*(None if vector is None else vector[share::shares] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        for name, stream in batch.streams.items()
    }
    targets = {name: {key: value[share::shares] for key, value in own.items()} for name, own in batch.targets.items()}
    return Batch(streams, targets, batch.index[share::shares], batch.counts)


def _too_small(split: str, count: int, needed: int, path: str) -> Problem:
    return Problem(
        code="too-little-data",
        path=path,
        what=f"the {split} split gives {count} examples, but {needed} are needed",
        valid="a larger corpus, a smaller `data.batch` or a smaller `dims.length`",
    )
