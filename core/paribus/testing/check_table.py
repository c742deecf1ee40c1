"""Which checks there are, and for which slots: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from paribus.testing import (
    forward_checks,
    initialisation_checks,
    measure_checks,
    module_checks,
    token_checks,
    training_checks,
    weight_checks,
)
from paribus.testing.host_models import Case, Cell
from paribus.testing.option_checks import options
from paribus.testing.results import Verdict

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
    "moments": Check(module_checks.moments, ("position",), "once"),
    "wiring": Check(module_checks.wiring, ("placement",)),
    "row by row": Check(module_checks.norming, ("norm",)),
    "each row": Check(module_checks.feeding, ("feedforward",)),
    "reach": Check(module_checks.reaching, ("position",)),
    "distances": Check(module_checks.distances, ("position",), "once"),
    "turning": Check(module_checks.turning, ("position",), "once"),
    "causality": Check(token_checks.causality, ARCHITECTURE, "everywhere"),
    "prefix": Check(token_checks.prefix, ARCHITECTURE, "everywhere"),
    "mixing": Check(token_checks.mixing, ("attention", "placement", "topology")),
    "placing": Check(token_checks.placing, ("position",)),
    "batch": Check(token_checks.batching, ARCHITECTURE),
    "determinism": Check(token_checks.determinism, ARCHITECTURE),
    "padding": Check(token_checks.padding, ARCHITECTURE, "everywhere"),
    "documents": Check(token_checks.documents, ARCHITECTURE, "everywhere"),
    "order": Check(token_checks.order, LAYERS, "everywhere"),
    "appended": Check(token_checks.appended, LAYERS, "everywhere"),
    "decoding": Check(forward_checks.decoding, ARCHITECTURE, "everywhere"),
    "weights": Check(weight_checks.weights, ("attention", "position")),
    "state": Check(forward_checks.remembering, ("attention",)),
    "kernels": Check(forward_checks.kernels, ("attention", "position"), "everywhere"),
    "rows": Check(forward_checks.rows, ("embedding",)),
    "gradients": Check(forward_checks.gradients, ARCHITECTURE),
    "cost": Check(forward_checks.cost, ("attention", "feedforward")),
    "keyed": Check(initialisation_checks.keyed, (*ARCHITECTURE, "initialisation")),
    "options": Check(options, (*ARCHITECTURE, "initialisation"), "once"),
    "untouched": Check(initialisation_checks.untouched, LAYERS),
    "tokens": Check(training_checks.tokenizing, ("tokenizer",), "once"),
    "documents read": Check(training_checks.reading, ("corpus",), "once"),
    "images read": Check(training_checks.picturing, ("corpus",), "once"),
    "measuring": Check(measure_checks.measuring, ("measure",)),
    "rates": Check(training_checks.scheduling, ("schedule",), "once"),
    "training": Check(
        training_checks.training, (*ARCHITECTURE, "initialisation", "objective", "tokenizer", "optimizer", "schedule")
    ),
}
