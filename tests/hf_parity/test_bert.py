"""Parity of BERT with both heads, beyond `test_parity`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.hf_parity.cases import CASES, VOCABULARY
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paribus
from paribus import IGNORED, PADDING, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import export_tensors
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.train.lightning_module import Model

pytest.importorskip("transformers")

Randomise = Callable[[nn.Module], nn.Module]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
PLACE = torch.arange(11)
TEXT = torch.tensor([[11], [4], [7]]) > PLACE
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)).where(TEXT, 0)
SEGMENTS = (TEXT.long().cumsum(1) > TEXT.sum(1, keepdim=True) // 2).long() * TEXT  # the second half of each text
STREAM = Stream(TOKENS, torch.where(TEXT, 0, PADDING), segments=SEGMENTS)


@pytest.fixture
def models(randomise: Randomise) -> tuple[Model, Any]:
    hf_model = randomise(CASES["bert"][0].hf_model)
    return paribus.convert(hf_model).eval(), hf_model


def test_scores_of_both_heads_match(models: tuple[Model, Any]) -> None:
    model, hf_model = models
    run = BatchForward(model.topology, Batch({"body": STREAM}, {}, PLACE[:3])).of("nsp")
    with torch.no_grad():
        expected = hf_model(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS)
        rows = run.hidden()
        same(model.objective("nsp").logits(rows[:, 0], run.unembed), expected.seq_relationship_logits)
        words = model.objective("mlm").logits(rows, run.unembed)
        same(words[TEXT], expected.prediction_logits[TEXT])


def test_loss_and_gradients_match(models: tuple[Model, Any], components: Registry) -> None:
    model, hf_model = models
    follows = torch.tensor([0, 1, 1])
    pick = torch.tensor([[1, 4, 10], [0, 3, 2], [6, 2, 1]])
    expected_labels = torch.tensor([[20, 21, 22], [9, IGNORED, 8], [36, 7, IGNORED]])
    labels = torch.full_like(TOKENS, IGNORED).scatter(1, pick, expected_labels)
    targets = {"mlm": {"pick": pick, "labels": expected_labels}, "nsp": {"labels": follows}}
    answer = hf_model(
        TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS, labels=labels, next_sentence_label=follows
    )
    expected = cross_entropy(answer.prediction_logits.flatten(0, 1), labels.flatten())
    expected = expected + cross_entropy(answer.seq_relationship_logits, follows)
    loss = model.loss(Batch({"body": STREAM}, targets, PLACE[:3]))
    same(loss, expected)
    assert float(answer.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)  # it casts to float32
    loss.backward()
    expected.backward()
    gradients = {name: grad(parameter) for name, parameter in model.named_parameters()}
    hf_gradients = {name: grad(parameter) for name, parameter in hf_model.named_parameters()}
    for name, gradient in export_tensors(families(components)["bert"].moves(model.spec), gradients).items():
        if name in hf_gradients:
            same(gradient, hf_gradients[name], msg=f"{name} differs")


def grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
