"""Multi-token prediction: further labels, the closed form of its losses, and next tokens as in `clm`."""

from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch.nn import functional

import paribus
from paribus import IGNORED, PADDING, Draw, Objective, Stream, TokenLayout, Vocabulary
from paribus.errors import SpecError
from paribus.parts.batch import Batch

TINY = ("dims.width=16", "dims.layers=1", "dims.length=12")
TOKENS = torch.randint(0, 256, (3, 13), generator=torch.Generator().manual_seed(0))


def test_a_further_label_stays_in_its_document_and_example(
    build: Callable[..., Objective], vocabulary: Vocabulary
) -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, PADDING, PADDING]])
    body = Stream(torch.arange(10, 19)[None], documents=documents)
    objective = build("multi-token", vocabulary, ahead=3)
    targets = objective.corrupt({"body": body}, {}, Draw(0, 0, torch.arange(1))).targets
    none = IGNORED
    assert targets["labels"].tolist() == [[11, 12, 13, none, 15, 16, none, none]]
    assert targets["labels 2"].tolist() == [[12, 13, none, none, 16, none, none, none]]
    assert targets["labels 3"].tolist() == [[13, none, none, none, none, none, none, none]]


def test_the_loss_is_the_mean_cross_entropy_of_each_distance() -> None:
    """Gloeckle et al. (2024), equation 2, with the residual block written out."""
    spec = paribus.spec("gpt-tiny", *TINY, "objective={name: multi-token, ahead: 3, weight: 0.5}")
    model = paribus.assemble(spec).double()
    batch = model.batch(TOKENS)
    hidden = model.hidden(TOKENS[:, :-1])
    expected = torch.zeros((), dtype=torch.float64)
    for distance in (1, 2, 3):
        rows = hidden
        if distance > 1:
            path = f"objectives.multi-token.further.{distance - 2}"
            weight, bias = (model.get_parameter(f"{path}.dense.{name}") for name in ("weight", "bias"))
            inner = functional.linear(hidden, weight, bias)
            rows = model.get_submodule(f"{path}.norm")(hidden + inner * inner.sigmoid())
        log_shares = model.topology.embedding.unembed(rows).log_softmax(-1)
        count = 13 - distance
        chosen = log_shares[:, :count].gather(-1, TOKENS[:, distance:].unsqueeze(-1))
        expected = expected - (1.0 if distance == 1 else 0.5) * chosen.mean()
    torch.testing.assert_close(model.loss(batch), expected)


@pytest.mark.parametrize("ahead", [1, 4])
def test_next_tokens_are_predicted_as_by_clm(ahead: int) -> None:
    """Bitwise: weights, labels, the loss of the next token, and its gradients where nothing else is predicted."""
    spec = paribus.spec("gpt-tiny", *TINY)
    clm = paribus.assemble(spec)
    further = paribus.assemble(paribus.spec("gpt-tiny", *TINY, f"objective={{name: multi-token, ahead: {ahead}}}"))
    batches: list[Batch] = [clm.batch(TOKENS), further.batch(TOKENS)]
    losses = [
        model.terms(model.run(batch), [name])[f"{name}/loss"]
        for model, batch, name in zip((clm, further), batches, ("clm", "multi-token"), strict=True)
    ]
    assert torch.equal(losses[0].total, losses[1].total)
    assert torch.equal(losses[0].count, losses[1].count)
    prompt = TOKENS[0, :5].tolist()
    first, second = (paribus.generate(model, prompt, tokens=6).results for model in (clm, further))
    assert first == second
    if ahead == 1:
        for model, batch in zip((clm, further), batches, strict=True):
            model.loss(batch).backward()
        assert all(
            torch.equal(parameter.grad, dict(further.named_parameters())[path].grad)  # type: ignore[arg-type]  # all have one
            for path, parameter in clm.named_parameters()
        )


def test_sequential_heads_have_the_losses_of_the_paper() -> None:
    """DeepSeek-V3 (2024), equations 21 to 25, with the layer applied to each prefix by itself."""
    spec = paribus.spec("gpt-tiny", *TINY, "position=rope", "objective={name: multi-token, ahead: 3, sequential: true}")
    model = paribus.assemble(spec).double().eval()
    batch, objective = model.batch(TOKENS), model.objective("multi-token")
    terms = model.terms(model.run(batch), ["multi-token"])
    table, hidden = model.topology.embedding, model.hidden(TOKENS[:, :-1])
    embedded = table(Stream(TOKENS[:, :-1]), 0, lambda x, positions: x, None)[0]
    for distance in (2, 3):
        path = f"objectives.multi-token.further.{distance - 2}"
        norms = [model.get_submodule(f"{path}.{name}") for name in ("hidden_norm", "token_norm")]
        left, right = model.get_parameter(f"{path}.projection.weight").chunk(2, dim=1)
        rows, count = [], 13 - distance
        for place in range(count):  # tokens up to place + distance - 1 are known
            known = slice(distance - 1, distance + place)
            x = norms[0](hidden[:, : place + 1]) @ left.T + norms[1](embedded[:, known]) @ right.T
            layout = TokenLayout(torch.arange(place + 1).unsqueeze(0))
            rows.append(objective.layers[distance - 2](x, layout).hidden[:, -1])
        hidden = torch.stack(rows, dim=1)
        log_shares = table.unembed(hidden).log_softmax(-1)
        expected = -log_shares.gather(-1, TOKENS[:, distance:].unsqueeze(-1)).sum()
        term = terms[f"multi-token/ahead-{distance}"]
        torch.testing.assert_close(term.total, expected)
        assert int(term.count) == 3 * count


def test_labels_of_sequential_heads_are_at_the_last_token_that_they_read(
    build: Callable[..., Objective], vocabulary: Vocabulary
) -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, PADDING, PADDING]])
    body = Stream(torch.arange(10, 19)[None], documents=documents)
    objective = build("multi-token", vocabulary, ahead=3, sequential=True)
    targets = objective.corrupt({"body": body}, {}, Draw(0, 0, torch.arange(1))).targets
    none = IGNORED
    assert targets["labels 2"].tolist() == [[none, 12, 13, none, none, 16, none, none]]
    assert targets["labels 3"].tolist() == [[none, none, 13, none, none, none, none, none]]


@pytest.mark.parametrize("preset", ["lstm-lm-tiny", "transformer-tiny"])
def test_a_body_without_layers_of_its_own_has_no_sequential_heads(preset: str) -> None:
    with raises_problem(SpecError, "does-not-fit", "multi-token"):
        paribus.assemble(paribus.spec(preset, "objective={name: multi-token, ahead: 2, sequential: true}"))
