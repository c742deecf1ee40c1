"""DeBERTa beyond the parity cases: the newer head, rejected options and the preset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES, VOCABULARY, Case
from tests.hf_parity.float64 import keep_float64
from torch import nn

import paribus
from paribus import SpecError
from paribus.conversion.api import families
from paribus.models.assemble import meta_model
from paribus.registry import Registry
from paribus.specs import resolved

transformers = pytest.importorskip("transformers")

BOTH = [CASES["deberta"][0], CASES["deberta-v2"][0]]
GIVEN = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
BASE = {**GIVEN, "max_relative_positions": 512}


@pytest.mark.parametrize("case", BOTH, ids=lambda case: case.model)
def test_the_newer_head_name_is_read(
    case: Case, randomise: Callable[[nn.Module], nn.Module], components: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float64(monkeypatch)
    hf_model: Any = randomise(case._replace(config={**case.config, "legacy": False}).hf_model)
    model = paribus.convert(hf_model, registry=components).eval()
    tokens = torch.randint(7, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0], hf_model(tokens).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "changes", "value"),
    [
        ("deberta", {"relative_attention": False}, "relative_attention"),
        ("deberta", {"position_biased_input": True}, "position_biased_input"),
        ("deberta", {"pos_att_type": ["p2p"]}, "pos_att_type"),
        ("deberta", {"talking_head": True}, "talking_head"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size"),
        ("deberta-v2", {"share_att_key": False}, "share_att_key"),
        ("deberta-v2", {"attention_head_size": 32}, "attention_head_size"),
        (
            "deberta-v2",
            {"layer_norm_eps": 1e-5, "norm_rel_ebd": "layer_norm"},
            "layer_norm_eps",
        ),
    ],
)
def test_unsupported_options_are_rejected(kind: str, changes: dict[str, Any], value: str, components: Registry) -> None:
    shared = {"share_att_key": True} if kind == "deberta-v2" else {}
    architecture = next(iter(families(components)[kind].architectures))
    with raises_problem(SpecError, "unsupported-option", value):
        families(components)[kind].spec_of({"model_type": kind, **GIVEN, **shared, **changes}, architecture)


def test_the_preset_matches_apart_from_absolute_positions(components: Registry) -> None:
    model_class = transformers.DebertaForMaskedLM
    with torch.device("meta"):
        hf_model = model_class(model_class.config_class(**BASE))
    converted = resolved(
        families(components)["deberta"].spec_of(hf_model.config.to_dict(), model_class.__name__), registry=components
    )
    model = resolved("deberta", registry=components)
    for key in ("topology", "dims", "embedding", "attention", "position", "norm", "placement", "dropout"):
        assert model[key] == converted[key] or key == "dims", key
    counts = [count(spec, components) for spec in (model, converted)]
    assert counts == [139_637_337, 139_244_121]
    assert counts[1] == sum(parameter.numel() for parameter in hf_model.parameters())
    assert counts[0] - counts[1] == 512 * 768


def count(spec: dict[str, Any], components: Registry) -> int:
    children = meta_model(spec, components).children().values()
    return sum({id(parameter): parameter.numel() for child in children for parameter in child.parameters()}.values())
