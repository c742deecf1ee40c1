"""Keys of a study file: one dataclass for each block, whose fields declare the type, description and limits of a key.

`specs.blocks` reads a file by these declarations. Rules that relate keys to each other are beside what they are about:
`parse_vary`, `stages`, `options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, final

from paribus.registry.class_reader import group_options
from paribus.registry.component_index import NAME
from paribus.schema import Example, Names, Pattern, Range, Slot
from paribus.studies.designs import DESIGNS

DEFAULT_SEEDS: Final = 5  # with three, the interval would be 2.5 times as wide after Holm's correction
MAX_NUMBER: Final = 1e9  # of a margin, or of seconds
METRIC: Final = r"val/[a-z0-9._-]+/[a-z0-9._-]+"
TIME: Final = "time"  # of a training step, which is measured and not counted
MAX_STEPS: Final = 10**12  # as in a spec

Better = Literal["lower", "higher"]


@final
@dataclass(frozen=True)
class Metric:
    """The metric of the verdict."""

    name: Annotated[
        str, "metric of the verdict", Pattern(METRIC, "val/<objective>/<name>: val/mlm/loss"), Example("val/mlm/loss")
    ]
    better: Annotated[Better, "which of two values is better"] = "lower"
    margin: Annotated[
        float | None, "a difference below it is too small to matter", Range(above=0, below=MAX_NUMBER)
    ] = None
    unlearned: Annotated[bool, "judge models that do not beat the unigram baseline"] = False
    stage: Annotated[str, "stage at whose end it is measured; by default the last"] = ""
    task: Annotated[str, "task of that stage"] = ""


@final
@dataclass(frozen=True)
class Match:
    """A budget that every variant shares with the baseline, and the option that is changed to reach it."""

    on: Annotated[
        Literal["params", "flops", "kv", "state", "time"], "what every variant has as much of", Example("params")
    ]
    by: Annotated[str, "option that is changed to reach it", Example("feedforward.expand")]


@final
@dataclass(frozen=True)
class Budget:
    """What every variant may train for, in one unit."""

    steps: Annotated[int | None, "training steps", Range(1, MAX_STEPS)] = None
    tokens: Annotated[int | None, "training tokens", Range(1)] = None
    flops: Annotated[float | None, "floating point operations of training", Range(above=0)] = None
    seconds: Annotated[float | None, "seconds of training", Range(above=0)] = None


@final
@dataclass(frozen=True)
class Stop:
    """Verdicts that may end a variant before all of its seeds."""

    when: Annotated[Literal["decided", "when-decided"], "the event that ends a variant"] = "decided"
    looks: Annotated[tuple[int, ...] | None, "increasing numbers of seeds at which verdicts are taken", Range(2)] = None


@final
@dataclass(frozen=True)
class StageKeys:
    """Keys of a stage besides those of a spec."""

    from_: Annotated[Any, "stage, or saved model, that it starts from; by default the stage before"] = None
    budget: Annotated[Mapping[str, Any], "budget of the stage; by default the study's"] = field(default_factory=dict)
    tasks: Annotated[
        Mapping[str, Any] | None, "trainings that each start from the same", Example({"tags": {"objective": "tag"}})
    ] = None


@final
@dataclass(frozen=True)
class StageSource:
    """The stage that a stage starts from."""

    name: Annotated[str, "a stage before this one", Example("pretrain")]
    vocabulary: Annotated[Literal["kept", "new"], "keep its tokenizer, or train new embeddings"] = "kept"


@final
@dataclass(frozen=True)
class StudyKeys:
    """Keys of a study."""

    base: Annotated[Any, "spec that every variant starts from", Example("gpt-tiny")]
    name: Annotated[
        str | None,
        "name of its folder in a store; by default that of its file",
        Pattern(NAME.pattern, "lower-case letters, digits, `.`, `_` and `-`, at most 64: my-study"),
    ] = None
    design: Annotated[str, "how variants are formed from what varies", Names("design", tuple(DESIGNS))] = (
        "one-at-a-time"
    )
    vary: Annotated[Mapping[str, Any], "values to try, by key of a spec", Example({"attention": ["mqa", "gqa"]})] = (
        field(default_factory=dict)
    )
    variants: Annotated[
        tuple[Mapping[str, Any], ...], "complete variants", Example([{"attention": "mqa", "norm": "rmsnorm"}])
    ] = ()
    changes: Annotated[
        tuple[Mapping[str, Any], ...],
        "changes to combine, or to remove one by one",
        Example([{"norm": "rmsnorm"}, {"name": "gated", "feedforward": "glu"}]),
    ] = ()
    fraction: Annotated[Any, "share of the cells of a factorial that run", Example("1/2")] = None
    exclude: Annotated[
        tuple[Mapping[str, Any], ...],
        "cells of a product that do not run",
        Example([{"attention": "mqa", "norm": "rmsnorm", "reason": "…"}]),
    ] = ()
    stages: Annotated[
        Mapping[str, Any] | None,
        "trainings that every variant goes through",
        Example({"pretrain": {"objective": "clm"}, "finetune": {"from": "pretrain", "objective": "classify"}}),
    ] = None
    seeds: Annotated[Any, "number of replicates, or a list of seeds", Example(8)] = DEFAULT_SEEDS
    budget: Annotated[Mapping[str, Any], "what every variant may train for", Example({"steps": 300})] = field(
        default_factory=dict
    )
    match: Annotated[tuple[Match | None, ...], "what variants share with the baseline"] = ()
    metric: Annotated[Metric, "metric of the verdict"] = field(default_factory=dict)  # type: ignore[assignment]
    scales: Annotated[Any, "sizes to compare at", Example({"s": {"dims.width": 32}, "m": {"dims.width": 64}})] = None
    tune: Annotated[
        Mapping[str, Any] | None,
        "values to choose for each variant",
        Example({"optimizer.lr": [5e-4, 1e-3], "seeds": 2}),
    ] = None
    stop: Annotated[Stop | None, "early verdicts: when-decided, or {when: decided, looks: [3, 5, 8]}"] = None
    evaluate: Annotated[Any, "objectives that every variant is evaluated with"] = None
    measure: Annotated[Any, "measures of every variant"] = None
    launcher: Annotated[Any, "where trials run", Slot("launcher")] = "local"
    loggers: Annotated[Any, "Lightning loggers of each trial", Example(["csv", {"name": "tensorboard"}])] = None
    timeout: Annotated[float | None, "seconds for a trial", Range(above=0, below=MAX_NUMBER)] = None


STUDY: Final = {option.name: option for option in group_options(StudyKeys)}
