"""Which checks there are, and for which slots: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from paribus.testing import draws, measuring, modules, passes, rows, training, weights
from paribus.testing.cells import Case, Cell
from paribus.testing.findings import Verdict
from paribus.testing.options import options

ARCHITECTURE: Final = ("attention", "position", "norm", "placement", "feedforward", "embedding", "topology")
LAYERS: Final = ("attention", "position", "norm", "placement", "feedforward")


class Check(NamedTuple):
    """One property, the slots that it is of, and the models that it is held in."""

    run: Callable[[Case, Cell], Verdict]
    slots: tuple[str, ...]
    where: Literal["once", "plain", "everywhere"] = "plain"  # plain: the presets, with no other neighbours

    def among(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        if self.where == "once":
            return cells[:1]
        return [cell for cell in cells if cell.plain or self.where == "everywhere"]


CHECKS: Final[Mapping[str, Check]] = {
    "moments": Check(modules.moments, ("position",), "once"),
    "wiring": Check(modules.wiring, ("placement",)),
    "row by row": Check(modules.norming, ("norm",)),
    "each row": Check(modules.feeding, ("feedforward",)),
    "reach": Check(modules.reaching, ("position",)),
    "distances": Check(modules.distances, ("position",), "once"),
    "turning": Check(modules.turning, ("position",), "once"),
    "causality": Check(rows.causality, ARCHITECTURE, "everywhere"),
    "prefix": Check(rows.prefix, ARCHITECTURE, "everywhere"),
    "mixing": Check(rows.mixing, ("attention", "placement", "topology")),
    "placing": Check(rows.placing, ("position",)),
    "batch": Check(rows.batching, ARCHITECTURE),
    "determinism": Check(rows.determinism, ARCHITECTURE),
    "padding": Check(rows.padding, ARCHITECTURE, "everywhere"),
    "documents": Check(rows.documents, ARCHITECTURE, "everywhere"),
    "order": Check(rows.order, LAYERS, "everywhere"),
    "appended": Check(rows.appended, LAYERS, "everywhere"),
    "decoding": Check(passes.decoding, ARCHITECTURE, "everywhere"),
    "weights": Check(weights.weights, ("attention", "position")),
    "state": Check(passes.remembering, ("attention",)),
    "kernels": Check(passes.kernels, ("attention", "position"), "everywhere"),
    "rows": Check(passes.rows, ("embedding",)),
    "gradients": Check(passes.gradients, ARCHITECTURE),
    "cost": Check(passes.cost, ("attention", "feedforward")),
    "keyed": Check(draws.keyed, (*ARCHITECTURE, "initialisation")),
    "options": Check(options, (*ARCHITECTURE, "initialisation"), "once"),
    "untouched": Check(draws.untouched, LAYERS),
    "tokens": Check(training.tokenizing, ("tokenizer",), "once"),
    "documents read": Check(training.reading, ("corpus",), "once"),
    "images read": Check(training.picturing, ("corpus",), "once"),
    "measuring": Check(measuring.measuring, ("measure",)),
    "rates": Check(training.scheduling, ("schedule",), "once"),
    "training": Check(
        training.training, (*ARCHITECTURE, "initialisation", "objective", "tokenizer", "optimizer", "schedule")
    ),
}
