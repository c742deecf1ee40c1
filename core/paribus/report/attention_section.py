"""Attention maps of the trained models of a study, for one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from paribus.analysis.formatting import clean
from paribus.analysis.trials import TrialEntry
from paribus.errors import ParibusError, Problem, StoreError
from paribus.report.charts import Figure
from paribus.storage.store import Store

if TYPE_CHECKING:  # torch, which a report without attention maps does not need
    from paribus.inference.attention_maps import AttentionMaps
    from paribus.registry import Registry


@final
@dataclass(frozen=True)
class AttentionSection:
    """The attention maps of a report, with notes on variants without a map."""

    text: str
    seed: int
    figures: Sequence[Figure]
    notes: Sequence[str]


def attention_section(
    text: str, trials: Mapping[str, Iterable[TrialEntry]], store: Store, registry: Registry
) -> AttentionSection:
    """Return the attention maps of one model of each variant and setting, all of the smallest finished seed."""
    from paribus.report.attention_charts import attention_figures

    variants: dict[str, list[TrialEntry]] = {}
    for setting, entries in trials.items():
        for entry in entries:
            variants.setdefault(", ".join(filter(None, (entry.variant, setting))), []).append(entry)
    seeds = [entry.seed for entries in variants.values() for entry in entries if entry.done]
    if not seeds:
        message = "no trial of this study has finished, so no model has attention maps"
        raise StoreError(Problem(code="no-trials", location=str(store.root), message=message))
    maps: dict[str, AttentionMaps] = {}
    notes: list[str] = []
    for name, entries in variants.items():
        trial = next((entry for entry in entries if entry.done and entry.seed == min(seeds)), None)
        try:
            if trial is None:
                notes.append(f"{clean(name)} has no map: its trial has not finished.")
            else:
                maps[name] = _maps(text, trial, store, registry)
        except ParibusError as error:
            notes.append(f"{clean(name)} has no map: {clean(error.problems[0].message)}.")
    return AttentionSection(text, min(seeds), list(attention_figures(maps)), notes)


def _maps(text: str, entry: TrialEntry, store: Store, registry: Registry) -> AttentionMaps:
    """Return the attention maps of a trial's model: cross-attention if it reads a source, else self-attention."""
    from paribus.inference.attention_maps import attend
    from paribus.models.assemble import load_model
    from paribus.storage.saved_model import read_model

    model = load_model(read_model(store.folder(entry.identity)), registry)
    has_source = any(part.path == "body" and part.cross is not None for part in model.topology.parts)
    return attend(model, source=text, registry=registry) if has_source else attend(model, text, registry=registry)
