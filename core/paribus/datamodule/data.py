"""The LightningDataModule: the examples of a step are a function of (seed, step) only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from paribus.assembly.devices import move_batch
from paribus.datamodule.examples import Examples, bucket_order, padded_length
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import DataError, Problem, SpecError
from paribus.parts.batch import Batch, Stream
from paribus.parts.random_draws import Draw, order
from paribus.slots.corpus import Ints, Tokens
from paribus.slots.objective import Objective

BATCHED_TOKENS = 1 << 16  # tokens that are prepared at once, for several steps
VALIDATION = -1  # epoch in the key of validation draws, with seed 0: equal in all trials of a study


@dataclass(frozen=True)
class DataOptions:
    """Options under `data:`."""

    batch: int
    workers: int = 0
    validation: int = 512  # maximum number of evaluated examples
    evaluations: int = 4  # in a run; the last one is at its end
    documents: str = "mixed"  # apart: tokens attend within their document; packed: whole documents, apart
    bucket: int = 0  # batches that are sorted by length together; 0: no sorting


@final
class Data(LightningDataModule):
    """Batches of a corpus, formed and corrupted by the objectives. Independent of the model."""

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
        self.completed_steps = 0  # of a resumed run
        self.train_examples = self.examples(encoded.train, trained, length)
        self.val_examples = self.examples(encoded.val, evaluated, length)
        self.val_count = min(options.validation, self.val_examples.count)
        self._evaluated: Ints = np.arange(self.val_count)
        if self.val_examples.former is not None:  # the first documents may all be of one kind
            self._evaluated = np.sort(order(0, VALIDATION, self.val_examples.count)[: self.val_count])
        self._timed = False  # whether an objective depends on the progress of the training
        self._lengths = self.train_examples.lengths() if options.bucket else None
        self._order: tuple[int, Ints] | None = None
        self._together = 0  # number of steps that are prepared at once; 0: not determined yet
        self._ahead: tuple[int, int, list[Batch]] | None = None  # epoch, first step, and batches
        self.host_batch: Batch | None = None  # the micro-batch that was moved to the device last, on the CPU
        self._whole: tuple[int, Batch] | None = None  # the step that was divided last
        if self.train_examples.count < options.batch:
            raise DataError(_too_small("training", self.train_examples.count, options.batch, "data.batch"))
        if self.val_count < 1:
            raise DataError(_too_small("validation", self.val_count, 1, "corpus"))

    def examples(self, tokens: Tokens, objectives: Mapping[str, Objective], length: int) -> Examples:
        """Return examples of `length` tokens, as the objectives form and corrupt them."""
        return Examples(tokens, objectives, length, self.encoded.packing_vocabulary, self.options.documents)

    @property
    def steps_an_epoch(self) -> int:
        return self.train_examples.count // self.batch_size

    @property
    def fill(self) -> float | None:
        """Fraction of the positions with text, where whole documents are packed."""
        packed = self.train_examples.packed
        return None if packed is None else packed.fill

    @property
    def dropped(self) -> dict[str, int]:
        """Number of inputs that are in no example of either split, by reason."""
        counts = Counter(self.encoded.dropped)
        for examples in (self.train_examples, self.val_examples):
            for objective in examples.objectives.values():
                counts.update(objective.skipped_documents(examples.tokens, examples.length))
        return dict(counts)

    def step(self, step: int) -> Batch:
        """Return the whole batch of an optimizer step."""
        epoch, number = divmod(step, self.steps_an_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._ordered(epoch))
        if self._together > 1:
            return self._prepared(epoch, number)
        start = number * self.batch_size
        index = self._order[1][start : start + self.batch_size]
        length = None if self._lengths is None else padded_length(self._lengths[index], self.train_examples.length)
        places = torch.arange(start, start + len(index))
        draw = Draw(self.seed, epoch, torch.from_numpy(index), step / self.steps if self.steps else 0.0, places)
        batch = self.train_examples.batch(draw, length)
        self._timed = self._timed or draw.timed
        if self._together == 0:  # batches that depend on the step or their longest example are made singly
            alone = draw.timed or length is not None
            self._together = (
                1
                if alone
                else max(1, BATCHED_TOKENS // sum(stream.tokens.numel() for stream in batch.streams.values()))
            )
        return batch

    def changes_during_training(self) -> bool:
        """Return True if the examples depend on the progress of the training."""
        self.step(0)
        return self._timed

    def _prepared(self, epoch: int, number: int) -> Batch:
        """Return a batch of an epoch, prepared together with the batches around it, which saves calls of numpy.

        An example is the same in any batch, so each batch is the same as if it were prepared alone.
        """
        start = number - number % self._together
        if self._ahead is None or self._ahead[:2] != (epoch, start):
            end = min(start + self._together, self.steps_an_epoch)
            assert self._order is not None, "`step` sets the order of the epoch"
            index = self._order[1][start * self.batch_size : end * self.batch_size]
            places = torch.arange(start * self.batch_size, end * self.batch_size)
            draw = Draw(self.seed, epoch, torch.from_numpy(index), places=places)
            self._ahead = (epoch, start, self.train_examples.batches(draw, self.batch_size))
            assert not draw.timed, "an objective depends on the progress at all steps or at none"
        return self._ahead[2][number - start]

    def micro_batch(self, item: int, rank: int = 0, ranks: int = 1) -> Batch:
        """Return micro-batch `item` of the run: a share of the rows of its step, with the counts of the whole step."""
        step, share = divmod(item, self.accumulate)
        shares = self.accumulate * ranks
        if shares == 1:
            return self.step(step)
        if self._whole is None or self._whole[0] != step:
            self._whole = (step, self.step(step))
        return share_of(self._whole[1], share * ranks + rank, shares)

    def validation_batch(self, number: int) -> Batch:
        index = self._evaluated[number * self.batch_size : (number + 1) * self.batch_size]
        return self.val_examples.batch(Draw(0, VALIDATION, torch.from_numpy(index)))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of all steps of the run, or of one epoch where the number of steps is not known."""
        rank, ranks = 0, 1
        if self.trainer is not None:  # the trainer's options decide, not the spec's
            rank, ranks = self.trainer.global_rank, self.trainer.world_size
            self.accumulate = self.trainer.accumulate_grad_batches
        if self.accumulate * ranks > self.batch_size:
            raise SpecError(_too_many_shares(self.batch_size, self.accumulate, ranks))
        count = (self.steps_an_epoch if self.steps is None else self.steps - self.completed_steps) * self.accumulate
        start, numbers = self.completed_steps * self.accumulate, _numbers(count)
        batches = _Batches(lambda number: self.micro_batch(start + numbers.epoch * count + number, rank, ranks), count)
        return self._loader(batches, numbers, self.options.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of all evaluated examples, on every rank: so no share is padded, and the mean is exact."""
        count = -(-self.val_count // self.batch_size)
        return self._loader(_Batches(self.validation_batch, count), _numbers(count), 0)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        self.host_batch = batch
        return move_batch(batch, device)

    def _ordered(self, epoch: int) -> Ints:
        """Return the order of the examples in an epoch."""
        shuffled = order(self.seed, epoch, self.train_examples.count)
        if self._lengths is None:
            return shuffled
        window = self.options.bucket
        return bucket_order(shuffled, self._lengths, self.batch_size, window, seed=self.seed, epoch=epoch)

    def _loader(self, batches: _Batches, numbers: DistributedSampler[int], workers: int) -> DataLoader[Batch]:
        # fork: a fork server, the default, would import torch again for each trial.
        context = "fork" if workers else None
        # A separate generator: a loader draws a seed from it, which would shift the dropout of the model.
        return _Loader(
            batches,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_identity,  # type: ignore[arg-type]  # without batch_size it receives an item of the dataset
            multiprocessing_context=context,
            generator=torch.Generator(),
        )


def _identity(batch: Batch) -> Batch:
    """Replace torch's default collate function, which searches for arrays to convert."""
    return batch


@final
class _Loader(DataLoader[Batch]):
    """DataLoader that calls the dataset directly where it has no workers, without torch's profiled fetcher."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch returns an iterator of its own
        return super().__iter__() if self.num_workers else map(self.dataset.__getitem__, self.sampler)


@final
class _Batches(Dataset[Batch]):
    """Dataset of batches by number."""

    def __init__(self, make: Callable[[int], Batch], count: int) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Batch:
        return self.make(number)


def _numbers(count: int) -> DistributedSampler[int]:
    """Sampler of 0, 1 … on every rank. Lightning does not replace a sampler of this class, and sets its epoch."""
    return DistributedSampler(range(count), num_replicas=1, rank=0, shuffle=False)  # type: ignore[arg-type]  # it uses the length only


def share_of(batch: Batch, share: int, shares: int) -> Batch:
    """Return every `shares`-th row of a batch, starting at `share`, with the counts of the whole batch."""
    return batch.rows(slice(share, None, shares))._replace(counts=batch.counts, micro_batches=shares)


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
        message=f"a batch of {batch} examples cannot be divided into {among}: some would be empty",
        valid=f"a `data.batch` of at least {accumulate * ranks}",
    )
