"""Public functions of studies: `paribus.study` reads and plans a study, `paribus.records` returns its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from paribus.assembly.components import Classes, make
from paribus.errors import ParibusError, Problem, SpecError, StoreError, missing_package
from paribus.planning.comparability import EvaluationPreview
from paribus.planning.identity import unidentified
from paribus.planning.match_budget import read_time_match
from paribus.planning.plan import MAX_TRIALS, Plan, plan
from paribus.planning.tuning import score_of
from paribus.program.input_files import doubtful_options, unidentified_program
from paribus.registry import Index, LazyRegistry, Registry, error_from, with_plugins
from paribus.registry.component_index import NAME
from paribus.specs.attention_rules import partly_read_positions, positions_of
from paribus.specs.named_plugins import files_of_starts, files_of_study, place_files, recorded_files
from paribus.specs.program_spec import PROGRAM
from paribus.specs.resolve import index_of
from paribus.specs.tree import Tree, flatten
from paribus.specs.yaml_reader import read_file
from paribus.storage.atomic import cache_folder, digest_json, read_json
from paribus.storage.saved_model import TRIAL, recorded_plugins
from paribus.storage.store import STORE, Store, Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.designs import BASELINE
from paribus.studies.study import Study, default_name, locate_study, read_study

if TYPE_CHECKING:
    from pandas import DataFrame


def fingerprint(spec: Mapping[str, Any], index: Index) -> str:
    """Return a digest of the text that a spec's corpus, tokenizer and measures read now; this does not import torch."""
    from paribus.datamodule.corpus_fingerprint import corpus_fingerprint
    from paribus.slots.corpus import Corpus
    from paribus.slots.tokenizer import Tokenizer

    classes = LazyRegistry(index)
    corpus = corpus_fingerprint(make(classes, "corpus", spec["corpus"], kind=Corpus), cache_folder() / "tokens")
    tokenizer_files = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer).external_fingerprint()
    measured = [
        corpus_fingerprint(make(classes, "corpus", node, kind=Corpus), cache_folder() / "tokens")
        for node in _measured_corpora(spec, index)
    ]
    others = [*([tokenizer_files] if tokenizer_files else []), *([measured] if measured else [])]
    return digest_json([corpus, *others]) if others else corpus


def _measured_corpora(spec: Mapping[str, Any], index: Index) -> Iterator[Mapping[str, Any]]:
    """Yield the corpora that the measures of a spec read."""
    for node in spec.get("measure") or []:
        for option in index.find("measure", node["name"]).options:
            if option.kind.slot == "corpus" and node[option.name] is not None:
                yield node[option.name]


@final
@dataclass(frozen=True, repr=False)
class PlannedStudy:
    """A study with its plan and its store."""

    plan: Plan
    store: Store
    index: Index = field(repr=False)
    make_plan: Callable[[], PlannedStudy] | None = None  # plans again with the records of now
    classes: Classes | None = field(default=None, repr=False)
    recorded_plugins: tuple[Path, ...] = ()  # files that only its records name

    def __repr__(self) -> str:
        counts = f"{len(self.plan.variants)} variants, {len(self.plan.trials)} trials"
        return f"<study {self.name}: {counts}, in {self.store.root}>"

    @property
    def name(self) -> str:
        """Name of the study, and of its folder in the store."""
        return self.plan.study.name

    def warnings(self) -> list[str]:
        """Return a warning for each component whose identity does not cover all that its output depends on, and for
        each variant that reads its position in other layers than the baseline.
        """
        if self.plan.study.program is not None:
            return [*self._program_warnings(self.plan.study.program)] if self.plan.trials else []
        unknown = unidentified((name for trial in self.plan.trials for name in trial.components), self.index)
        return [*unknown, *self._position_warnings()]

    def _position_warnings(self) -> Iterator[str]:
        """Yield a warning for each variant of which other layers read the position than of the baseline."""
        specs: dict[str, Mapping[str, Any]] = {}
        for trial in self.plan.trials:
            specs.setdefault(trial.variant, trial.spec)
        for variant, spec in specs.items():
            base = specs.get(BASELINE, spec)
            if positions_of(spec) != positions_of(base):
                continue  # the study varies the position itself
            texts, base_texts = (list(partly_read_positions(each, self.index)) for each in (spec, base))
            if texts != base_texts:
                where = "; ".join(texts) or "in all layers"
                yield f"{variant} reads the position in other layers than {BASELINE}: {where}"

    def _program_warnings(self, program: Mapping[str, Any]) -> Iterator[str]:
        """Yield warnings of a program: no file is known, or its options look misspelt."""
        yield from unidentified_program(self.plan.trials[0])
        base = [key for key, _ in flatten(self.plan.study.base.data) if key.partition(".")[0] != PROGRAM]
        varied = sorted({key for variant in self.plan.variants for key, _ in variant.changes})
        yield from doubtful_options(program, base, varied, Path.cwd())

    def records_dataframe(self) -> DataFrame:
        """Return `paribus.records` of the study as a data frame. This needs the extra `pandas`."""
        return data_frame(records(self), "records_dataframe")

    def check_shapes(self, spec: Mapping[str, Any]) -> None:
        """Assemble a resolved spec on the meta device, to raise the errors that only its components can find."""
        from paribus.models.assemble import meta_model

        meta_model(spec, self.classes or LazyRegistry(self.index))

    def replan(self) -> PlannedStudy:
        """Return the study with the trials that follow from the records of now."""
        has_failed = any(candidate.failed for tuning in self.plan.tuned for candidate in tuning.candidates)
        is_final = self.plan.is_complete and not has_failed  # a failed trial may be repaired and run again
        return self if self.make_plan is None or is_final else self.make_plan()


def study(
    name_or_path: str | Path | Mapping[str, Any],
    *,
    registry: Registry | Index | None = None,
    store: Path | str = STORE,
    max_trials: int = MAX_TRIALS,
    read_only: bool = False,
) -> PlannedStudy:
    """Return a checked and planned study: a shipped one by its name, or one from a file or a dictionary. Nothing runs.

    With `read_only`, damaged files of the store are reported and not set aside.

    `paribus.study("quickstart")`
    """
    index = index_of(registry)
    _check_store_path(Path(store))
    default, tree = _read(name_or_path, index)
    components = _with_files(registry if isinstance(registry, Registry) else index, files_of_study(tree, index))
    recorded = files_of_starts(tree, index_of(components))
    components = _with_files(components, recorded)
    make = partial(_planned, default, tree, store=Path(store), max_trials=max_trials, read_only=read_only)
    try:
        planned = make(components)
    except ParibusError as error:
        folder = Path(store) / str(tree.data.get("name") or default)
        files = _recorded_files(error, folder, index_of(components))
        recorded, planned = [*recorded, *files], make(_with_files(components, files))
    return replace(planned, recorded_plugins=tuple(recorded))


def _with_files(components: Registry | Index, files: Sequence[Path]) -> Registry | Index:
    return components.with_plugins(files) if isinstance(components, Registry) else with_plugins(components, files)


def _recorded_files(error: ParibusError, folder: Path, index: Index) -> list[Path]:
    """Return the plugin files of the unknown components of an error that records in the study's folder were made with.

    Raises the error if there are none, with what is known of those that cannot be loaded.
    """
    unknown = [problem for problem in error.problems if problem.code == "unknown-component"]
    if not unknown or not NAME.fullmatch(folder.name):
        raise error
    recorded: list[tuple[str, Mapping[str, str]]] = []
    for path in sorted(folder.glob(f"*/{TRIAL}")):
        with suppress(StoreError):
            recorded += [item for item in recorded_plugins(read_json(path)).items() if _is_meant(item[0], unknown)]
    files, problems = recorded_files(recorded, index)
    if problems:
        others = (problem for problem in error.problems if not any(_is_meant(name, [problem]) for name in problems))
        raise error_from((*others, *problems.values())) from None
    if not files:
        raise error
    return files


def _is_meant(component: str, unknown: Sequence[Problem]) -> bool:
    """Return whether a component, as slot.name, is one of those that problems report as unknown."""
    slot, _, name = component.partition(".")
    return any(problem.message.startswith(f'unknown {slot} "{name}"') for problem in unknown)


def _planned(
    default: str, tree: Tree, components: Registry | Index, *, store: Path, max_trials: int, read_only: bool
) -> PlannedStudy:
    """Return the plan of a study whose plugins are loaded."""
    index = index_of(components)
    study, problems = read_study(default, tree, index)
    classes = components if isinstance(components, Registry) else LazyRegistry(index)
    saved = Store(store, study.name, read_only=read_only)
    make_plan = partial(
        plan,
        study,
        index,
        fingerprint=_cached_fingerprint(index) if study.program is None else lambda spec: "",
        make_count=partial(_make_count, classes=classes),
        max_trials=max_trials,
        flops_per_step=_flops_per_step(classes),
        find_time_match=partial(read_time_match, saved),
        score=lambda trial: score_of(
            saved.record(trial.identity), study.metric.name, saved.failure(trial.identity), last=study.metric.last
        ),
    )

    def replan() -> PlannedStudy:
        return PlannedStudy(make_plan(), saved, index, replan, classes)

    preview = EvaluationPreview(_metric_names(classes, index), _examples_digest(classes), _lost_bytes(classes))
    checked = make_plan(preview=preview if study.program is None else None, reported=problems)
    return PlannedStudy(checked, saved, index, replan, classes)


def _check_store_path(store: Path) -> None:
    """Raise an error for a store that is a file, or inside one, before any trial runs."""
    existing = next((path for path in (store, *store.parents) if path.exists()), store)
    if existing.exists() and not existing.is_dir():
        message = "this is a file, so trials cannot be saved in it"
        raise StoreError(
            Problem(code="not-a-folder", location=str(existing), message=message, valid="a folder, existing or new")
        )


def records(planned: PlannedStudy | str | Path) -> list[dict[str, Any]]:
    """Return one row for each evaluation of each finished trial: variant, seed, step and metrics.

    A trial that several settings share has rows in each of them.
    """
    if not isinstance(planned, PlannedStudy):
        planned = study(planned)
    shared = [trial for setting in planned.plan.settings for trials in setting.trials.values() for trial in trials]
    unique = {(trial.setting, trial.identity): trial for trial in (*planned.plan.trials, *shared)}
    return [row for trial in unique.values() for row in _rows(trial, planned.store.record(trial.identity))]


def data_frame(rows: Sequence[Mapping[str, Any]], caller: str) -> DataFrame:
    """Return rows as a data frame of pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise SpecError(missing_package("pandas", "pandas", f"`{caller}`", path=caller)) from error
    return pd.DataFrame.from_records(list(rows))


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
            **({"parameters": record["result"]["parameters"]} if "parameters" in record["result"] else {}),
            "identity": trial.identity,
        }


def _read(source: str | Path | Mapping[str, Any], index: Index) -> tuple[str, Tree]:
    if isinstance(source, Mapping):
        from paribus.specs.tree import plain_tree

        tree = plain_tree(source, "study")
        return default_name(tree.data), tree
    path, name = locate_study(source, index)
    return name, place_files(read_file(path), path.parent)


def _metric_names(classes: Classes, index: Index) -> Callable[[Mapping[str, Any]], list[str]]:
    """Return a function that lists the metrics of a resolved spec. A call imports torch."""

    def names_of(spec: Mapping[str, Any]) -> list[str]:
        from paribus.assembly.metric_names import metric_names

        return metric_names(spec, classes, index)

    return names_of


def _examples_digest(classes: Classes) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that digests the validation examples of a spec. A call imports torch and encodes the corpus."""

    def digest_of(spec: Mapping[str, Any]) -> str:
        from paribus.evidence.digests import validation_digest
        from paribus.models.assemble import build_data, load_corpus

        return validation_digest(build_data(spec, classes, load_corpus(spec, classes)))

    return digest_of


def _lost_bytes(classes: Classes) -> Callable[[Mapping[str, Any]], float]:
    """Return a function that measures what a spec's tokenizer loses. A call imports torch and encodes the corpus."""

    def share_of(spec: Mapping[str, Any]) -> float:
        from paribus.models.assemble import load_corpus

        return load_corpus(spec, classes).lost

    return share_of


def _make_count(study: Study, classes: Classes) -> Callable[[dict[str, Any]], int]:
    """Return the count of a study with a match, on the meta device. Only such a study imports torch for it."""
    from paribus.train.spec_costs import count_quantity

    assert study.match is not None
    return partial(count_quantity, study.match.on, classes=classes)


def _flops_per_step(classes: Classes) -> FlopsPerStep:
    """Return the count of a step's FLOPs, on the meta device. A call imports torch."""

    def count(spec: Mapping[str, Any]) -> int:
        from paribus.train.spec_costs import flops_per_step

        return flops_per_step(spec, classes)

    return count


def _cached_fingerprint(index: Index) -> Callable[[dict[str, Any]], str]:
    """Return a function that digests what a spec reads, once for each corpus and tokenizer."""
    digests: dict[str, str] = {}

    def digest_of(spec: dict[str, Any]) -> str:
        key = digest_json([spec["corpus"], spec["tokenizer"], spec.get("measure")])
        if key not in digests:
            digests[key] = fingerprint(spec, index)
        return digests[key]

    return digest_of
