"""Keys of a study file: one dataclass for each block, whose fields declare the type, description and limits of a key.

`specs.key_blocks` reads a file by these declarations. Rules that relate keys to each other are beside what they are
about: `parse_vary`, `stages`, `parse_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, final

from paribus.program.command import OPTIONS
from paribus.registry.class_reader import group_options
from paribus.registry.component_index import NAME
from paribus.schema import Example, Names, Pattern, Range, Slot
from paribus.specs.fields import MAX_STEPS
from paribus.studies.designs import DESIGNS

Section = Mapping[str, Any] | None
Sections = tuple[Mapping[str, Any], ...]

DEFAULT_SEEDS: Final = 5  # with three, the interval would be 2.5 times as wide after Holm's correction
FACTOR: Final = Range(above=0, below=100)
MAX_NUMBER: Final = 1e9  # of a margin, or of seconds
MAX_LAST: Final = 10_000  # evaluations in a mean
TIME: Final = "time"  # of a training step, which is measured and not counted

METRIC: Final = (r"val/[a-z0-9._-]+/[a-z0-9._-]+", "val/<objective>/<name>: val/mlm/loss")
LAST: Final = "evaluations at the end of a trial whose mean is its metric; by default the last evaluation alone"
_FOLDER: Final = (NAME.pattern, "lower-case letters, digits, `.`, `_` and `-`, at most 64: my-study")
_CHANGES: Final = [{"norm": "rmsnorm"}, {"name": "gated", "feedforward": "glu"}]
_CELLS: Final = [{"attention": "mqa", "norm": "rmsnorm", "reason": "…"}]
_TASKS: Final = {"tags": "val/tag/f1", "topics": "val/classify/accuracy"}
_EFFECTS: Final = {"batch_size": "batches", "steps": "budget"}
_WORTH: Final = [0.5, 0.71, 1, 1.41, 2]
_STAGES: Final = {"pretrain": {"objective": "clm"}, "finetune": {"from": "pretrain", "objective": "classify"}}


@final
@dataclass(frozen=True)
class Metric:
    """The metric of the verdict."""

    name: Annotated[str, "metric of the verdict", Pattern(*METRIC), Example("val/mlm/loss")]
    better: Annotated[Literal["lower", "higher"], "better values; required for a name such as accuracy"] = "lower"
    margin: Annotated[float | None, "a smaller difference does not matter", Range(above=0, below=MAX_NUMBER)] = None
    last: Annotated[int, LAST, Range(1, MAX_LAST), Example(5)] = 1
    unlearned: Annotated[bool, "judge models that do not beat the unigram baseline"] = False
    stage: Annotated[str, "stage at whose end it is measured; by default the last"] = ""
    task: Annotated[str, "task of that stage"] = ""
    tasks: Annotated[Section, "metrics by task: a verdict on each, and on the average", Example(_TASKS)] = None


@final
@dataclass(frozen=True)
class Match:
    """A budget that every variant shares with the baseline, and the option that is changed to reach it."""

    on: Annotated[Literal["params", "flops", "kv", "state", "time"], "the shared budget", Example("params")]
    by: Annotated[str, "option that is changed to reach it", Example("feedforward.expand")]


@final
@dataclass(frozen=True)
class Budget:
    """What every variant may train for, in one of these units."""

    steps: Annotated[int, "training steps", Range(1, MAX_STEPS), Example(300)]
    tokens: Annotated[int, "training tokens", Range(1), Example(10**6)]
    flops: Annotated[float, "floating point operations of training", Range(above=0), Example(10**15)]
    seconds: Annotated[float, "seconds of training", Range(above=0), Example(60)]


@final
@dataclass(frozen=True)
class Stop:
    """Verdicts that may end a variant before all of its seeds."""

    when: Annotated[Literal["decided", "when-decided"], "the event that ends a variant"] = "decided"
    looks: Annotated[tuple[int, ...] | None, "increasing numbers of seeds, from 2, at which verdicts are taken"] = None
    open: Annotated[bool, "verdicts hold at every number of seeds, so seeds may be added later"] = False


@final
@dataclass(frozen=True)
class StageKeys:
    """Keys of a stage besides those of a spec."""

    from_: Annotated[Any, "stage, or saved model, that it starts from; by default the stage before"] = None
    budget: Annotated[Section, "budget of the stage; by default the study's"] = None
    tasks: Annotated[Section, "trainings from one start", Example({"tags": {"objective": "tag"}})] = None


@final
@dataclass(frozen=True)
class StageSource:
    """The stage that a stage starts from."""

    name: Annotated[str, "a stage before this one", Example("pretrain")]
    vocabulary: Annotated[Literal["kept", "new"], "keep its tokenizer, or train new embeddings"] = "kept"


@dataclass(frozen=True, kw_only=True)
class CommonKeys:
    """Keys of every study: what varies, how often, and where trials run."""

    name: Annotated[str | None, "name of its folder in a store; by default that of its file", Pattern(*_FOLDER)] = None
    vary: Annotated[Section, "values to try, by key of the base", Example({"attention": ["mqa", "gqa"]})] = None
    design: Annotated[str, "how variants are formed", Names("design", tuple(DESIGNS))] = "one-at-a-time"
    variants: Annotated[Sections, "complete variants", Example([{"attention": "mqa", "norm": "rmsnorm"}])] = ()
    changes: Annotated[Sections, "changes to combine, or to remove one by one", Example(_CHANGES)] = ()
    fraction: Annotated[Any, "share of the cells of a factorial that run", Example("1/2")] = None
    exclude: Annotated[Sections, "cells of a product that do not run", Example(_CELLS)] = ()
    seeds: Annotated[Any, "number of replicates, or a list of seeds", Example(8)] = DEFAULT_SEEDS
    scales: Annotated[Any, "sizes to compare at", Example({"s": {"dims.width": 32}, "m": {"dims.width": 64}})] = None
    tune: Annotated[Section, "values to choose for each variant", Example({"optimizer.lr": [5e-4, 1e-3]})] = None
    stop: Annotated[Stop | None, "verdicts before the last seed", Example("when-decided")] = None
    launcher: Annotated[Any, "where trials run", Slot("launcher")] = "local"
    timeout: Annotated[float | None, "seconds for a trial", Range(above=0, below=MAX_NUMBER)] = None
    plugins: Annotated[
        Any, "plugin files, relative to the study, and names of installed plugins that it needs", Example(["./mine.py"])
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class StudyKeys(CommonKeys):
    """Keys of a study."""

    base: Annotated[Any, "spec that every variant starts from", Example("gpt-tiny")]
    stages: Annotated[Section, "trainings that every variant goes through", Example(_STAGES)] = None
    budget: Annotated[Section, "what every variant may train for", Example({"steps": 300})] = None
    match: Annotated[tuple[Match | None, ...], "what every variant has as much of as the baseline"] = ()
    metric: Annotated[Metric, "metric of the verdict", Example("val/clm/loss")]
    worth: Annotated[
        tuple[float, ...], "multiples of the budget to train the baseline at", FACTOR, Example(_WORTH)
    ] = ()
    evaluate: Annotated[Any, "objectives that every variant is evaluated with"] = None
    measure: Annotated[Any, "measures of every variant"] = None
    loggers: Annotated[Any, "Lightning loggers of each trial", Example(["csv", {"name": "tensorboard"}])] = None


@final
@dataclass(frozen=True)
class ProgramMetric:
    """The metric of the verdict on a program, and where the program writes it."""

    name: Annotated[str, "metric of the verdict, as the program names it", Example("val_loss")]
    from_: Annotated[str, "where the program writes it", Example("metrics.jsonl")]
    pattern: Annotated[str, "of a printed line, with a group for the value", Example("val loss ([0-9.]+)")] = ""
    better: Annotated[Literal["lower", "higher"], "better values; required for a name such as accuracy"] = "lower"
    margin: Annotated[float | None, "a smaller difference does not matter", Range(above=0, below=MAX_NUMBER)] = None
    last: Annotated[int, LAST, Range(1, MAX_LAST), Example(5)] = 1


@final
@dataclass(frozen=True)
class ProgramWorth:
    """Budgets at which the baseline of a program is run."""

    option: Annotated[str, "option of the budget", Example("steps")]
    factors: Annotated[tuple[float, ...], "multiples of its value in `base`", FACTOR, Example(_WORTH)]


@final
@dataclass(frozen=True, kw_only=True)
class ProgramKeys(CommonKeys):
    """Keys of a study of a program, whose variants are options."""

    program: Annotated[str, "command of a trial; `{key}` is the value of an option", Example("python train.py")]
    options: Annotated[str, "how each option is passed", Example("{key}={value}")] = OPTIONS
    seed_option: Annotated[str, "option of the seed", Example("random_seed")] = "seed"
    inputs: Annotated[tuple[str, ...], "files and folders that the program reads", Example(["model.py", "data"])] = ()
    base: Annotated[Section, "options of the baseline", Example({"attention": "mha", "lr": 1e-3})] = None
    effects: Annotated[Section, "what an option changes on purpose, besides the model", Example(_EFFECTS)] = None
    worth: Annotated[ProgramWorth | None, "budgets to run the baseline at"] = None
    metric: Annotated[ProgramMetric, "metric of the verdict", Example({"name": "val_loss", "from": "metrics.jsonl"})]


STUDY_OPTIONS: Final = {option.name: option for option in group_options(StudyKeys)}
