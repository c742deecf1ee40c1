"""Scores of entities: against the rules of conlleval as a loop, and by hand."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, DataError, Draw, ForwardPass, Labels, Objective, Tokens, TrainingExamples, Vocabulary
from paribus_objective.entities import SCORES, EntityScore, tag_codes

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]

IOB2 = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = ("B-PER", "I-PER", "E-PER", "S-PER", "O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")


def split_tag(tag: str) -> tuple[str, str]:
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def conlleval_entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """The functions `startOfChunk` and `endOfChunk` of conlleval.pl, one tag after the other."""
    found: set[tuple[int, int, str]] = set()
    start = -1
    for place in range(len(tags) + 1):
        previous, previous_kind = split_tag(tags[place - 1]) if place else ("O", "")
        prefix, kind = split_tag(tags[place]) if place < len(tags) else ("O", "")
        ends = (
            (previous == "B" and prefix in "BSO")
            or (previous == "I" and prefix in "BSO")
            or previous in ("E", "S")
            or (previous != "O" and previous_kind != kind)
        )
        if ends and start >= 0:
            found.add((start, place - 1, previous_kind))
            start = -1
        if (
            prefix in ("B", "S")
            or (previous in "ESO" and prefix in ("E", "I"))
            or (prefix != "O" and previous_kind != kind)
        ):
            start = place
    return found


def by_hand(predictions: list[list[str]], gold: list[list[str]]) -> tuple[float, float, float]:
    right = found = existing = 0
    for predicted_tags, gold_tags in zip(predictions, gold, strict=True):
        predicted, true = conlleval_entities(predicted_tags), conlleval_entities(gold_tags)
        right, found, existing = right + len(predicted & true), found + len(predicted), existing + len(true)
    precision, recall = right / found if found else 0.0, right / existing if existing else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def scores(names: tuple[str, ...], predictions: list[list[str]], gold: list[list[str]]) -> list[float]:
    """Scores of documents whose words arrive in batches of seven, in no order."""
    codes = torch.from_numpy(tag_codes(names, len(names)))
    rows, place = [], 0
    for predicted_tags, gold_tags in zip(predictions, gold, strict=True):
        for predicted, true in zip(predicted_tags, gold_tags, strict=True):
            rows.append((place, int(codes[names.index(predicted)]), int(codes[names.index(true)])))
            place += 1
        place += 1
    random.Random(0).shuffle(rows)
    values = []
    for score in SCORES:
        metric = EntityScore(score)
        for start in range(0, len(rows), 7):
            metric.update(*torch.tensor([*rows[start : start + 7], (-1, 1, 1)]).T)
        values.append(float(metric.compute()))
    return values


@pytest.mark.parametrize("names", [IOB2, BIOES])
def test_scores_equal_those_of_conlleval_for_random_tags(names: tuple[str, ...]) -> None:
    """Most random tags follow no scheme."""
    draw = random.Random(0)
    for _ in range(30):
        gold = [draw.choices(names, k=draw.randrange(1, 12)) for _ in range(6)]
        predictions = [[tag if draw.random() < 0.7 else draw.choice(names) for tag in tags] for tags in gold]
        assert scores(names, predictions, gold) == pytest.approx(by_hand(predictions, gold))


@pytest.mark.parametrize(
    ("names", "tags", "count"),
    [
        (IOB2, "O I-PER I-PER O", 1),  # an I- after O starts an entity
        (IOB2, "B-PER I-LOC I-LOC", 2),  # so does one after another type
        (IOB2, "B-PER B-PER I-PER", 2),
        (BIOES, "B-PER I-PER E-PER S-PER I-PER E-PER", 3),
        (BIOES, "E-LOC E-LOC O", 2),
        (("O", "I-PER", "B-PER"), "I-PER I-PER B-PER O", 2),  # IOB1
    ],
)
def test_the_entities_of_a_text_are_counted_by_hand(names: tuple[str, ...], tags: str, count: int) -> None:
    found = tags.split()
    assert len(conlleval_entities(found)) == count
    assert scores(names, [found], [found]) == [1.0, 1.0, 1.0]
    assert scores(names, [found], [["O"] * len(found)]) == [0.0, 0.0, 0.0]
    last_changed = [*found[:-1], "B-PER"]  # one more entity, after the others or in place of the last
    assert scores(names, [last_changed], [found])[0] == pytest.approx(by_hand([last_changed], [found])[0])


def test_a_part_of_an_entity_and_an_entity_of_another_type_are_wrong() -> None:
    gold = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC", "I-LOC"]
    found = ["B-PER", "O", "O", "B-LOC", "O", "B-PER", "I-PER"]
    assert scores(IOB2, [found], [gold]) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    found = ["B-PER", "I-PER", "O", "O", "O", "O", "O"]
    assert scores(IOB2, [found], [gold]) == pytest.approx([1, 1 / 3, 1 / 2])


def test_an_entity_ends_with_its_text() -> None:
    gold = [["O", "B-PER"], ["I-PER", "O"]]
    assert scores(IOB2, gold, gold) == [1, 1, 1]
    assert scores(IOB2, [["O", "B-PER"], ["O", "O"]], gold) == pytest.approx([1, 1 / 2, 2 / 3])


def test_tags_of_the_scheme_bilou_are_those_of_bioes() -> None:
    bilou = [name.replace("E-", "L-").replace("S-", "U-") for name in BIOES]
    assert tag_codes(bilou, 9).tolist() == tag_codes(BIOES, 9).tolist()


def test_names_that_mark_no_entities_are_refused() -> None:
    with raises_problem(DataError, "tag-names", "PER", "B-TYPE"):
        tag_codes(("O", "PER"), 2)
    with raises_problem(DataError, "tag-names", "B-"):
        tag_codes(("O", "B-"), 2)
    for names in ((), ("O",)):
        with raises_problem(DataError, "tag-names", "objective.entities"):
            tag_codes(names, 2)
    assert tag_codes(("O", "B", "I"), 5).tolist() == [0, 1, 2, 0, 0]  # one type without a name, and unnamed classes


def test_entities_are_scored_by_words_also_where_a_text_is_split(
    build: Build, corpus: Corpus, vocabulary: Vocabulary, passed: Callable[[TrainingExamples], ForwardPass]
) -> None:
    """Words have up to three tokens; the first text is split between the words of an entity."""
    objective: Any = build("tag", vocabulary, 12, classes=5, entities=True)
    sizes = [[1, 3, 2, 3, 3, 1, 1], [2, 1, 3]]
    tokens: Any = corpus(sizes)
    tokens.ids = tokens.ids % 60 + 10
    gold = [0, 1, 2, 2, 2, 2, 0, 1, 3, 4]
    tokens.labels = Labels(np.array(gold, float), np.asarray(tokens.documents), IOB2)
    count = objective.example_count(tokens, 12)
    assert count == 3  # the runs of the first text end within its entity
    metrics, predictions = objective.metrics(), [""] * len(gold)
    for number in range(count):
        run = passed(objective.form(tokens, 12, Draw(0, 0, torch.tensor([number]))))
        objective.update_metrics(run, metrics)
        labels, guesses = run.targets["labels"][0], objective.class_logits(run).argmax(-1)[0]
        for place, guess in zip(run.targets["places"][0].tolist(), guesses.tolist(), strict=True):
            if place >= 0:
                word = place - int(place > 7)
                predictions[word] = IOB2[guess]
        assert (labels != IGNORED).equal(run.targets["places"][0] >= 0)  # one for each word, at its first token
    texts = [predictions[:7], predictions[7:]]
    expected = by_hand(texts, [[IOB2[tag] for tag in gold[:7]], [IOB2[tag] for tag in gold[7:]]])
    values = [float(metrics[f"entity-{score}"].compute()) for score in SCORES]
    assert values == pytest.approx(expected)
    assert "" not in predictions


def test_entities_need_names_of_tags(build: Build, corpus: Corpus, vocabulary: Vocabulary) -> None:
    objective: Any = build("tag", vocabulary, 12, entities=True)
    tokens = corpus([[1, 2]])
    tokens.labels = Labels(np.zeros(2), np.array([0, 2]), ("prose", "code"))
    with raises_problem(DataError, "tag-names", "prose"):
        objective.example_count(tokens, 12)
    assert "entity-f1" not in build("tag", vocabulary, 12).metrics()
