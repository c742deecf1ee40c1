"""DeBERTa's stack, of its first version and of its third, against the `transformers` library's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from paribus import PADDING, Stream
from paribus.assembly.run import Pass
from paribus.parts.rows import Batch
from paribus.registry import Registry
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.assemble import assembled
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

Shake = Callable[[nn.Module], nn.Module]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)

WIDTH, HEADS = 36, 3  # three terms of heads of 12: a scale that is no fraction, as the twin keeps it in float32
POSITIONS = {
    "v1": "position={name: disentangled, distance: 4, apart: true}",
    "v3": "position={name: disentangled, distance: 9, buckets: 4, normed: true}",
}
SHARED = {
    "attention.heads.o": "attention.output.dense",
    "feedforward.inner": "intermediate.dense",
    "feedforward.outer": "output.dense",
    "placement.norms.attention": "attention.output.LayerNorm",
    "placement.norms.feedforward": "output.LayerNorm",
}
OUTER = {
    "embedding.tokens": "embeddings.word_embeddings",
    "body.embedding.norm": "embeddings.LayerNorm",
    "body.position.0.table": "encoder.rel_embeddings",
}
NAMES = {
    "v1": {**SHARED, "position.key": "attention.self.pos_proj", "position.query": "attention.self.pos_q_proj"},
    "v3": {
        **SHARED,
        **{f"attention.heads.{name[0]}": f"attention.self.{name}_proj" for name in ("query", "key", "value")},
    },
}


def normed(self: Any, x: Tensor) -> Tensor:
    return layer_norm(x, self.weight.shape, self.weight, self.bias, self.variance_epsilon)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of the first version casts to float32; its formula stays."""
    module = importlib.import_module("transformers.models.deberta.modeling_deberta")
    monkeypatch.setattr(module.DebertaLayerNorm, "forward", normed)


@pytest.fixture(params=["v1", "v3"])
def twins(request: pytest.FixtureRequest, components: Registry, shake: Shake) -> tuple[Model, Any]:
    version = request.param
    spec = resolved(
        "bert-base", f"dims={{width: {WIDTH}, heads: {HEADS}, layers: 2, length: 23, vocabulary: null}}", "dropout=0",
        "feedforward={inner: 31}", "embedding.segments=0", "norm.eps=1e-7", "objective=mlm", POSITIONS[version],
        registry=components,
    )  # fmt: skip
    names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    vocabulary = Vocabulary(37, {name: at for at, name in enumerate(names)})
    ours = assembled(spec, components, vocabulary).double().eval()
    sizes = {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 31,
        "vocab_size": 37, "max_position_embeddings": 23, "pad_token_id": 0, "relative_attention": True,
        "position_biased_input": False, "pos_att_type": ["c2p", "p2c"],
    }  # fmt: skip
    theirs: Any
    if version == "v1":
        theirs = transformers.DebertaModel(transformers.DebertaConfig(**sizes, max_relative_positions=4))
    else:
        config = transformers.DebertaV2Config(
            **sizes, max_relative_positions=9, position_buckets=4, share_att_key=True, norm_rel_ebd="layer_norm"
        )
        theirs = transformers.DebertaV2Model(config)
    copy(ours, shake(theirs), version)
    return ours, theirs


def found(name: str, theirs: Mapping[str, Tensor], version: str) -> Tensor:
    """What is theirs of a tensor of ours."""
    place, _, kind = name.rpartition(".")
    outer = {**OUTER, "body.position.0.norm": "encoder.LayerNorm"}
    if place in outer:
        return theirs[f"{outer[place]}.{kind}"]
    _, _, layer, *words = place.split(".")
    at, part = f"encoder.layer.{layer}", ".".join(words)
    if part in NAMES[version]:
        return theirs[f"{at}.{NAMES[version][part]}.{kind}"]
    return laid(theirs, f"{at}.attention.self", "qkv".index(words[-1]), kind)


def laid(theirs: Mapping[str, Tensor], at: str, which: int, kind: str) -> Tensor:
    """The first version has queries, keys and values of each head side by side, and no bias of keys."""
    if kind == "weight":
        return theirs[f"{at}.in_proj.weight"].view(HEADS, 3, -1, WIDTH)[:, which].flatten(0, 1)
    return torch.zeros(WIDTH).double() if which == 1 else theirs[f"{at}.{'qkv'[which]}_bias"]


def copy(ours: Model, theirs: nn.Module, version: str) -> None:
    tensors = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in within(ours):
            parameter.copy_(found(name, tensors, version))


def within(ours: Model) -> Iterator[tuple[str, Tensor]]:
    """All but what belongs to the objective."""
    return ((name, each) for name, each in ours.named_parameters() if not name.startswith("objectives"))


def hidden(ours: Model, stream: Stream) -> Tensor:
    return Pass(ours.topology, Batch({"body": stream}, {}, torch.arange(len(stream.tokens)))).of("mlm").hidden()


@pytest.mark.parametrize("length", [1, 2, 9, 23])
def test_rows_are_those_of_the_twin(length: int, twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    tokens = torch.randint(7, 37, (3, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        same(hidden(ours, Stream(tokens)), theirs(tokens).last_hidden_state)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_hidden_as_the_twin_hides_it(side: str, twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    lengths, place = torch.tensor([[11], [4], [7]]), torch.arange(11)
    text = place < lengths if side == "right" else place >= 11 - lengths
    tokens = torch.randint(7, 37, (3, 11), generator=torch.Generator().manual_seed(5)).where(text, 0)
    with torch.no_grad():
        got = hidden(ours, Stream(tokens, torch.where(text, 0, PADDING)))
        same(got[text], theirs(tokens, attention_mask=text.long()).last_hidden_state[text])


def test_there_are_as_many_numbers_as_theirs_but_for_a_bias_of_keys(twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    extra = 2 * WIDTH if isinstance(theirs, transformers.DebertaModel) else 0
    assert sum(each.numel() for _, each in within(ours)) == sum(each.numel() for each in theirs.parameters()) + extra
