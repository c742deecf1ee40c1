"""What the kit says of components that cannot be trained with, or resumed."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from paribus import Corpus, Document, Optimizer, Schedule, Tokenizer, Vocabulary, image_document
from paribus.testing import examine
from paribus.testing.synthetic_corpus import SyntheticCorpus

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]
LETTERS = Vocabulary(200, {"pad": 128, "mask": 129, "cls": 130, "sep": 131, "eos": 132})


def test_an_optimizer_that_changes_nothing_is_shown(filling: Faulty, found: Found) -> None:
    def build(self: Any, matrices: Any, others: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*matrices, *others], lr=0.0)

    assert "8 steps on one batch leave the loss at" in found(filling(Optimizer, {"build": build}), "training")


def test_a_loss_that_is_not_finite_is_shown_with_the_last_one_that_was(filling: Faulty, found: Found) -> None:
    def build(self: Any, matrices: Any, others: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*matrices, *others], lr=float("inf"))

    said = found(filling(Optimizer, {"build": build}), "training")
    assert "the loss of step 1 is nan; before it: [" in said


def test_a_rate_that_is_not_one_is_shown(filling: Faulty, found: Found) -> None:
    below = filling(Schedule, {"factor": lambda self, step, steps: -1.0})
    assert "step 0 of 1 has the factor -1.0" in found(below, "rates")
    nothing = filling(Schedule, {"factor": lambda self, step, steps: 0.0})
    assert "all 1 steps of a run have the factor 0" in found(nothing, "rates")


def test_a_rate_that_depends_on_how_often_it_was_asked_for_is_shown(filling: Faulty, found: Found) -> None:
    def factor(self: Any, step: int, steps: int) -> float:
        asked: int = getattr(self, "asked", 0) + 1
        self.asked = asked
        return 1.0 / asked

    assert "has another factor when it is asked for again" in found(filling(Schedule, {"factor": factor}), "rates")


def tokenizer(**replaced: Any) -> dict[str, Any]:
    """A tokenizer of letters, but for what is replaced in it."""
    return {
        "traits": {"provides": list(LETTERS.specials)},
        "train": lambda self, texts, size: None,
        "encode_batch": lambda self, texts: [[min(ord(letter), 127) for letter in text] for text in texts],
        "decode": lambda self, ids: "".join(map(chr, ids)),
        "vocabulary": lambda self: LETTERS,
        "state": lambda self: b"",
        "load": lambda self, state: None,
        **replaced,
    }


def test_a_tokenizer_of_letters_is_as_it_should_be(filling: Faulty, found: Found) -> None:
    assert found(filling(Tokenizer, tokenizer()), "tokens") == ""


def test_an_id_that_is_none_of_text_is_shown(filling: Faulty, found: Found) -> None:
    padding = filling(Tokenizer, tokenizer(encode_batch=lambda self, texts: [[128] for _ in texts]))
    assert "has the id 128, which is none of text in a vocabulary of 200" in found(padding, "tokens")


def test_text_that_is_lost_is_shown(filling: Faulty, found: Found) -> None:
    deaf = filling(Tokenizer, tokenizer(decode=lambda self, ids: "?"))
    assert "is decoded as '?'" in found(deaf, "tokens")


def test_what_was_learned_and_is_not_carried_is_shown(filling: Faulty, found: Found) -> None:
    def train(self: Any, texts: Iterator[str], size: int | None) -> None:
        self.learned = 1

    def encode(self: Any, texts: list[str]) -> list[list[int]]:
        return [[ord(letter) + getattr(self, "learned", 0) for letter in text] for text in texts]

    forgetful = filling(Tokenizer, tokenizer(train=train, encode_batch=encode))
    assert "has other ids once its state was loaded into another" in found(forgetful, "tokens")


def corpus(**documents: list[str]) -> dict[str, Any]:
    return {
        "documents": lambda self, split: iter([Document(text, (text,)) for text in documents[split]]),
        "fingerprint": lambda self: "always",
    }


def test_a_document_in_both_splits_is_shown(filling: Faulty, found: Found) -> None:
    leaking = filling(Corpus, corpus(train=["a", "b"], val=["b"]))
    assert "the document 'b' is in both splits" in found(leaking, "documents read")


def test_a_split_with_nothing_in_it_is_shown(filling: Faulty, found: Found) -> None:
    empty = filling(Corpus, corpus(train=["a"], val=[]))
    assert "the split `val` has no document" in found(empty, "documents read")


def test_an_order_that_changes_is_shown(filling: Faulty, found: Found) -> None:
    texts = iter("abcdefgh")
    members = {**corpus(), "documents": lambda self, split: iter([Document(split, (next(texts),))])}
    assert "comes in another order the second time" in found(filling(Corpus, members), "documents read")


def test_a_fingerprint_that_changes_is_shown(filling: Faulty, found: Found) -> None:
    prints = iter("abcdefgh")
    members = {**corpus(train=["a"], val=["b"]), "fingerprint": lambda self: next(prints)}
    assert "its fingerprint is another each time" in found(filling(Corpus, members), "documents read")


def pictures(values: int, label: int, **traits: Any) -> dict[str, Any]:
    """A corpus of images of 16 values and 3 classes, if that is what they have."""
    documents = {
        split: [image_document(split, np.full(values, at, np.uint8), label)]
        for at, split in enumerate(("train", "val"))
    }
    return {
        "traits": {"modality": "images", "document_facts": {"image": 4, "channels": 1, "classes": 3, **traits}},
        "documents": lambda self, split: iter(documents[split]),
        "fingerprint": lambda self: "always",
    }


def looked(members: dict[str, Any], filling: Faulty, components: Any) -> str:
    report = examine(
        filling(Corpus, members), registry=components, only=["images read"], base={"preset": "vit-tiny", **SMALL_IMAGES}
    )
    assert report.passed[:2] == ("schema", "construction")
    return "\n".join(finding.message for finding in report.findings)


SMALL_IMAGES = {
    "dims.width": 8, "dims.length": 5, "embedding.image": 4, "embedding.patch": 2, "objective.classes": 3,
    "corpus.image": 4, "corpus.classes": 3,
}  # fmt: skip


def test_images_of_another_size_than_is_told_are_shown(filling: Faulty, components: Any) -> None:
    assert looked(pictures(16, 2), filling, components) == ""
    assert looked(pictures(17, 2), filling, components) == "'train' has 17 values, and it tells of 4 x 4"


def test_a_class_that_nobody_told_of_is_shown(filling: Faulty, components: Any) -> None:
    assert looked(pictures(16, 3), filling, components) == "'train' is of class 3, and it tells of 3"


def test_what_is_no_image_is_shown(filling: Faulty, components: Any) -> None:
    members = pictures(16, 0) | {"documents": lambda self, split: iter([Document(split, ("text",), ("ab",))])}
    assert looked(members, filling, components) == "'train' is no image with its label, as `image_document` makes it"


def test_a_corpus_of_files_that_are_not_here_is_not_asked(components: Any) -> None:
    report = examine("corpus.text", registry=components)
    assert report.ok
    assert report.skipped == ("documents read", "images read")


def test_the_kits_own_corpus_has_documents_of_sentences_that_no_split_shares() -> None:
    train, val = ({document.text for document in SyntheticCorpus().documents(split)} for split in ("train", "val"))
    assert len(train) == 60
    assert not train & val
    assert SyntheticCorpus().fingerprint() == SyntheticCorpus().fingerprint()


@pytest.mark.parametrize("need", ["labels", "scores", "tags", "answers", "pairs"])
def test_the_text_to_train_on_has_what_an_objective_needs(need: str) -> None:
    documents = list(SyntheticCorpus(needs=[need]).documents("train"))
    assert all(bool(document.target) == (need in {"pairs", "answers"}) for document in documents)
    assert all(bool(document.labels) == (need != "pairs") for document in documents)
    assert need == "pairs" or len({document.labels for document in documents}) > 1
    for document in documents:
        if need == "tags":
            assert len(document.labels) == len(document.sentences)
        if need == "answers":
            assert 0 <= document.labels[0] <= document.labels[1] < len(document.target)
