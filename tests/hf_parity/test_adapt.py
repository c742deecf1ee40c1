"""Adaptation of models converted from transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paribus
from paribus.models.adapt import UNKNOWN_TOKENIZER

transformers = pytest.importorskip("transformers")

Randomise = Callable[[nn.Module], Any]

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 12, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 300},
    "bert": {
        "hidden_size": 12,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 16,
        "vocab_size": 300,
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "class_name"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForPreTraining")], ids=["gpt2", "bert"]
)
def test_converted_models_can_be_adapted(randomise: Randomise, tmp_path: Path, family: str, class_name: str) -> None:
    config = transformers.AutoConfig.for_model(family, **SIZES[family])
    hf_model = randomise(getattr(transformers, class_name)(config))
    hf_model.save_pretrained(tmp_path / "hf")
    converted = paribus.convert(tmp_path / "hf")
    paribus.save(converted, tmp_path / "converted")
    text = ["tokenizer=bytes", "corpus=python-docs", "data.validation=8", "data.batch=4"]
    same, report = paribus.adapt(tmp_path / "converted", *text, "attention={name: gqa, kv_heads: 4}")
    assert report.notes == (UNKNOWN_TOKENIZER,)
    assert all(entry.before == entry.after for entry in report.loss_changes)
    tokens = torch.randint(7, 300, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(same.eval()(tokens)[0], converted.eval()(tokens)[0], rtol=0, atol=0)
    _, report = paribus.adapt(tmp_path / "converted", *text, "attention={name: gqa, kv_heads: 2}")
    assert len(report.tensors.of("converted")) == 8
    assert report.tensors.of("new") == report.tensors.of("dropped") == ()
    assert all(entry.before != entry.after for entry in report.loss_changes[:1])
