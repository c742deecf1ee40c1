"""The labelled corpora that are made from the language reference: tests of all of them, then of each."""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from paribus import Corpus, Document, Split
from paribus_text import corpus
from paribus_text.cloze import BLANK, Cloze
from paribus_text.derived import random_below, shuffled, words
from paribus_text.follows import Follows
from paribus_text.reference import Reference
from paribus_text.sections import SECTIONS
from paribus_text.word_order import WordOrder

NAMES = ("cloze", "code-words", "continuations", "follows", "overlap", "sections", "word-order")


@cache
def build(name: str) -> Corpus:
    result: Corpus = corpus()[name]()
    return result


@cache
def documents(name: str, split: Split) -> tuple[Document, ...]:
    return tuple(build(name).documents(split))


def of_both_splits(name: str) -> list[Document]:
    return [*documents(name, "train"), *documents(name, "val")]


def topic(document: Document) -> str:
    return document.name.partition(",")[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_unique_and_no_topic_is_in_both_splits(name: str) -> None:
    train, val = (documents(name, split) for split in ("train", "val"))
    assert {topic(document) for document in train}.isdisjoint(topic(document) for document in val)
    texts = [document.text for document in of_both_splits(name)]
    assert len(set(texts)) == len(texts)
    assert len(train) > 200
    assert 0.1 < len(val) / len(texts) < 0.35


@pytest.mark.parametrize("name", NAMES)
def test_a_fingerprint_depends_only_on_the_options(name: str) -> None:
    kind: Any = corpus()[name]
    assert build(name).fingerprint() == kind().fingerprint() != kind(held_out=0.3).fingerprint()
    assert len({build(name).fingerprint() for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", ["follows", "word-order"])
def test_two_classes_are_about_equally_frequent(name: str) -> None:
    positives = sum(document.labels[0] for document in of_both_splits(name))
    count = len(of_both_splits(name))
    assert abs(positives - count / 2) < 4 * (count / 4) ** 0.5  # four standard deviations


def test_a_share_of_each_section_is_held_out() -> None:
    train, val = (
        Counter(document.labels[0] for document in documents("sections", split)) for split in ("train", "val")
    )
    assert set(train) == set(val) == set(range(len(SECTIONS)))
    for section in train:
        assert 0.05 < val[section] / (train[section] + val[section]) < 0.4
    assert all(
        topic(document) in list(SECTIONS.values())[int(document.labels[0])].split()
        for document in of_both_splits("sections")
    )


def test_a_shuffled_sentence_keeps_its_words_and_its_last_word() -> None:
    sentences = {
        sentence
        for split in ("train", "val")
        for result in Reference(0.2).topics(split)
        for sentence in result.sentences
    }
    originals = {" ".join(sorted(sentence.split())): sentence.split() for sentence in sentences}
    for document in of_both_splits("word-order"):
        new_words = document.text.split()
        old_words = originals[" ".join(sorted(new_words))]
        if document.labels == (1,):
            assert new_words == old_words
            continue
        changed = [
            position
            for position, (new_word, old_word) in enumerate(zip(new_words, old_words, strict=True))
            if new_word != old_word
        ]
        assert 0 < changed[0] <= changed[-1] < changed[0] + 6
        assert changed[-1] < len(new_words) - 1


def test_fewer_words_may_be_moved() -> None:
    two_moved = list(WordOrder(moved=2).documents("val"))
    assert len(two_moved) > len(documents("word-order", "val"))


@pytest.mark.parametrize("negatives", ["topic", "place", "order"])
def test_negative_pairs_come_from_the_chosen_source(negatives: Any) -> None:
    result = list(Follows(negatives=negatives).documents("val"))
    reference = {topic.name: topic for topic in Reference(0.2).topics("val")}
    for document in result:
        sentences = reference[document.name].sentences
        (a,), (b,) = document.sentences, document.target
        follows = any(sentences[index : index + 2] == (a, b) for index in range(len(sentences)))
        if document.labels == (1,):
            assert follows
        elif negatives == "topic":
            assert a in sentences
            assert b not in sentences
        elif negatives == "place":
            assert b in sentences
            assert not follows
        else:
            assert any(sentences[index : index + 2] == (b, a) for index in range(len(sentences)))


def test_quotes_around_code_are_removed() -> None:
    tagged = of_both_splits("code-words")
    assert not any('"' in word for document in tagged for word in document.sentences)
    code = Counter(
        word for document in tagged for word, tag in zip(document.sentences, document.labels, strict=True) if tag
    )
    assert {"None", "self", "True"} < set(code)
    share = sum(code.values()) / sum(len(document.sentences) for document in tagged)
    assert 0.1 < share < 0.25


@pytest.mark.thorough
def test_the_answer_fills_the_blank_and_occurs_in_its_context_once() -> None:
    sentences = {
        " ".join(words(sentence.replace('"', "")))
        for split in ("train", "val")
        for result in Reference(0.2).topics(split)
        for sentence in result.sentences
    }
    unanswered = 0
    for document in of_both_splits("cloze"):
        first, last = (int(label) for label in document.labels)
        unanswered += first < 0
        if first < 0:
            assert last < 0
            continue
        answer = list(document.target[first : last + 1])
        starts = [
            start
            for start in range(len(document.target))
            if list(document.target[start : start + len(answer)]) == answer
        ]
        assert starts == [first]
        filled = " ".join(words(document.text.replace(BLANK, " ".join(answer), 1)))
        assert filled in sentences
        assert filled not in " ".join(document.target)
    assert 0.1 < unanswered / len(of_both_splits("cloze")) < 0.35
    assert all(document.labels[0] >= 0 for document in Cloze(unanswered=0).documents("val"))


def test_a_score_is_the_share_of_unchanged_words() -> None:
    for document in of_both_splits("overlap"):
        source_words, target_words = document.text.split(), document.target[0].split()
        unchanged = sum(a == b for a, b in zip(source_words, target_words, strict=True))
        assert document.labels[0] == pytest.approx(unchanged / len(source_words))
    scores = [document.labels[0] for document in of_both_splits("overlap")]
    assert 0.45 < sum(scores) / len(scores) < 0.55
    assert {0.0, 1.0} < set(scores)


def test_words_are_split_from_punctuation_and_draws_are_keyed() -> None:
    assert words("It isn't f(x.y), is it?") == ["It", "isn't", "f", "(", "x.y", ")", ",", "is", "it", "?"]
    assert [random_below(10, "a", number) for number in range(5)] == [
        random_below(10, "a", number) for number in range(5)
    ]
    assert len({random_below(1000, "a", number) for number in range(50)}) > 40
    assert sorted(shuffled("abcdef", "key")) == list("abcdef") != shuffled("abcdef", "key")
