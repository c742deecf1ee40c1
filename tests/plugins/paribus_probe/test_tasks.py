"""Probe tasks: right answers, disjoint splits, and the same examples on every machine."""

import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from graphlib import TopologicalSorter
from itertools import groupby
from typing import Any, get_args

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import Corpus, DataError, Document, SpecError, Split
from paribus_probe import corpus
from paribus_probe.associative_recall import AssociativeRecall
from paribus_probe.group_words import Group
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


def runs(symbols: Iterable[str]) -> list[str]:
    """Return the keys and values of a text, in turn: neighbours of the same case belong together."""
    without_noise = (symbol for symbol in symbols if not symbol.isdigit())
    return [" ".join(run) for _, run in groupby(without_noise, key=str.isupper)]


def is_recall_answer(text: list[str], answer: list[str]) -> bool:
    *pairs, query = runs(text)
    value = dict(zip(pairs[::2], pairs[1::2], strict=True))
    answers = runs(answer)
    keys = [query, *answers[1::2]]
    return [value[key] for key in keys] == answers[::2] and len(set(keys)) == len(keys) and 2 * len(value) == len(pairs)


def is_induction_answer(text: list[str], answer: list[str]) -> bool:
    position = text.index(text[-1])
    return text.count(text[-1]) == 2 and position < len(text) - 2 and answer == [text[position + 1]]


def is_depo_answer(text: list[str], answer: list[str]) -> bool:
    *edges, hops, node = text
    successors = set(zip(edges[::2], edges[1::2], strict=True))
    nodes = {node for pair in successors for node in pair}
    queries = [(int(hops), node, answer[0])]
    queries += [
        (int(hops), node, last) for hops, node, last in zip(*(answer[start::3] for start in (1, 2, 3)), strict=True)
    ]

    def reached(start: str, count: int) -> set[str]:
        places = {start}
        for _ in range(count):
            places = {after for before, after in successors if before in places}
        return places

    is_cycle = all(reached(node, count) != {node} for node in nodes for count in range(1, len(nodes)))
    return (
        len(successors) == len(nodes)
        and is_cycle
        and all(reached(node, hops) == {last} for hops, node, last in queries)
    )


def dependencies(text: list[str]) -> list[str]:
    """Return the topological order of the ancestors of the last node, by the closure of the edges and graphlib."""
    *edges, query = text
    parents = {node: {edges[place - 1] for place in range(1, len(edges), 2) if edges[place] == node} for node in edges}
    ancestors = {query}
    for _ in edges:
        ancestors |= {parent for node in ancestors for parent in parents[node]}
    sorter = TopologicalSorter({node: parents[node] for node in ancestors})
    sorter.prepare()
    order: list[str] = []
    ready = list(sorter.get_ready())
    while ready:
        ready.sort(key=lambda node: (len(node), node))
        order.append(ready.pop(0))
        sorter.done(order[-1])
        ready += sorter.get_ready()
    return order


def prefix_value(text: list[str]) -> int:
    stack: list[int] = []
    for symbol in reversed(text):
        operation = {"+": operator.add, "-": operator.sub, "*": operator.mul}.get(symbol)
        stack.append(int(symbol) if operation is None else operation(stack.pop(), stack.pop()))
    (value,) = stack
    return value % 23


def digit_sum(text: list[str]) -> list[str]:
    """Return the digits of a sum by the method of schools, from the last digits to the first."""
    plus, carry, digits = text.index("+"), 0, []
    for left, right in zip(text[:plus], text[plus + 1 : -1], strict=True):
        carry, digit = divmod(int(left) + int(right) + carry, 10)
        digits.append(str(digit))
    return [*digits, str(carry)]


NOUN, VERB = r"(?:key|book|guard|table|window|garden|letter|bridge)", r"(?:saw|found|painted|admired|watched|liked)"
PHRASES = rf"(?: (?:near|behind|above|beside) the {NOUN}s?)*"
ADJECTIVE = r"(?:old|new|red|tall|heavy|small|bright|plain)"
GRAMMAR = {
    "agreement": rf"the {NOUN}(?:{PHRASES} (?:is|was)|s{PHRASES} (?:are|were)) {ADJECTIVE}",
    "determiner": rf"the {NOUN} {VERB} (?:(?:this|that)(?: {ADJECTIVE})* {NOUN}"
    rf"|(?:these|those)(?: {ADJECTIVE})* {NOUN}s)",
    "reflexive": rf"the (?:(?:king|prince){PHRASES} {VERB} himself|(?:queen|duchess){PHRASES} {VERB} herself"
    rf"|(?:kings|princes|queens|duchesses){PHRASES} {VERB} themselves)",
    "polarity": rf"(?:today|here|now|there) (?:no {NOUN}{PHRASES} has ever|every {NOUN}{PHRASES} has already)"
    r" \w+(?:ed|en)",
}


def is_grammatical(text: str, *names: str) -> bool:
    return any(re.fullmatch(GRAMMAR[name], text) for name in names or GRAMMAR)


RIGHT: dict[str, Callable[[list[str], list[str]], bool]] = {
    "addition": lambda text, answer: answer == digit_sum(text),
    "agreement": lambda text, answer: answer == ["are" if text[1].endswith("s") else "is"],
    "brevo": lambda text, answer: answer == dependencies(text),
    "copy": lambda text, answer: answer == text,
    "depo": is_depo_answer,
    "dyck": lambda text, answer: answer == closing_brackets(text) and bool(answer),
    "group-words": lambda text, answer: not answer and len(text) % 16 == 0,  # its tags have a test of their own
    "groups": lambda text, answer: not answer and len({(ord(symbol) - ord("a")) // 6 for symbol in text}) == 1,
    "induction": is_induction_answer,
    "listops": lambda text, answer: answer == [str(evaluate_expression(text))],
    "mano": lambda text, answer: answer == [str(prefix_value(text))],
    "memorise": lambda text, answer: not answer and len(text) % 16 == 0,  # its tags have a test of their own
    "minimal-pairs": lambda text, answer: not answer and is_grammatical(" ".join(text)),
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
    if name in ("listops", "brevo", "minimal-pairs"):  # the length depends on more than the size of the question
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


@pytest.mark.parametrize("group", get_args(Group))
def test_the_tags_of_a_word_are_the_products_of_its_elements(group: str) -> None:
    """Products are those of matrices, or sums modulo the order of a cyclic group."""
    task = build_task("group-words", group=group, length=9)
    names, order = task.classes(), int(group[1:])
    sizes = {"Z": order, "S": math.factorial(order), "A": math.factorial(order) // 2}
    assert len(set(names)) == len(names) == sizes[group[0]]
    for document in (*task.documents("train"), *task.longer_documents(2)):
        product = np.eye(order)
        for word, tag in zip(document.sentences, document.labels, strict=True):
            if group.startswith("Z"):
                product = np.roll(product, int(word), axis=1)
                assert int(names[int(tag)]) == product[0].argmax()
                continue
            element = np.eye(order)[[int(digit) - 1 for digit in word]]
            product = product @ element
            assert names[int(tag)] == "".join(str(image + 1) for image in product.argmax(axis=1))
            assert group.startswith("S") or np.linalg.det(element) == 1


def test_a_key_has_the_same_value_in_all_texts_of_a_seed() -> None:
    values: dict[tuple[str, ...], set[float]] = {}
    task = build_task("memorise", symbols=3, key=2, values=4)
    for document in (*task.documents("train"), *task.documents("val"), *task.longer_documents(2)):
        for place, tag in enumerate(document.labels):
            values.setdefault(document.sentences[max(0, place - 1) : place + 1], set()).add(tag)
    assert len(values) == 3 + 3**2
    assert all(len(tags) == 1 for tags in values.values())
    assert {tag for tags in values.values() for tag in tags} == {0.0, 1.0, 2.0, 3.0}
    other = next(iter(build_task("memorise", symbols=3, key=2, values=4, seed=1).documents("train")))
    changed = [values[other.sentences[place - 1 : place + 1]] != {other.labels[place]} for place in range(1, 16)]
    assert any(changed)


@pytest.mark.parametrize("phenomenon", GRAMMAR)
def test_the_wrong_sentence_of_a_pair_differs_in_one_word(phenomenon: str) -> None:
    task = build_task("minimal-pairs", phenomenon=phenomenon, choices=True)
    labels = set()
    for document in (*task.documents("train"), *task.documents("val"), *task.longer_documents(2)):
        sentences = [f"{document.text} {ending}" for ending in document.target]
        right = int(document.labels[0])
        assert [is_grammatical(sentence, phenomenon) for sentence in sentences] == [right == 0, right == 1]
        assert sum(one != other for one, other in zip(*(it.split() for it in sentences), strict=True)) == 1
        labels.add(right)
    assert labels == {0, 1}


@pytest.mark.parametrize("options", [{"noise": 0.5}, {"motif": 3}, {"noise": 0.2, "motif": 2}])
def test_noise_and_motifs_leave_the_answers_of_recall_right(options: dict[str, Any]) -> None:
    task = build_task("recall", **options)
    for documents in (task.documents("train"), task.documents("val"), task.longer_documents(3)):
        assert all(is_recall_answer(*words(document)) for document in documents)
    symbols = [symbol for document in task.documents("train") for symbol in document.text.split()]
    share = sum(symbol.isdigit() for symbol in symbols) / len(symbols)
    assert abs(share - options.get("noise", 0)) < 0.06
    longest = max(len(run.split()) for document in task.documents("train") for run in runs(document.text.split()))
    assert longest == options.get("motif", 1)


def test_a_sum_is_written_from_its_first_or_its_last_digit() -> None:
    for document in build_task("addition", digits=5, reversed=False).documents("train"):
        left, right = (int(number.replace(" ", "")) for number in document.text.removesuffix(" =").split(" + "))
        assert int("".join(words(document)[1])) == left + right


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


@pytest.mark.parametrize("name", ["depo", "brevo"])
def test_fewer_symbols_than_nodes_are_rejected(name: str) -> None:
    with raises_problem(SpecError, "too-few-symbols", "≥ 8", "7"):
        build_task(name, symbols=7)
    with raises_problem(DataError, "too-few-symbols", "corpus.symbols", "72"):
        list(build_task(name).longer_documents(9))


def test_given_tokens_of_an_answer_are_marked() -> None:
    for document in build_task("recall").documents("train"):
        assert len(document.labels) == len(document.target)
        assert document.labels == tuple(float(part.isupper()) for part in document.target)
    for document in build_task("depo").documents("train"):
        assert document.labels == tuple(float(len(part.split()) == 1) for part in document.target)


def test_symbols_are_distinct() -> None:
    assert len(set(letters(26 + 26**2))) == 26 + 26**2
    assert letters(28)[-3:] == ("z", "aa", "ab")
