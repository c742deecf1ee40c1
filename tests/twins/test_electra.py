"""ELECTRA's two networks of the `transformers` library, as the one model that trains them, and apart again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.twins.cases import LENGTH, SPECIALS, VOCABULARY
from torch import Tensor, nn

import paribus
from paribus import Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

Shake = Callable[[nn.Module], nn.Module]

BOTH = {
    **SPECIALS, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "type_vocab_size": 2, "embedding_size": 7,
}  # fmt: skip
DISCRIMINATOR = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 31}
GENERATOR = {"hidden_size": 10, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 9}
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))


def pair(shake: Shake, **changes: Any) -> tuple[Any, Any]:
    body = shake(transformers.ElectraForPreTraining(transformers.ElectraConfig(**BOTH, **DISCRIMINATOR)))
    generator = shake(transformers.ElectraForMaskedLM(transformers.ElectraConfig(**{**BOTH, **GENERATOR, **changes})))
    return body, generator


@pytest.fixture
def twins(shake: Shake) -> tuple[Model, Any, Any]:
    """Ours, of both, and each of theirs; what is drawn by a tensor's name is the same in the two."""
    body, generator = pair(shake)
    return paribus.convert([body, generator]).eval(), body, generator


def test_each_part_gives_what_its_twin_does(twins: tuple[Model, Any, Any]) -> None:
    ours, body, generator = twins
    run = BatchForward(ours.topology, Batch({"body": Stream(TOKENS), "generator": Stream(TOKENS)}, {}, torch.arange(3)))
    made: Any = ours.objective("rtd")
    one = run.of("rtd")
    same(made.logits(one.hidden(), one.unembed).squeeze(-1), body(TOKENS).logits)
    same(made.generator(one.hidden("generator"), one.unembed), generator(TOKENS).logits)


def test_both_go_back_and_come_again(twins: tuple[Model, Any, Any], tmp_path: Path) -> None:
    ours, *theirs = twins
    for twin in theirs:
        name = type(twin).__name__
        back = paribus.export(ours, architecture=name)
        assert (back.architecture, back.tensors.keys()) == (name, twin.state_dict().keys())
        assert all(torch.equal(back.tensors[key], tensor) for key, tensor in twin.state_dict().items())
        back.save(tmp_path / name)
        again = type(twin).from_pretrained(tmp_path / name, dtype=torch.float64).eval()
        same(again(TOKENS).logits, twin(TOKENS).logits)
    read = paribus.convert([tmp_path / type(twin).__name__ for twin in reversed(theirs)])
    assert all(torch.equal(tensor, ours.get_parameter(name)) for name, tensor in read.named_parameters())
    assert paribus.export(ours).architecture == "ElectraForPreTraining"


def test_two_that_do_not_belong_together_are_told(shake: Shake) -> None:
    body, generator = pair(shake)
    with torch.no_grad():
        generator.electra.embeddings.position_embeddings.weight[3, 2] += 1
    with pytest.raises(paribus.StoreError, match=r"have `body.position.0.table.weight`, and it is not the same"):
        paribus.convert([body, generator])
    with pytest.raises(paribus.SpecError, match="`embedding` differs"):
        paribus.convert(pair(shake, type_vocab_size=3))
    with pytest.raises(
        paribus.SpecError, match=r"ElectraForPreTraining of the family `electra` are no networks of one"
    ):
        paribus.convert([body, body])


def test_what_no_twin_has_is_told(twins: tuple[Model, Any, Any]) -> None:
    spec = paribus.spec("electra-tiny", "topology.sharing=disentangled", "tokenizer=bytes")
    with pytest.raises(paribus.SpecError, match="`topology` would be encoder, and is generator-discriminator"):
        paribus.export(paribus.assemble(spec), "electra")


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
