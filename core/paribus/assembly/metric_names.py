"""Names of the metrics of a spec, from its objectives on the meta device, before any training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.assembly.build import ModelParts, as_list, build
from paribus.assembly.components import Classes, make
from paribus.kernels import KERNELS
from paribus.registry import Entry, Index
from paribus.slots.attention import Attention
from paribus.slots.measure import Measure, TrialInfo
from paribus.slots.objective import Objective
from paribus.slots.position import Position
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.topology import Topology

STAND_IN: Final = 8192  # size of a vocabulary that is unknown until its tokenizer is trained


def metric_names(spec: Mapping[str, Any], classes: Classes, index: Index) -> list[str]:
    """Return the names of all metrics of a trial of this spec: `val/mlm/loss`, `val/mlm/accuracy`."""
    info = trial_info(spec, build(spec, classes, placeholder_vocabulary(spec, index), KERNELS))
    names = [*info.metrics]
    text = index.find("corpus", spec["corpus"]["name"]).traits.get("modality", "text") == "text"
    for node in as_list(spec.get("evaluate") or spec["objective"]):
        if has_likelihood(index.find("objective", node["name"])):
            names += [f"{node['name']}/{name}" for name in ("perplexity", *(["bits-per-byte"] if text else []))]
    for node in spec.get("measure") or []:
        measure = make(classes, "measure", node, kind=Measure)
        names += [f"{node['name']}/{name}" for name in measure.names(info)]
    return [f"val/{name}" for name in names]


def has_likelihood(objective: Objective | Entry) -> bool:
    """Return True if the loss of an objective is a likelihood of the text."""
    return bool(objective.traits.get("likelihood"))


def trial_info(spec: Mapping[str, Any], model: ModelParts) -> TrialInfo:
    """Return the information about a model's trial that is available before it starts."""
    names: list[str] = []
    for node in as_list(spec.get("evaluate") or spec["objective"]):
        objective = model.objectives[node["name"]]
        assert isinstance(objective, Objective)
        names += [f"{node['name']}/{name}" for name in dict.fromkeys((*objective.terms, *objective.metrics()))]
    return TrialInfo(tuple(names), spec["dims"]["length"], max_length(model.topology), spec["seed"])


def max_length(topology: Topology) -> int | None:
    """Return the maximum sequence length of a topology; None: no limit."""
    limits = [module.position_limit() for module in topology.modules() if isinstance(module, Position)]
    lengths = [
        topology.stage("body").shape.length
        for module in topology.modules()
        if isinstance(module, Attention) and module.traits.get("table")
    ]
    return min((limit for limit in (*limits, *lengths) if limit is not None), default=None)


def placeholder_vocabulary(spec: Mapping[str, Any], index: Index) -> Vocabulary:
    """Return a vocabulary with the special tokens that the tokenizer declares, where the real one is not needed."""
    provides = index.find("tokenizer", spec["tokenizer"]["name"]).traits.get("provides", [])
    specials = {name: index for index, name in enumerate(name for name in provides if name != "sentinels")}
    sentinels = range(len(specials), len(specials) + spec["tokenizer"].get("sentinels", 0))
    return Vocabulary(spec["dims"]["vocabulary"] or STAND_IN, specials, tuple(sentinels), frozenset())
