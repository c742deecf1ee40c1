"""Presets are exported as models of the `transformers` library: a configuration and tensors that fit each other."""

from __future__ import annotations

from typing import Final

import pytest
import torch

import paribus
from paribus.conversion.api import families
from paribus.registry import Registry

transformers = pytest.importorskip("transformers")

SMALL: Final = ("tokenizer=bytes", "dims.vocabulary=300", "dims.width=16")
FAMILIES: Final = {
    "albert-tiny": "albert", "bart-tiny": "bart", "bert-tiny": "bert", "ctrl-tiny": "ctrl",
    "distilbert-tiny": "distilbert", "gpt1-tiny": "openai-gpt", "gpt2-tiny": "gpt2", "llama-tiny": "llama",
    "m2m100-tiny": "m2m_100", "mistral-tiny": "mistral", "modernbert-tiny": "modernbert", "roberta-tiny": "roberta",
    "t5-tiny": "t5", "t5-v1.1-tiny": "t5", "xlm-r-tiny": "xlm-roberta", "xlm-tiny": "xlm", "xlnet-tiny": "xlnet",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_preset_is_exported_whole(name: str, components: Registry) -> None:
    objective = ["objective={name: mlm}"] if name == "bert-tiny" else []  # bytes have no sentences
    model = paribus.assemble(paribus.spec(name, *SMALL, *objective, registry=components), registry=components)
    made = paribus.export(model, FAMILIES[name], registry=components)
    own = getattr(transformers, made.architecture)
    with torch.device("meta"):
        theirs = own(own.config_class(**made.config)).state_dict()
    unread = families(components)[FAMILIES[name]].of(made.architecture).unread
    wanted = {key: tensor.shape for key, tensor in theirs.items() if key not in unread}
    assert {key: tensor.shape for key, tensor in made.tensors.items()} == wanted
    back = paribus.convert(made, registry=components)
    for path, parameter in model.named_parameters():
        there = path.replace("objectives.control.", "objectives.clm.").replace("objectives.tlm.", "objectives.mlm.")
        assert torch.equal(back.get_parameter(there), parameter), path
