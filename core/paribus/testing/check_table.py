"""Table of the conformance checks: the slots and models that each check applies to."""

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
from paribus.testing.host_models import Case, HostModel
from paribus.testing.option_checks import options
from paribus.testing.results import Verdict

ARCHITECTURE: Final = ("attention", "position", "norm", "placement", "feedforward", "embedding", "topology")
LAYERS: Final = ("attention", "position", "norm", "placement", "feedforward")


class Check(NamedTuple):
    """Conformance check, with the slots that it applies to and the models that it runs in."""

    run: Callable[[Case, HostModel], Verdict]
    slots: tuple[str, ...]
    scope: Literal["once", "plain", "everywhere"] = "plain"  # plain: presets without other neighbours

    def select_models(self, cells: Sequence[HostModel]) -> Sequence[HostModel]:
        if self.scope == "once":
            return cells[:1]
        return [cell for cell in cells if cell.is_preset or self.scope == "everywhere"]


CHECKS: Final[Mapping[str, Check]] = {
    "moments": Check(module_checks.position_hooks, ("position",), "once"),
    "wiring": Check(module_checks.placement_wiring, ("placement",)),
    "row by row": Check(module_checks.norm_per_token, ("norm",)),
    "each row": Check(module_checks.feedforward_per_token, ("feedforward",)),
    "reach": Check(module_checks.position_range, ("position",)),
    "distances": Check(module_checks.distance_bias, ("position",), "once"),
    "turning": Check(module_checks.relative_rotation, ("position",), "once"),
    "causality": Check(token_checks.causality, ARCHITECTURE, "everywhere"),
    "prefix": Check(token_checks.prefix, ARCHITECTURE, "everywhere"),
    "mixing": Check(token_checks.token_mixing, ("attention", "placement", "topology")),
    "placing": Check(token_checks.position_sensitivity, ("position",)),
    "batch": Check(token_checks.batch_independence, ARCHITECTURE),
    "determinism": Check(token_checks.determinism, ARCHITECTURE),
    "padding": Check(token_checks.padding, ARCHITECTURE, "everywhere"),
    "documents": Check(token_checks.documents, ARCHITECTURE, "everywhere"),
    "order": Check(token_checks.order, LAYERS, "everywhere"),
    "appended": Check(token_checks.extra_queries, LAYERS, "everywhere"),
    "decoding": Check(forward_checks.decoding, ARCHITECTURE, "everywhere"),
    "weights": Check(weight_checks.weights, ("attention", "position")),
    "state": Check(forward_checks.state_size, ("attention",)),
    "kernels": Check(forward_checks.kernels, ("attention", "position"), "everywhere"),
    "rows": Check(forward_checks.embedding_length, ("embedding",)),
    "gradients": Check(forward_checks.gradients, ARCHITECTURE),
    "cost": Check(forward_checks.cost, ("attention", "feedforward")),
    "keyed": Check(initialisation_checks.seeded_weights, (*ARCHITECTURE, "initialisation")),
    "options": Check(options, (*ARCHITECTURE, "initialisation"), "once"),
    "untouched": Check(initialisation_checks.unrelated_weights, LAYERS),
    "tokens": Check(training_checks.tokenization, ("tokenizer",), "once"),
    "documents read": Check(training_checks.corpus_documents, ("corpus",), "once"),
    "images read": Check(training_checks.corpus_images, ("corpus",), "once"),
    "measuring": Check(measure_checks.measure_values, ("measure",)),
    "rates": Check(training_checks.learning_rates, ("schedule",), "once"),
    "training": Check(
        training_checks.training, (*ARCHITECTURE, "initialisation", "objective", "tokenizer", "optimizer", "schedule")
    ),
}
