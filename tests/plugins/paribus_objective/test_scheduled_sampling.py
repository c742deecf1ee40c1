"""Scheduled sampling: a decoder is trained on its own samples at random positions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Draw, SpecError, Vocabulary
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

Build = Callable[..., Any]
FEEDBACK = ("sampled", "argmax", "straight-through", "soft")
SIZES = (
    "dims.width=6",
    "dims.vocabulary=300",
    "topology.embedding_width=5",
    "topology.readout_width=4",
    "corpus.pairs=60",
)


@pytest.fixture
def build_objective(build: Build, vocabulary: Vocabulary) -> Build:
    return lambda **options: build("scheduled-sampling", vocabulary, **options)


@pytest.fixture
def tokens(corpus: Callable[[Sequence[Sequence[int]]], Any]) -> Any:
    source, target = corpus([[3], [4], [5]]), corpus([[9], [8], [9]])
    target.ids = target.ids % 60 + 10
    return replace(source, ids=source.ids % 60 + 10, targets=target)


def formed(objective: Any, tokens: Any, index: Tensor, progress: float) -> Any:
    draw = Draw(0, 0, index, progress)
    build_objective = objective.form(tokens, 10, draw)
    return objective.corrupt(build_objective.streams, build_objective.targets, draw)


# --- random replacement ---


@pytest.mark.parametrize(("growth", "shares"), [("constant", [0.4] * 3), ("linear", [0, 0.2, 0.4])])
def test_the_sampled_share_follows_the_schedule(growth: str, shares: list[float], build_objective: Build) -> None:
    objective = build_objective(rate=0.4, growth=growth)
    assert [objective.share(progress) for progress in (0, 0.5, 1)] == pytest.approx(shares)


def test_the_inverse_sigmoid_grows_from_about_0_to_about_1() -> None:
    share = paribus.installed(no_plugins=True).get("objective", "scheduled-sampling").share

    class HalfRate:
        rate, growth = 0.5, "sigmoid"

    values = [share(HalfRate, step / 10) for step in range(11)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(0.5 / (1 + 2.718281828**6), rel=1e-6)
    assert values[5] == pytest.approx(0.25)
    assert values[10] == pytest.approx(0.5 - values[0])


def test_tokens_are_replaced_at_the_rate_but_never_the_start(build_objective: Build, tokens: Any) -> None:
    objective = build_objective(rate=0.5, growth="linear")
    for progress in (0.2, 1.0):
        use_prediction = formed(objective, tokens, torch.arange(3000) % 3, progress).targets["use_prediction"]
        distinct = torch.cat([formed(objective, tokens, torch.arange(3), progress).targets["use_prediction"]])
        assert not use_prediction[:, 0].any()
        assert torch.equal(use_prediction[:3], distinct), "each example has its own"
    draws = [Draw(seed, 0, torch.arange(3), 1.0) for seed in range(700)]
    shares = torch.stack(
        [
            objective.corrupt(objective.form(tokens, 10, draw).streams, {}, draw).targets["use_prediction"]
            for draw in draws
        ]
    )
    count = shares[..., 1:].numel()
    assert abs(shares[..., 1:].double().mean() - 0.5) < 4 * (0.25 / count) ** 0.5


def test_the_draws_of_an_example_depend_only_on_the_example(build_objective: Build, tokens: Any) -> None:
    """Draws depend on neither batch nor rate: tokens sampled at 0.2 are sampled at 0.4 too."""
    few, more = (
        formed(build_objective(rate=rate, growth="constant"), tokens, torch.arange(3), 1.0).targets
        for rate in (0.2, 0.4)
    )
    assert (few["use_prediction"] <= more["use_prediction"]).all()
    assert few["use_prediction"].sum() < more["use_prediction"].sum()
    assert torch.equal(few["keys"], more["keys"])
    alone = formed(build_objective(rate=0.4, growth="constant"), tokens, torch.tensor([2]), 1.0).targets
    assert torch.equal(alone["use_prediction"][0], more["use_prediction"][2])
    assert alone["keys"][0] == more["keys"][2]
    assert len(set(more["keys"].tolist())) == 3


# --- sampled tokens ---


@pytest.mark.parametrize("feedback", FEEDBACK)
def test_without_replacement_the_target_is_fed(feedback: str, build_objective: Build) -> None:
    objective, scores = (
        build_objective(feedback=feedback),
        torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).double(),
    )
    target, keys = torch.tensor([11, 12, 13, 14]), torch.arange(4)
    use_prediction = torch.tensor([True, False, True, False])
    fed = objective.next_input(scores, 3, use_prediction, target, keys)
    assert fed.tokens[~use_prediction].tolist() == [12, 14]
    if feedback == "argmax":
        assert torch.equal(fed.tokens[use_prediction], scores[use_prediction].argmax(-1))
    if fed.token_weights is not None:
        assert not fed.token_weights[~use_prediction].any()
        torch.testing.assert_close(fed.token_weights.sum(-1), torch.zeros(4).double(), rtol=0, atol=1e-12)
    assert (fed.token_weights is None) == (feedback in ("sampled", "argmax"))


def test_tokens_are_sampled_by_the_softmax_of_their_scores(build_objective: Build) -> None:
    scores = torch.zeros(20_000, 100)
    scores[:, 7], scores[:, 9] = 5.0, 4.0
    nobody = torch.zeros(len(scores), dtype=torch.int64)
    tokens = (
        build_objective()
        .next_input(scores, 2, torch.ones(len(scores)).bool(), nobody, torch.arange(len(scores)))
        .tokens
    )
    for token in (7, 9, 50):
        share = float(scores[0].softmax(-1)[token])
        assert abs((tokens == token).double().mean() - share) < 4 * (share * (1 - share) / len(scores)) ** 0.5


def test_straight_through_embeddings_have_the_gradient_of_the_softmax(build_objective: Build) -> None:
    generator = torch.Generator().manual_seed(0)
    table, weigh = (torch.randn(shape, generator=generator).double() for shape in ((100, 3), (4, 3)))
    use_prediction, target, keys = torch.ones(4).bool(), torch.zeros(4).long(), torch.arange(4)
    grads, values = [], []
    for feedback in ("straight-through", "soft"):
        scores = torch.randn(4, 100, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
        fed = build_objective(feedback=feedback, temperature=0.7).next_input(scores, 1, use_prediction, target, keys)
        assert fed.token_weights is not None
        row = table[fed.tokens] + fed.token_weights @ table
        (row * weigh).sum().backward()
        grads.append(scores.grad)
        values.append((row.detach(), fed.tokens))
    assert grads[0] is not None
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-12)
    assert grads[0].abs().max() > 1e-3
    torch.testing.assert_close(values[0][0], table[values[0][1]], rtol=0, atol=1e-12)
    assert (values[1][0] - table[values[1][1]]).abs().max() > 0.1


# --- in a model ---


@pytest.fixture(scope="module")
def batch() -> Callable[..., tuple[Model, Batch]]:
    def of(*overrides: str) -> tuple[Model, Batch]:
        spec = paribus.spec("rnnsearch-tiny", "objective=scheduled-sampling", *SIZES, *overrides)
        model, data = paribus.assemble(spec).double(), paribus.data(spec)
        data.steps = 10
        return model, data.step(9)

    return of


@pytest.mark.few(1)
@pytest.mark.parametrize("feedback", FEEDBACK)
@pytest.mark.parametrize("preset", [(), ("topology.query=current", "topology.cell=lstm", "topology.readout=tanh")])
def test_the_second_pass_reads_the_mixed_tokens(
    feedback: str, preset: tuple[str, ...], batch: Callable[..., tuple[Model, Batch]]
) -> None:
    """The rows of the second pass equal those of teacher forcing on the mixed tokens."""
    model, examples = batch(
        f"objective.feedback={feedback}", "objective.rate=0.5", "objective.growth=constant", *preset
    )
    objective: Any = model.objective("scheduled-sampling")
    read: dict[int, Tensor] = {}
    original = objective.next_input

    def recorded_sample(scores: Tensor, row: int, *others: Tensor) -> Any:
        fed = original(scores, row, *others)
        read[row] = fed.tokens
        return fed

    objective.next_input = recorded_sample
    loss = model.train().loss(examples)
    tokens = examples.streams["body"].tokens.clone()
    for row, fed in read.items():
        tokens[:, row] = fed
    use_prediction = examples.targets["scheduled-sampling"]["use_prediction"]
    assert torch.equal(tokens[~use_prediction], examples.streams["body"].tokens[~use_prediction])
    assert (tokens != examples.streams["body"].tokens).any()
    forced = examples._replace(streams={**examples.streams, "body": examples.streams["body"]._replace(tokens=tokens)})
    objective.rate = 0.0
    if feedback == "soft":
        assert abs(model.loss(forced) - loss) > 1e-6, "a mean of words is no word"
    else:
        torch.testing.assert_close(model.loss(forced), loss, rtol=1e-12, atol=0)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.thorough
def test_evaluation_and_a_rate_of_0_feed_only_the_target(
    batch: Callable[..., tuple[Model, Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, examples = batch("objective.rate=1", "objective.growth=constant", "evaluate=[seq2seq]")

    def fail_if_called(*examples: Any) -> Any:
        raise AssertionError("nothing is fed its own words here")

    trained = model.train().loss(examples)
    monkeypatch.setattr(type(model.topology), "run_with_feedback", fail_if_called)
    evaluated = model.eval().loss(examples)
    objective: Any = model.objective("scheduled-sampling")
    objective.rate = 0.0
    assert torch.equal(model.train().loss(examples), evaluated)
    assert abs(trained - evaluated) > 1e-6


def test_a_topology_without_feedback_is_refused() -> None:
    with raises_problem(SpecError, "does-not-fit", "feedback", "encoder-decoder"):
        paribus.spec("transformer-tiny", "objective=scheduled-sampling")
