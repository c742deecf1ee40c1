"""Run-time reads: functions and objects of libraries that give what no source code determines."""

from __future__ import annotations

import sys
import types
from typing import Any, Final

_READS: Final = """
    builtins: open input exec eval __import__ globals; sys: modules argv; io: open;
    os: environ environb getenv getenvb getpid urandom popen;
    importlib: import_module; runpy: run_path run_module; subprocess: run check_output Popen; socket: gethostname;
    time: time time_ns; secrets: token_hex token_bytes randbelow; uuid: uuid1 uuid4; urllib.request: urlopen;
    torch: load; numpy: load loadtxt fromfile genfromtxt memmap
"""
READING_MODULES: Final = frozenset(entry.split(":")[0].strip() for entry in _READS.split(";")) | {"random", "datetime"}
_METHODS: Final = (types.MethodType, types.BuiltinMethodType)


def reader_ids() -> frozenset[int]:
    """Return the ids of functions and objects of libraries that give what no source code determines."""
    ids: set[int] = set()
    for entry in _READS.split(";"):
        module, names = entry.split(":")
        loaded = sys.modules.get(module.strip())
        ids.update(id(vars(loaded)[name]) for name in names.split() if loaded is not None and name in vars(loaded))
    return frozenset(ids)


def reads_state(value: Any) -> bool:
    """Return whether a value is a method of a clock or of a library's random state."""
    owner = getattr(value, "__self__", None) if isinstance(value, _METHODS) else None
    if owner is None or isinstance(owner, types.ModuleType):
        return False
    if reads_the_clock(owner):
        return value.__name__ in ("now", "utcnow", "today")
    states = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))
    is_random = any(owner is getattr(sys.modules.get(module), name, None) for module, name in states)
    return is_random and value.__name__ not in ("seed", "getstate", "setstate")


def reads_the_clock(value: Any) -> bool:
    """Return whether a value is a class whose methods read the clock."""
    datetime = sys.modules.get("datetime")
    return datetime is not None and (value is datetime.datetime or value is datetime.date)
