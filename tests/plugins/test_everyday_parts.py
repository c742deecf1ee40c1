"""Registered names of plugins, and one final class a file."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest

REGISTERED = {
    "norm": ("paribus_norm", {"layernorm", "rmsnorm", "scalenorm", "dyt", "derf", "gated", "none"}),
    "placement": (
        "paribus_placement",
        {
            *("pre", "post", "sandwich", "peri", "deepnorm", "parallel", "rezero", "layerscale", "scaled-residual"),
            *("x0", "u-net", "denseformer", "attention-residual", "hyper", "canon", "mudd", "ngpt"),
        },
    ),
    "feedforward": ("paribus_feedforward", {"mlp", "glu", "moe"}),
    "embedding": ("paribus_embedding", {"factorised", "patches", "tokens"}),
    "topology": (
        "paribus_topology",
        {
            "bidirectional-decoder",
            "convolutional-encoder-decoder",
            "deep-recurrent-encoder-decoder",
            "encoder",
            "decoder",
            "encoder-decoder",
            "generator-discriminator",
            "plain-decoder",
            "plain-encoder",
            "recurrent-encoder-decoder",
            "scalar-mix",
            "two-stream",
        },
    ),
    "initialisation": (
        "paribus_initialisation",
        {"by-role", "gated", "mup", "normal", "gpt2", "xavier", "t5", "truncated", "unit"},
    ),
    "optimizer": (
        "paribus_optim",
        {
            *("adadelta", "adafactor", "adagrad", "adamw", "ademamix", "lamb", "lion", "muon", "normuon", "sgd"),
            *("schedule-free", "soap", "stable-adamw"),
        },
    ),
    "schedule": ("paribus_optim", {"constant", "halved", "inverse-sqrt", "polynomial", "trapezoid", "warmup-cosine"}),
}


def registered(slot: str) -> Mapping[str, type[Any]]:
    components: Mapping[str, type[Any]] = getattr(importlib.import_module(REGISTERED[slot][0]), slot)()
    return components


@pytest.mark.parametrize("slot", REGISTERED)
def test_plugins_register_these_names(slot: str) -> None:
    assert set(registered(slot)) == REGISTERED[slot][1]


@pytest.mark.parametrize("slot", REGISTERED)
def test_every_variant_is_a_final_class_in_its_own_file(slot: str) -> None:
    classes = registered(slot).values()
    assert len({component.__module__ for component in classes}) == len(classes)
    assert all(component.__final__ for component in classes)
