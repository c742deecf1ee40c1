"""Examples and losses of the objectives of a trial: what they draw, which documents they predict, and their sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from paribus.datamodule.data import Data
from paribus.datamodule.examples import form_batch
from paribus.evidence.leaks import EXAMPLES, replaced_tokens, token_pool
from paribus.models.lightning_module import Model
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.parts.random_draws import Draw
from paribus.slots.objective import LossTerm, TrainingExamples

DRAWS: Final = "repeats its random draws"
LABELS: Final = "predicts other documents"
SUMS: Final = "loss is not a sum over labels"
REPEATS: Final = 512  # examples with the same tokens
BATCH: Final = 8  # examples that are made at once, and alone
TOLERANCE: Final = 1e-3  # relative, of sums in the precision of the model


def example_faults(data: Data) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the examples that the objectives of a trial make of its text."""
    if fault := _repeated_draws(data):
        yield DRAWS, fault
    if fault := _batch_fault(data):
        yield EXAMPLES, fault
    if fault := _label_fault(data):
        yield LABELS, fault


def _repeated_draws(data: Data) -> str:
    """Return a message if the corruption of one example, under many numbers, repeats after some of them."""
    numbers = torch.arange(REPEATS)
    formed = _formed(data, torch.zeros_like(numbers[:1]))
    rows = torch.zeros_like(numbers)
    streams = {path: stream.apply(lambda vector: vector[rows]) for path, stream in formed.streams.items()}
    targets = {key: value[rows] for key, value in formed.targets.items()}
    patterns = _patterns(_corrupted(data, TrainingExamples(streams, targets), numbers))
    if len(patterns.unique()) < 2:  # nothing is drawn
        return ""
    for period in range(1, REPEATS // 2 + 1):
        if torch.equal(patterns[period:], patterns[:-period]):
            return f"the same tokens are corrupted in the same way in every {_ordinal(period)} example"
    return ""


def _batch_fault(data: Data) -> str:
    """Return a message if an example that is made alone is not the one that is made in a batch."""
    numbers = torch.arange(min(BATCH, data.train_examples.count))
    formed = _formed(data, numbers)
    together = _corrupted(data, formed, numbers)
    for row in range(len(numbers)):
        one = slice(row, row + 1)
        streams = {path: stream.apply(lambda vector: vector[one]) for path, stream in formed.streams.items()}  # noqa: B023  # called at once
        targets = {key: value[one] for key, value in formed.targets.items()}
        alone = _corrupted(data, TrainingExamples(streams, targets), numbers[one])
        if not _are_equal(alone, together.rows(one)):
            return f"example {row} is another one alone than in a batch of {len(numbers)}"
    return ""


def _label_fault(data: Data) -> str:
    """Return a message if a label of a token is a token of another document, where documents are apart.

    The tokens of all documents but the first of each row are replaced. A label of the first may then be drawn at
    another place, but is no other token.
    """
    numbers = torch.arange(min(BATCH, data.train_examples.count))
    formed = _formed(data, numbers)
    body = formed.streams["body"]
    pool = token_pool(body)
    if body.documents is None or pool is None or data.train_examples.former is not None:
        return ""
    is_first = body.documents == body.documents[:, :1]
    is_other = ~is_first & (body.documents >= 0)
    if not bool(is_other.any()) or bool((body.documents[:, 0] < 0).any()):
        return ""
    tokens = torch.where(is_other, replaced_tokens(body.tokens, pool), body.tokens)
    changed = TrainingExamples({**formed.streams, "body": body._replace(tokens=tokens)}, formed.targets)
    before, after = _corrupted(data, formed, numbers), _corrupted(data, changed, numbers)
    documents = before.streams["body"].documents if "body" in before.streams else None
    if documents is None:
        return ""
    is_own = documents == documents[:, :1]
    for name, labels in before.targets.items():
        for key, one in labels.items():
            other = after.targets[name][key]
            if one.shape != is_own.shape or other.shape != one.shape:
                continue
            differs = (one != other) & (one != IGNORED) & (other != IGNORED) & is_own
            for row, place in differs.nonzero().tolist():
                if one[row, place] not in body.tokens[row][is_other[row]]:  # another kind of label, drawn elsewhere
                    continue
                return f"the label of `{name}` at token {place} of example {row} is a token of another document"
    return ""


def loss_faults(model: Model, example: Batch, other: Batch) -> Iterator[tuple[str, str]]:
    """Yield a loss of two examples that is not the sum of theirs, and an auxiliary loss that grows with the batch.

    The model has no dropout, and is left in training mode.
    """
    both = _joined(example, other)
    with torch.no_grad():
        model.eval()
        if both is not None:
            yield from _sum_faults(
                *(model.terms(model.run(part, model.trained), model.trained) for part in (both, example, other))
            )
        model.train()
        one, two = (_auxiliary(model, part) for part in (example, example.rows([0, 0])))
    if abs(one - two) > TOLERANCE * abs(one):
        yield SUMS, f"the auxiliary loss of an example is {one:.4g}, and {two:.4g} if the example is there twice"


def _sum_faults(
    both: Mapping[str, LossTerm], one: Mapping[str, LossTerm], other: Mapping[str, LossTerm]
) -> Iterator[tuple[str, str]]:
    for name, term in both.items():
        for what, whole, parts in (
            ("loss", term.total, (one[name].total, other[name].total)),
            ("number of labels", term.count, (one[name].count, other[name].count)),
        ):
            expected = sum(map(float, parts))
            if abs(float(whole) - expected) > TOLERANCE * max(map(abs, map(float, parts))):
                yield (
                    SUMS,
                    f"the {what} `{name}` of two examples is {float(whole):.4g}, and {expected:.4g} for each alone",
                )
                return


def _auxiliary(model: Model, batch: Batch) -> float:
    run = model.run(batch, model.trained)
    for part in model.topology.parts:
        if part.path in batch.streams:
            run.output(part.path)
    auxiliary = run.auxiliary()
    return 0.0 if auxiliary is None else float(auxiliary)


def _joined(one: Batch, other: Batch) -> Batch | None:
    """Return a batch of both, or None if their tensors differ in shape."""
    streams: dict[str, Stream] = {}
    for path, stream in one.streams.items():
        pairs = list(zip(stream, other.streams[path], strict=True))
        if any(a is not None and (b is None or a.shape[1:] != b.shape[1:]) for a, b in pairs):
            return None
        streams[path] = Stream(*(None if a is None else torch.cat([a, b]) for a, b in pairs))  # type: ignore[arg-type, list-item]  # a NamedTuple loses which field may be None
    targets: dict[str, dict[str, Tensor]] = {}
    for name, labels in one.targets.items():
        if any(value.shape[1:] != other.targets[name][key].shape[1:] for key, value in labels.items()):
            return None
        targets[name] = {key: torch.cat([value, other.targets[name][key]]) for key, value in labels.items()}
    return Batch(streams, targets, torch.cat([one.index, other.index]))


def _are_equal(alone: Batch, together: Batch) -> bool:
    """Return whether two batches of one example are equal, apart from padding on their right."""
    pairs = [
        *(
            (one, other)
            for path in alone.streams
            for one, other in zip(alone.streams[path], together.streams[path], strict=True)
        ),
        *(
            (value, together.targets[name][key])
            for name, labels in alone.targets.items()
            for key, value in labels.items()
        ),
    ]
    for one, other in pairs:
        if one is None or other is None or one.dim() != other.dim():
            if one is not other:
                return False
            continue
        common = min(one.shape[-1], other.shape[-1])
        if not torch.equal(one[..., :common], other[..., :common]):
            return False
    return True


def _formed(data: Data, numbers: Tensor) -> TrainingExamples:
    return data.train_examples.form(Draw(data.seed, 0, numbers), data.train_examples.length)


def _corrupted(data: Data, formed: TrainingExamples, numbers: Tensor) -> Batch:
    examples = data.train_examples
    targets: Mapping[str, Mapping[str, Tensor]] = {} if examples.former is None else {examples.former: formed.targets}
    return form_batch(formed.streams, targets, examples.objectives, Draw(data.seed, 0, numbers))


def _patterns(batch: Batch) -> Tensor:
    """Return a number for each row of a batch; rows with equal tokens and labels have the same."""
    numbers: Tensor
    _, numbers = torch.unique(_table(batch), dim=0, return_inverse=True)
    return numbers


def _table(batch: Batch) -> Tensor:
    """Return all tokens and labels of a batch as a table with a row for each example."""
    vectors: list[Tensor] = [vector for stream in batch.streams.values() for vector in stream if vector is not None]
    vectors += [value for labels in batch.targets.values() for value in labels.values()]
    return torch.cat([vector.reshape(len(vector), -1).double() for vector in vectors], dim=1)


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
