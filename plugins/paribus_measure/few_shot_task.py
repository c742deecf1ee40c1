"""Texts and examples of few-shot prompts, from a labelled corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from torch import Tensor

from paribus import (
    Corpus,
    DataError,
    Document,
    EvaluatedModel,
    FewShotFormat,
    LabelledText,
    Problem,
    Split,
    join_names,
)

READ: Final = 1 << 16  # documents of each split that are read, of which
CANDIDATES: Final = 4096  # are used, evenly spread
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class Example(NamedTuple):
    """Text with the labels to choose from."""

    text: LabelledText  # with the words of the right label
    choices: tuple[str, ...]
    right: int  # number of the right one


class FewShotTask(NamedTuple):
    """Examples of both splits: prompts are made of those of the training split, and end in one to be answered."""

    train: Sequence[Example]
    val: Sequence[Example]
    balanced: bool  # the choices are classes, which the examples of a prompt have equally often


class Prompts(NamedTuple):
    """Texts to answer, with the examples that were drawn for each of them."""

    queries: Sequence[Example]
    drawn: Sequence[Sequence[Example]]
    order: Tensor  # (queries, shots): keys of their order in the prompt

    def text(self, number: int, shots: int, layout: FewShotFormat) -> str:
        """Return a prompt with the first `shots` examples that were drawn, in random order."""
        keys = self.order[number, :shots].tolist()
        places = sorted(range(shots), key=keys.__getitem__)
        examples = [self.drawn[number][place].text for place in places]
        return layout.prompt(examples, self.queries[number].text)


def read_task(corpus: Corpus, labels: Sequence[str]) -> FewShotTask:
    """Return the examples of a corpus; `labels` are words for its classes, if not those of the corpus.

    A text of the training split that is also in the validation split is left out.
    """
    documents = {split: _documents(corpus, split) for split in ("train", "val")}
    if "choices" in corpus.traits.get("provides", []):
        train, val = ([_question(document) for document in documents[split]] for split in ("train", "val"))
    else:
        names = tuple(labels or corpus.classes()) or _numbers([*documents["train"], *documents["val"]])
        train, val = ([_classified(document, names) for document in documents[split]] for split in ("train", "val"))
    held_out = {(example.text.text, example.text.pair) for example in val}
    return FewShotTask(
        [example for example in train if (example.text.text, example.text.pair) not in held_out],
        val,
        "choices" not in corpus.traits.get("provides", []),
    )


def format_of(template: str | None, separator: str, task: FewShotTask) -> FewShotFormat:
    """Return the format of the prompts of a task; `template` None: the default for its texts."""
    pairs = any(example.text.pair for example in (*task.val, *task.train))
    return FewShotFormat.of(template, separator, pairs=pairs, endings=not task.balanced, path="measure.template")


def _documents(corpus: Corpus, split: Split) -> list[Document]:
    documents = list(islice(corpus.documents(split), READ))
    return [documents[number] for number in spread(len(documents), CANDIDATES)]


def spread(count: int, limit: int) -> list[int]:
    """Return at most `limit` evenly spread numbers below `count`."""
    size = min(count, limit)
    return [number * count // size for number in range(size)]


def _numbers(documents: Sequence[Document]) -> tuple[str, ...]:
    """Return the numbers of the classes of a corpus that has no names for them."""
    return tuple(map(str, range(1 + int(max((max(document.labels, default=0) for document in documents), default=0)))))


def _classified(document: Document, names: tuple[str, ...]) -> Example:
    if len(document.labels) != 1 or document.labels[0] not in range(len(names)):
        found = join_names(f"{label:g}" for label in document.labels) or "none"
        raise _invalid(document, f"its label is {found}", f"one of 0 to {len(names) - 1}: {join_names(names)}")
    number = int(document.labels[0])
    return Example(LabelledText(document.text, names[number], " ".join(document.target)), names, number)


def _question(document: Document) -> Example:
    right, choices = int(document.labels[0]), tuple(choice.strip() for choice in document.target)
    if len(set(choices)) < max(len(choices), 2):
        raise _invalid(document, f"its choices are {join_names(choices) or 'none'}", "two or more, none twice")
    return Example(LabelledText(document.text, choices[right]), choices, right)


def _invalid(document: Document, message: str, valid: str) -> DataError:
    text = f"the document {document.name} cannot be a few-shot example: {message}"
    return DataError(Problem(code="labels", path="measure.corpus", message=text, valid=valid))


def fitting(examples: Sequence[Example], layout: FewShotFormat, encode: Encode, limit: int) -> list[Example]:
    """Return the examples that have at most `limit` tokens with each of their labels."""
    texts = [
        layout.example(example.text._replace(label=label)) + layout.separator
        for example in examples
        for label in example.choices
    ]
    sizes = iter([len(ids) for ids in encode(texts)])
    return [example for example in examples if max(next(sizes) for _ in example.choices) <= limit]


def draw_prompts(model: EvaluatedModel, task: FewShotTask, queries: Sequence[Example], shots: int) -> Prompts:
    """Draw the examples of each prompt by the seed of the trial, without one twice, as balanced as their number allows.

    A class has at most one example more than another, unless it has no more. Draws do not depend on the model.
    """
    draw, seed = model.draw(len(queries)), model.trial.seed
    picks = draw.uniform(f"few-shot examples {seed}", max(1, shots)).tolist()
    groups: dict[int, list[Example]] = {}
    for example in task.train:
        groups.setdefault(example.right if task.balanced else 0, []).append(example)
    members = [groups[number] for number in sorted(groups)]
    rounds: list[list[list[float]]] = []

    def class_keys(turn: int) -> list[list[float]]:
        """Return the keys of the order of the classes in one turn, for all prompts."""
        if turn == len(rounds):
            rounds.append(draw.uniform(f"few-shot classes {seed} {turn}", len(members)).tolist())
        return rounds[turn]

    drawn = [list(islice(_draw(members, picks[number], class_keys, number), shots)) for number in range(len(queries))]
    return Prompts(queries, drawn, draw.uniform(f"few-shot order {seed}", max(1, shots)))


def _draw(
    members: Sequence[Sequence[Example]],
    picks: Sequence[float],
    class_keys: Callable[[int], Sequence[Sequence[float]]],
    number: int,
) -> Iterator[Example]:
    """Yield examples in turns, in each of which every class that has one left has one."""
    rest = [list(examples) for examples in members]
    turn = 0
    numbers = iter(picks)
    while any(rest):
        order = sorted(range(len(rest)), key=class_keys(turn)[number].__getitem__)
        for examples in [rest[group] for group in order if rest[group]]:
            pick = next(numbers, None)
            if pick is None:
                return
            yield examples.pop(int(pick * len(examples)))
        turn += 1
