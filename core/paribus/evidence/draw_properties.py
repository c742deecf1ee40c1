"""Random draws of the objectives of a trial: they differ between examples, and do not repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from paribus.datamodule.data import Data
from paribus.datamodule.examples import corrupt
from paribus.parts.batch import Batch, Stream
from paribus.parts.random_draws import Draw

DRAWS: Final = "repeats its random draws"
EXAMPLES: Final = 512  # with the same tokens


def draw_faults(data: Data) -> Iterator[tuple[str, str]]:
    """Yield a message if the corruption of one example, under many numbers, repeats after some of them."""
    examples = data.train_examples
    formed = examples.form(Draw(data.seed, 0, torch.zeros(1, dtype=torch.int64)), examples.length)
    numbers = torch.arange(EXAMPLES)
    rows = torch.zeros_like(numbers)
    streams = {
        path: Stream(*(None if vector is None else vector[rows] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        for path, stream in formed.streams.items()
    }
    targets = {key: value[rows] for key, value in formed.targets.items()}
    batch = corrupt(
        streams,
        {} if examples.former is None else {examples.former: targets},
        examples.objectives,
        Draw(data.seed, 0, numbers),
    )
    patterns = _patterns(batch)
    if len(patterns.unique()) < 2:  # nothing is drawn
        return
    for period in range(1, EXAMPLES // 2 + 1):
        if torch.equal(patterns[period:], patterns[:-period]):
            yield DRAWS, f"the same tokens are corrupted in the same way in every {_ordinal(period)} example"
            return


def _patterns(batch: Batch) -> Tensor:
    """Return a number for each row of a batch; rows with equal tokens and labels have the same."""
    vectors: list[Tensor] = [vector for stream in batch.streams.values() for vector in stream if vector is not None]
    vectors += [value for labels in batch.targets.values() for value in labels.values()]
    table = torch.cat([vector.reshape(len(vector), -1).double() for vector in vectors], dim=1)
    numbers: Tensor
    _, numbers = torch.unique(table, dim=0, return_inverse=True)
    return numbers


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
