"""Two tiny presets learn to write dates as another place does, and look where the day, the month and the year stand.

One command trains each, on one thread, in less than five minutes of CPU time.
"""

import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import paribus
from paribus import Document, Registry, installed
from paribus.cli.main import main
from paribus.specs import resolved
from paribus_text.date_formats import Field
from paribus_text.dates import Dates

pytestmark = pytest.mark.slow

LOOKED_AT = 128  # pairs whose attention is looked at


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def trained(preset: str, folder: Path) -> tuple[Any, float]:
    """The model that `paribus train PRESET` leaves, and how many seconds of CPU time it took."""
    before = time.process_time()
    assert main(["train", preset, "--store", str(folder / "runs"), "--save", str(folder / "model")]) == 0
    return paribus.load(folder / "model").eval(), time.process_time() - before


def held_out(model: Any) -> tuple[Dates, list[Document]]:
    made: Any = Dates
    node = {key: value for key, value in model.spec["corpus"].items() if key != "name"}
    corpus: Dates = made(**{key: tuple(value) if isinstance(value, list) else value for key, value in node.items()})
    return corpus, list(corpus.documents("val"))


def greedy(model: Any, document: Document) -> str:
    """What the model writes for a source, one token at a time, each the likeliest."""
    prompt = model.objective("seq2seq").prompt(list(document.text.encode()))
    states, tokens, written = model.start(1), torch.tensor([prompt.body]), list[int]()
    while len(written) < model.spec["dims"]["length"]:
        scores, states = model(tokens, states, source=torch.tensor([prompt.source]))
        token = int(scores[0, -1].argmax())
        if token == prompt.stop:
            break
        written.append(token)
        tokens = torch.tensor([[token]])
    return bytes(token for token in written if token < 256).decode("utf-8", "replace")


def told(text: str, fields: tuple[Field, ...]) -> list[str]:
    """Of each byte of a text, which field it tells, if any."""
    names = [""] * len(text)
    for field in fields:
        names[field.start : field.end] = [field.name] * (field.end - field.start)
    return [name for letter, name in zip(text, names, strict=True) for _ in letter.encode()]


def aligned(model: Any, corpus: Dates, documents: list[Document]) -> list[float]:
    """Of the tokens that tell a field, the share whose row looks most at this field of the source: by layers, heads
    averaged, and last by the average of all layers."""
    hits, count = torch.zeros(0), 0
    for document in documents:
        prompt = model.objective("seq2seq").prompt(list(document.text.encode()))
        fed = torch.tensor([[*prompt.body, *document.target[0].encode()]])
        layers = model.attention(fed, source=torch.tensor([prompt.source]))
        weights = torch.stack([layer["cross"][0].mean(0) for layer in layers])
        looks = torch.cat([weights, weights.mean(0, keepdim=True)]).argmax(-1).tolist()
        source, target = corpus.fields(document)
        there, wanted = [*told(document.text, source), ""], told(document.target[0], target)
        rows = [row for row, name in enumerate(wanted) if name]
        found = torch.tensor([sum(there[layer[row]] == wanted[row] for row in rows) for layer in looks])
        hits, count = found + (hits if count else 0), count + len(rows)
    return [float(share) for share in hits / count]


@pytest.mark.parametrize("preset", ["transformer-tiny", "rnnsearch-tiny"])
def test_a_tiny_preset_writes_dates_and_looks_at_what_it_writes_of(preset: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, seconds = trained(preset, tmp_path)
    corpus, documents = held_out(model)
    with torch.no_grad():
        exact = sum(greedy(model, document) == document.target[0] for document in documents) / len(documents)
        shares = aligned(model, corpus, documents[:LOOKED_AT])
    figures = f"{exact:.2%} exact, {shares} aligned, {seconds:.0f} s"
    assert len(documents) == 512
    assert exact >= 0.99, figures
    assert shares[-1] >= 0.90, figures  # all heads of all layers, averaged
    assert seconds < 300, figures


def test_what_is_exact_while_it_is_fed_the_target_is_what_greedy_decoding_writes(
    registry: Registry, tmp_path: Path
) -> None:
    """The metric `exact` needs no decoding: a pair that is written whole has no first guess that is wrong."""
    from paribus.train.trial import TrialContext, run_trial

    spec = resolved("rnnsearch-tiny", "trainer.max_steps=70", "corpus.held_out=64", registry=registry)
    record = run_trial(spec, registry, TrialContext("trial", tmp_path))
    model: Any = paribus.load(tmp_path).eval()
    _, documents = held_out(model)
    with torch.no_grad():
        exact = sum(greedy(model, document) == document.target[0] for document in islice(documents, 64)) / 64
    assert 0.02 < exact < 0.98, "neither is told anything by a model that knows all, or nothing"
    assert record["result"]["metrics"]["val/seq2seq/exact"] == pytest.approx(exact)
