"""Parity of ALBERT with both heads, beyond `test_parity`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES, VOCABULARY
from torch import nn
from torch.nn.functional import cross_entropy

import paribus
from paribus import IGNORED, PADDING, SpecError, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

pytest.importorskip("transformers")

same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
PLACE = torch.arange(11)
TEXT = torch.tensor([[11], [4], [7]]) > PLACE
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)).where(TEXT, 0)
SEGMENTS = (TEXT.long().cumsum(1) > TEXT.sum(1, keepdim=True) // 2).long() * TEXT  # the second half of each text


@pytest.fixture
def models(randomise: Callable[[nn.Module], nn.Module]) -> tuple[Model, Any]:
    hf_model = randomise(CASES["albert"][0].hf_model)
    return paribus.convert(hf_model).eval(), hf_model


def test_scores_loss_and_gradients_of_both_heads_match(models: tuple[Model, Any]) -> None:
    model, hf_model = models
    swapped = torch.tensor([0, 1, 1])
    pick = torch.tensor([[1, 4, 10], [0, 3, 2], [6, 2, 1]])
    expected_labels = torch.tensor([[20, 21, 22], [9, IGNORED, 8], [36, 7, IGNORED]])
    labels = torch.full_like(TOKENS, IGNORED).scatter(1, pick, expected_labels)
    targets = {"mlm": {"pick": pick, "labels": expected_labels}, "sop": {"labels": swapped}}
    batch = Batch({"body": Stream(TOKENS, torch.where(TEXT, 0, PADDING), segments=SEGMENTS)}, targets, PLACE[:3])
    answer = hf_model(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS)
    run = BatchForward(model.topology, batch).of("sop")
    same(model.objective("sop").logits(run.hidden()[:, 0], run.unembed), answer.sop_logits)
    same(model.objective("mlm").logits(run.hidden(), run.unembed)[TEXT], answer.prediction_logits[TEXT])
    expected = cross_entropy(answer.prediction_logits.flatten(0, 1), labels.flatten())
    expected = expected + cross_entropy(answer.sop_logits, swapped)
    loss = model.loss(batch)
    same(loss, expected)
    loss.backward()
    expected.backward()
    table, shared = hf_model.albert.embeddings.word_embeddings, hf_model.albert.encoder.albert_layer_groups[0]
    same(model.get_parameter("embedding.tokens.weight").grad, table.weight.grad)
    layer = shared.albert_layers[0]
    same(model.get_parameter("body.layers.0.feedforward.inner.weight").grad, layer.ffn.weight.grad)


def test_a_table_of_the_model_width_is_rejected() -> None:
    model = CASES["albert"][0]._replace(config={**CASES["albert"][0].config, "embedding_size": 15}).hf_model
    with raises_problem(SpecError, "unsupported-option", "embedding_size", "hidden_size"):
        paribus.convert(model)


@pytest.mark.thorough
def test_exporting_a_different_head_activation_is_rejected() -> None:
    small = ["dims={width: 16, heads: 2, vocabulary: 131, length: 23}", "embedding.width=8"]
    head = "objective=[{name: mlm, activation: gelu}, sop]"
    model = paribus.assemble(paribus.spec("albert-tiny", *small, head))
    with raises_problem(SpecError, "cannot-export", "activation", "mlm"):
        paribus.export(model, "albert")


@pytest.mark.thorough
@pytest.mark.parametrize("groups", ["null", "1", "2"])
def test_unshared_layers_are_exported_as_groups(groups: str, randomise: Callable[[nn.Module], nn.Module]) -> None:
    import transformers

    small = ["dims={width: 16, heads: 2, layers: 4, vocabulary: 131, length: 23}", f"dims.groups={groups}"]
    model = paribus.assemble(paribus.spec("albert-tiny", *small, "embedding.width=8", "feedforward.inner=40"))
    randomise(model)
    out = paribus.export(model, "albert")
    assert out.config["num_hidden_groups"] == (4 if groups == "null" else int(groups))
    config = transformers.AlbertConfig(**out.config)
    hf_model = transformers.AlbertForPreTraining(config).double().eval()
    hf_model.load_state_dict(dict(out.tensors))
    with torch.no_grad():
        same(model(TOKENS)[0], hf_model(TOKENS).prediction_logits)
    back = paribus.convert(hf_model)
    assert back.spec["dims"] == model.spec["dims"]
    assert all(torch.equal(value, model.get_parameter(name)) for name, value in back.named_parameters())
