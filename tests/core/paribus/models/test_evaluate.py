"""Evaluation: metrics are means over labels, independent of the batches, in evaluation mode."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, DataError, SpecError
from paribus.assembly.components import make
from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import Data
from paribus.models.assemble import build_data, build_model, load_corpus
from paribus.models.evaluate import evaluate, text_metrics, to_device, unigram_baselines
from paribus.models.lightning_module import Model
from paribus.registry import installed
from paribus.slots.corpus import Corpus
from paribus.specs import resolved

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]
TINY = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")


@pytest.mark.parametrize("preset", TINY)
def test_a_metric_is_the_mean_over_all_labels(preset: str, assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model, data = shake(assemble(preset)), feed(preset, "data.batch=5")
    assert data.val_count % 5
    sums: dict[str, list[float]] = {}
    with torch.no_grad():
        for number in range(-(-data.val_count // 5)):
            batch = data.validation_batch(number)
            for name, term in model.terms(BatchForward(model.topology, batch), model.evaluated).items():
                total, count = sums.setdefault(f"val/{name}", [0.0, 0.0])
                sums[f"val/{name}"] = [total + float(term.total), count + float(term.count)]
    metrics = evaluate(model, data)
    for name, (total, count) in sums.items():
        assert metrics[name] == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("preset", TINY)
def test_a_metric_does_not_depend_on_batches_seeds_and_modes(
    preset: str, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    model = shake(assemble(preset, "dropout=0.3"))
    expected = evaluate(model, feed(preset))
    assert expected.keys() >= set(model.metrics())
    for overrides in (["data.batch=3"], ["seed=9"], ["data.workers=2"]):
        assert evaluate(model, feed(preset, *overrides)) == pytest.approx(expected, rel=1e-6)
    for mode in (True, False):
        model.train(mode)
        assert evaluate(model, feed(preset)) == expected
        assert model.training is mode
        assert all(module.training is mode for module in model.modules())


def test_evaluating_draws_nothing_and_leaves_no_gradient(assemble: Assemble, feed: Feed) -> None:
    model = assemble("gpt-tiny", "dropout=0.3")
    rng_state = torch.get_rng_state()
    evaluate(model, feed("gpt-tiny"))
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_accuracy_is_the_fraction_of_correct_predictions(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model, data = shake(assemble("gpt-tiny", "data.documents=apart")), feed("gpt-tiny", "data.documents=apart")
    right = labelled = 0
    with torch.no_grad():
        for batch in data.val_dataloader():
            labels = batch.targets["clm"]["labels"]
            run = BatchForward(model.topology, batch).of("clm")
            guessed = run.unembed(run.hidden()).argmax(-1)
            right += int((guessed == labels).sum())
            labelled += int((labels != IGNORED).sum())
    assert evaluate(model, data)["val/clm/accuracy"] == pytest.approx(right / labelled)


def test_a_model_is_evaluated_with_the_objectives_of_the_spec_only(assemble: Assemble, feed: Feed) -> None:
    metrics = evaluate(assemble("bert-tiny", "evaluate=[mlm]"), feed("bert-tiny", "evaluate=[mlm]"))
    assert metrics.keys() == {"val/mlm/loss", "val/mlm/accuracy"}


def test_nan_losses_are_not_skipped(assemble: Assemble, feed: Feed) -> None:
    model = assemble("gpt-tiny")
    with torch.no_grad():
        model.get_parameter("embedding.tokens.weight")[20] = torch.nan
    assert math.isnan(evaluate(model, feed("gpt-tiny"))["val/clm/loss"])


def test_all_tensors_of_a_batch_are_moved(assemble: Assemble, feed: Feed) -> None:
    batch: Any = feed("bert-tiny").step(0)
    moved = to_device(batch, assemble("bert-tiny").to("meta"))
    assert moved.streams["body"].tokens.is_meta
    assert moved.streams["body"].documents.is_meta  # type: ignore[union-attr]  # pairs of segments are padded
    assert moved.targets["mlm"]["labels"].is_meta
    assert (moved.micro_batches, moved.counts.keys()) == (1, batch.counts.keys())  # type: ignore[union-attr]  # as above
    assert moved.streams["body"].order is None


def test_a_head_that_would_stay_untrained_is_not_evaluated(assemble: Assemble) -> None:
    with raises_problem(SpecError, "untrained-head", "evaluate", "nsp", "mlm"):
        assemble("bert-tiny", "objective=[mlm]", "evaluate=[mlm, nsp]")


def test_a_split_without_labels_is_rejected(feed: Feed) -> None:
    with raises_problem(DataError, "too-little-data", "0"):
        feed("encoder-tiny", "dims.length=1000", "data.batch=1")


def both(preset: str, *overrides: str) -> tuple[Model, Data]:
    """Return a model and its evaluation data."""
    small = ("dims.width=16", "dims.layers=1", "data.validation=16", "data.batch=4")
    spec = resolved(preset, *small, *overrides)
    text = load_corpus(spec, installed())
    return build_model(spec, installed(), text.vocabulary), build_data(spec, installed(), text)


@pytest.mark.few(1)
@pytest.mark.parametrize("tokenizer", ["bytes", "wordpiece"])
def test_perplexity_is_per_token_and_bits_per_byte_are_per_byte(tokenizer: str) -> None:
    model, data = both("gpt-tiny", "dims.vocabulary=600", f"tokenizer={tokenizer}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # it finds every token as likely as any other
    metrics, text = evaluate(model, data), data.encoded
    assert metrics["val/clm/perplexity"] == pytest.approx(600)
    corpus = make(installed(), "corpus", model.spec["corpus"], kind=Corpus)
    documents = [
        " ".join(sentence for sentence in one.sentences if sentence.strip()) for one in corpus.documents("val")
    ]
    assert text.bytes == sum(len(one.encode()) for one in documents)
    tokens = sum(map(len, text.tokenizer.encode_batch(documents))) + len(documents)  # each has an end
    assert metrics["val/clm/bits-per-byte"] == pytest.approx(math.log2(600) * tokens / text.bytes)
    if tokenizer == "bytes":
        assert tokens == text.bytes + len(documents)
    baselines = unigram_baselines(model, data)
    assert baselines["val/clm/perplexity"] == pytest.approx(math.exp(baselines["val/clm/loss"]))
    assert baselines["val/clm/bits-per-byte"] < metrics["val/clm/bits-per-byte"]


@pytest.mark.thorough
def test_bits_per_byte_of_a_whole_text_equal_its_loss() -> None:
    _, data = both("gpt-tiny")
    nats = torch.rand(len(data.encoded.val.ids) + len(data.encoded.val.documents) - 1, dtype=torch.float64)
    bits_per_byte = text_metrics("clm", float(nats.mean()), data.encoded)["val/clm/bits-per-byte"]
    assert bits_per_byte == pytest.approx(float(nats.sum()) / math.log(2) / data.encoded.bytes)


@pytest.mark.thorough
def test_a_nan_loss_has_no_perplexity() -> None:
    text = both("gpt-tiny")[1].encoded
    assert math.isnan(text_metrics("clm", math.nan, text)["val/clm/perplexity"])
    assert math.isfinite(text_metrics("clm", 1e6, text)["val/clm/perplexity"])


@pytest.mark.thorough
def test_images_and_masked_tokens_have_no_bits_per_byte() -> None:
    metrics = evaluate(*both("gpt-tiny", "corpus={name: shapes, image: 8}", "tokenizer=pixels"))
    assert "val/clm/perplexity" in metrics
    assert "val/clm/bits-per-byte" not in metrics
    assert not any("perplexity" in name for name in evaluate(*both("encoder-tiny")))
