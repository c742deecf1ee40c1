"""What a value was read as before: most values of a study's many specs are one object, and need one reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from paribus.specs.spec_view import Violation
from paribus.specs.tree import Keys
from paribus.specs.values import Validator

NO_DIMS: Final[Mapping[str, Any]] = {}  # what the sizes themselves are read with


@final
class ReadingCache:
    """Readings of values in which nothing was wrong. What was wrong is read again, and so told of wherever it is.

    Values are known by their ids; each is kept beside what is known of it, so that no other can come to have its id.
    """

    def __init__(self) -> None:
        self.none: dict[str, Any] = {}  # what all specs have of what they say nothing of
        self._found: dict[tuple[object, ...], tuple[Any, Any, Any]] = {}
        self._passed: dict[object, dict[int, Any]] = {}
        self._judged: dict[tuple[object, ...], tuple[Any, Sequence[Violation]]] = {}

    def read(
        self, validator: Validator, keys: Keys, given: Any, dims: Mapping[str, Any], reading: Callable[[], Any]
    ) -> Any:
        """What `reading` makes of the value at `keys`, which depends on nothing but that, the sizes and the index."""
        if not isinstance(given, (dict, list, str)):
            return reading()
        key = (keys, id(given), id(dims))
        known = self._found.get(key)
        if known is None:  # it may still be spelt as one that was
            alike = (keys, repr(given), id(dims))
            found = self._found[alike][2] if alike in self._found else reading()
            if validator.problems:  # perhaps of this value, and perhaps as many as are told
                return found
            self._found[key] = self._found[alike] = known = given, dims, found
        return known[2]

    def violations(self, seen: Mapping[str, Any], judge: Callable[[], Sequence[Violation]]) -> Sequence[Violation]:
        """What `judge` says of all that it sees of a spec."""
        key = (*seen, *(id(value) if value else repr(value) for value in seen.values()))
        known = self._judged.get(key)
        if known is None:
            self._judged[key] = known = [*seen.values()], judge()
        return known[1]

    def contains(self, value: Any, odd: Callable[[str], bool], *, key: bool = False) -> bool:
        """Whether there is a text, or a key if that is asked, that is `odd`; what has none is not looked through again.

        `odd` is one function for one question.
        """
        if isinstance(value, str):
            return not key and odd(value)
        passed = self._passed.setdefault(odd, {})
        if not isinstance(value, (dict, list)) or id(value) in passed:
            return False
        if isinstance(value, dict) and key and any(map(odd, value)):
            return True
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, str):
                if not key and odd(item):
                    return True
            elif isinstance(item, (dict, list)) and id(item) not in passed and self.contains(item, odd, key=key):
                return True
        passed[id(value)] = value
        return False
