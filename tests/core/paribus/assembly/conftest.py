"""Fixtures of whole models: each attention with each position, the other components in rotation.

The conformance matrix (tests/core/paribus/testing/test_matrix.py) has every combination, with fewer checks.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

PRESETS = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny")
ATTENTIONS = ("mha", "gqa", "mqa", "restricted")
POSITIONS = ("none", "learned", "sinusoidal", "rope", "alibi")
PLACEMENTS = ("pre", "post")
NORMS = ("layernorm", "rmsnorm", "none")
FEEDFORWARDS = ("mlp", "glu")

Cell = tuple[str, ...]


def grid() -> dict[str, Cell]:
    cells = {}
    for (a, attention), (p, position) in itertools.product(enumerate(ATTENTIONS), enumerate(POSITIONS)):
        t = (a + p) % 3
        preset = PRESETS[t]
        rest = (PLACEMENTS[(a + t) % 2], NORMS[(a + 2 * p + t) % 3], FEEDFORWARDS[p % 2])
        chosen = dict(zip(("placement", "norm", "feedforward"), rest, strict=True))
        overrides = [f"attention={attention}", f"position={position}"]
        overrides += [f"{slot}={name}" for slot, name in chosen.items()]
        if chosen["norm"] == "none":  # unnormalised states are large, and some visible weights underflow to 0
            overrides += ["embedding.scale=false"]
        if attention == "restricted":
            overrides += ["attention.window=3"]
            overrides += ["parts.decoder.cross.attention=mha"] if preset == "seq2seq-tiny" else []
        cells[" ".join((preset.partition("-")[0], attention, position, *rest))] = (preset, *overrides)
    return cells


GRID = grid()


@pytest.fixture(scope="session")
def model_of_cell(assemble: Callable[..., Model], shake: Callable[[Model], Model]) -> Callable[[Cell], Model]:
    """Return the model of a cell, built once for all tests, which do not change it."""
    models: dict[Cell, Model] = {}

    def build(cell: Cell) -> Model:
        if cell not in models:
            models[cell] = shake(assemble(*cell))
        return models[cell]

    return build


def cells_of(*presets: str) -> list[Any]:
    return [pytest.param(cell, id=name) for name, cell in GRID.items() if cell[0] in presets]


@pytest.fixture(params=cells_of(*PRESETS))
def cell(request: pytest.FixtureRequest, model_of_cell: Callable[[Cell], Model]) -> Model:
    return model_of_cell(request.param)


@pytest.fixture(params=cells_of("gpt-tiny", "seq2seq-tiny"))
def causal(request: pytest.FixtureRequest, model_of_cell: Callable[[Cell], Model]) -> Model:
    return model_of_cell(request.param)


@pytest.fixture(params=cells_of("encoder-tiny"))
def encoder(request: pytest.FixtureRequest, model_of_cell: Callable[[Cell], Model]) -> Model:
    return model_of_cell(request.param)


@pytest.fixture(params=cells_of("seq2seq-tiny"))
def crossing(request: pytest.FixtureRequest, model_of_cell: Callable[[Cell], Model]) -> Model:
    return model_of_cell(request.param)


@pytest.fixture(scope="session")
def hidden() -> Callable[..., Tensor]:
    """Return the hidden states of the body for whole streams; models with another part read `source`."""

    def run(model: Model, body: Stream, source: Stream | None = None) -> Tensor:
        usual = torch.arange(27, 36).expand(len(body.tokens), -1)
        batch = Batch({"body": body, "encoder": source or Stream(usual)}, {}, torch.arange(len(body.tokens)))
        return BatchForward(model.topology, batch).output("body").hidden

    return run
