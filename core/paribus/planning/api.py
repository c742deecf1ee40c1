"""The public ways to a study: read it and plan it, and have the records that it has.

The fingerprint of what a trial reads, without torch: only the plugins that have corpus and tokenizer are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

from paribus.assembly.components import Classes, make
from paribus.errors import Problem, SpecError, StoreError
from paribus.planning.collect_errors import collect_problems
from paribus.planning.comparability import check_comparable
from paribus.planning.match_budget import has_flops_budget
from paribus.planning.plan import MAX_TRIALS, Plan, plan
from paribus.planning.time_matches import read_time_match
from paribus.planning.tuning import score_of
from paribus.registry import Index, LazyRegistry, Registry
from paribus.registry.plugin_loading import load_plugin
from paribus.slots.corpus import Corpus
from paribus.slots.tokenizer import Tokenizer
from paribus.specs.resolve import index_of
from paribus.specs.tree import Tree
from paribus.specs.yaml_reader import read_file
from paribus.storage.atomic import digest_json
from paribus.storage.store import STORE, Store, Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.locate import default_name, locate_study
from paribus.studies.study import Study, read_study


def fingerprint(spec: Mapping[str, Any], index: Index) -> str:
    """What the corpus of a spec has in it now, and what its tokenizer reads besides, if anything."""
    found = make(_classes("corpus", spec, index), "corpus", spec["corpus"], kind=Corpus).fingerprint()
    read = make(
        _classes("tokenizer", spec, index), "tokenizer", spec["tokenizer"], kind=Tokenizer
    ).external_fingerprint()
    return digest_json([found, read]) if read else found


def _classes(slot: str, spec: Mapping[str, Any], index: Index) -> Loaded:
    """The classes of the plugin that has what a spec names."""
    return Loaded(load_plugin(index.find(slot, spec[slot]["name"]).source).classes)


@final
class Loaded:
    """The classes of one plugin."""

    def __init__(self, classes: Mapping[tuple[str, str], type]) -> None:
        self.classes = classes

    def get(self, slot: str, name: str) -> type:
        return self.classes[slot, name]


@final
@dataclass(frozen=True, repr=False)
class PlannedStudy:
    """A study, its trials, and the store that they are in."""

    plan: Plan
    store: Store
    index: Index = field(repr=False)
    anew: Callable[[], PlannedStudy] | None = None  # plans it again, with what records have told since
    classes: Classes | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        counts = f"{len(self.plan.variants)} variants, {len(self.plan.trials)} trials"
        return f"<study {self.name}: {counts}, in {self.store.root}>"

    @property
    def name(self) -> str:
        return self.plan.study.name

    def check_shapes(self, spec: Mapping[str, Any]) -> None:
        """Assembles a resolved spec on the meta device, so that its parts may refuse what only they can."""
        from paribus.train.assemble import meta_model

        meta_model(spec, self.classes or LazyRegistry(self.index))

    def replan(self) -> PlannedStudy:
        """The same, with the trials that are known by now: those at the best of what was tuned."""
        failed = any(tried.failed for tuned in self.plan.tuned for tried in tuned.candidates)  # may be mended since
        return self if self.anew is None or (self.plan.is_complete and not failed) else self.anew()


def study(
    name_or_path: str | Path | Mapping[str, Any],
    *,
    registry: Registry | Index | None = None,
    store: Path | str = STORE,
    most: int = MAX_TRIALS,
) -> PlannedStudy:
    """A shipped study by its name, or one from a file or a mapping: checked and planned, with nothing run.

    `paribus.study("quickstart")`
    """
    index = index_of(registry)
    _refuse_file(Path(store))
    name, tree = _read(name_or_path, index)
    read, problems = read_study(name, tree, index)
    classes = registry if isinstance(registry, Registry) else LazyRegistry(index)
    kept = Store(Path(store), read.name)
    fingerprints = _fingerprint(index)

    def anew() -> PlannedStudy:
        found = plan(
            read,
            index,
            fingerprint=fingerprints,
            counter=lambda narrow: _counter(narrow, classes),
            most=most,
            spend=_spender(classes) if has_flops_budget(read) else None,
            solved=partial(read_time_match, kept),
            score=lambda trial: score_of(kept.record(trial.identity), read.metric.name, kept.failure(trial.identity)),
        )
        return PlannedStudy(found, kept, index, anew, classes)

    metric_names = _measured(classes, index)
    try:
        if problems:
            raise SpecError(*problems)
        planned = anew()
        check_comparable(planned.plan, index, metric_names, _examples(classes))
    except SpecError as error:
        raise SpecError(*collect_problems(read, index, error.problems, most=most, measured=metric_names)) from error
    return planned


def _refuse_file(store: Path) -> None:
    """A store is a folder: what is none is told of now, and not when the first trial is to be kept."""
    there = next((place for place in (store, *store.parents) if place.exists()), store)
    if there.exists() and not there.is_dir():
        what = "this is no folder, so that no trial can be kept in it"
        raise StoreError(Problem(code="no-folder", location=str(there), message=what, valid="a folder, old or new"))


def records(planned: PlannedStudy | str | Path) -> list[dict[str, Any]]:
    """A tidy row for each evaluation of each trial that has a record: variant, seed, step, and the metrics."""
    if not isinstance(planned, PlannedStudy):
        planned = study(planned)
    return [row for trial in planned.plan.trials for row in _rows(trial, planned.store.record(trial.identity))]


def _rows(trial: Trial, record: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    if record is None:
        return
    for point in record["result"]["curve"]:
        yield {
            "variant": trial.variant,
            **({"setting": trial.setting} if trial.setting else {}),
            **({"stage": trial.stage} if trial.stage else {}),
            "seed": trial.seed,
            "state": record["result"]["state"],
            **point,
            "parameters": record["result"]["parameters"],
            "identity": trial.identity,
        }


def _read(source: str | Path | Mapping[str, Any], index: Index) -> tuple[str, Tree]:
    if isinstance(source, Mapping):
        from paribus.specs.input_limits import plain_tree

        tree = plain_tree(source, "study")
        return default_name(tree.data), tree
    path, name = locate_study(source, index)
    return name, read_file(path)


def _measured(classes: Classes, index: Index) -> Callable[[Mapping[str, Any]], list[str]]:
    """The metrics of a resolved spec. It imports torch, so only a metric that is no term of a loss pays for it."""

    def of(spec: Mapping[str, Any]) -> list[str]:
        from paribus.assembly.metric_names import metric_names

        return metric_names(spec, classes, index)

    return of


def _examples(classes: Classes) -> Callable[[Mapping[str, Any]], str]:
    """A digest of the validation examples of a resolved spec, which takes torch, and the encoded corpus."""

    def of(spec: Mapping[str, Any]) -> str:
        from paribus.train.assemble import build_data, load_corpus
        from paribus.train.digests import validation_digest

        return validation_digest(build_data(spec, classes, load_corpus(spec, classes)))

    return of


def _counter(read: Study, classes: Classes) -> Callable[[dict[str, Any]], int]:
    """Counts a resolved spec on the meta device. It imports torch, so only a study that matches pays for it."""
    from paribus.train.counting import count_quantity

    assert read.match is not None
    return partial(count_quantity, read.match.on, classes=classes)


def _spender(classes: Classes) -> FlopsPerStep:
    """The operations of a step, counted on the meta device: only a study with a budget of them imports torch for it."""
    from paribus.train.counting import flops_per_step

    return lambda spec: flops_per_step(spec, classes)


def _fingerprint(index: Index) -> Callable[[dict[str, Any]], str]:
    """The fingerprint of what a spec reads. Only the modules of that are imported, and no other plugin."""
    known: dict[str, str] = {}

    def of(spec: dict[str, Any]) -> str:
        key = digest_json([spec["corpus"], spec["tokenizer"]])
        if key not in known:
            known[key] = fingerprint(spec, index)
        return known[key]

    return of
