"""Cache of validated values: most values of a study's many specs are the same object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from paribus.specs.spec_view import Violation
from paribus.specs.tree import Keys
from paribus.specs.values import Validator

NO_DIMS: Final[Mapping[str, Any]] = {}  # for values that depend on no sizes


@final
class ReadingCache:
    """Cache of values without problems. Values with problems are read again, so that each is reported where it is.

    Values are identified by `id`; the cache keeps a reference to each, so that no other value gets the same id.
    """

    def __init__(self) -> None:
        self.none: dict[str, Any] = {}  # the shared empty value of a missing key
        self._found: dict[tuple[object, ...], tuple[Any, Any, Any]] = {}
        self._passed: dict[object, dict[int, Any]] = {}
        self._judged: dict[tuple[object, ...], tuple[Any, Sequence[Violation]]] = {}

    def read(
        self, validator: Validator, keys: Keys, value: Any, dims: Mapping[str, Any], read_value: Callable[[], Any]
    ) -> Any:
        """Return the result of `read_value`, which depends only on the value at `keys`, the dims and the index."""
        if not isinstance(value, (dict, list, str)):
            return read_value()
        key = (keys, id(value), id(dims))
        cached = self._found.get(key)
        if cached is None:  # an equal value may be cached
            equal_key = (keys, repr(value), id(dims))
            result = self._found[equal_key][2] if equal_key in self._found else read_value()
            if validator.problems:  # perhaps of this value
                return result
            self._found[key] = self._found[equal_key] = cached = value, dims, result
        return cached[2]

    def violations(
        self, visible: Mapping[str, Any], find_violations: Callable[[], Sequence[Violation]]
    ) -> Sequence[Violation]:
        """Return the violations of the rules in the visible part of a spec."""
        key = (*visible, *(id(value) if value else repr(value) for value in visible.values()))
        cached = self._judged.get(key)
        if cached is None:
            self._judged[key] = cached = [*visible.values()], find_violations()
        return cached[1]

    def contains(self, value: Any, matches: Callable[[str], bool], *, key: bool = False) -> bool:
        """Return whether any text in a value, or any key if `key` is set, matches a predicate.

        Values without a match are cached for each predicate.
        """
        if isinstance(value, str):
            return not key and matches(value)
        checked = self._passed.setdefault(matches, {})
        if not isinstance(value, (dict, list)) or id(value) in checked:
            return False
        if isinstance(value, dict) and key and any(map(matches, value)):
            return True
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, str):
                if not key and matches(item):
                    return True
            elif isinstance(item, (dict, list)) and id(item) not in checked and self.contains(item, matches, key=key):
                return True
        checked[id(value)] = value
        return False
