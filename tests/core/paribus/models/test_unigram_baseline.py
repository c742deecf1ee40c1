"""Unigram baselines: counted by hand, and equal to the loss of a model with unigram frequencies only."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paribus import IGNORED, Objective
from paribus.datamodule.data import VALIDATION, Data
from paribus.models.assemble import build_data, build_model, load_corpus
from paribus.models.evaluate import (
    UNIGRAM_TOLERANCE,
    evaluate,
    learning_thresholds,
    token_unigram_loss,
    unigram_baselines,
    validation_targets,
)
from paribus.models.lightning_module import Model
from paribus.parts.random_draws import Draw, order
from paribus.registry import installed
from paribus.specs import resolved

# A model for each objective that has a trivial baseline, and the terms that have one.
BASELINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bilm": (("elmo-tiny", "tokenizer=bytes", "dims.vocabulary=null"), ("loss", "backward")),
    "choose": (("bert-tiny", "objective=choose", "corpus=continuations"), ("loss",)),
    "choose-causal": (
        ("gpt-tiny", "objective=choose-causal", "corpus=continuations", "tokenizer=wordpiece"),
        ("loss",),
    ),
    "block-diffusion": (("bd3lm-tiny",), ("bound",)),
    "classify": (("bert-tiny", "objective=classify", "corpus=word-order"), ("loss",)),
    "classify-causal": (("gpt-tiny", "objective=classify-causal", "corpus=word-order"), ("loss",)),
    "clm": (("gpt-tiny",), ("loss",)),
    "completion": (("gpt-tiny", "objective=completion", "corpus=copy", "tokenizer=symbols"), ("loss",)),
    "control": (("ctrl-tiny",), ("loss",)),
    "denoise": (("bart-tiny",), ("loss",)),
    "detection": (("encoder-tiny", "objective=detection"), ("loss",)),
    "emd": (("deberta-tiny",), ("loss",)),
    "extract": (("bert-tiny", "objective=extract", "corpus=cloze"), ("loss",)),
    "image-classify": (("vit-tiny", "corpus.images=64", "corpus.held_out=32"), ("loss",)),
    "masked-diffusion": (("mdlm-tiny",), ("bound",)),
    "mlm": (("encoder-tiny",), ("loss",)),
    "multi-token": (("gpt-tiny", "objective={name: multi-token, ahead: 2}"), ("loss", "ahead-2")),
    "nsp": (("bert-tiny", "objective=nsp"), ("loss",)),
    "permutation": (("xlnet-tiny",), ("loss",)),
    "prefix-lm": (("gpt-tiny", "objective=prefix-lm"), ("loss",)),
    "regress": (("bert-tiny", "objective=regress", "corpus=overlap"), ("loss",)),
    "rtd": (("electra-tiny",), ("generator",)),
    "sbo": (("spanbert-tiny",), ("loss", "boundary")),
    "scheduled-sampling": (("rnnsearch-tiny", "objective=scheduled-sampling"), ("loss",)),
    "seq2seq": (("transformer-tiny",), ("loss",)),
    "sop": (("albert-tiny", "objective=sop"), ("loss",)),
    "span-corruption": (("t5-tiny",), ("loss",)),
    "tag": (("bert-tiny", "objective=tag", "corpus=code-words"), ("loss",)),
    "tlm": (("xlm-tiny",), ("loss",)),
    "ul2": (("t5-tiny", "objective=ul2"), ("loss",)),
}
WITHOUT = {
    "distill-attention",
    "distill-hidden",
    "distill-relations",
    "distill-scores",
}  # a teacher has no trivial imitation
SMALL = ("dims.width=16", "dims.layers=1", "data.batch=4")


def model_and_data(preset: str, *overrides: str) -> tuple[Model, Data]:
    spec = resolved(preset, *SMALL, *overrides)
    text = load_corpus(spec, installed())
    return build_model(spec, installed(), text.vocabulary), build_data(spec, installed(), text)


def set_unigram(model: Model, bias: str, shares: np.ndarray) -> Model:
    """Return a model whose output is the frequency of each label, for any input."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_parameter(bias).copy_(torch.from_numpy(shares).log())
    return model


def test_the_baseline_equals_the_loss_of_a_unigram_model() -> None:
    """Covers tokens, where the vocabulary is scored, and two labels at even odds."""
    model, data = model_and_data("bert-tiny", "data.validation=16")
    counts = np.bincount(data.encoded.train.ids, minlength=data.encoded.vocabulary.size) + 1
    metrics = evaluate(set_unigram(model, "objectives.mlm.bias", counts / counts.sum()), data)
    baselines = unigram_baselines(model, data)
    assert baselines == {"val/mlm/loss": pytest.approx(metrics["val/mlm/loss"], rel=1e-5), "val/nsp/loss": math.log(2)}


@pytest.mark.thorough
def test_the_baseline_of_classes_counts_the_evaluated_examples(tmp_path: Path) -> None:
    """Eight examples of one class are evaluated; the remaining validation examples are of the other class."""
    chosen = set(order(0, VALIDATION, 40)[:8].tolist())
    train = [f"row {index} of the text,{int(index < 10)}" for index in range(60)]
    val = [f"held {index} of the text,{int(index in chosen)}" for index in range(40)]
    for name, rows in (("train", train), ("val", val)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    corpus = f"corpus={{name: table, path: ['{tmp_path}/train.csv'], validation: ['{tmp_path}/val.csv'], label: label}}"
    model, data = model_and_data("encoder-tiny", corpus, "objective=classify", "dims.length=32", "data.validation=8")
    shares = np.array([51 / 62, 11 / 62])
    metrics = evaluate(set_unigram(model, "objectives.classify.head.scores.bias", shares), data)
    baselines = unigram_baselines(model, data)
    assert baselines == {"val/classify/loss": pytest.approx(-math.log(11 / 62))}
    assert baselines["val/classify/loss"] == pytest.approx(metrics["val/classify/loss"], rel=1e-5)
    _, whole = model_and_data("encoder-tiny", corpus, "objective=classify", "dims.length=32")
    assert unigram_baselines(model, whole)["val/classify/loss"] == pytest.approx(-np.log(shares) @ [32 / 40, 8 / 40])


@pytest.mark.thorough
def test_the_baseline_of_tokens_counts_the_evaluated_examples(tmp_path: Path) -> None:
    """The text starts with one letter and continues with another, and only its first examples are evaluated."""
    (tmp_path / "train.txt").write_text("a" * 900 + "b" * 100, encoding="utf-8")
    (tmp_path / "val.txt").write_text("b" * 300 + "a" * 900, encoding="utf-8")
    corpus = f"corpus={{name: text, path: ['{tmp_path}/train.txt'], validation: ['{tmp_path}/val.txt']}}"
    model, data = model_and_data("gpt-tiny", corpus, "dims.length=32", "data.validation=8")
    baseline = unigram_baselines(model, data)["val/clm/loss"]
    assert baseline == pytest.approx(-math.log(101 / (1000 + data.encoded.vocabulary.size)))
    _, whole = model_and_data("gpt-tiny", corpus, "dims.length=32")
    assert unigram_baselines(model, whole)["val/clm/loss"] < baseline - 1


@pytest.mark.thorough
def test_sentinels_have_the_frequency_of_the_training_labels() -> None:
    _, data = model_and_data("t5-tiny", "data.validation=16")
    name, marks = "span-corruption", data.encoded.vocabulary.reserved
    val_labels = [label for label in validation_targets(data)[name]["labels"].flatten().tolist() if label != IGNORED]
    assert 0.1 < sum(label in marks for label in val_labels) / len(val_labels) < 0.6
    examples = data.examples(data.encoded.train, data.val_examples.objectives, data.val_examples.length)
    index = torch.from_numpy(order(0, VALIDATION, examples.count)[:16])
    labels = examples.batch(Draw(0, VALIDATION, index)).targets[name]["labels"]
    train_labels = [label for label in labels.flatten().tolist() if label != IGNORED]
    absent = sorted(marks - set(data.encoded.train.ids.tolist()))
    label_counts, text = Counter(train_labels), Counter(data.encoded.train.ids.tolist())
    share = (sum(label_counts[token] for token in absent) + 1) / (len(train_labels) + 2)
    few = sum(label_counts[token] + 1 for token in absent)
    many = len(data.encoded.train.ids) + data.encoded.vocabulary.size - len(absent)
    nats = [
        -math.log(
            share * (label_counts[token] + 1) / few if token in absent else (1 - share) * (text[token] + 1) / many
        )
        for token in val_labels
    ]
    baseline = token_unigram_loss(data, name, "labels", validation_targets(data)[name])
    assert baseline == pytest.approx(sum(nats) / len(nats), rel=1e-9)


@pytest.mark.thorough
def test_there_is_no_baseline_without_labels() -> None:
    _, data = model_and_data("gpt-tiny", "data.validation=4")
    assert token_unigram_loss(data, "clm", "labels", {"labels": torch.full((4, 8), IGNORED)}) is None


@pytest.mark.thorough
def test_the_baseline_of_images_uses_class_frequencies() -> None:
    """The frequencies of the pixel values do not matter."""
    model, data = model_and_data("vit-tiny", "corpus.images=24", "corpus.held_out=8", "dims.width=8", "data.batch=8")
    labels = validation_targets(data)["image-classify"]["labels"].tolist()
    counts = Counter(int(label) for label in data.encoded.train.labels.values)  # type: ignore[union-attr]  # it has
    nats = [-math.log((counts[label] + 1) / (24 + 8)) for label in labels]
    assert unigram_baselines(model, data) == {"val/image-classify/loss": pytest.approx(sum(nats) / len(nats))}
    assert {name: int(count) for name, count in (data.step(0).counts or {}).items()} == {"image-classify/loss": 8}
    assert evaluate(model, data).keys() == {"val/image-classify/loss", "val/image-classify/accuracy"}


def test_every_objective_has_a_trivial_baseline_or_declares_none() -> None:
    registry = installed(no_plugins=True)
    names = set(registry.index.entries["objective"])
    assert names == {*BASELINES, *WITHOUT}
    for name in names:
        cls: Any = registry.get("objective", name)
        declared = bool(cls.traits.get("token_terms")) or cls.unigram_loss is not Objective.unigram_loss
        assert declared == (name in BASELINES)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BASELINES)
def test_the_trivial_baseline_is_what_the_best_prediction_without_input_reaches(name: str) -> None:
    overrides, terms = BASELINES[name]
    model, data = model_and_data(*overrides, "data.validation=256")
    baselines = unigram_baselines(model, data)
    wanted = [f"val/{name}/{term}" for term in terms]
    assert [metric for metric in baselines if metric.startswith(f"val/{name}/") and metric in wanted] == wanted
    untrained = evaluate(model, data)
    targets = validation_targets(data)[name]
    for metric, term in zip(wanted, terms, strict=True):
        assert untrained[metric] > baselines[metric] - UNIGRAM_TOLERANCE  # nothing is learned without training
        lowest = lowest_constant_loss(name, targets, model.objective(name).terms[term])
        assert lowest - 1e-6 < baselines[metric] < lowest + 0.35
    thresholds = learning_thresholds(model, baselines, data.encoded)
    assert thresholds.keys() == baselines.keys()
    assert all(thresholds[metric] < baselines[metric] for metric in baselines)


def lowest_constant_loss(name: str, targets: Any, key: str) -> float:
    """The loss of the constant prediction that fits the evaluated labels best."""
    if name == "regress":
        return float(targets["scores"].double().var(correction=0))
    if name == "extract":  # the distribution over positions is constant for each number of candidates
        is_null = (targets["labels"] == 0).all(1).double()
        share = float(is_null.mean())
        entropy = sum(-p * math.log(p) for p in (share, 1 - share) if p)
        return entropy + float(((1 - is_null) * (targets["candidates"].sum(1).double() - 1).log()).mean())
    labels = targets[key][targets[key] != IGNORED]
    shares = torch.unique(labels, return_counts=True)[1].double() / len(labels)
    return float(-(shares * shares.log()).sum())


@pytest.mark.thorough
def test_the_threshold_of_a_squared_error_does_not_depend_on_its_scale() -> None:
    model, data = model_and_data(*BASELINES["regress"][0], "data.validation=16")
    for variance in (1e-6, 1.0, 1e6):
        (threshold,) = learning_thresholds(model, {"val/regress/loss": variance}, data.encoded).values()
        assert math.log(variance / threshold) / 2 == pytest.approx(UNIGRAM_TOLERANCE)


@pytest.mark.thorough
def test_perplexity_and_bits_per_byte_have_the_tolerance_of_their_loss() -> None:
    model, data = model_and_data("gpt-tiny", "data.validation=4")
    baselines = unigram_baselines(model, data)
    thresholds = learning_thresholds(model, baselines, data.encoded)
    loss, perplexity, bits = (f"val/clm/{name}" for name in ("loss", "perplexity", "bits-per-byte"))
    assert math.log(baselines[perplexity] / thresholds[perplexity]) == pytest.approx(UNIGRAM_TOLERANCE)
    assert thresholds[bits] / baselines[bits] == pytest.approx(thresholds[loss] / baselines[loss])


def test_an_objective_that_declares_no_baseline_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contrastive loss over a batch has candidates for labels, whatever its head is."""
    model, data = model_and_data("gpt-tiny", "data.validation=4")
    objective: Any = model.objective("clm")
    traits = {key: value for key, value in objective.traits.items() if key not in ("token_terms", "likelihood")}
    monkeypatch.setattr(type(objective), "traits", traits)
    assert unigram_baselines(model, data) == {}
    monkeypatch.setattr(type(objective), "unigram_loss", lambda self, train, targets: math.log(4))
    assert unigram_baselines(model, data) == {"val/clm/loss": math.log(4)}
