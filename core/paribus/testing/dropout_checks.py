"""Checks in training mode with dropout: its rate and scale, and rules that it must not break."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import torch
from torch import Tensor

from paribus.evidence.dropout_properties import dropout_faults
from paribus.evidence.leaks import ModelPass
from paribus.evidence.model_properties import add_noise
from paribus.models.assemble import build_model
from paribus.parts.batch import Batch, Stream
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import TOLERANCE, VOCABULARY, SmallModel, max_difference, replace_tokens, tokens

LENGTH: Final = 12
RATE: Final = 0.2
HIGH_RATE: Final = 0.7  # at which some queries lose all of their keys
SEEDS: Final = range(4)


def dropout(case: Case, host: HostModel) -> Verdict:
    """In training, dropout has the rate of the spec, once for each tensor, and keeps the mean of outputs.

    The trait `stochastic: True` declares a component that draws noise of its own.
    """
    if case.entry.traits.get("stochastic", False):
        return DOES_NOT_APPLY
    model = build_model({**host.spec, "dropout": RATE}, case.registry, VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        add_noise(model)
        forward = ModelPass(model.double().eval(), nullcontext, TOLERANCE)
        fault = next(dropout_faults(forward, _example(case.small_model(host))), None)
    return HOLDS if fault is None else fault[1]


def _example(small: SmallModel) -> Batch:
    """Return a batch of one example with the streams that the body needs."""
    streams = {"body": small.full_stream(small.tokens(1, LENGTH))}
    if small.body.cross is not None:
        streams[small.body.cross] = Stream(tokens(1, LENGTH, "source"))
    return Batch(streams, {}, torch.zeros(1, dtype=torch.int64))


def training_causality(case: Case, host: HostModel) -> Verdict:
    """In training, with the same draws, later tokens and padding change no output, at a high dropout too."""
    model = SmallModel({**host.spec, "dropout": HIGH_RATE}, case.registry)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    model.topology.train()
    token_ids = tokens(2, LENGTH)
    half = LENGTH // 2
    changed = torch.cat([token_ids[:, :half], replace_tokens(token_ids[:, half:])], dim=1)
    variants: list[tuple[str, Stream, Stream]] = []
    if model.body.causal:
        variants.append(("later tokens", Stream(token_ids), Stream(changed)))
    if case.all_attentions_declare(host, "documents", "padding"):
        documents = torch.where(torch.arange(LENGTH) < half, 0, -1).expand(2, -1)
        variants.append(("padding", Stream(token_ids, documents=documents), Stream(changed, documents=documents)))
    for name, stream, other in variants:
        for seed in SEEDS:
            difference = max_difference(*(_trained_output(model, each, seed)[:, :half] for each in (stream, other)))
            if difference > TOLERANCE:
                return f"with a dropout of {HIGH_RATE}, the output in training changes by {difference:.2g} with {name}"
    return HOLDS if variants else DOES_NOT_APPLY


def _trained_output(model: SmallModel, stream: Stream, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.hidden(stream)
