"""The author's references of corpora and measures: installed ones agree; test_mutants.py seeds faults in them."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby, pairwise
from typing import Any

import torch

from paribus_text.reference import Reference

Expected = Mapping[str, Any]

# -- corpora -----------------------------------------------------------------------------------------------------------


def induction(corpus: Any, document: Any) -> Expected:
    """The last symbol occurred once before; the answer is its successor."""
    *symbols, query = document.text.split()
    assert symbols.count(query) == 1, "the query does not occur exactly once before"
    return {"target": (symbols[symbols.index(query) + 1],)}


def groups(corpus: Any, document: Any, options: Mapping[str, Any]) -> Expected:
    """The class is the place of the symbols in the alphabet, divided by the number of symbols of a group."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    names = [*alphabet, *(first + second for first in alphabet for second in alphabet)]
    places = {names.index(symbol) // options["symbols"] for symbol in document.text.split()}
    return {"labels": tuple(map(float, places)), "target": ()}


def answer(change: Callable[[list[str]], Any]) -> Callable[[Any, Any], Expected]:
    """Return the reference of a task whose answer follows from the symbols before the mark at the end."""

    def reference(corpus: Any, document: Any) -> Expected:
        *symbols, end = document.text.split()
        assert end == ">"
        return {"target": (" ".join(map(str, change(symbols))),)}

    return reference


def modular_addition(corpus: Any, document: Any, options: Mapping[str, Any]) -> Expected:
    terms = document.text.removesuffix(" =").split(" + ")
    return {"target": (str(sum(map(int, terms)) % options["modulus"]),)}


def agreement(corpus: Any, document: Any) -> Expected:
    """The verb agrees with the first noun."""
    return {"target": ("are" if document.text.split()[1].endswith("s") else "is",)}


def list_operations(symbols: list[str]) -> list[int]:
    """Evaluate nested operations with a stack: "ListOps" (Nangia & Bowman 2018)."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    for symbol in symbols:
        if symbol == "]":
            name, values = stack.pop()
            middle = sorted(values)[(len(values) - 1) // 2]
            results = {"[MAX": max(values), "[MIN": min(values), "[MED": middle, "[SM": sum(values) % 10}
            stack[-1][1].append(results[name])
        elif symbol.startswith("["):
            stack.append((symbol, []))
        else:
            stack[-1][1].append(int(symbol))
    return stack[0][1]


def overlap(corpus: Any, document: Any) -> Expected:
    """The share of the words that are the same."""
    pairs = list(zip(document.text.split(), " ".join(document.target).split(), strict=True))
    return {"labels": (sum(word == other for word, other in pairs) / len(pairs),)}


def recall(corpus: Any, document: Any) -> Expected:
    """The values of the queried keys; the keys after the first are given. Numbers between the pairs are noise."""
    symbols = [symbol for symbol in document.text.split() if not symbol.isdigit()]
    *pairs, first = (" ".join(run) for _, run in groupby(symbols, key=str.isupper))
    values = dict(zip(pairs[::2], pairs[1::2], strict=True))
    queries = [first, *document.target[1::2]]
    answer = [part for key in queries for part in (key, values[key])][1:]
    return {"target": tuple(answer), "labels": tuple(float(place % 2 == 0) for place in range(len(answer)))}


def dyck(corpus: Any, document: Any, options: Mapping[str, Any]) -> Expected:
    """A prefix of nested brackets of bounded depth, and the brackets that close it."""
    *brackets, end = document.text.split()
    opened: list[str] = []
    for bracket in brackets:
        if bracket.startswith("("):
            opened.append(bracket[1:])
        else:
            assert opened.pop() == bracket[:-1], "a bracket closes another one"
        assert len(opened) <= options["depth"], f"{len(opened)} brackets are open"
    assert end == ">"
    return {"target": (" ".join(f"{kind})" for kind in reversed(opened)),)}


@cache
def sentences() -> frozenset[str]:
    """Return the sentences of the Python documentation, as they are and without quotation marks."""
    reference = Reference(0.2, docstrings=True)
    topics = [*reference.topics("train"), *reference.topics("val")]
    texts = [sentence for topic in topics for sentence in topic.sentences]
    return frozenset(" ".join(text.split()) for text in (*texts, *(text.replace('"', "") for text in texts)))


@cache
def documentation() -> str:
    """Return all sentences in one text; some sentences contain shorter ones."""
    return "\n".join(sentences())


def word_order(corpus: Any, document: Any) -> Expected:
    """A sentence as it is written, or one of which some words are moved."""
    return {"labels": (corpus.classes().index("as written" if document.text in sentences() else "moved"),)}


def cloze(corpus: Any, document: Any) -> Expected:
    """The words of the context that fill the blank of a sentence."""
    first, last = map(int, document.labels)
    filled = document.text.replace("___", "".join(document.target[first : last + 1]))
    is_answer = first < 0 or " ".join(filled.split()) in documentation()
    return {"labels": document.labels if is_answer else (-1, -1)}


# -- measures ----------------------------------------------------------------------------------------------------------


def by_head(model: Any, examples: int, statistic: Callable[[list[float], list[int]], float]) -> list[float]:
    """Return the mean of a statistic over the tokens that see two or more, for each head of each layer.

    The statistic is that of the weights of a token on the tokens that it sees, and their distances.
    """
    heads: dict[tuple[int, int], list[float]] = {}
    for batch in model.batches(examples):
        body = batch.streams["body"]
        layers = [weights.tolist() for weights in model.attention_weights(batch)]
        for example in range(len(body.tokens)):
            documents = [0] * body.tokens.shape[1] if body.documents is None else body.documents[example].tolist()
            for query, document in enumerate(documents):
                last = query if model.shape.causal else len(documents)
                visible = [key for key, other in enumerate(documents) if other == document >= 0 and key <= last]
                for layer, weights in enumerate(layers) if len(visible) > 1 else ():
                    for head, rows in enumerate(weights[example]):
                        shares = [rows[query][key] for key in visible]
                        value = statistic(shares, [abs(key - query) for key in visible])
                        heads.setdefault((layer, head), []).append(value)
    return [sum(values) / len(values) for values in heads.values()]


def summary(heads: list[float]) -> dict[str, float]:
    return {"mean": sum(heads) / len(heads), "lowest": min(heads), "highest": max(heads)}


def span(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """The mean distance to the attended tokens (Raghu et al. 2021)."""

    def distance(shares: list[float], distances: list[int]) -> float:
        return sum(share * number for share, number in zip(shares, distances, strict=True)) / sum(shares)

    return summary(by_head(model, options["examples"], distance))


def entropy(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """The entropy of the weights, divided by that of uniform ones (Voita et al. 2019)."""

    def evenness(shares: list[float], distances: list[int]) -> float:
        return -sum(share * math.log(share) for share in shares if share) / math.log(len(shares))

    return summary(by_head(model, options["examples"], evenness))


def sink(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """The weight on the first token, and what the weights lack to 1 (Xiao et al. 2023)."""
    nowhere = by_head(model, options["examples"], lambda shares, distances: max(0.0, 1 - sum(shares)))
    first = by_head(model, options["examples"], lambda shares, distances: shares[0])
    return {**summary(first), "nowhere": summary(nowhere)["mean"]}


def induction_score(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """The weight on the token after the earlier occurrence, in random tokens that are repeated (Olsson et al. 2022)."""
    text = [token for token in range(model.vocabulary.size) if token not in model.vocabulary.reserved]
    count = min(options["tokens"], model.trial.length // 2, len(text))
    if count < 2:
        return {}
    heads: dict[tuple[int, int], list[float]] = {}
    losses: tuple[list[float], list[float]] = ([], [])
    for keys in model.draw(options["examples"]).uniform("induction", len(text)).tolist():
        tokens = [text[index] for index in sorted(range(len(text)), key=keys.__getitem__)[:count]] * 2
        batch = model.token_batch(torch.tensor([tokens]))
        log_shares = model.logits(batch)[0].log_softmax(-1)
        layers = model.attention_weights(batch)
        for earlier in range(count - 1):
            for half, losses_of_half in enumerate(losses):
                place = earlier + half * count
                losses_of_half.append(-float(log_shares[place, tokens[place + 1]]))
            for layer, weights in enumerate(layers):
                for head, rows in enumerate(weights[0]):
                    heads.setdefault((layer, head), []).append(float(rows[count + earlier, earlier + 1]))
    scores = [sum(values) / len(values) for values in heads.values()]
    first, second = (sum(values) / len(values) for values in losses)
    return {"score": max(scores), "mean": sum(scores) / len(scores), "loss": second, "gain": first - second}


def associative_recall(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """Losses of the second tokens of pairs that occurred before in the document (Arora et al. 2023)."""
    losses: dict[bool, list[float]] = {True: [], False: []}
    correct = 0
    for batch in model.batches(options["examples"]):
        body, scores = batch.streams["body"], model.logits(batch)
        for example, tokens in enumerate(body.tokens.tolist()):
            documents = [0] * len(tokens) if body.documents is None else body.documents[example].tolist()
            pairs: set[tuple[int, int, int]] = set()
            for place, (token, following) in enumerate(pairwise(tokens)):
                pair = documents[place], token, following
                if documents[place] == documents[place + 1] >= 0:
                    losses[pair in pairs].append(-float(scores[example, place].log_softmax(-1)[following]))
                    correct += pair in pairs and int(scores[example, place].argmax()) == following
                pairs.add(pair)
    if not losses[True] or not losses[False]:
        return {}
    repeated, others = losses[True], losses[False]
    return {
        "loss": sum(repeated) / len(repeated),
        "accuracy": correct / len(repeated),
        "rest": sum(others) / len(others),
        "share": len(repeated) / (len(repeated) + len(others)),
    }


def threshold(measure: Any, model: Any, options: Mapping[str, Any]) -> Expected:
    """The first evaluation that passes, or the last one."""
    points = [point for point in model.learning_curve if options["metric"] in point]
    for point in points:
        value = point[options["metric"]]
        if value <= options["value"] if options["below"] else value >= options["value"]:
            return {"steps": point["step"], "reached": 1}
    return {"steps": points[-1]["step"], "reached": 0} if points else {}


REFERENCES: dict[str, Callable[..., Any]] = {
    "corpus.agreement": agreement,
    "corpus.cloze": cloze,
    "corpus.copy": answer(lambda symbols: symbols),
    "corpus.dyck": dyck,
    "corpus.groups": groups,
    "corpus.induction": induction,
    "corpus.listops": answer(list_operations),
    "corpus.mod-add": modular_addition,
    "corpus.overlap": overlap,
    "corpus.recall": recall,
    "corpus.reverse": answer(lambda symbols: symbols[::-1]),
    "corpus.selective-copy": answer(lambda symbols: [symbol for symbol in symbols if symbol != "."]),
    "corpus.sort": answer(lambda symbols: sorted(map(int, symbols))),
    "corpus.word-order": word_order,
    "measure.entropy": entropy,
    "measure.induction": induction_score,
    "measure.recall": associative_recall,
    "measure.sink": sink,
    "measure.span": span,
    "measure.threshold": threshold,
}
