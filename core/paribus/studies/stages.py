"""Stages of a study: the trainings that every variant goes through, such as pretraining and fine-tuning."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from paribus.errors import closest_match, join_names
from paribus.registry.class_reader import group_options
from paribus.specs.fields import KEYS, META
from paribus.specs.key_blocks import read_block
from paribus.specs.load import set_path
from paribus.specs.tree import Keys, Tree
from paribus.specs.values import Validator
from paribus.studies.budgets import parse_budget
from paribus.studies.study_keys import STUDY_OPTIONS, Metric, StageKeys, StageSource

STAGE_KEYS: Final = tuple(option.name for option in group_options(StageKeys))  # those that are not keys of a spec
STAGE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@final
@dataclass(frozen=True)
class Stage:
    """One training of every variant. A stage with several tasks is one `Stage` per task: `finetune/sections`."""

    name: str = ""  # empty for the only training of a study without stages
    parent: str = ""  # the stage whose trial, of the same variant and seed, this one starts from
    vocabulary: str = "kept"
    budget: Mapping[str, float] = field(default_factory=dict)
    overrides: Tree = field(default_factory=Tree)  # keys of a spec, dotted or not, merged over the base

    @property
    def names(self) -> tuple[str, ...]:
        """The stage and the task: the prefix of a varied key for this stage alone."""
        stage, _, task = self.name.partition("/")
        return (stage, task) if task else (stage,)

    def put(self, tree: Tree) -> None:
        """Merge the overrides into a spec."""
        for key in self.overrides.data:
            set_path(tree, key, self.overrides.subtree((key,)), self.overrides.location((key,)))


SINGLE_STAGE: Final = (Stage(),)


def key_in_stage(key: str, stage: Stage, stages: Sequence[Stage]) -> str | None:
    """Return a varied key without its stage prefix, or None where the key is for another stage.

    `pretrain.objective` is for the stage `pretrain`, `finetune.sections.optimizer.lr` for one of its tasks, and
    `attention` is for all.
    """
    words = key.split(".")
    if not any(words[0] == other.names[0] for other in stages if other.name):
        return key
    has_task = len(words) > 1 and any(other.names == tuple(words[:2]) for other in stages)
    prefix = tuple(words[: 1 + has_task])
    return ".".join(words[len(prefix) :]) if stage.names[: len(prefix)] == prefix else None


def parse_stages(validator: Validator, nodes: Mapping[str, Any] | None) -> tuple[Stage, ...]:
    """Return the stages of a study in order. A stage without a budget has the study's."""
    if nodes is None:
        return SINGLE_STAGE
    if not nodes:
        validator.add_error("empty", ("stages",), "this study has no stage", STUDY_OPTIONS["stages"].example_text)
    stages: list[Stage] = []
    for name, node in nodes.items():
        keys = ("stages", name)
        _check_name(validator, "stage", name, keys)
        mapping = validator.as_mapping(node, keys, join_names(STAGE_KEYS)) or {}
        stages += _parse_stage(validator, str(name), mapping, stages, keys)
    return tuple(stages) or SINGLE_STAGE


def _check_name(validator: Validator, kind: str, name: str, keys: Keys) -> None:
    if not STAGE_NAME.fullmatch(str(name)) or name in (*KEYS, *META, *STAGE_KEYS):
        reason = ": it is a key of a spec" if name in KEYS else ""
        message = f"`{name}` cannot be the name of a {kind}{reason}"
        validator.add_error("bad-name", keys, message, "another word: pretrain, finetune")


def _parse_stage(
    validator: Validator, name: str, node: Mapping[str, Any], previous: Sequence[Stage], keys: Keys
) -> Iterator[Stage]:
    """Yield a stage, or one stage for each of its tasks."""
    stage_keys, overrides = _split(validator, node, keys)
    parent, vocabulary = _parse_parent(validator, node, keys, previous)
    if parent == "" and "from" in node:
        overrides.data["from"] = node["from"]  # a saved model as in any spec, or null, whatever the base starts from
    budget = parse_budget(validator, stage_keys.budget, (*keys, "budget"))
    stage = Stage(name, parent, vocabulary, budget, overrides)
    if stage_keys.tasks is None:
        yield stage
    elif not stage_keys.tasks:
        validator.add_error("empty", (*keys, "tasks"), "this stage has no task", "tasks: {tags: {objective: tag}}")
    for task, task_node in (stage_keys.tasks or {}).items():
        task_keys: Keys = (*keys, "tasks", task)
        _check_name(validator, "task", task, task_keys)
        mapping = validator.as_mapping(task_node, task_keys, "keys of a spec, and budget") or {}
        task_block, tree = _split(validator, mapping, task_keys)
        for key in ("from", "tasks"):
            if key in mapping:
                message = f"`{key}` belongs to the stage, not to a task"
                validator.add_error("unused-option", (*task_keys, key), message, "budget, and keys of a spec")
        tree = Tree(overrides.data | tree.data, overrides.locations | tree.locations)
        task_budget = parse_budget(validator, task_block.budget, (*task_keys, "budget"))
        yield Stage(f"{name}/{task}", parent, vocabulary, task_budget or budget, tree)


def _split(validator: Validator, node: Mapping[str, Any], keys: Keys) -> tuple[StageKeys, Tree]:
    """Return the keys of a stage, and those of its spec."""
    block = read_block(validator, StageKeys, {key: node[key] for key in STAGE_KEYS if key in node}, keys)
    spec = {key: value for key, value in node.items() if key not in STAGE_KEYS}
    return block, replace(validator.tree.subtree(keys), data=spec)


def _parse_parent(
    validator: Validator, node: Mapping[str, Any], keys: Keys, previous: Sequence[Stage]
) -> tuple[str, str]:
    """Return the stage to start from (`from`, or else the stage before), and whether its vocabulary is kept."""
    names = [stage.name for stage in previous]
    from_keys = (*keys, "from")
    if "from" not in node:
        last = {stage.names[0] for stage in previous[-1:]}
        tasks = [stage.name for stage in previous if stage.names[0] in last]
        if len(tasks) > 1:
            message = "the previous stage has several tasks, and `from` does not say which one to start from"
            validator.add_error("missing", from_keys, message, join_names((*tasks, "null")))
        return (names[-1] if names else ""), "kept"
    value = node["from"]
    name = value.get("name") if isinstance(value, Mapping) else value
    if name in names:
        source = read_block(validator, StageSource, value if isinstance(value, Mapping) else {"name": name}, from_keys)
        return source.name, source.vocabulary
    tasks = [stage for stage in names if stage.startswith(f"{name}/")]
    if tasks:
        validator.add_error("ambiguous", from_keys, f"the stage `{name}` has several tasks", join_names(tasks))
    elif isinstance(name, str) and STAGE_NAME.fullmatch(name) and validator.tree.data["stages"].get(name) is not None:
        message = f"the stage `{name}` comes after this one"
        valid = join_names(names) or "a saved model's folder, or nothing"
        validator.add_error("out-of-order", from_keys, message, valid)
    elif isinstance(name, str) and names and closest_match(name, names):
        message = f'unknown stage "{name}"'
        validator.add_error("unknown-stage", from_keys, message, join_names(names), closest_match(name, names))
    return "", "kept"


def parse_metric_stage(validator: Validator, metric: Metric, stages: Sequence[Stage]) -> str:
    """Return the stage and task of the metric; by default the last stage, where it has only one task."""
    names, given_key = [stage.name for stage in stages], "stage" if metric.stage else "task"
    if names == [""]:
        if metric.stage or metric.task:
            message = "this study has no stages, so this would be ignored"
            validator.add_error("unused-option", ("metric", given_key), message, "stages: {…}")
        return ""
    stage = metric.stage or ("" if metric.task else stages[-1].names[0])
    matches = [it.name for it in stages if stage in ("", it.name, it.names[0]) and metric.task in ("", *it.names[1:])]
    query, valid = "/".join(filter(None, (stage, metric.task))), _stage_and_task(matches or names)
    if len(matches) > 1:
        several = f"the stage `{query}` has several tasks" if stage else f"several stages have a task `{query}`"
        message = f"{several}, and the metric does not name one"
        validator.add_error("missing", ("metric", "task" if stage else "stage"), message, valid)
    elif not matches:
        suggestion = closest_match(query, names)
        validator.add_error("unknown-stage", ("metric", given_key), f'unknown stage "{query}"', valid, suggestion)
    return matches[0] if len(matches) == 1 else names[-1]


def _stage_and_task(names: Sequence[str]) -> str:
    return join_names(f"stage: {name.replace('/', ', task: ')}" for name in names)


def check_stage_names(validator: Validator, stages: Sequence[Stage], varied: Sequence[tuple[Keys, str]]) -> None:
    """Report varied keys whose first word is neither a stage nor a key of a spec."""
    names = list(dict.fromkeys(stage.names[0] for stage in stages if stage.name))
    for keys, key in varied if names else ():
        first, dot, _ = key.partition(".")
        if dot and first not in (*names, *KEYS, *META):
            message = f'"{first}" is neither a stage of this study nor a key of a spec'
            valid = f"{join_names(names)}, or a key of a spec for all stages"
            validator.add_error("unknown-stage", keys, message, valid, closest_match(first, names))


def check_stage_keys(
    validator: Validator, stages: Sequence[Stage], varied: Sequence[tuple[Keys, str]], null_keys: Collection[str] = ()
) -> None:
    """Report varied keys that a stage sets itself, so that one of the two values would be ignored.

    The start of a stage may be varied by `STAGE.from: null`: `null_keys` have no other value.
    """
    for keys, key in varied:
        for stage in stages:
            stage_key = key_in_stage(key, stage, stages) or ""
            if stage.parent and stage_key.partition(".")[0] == "from":
                if key in null_keys and key != stage_key == "from":
                    continue
                message = f"the stage `{stage.name}` starts from `{stage.parent}` in every variant, so this is ignored"
                valid = f"`{stage.names[0]}.from: null`, to start from initial weights"
                validator.add_error("unused-option", keys, message, valid)
                break
            if key_in_stage(key, stage, stages) != key or not stage.name:
                continue
            override = next((other for other in stage.overrides.data if is_overlap(key, other)), None)
            if override is not None:
                free = [it for it in stages if not any(is_overlap(key, other) for other in it.overrides.data)]
                message = f"`{key}` is varied, and the stage `{stage.name}` sets `{override}`"
                valid = join_names(dict.fromkeys(f"`{it.names[0]}.{key}`" for it in free or [stage]))
                validator.add_error("varied-twice", keys, message, f"{valid}, to vary it in that stage alone")
                break


def is_overlap(key: str, other: str) -> bool:
    """Return whether one of two dotted keys contains the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
