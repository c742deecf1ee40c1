"""What of DeBERTa no table of cases says: its other head, what is refused, and the preset beside its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY, Case
from tests.twins.double import keep_double
from torch import nn

import paribus
from paribus import SpecError
from paribus.conversion.api import families
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import meta_model

transformers = pytest.importorskip("transformers")

BOTH = [CASES["deberta"][0], CASES["deberta-v2"][0]]
GIVEN = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
BASE = {**GIVEN, "max_relative_positions": 512}


@pytest.mark.parametrize("case", BOTH, ids=lambda case: case.model)
def test_the_head_is_read_by_its_newer_name(
    case: Case, shake: Callable[[nn.Module], nn.Module], components: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_double(monkeypatch)
    theirs: Any = shake(case._replace(config={**case.config, "legacy": False}).made)
    ours = paribus.convert(theirs, registry=components).eval()
    tokens = torch.randint(7, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[0], theirs(tokens).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("deberta", {"relative_attention": False}, "`relative_attention` must be True"),
        ("deberta", {"position_biased_input": True}, "`position_biased_input` must be False"),
        ("deberta", {"pos_att_type": ["p2p"]}, "`pos_att_type` .'p2p'."),
        ("deberta", {"talking_head": True}, "talking_head"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size"),
        ("deberta-v2", {"share_att_key": False}, "`share_att_key` must be True"),
        ("deberta-v2", {"attention_head_size": 32}, "head width"),
        ("deberta-v2", {"layer_norm_eps": 1e-5, "norm_rel_ebd": "layer_norm"}, "norm of distances"),
    ],
)
def test_unsupported_options_are_rejected(
    kind: str, changes: dict[str, Any], message: str, components: Registry
) -> None:
    shared = {"share_att_key": True} if kind == "deberta-v2" else {}
    architecture = next(iter(families(components)[kind].architectures))
    with pytest.raises(SpecError, match=message):
        families(components)[kind].spec_of({"model_type": kind, **GIVEN, **shared, **changes}, architecture)


def test_the_preset_is_its_twin_and_a_table_of_places(components: Registry) -> None:
    own = transformers.DebertaForMaskedLM
    with torch.device("meta"):
        theirs = own(own.config_class(**BASE))
    converted = resolved(
        families(components)["deberta"].spec_of(theirs.config.to_dict(), own.__name__), registry=components
    )
    ours = resolved("deberta", registry=components)
    for key in ("topology", "dims", "embedding", "attention", "position", "norm", "placement", "dropout"):
        assert ours[key] == converted[key] or key == "dims", key
    counts = [count(spec, components) for spec in (ours, converted)]
    assert counts == [139_637_337, 139_244_121]
    assert counts[1] == sum(each.numel() for each in theirs.parameters())
    assert counts[0] - counts[1] == 512 * 768


def count(spec: dict[str, Any], components: Registry) -> int:
    children = meta_model(spec, components).children().values()
    return sum({id(each): each.numel() for child in children for each in child.parameters()}.values())
