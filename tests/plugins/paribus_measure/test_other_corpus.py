"""Metrics on another corpus, against those of a trial that is evaluated on it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus import SpecError
from paribus.models.evaluate import compute_metrics, evaluation_mode
from paribus.models.lightning_module import Model

TINY = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=8", "dims.length=32", "tokenizer=bytes")
CLASSIFY = "objective={name: classify, classes: 2, pool: mean}"


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Write a table of texts with labels, and return its corpus."""

    def write(name: str, rows: Mapping[str, int], **options: Any) -> str:
        path = tmp_path / f"{name}.csv"
        path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows.items()))
        words = "".join(f", {key}: {value}" for key, value in {"held_out": 0.5, **options}.items())
        return f"{{name: table, path: [{path}], label: label{words}}}"

    return write


def films(word: str) -> dict[str, int]:
    return {f"{word} film number {number} {'good' if number % 2 else 'bad'}": number % 2 for number in range(80)}


def metrics_of(model: Model, spec: Any) -> dict[str, float]:
    with evaluation_mode(model):
        return compute_metrics(model, paribus.data(spec).val_dataloader())


def test_the_metrics_are_those_of_a_trial_on_the_other_corpus(table: Callable[..., str]) -> None:
    here, there = table("here", films("a dull")), table("there", films("this loud"))
    measured = f"measure=[{{name: other-corpus, corpus: {there}}}]"
    spec = paribus.spec("encoder-tiny", *TINY, CLASSIFY, f"corpus={here}", measured)
    model = paribus.assemble(spec)
    values = paribus.measure(model, paribus.data(spec)).metrics
    expected = metrics_of(model, paribus.spec("encoder-tiny", *TINY, CLASSIFY, f"corpus={there}"))
    for name in ("loss", "accuracy"):
        assert values[f"val/other-corpus/classify.{name}"] == pytest.approx(expected[f"val/classify/{name}"], rel=1e-6)
    assert values["val/other-corpus/classify.loss"] != metrics_of(model, spec)["val/classify/loss"]


def test_fewer_examples_are_drawn_from_the_whole_split(table: Callable[..., str]) -> None:
    rows = {f"text number {number}": int(number < 40) for number in range(80)}  # the classes one after the other
    corpus = table("sorted", rows)
    shares = []
    for examples in (10, 1024):
        measured = f"measure=[{{name: other-corpus, corpus: {corpus}, examples: {examples}}}]"
        spec = paribus.spec("encoder-tiny", *TINY, CLASSIFY, f"corpus={corpus}", measured)
        shares.append(paribus.measure(paribus.assemble(spec), paribus.data(spec)).metrics)
    few, all_of_them = (values["val/other-corpus/classify.accuracy"] for values in shares)
    assert 0.2 <= few <= 0.8  # 0 or 1 where the examples are of one class
    assert all_of_them == pytest.approx(0.5, abs=0.2)


def test_a_language_model_reads_another_text_with_its_own_tokenizer() -> None:
    measured = "measure=[{name: other-corpus, corpus: {name: python-docs, docstrings: true}, examples: 8}]"
    spec = paribus.spec("gpt-tiny", *TINY, measured)
    values = paribus.measure(paribus.assemble(spec), paribus.data(spec)).metrics
    assert values["val/other-corpus/clm.loss"] > 0


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("dates", "measure `other-corpus`: objective `classify` needs `labels`, which the corpus `dates`"),
        ("shapes", "measure `other-corpus`: tokenizer `bytes` reads text, but corpus `shapes` has images"),
        ("groups", "measure `other-corpus`: `classes` of objective `classify` is 2, but for corpus `groups` it is 4"),
    ],
)
def test_a_corpus_that_the_objectives_cannot_read_is_rejected(
    corpus: str, message: str, table: Callable[..., str]
) -> None:
    words = (f"corpus={table('here', films('a'))}", f"measure=[{{name: other-corpus, corpus: {corpus}}}]")
    with raises_problem(SpecError, "does-not-fit", "measure.0.corpus", message):
        paribus.spec("encoder-tiny", *TINY, CLASSIFY, *words)


def test_a_corpus_without_examples_gives_a_reason(table: Callable[..., str]) -> None:
    corpus = table("short", {"one": 0, "two": 1})
    spec = paribus.spec("gpt-tiny", *TINY, f"measure=[{{name: other-corpus, corpus: {corpus}}}]")
    values = paribus.measure(paribus.assemble(spec), paribus.data(spec))
    assert "example" in values.unmeasured["val/other-corpus/clm.loss"]
    assert values.metrics == {}
