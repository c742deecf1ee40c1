"""The stages of a study: what each trains, and what it begins from; a stage with several tasks is as many."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from paribus.errors import closest_match, join_names
from paribus.specs.fields import KEYS, META
from paribus.specs.override import put
from paribus.specs.tree import Keys, Tree, copied, shown
from paribus.specs.values import Validator

OWN: Final = ("from", "budget", "tasks")  # what a stage says besides keys of a spec
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_FROM: Final = ("name", "vocabulary")


@final
@dataclass(frozen=True)
class Stage:
    """One training that every variant goes through; `finetune/sections` is a task of the stage `finetune`."""

    name: str = ""  # empty for the only training of a study without stages
    parent: str = ""  # the stage whose trial, of the same variant and seed, it begins from
    vocabulary: str = "kept"
    budget: Mapping[str, float] = field(default_factory=dict)
    overrides: Tree = field(default_factory=Tree)  # keys of a spec, dotted or not, over those of the base

    @property
    def names(self) -> tuple[str, ...]:
        """How a varied key begins that is meant for this stage alone, and for all tasks beside it."""
        stage, _, task = self.name.partition("/")
        return (stage, task) if task else (stage,)

    def put(self, tree: Tree) -> None:
        """What the stage says, over what the base does."""
        for key, value in self.overrides.data.items():
            where = self.overrides.where((key,))
            below = {keys[1:]: mark for keys, mark in self.overrides.marks.items() if keys[:1] == (key,)}
            put(tree, key, Tree(copied(value), below or {(): where}), where)


SINGLE_STAGE: Final = (Stage(),)


def key_in_stage(key: str, stage: Stage, stages: Sequence[Stage]) -> str | None:
    """A varied key as the spec of this stage has it; None where it is meant for another.

    `pretrain.objective` is for the stage `pretrain`, `finetune.sections.optimizer.lr` for one of its tasks, and
    `attention` is for all.
    """
    words = key.split(".")
    if not any(words[0] == each.names[0] for each in stages if each.name):
        return key
    task = len(words) > 1 and any(each.names == tuple(words[:2]) for each in stages)
    meant = tuple(words[: 1 + task])
    return ".".join(words[len(meant) :]) if stage.names[: len(meant)] == meant else None


def parse_stages(validator: Validator, given: Any, budget: Any) -> tuple[Stage, ...]:
    """The stages as they are written; `budget` reads one, and a stage without one has the study's."""
    if given is None:
        return SINGLE_STAGE
    found = validator.mapping(given, ("stages",), "stages: {pretrain: {…}, finetune: {from: pretrain, …}}") or {}
    if not found:
        validator.add_error("empty", ("stages",), "this study has no stage", "stages: {pretrain: {…}, finetune: {…}}")
    stages: list[Stage] = []
    for name, node in found.items():
        keys = ("stages", name)
        if not _NAME.fullmatch(str(name)) or name in (*KEYS, *META, *OWN):
            why = ": a spec has a key of that name" if name in KEYS else ""
            what = f"`{name}` cannot be the name of a stage{why}"
            validator.add_error("bad-name", keys, what, "a word of its own: pretrain, finetune")
        stages += _legs(validator, str(name), validator.mapping(node, keys, join_names(OWN)) or {}, stages, budget)
    return tuple(stages) or SINGLE_STAGE


def _legs(
    validator: Validator, name: str, node: Mapping[str, Any], before: Sequence[Stage], budget: Any
) -> Iterator[Stage]:
    """A stage, or each of its tasks."""
    keys: Keys = ("stages", name)
    begins, vocabulary = _begins(validator, node, keys, before)
    own = {key: value for key, value in node.items() if key not in OWN}
    if begins == "" and "from" in node:
        own["from"] = node["from"]  # a saved model, as in any spec, or none, whatever the base begins from
    plain = Stage(name, begins, vocabulary, budget(node.get("budget"), (*keys, "budget")), _tree(validator, own, keys))
    if node.get("tasks") is None:
        yield plain
        return
    tasks = validator.mapping(node["tasks"], (*keys, "tasks"), "tasks: {NAME: {objective: …, corpus: …}}") or {}
    if not tasks:
        validator.add_error(
            "empty", (*keys, "tasks"), "this stage has no task", "tasks: {NAME: {objective: …, corpus: …}}"
        )
    for task, more in tasks.items():
        at = (*keys, "tasks", task)
        if not _NAME.fullmatch(str(task)) or task in (*KEYS, *META, *OWN):
            validator.add_error("bad-name", at, f"`{task}` cannot be the name of a task", "a word of its own")
        said = validator.mapping(more, at, "keys of a spec, and budget") or {}
        for key in ("from", "tasks"):
            if key in said:
                validator.add_error(
                    "not-read", (*at, key), f"`{key}` is the stage's to say", "budget, and keys of a spec"
                )
        tree = Tree({**plain.overrides.data}, dict(plain.overrides.marks))
        mine = _tree(validator, {key: value for key, value in said.items() if key not in OWN}, at)
        tree.data |= mine.data
        tree.marks |= mine.marks
        spent = budget(said["budget"], (*at, "budget")) if "budget" in said else plain.budget
        yield Stage(f"{name}/{task}", begins, vocabulary, spent, tree)


def _begins(validator: Validator, node: Mapping[str, Any], keys: Keys, before: Sequence[Stage]) -> tuple[str, str]:
    """The stage that this one begins from: the one that it names, or the one before it; `from: null` is none."""
    known = [stage.name for stage in before]
    at = (*keys, "from")
    if "from" not in node:
        last = {stage.names[0] for stage in before[-1:]}
        several = [stage.name for stage in before if stage.names[0] in last]
        if len(several) > 1:
            what = "the stage before has several tasks, and which of them this one begins from is not said"
            validator.add_error("missing", at, what, join_names((*several, "null")))
        return (known[-1] if known else ""), "kept"
    given = node["from"]
    name = given.get("name") if isinstance(given, Mapping) else given
    if name in known:
        if isinstance(given, Mapping):
            for key in given:
                if key not in _FROM:
                    validator.unknown(key, (*at, key), _FROM)
        vocabulary = given.get("vocabulary", "kept") if isinstance(given, Mapping) else "kept"
        if vocabulary not in ("kept", "new"):
            validator.add_error("wrong-type", (*at, "vocabulary"), f"this is {shown(vocabulary)}", "kept, new")
        return str(name), str(vocabulary)
    tasks = [stage for stage in known if stage.startswith(f"{name}/")]
    if tasks:
        validator.add_error("ambiguous", at, f"the stage `{name}` has several tasks", join_names(tasks))
    elif isinstance(name, str) and _NAME.fullmatch(name) and validator.tree.data["stages"].get(name) is not None:
        what = f"the stage `{name}` does not come before this one"
        validator.add_error("out-of-order", at, what, join_names(known) or "a saved model's folder, or nothing")
    elif isinstance(name, str) and known and closest_match(name, known):
        validator.add_error(
            "unknown-stage", at, f'unknown stage "{name}"', join_names(known), closest_match(name, known)
        )
    return "", "kept"


def _tree(validator: Validator, own: Mapping[str, Any], keys: Keys) -> Tree:
    marks = {at[len(keys) :]: mark for at, mark in validator.tree.marks.items() if at[: len(keys)] == keys}
    return Tree(dict(own), marks)


def parse_metric_stage(validator: Validator, found: Mapping[str, Any], stages: Sequence[Stage]) -> str:
    """The stage and task that the metric is of: the last one, where that is the only one that can be meant."""
    names = [stage.name for stage in stages]
    asked = [found[key] for key in ("stage", "task") if found.get(key) is not None]
    if not asked:
        last = [name for name in names if name.partition("/")[0] == names[-1].partition("/")[0]]
        if len(last) > 1:
            what = f"the stage `{last[0].partition('/')[0]}` has several tasks, and whose metric this is, is not said"
            valid = join_names(f"stage: {name.replace('/', ', task: ')}" for name in last)
            validator.add_error("missing", ("metric", "task"), what, valid)
        return names[-1]
    if names == [""]:
        what = "this study has no stages, so this would be ignored"
        validator.add_error("not-read", ("metric", "stage" if "stage" in found else "task"), what, "stages: {…}")
        return ""
    said = "/".join(map(str, asked))
    if found.get("stage") is None:
        meant, key, why = [name for name in names if name.partition("/")[2] == said], "stage", "stages have a task"
    else:
        meant = [name for name in names if name == said] or [name for name in names if name.startswith(f"{said}/")]
        key, why = "task", "tasks are of the stage"
    if len(meant) == 1:
        return meant[0]
    valid = join_names(f"stage: {name.replace('/', ', task: ')}" for name in meant or names)
    if meant:
        what = f"several {why} `{said}`, and whose metric this is, is not said"
        validator.add_error("missing", ("metric", key), what, valid)
    else:
        what = f"there is no `{said}` in this study"
        at = ("metric", "stage" if "stage" in found else "task")
        validator.add_error("unknown-stage", at, what, valid, closest_match(said, names))
    return names[-1]


def check_stage_names(validator: Validator, stages: Sequence[Stage], varied: Sequence[tuple[Keys, str]]) -> None:
    """A varied key that begins with a word which is neither a stage's nor a spec's was meant for a stage."""
    words = list(dict.fromkeys(stage.names[0] for stage in stages if stage.name))
    for at, key in varied if words else ():
        first, dot, _ = key.partition(".")
        if dot and first not in (*words, *KEYS, *META):
            what = f'unknown stage "{first}"'
            near = closest_match(first, words)
            validator.add_error(
                "unknown-stage", at, what, f"{join_names(words)}, or a key of a spec for all of them", near
            )


def check_stage_keys(validator: Validator, stages: Sequence[Stage], varied: Sequence[tuple[Keys, str]]) -> None:
    """A varied key that a stage has its own value for would be ignored there, or undo what the stage says."""
    for at, key in varied:
        for stage in stages:
            here = key_in_stage(key, stage, stages) or ""
            if stage.parent and here.partition(".")[0] == "from":
                what = f"the stage `{stage.name}` begins from `{stage.parent}` in every variant, so this is not read"
                validator.add_error("not-read", at, what, "a study of its own, whose stage says `from: null`")
                break
            if key_in_stage(key, stage, stages) != key or not stage.name:
                continue
            own = next((each for each in stage.overrides.data if _overlap(key, each)), None)
            if own is not None:
                free = [each for each in stages if not any(_overlap(key, other) for other in each.overrides.data)]
                what = f"`{key}` is varied, and the stage `{stage.name}` says its own `{own}`"
                valid = join_names(dict.fromkeys(f"`{each.names[0]}.{key}`" for each in free or [stage]))
                validator.add_error("varied-twice", at, what, f"{valid}, to vary it in that stage alone")
                break


def _overlap(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
