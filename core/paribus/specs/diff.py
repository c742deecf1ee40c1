"""In what two resolved specs differ, and whether a study asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final

WITHOUT_EFFECT = (("data", "workers"), ("from", "name"), ("from", "learned"), ("teacher", "name"))
"""What may change in a trial's spec: of what a kept vocabulary was learned, the model that has it answers for."""
FREE: Final = tuple(".".join(keys) for keys in WITHOUT_EFFECT)


@final
class Missing:
    """The value of a key that one of two specs does not have."""

    def __repr__(self) -> str:
        return "missing"


MISSING: Final = Missing()


class Difference(NamedTuple):
    """One value at which two specs differ."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"`{self.path}` is {_shown(self.before)} in one and {_shown(self.after)} in the other"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Value by value, in dotted paths; what has no effect on a trial is no difference."""
    if path in FREE:
        return
    branches = _branches(before), _branches(after)
    if any(branches) and all(
        branch is not None or value is MISSING for branch, value in zip(branches, (before, after), strict=True)
    ):
        one, other = (branch or {} for branch in branches)
        for key in {**one, **other}:
            inside = f"{path}.{key}" if path else key
            yield from differences(one.get(key, MISSING), other.get(key, MISSING), inside)
    elif not _same(before, after):
        yield Difference(path, before, after)


def covered(path: str, keys: Iterable[str]) -> bool:
    """Whether `path` lies at or below one of `keys`, or does so in the whole spec that its part is merged over."""
    return any(key == way or way.startswith(f"{key}.") for key in keys for way in (path, _inherited(path)))


def touches(keys: Iterable[str], places: Iterable[str]) -> bool:
    """Whether one of `keys` is one of `places`, below it, or around it."""
    bare = [_inherited(key) for key in keys]
    return any(
        key == place or key.startswith(f"{place}.") or place.startswith(f"{key}.") for key in bare for place in places
    )


def at(spec: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, `MISSING` where there is none."""
    value: Any = spec
    for key in path.split("."):
        value = (_branches(value) or {}).get(key, MISSING)
    return value


def holds(found: Any, asked: Any) -> bool:
    """Whether a resolved value is what was asked for: a component by its name, or by some of its options."""
    if asked is None or found is MISSING:
        return asked is None  # null leaves the choice to whoever resolves it
    if isinstance(found, list) and not isinstance(asked, list | tuple):
        return len(found) == 1 and holds(found[0], asked)
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(holds(found.get(key, MISSING), value) for key, value in asked.items())
    if isinstance(asked, list | tuple):
        items = found if isinstance(found, list | tuple) else [found]
        return len(items) == len(asked) and all(map(holds, items, asked))
    if isinstance(found, Mapping):
        return _same(found.get("name"), asked)
    return _same(found, asked) or (isinstance(asked, str) and _read(found, asked))


def _inherited(path: str) -> str:
    """The path of the whole spec that a part's own path is merged over: parts.decoder.cross.attention -> attention."""
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
    """Equal, and not only as Python sees True and 1."""
    if isinstance(before, bool) != isinstance(after, bool):
        return False
    return before is after or bool(before == after) or (_branches(before) == {} and _branches(after) == {})


def _read(found: Any, asked: str) -> bool:
    """Whether text that a spec reads as something else may have become this: `1e-3`, `${dims.width}`."""
    try:
        return "${" in asked or float(asked) == found
    except ValueError:
        return False


def _shown(value: Any) -> str:
    return f"{value.get('name', value)}" if isinstance(value, Mapping) else str(value)
