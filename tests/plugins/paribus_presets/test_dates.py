"""Three tiny presets learn to rewrite dates; their attention finds the day, the month and the year in the source.

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

ALIGNED_PAIRS = 128  # pairs whose attention is checked


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def trained(preset: str, folder: Path) -> tuple[Any, float]:
    """The model that `paribus train PRESET` saves, and the seconds of CPU time that it took."""
    start = time.process_time()
    assert main(["train", preset, "--store", str(folder / "runs"), "--save", str(folder / "model")]) == 0
    return paribus.load(folder / "model").eval(), time.process_time() - start


def held_out(model: Any) -> tuple[Dates, list[Document]]:
    build_corpus: Any = Dates
    node = {key: value for key, value in model.spec["corpus"].items() if key != "name"}
    corpus: Dates = build_corpus(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in node.items()}
    )
    return corpus, list(corpus.documents("val"))


def greedy(model: Any, document: Document) -> str:
    """Greedy decoding: what the model generates for a source, always with the most probable token."""
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


def field_names(text: str, fields: tuple[Field, ...]) -> list[str]:
    """For each byte of a text, the name of its field, or an empty string."""
    names = [""] * len(text)
    for field in fields:
        names[field.start : field.end] = [field.name] * (field.end - field.start)
    return [name for letter, name in zip(text, names, strict=True) for _ in letter.encode()]


def aligned(model: Any, corpus: Dates, documents: list[Document]) -> list[float]:
    """The share of the target's field tokens whose largest weight lies on the same field of the source.

    One share for each layer (heads averaged), then one for the average of all layers.
    """
    hits, count = torch.zeros(0), 0
    for document in documents:
        prompt = model.objective("seq2seq").prompt(list(document.text.encode()))
        fed = torch.tensor([[*prompt.body, *document.target[0].encode()]])
        layers = model.attention(fed, source=torch.tensor([prompt.source]))
        weights = torch.stack([layer["cross"][0].mean(0) for layer in layers])
        most_attended = torch.cat([weights, weights.mean(0, keepdim=True)]).argmax(-1).tolist()
        source, target = corpus.fields(document)
        source_names, expected = [*field_names(document.text, source), ""], field_names(document.target[0], target)
        rows = [row for row, name in enumerate(expected) if name]
        batch_hits = torch.tensor(
            [sum(source_names[layer[row]] == expected[row] for row in rows) for layer in most_attended]
        )
        hits, count = batch_hits + (hits if count else 0), count + len(rows)
    return [float(share) for share in hits / count]


@pytest.mark.parametrize("preset", ["transformer-tiny", "rnnsearch-tiny", "convs2s-tiny"])
def test_a_tiny_preset_rewrites_dates_and_attends_to_the_same_field(preset: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, seconds = trained(preset, tmp_path)
    corpus, documents = held_out(model)
    with torch.no_grad():
        exact = sum(greedy(model, document) == document.target[0] for document in documents) / len(documents)
        shares = aligned(model, corpus, documents[:ALIGNED_PAIRS])
    figures = f"{exact:.2%} exact, {shares} aligned, {seconds:.0f} s"
    assert len(documents) == 512
    assert exact >= 0.99, figures
    assert shares[-1] >= 0.90, figures  # all heads of all layers, averaged
    assert seconds < 300, figures


def test_exact_match_under_teacher_forcing_equals_greedy_decoding(registry: Registry, tmp_path: Path) -> None:
    """The metric `exact` needs no decoding: a pair is exact if no guess under teacher forcing is wrong."""
    from paribus.train.trial import TrialContext, run_trial

    spec = resolved("rnnsearch-tiny", "trainer.max_steps=70", "corpus.held_out=64", registry=registry)
    record = run_trial(spec, registry, TrialContext("trial", tmp_path))
    model: Any = paribus.load(tmp_path).eval()
    _, documents = held_out(model)
    with torch.no_grad():
        exact = sum(greedy(model, document) == document.target[0] for document in islice(documents, 64)) / 64
    assert 0.02 < exact < 0.98, "a model that is always right, or never, cannot show a difference"
    assert record["result"]["metrics"]["val/seq2seq/exact"] == pytest.approx(exact)
