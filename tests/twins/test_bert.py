"""BERT with both of its heads, against the `transformers` library's: what `test_parity` does not look at."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paribus
from paribus import IGNORED, PADDING, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import into_theirs
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.train.model import Model

pytest.importorskip("transformers")

Shake = Callable[[nn.Module], nn.Module]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
PLACE = torch.arange(11)
TEXT = torch.tensor([[11], [4], [7]]) > PLACE
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)).where(TEXT, 0)
SEGMENTS = (TEXT.long().cumsum(1) > TEXT.sum(1, keepdim=True) // 2).long() * TEXT  # the second half of each text
STREAM = Stream(TOKENS, torch.where(TEXT, 0, PADDING), segments=SEGMENTS)


@pytest.fixture
def twins(shake: Shake) -> tuple[Model, Any]:
    theirs = shake(CASES["bert"][0].made)
    return paribus.convert(theirs).eval(), theirs


def test_what_follows_what_is_judged_as_the_twin_judges_it(twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    run = BatchForward(ours.topology, Batch({"body": STREAM}, {}, PLACE[:3])).of("nsp")
    with torch.no_grad():
        expected = theirs(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS)
        rows = run.hidden()
        same(ours.objective("nsp").logits(rows[:, 0], run.unembed), expected.seq_relationship_logits)
        words = ours.objective("mlm").logits(rows, run.unembed)
        same(words[TEXT], expected.prediction_logits[TEXT])


def test_the_loss_and_its_gradients_are_those_of_the_twin(twins: tuple[Model, Any], components: Registry) -> None:
    ours, theirs = twins
    follows = torch.tensor([0, 1, 1])
    pick = torch.tensor([[1, 4, 10], [0, 3, 2], [6, 2, 1]])
    wanted = torch.tensor([[20, 21, 22], [9, IGNORED, 8], [36, 7, IGNORED]])
    labels = torch.full_like(TOKENS, IGNORED).scatter(1, pick, wanted)
    targets = {"mlm": {"pick": pick, "labels": wanted}, "nsp": {"labels": follows}}
    answer = theirs(
        TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS, labels=labels, next_sentence_label=follows
    )
    expected = cross_entropy(answer.prediction_logits.flatten(0, 1), labels.flatten())
    expected = expected + cross_entropy(answer.seq_relationship_logits, follows)
    loss = ours.loss(Batch({"body": STREAM}, targets, PLACE[:3]))
    same(loss, expected)
    assert float(answer.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)  # it casts to float32
    loss.backward()
    expected.backward()
    mine = {name: grad(parameter) for name, parameter in ours.named_parameters()}
    other = {name: grad(parameter) for name, parameter in theirs.named_parameters()}
    for name, one in into_theirs(families(components)["bert"].moves(ours.spec), mine).items():
        if name in other:
            same(one, other[name], msg=f"{name} differs")


def grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
