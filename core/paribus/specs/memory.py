"""What a value was read as before: most values of a study's many specs are one object, and need one reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from paribus.specs.tree import Keys
from paribus.specs.values import Checking


@final
class Memory:
    """Readings of values in which nothing was wrong. What was wrong is read again, and so told of wherever it is."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[Any, Any]] = {}
        self._passed: dict[tuple[object, int], Any] = {}

    def read(
        self, checking: Checking, keys: Keys, given: Any, dims: Mapping[str, Any], reading: Callable[[], Any]
    ) -> Any:
        """What `reading` makes of the value at `keys`, which depends on nothing but that, the sizes and the index."""
        whole = isinstance(given, (dict, list))
        if not whole and not isinstance(given, str):
            return reading()
        key = (keys, id(given) if whole else given, whole, *dims.values())
        if key not in self._found:
            found = reading()
            if checking.problems:  # perhaps of this value, and perhaps as many as are told
                return found
            self._found[key] = given, found  # with the value itself, so that no other can have its id
        return self._found[key][1]

    def any(self, value: Any, odd: Callable[[str], bool], *, key: bool = False) -> bool:
        """Whether there is a text, or a key if that is asked, that is `odd`; what has none is not looked through again.

        `odd` is one function for one question.
        """
        if isinstance(value, str):
            return not key and odd(value)
        if not isinstance(value, (dict, list)) or (odd, id(value)) in self._passed:
            return False
        if isinstance(value, dict) and key and any(map(odd, value)):
            return True
        if any(self.any(item, odd, key=key) for item in (value.values() if isinstance(value, dict) else value)):
            return True
        self._passed[odd, id(value)] = value
        return False
