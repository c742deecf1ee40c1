"""Parity of BERT with both heads, beyond `test_parity`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES, VOCABULARY
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paribus
from paribus import IGNORED, PADDING, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import export_tensors
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry

transformers = pytest.importorskip("transformers")

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


SIZES = {**CASES["bert"][0].config, "vocab_size": VOCABULARY}


def bert(name: str, randomise: Randomise, **config: Any) -> Any:
    return randomise(getattr(transformers, name)(transformers.BertConfig(**SIZES, **config)))


@pytest.mark.thorough
def test_hidden_states_of_a_model_without_a_head_match(randomise: Randomise, tmp_path: Path) -> None:
    hf_model = bert("BertModel", randomise)
    hf_model.save_pretrained(tmp_path / "theirs")
    model = paribus.convert(tmp_path / "theirs").eval()
    run = BatchForward(model.topology, Batch({"body": STREAM}, {}, PLACE[:3])).of("mlm")
    with torch.no_grad():
        expected = hf_model(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS)
        same(run.hidden()[TEXT], expected.last_hidden_state[TEXT])
    paribus.export(model).save(tmp_path / "back")
    back = transformers.AutoModel.from_pretrained(tmp_path / "back", dtype=torch.float64).eval()
    with torch.no_grad():
        same(back(TOKENS).last_hidden_state, hf_model(TOKENS).last_hidden_state)


@pytest.mark.few(1)
@pytest.mark.parametrize(("labels", "objective"), [(2, "classify"), (5, "classify"), (1, "regress")])
def test_scores_of_classes_match(labels: int, objective: str, randomise: Randomise, tmp_path: Path) -> None:
    hf_model = bert("BertForSequenceClassification", randomise, num_labels=labels)
    hf_model.save_pretrained(tmp_path / "theirs")
    model = paribus.convert(tmp_path / "theirs").eval()
    run = BatchForward(model.topology, Batch({"body": STREAM}, {}, PLACE[:3])).of(objective)
    with torch.no_grad():
        expected = hf_model(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS).logits
        same(model.objective(objective).logits(run.hidden()[:, 0], run.unembed), expected)
    exported = paribus.export(model, "bert")
    assert exported.architecture == "BertForSequenceClassification"
    exported.save(tmp_path / "back")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back", dtype=torch.float64)
    state = back.state_dict()
    assert state.keys() == hf_model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in hf_model.state_dict().items())


@pytest.mark.thorough
def test_labels_that_no_objective_has_are_rejected(randomise: Randomise) -> None:
    hf_model = bert("BertForSequenceClassification", randomise, num_labels=3)
    with raises_problem(paribus.SpecError, "unsupported-option", "problem_type"):
        paribus.convert(hf_model, problem_type="multi_label_classification")
    spec = paribus.spec("bert-tiny", "objective={name: classify, classes: 2, pooler: false}", "corpus=word-order")
    with raises_problem(paribus.SpecError, "cannot-export", "pooler", "classify"):
        paribus.export(paribus.assemble(spec), "bert", architecture="BertForSequenceClassification")


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
