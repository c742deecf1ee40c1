"""Export of presets: the configuration and tensors fit a model of transformers."""

from __future__ import annotations

from typing import Final

import pytest
import torch

import paribus
from paribus.conversion.api import families
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.slots.family import GENERIC

transformers = pytest.importorskip("transformers")

SMALL: Final = ("tokenizer=bytes", "dims.vocabulary=300", "dims.width=16")
FAMILIES: Final = {
    "albert-tiny": "albert", "bart-tiny": "bart", "bert-tiny": "bert", "ctrl-tiny": "ctrl",
    "distilbert-tiny": "distilbert", "gpt1-tiny": "openai-gpt", "gpt2-tiny": "gpt2", "llama-tiny": "llama",
    "flaubert-tiny": "flaubert", "gpt-j-tiny": "gptj", "gpt-neo-tiny": "gpt_neo",
    "m2m100-tiny": "m2m_100", "mistral-tiny": "mistral", "modernbert-tiny": "modernbert", "roberta-tiny": "roberta",
    "t5-tiny": "t5", "t5-v1.1-tiny": "t5", "xlm-r-tiny": "xlm-roberta", "xlm-tiny": "xlm", "xlnet-tiny": "xlnet",
}  # fmt: skip
DERIVED: Final = frozenset({"d_head"})  # of XLNet, by the widths
CHANGES: Final = {
    "bert-tiny": ("objective={name: mlm}",),  # bytes have no sentences
    "gpt-j-tiny": ("position.fraction=0.5",),  # a quarter of so narrow a head is one channel
}


def small(name: str, components: Registry) -> Model:
    spec = paribus.spec(name, *SMALL, *CHANGES.get(name, ()), registry=components)
    return paribus.assemble(spec, registry=components)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_configuration_states_every_field_that_transformers_reads(name: str, components: Registry) -> None:
    """A field that is left out has the default of the published model, such as an id of its vocabulary."""
    exported, family = paribus.export(small(name, components), FAMILIES[name], registry=components), FAMILIES[name]
    config_class = getattr(transformers, exported.architecture).config_class
    defaults, known = config_class().to_dict(), families(components)[family]
    unstated = {key: value for key, value in defaults.items() if key not in exported.config and key not in DERIVED}
    ids = {key for key, value in unstated.items() if key.endswith("_token_id") and value is not None}
    others = {key for key in unstated if key not in GENERIC | known.ignored}
    assert not ids | {key for key in others if known.legacy.get(key, ()) != unstated[key]}
    read = config_class(**exported.config).to_dict()
    changed = {key for key, value in exported.config.items() if key in read and read[key] != value}
    assert changed <= ({"tie_word_embeddings"} if family == "t5" else set())  # T5's class decides by the tensors


@pytest.mark.few(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_exported_presets_load_and_convert_back(name: str, components: Registry) -> None:
    model = small(name, components)
    exported = paribus.export(model, FAMILIES[name], registry=components)
    model_class = getattr(transformers, exported.architecture)
    with torch.device("meta"):
        hf_state = model_class(model_class.config_class(**exported.config)).state_dict()
    unread = families(components)[FAMILIES[name]].architecture(exported.architecture).unused_tensors
    expected = {key: tensor.shape for key, tensor in hf_state.items() if key not in unread}
    assert {key: tensor.shape for key, tensor in exported.tensors.items()} == expected
    back = paribus.convert(exported, registry=components)
    for path, parameter in model.named_parameters():
        exported_path = path.replace("objectives.control.", "objectives.clm.").replace(
            "objectives.tlm.", "objectives.mlm."
        )
        used = slice(-model.spec["dims"]["length"], None) if path.endswith("position.0.table.weight") else slice(None)
        assert torch.equal(back.get_parameter(exported_path)[used], parameter[used]), path
