"""Span boundary objective: its second head, compared with a loop over the boundary rows."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import paribus
from paribus import IGNORED, PADDING, Draw, ForwardPass, Objective, Stream, TrainingExamples, Vocabulary
from paribus_objective.span_masking import Spans

SPANS = Spans(max_length=10, stop_probability=0.2, joint_replacement=True)
Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]


def corrupted(objective: Objective, rows: int = 6, **vectors: Tensor) -> TrainingExamples:
    tokens = torch.arange(rows * 32).reshape(rows, 32) * 7 % 74 + 6
    return objective.corrupt({"body": Stream(tokens, **vectors)}, {}, Draw(0, 0, torch.arange(rows)))


def test_the_second_term_uses_the_tokens_around_each_span(
    build: Build, passed: Passed, table: nn.Embedding, vocabulary: Vocabulary
) -> None:
    objective = build("sbo", vocabulary, position_width=3)
    for parameter in objective.parameters():
        nn.init.normal_(parameter)
    batch = corrupted(objective)
    run = passed(batch)
    hidden, weights = run.hidden(), dict(objective.boundary.named_parameters())  # type: ignore[union-attr]  # a module
    pick, labels = batch.targets["pick"], batch.targets["labels"]
    total, count = torch.zeros((), dtype=torch.float64), 0
    for b in range(len(pick)):
        masked = {int(row): int(label) for row, label in zip(pick[b], labels[b], strict=True) if label != IGNORED}
        for row, label in masked.items():
            start, end = row, row
            while start - 1 in masked:
                start -= 1
            while end + 1 in masked:
                end += 1
            if start == 0 or end == 31:
                continue
            h = torch.cat([hidden[b, start - 1], hidden[b, end + 1], weights["places.weight"][row - start]])
            for layer in ("inner", "outer"):
                h = h @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
                h = h * (1 + torch.erf(h / math.sqrt(2))) / 2
                h = (h - h.mean()) / (h.var(correction=0) + 1e-5).sqrt()
                h = h * weights[f"norms.{layer}.weight"] + weights[f"norms.{layer}.bias"]
            total = total - (h @ table.weight.T + weights["bias"]).log_softmax(-1)[label]
            count += 1
    term = objective(run)["boundary"]
    assert count == int(term.count) > 20
    torch.testing.assert_close(term.total, total, rtol=0, atol=1e-10)


def test_the_first_term_equals_mlm_on_the_same_spans(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective = build("sbo", vocabulary)
    plain = build("mlm", vocabulary, spans=SPANS)
    plain.load_state_dict({name: value for name, value in objective.state_dict().items() if "boundary" not in name})
    boundary_examples, mlm_examples = (corrupted(built) for built in (objective, plain))
    assert torch.equal(boundary_examples.streams["body"].tokens, mlm_examples.streams["body"].tokens)
    assert all(torch.equal(boundary_examples.targets[name], target) for name, target in mlm_examples.targets.items())
    assert torch.equal(objective(passed(boundary_examples))["loss"].total, plain(passed(mlm_examples))["loss"].total)


def test_a_span_without_boundaries_in_its_document_has_no_second_term(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("sbo", vocabulary, rate=0.5, spans=SPANS)
    documents = torch.arange(32).div(2, rounding_mode="floor").expand(6, 32).clone()  # two rows each
    targets = corrupted(objective, documents=documents).targets
    assert (targets["boundary_labels"] == IGNORED).all()
    assert (targets["labels"] != IGNORED).any(1).all()
    whole = corrupted(objective, documents=torch.zeros(6, 32, dtype=torch.int64)).targets
    assert (whole["boundary_labels"] != IGNORED).any()


def test_a_batch_of_padding_has_no_labels(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("sbo", vocabulary)
    targets = corrupted(objective, documents=torch.full((6, 32), PADDING)).targets
    assert (targets["labels"] == IGNORED).all()
    assert (targets["boundary_labels"] == IGNORED).all()


def test_the_second_head_sees_only_the_boundary_tokens(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective = build("sbo", vocabulary)
    batch = corrupted(objective, rows=1)
    run = passed(batch)
    hidden = run.hidden().detach().requires_grad_()
    run.hidden = lambda part="body", **_: hidden  # type: ignore[method-assign]  # fake forward pass
    objective(run)["boundary"].total.backward()
    assert hidden.grad is not None
    is_predicted = batch.targets["boundary_labels"] != IGNORED
    boundary_positions = {int(row) for side in ("left", "right") for row in batch.targets[side][is_predicted]}
    assert set(hidden.grad.abs().sum(-1)[0].nonzero().flatten().tolist()) == boundary_positions
    assert not boundary_positions & set(batch.targets["pick"][batch.targets["labels"] != IGNORED].tolist())


@pytest.mark.parametrize("max_length", [1, 3])
def test_each_position_of_the_longest_span_has_a_vector(max_length: int, build: Build, vocabulary: Vocabulary) -> None:
    objective = build("sbo", vocabulary, spans=Spans(max_length=max_length), position_width=4)
    assert objective.boundary.places.weight.shape == (max_length, 4)  # type: ignore[union-attr]  # a module
    offset = corrupted(objective).targets["offset"]
    assert set(offset.flatten().tolist()) <= set(range(max_length))


def test_span_options_keep_the_other_defaults() -> None:
    spec = paribus.spec("bert-tiny", "objective=[{name: sbo, spans: {max_length: 5}}, {name: nsp}]", "evaluate=[mlm]")
    assert spec["objective"][0]["spans"] == {
        "max_length": 5,
        "stop_probability": 0.2,
        "whole_words": False,
        "joint_replacement": True,
    }
    assert spec["evaluate"][0]["spans"] == {
        "max_length": 1,
        "stop_probability": None,
        "whole_words": False,
        "joint_replacement": False,
    }
