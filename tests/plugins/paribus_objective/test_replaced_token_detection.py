"""Replaced token detection: both loss terms, sampled tokens, and the gradients of each term."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from paribus import IGNORED, PADDING, Draw, ForwardPass, Objective, Stream, TrainingExamples, Vocabulary
from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import share_of
from paribus.models.assemble import build_data, build_model, load_corpus
from paribus.models.evaluate import token_unigram_loss, validation_targets
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial
from paribus_objective.replaced_token_detection import sample

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]

SPECIALS = {name: at for at, name in enumerate(("pad", "cls", "sep", "mask", "bos", "eos"))}
LENGTH = 32


def formed(objective: Objective, rows: int = 5, epoch: int = 0) -> TrainingExamples:
    """Texts with cls, padded from different positions."""
    tokens = torch.arange(rows * LENGTH).reshape(rows, LENGTH) * 7 % 74 + 6
    tokens[:, 0] = SPECIALS["cls"]
    padding = torch.arange(LENGTH) >= LENGTH - 3 * torch.arange(rows).unsqueeze(1)
    body = Stream(tokens, documents=torch.where(padding, PADDING, 0))
    return objective.corrupt({"body": body}, {}, Draw(0, epoch, torch.arange(rows)))


def by_hand(objective: Any, run: ForwardPass) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Both sums and the tokens of the body, computed one number at a time."""
    text, targets = run.streams["body"], run.targets
    assert text.documents is not None
    text_tokens = text.tokens.tolist()
    generator_hidden = run.hidden("generator")
    generator = detection = torch.zeros((), dtype=torch.float64)
    for row, picks in enumerate(targets["pick"].tolist()):
        for n, place in enumerate(picks):
            label = int(targets["labels"][row, n])
            if label == IGNORED:
                continue
            inner = objective.generator.norm(
                nn.functional.gelu(objective.generator.dense(generator_hidden[row, place]))
            )
            probabilities = run.unembed(inner, objective.generator.bias).softmax(-1)
            generator = generator - probabilities[label].log()
            remainder, sampled_token, shares = float(targets["uniform"][row, n]), 0, probabilities.tolist()
            while remainder >= shares[sampled_token]:
                remainder -= shares[sampled_token]
                sampled_token += 1
            text_tokens[row][place] = sampled_token
    rows = run.hidden("body", tokens=torch.tensor(text_tokens), key="by hand")
    for row in range(len(text_tokens)):
        for place in range(LENGTH):
            if text.documents[row, place] == PADDING:
                continue
            inner = nn.functional.gelu(objective.detector.dense(rows[row, place]))
            probabilities = torch.sigmoid(objective.detector.scores(inner))[0]
            replaced = text_tokens[row][place] != int(text.tokens[row, place])
            detection = detection - (probabilities if replaced else 1 - probabilities).log()
    return generator, detection, text_tokens


@pytest.mark.parametrize("mask", [1.0, 0.85])
def test_both_terms_equal_those_of_the_paper(mask: float, build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective = build("rtd", vocabulary, mask=mask, rate=0.3)
    run = passed(formed(objective))
    terms = objective(run)
    generator, detection, _ = by_hand(objective, run)
    torch.testing.assert_close(terms["generator"].total, generator, rtol=0, atol=1e-9)
    torch.testing.assert_close(terms["detection"].total, detection, rtol=0, atol=1e-9)
    assert (terms["generator"].weight, terms["detection"].weight) == (1.0, 50.0)


def test_counts_are_known_before_the_model_runs(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective = build("rtd", vocabulary)
    batch = formed(objective)
    terms = objective(passed(batch))
    assert terms.keys() == objective.terms.keys()
    for term, label in objective.terms.items():
        assert terms[term].count == (batch.targets[label] != IGNORED).sum() > 0
    documents = batch.streams["body"].documents
    assert documents is not None
    assert torch.equal(batch.targets["tokens"] == IGNORED, documents == PADDING)


def test_the_generator_reads_masks_and_the_body_its_samples(
    build: Build, passed: Passed, vocabulary: Vocabulary
) -> None:
    objective: Any = build("rtd", vocabulary, rate=0.3)
    batch = formed(objective)
    run = passed(batch)
    text, generator_tokens, body_tokens = (
        batch.streams["body"].tokens,
        batch.streams["generator"].tokens,
        objective._tokens(run),
    )
    hidden = torch.zeros_like(text, dtype=torch.bool)
    for row, (pick, label) in enumerate(zip(batch.targets["pick"], batch.targets["labels"], strict=True)):
        hidden[row, pick[label != IGNORED]] = True
    assert (generator_tokens[hidden] == SPECIALS["mask"]).all()
    assert torch.equal(generator_tokens[~hidden], text[~hidden])
    assert torch.equal(body_tokens[~hidden], text[~hidden])
    assert 0 < (body_tokens != text)[hidden].sum() < hidden.sum() + 1
    assert body_tokens.tolist() == by_hand(objective, run)[2]


def test_a_sampled_original_token_is_not_replaced(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective: Any = build("rtd", vocabulary)
    batch = formed(objective)
    run = passed(batch)
    run.cached(
        "generator_logits", lambda: nn.functional.one_hot(batch.targets["labels"].clamp(min=0), 100).double() * 1e4
    )
    assert torch.equal(objective._tokens(run), batch.streams["body"].tokens)
    replaced = objective._detection_labels(run)
    assert not (replaced == 1).any()
    assert torch.equal(replaced, batch.targets["tokens"])


def test_draws_follow_the_scores() -> None:
    scores = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    uniform = Draw(0, 0, torch.arange(200)).uniform("filled", 500)
    samples = sample(scores.expand(200, 500, 20), uniform)
    counts = torch.bincount(samples.flatten(), minlength=20).double()
    assert stats.chisquare(counts, scores.softmax(-1) * 100_000).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_impossible_tokens_are_never_drawn(dtype: torch.dtype) -> None:
    scores = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf], dtype=dtype)
    uniform = torch.tensor([0.0, 0.25, 0.4999999, 0.5, 0.75, 1 - 2**-24])
    assert sample(scores.expand(6, 5), uniform).tolist() == [1, 1, 1, 3, 3, 3]


def test_draws_from_diverged_scores_are_tokens() -> None:
    assert sample(torch.full((3, 5), math.nan), torch.tensor([0.0, 0.5, 0.99])).max() < 5


def test_an_example_depends_on_the_epoch_and_not_on_the_batch(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("rtd", vocabulary)
    whole, smaller, later = formed(objective, 5), formed(objective, 3), formed(objective, 5, epoch=1)
    for name, target in smaller.targets.items():
        assert torch.equal(whole.targets[name][:3], target)
    assert not torch.equal(later.targets["uniform"], whole.targets["uniform"])
    assert not torch.equal(later.targets["pick"], whole.targets["pick"])


def test_metrics_equal_direct_counts(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective: Any = build("rtd", vocabulary, rate=0.3)
    metrics = objective.metrics()
    generator_hits: list[bool] = []
    cells: list[tuple[bool, bool]] = []
    for epoch in range(3):
        batch = formed(objective, epoch=epoch)
        run = passed(batch)
        nn.init.constant_(objective.detector.scores.bias, 0.1 - 0.1 * epoch)
        objective(run)
        objective.update_metrics(run, metrics)
        labels = batch.targets["labels"]
        generator_hits += (objective.fill_logits(run).argmax(-1) == labels)[labels != IGNORED].tolist()
        is_counted = batch.targets["tokens"] != IGNORED
        prediction, label = (
            objective._scores(run)[is_counted] > 0,
            (objective._tokens(run) != batch.streams["body"].tokens)[is_counted],
        )
        cells += zip(prediction.tolist(), label.tolist(), strict=True)
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    hits = sum(prediction and label for prediction, label in cells)
    precision, recall = hits / sum(prediction for prediction, _ in cells), hits / sum(label for _, label in cells)
    assert 0 < precision < 1
    assert values == pytest.approx(
        {
            "generator-accuracy": sum(generator_hits) / len(generator_hits),
            "accuracy": sum(prediction == label for prediction, label in cells) / len(cells),
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall),
            "replaced": sum(label for _, label in cells) / len(cells),
        }
    )


def test_a_text_of_only_padding_has_no_loss_and_no_gradient(
    build: Build, passed: Passed, vocabulary: Vocabulary
) -> None:
    objective = build("rtd", vocabulary)
    body = Stream(torch.full((2, 8), 9), documents=torch.full((2, 8), PADDING))
    terms = objective(passed(objective.corrupt({"body": body}, {}, Draw(0, 0, torch.arange(2)))))
    assert [(term.total.item(), term.count.item()) for term in terms.values()] == [(0.0, 0), (0.0, 0)]
    sum(term.total for term in terms.values()).backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in objective.parameters())


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


@pytest.fixture(params=["whole", "disentangled"])
def model(request: pytest.FixtureRequest, components: Registry) -> Model:
    overrides = ["dims.width=16", "dims.vocabulary=100", "parts.generator.dims.width=8", "embedding.width=6"]
    spec = resolved("electra-tiny", *overrides, f"topology.sharing={request.param}", registry=components)
    return build_model(spec, components, Vocabulary(100, SPECIALS, tuple(range(80, 100)))).double()


def batch_of(model: Model, rows: int = 5) -> Batch:
    objective = model.objective("rtd")
    batch = formed(objective, rows)
    counts = {f"rtd/{term}": (batch.targets[label] != IGNORED).sum() for term, label in objective.terms.items()}
    return Batch(batch.streams, {"rtd": batch.targets}, torch.arange(rows), counts)


def parameters_with_gradient(model: Model, term: str) -> set[str]:
    """Names of parameters with a gradient (not None) of one term."""
    total = model.terms(BatchForward(model.topology, batch_of(model)), ["rtd"])[f"rtd/{term}"].total
    parameters = dict(model.named_parameters())
    grads = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
    return {name for name, grad in zip(parameters, grads, strict=True) if grad is not None}


def test_detection_has_no_gradient_in_the_generator_nor_generation_in_the_body(model: Model) -> None:
    detection, generator = parameters_with_gradient(model, "detection"), parameters_with_gradient(model, "generator")
    assert not {name for name in detection if "generator" in name}
    assert not {name for name in generator if "detector" in name or name.startswith(("body.layers", "offsets."))}
    assert detection | generator == {name for name, _ in model.named_parameters()}
    assert {name for name in detection & generator if name.startswith(("embedding.", "body."))} == (
        set()
        if any(name.startswith("offsets.") for name in detection)
        else {name for name in detection if name.startswith("embedding.")} | {"body.position.0.table.weight"}
    )


def test_micro_batches_of_unequal_counts_add_up_to_the_whole(model: Model) -> None:
    batch, named = batch_of(model, 7), list(model.parameters())
    shares = [share_of(batch, share, 3) for share in range(3)]
    counts = {int((share.targets["rtd"]["tokens"] != IGNORED).sum()) for share in shares}
    assert len(counts) == 3
    whole = torch.autograd.grad(model.loss(batch), named)
    parts = [torch.autograd.grad(model.loss(share), named) for share in shares]
    summed = [sum(grads[1:], grads[0]) for grads in zip(*parts, strict=True)]
    torch.testing.assert_close(summed, list(whole), rtol=0, atol=1e-12)


def test_the_global_random_generator_is_not_used(model: Model) -> None:
    batch = batch_of(model)
    state = torch.get_rng_state()
    loss = model.loss(batch)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    assert torch.equal(model.loss(batch), loss)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_losses_are_below_those_of_frequencies(components: Registry, tmp_path: Path) -> None:
    spec = resolved("electra-tiny", "trainer.max_steps=400", "data.validation=256", registry=components)
    metrics = run_trial(spec, components, TrialContext("tiny", tmp_path))["result"]["metrics"]
    data = build_data(spec, components, load_corpus(spec, components))
    share, tokens = (
        metrics["val/rtd/replaced"],
        token_unigram_loss(data, "rtd", "labels", validation_targets(data)["rtd"]),
    )
    assert tokens is not None
    assert metrics["val/rtd/generator"] < tokens - 0.2
    assert metrics["val/rtd/detection"] < -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert metrics["val/rtd/precision"] > 0.5


def test_body_and_generator_run_once(model: Model) -> None:
    calls: list[str] = []
    for path in ("body", "generator"):
        model.topology.get_submodule(path).register_forward_hook(lambda *_, path=path: calls.append(path))
    run = BatchForward(model.topology, batch_of(model))
    model.terms(run, ["rtd"])
    model.objective("rtd").update_metrics(run.of("rtd"), model.objective("rtd").metrics())
    assert sorted(calls) == ["body", "generator"]
