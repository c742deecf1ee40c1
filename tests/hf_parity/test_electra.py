"""Parity of ELECTRA's generator and discriminator with transformers, converted as a pair and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import LENGTH, SPECIALS, VOCABULARY
from torch import Tensor, nn

import paribus
from paribus import Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

transformers = pytest.importorskip("transformers")

Randomise = Callable[[nn.Module], nn.Module]

BOTH = {
    **SPECIALS, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "type_vocab_size": 2, "embedding_size": 7,
}  # fmt: skip
DISCRIMINATOR = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 31}
GENERATOR = {"hidden_size": 10, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 9}
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))


def pair(randomise: Randomise, **changes: Any) -> tuple[Any, Any]:
    body = randomise(transformers.ElectraForPreTraining(transformers.ElectraConfig(**BOTH, **DISCRIMINATOR)))
    generator = randomise(
        transformers.ElectraForMaskedLM(transformers.ElectraConfig(**{**BOTH, **GENERATOR, **changes}))
    )
    return body, generator


@pytest.fixture
def models(randomise: Randomise) -> tuple[Model, Any, Any]:
    """The converted pair, the discriminator and the generator; shared tensors are equal."""
    body, generator = pair(randomise)
    return paribus.convert([body, generator]).eval(), body, generator


def test_both_networks_match(models: tuple[Model, Any, Any]) -> None:
    model, body, generator = models
    run = BatchForward(
        model.topology, Batch({"body": Stream(TOKENS), "generator": Stream(TOKENS)}, {}, torch.arange(3))
    )
    objective: Any = model.objective("rtd")
    forward_pass = run.of("rtd")
    same(objective.logits(forward_pass.hidden(), forward_pass.unembed).squeeze(-1), body(TOKENS).logits)
    same(objective.generator(forward_pass.hidden("generator"), forward_pass.unembed), generator(TOKENS).logits)


@pytest.mark.thorough
def test_exporting_and_converting_again_restores_both(models: tuple[Model, Any, Any], tmp_path: Path) -> None:
    model, *hf_models = models
    for hf_model in hf_models:
        name = type(hf_model).__name__
        back = paribus.export(model, architecture=name)
        assert (back.architecture, back.tensors.keys()) == (name, hf_model.state_dict().keys())
        assert all(torch.equal(back.tensors[key], tensor) for key, tensor in hf_model.state_dict().items())
        back.save(tmp_path / name)
        reloaded = type(hf_model).from_pretrained(tmp_path / name, dtype=torch.float64).eval()
        same(reloaded(TOKENS).logits, hf_model(TOKENS).logits)
    read = paribus.convert([tmp_path / type(hf_model).__name__ for hf_model in reversed(hf_models)])
    assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in read.named_parameters())
    assert paribus.export(model).architecture == "ElectraForPreTraining"


@pytest.mark.thorough
def test_networks_of_different_models_are_rejected(randomise: Randomise) -> None:
    body, generator = pair(randomise)
    with torch.no_grad():
        generator.electra.embeddings.position_embeddings.weight[3, 2] += 1
    with raises_problem(paribus.StoreError, "tied-weights-differ", "body.position.0.table.weight"):
        paribus.convert([body, generator])
    with raises_problem(paribus.SpecError, "not-a-pair", "embedding"):
        paribus.convert(pair(randomise, type_vocab_size=3))
    with raises_problem(paribus.SpecError, "not-a-pair", "ElectraForPreTraining", "electra"):
        paribus.convert([body, body])


@pytest.mark.thorough
def test_exporting_disentangled_sharing_is_rejected(models: tuple[Model, Any, Any]) -> None:
    spec = paribus.spec("electra-tiny", "topology.sharing=disentangled", "tokenizer=bytes")
    with raises_problem(paribus.SpecError, "cannot-export", "topology", "generator-discriminator"):
        paribus.export(paribus.assemble(spec), "electra")


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
