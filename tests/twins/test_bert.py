"""BERT with both of its heads, against the `transformers` library's."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paribus import IGNORED, PADDING, Stream
from paribus.assembly.run import Pass
from paribus.parts.rows import Batch
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import shapes_of
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

Assemble = Callable[..., Model]
Shake = Callable[[nn.Module], nn.Module]
Padded = Callable[[str], tuple[Tensor, Tensor]]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)

SHAPES = {"three heads": (15, 3, 3), "seven heads": (28, 7, 1), "one head": (9, 1, 2)}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def twins(request: pytest.FixtureRequest, assemble: Assemble, shake: Shake) -> tuple[Model, Any]:
    width, heads, layers = request.param
    dims = f"dims={{width: {width}, heads: {heads}, layers: {layers}, length: 23}}"
    ours = assemble("bert-base", dims, "feedforward={inner: 31}")
    config = transformers.BertConfig(
        hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers, intermediate_size=31, vocab_size=37,
        max_position_embeddings=23, pad_token_id=0,
    )  # fmt: skip
    return ours, shake(transformers.BertForPreTraining(config))


NAMES = {
    "attention.heads.q": "attention.self.query",
    "attention.heads.k": "attention.self.key",
    "attention.heads.v": "attention.self.value",
    "attention.heads.o": "attention.output.dense",
    "feedforward.inner": "intermediate.dense",
    "feedforward.outer": "output.dense",
    "placement.norms.attention": "attention.output.LayerNorm",
    "placement.norms.feedforward": "output.LayerNorm",
}
OUTER = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.segments": "bert.embeddings.token_type_embeddings",
    "body.position.0.table": "bert.embeddings.position_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
    "objectives.mlm.dense": "cls.predictions.transform.dense",
    "objectives.mlm.norm": "cls.predictions.transform.LayerNorm",
    "objectives.mlm": "cls.predictions",
    "objectives.nsp.head.dense": "bert.pooler.dense",
    "objectives.nsp.head.scores": "cls.seq_relationship",
}


def pairs(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Our tensors, by name, beside theirs."""
    for name, tensor in ours.items():
        place, _, kind = name.rpartition(".")
        if place in OUTER:
            yield name, tensor, theirs[f"{OUTER[place]}.{kind}"]
        else:
            _, _, layer, *words = place.split(".")
            yield name, tensor, theirs[f"bert.encoder.layer.{layer}.{NAMES['.'.join(words)]}.{kind}"]


def copy(ours: Model, theirs: Any, *, back: bool = False) -> None:
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    found = list(pairs(mine, other))
    assert len(found) == len(mine) == len(other)
    with torch.no_grad():
        for _, one, view in found:
            view.copy_(one) if back else one.copy_(view)


def segments_of(text: Tensor) -> Tensor:
    """The second half of each text is its second segment."""
    return (text.long().cumsum(1) > text.sum(1, keepdim=True) // 2).long() * text


def scores(ours: Model, stream: Stream) -> tuple[Tensor, Tensor]:
    """Of every row over the vocabulary, and of the first over what follows what."""
    run = Pass(ours.topology, Batch({"body": stream}, {}, torch.arange(len(stream.tokens)))).of("mlm")
    rows = run.hidden()
    return ours.objective("mlm").logits(rows, run.unembed), ours.objective("nsp").logits(rows[:, 0], run.unembed)


@pytest.mark.parametrize("length", [1, 2, 9, 23])
def test_scores_are_those_of_the_twin(length: int, twins: tuple[Model, Any], shake: Shake) -> None:
    ours, theirs = twins
    tokens = torch.randint(7, 37, (3, length), generator=torch.Generator().manual_seed(length))
    segments = segments_of(torch.ones_like(tokens).bool())
    with torch.no_grad():
        for back in (False, True):
            copy(ours, theirs, back=back)
            expected = theirs(tokens, token_type_ids=segments)
            words, follows = scores(ours, Stream(tokens, segments=segments))
            same(words, expected.prediction_logits)
            same(follows, expected.seq_relationship_logits)
            same(ours.hidden(tokens), theirs.bert(tokens).last_hidden_state)  # no segments: all of the first
            shake(ours)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_hidden_as_the_twin_hides_it(side: str, twins: tuple[Model, Any], padded: Padded) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens, text = padded(side)
    segments = segments_of(text)
    with torch.no_grad():
        words, follows = scores(ours, Stream(tokens, torch.where(text, 0, PADDING), segments=segments))
        expected = theirs(tokens, attention_mask=text.long(), token_type_ids=segments)
    same(words[text], expected.prediction_logits[text])
    if side == "right":
        same(follows, expected.seq_relationship_logits)


def test_the_loss_and_its_gradients_are_those_of_the_twin(twins: tuple[Model, Any], padded: Padded) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens, text = padded("right")
    segments, follows = segments_of(text), torch.tensor([0, 1, 1])
    pick = torch.tensor([[1, 4, 10], [0, 3, 2], [6, 2, 1]])
    wanted = torch.tensor([[20, 21, 22], [9, IGNORED, 8], [36, 7, IGNORED]])
    labels = torch.full_like(tokens, IGNORED).scatter(1, pick, wanted)
    batch = Batch(
        {"body": Stream(tokens, torch.where(text, 0, PADDING), segments=segments)},
        {"mlm": {"pick": pick, "labels": wanted}, "nsp": {"labels": follows}},
        torch.arange(3),
    )
    answer = theirs(
        tokens, attention_mask=text.long(), token_type_ids=segments, labels=labels, next_sentence_label=follows
    )
    expected = cross_entropy(answer.prediction_logits.flatten(0, 1), labels.flatten())
    expected = expected + cross_entropy(answer.seq_relationship_logits, follows)
    loss = ours.loss(batch)
    same(loss, expected)
    assert float(answer.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    loss.backward()
    expected.backward()
    mine = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    other = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert len(mine) == len(other)
    for name, one, view in pairs(mine, other):
        same(one, view, msg=f"{name} differs")


def test_there_are_as_many_parameters_of_as_many_shapes_as_were_published(
    components: Registry, numel: Callable[[nn.Module], int]
) -> None:
    with torch.device("meta"):
        theirs = transformers.BertForPreTraining(transformers.BertConfig())
    ours = shapes_of(resolved("bert-base", registry=components), components)
    mine = {
        f"{name}.{path}": value for name, child in ours.children().items() for path, value in child.named_parameters()
    }
    found = list(pairs(mine, dict(theirs.named_parameters())))
    assert all(one.shape == view.shape for _, one, view in found)
    assert numel(theirs) == sum(value.numel() for value in mine.values()) == 110_106_428
