"""The LightningDataModule: which examples a step sees is a function of (seed, step), and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from paribus.errors import DataError, Problem, SpecError
from paribus.parts.batch import Batch, Stream
from paribus.parts.draw import Draw, order
from paribus.slots.objective import Objective
from paribus.slots.tokens import Ints, Tokens
from paribus.train.examples import Examples, bucket_order, padded_length
from paribus.train.token_store import EncodedCorpus

BATCHED_TOKENS = 1 << 16  # tokens that are made at once, of as many steps as that takes
VALIDATION = -1  # the epoch that validation draws are keyed by, with seed 0: the same for every trial of a study


@dataclass(frozen=True)
class DataOptions:
    """What a spec says under `data:`."""

    batch: int
    workers: int = 0
    validation: int = 512  # at most so many examples are evaluated
    evaluations: int = 4  # over a run, the last one at its end
    documents: str = "mixed"  # apart: rows of one document do not see those of another; packed: whole ones, apart
    bucket: int = 0  # batches that are sorted by length together, and padded to what each needs; 0: none


@final
class Data(LightningDataModule):
    """Batches of a corpus, formed and corrupted by objectives. It needs no model and touches no parameter."""

    def __init__(
        self,
        encoded: EncodedCorpus,
        trained: Mapping[str, Objective],
        evaluated: Mapping[str, Objective],
        options: DataOptions,
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
        self.completed_steps = 0  # steps taken before: a resumed run starts behind them
        self.train_examples = self.examples(encoded.train, trained, length)
        self.val_examples = self.examples(encoded.val, evaluated, length)
        self.val_count = min(options.validation, self.val_examples.count)
        self._evaluated: Ints = np.arange(self.val_count)
        if self.val_examples.former is not None:  # of documents the first ones may be all of one kind
            self._evaluated = np.sort(order(0, VALIDATION, self.val_examples.count)[: self.val_count])
        self._timed = False  # whether an objective asks how far the training is
        self._lengths = self.train_examples.lengths() if options.bucket else None
        self._order: tuple[int, Ints] | None = None
        self._together = 0  # how many steps are made at once; 0: not known yet
        self._ahead: tuple[int, int, list[Batch]] | None = None  # the epoch, its first step, and those
        self._whole: tuple[int, Batch] | None = None  # the step that was cut last: its next share is asked for next
        if self.train_examples.count < options.batch:
            raise DataError(_too_small("training", self.train_examples.count, options.batch, "data.batch"))
        if self.val_count < 1:
            raise DataError(_too_small("validation", self.val_count, 1, "corpus"))

    def examples(self, tokens: Tokens, objectives: Mapping[str, Objective], length: int) -> Examples:
        """Examples of `length` rows, as objectives form and corrupt them."""
        return Examples(tokens, objectives, length, self.encoded.vocabulary, self.options.documents)

    @property
    def steps_an_epoch(self) -> int:
        return self.train_examples.count // self.batch_size

    @property
    def fill(self) -> float | None:
        """Which share of the rows is text, where whole documents share them."""
        packed = self.train_examples.packed
        return None if packed is None else packed.fill

    @property
    def dropped(self) -> dict[str, int]:
        """What of the corpus is in no example of either split, by reason."""
        found = Counter(self.encoded.dropped)
        for examples in (self.train_examples, self.val_examples):
            for objective in examples.objectives.values():
                found.update(objective.skipped_documents(examples.tokens, examples.length))
        return dict(found)

    def step(self, step: int) -> Batch:
        """The batch of optimizer step `step`, whole."""
        epoch, at = divmod(step, self.steps_an_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._ordered(epoch))
        if self._together > 1:
            return self._made(epoch, at)
        index = self._order[1][at * self.batch_size : (at + 1) * self.batch_size]
        length = None if self._lengths is None else padded_length(self._lengths[index], self.train_examples.length)
        draw = Draw(self.seed, epoch, torch.from_numpy(index), step / self.steps if self.steps else 0.0)
        batch = self.train_examples.batch(draw, length)
        self._timed = self._timed or draw.timed
        if self._together == 0:  # what depends on the step, and what is padded to the longest, is made alone
            alone = draw.timed or length is not None
            self._together = (
                1
                if alone
                else max(1, BATCHED_TOKENS // sum(stream.tokens.numel() for stream in batch.streams.values()))
            )
        return batch

    def changes_during_training(self) -> bool:
        """Whether an objective makes other examples as the training goes on."""
        self.step(0)
        return self._timed

    def _made(self, epoch: int, at: int) -> Batch:
        """Batch `at` of an epoch, made together with those around it: what numpy takes for a call is shared by all.

        An example is the same in any batch, so these are what each would be alone.
        """
        first = at - at % self._together
        if self._ahead is None or self._ahead[:2] != (epoch, first):
            last = min(first + self._together, self.steps_an_epoch)
            assert self._order is not None, "the order of the epoch was looked up by who calls"
            index = self._order[1][first * self.batch_size : last * self.batch_size]
            draw = Draw(self.seed, epoch, torch.from_numpy(index))
            self._ahead = (epoch, first, self.train_examples.batches(draw, self.batch_size))
            assert not draw.timed, "whether an objective asks how far the training is does not change"
        return self._ahead[2][at - first]

    def micro_batch(self, item: int, rank: int = 0, ranks: int = 1) -> Batch:
        """Micro-batch `item` of the run: a share of its step's rows, with the counts of the whole step."""
        step, share = divmod(item, self.accumulate)
        shares = self.accumulate * ranks
        if shares == 1:
            return self.step(step)
        if self._whole is None or self._whole[0] != step:
            self._whole = (step, self.step(step))
        return _share(self._whole[1], share * ranks + rank, shares)

    def validation_batch(self, number: int) -> Batch:
        index = self._evaluated[number * self.batch_size : (number + 1) * self.batch_size]
        return self.val_examples.batch(Draw(0, VALIDATION, torch.from_numpy(index)))

    def train_dataloader(self) -> DataLoader[Batch]:
        """The steps of the run, or of one epoch where no run was given a length; Lightning asks for as many epochs."""
        rank, ranks = 0, 1
        if self.trainer is not None:  # it cuts a step as it was told to, whatever the spec says
            rank, ranks = self.trainer.global_rank, self.trainer.world_size
            self.accumulate = self.trainer.accumulate_grad_batches
        if self.accumulate * ranks > self.batch_size:
            raise SpecError(_too_many_shares(self.batch_size, self.accumulate, ranks))
        count = (self.steps_an_epoch if self.steps is None else self.steps - self.completed_steps) * self.accumulate
        first, numbers = self.completed_steps * self.accumulate, _numbers(count)
        batches = _Batches(lambda number: self.micro_batch(first + numbers.epoch * count + number, rank, ranks), count)
        return self._loader(batches, numbers, self.options.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """All of what is evaluated, on every rank: so no share is padded, and the mean over ranks is the mean."""
        count = -(-self.val_count // self.batch_size)
        return self._loader(_Batches(self.validation_batch, count), _numbers(count), 0)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        if device.type == "cpu":  # where batches are made; it would be looked at tensor by tensor
            return batch
        moved: Batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    def _ordered(self, epoch: int) -> Ints:
        """In which order an epoch sees its examples."""
        found = order(self.seed, epoch, self.train_examples.count)
        if self._lengths is None:
            return found
        window = self.options.bucket
        return bucket_order(found, self._lengths, self.batch_size, window, seed=self.seed, epoch=epoch)

    def _loader(self, batches: _Batches, numbers: DistributedSampler[int], workers: int) -> DataLoader[Batch]:
        # fork: the default, a fork server of the worker's own, imports torch anew for each trial.
        context = "fork" if workers else None
        # A generator of its own: a loader draws a seed for workers that need none, and would move the model's dropout.
        return DataLoader(
            batches,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_as_made,  # type: ignore[arg-type]  # it is given what the dataset made, as there is no batch_size
            multiprocessing_context=context,
            generator=torch.Generator(),
        )


def _as_made(batch: Batch) -> Batch:
    """In place of torch's own, which looks for arrays to convert."""
    return batch


@final
class _Batches(Dataset[Batch]):
    """Batches by number."""

    def __init__(self, make: Callable[[int], Batch], count: int) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Batch:
        return self.make(number)


def _numbers(count: int) -> DistributedSampler[int]:
    """0, 1 … in order, on every rank: Lightning leaves a sampler of this class as it is, and tells it the epoch."""
    return DistributedSampler(range(count), num_replicas=1, rank=0, shuffle=False)  # type: ignore[arg-type]  # it asks for the length alone


def _share(batch: Batch, share: int, shares: int) -> Batch:
    """Every `shares`-th row of a batch, from `share` on; the counts stay those of the whole."""
    streams = {
        name: Stream(*(None if vector is None else vector[share::shares] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        for name, stream in batch.streams.items()
    }
    targets = {name: {key: value[share::shares] for key, value in own.items()} for name, own in batch.targets.items()}
    return Batch(streams, targets, batch.index[share::shares], batch.counts, shares)


def join_shares(shares: Sequence[Batch]) -> Batch:
    """Return the batch of a whole step from all of its shares, in their order."""

    def interleave(tensors: Sequence[Tensor | None]) -> Tensor | None:
        parts = [tensor for tensor in tensors if tensor is not None]
        if not parts:
            return None
        whole = parts[0].new_empty((sum(len(part) for part in parts), *parts[0].shape[1:]))
        for number, part in enumerate(parts):
            whole[number :: len(parts)] = part
        return whole

    streams = {
        name: Stream(*(interleave(field) for field in zip(*(share.streams[name] for share in shares), strict=True)))  # type: ignore[arg-type]  # as above
        for name in shares[0].streams
    }
    targets = {
        name: {key: interleave([share.targets[name][key] for share in shares]) for key in labels}
        for name, labels in shares[0].targets.items()
    }
    index = interleave([share.index for share in shares])
    return Batch(streams, targets, index, shares[0].counts)  # type: ignore[arg-type]  # no field of a target is None


def _too_small(split: str, count: int, needed: int, path: str) -> Problem:
    return Problem(
        code="too-little-data",
        path=path,
        message=f"the {split} split gives {count} examples, but {needed} are needed",
        valid="a larger corpus, a smaller `data.batch` or a smaller `dims.length`",
    )


def _too_many_shares(batch: int, accumulate: int, ranks: int) -> Problem:
    among = f"{accumulate} micro-batches" + (f" on each of {ranks} devices" if ranks > 1 else "")
    return Problem(
        code="empty-micro-batch",
        path="trainer.accumulate_grad_batches",
        message=f"a batch of {batch} examples cannot be cut into {among}: some would be empty",
        valid=f"a `data.batch` of at least {accumulate * ranks}",
    )
