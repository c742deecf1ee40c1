"""Probe tasks: right answers, disjoint splits, and the same examples on every machine."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Corpus, DataError, Document, SpecError, Split
from paribus_probe import corpus
from paribus_probe.associative_recall import AssociativeRecall
from paribus_probe.task_examples import KeyedRandom, Question, TaskExamples, letters

TASKS: Mapping[str, Any] = corpus()
SPLITS: tuple[Split, ...] = ("train", "val")
SMALL = {"examples": 120, "held_out": 30}


def build_task(name: str, **options: Any) -> Corpus:
    task: Corpus = TASKS[name](**SMALL, **options)
    return task


def words(document: Document) -> tuple[list[str], list[str]]:
    return document.text.removesuffix(" >").split(), " ".join(document.target).split()


def evaluate_expression(text: list[str]) -> int:
    """Return the value of a list expression, by a stack."""
    stack: list[list[Any]] = [[]]
    for symbol in text:
        if symbol.startswith("["):
            stack.append([symbol[1:]])
        elif symbol == "]":
            name, *values = stack.pop()
            values.sort()
            results = {
                "MAX": values[-1],
                "MIN": values[0],
                "MED": values[(len(values) - 1) // 2],
                "SM": sum(values) % 10,
            }
            stack[-1].append(results[name])
        else:
            stack[-1].append(int(symbol))
    ((value,),) = stack
    return int(value)


def closing_brackets(text: list[str]) -> list[str]:
    open_: list[str] = []
    for symbol in text:
        if symbol.startswith("("):
            open_.append(symbol[1:])
        else:
            assert open_.pop() == symbol[:-1]
    return [f"{kind})" for kind in reversed(open_)]


def is_recall_answer(text: list[str], answer: list[str]) -> bool:
    value = dict(zip(text[:-1:2], text[1:-1:2], strict=True))
    keys = [text[-1], *answer[1::2]]
    return [value[key] for key in keys] == answer[::2] and len(set(keys)) == len(keys)


def is_induction_answer(text: list[str], answer: list[str]) -> bool:
    position = text.index(text[-1])
    return text.count(text[-1]) == 2 and position < len(text) - 2 and answer == [text[position + 1]]


RIGHT: dict[str, Callable[[list[str], list[str]], bool]] = {
    "agreement": lambda text, answer: answer == ["are" if text[1].endswith("s") else "is"],
    "copy": lambda text, answer: answer == text,
    "dyck": lambda text, answer: answer == closing_brackets(text) and bool(answer),
    "groups": lambda text, answer: not answer and len({(ord(symbol) - ord("a")) // 6 for symbol in text}) == 1,
    "induction": is_induction_answer,
    "listops": lambda text, answer: answer == [str(evaluate_expression(text))],
    "mod-add": lambda text, answer: answer == [str(sum(map(int, text[:-1:2])) % 31)],
    "recall": is_recall_answer,
    "reverse": lambda text, answer: answer == text[::-1],
    "selective-copy": lambda text, answer: answer == [symbol for symbol in text if symbol != "."],
    "sort": lambda text, answer: answer == sorted(text, key=int),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_answer_is_right(name: str) -> None:
    task = build_task(name)
    for documents in (task.documents("train"), task.documents("val"), task.longer_documents(3)):
        assert all(RIGHT[name](*words(document)) for document in documents)


@pytest.mark.parametrize("name", TASKS)
def test_the_splits_have_no_question_in_common(name: str) -> None:
    task = build_task(name)
    splits = (task.documents("train"), task.documents("val"), task.longer_documents(2))
    train, val, longer = ({document.text for document in split_} for split_ in splits)
    assert not train & val
    assert not (train | val) & longer


@pytest.mark.parametrize("name", TASKS)
def test_longer_questions_use_the_same_symbols(name: str) -> None:
    task = build_task(name)
    short = [len(document.text.split()) for document in task.documents("train")]
    symbols = {word for it in task.documents("train") for text in (it.text, *it.target) for word in text.split()}
    lengths = [len(document.text.split()) for document in task.longer_documents(4)]
    if name == "listops":  # the length of an expression depends on its nesting
        assert sum(lengths) / len(lengths) > 2 * sum(short) / len(short)
    else:
        assert min(lengths) > max(short)
    assert max(lengths) <= 4 * max(short) + 2
    assert {word for document in task.longer_documents(4) for word in document.text.split()} <= symbols


@pytest.mark.parametrize("name", TASKS)
def test_an_example_depends_only_on_seed_split_and_number(name: str) -> None:
    few, many = build_task(name), TASKS[name](examples=130, held_out=40)
    assert list(many.documents("train"))[:120] == list(few.documents("train"))
    assert list(many.documents("val"))[:30] == list(few.documents("val"))
    assert list(build_task(name, seed=1).documents("train")) != list(few.documents("train"))
    prints = {build_task(name).fingerprint(), build_task(name, seed=1).fingerprint(), many.fingerprint()}
    assert len(prints) == 3
    assert build_task(name).fingerprint() in prints


def test_the_class_of_a_text_is_the_group_of_its_symbols() -> None:
    task = build_task("groups", classes=3, symbols=2, length=3)
    assert task.classes() == ("AA", "BB", "CC")
    documents = list(task.documents("train"))
    assert {document.labels for document in documents} == {(0.0,), (1.0,), (2.0,)}
    for document in documents:
        symbols = document.text.split()
        assert len(symbols) == 3
        assert {*symbols} <= {*("ab", "cd", "ef")[int(document.labels[0])]}


def test_draws_are_the_same_on_every_machine() -> None:
    rng = KeyedRandom("a key")
    assert [rng.below(1000) for _ in range(4)] == [555, 199, 839, 117]
    text = "".join(document.text for document in build_task("copy").documents("train"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "84890f03854fdc1e"


def test_draws_are_uniform() -> None:
    rng = KeyedRandom("even")
    counts = [0] * 10
    for _ in range(20_000):
        counts[rng.below(10)] += 1
    assert all(abs(count - 2000) < 4 * (20_000 * 0.09) ** 0.5 for count in counts)
    firsts = [rng.sample(range(5), 2)[0] for _ in range(5000)]
    assert all(abs(firsts.count(split_) - 1000) < 4 * 800**0.5 for split_ in range(5))


def test_a_task_with_too_few_questions_is_refused() -> None:
    same = TaskExamples(lambda rng, times: Question("always", ("the same",)), 1, 1, 0, __file__)
    with raises_problem(DataError, "too-few-documents", "corpus", "val"):
        [document for split in SPLITS for document in same.documents(split)]


def test_fewer_keys_than_pairs_are_rejected() -> None:
    with raises_problem(SpecError, "too-few-keys", "≥ 8", "7"):
        AssociativeRecall(keys=7)
    with raises_problem(DataError, "too-few-keys", "corpus.keys", "72"):
        list(AssociativeRecall().longer_documents(9))


def test_given_tokens_of_an_answer_are_marked() -> None:
    for document in build_task("recall").documents("train"):
        assert len(document.labels) == len(document.target)
        assert document.labels == tuple(float(part.isupper()) for part in document.target)


def test_symbols_are_distinct() -> None:
    assert len(set(letters(26 + 26**2))) == 26 + 26**2
    assert letters(28)[-3:] == ("z", "aa", "ab")
