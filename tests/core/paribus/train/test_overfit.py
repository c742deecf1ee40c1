"""Overfitting: every kind of model memorizes one batch."""

from collections.abc import Callable

import pytest
import torch

from paribus.datamodule.data import Data
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer

pytestmark = pytest.mark.slow

ROOM = ("dims.width=32", "data.batch=4", "dropout=0", "initialisation=xavier", "optimizer.lr=5e-3")
MODELS = {
    "decoder": ["gpt-tiny"],
    "encoder": ["encoder-tiny"],
    "encoder-decoder": ["seq2seq-tiny"],
    "two objectives": ["bert-tiny"],
    "segments swapped": ["bert-tiny", "objective=[mlm, sop]"],
    "gqa": ["gpt-tiny", "attention=gqa"],
    "mqa": ["encoder-tiny", "attention=mqa"],
    "restricted": ["gpt-tiny", "attention=restricted", "attention.window=4"],
    "capped": ["gpt-tiny", "attention.scores.soft_cap=8", "attention.scores.bias=false"],
    "no position": ["gpt-tiny", "position=none"],
    "sinusoidal": ["encoder-tiny", "position=sinusoidal"],
    "rope": ["seq2seq-tiny", "position=rope"],
    "alibi": ["encoder-tiny", "position=alibi"],
    "post": ["gpt-tiny", "placement=post"],
    "rmsnorm": ["gpt-tiny", "norm=rmsnorm"],
    "no norm": ["gpt-tiny", "norm=none", "initialisation=gpt2"],
    "glu": ["encoder-tiny", "feedforward=glu"],
    "untied": ["gpt-tiny", "embedding.tie=false", "embedding.normed=true"],
}


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_a_model_overfits_one_batch(spec: list[str], assemble: Callable[..., Model], feed: Callable[..., Data]) -> None:
    preset, *overrides = spec
    model, batch = assemble(preset, *ROOM, *overrides), feed(preset, *ROOM, *overrides).step(0)
    optimizer = build_optimizer(model.optimizer, model)
    loss = model.loss(batch)
    assert float(loss.detach()) > 1
    for _ in range(200):
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert float(model.loss(batch).detach()) < 0.05
