"""What is measured: the mean over labels, whatever the batches, in the mode in which a model is used."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paribus import IGNORED, DataError, SpecError
from paribus.assembly.run import Pass
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import assembled, data_of, text_of
from paribus.train.data import Data
from paribus.train.evaluate import evaluate, frequencies, moved
from paribus.train.model import Model
from paribus.train.tokens import unigram_nats

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
            for name, term in model.terms(Pass(model.topology, batch), model.evaluated).items():
                total, count = sums.setdefault(f"val/{name}", [0.0, 0.0])
                sums[f"val/{name}"] = [total + float(term.total), count + float(term.count)]
    found = evaluate(model, data)
    for name, (total, count) in sums.items():
        assert found[name] == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("preset", TINY)
def test_a_metric_knows_nothing_of_batches_seeds_and_modes(
    preset: str, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    model = shake(assemble(preset, "dropout=0.3"))
    expected = evaluate(model, feed(preset))
    assert expected.keys() == set(model.metrics())
    for overrides in (["data.batch=3"], ["seed=9"], ["data.workers=2"]):
        assert evaluate(model, feed(preset, *overrides)) == pytest.approx(expected, rel=1e-6)
    for mode in (True, False):
        model.train(mode)
        assert evaluate(model, feed(preset)) == expected
        assert model.training is mode
        assert all(module.training is mode for module in model.modules())


def test_evaluating_draws_nothing_and_leaves_no_gradient(assemble: Assemble, feed: Feed) -> None:
    model = assemble("gpt-tiny", "dropout=0.3")
    before = torch.get_rng_state()
    evaluate(model, feed("gpt-tiny"))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_accuracy_is_how_often_the_best_guess_is_right(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model, data = shake(assemble("gpt-tiny", "data.documents=apart")), feed("gpt-tiny", "data.documents=apart")
    right = labelled = 0
    with torch.no_grad():
        for batch in data.val_dataloader():
            labels = batch.targets["clm"]["labels"]
            run = Pass(model.topology, batch).of("clm")
            guessed = run.unembed(run.hidden()).argmax(-1)
            right += int((guessed == labels).sum())
            labelled += int((labels != IGNORED).sum())
    assert evaluate(model, data)["val/clm/accuracy"] == pytest.approx(right / labelled)


def test_a_model_is_evaluated_with_what_the_spec_names_and_with_nothing_else(assemble: Assemble, feed: Feed) -> None:
    found = evaluate(assemble("bert-tiny", "evaluate=[mlm]"), feed("bert-tiny", "evaluate=[mlm]"))
    assert found.keys() == {"val/mlm/loss", "val/mlm/accuracy"}


def test_what_is_no_number_is_not_left_out(assemble: Assemble, feed: Feed) -> None:
    model = assemble("gpt-tiny")
    with torch.no_grad():
        model.get_parameter("embedding.tokens.weight")[20] = torch.nan
    assert math.isnan(evaluate(model, feed("gpt-tiny"))["val/clm/loss"])


def test_a_batch_is_moved_whole(assemble: Assemble, feed: Feed) -> None:
    batch: Any = feed("bert-tiny").step(0)
    there = moved(batch, assemble("bert-tiny").to("meta"))
    assert there.streams["body"].tokens.is_meta
    assert there.streams["body"].documents.is_meta  # type: ignore[union-attr]  # pairs of segments are padded
    assert there.targets["mlm"]["labels"].is_meta
    assert (there.shares, there.counts.keys()) == (1, batch.counts.keys())  # type: ignore[union-attr]  # as above
    assert there.streams["body"].order is None


def test_a_head_that_would_stay_untrained_is_not_evaluated(assemble: Assemble) -> None:
    match = r"error\[untrained-head\] evaluate: `nsp` has a head of its own, which the objective mlm would never train"
    with pytest.raises(SpecError, match=match):
        assemble("bert-tiny", "objective=[mlm]", "evaluate=[mlm, nsp]")


def test_a_split_with_nothing_to_evaluate_is_refused(feed: Feed) -> None:
    with pytest.raises(DataError, match=r"the validation split gives 0 examples"):
        feed("encoder-tiny", "dims.length=1000", "data.batch=1")


def test_a_loss_is_held_against_the_frequencies_of_what_it_is_of(assemble: Assemble, feed: Feed) -> None:
    """Of tokens where the vocabulary is scored, and of two labels at even odds."""
    model, data = assemble("bert-tiny"), feed("bert-tiny")
    text = data.encoded
    nats = unigram_nats(text.train, text.val, text.vocabulary.size)
    assert frequencies(model, data) == {"val/mlm/loss": nats, "val/nsp/loss": math.log(2)}


def test_images_are_held_against_the_frequencies_of_their_classes(components: Registry) -> None:
    """And not against those of the values of their pixels."""
    overrides = ("corpus.images=24", "corpus.held_out=8", "data.batch=8", "dims.width=8", "dims.layers=1")
    spec = resolved("vit-tiny", *overrides, registry=components)
    text = text_of(spec, components)
    model, data = assembled(spec, components, text.vocabulary), data_of(spec, components, text)
    assert frequencies(model, data) == {"val/image-classify/loss": pytest.approx(math.log(8))}
    assert {name: int(count) for name, count in (data.step(0).counts or {}).items()} == {"image-classify/loss": 8}
    assert evaluate(model, data).keys() == {"val/image-classify/loss", "val/image-classify/accuracy"}
