"""A ladder between two specs: one rung for each slot in which they differ, in an order in which every rung is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any, Final, final

from paribus.errors import ParibusError, Problem, SpecError, join_names
from paribus.registry import Index
from paribus.specs.diff import MISSING, Difference, differences
from paribus.specs.load import set_path
from paribus.specs.resolve import ReadingCache, check
from paribus.specs.tree import Tree, copy_values
from paribus.studies import designs
from paribus.studies.designs import format_value

Spec = Mapping[str, Any]

ORDER: Final = (
    *("topology", "dims", "embedding", "position", "norm", "placement", "attention", "feedforward", "parts"),
    *("dropout", "initialisation", "objective", "optimizer", "schedule", "trainer", "freeze"),
)
"""The order of rungs, where each is valid by itself."""
HELD: Final = ("corpus", "tokenizer", "data", "evaluate", "measure", "seed", "from", "teacher")
"""Keys that all rungs share with the first spec: what is read and measured, and where training starts."""
HELD_OPTIONS: Final = {"dims": ("length", "vocabulary"), "trainer": ("max_steps", "max_time")}
MAX_TOGETHER: Final = 5  # slots of one rung, before all that are left make one
COUNT_TOLERANCE: Final = 0.01  # relative difference of parameters from which rungs are matched
MAX_RUNG_NAME: Final = 40
STEPS: Final = 300  # of a spec without any
MATCHED_OPTION: Final = "feedforward.inner"


@final
@dataclass(frozen=True)
class Rung:
    """Slots that change together, since none of them alone makes a valid spec."""

    keys: tuple[str, ...]
    changes: Mapping[str, Any]  # by dotted key
    follows: tuple[str, ...] = ()  # other keys that the resolver changes with these
    parameters: int = 0
    inner: int | None = None  # inner width of the feed-forward after it

    def matched_changes(self) -> dict[str, Any]:
        """Return the changes, with the feed-forward's inner width as a number, which a study can match."""
        changes = {key: copy_values(value) for key, value in self.changes.items()}
        node = changes.get("feedforward")
        if self.inner is not None and isinstance(node, Mapping):
            changes["feedforward"] = {**node, MATCHED_OPTION.rpartition(".")[2]: self.inner}
        return changes

    @cached_property
    def name(self) -> str:
        """The slots and their components: `norm rmsnorm`, `dims layers=3`."""
        text = " + ".join(filter(None, (_change_name(key, self.changes) for key in self.keys)))
        return text if len(text) <= MAX_RUNG_NAME else " + ".join(self.keys)


@final
@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Rungs from one spec to another, and what all of them share with the first."""

    base: Tree
    rungs: tuple[Rung, ...]
    held: tuple[Difference, ...]  # in which the specs differ, and the rungs do not
    objective: str  # that both are trained with
    metric: str  # its loss
    parameters: int  # of the first spec
    inner: int | None  # inner width of its feed-forward
    groups: tuple[tuple[Rung, ...], ...] = field(default=())  # rungs that can only be left out together

    @property
    def changes_size(self) -> bool:
        """Return whether a rung has other parameters than the first spec by more than rounding."""
        return any(abs(rung.parameters / self.parameters - 1) > COUNT_TOLERANCE for rung in self.rungs)


def between(before: Tree, after: Tree, index: Index, count: Callable[[Spec], int]) -> Ladder:
    """Return the ladder from the spec `before` to the spec `after`; every rung is checked, and counted with `count`.

    The last rung is `after`, but for the keys that all rungs hold.
    """
    climb = _Climb(before, after, index, count)
    objective = climb.objective()
    rungs = climb.rungs()
    if not rungs:
        message = "the two specs differ in no slot"
        raise SpecError(Problem(code="no-difference", message=message, valid="two specs with different components"))
    return Ladder(
        base=before,
        rungs=rungs,
        held=tuple(climb.held()),
        objective=objective,
        metric=_loss_metric(objective, index),
        parameters=count(climb.first),
        inner=_inner_width(climb.first),
        groups=climb.groups(rungs),
    )


def study_documents(ladder: Ladder, *, name: str, seeds: int, match: str) -> dict[str, dict[str, Any]]:
    """Return two studies by name, of the same changes: one adds them one by one, the other leaves out each."""
    trainer = ladder.base.data.get("trainer") or {}
    shared: dict[str, Any] = {"seeds": seeds, "budget": {"steps": trainer.get("max_steps", STEPS)}}
    objectives = _nodes(ladder.base.data["objective"])
    node = next(it for it in objectives if it == ladder.objective or it.get("name") == ladder.objective)
    if any("objective" in rung.keys for rung in ladder.rungs):
        shared["evaluate"] = [copy_values(node)]
    base = {key: copy_values(value) for key, value in ladder.base.data.items() if value is not None}
    if match:
        shared["match"] = {"on": match, "by": MATCHED_OPTION}
        base = _with(Tree(base), [(MATCHED_OPTION, ladder.inner)] if ladder.inner else []).data
    shared["metric"] = {"name": ladder.metric, "better": "lower"}
    steps = [_listed([rung], match=bool(match)) for rung in ladder.rungs]
    documents = {name: {"base": base, "design": "ladder", "changes": steps, **shared}}
    if len(ladder.groups) > 1:
        groups = [_listed(group, match=bool(match)) for group in ladder.groups]
        documents[f"{name}-without"] = {"base": base, "design": "leave-one-out", "changes": groups, **shared}
    return documents


def _loss_metric(objective: str, index: Index) -> str:
    """Return the metric of an objective's loss, or else of the first term of its loss, such as a bound."""
    terms = list(index.find("objective", objective).terms)
    return f"val/{objective}/{'loss' if 'loss' in terms else terms[0]}"


def _listed(rungs: Sequence[Rung], *, match: bool) -> dict[str, Any]:
    """Return the entry of `changes` for rungs that are one change."""
    written = [rung.matched_changes() if match else copy_values(dict(rung.changes)) for rung in rungs]
    changes = {key: value for each in written for key, value in each.items()}
    name = " + ".join(rung.name for rung in rungs)
    if len(name) > designs.MAX_NAME:
        name = format_value(" + ".join(key for rung in rungs for key in rung.keys))
    return {"name": name, **changes}


@final
class _Climb:
    """The two specs, resolved, and the check of what lies between them."""

    def __init__(self, before: Tree, after: Tree, index: Index, count: Callable[[Spec], int]) -> None:
        self.index, self.count, self.cache = index, count, ReadingCache()
        self.base, self.written = before, after.data
        self.first, self.second = self._resolve(before), self._resolve(after)
        self.goal = self._resolve(_held(before, after))

    def objective(self) -> str:
        """Return the first objective that both specs are trained with."""
        names = [[node["name"] for node in _nodes(spec["objective"])] for spec in (self.first, self.goal)]
        for name in names[0]:
            if name in names[1]:
                return str(name)
        message = f"one is trained with {join_names(names[0])}, and the other with {join_names(names[1])}"
        valid = "two specs with an objective in common, so that one metric compares all rungs"
        raise SpecError(Problem(code="no-common-objective", message=message, valid=valid))

    def held(self) -> Iterator[Difference]:
        """Yield the differences between the specs that no rung has."""
        yield from differences(self.goal, self.second)

    def rungs(self) -> tuple[Rung, ...]:
        """Return the rungs; a rung has several slots where none of those left is valid by itself."""
        remaining = [key for key in (*ORDER, *self.goal) if self._differs(self.first, self.goal, key)]
        remaining = list(dict.fromkeys(remaining))
        tree, spec, rungs = self.base, self.first, []
        while remaining:
            rung, tree, spec = self._next(tree, spec, remaining)
            rungs.append(rung)
            remaining = [key for key in remaining if key not in rung.keys and self._differs(spec, self.goal, key)]
        if left := [str(difference) for difference in differences(spec, self.goal)]:
            raise RuntimeError(f"the ladder does not end at the second spec: {'; '.join(left)}")
        return tuple(rungs)

    def groups(self, rungs: Sequence[Rung]) -> tuple[tuple[Rung, ...], ...]:
        """Return the rungs, those together of which none can be left out by itself."""
        groups: list[tuple[Rung, ...]] = [(rung,) for rung in rungs]
        while (found := self._inseparable(groups)) is not None:
            merged = tuple(rung for number in found for rung in groups[number])
            groups[found[0]] = merged
            groups = [group for number, group in enumerate(groups) if number not in found[1:]]
        return tuple(groups)

    def _inseparable(self, groups: Sequence[tuple[Rung, ...]]) -> list[int] | None:
        """Return the first group that cannot be left out by itself, with the fewest others that make it possible."""
        numbers = range(len(groups))
        for number in numbers:
            if self._is_valid_without(groups, number) or len(groups) == 1:
                continue
            others = [other for other in numbers if other != number]
            sets = (it for size in range(1, len(groups)) for it in combinations(others, size))
            return sorted((number, *next(it for it in sets if self._is_valid_without(groups, number, *it))))
        return None

    def _is_valid_without(self, groups: Sequence[tuple[Rung, ...]], *left_out: int) -> bool:
        kept = [rung for number, group in enumerate(groups) if number not in left_out for rung in group]
        return self._try(_with(self.base, [change for rung in kept for change in rung.changes.items()])) is not None

    def _next(self, tree: Tree, spec: Spec, remaining: Sequence[str]) -> tuple[Rung, Tree, Spec]:
        """Return the next rung: the first slot with the fewest others that it needs, unless these are many."""
        for place, key in enumerate(remaining):
            others = [*remaining[:place], *remaining[place + 1 :]]
            for size in range(MAX_TOGETHER):
                for more in combinations(others, size):
                    if found := self._step(tree, spec, (key, *more)):
                        return found
        if found := self._step(tree, spec, remaining):
            return found
        raise RuntimeError(f"no rung leads to the second spec from {join_names(remaining)}")

    def _step(self, tree: Tree, spec: Spec, keys: Sequence[str]) -> tuple[Rung, Tree, Spec] | None:
        """Return a rung that gives these keys the values of the second spec, if it is valid."""
        for written in product(*(self._values(spec, key) for key in keys)):
            changes = {path: value for values in written for path, value in values.items()}
            reached = _with(tree, changes.items())
            resolved = self._try(reached)
            if resolved is not None and not any(self._differs(resolved, self.goal, key) for key in keys):
                follows = [key for key in resolved if key not in keys and self._differs(spec, resolved, key)]
                return (
                    Rung(tuple(keys), changes, tuple(follows), self.count(resolved), _inner_width(resolved)),
                    reached,
                    resolved,
                )
        return None

    def _values(self, spec: Spec, key: str) -> Iterator[dict[str, Any]]:
        """Yield ways to write a change of a key: the options that differ, what the second spec has, all its values."""
        goal = self.goal.get(key)
        if _is_same_component(spec.get(key), goal):
            yield {
                item.path: None if item.after is MISSING else item.after
                for item in differences(spec.get(key), goal, key)
            }
        if key in self.written and key not in HELD_OPTIONS:
            yield {key: copy_values(self.written[key])}
        yield {key: copy_values(goal)}

    def _differs(self, spec: Spec, other: Spec, key: str) -> bool:
        return next(differences(spec.get(key, MISSING), other.get(key, MISSING), key), None) is not None

    def _resolve(self, tree: Tree) -> Spec:
        """Return the resolved spec, in which the trainer's arguments that are null are left out."""
        copied = Tree(copy_values(tree.data), dict(tree.locations), list(tree.problems))
        spec = check(copied, self.index, self.cache)
        trainer = {name: value for name, value in spec["trainer"].items() if value is not None}
        return {**spec, "trainer": trainer}

    def _try(self, tree: Tree) -> Spec | None:
        try:
            spec = self._resolve(tree)
            self.count(spec)
        except ParibusError:
            return None
        return spec


def _held(before: Tree, after: Tree) -> Tree:
    """Return the second spec with the values of the first for what all rungs hold."""
    tree = Tree(
        {key: value for key, value in copy_values(after.data).items() if key not in HELD}, dict(after.locations)
    )
    for key in HELD:
        if key in before.data:
            tree.data[key] = copy_values(before.data[key])
    for key, names in HELD_OPTIONS.items():
        held = {name: value for name, value in (before.data.get(key) or {}).items() if name in names}
        own = {name: value for name, value in (tree.data.get(key) or {}).items() if name not in names}
        if own or held:
            tree.data[key] = {**own, **held}
    return tree


def _with(tree: Tree, changes: Iterable[tuple[str, Any]]) -> Tree:
    """Return a tree with changes by dotted key."""
    changed = Tree(copy_values(tree.data), dict(tree.locations), list(tree.problems))
    for key, value in changes:
        set_path(changed, key, Tree(copy_values(value)), "")
    return changed


def _is_same_component(before: Any, after: Any) -> bool:
    """Return whether two values are mappings of the same component, or of none."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return isinstance(before, (int, float, str)) and isinstance(after, (int, float, str))
    return before.get("name") == after.get("name")


def _change_name(key: str, changes: Mapping[str, Any]) -> str:
    """Return the name of the change of a slot."""
    values = {path: value for path, value in changes.items() if path == key or path.startswith(f"{key}.")}
    if list(values) != [key]:
        return f"{key} " + " ".join(
            f"{path.removeprefix(f'{key}.')}={format_value(value)}" for path, value in values.items()
        )
    value = values[key]
    names = dict.fromkeys(
        str(node.get("name", "")) if isinstance(node, Mapping) else format_value(node) for node in _nodes(value)
    )
    return f"{key} {', '.join(names)}".rstrip()


def _inner_width(spec: Spec) -> int | None:
    """Return the inner width of a feed-forward that has one, from its width or its factor."""
    node = spec.get("feedforward")
    if not isinstance(node, Mapping) or "inner" not in node:
        return None
    inner, factor = node["inner"], node.get("expand")
    return inner if inner is not None else round(factor * spec["dims"]["width"]) if factor else None


def _nodes(value: Any) -> list[Any]:
    """Return the components of a slot that takes one, or a list."""
    return value if isinstance(value, list) else [value]
