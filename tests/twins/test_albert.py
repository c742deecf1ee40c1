"""ALBERT with both of its heads, against the `transformers` library's: what `test_parity` does not look at."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY
from torch import nn
from torch.nn.functional import cross_entropy

import paribus
from paribus import IGNORED, PADDING, SpecError, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.train.model import Model

pytest.importorskip("transformers")

same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
PLACE = torch.arange(11)
TEXT = torch.tensor([[11], [4], [7]]) > PLACE
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)).where(TEXT, 0)
SEGMENTS = (TEXT.long().cumsum(1) > TEXT.sum(1, keepdim=True) // 2).long() * TEXT  # the second half of each text


@pytest.fixture
def twins(shake: Callable[[nn.Module], nn.Module]) -> tuple[Model, Any]:
    theirs = shake(CASES["albert"][0].made)
    return paribus.convert(theirs).eval(), theirs


def test_scores_of_both_heads_their_loss_and_its_gradients_are_those_of_the_twin(twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    swapped = torch.tensor([0, 1, 1])
    pick = torch.tensor([[1, 4, 10], [0, 3, 2], [6, 2, 1]])
    wanted = torch.tensor([[20, 21, 22], [9, IGNORED, 8], [36, 7, IGNORED]])
    labels = torch.full_like(TOKENS, IGNORED).scatter(1, pick, wanted)
    targets = {"mlm": {"pick": pick, "labels": wanted}, "sop": {"labels": swapped}}
    batch = Batch({"body": Stream(TOKENS, torch.where(TEXT, 0, PADDING), segments=SEGMENTS)}, targets, PLACE[:3])
    answer = theirs(TOKENS, attention_mask=TEXT.long(), token_type_ids=SEGMENTS)
    run = BatchForward(ours.topology, batch).of("sop")
    same(ours.objective("sop").logits(run.hidden()[:, 0], run.unembed), answer.sop_logits)
    same(ours.objective("mlm").logits(run.hidden(), run.unembed)[TEXT], answer.prediction_logits[TEXT])
    expected = cross_entropy(answer.prediction_logits.flatten(0, 1), labels.flatten())
    expected = expected + cross_entropy(answer.sop_logits, swapped)
    loss = ours.loss(batch)
    same(loss, expected)
    loss.backward()
    expected.backward()
    table, shared = theirs.albert.embeddings.word_embeddings, theirs.albert.encoder.albert_layer_groups[0]
    same(ours.get_parameter("embedding.tokens.weight").grad, table.weight.grad)
    layer = shared.albert_layers[0]
    same(ours.get_parameter("body.layers.0.feedforward.inner.weight").grad, layer.ffn.weight.grad)


def test_a_table_as_wide_as_the_stream_is_refused_for_they_have_a_projection_there() -> None:
    model = CASES["albert"][0]._replace(config={**CASES["albert"][0].config, "embedding_size": 15}).made
    with pytest.raises(SpecError, match="`embedding_size` equals `hidden_size`"):
        paribus.convert(model)


def test_what_a_head_does_otherwise_is_not_lost_on_the_way_out() -> None:
    small = ["dims={width: 16, heads: 2, vocabulary: 131, length: 23}", "embedding.width=8"]
    head = "objective=[{name: mlm, activation: gelu}, sop]"
    model = paribus.assemble(paribus.spec("albert-tiny", *small, head))
    with pytest.raises(SpecError, match="`activation` of objective `mlm` would be gelu-tanh, and is gelu"):
        paribus.export(model, "albert")


@pytest.mark.parametrize("groups", ["null", "1", "2"])
def test_layers_that_share_nothing_are_as_many_groups(groups: str, shake: Callable[[nn.Module], nn.Module]) -> None:
    import transformers

    small = ["dims={width: 16, heads: 2, layers: 4, vocabulary: 131, length: 23}", f"dims.groups={groups}"]
    ours = paribus.assemble(paribus.spec("albert-tiny", *small, "embedding.width=8", "feedforward.inner=40"))
    shake(ours)
    out = paribus.export(ours, "albert")
    assert out.config["num_hidden_groups"] == (4 if groups == "null" else int(groups))
    config = transformers.AlbertConfig(**out.config)
    theirs = transformers.AlbertForPreTraining(config).double().eval()
    theirs.load_state_dict(dict(out.tensors))
    with torch.no_grad():
        same(ours(TOKENS)[0], theirs(TOKENS).prediction_logits)
    back = paribus.convert(theirs)
    assert back.spec["dims"] == ours.spec["dims"]
    assert all(torch.equal(value, ours.get_parameter(name)) for name, value in back.named_parameters())
