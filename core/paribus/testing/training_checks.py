"""Steps of training: what a component comes to when everything around it is put to use."""

from __future__ import annotations

import itertools
import math
from typing import Final

import torch

from paribus.assembly.components import make
from paribus.errors import DataError
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.images import VALUES, text_to_pixels
from paribus.slots.schedule import Schedule
from paribus.slots.tokenizer import Tokenizer
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.synthetic_corpus import babbled, readable
from paribus.train.assemble import build_data, build_model

STEPS: Final = 8
LENGTH: Final = 32
READ: Final = 20  # documents of a corpus that are looked at


def training(case: Case, cell: Cell) -> Verdict:
    """A batch that is seen again and again is learned: the loss is finite and falls."""
    dims = cell.spec["dims"] if case.specimen(cell).whole else {**cell.spec["dims"], "length": LENGTH}
    spec = {**cell.spec, "dims": dims, "trainer": {"max_steps": STEPS}}
    try:
        text = babbled(spec, case.registry)
    except DataError:  # as below
        return DOES_NOT_APPLY
    model, data = build_model(spec, case.registry, text.vocabulary), build_data(spec, case.registry, text)
    if spec.get("teacher") is not None:
        model.set_teacher(build_model({**spec, "seed": spec["seed"] + 1}, case.registry, text.vocabulary))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = model.optimizer.build(matrices, others)
    losses: list[float] = []
    batch = data.step(0)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for step in range(STEPS):
            torch.manual_seed(step)
            loss = model.loss(batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if not all(map(math.isfinite, losses)):
        at = next(step for step, value in enumerate(losses) if not math.isfinite(value))
        return f"the loss of step {at} is {losses[at]}; before it: {losses[:at][-1:] or 'none'}"
    if not losses[-1] < losses[0]:
        return f"{STEPS} steps on one batch leave the loss at {losses[-1]:.3f}, from {losses[0]:.3f}"
    return HOLDS


def scheduling(case: Case, cell: Cell) -> Verdict:
    """A rate is finite and never below 0, and depends on the step alone, however often it is asked for."""
    schedule = make(case.registry, "schedule", cell.spec["schedule"], kind=Schedule)
    for steps in (1, 2, 100):
        factors = [schedule.factor(step, steps) for step in range(steps)]
        for step, factor in enumerate(factors):
            if not (math.isfinite(factor) and factor >= 0):
                return f"step {step} of {steps} has the factor {factor}"
            if schedule.factor(step, steps) != factor:
                return f"step {step} of {steps} has another factor when it is asked for again: a run could not go on"
        if not any(factors):
            return f"all {steps} steps of a run have the factor 0"
    return HOLDS


def tokenizing(case: Case, cell: Cell) -> Verdict:
    """Ids are within the vocabulary, text survives them, and what was learned can be carried to another process."""
    corpus = readable(cell.spec, case.registry, _tokenizer(case, cell))
    texts = [document.text for document in itertools.islice(corpus.documents("train"), READ)]
    one, two = (_tokenizer(case, cell) for _ in range(2))
    try:
        one.train(iter(texts), None)
    except DataError:  # it reads a file of the user's, and its example names none that is here
        return DOES_NOT_APPLY
    two.load(one.state())
    vocabulary = one.vocabulary()
    special = vocabulary.reserved - {vocabulary.specials.get("unk")}
    for text, ids in zip(texts, one.encode_batch(texts), strict=True):
        wrong = [token for token in ids if not 0 <= token < vocabulary.size or token in special]
        if wrong:
            return f"{text!r} has the id {wrong[0]}, which is none of text in a vocabulary of {vocabulary.size}"
        if two.encode_batch([text]) != [ids] or two.vocabulary() != vocabulary:
            return f"{text!r} has other ids once its state was loaded into another"
        if _letters(one.decode(ids)) != _letters(text):
            return f"{text!r} is decoded as {one.decode(ids)!r}"
    return HOLDS


def _tokenizer(case: Case, cell: Cell) -> Tokenizer:
    return make(case.registry, "tokenizer", cell.spec["tokenizer"], kind=Tokenizer)


def _letters(text: str) -> str:
    """What a tokenizer may not lose: case and spaces it may."""
    return "".join(text.lower().split())


def reading(case: Case, cell: Cell) -> Verdict:
    """A corpus gives the same documents in the same order each time, and none of them to both splits."""
    one, two = (make(case.registry, "corpus", cell.spec["corpus"], kind=Corpus) for _ in range(2))
    try:
        first, second = _read(one), _read(two)
    except DataError:  # it reads files of the user's, and its examples name none that are here
        return DOES_NOT_APPLY
    for split, found in first.items():
        if not found:
            return f"the split `{split}` has no document"
        if second[split] != found:
            return f"the split `{split}` comes in another order the second time"
    both = {document.text for document in first["train"]} & {document.text for document in first["val"]}
    if both:
        return f"the document {min(both)[:40]!r} is in both splits"
    if one.fingerprint() != two.fingerprint():
        return "its fingerprint is another each time, so nothing could ever be resumed"
    return HOLDS


def picturing(case: Case, cell: Cell) -> Verdict:
    """A corpus of images has images of the size that it tells, and no class that it does not tell of."""
    traits = case.entry.traits
    if traits.get("modality") != "images":
        return DOES_NOT_APPLY
    given = cell.spec["corpus"]
    told = {
        name: given[value] if isinstance(value, str) else value
        for name, value in traits.get("document_facts", {}).items()
    }
    try:
        read = _read(make(case.registry, "corpus", given, kind=Corpus))
    except DataError:  # as above
        return DOES_NOT_APPLY
    for document in (*read["train"], *read["val"]):
        values = text_to_pixels(document.text)
        if values.min() < 0 or values.max() >= VALUES or len(document.labels) != 1:
            return f"{document.name!r} is no image with its label, as `image_document` makes it"
        if len(values) != told["image"] ** 2 * told["channels"]:
            return f"{document.name!r} has {len(values):,} values, and it tells of {told['image']} x {told['image']}"
        if not 0 <= document.labels[0] < told["classes"]:
            return f"{document.name!r} is of class {document.labels[0]}, and it tells of {told['classes']}"
    return HOLDS


def _read(corpus: Corpus) -> dict[Split, list[Document]]:
    """The first documents of each split."""
    splits: tuple[Split, ...] = ("train", "val")
    return {split: list(itertools.islice(corpus.documents(split), READ)) for split in splits}
