"""Differences between two resolved specs, and comparison with the values of a study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from paribus.specs.program_spec import is_program

WITHOUT_EFFECT = (("data", "workers"), ("from", "name"), ("from", "learned"), ("teacher", "name"))
"""Options of a spec that have no effect on a trial."""
FREE: Final = tuple(".".join(keys) for keys in WITHOUT_EFFECT)


@final
class Missing:
    """The value of a key that one of two specs does not have."""

    def __repr__(self) -> str:
        return "missing"


MISSING: Final = Missing()


class Difference(NamedTuple):
    """A value that differs between two specs."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"`{self.path}` is {_shown(self.before)} in one and {_shown(self.after)} in the other"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield the values that differ, with their dotted paths; options of a spec without effect are skipped.

    The options of a program all have effects, whatever their names.
    """
    free = () if isinstance(before, Mapping) and is_program(before) else FREE
    yield from _differences(before, after, path, free)


def _differences(before: Any, after: Any, path: str, free: Sequence[str]) -> Iterator[Difference]:
    if path in free:
        return
    branches = _branches(before), _branches(after)
    if any(branches) and all(
        branch is not None or value is MISSING for branch, value in zip(branches, (before, after), strict=True)
    ):
        left, right = (branch or {} for branch in branches)
        for key in {**left, **right}:
            inner = f"{path}.{key}" if path else key
            yield from _differences(left.get(key, MISSING), right.get(key, MISSING), inner, free)
    elif not _same(before, after):
        yield Difference(path, before, after)


def covered(path: str, keys: Iterable[str]) -> bool:
    """Return whether `path` is one of `keys` or below one, also as a path of the spec that a part inherits from."""
    return any(key == it or it.startswith(f"{key}.") for key in keys for it in (path, _inherited(path)))


def touches(keys: Iterable[str], paths: Iterable[str]) -> bool:
    """Return whether one of `keys` is one of `paths`, below one, or above one."""
    inherited = [_inherited(key) for key in keys]
    return any(
        key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.") for key in inherited for path in paths
    )


def holds(value: Any, expected: Any) -> bool:
    """Return whether a resolved value is the expected one: a component by its name or by some of its options."""
    if expected is None or value is MISSING:
        return expected is None  # null leaves the choice to the resolver
    if isinstance(value, Mapping) and "paths" in value and not isinstance(expected, Mapping):
        value = value["paths"]  # `freeze: body` is short for {paths: [body]}
    if isinstance(value, list) and not isinstance(expected, list | tuple):
        return len(value) == 1 and holds(value[0], expected)
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(
            holds(value.get(key, MISSING), item) for key, item in expected.items()
        )
    if isinstance(expected, list | tuple):
        items = value if isinstance(value, list | tuple) else [value]
        return len(items) == len(expected) and all(map(holds, items, expected))
    if isinstance(value, Mapping):
        return _same(value.get("name"), expected)
    return _same(value, expected) or (isinstance(expected, str) and _may_become(expected, value))


def _inherited(path: str) -> str:
    """Return the path that a part's path inherits from: parts.decoder.cross.attention -> attention."""
    words = path.split(".")
    if words[0] == "parts" and len(words) > 2:
        words = words[3:] if words[2] == "cross" and len(words) > 3 else words[2:]
    return ".".join(words)


def _branches(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return {str(index): item for index, item in enumerate(value)}
    return None


def _same(before: Any, after: Any) -> bool:
    """Return whether two values are equal; True and 1 are not."""
    if isinstance(before, bool) != isinstance(after, bool):
        return False
    return before is after or bool(before == after) or (_branches(before) == {} and _branches(after) == {})


def _may_become(text: str, value: Any) -> bool:
    """Return whether a spec may read text as this value: `1e-3`, `${dims.width}`."""
    try:
        return "${" in text or float(text) == value
    except ValueError:
        return False


def _shown(value: Any) -> str:
    return f"{value.get('name', value)}" if isinstance(value, Mapping) else str(value)
