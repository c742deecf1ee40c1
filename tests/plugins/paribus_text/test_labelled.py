"""The corpora with labels that are made of the language reference: what holds for all, and what each is."""

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

NAMES = ("cloze", "code-words", "follows", "overlap", "sections", "word-order")


@cache
def made(name: str) -> Corpus:
    found: Corpus = corpus()[name]()
    return found


@cache
def documents(name: str, split: Split) -> tuple[Document, ...]:
    return tuple(made(name).documents(split))


def both(name: str) -> list[Document]:
    return [*documents(name, "train"), *documents(name, "val")]


def topic(document: Document) -> str:
    return document.name.partition(",")[0]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_comes_twice_and_no_topic_is_in_both_splits(name: str) -> None:
    train, val = (documents(name, split) for split in ("train", "val"))
    assert {topic(document) for document in train}.isdisjoint(topic(document) for document in val)
    texts = [document.text for document in both(name)]
    assert len(set(texts)) == len(texts)
    assert len(train) > 200
    assert 0.1 < len(val) / len(texts) < 0.35


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_as_many_as_the_traits_say_and_number_classes(name: str) -> None:
    provides = made(name).traits["provides"]
    classes = made(name).traits.get("document_facts", {}).get("classes")
    assert classes is None or len(made(name).classes()) == classes
    for document in both(name):
        assert bool(document.target) == ("pairs" in provides)
        if "tags" in provides:
            assert len(document.labels) == len(document.sentences)
        else:
            assert len(document.labels) == (2 if "answers" in provides else 1)
        if isinstance(classes, int):
            assert set(document.labels) <= set(range(classes))


@pytest.mark.parametrize("name", NAMES)
def test_a_fingerprint_tells_options_apart_and_nothing_else(name: str) -> None:
    kind: Any = corpus()[name]
    assert made(name).fingerprint() == kind().fingerprint() != kind(held_out=0.3).fingerprint()
    assert len({made(each).fingerprint() for each in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", ["follows", "word-order"])
def test_two_classes_come_at_even_odds(name: str) -> None:
    kept = sum(document.labels[0] for document in both(name))
    count = len(both(name))
    assert abs(kept - count / 2) < 4 * (count / 4) ** 0.5  # four standard deviations


def test_of_each_section_a_share_is_held_out() -> None:
    train, val = (
        Counter(document.labels[0] for document in documents("sections", split)) for split in ("train", "val")
    )
    assert set(train) == set(val) == set(range(len(SECTIONS)))
    for section in train:
        assert 0.05 < val[section] / (train[section] + val[section]) < 0.4
    assert all(
        topic(document) in list(SECTIONS.values())[int(document.labels[0])].split() for document in both("sections")
    )


def test_moved_words_are_the_same_words_and_the_ends_stay() -> None:
    written = {
        sentence for split in ("train", "val") for found in Reference(0.2).topics(split) for sentence in found.sentences
    }
    known = {" ".join(sorted(sentence.split())): sentence.split() for sentence in written}
    for document in both("word-order"):
        now = document.text.split()
        then = known[" ".join(sorted(now))]
        if document.labels == (1,):
            assert now == then
            continue
        differ = [place for place, (one, other) in enumerate(zip(now, then, strict=True)) if one != other]
        assert 0 < differ[0] <= differ[-1] < differ[0] + 6
        assert differ[-1] < len(now) - 1


def test_fewer_words_may_be_moved() -> None:
    few = list(WordOrder(moved=2).documents("val"))
    assert len(few) > len(documents("word-order", "val"))


@pytest.mark.parametrize("other", ["topic", "place", "order"])
def test_what_does_not_follow_comes_from_where_it_is_said_to(other: Any) -> None:
    found = list(Follows(negatives=other).documents("val"))
    reference = {topic.name: topic for topic in Reference(0.2).topics("val")}
    for document in found:
        own = reference[document.name].sentences
        (a,), (b,) = document.sentences, document.target
        follows = any(own[place : place + 2] == (a, b) for place in range(len(own)))
        if document.labels == (1,):
            assert follows
        elif other == "topic":
            assert a in own
            assert b not in own
        elif other == "place":
            assert b in own
            assert not follows
        else:
            assert any(own[place : place + 2] == (b, a) for place in range(len(own)))


def test_quotes_that_say_what_is_code_are_gone() -> None:
    tagged = both("code-words")
    assert not any('"' in word for document in tagged for word in document.sentences)
    code = Counter(
        word for document in tagged for word, tag in zip(document.sentences, document.labels, strict=True) if tag
    )
    assert {"None", "self", "True"} < set(code)
    share = sum(code.values()) / sum(len(document.sentences) for document in tagged)
    assert 0.1 < share < 0.25


def test_the_answer_fills_the_blank_and_stands_in_its_context_once() -> None:
    sentences = {
        " ".join(words(sentence.replace('"', "")))
        for split in ("train", "val")
        for found in Reference(0.2).topics(split)
        for sentence in found.sentences
    }
    unanswered = 0
    for document in both("cloze"):
        first, last = (int(label) for label in document.labels)
        unanswered += first < 0
        if first < 0:
            assert last < 0
            continue
        answer = list(document.target[first : last + 1])
        places = [at for at in range(len(document.target)) if list(document.target[at : at + len(answer)]) == answer]
        assert places == [first]
        filled = " ".join(words(document.text.replace(BLANK, " ".join(answer), 1)))
        assert filled in sentences
        assert filled not in " ".join(document.target)
    assert 0.1 < unanswered / len(both("cloze")) < 0.35
    assert all(document.labels[0] >= 0 for document in Cloze(unanswered=0).documents("val"))


def test_a_score_is_the_share_of_words_that_stayed() -> None:
    for document in both("overlap"):
        one, other = document.text.split(), document.target[0].split()
        kept = sum(a == b for a, b in zip(one, other, strict=True))
        assert document.labels[0] == pytest.approx(kept / len(one))
    scores = [document.labels[0] for document in both("overlap")]
    assert 0.45 < sum(scores) / len(scores) < 0.55
    assert {0.0, 1.0} < set(scores)


def test_words_and_marks_are_apart_and_draws_are_keyed() -> None:
    assert words("It isn't f(x.y), is it?") == ["It", "isn't", "f", "(", "x.y", ")", ",", "is", "it", "?"]
    assert [random_below(10, "a", number) for number in range(5)] == [
        random_below(10, "a", number) for number in range(5)
    ]
    assert len({random_below(1000, "a", number) for number in range(50)}) > 40
    assert sorted(shuffled("abcdef", "key")) == list("abcdef") != shuffled("abcdef", "key")
