"""Checks of training, learning rates, tokenizers and corpora."""

from __future__ import annotations

import itertools
import math
from typing import Final

import torch

from paribus.assembly.components import make
from paribus.errors import DataError
from paribus.slots.corpus import PIXEL_VALUES, Corpus, Document, Split, text_to_pixels
from paribus.slots.schedule import Schedule
from paribus.slots.tokenizer import Tokenizer
from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.synthetic_corpus import corpus_for_tokenizer, encode_synthetic_corpus
from paribus.train.assemble import build_data, build_model

STEPS: Final = 8
LENGTH: Final = 32
MAX_DOCUMENTS: Final = 20  # documents of a corpus that are looked at


def training(case: Case, cell: HostModel) -> Verdict:
    """A batch that is seen again and again is learned: the loss is finite and falls."""
    dims = cell.spec["dims"] if case.small_model(cell).has_fixed_length else {**cell.spec["dims"], "length": LENGTH}
    spec = {**cell.spec, "dims": dims, "trainer": {"max_steps": STEPS}}
    try:
        text = encode_synthetic_corpus(spec, case.registry)
    except DataError:  # as below
        return DOES_NOT_APPLY
    model, data = build_model(spec, case.registry, text.vocabulary), build_data(spec, case.registry, text)
    if spec.get("teacher") is not None:
        model.set_teacher(build_model({**spec, "seed": spec["seed"] + 1}, case.registry, text.vocabulary))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = model.optimizer.build(matrices, vectors)
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
        failed_step = next(step for step, value in enumerate(losses) if not math.isfinite(value))
        return (
            f"the loss of step {failed_step} is {losses[failed_step]}; before it: {losses[:failed_step][-1:] or 'none'}"
        )
    if not losses[-1] < losses[0]:
        return f"{STEPS} steps on one batch leave the loss at {losses[-1]:.3f}, from {losses[0]:.3f}"
    return HOLDS


def learning_rates(case: Case, cell: HostModel) -> Verdict:
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


def tokenization(case: Case, cell: HostModel) -> Verdict:
    """Ids are within the vocabulary, text survives them, and what was learned can be carried to another process."""
    corpus = corpus_for_tokenizer(cell.spec, case.registry, _tokenizer(case, cell))
    texts = [document.text for document in itertools.islice(corpus.documents("train"), MAX_DOCUMENTS)]
    tokenizer, restored = (_tokenizer(case, cell) for _ in range(2))
    try:
        tokenizer.train(iter(texts), None)
    except DataError:  # it reads a file of the user's, and its example names none that is here
        return DOES_NOT_APPLY
    restored.load(tokenizer.state())
    vocabulary = tokenizer.vocabulary()
    special = vocabulary.reserved - {vocabulary.specials.get("unk")}
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        invalid = [token for token in ids if not 0 <= token < vocabulary.size or token in special]
        if invalid:
            return f"{text!r} has the id {invalid[0]}, which is none of text in a vocabulary of {vocabulary.size}"
        if restored.encode_batch([text]) != [ids] or restored.vocabulary() != vocabulary:
            return f"{text!r} has other ids once its state was loaded into another"
        if _comparable_text(tokenizer.decode(ids)) != _comparable_text(text):
            return f"{text!r} is decoded as {tokenizer.decode(ids)!r}"
    return HOLDS


def _tokenizer(case: Case, cell: HostModel) -> Tokenizer:
    return make(case.registry, "tokenizer", cell.spec["tokenizer"], kind=Tokenizer)


def _comparable_text(text: str) -> str:
    """Return the text without case and whitespace, which a tokenizer may drop."""
    return "".join(text.lower().split())


def corpus_documents(case: Case, cell: HostModel) -> Verdict:
    """A corpus gives the same documents in the same order each time, and none of them to both splits."""
    corpus, second_corpus = (make(case.registry, "corpus", cell.spec["corpus"], kind=Corpus) for _ in range(2))
    try:
        first_pass, second_pass = _read_documents(corpus), _read_documents(second_corpus)
    except DataError:  # it reads files of the user's, and its examples name none that are here
        return DOES_NOT_APPLY
    for split, documents in first_pass.items():
        if not documents:
            return f"the split `{split}` has no document"
        if second_pass[split] != documents:
            return f"the split `{split}` comes in another order the second time"
    shared_texts = {document.text for document in first_pass["train"]} & {
        document.text for document in first_pass["val"]
    }
    if shared_texts:
        return f"the document {min(shared_texts)[:40]!r} is in both splits"
    if corpus.fingerprint() != second_corpus.fingerprint():
        return "its fingerprint is another each time, so nothing could ever be resumed"
    return HOLDS


def corpus_images(case: Case, cell: HostModel) -> Verdict:
    """A corpus of images has images of the size that it tells, and no class that it does not tell of."""
    traits = case.entry.traits
    if traits.get("modality") != "images":
        return DOES_NOT_APPLY
    corpus_spec = cell.spec["corpus"]
    facts = {
        name: corpus_spec[value] if isinstance(value, str) else value
        for name, value in traits.get("document_facts", {}).items()
    }
    try:
        documents = _read_documents(make(case.registry, "corpus", corpus_spec, kind=Corpus))
    except DataError:  # as above
        return DOES_NOT_APPLY
    for document in (*documents["train"], *documents["val"]):
        pixels = text_to_pixels(document.text)
        if pixels.min() < 0 or pixels.max() >= PIXEL_VALUES or len(document.labels) != 1:
            return f"{document.name!r} is no image with its label, as `image_document` makes it"
        if len(pixels) != facts["image"] ** 2 * facts["channels"]:
            return f"{document.name!r} has {len(pixels):,} values, and it tells of {facts['image']} x {facts['image']}"
        if not 0 <= document.labels[0] < facts["classes"]:
            return f"{document.name!r} is of class {document.labels[0]}, and it tells of {facts['classes']}"
    return HOLDS


def _read_documents(corpus: Corpus) -> dict[Split, list[Document]]:
    """The first documents of each split."""
    splits: tuple[Split, ...] = ("train", "val")
    return {split: list(itertools.islice(corpus.documents(split), MAX_DOCUMENTS)) for split in splits}
