"""Digest of each kind of value: numbers, containers, tensors, objects and what wraps a function.

A digest has no addresses and no random order, so that it is equal in every process.
"""

from __future__ import annotations

import collections
import contextvars
import copyreg
import dataclasses
import enum
import functools
import logging
import re
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from paribus.registry.function_code import combine, digest_code
from paribus.storage.packages import find_package

if TYPE_CHECKING:
    from paribus.registry.component_values import Walk

HEAP_TYPE: Final = 1 << 9  # flag of a class that was made at run time, by a `class` statement or a C module
SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, bytearray, type(Ellipsis), type(NotImplemented))
_NUMBERS: Final = (bool, int, float, complex, str, bytes)
_CONTAINERS: Final = (tuple, list, dict, set, frozenset, types.MappingProxyType)
_OPAQUE: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, weakref.ProxyType)
_MISSING: Final = object()
_COPIES: Final = ("__reduce_ex__", "__reduce__", "__getstate__")


class UndigestedError(Exception):
    """A value without a digest."""


def digest_value(walk: Walk, value: Any, place: str) -> bytes:
    """Return the digest of a value that is no class, function or module; `walk` digests what it refers to."""
    for types_, digest in _DIGESTS:
        if isinstance(value, types_):
            return digest(walk, value, place)
    kind = type(value)
    arguments = getattr(value, "__args__", None) if kind.__module__ in ("typing", "types") else None
    if isinstance(arguments, tuple):
        return walk.all("generic", (getattr(value, "__origin__", None), *arguments), place)
    if kind.__module__ == "typing":
        return _typing(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, _torch_types(torch)):
        return _torch(value, torch)
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _array(walk, value, place)
    return _object(walk, value, place)


def digest_scalar(walk: Walk, value: Any) -> bytes:
    if isinstance(value, str):
        value = walk.relative(value)
        return combine("str", value.encode(errors="surrogatepass"))
    if isinstance(value, float):
        return combine("float", value.hex().encode())
    return combine(type(value).__name__, repr(value).encode())


def _typing(value: Any) -> bytes:
    text = repr(value)
    if " at 0x" in text:
        raise UndigestedError("has an address instead of a value")
    return combine(type(value).__name__, text.encode())


def _torch(value: Any, torch: Any) -> bytes:
    if isinstance(value, torch.Generator):
        return combine("generator", bytes(value.get_state().numpy().tobytes()))
    if not isinstance(value, torch.Tensor):
        return combine(type(value).__name__, str(value).encode())
    header = f"{value.dtype} {tuple(value.shape)} {value.requires_grad} {name_of(type(value))}".encode()
    if value.is_meta:
        return combine("tensor", header)
    try:
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UndigestedError(f"is a tensor without plain values ({error})") from None
    return combine("tensor", header, data)


def _array(walk: Walk, value: Any, place: str) -> bytes:
    header = f"{value.dtype!r} {value.shape} {type(value).__name__}".encode()
    if hasattr(value, "mask"):
        header += sys.modules["numpy"].ma.getmaskarray(value).tobytes()
    if value.dtype.hasobject:
        return combine("array", header, walk.digest(value.tolist(), place))
    return combine("array", header, value.tobytes())


def _set(walk: Walk, value: Any, place: str) -> bytes:
    """Digest a set: each element by itself, since a cycle would have another beginning in another order."""
    digests, elements = walk.digests, []
    for element in value:
        if type(element) not in SCALARS:
            walk.digests = dict(digests)
        elements.append(walk.digest(element, place))
    walk.digests = digests
    return _with_state(walk, value, place, combine("set", *sorted(elements)))


def _mapping(walk: Walk, value: Any, place: str) -> bytes:
    if value is copyreg.dispatch_table:  # to which any module that is imported may add
        return combine("dispatch table")
    items = dict.items(value) if isinstance(value, dict) else value.items()
    parts = [part for key, item in items for part in (walk.digest(key, place), _item(walk, key, item, place))]
    return _with_state(walk, value, place, combine("mapping", *parts))


def _item(walk: Walk, key: object, item: Any, place: str) -> bytes:
    if isinstance(key, str):
        item = _without_ids(key, item)
    return walk.digest(item, f"{place}[{key!r}]" if isinstance(key, str | int) else place)


def _with_state(walk: Walk, value: Any, place: str, content: bytes) -> bytes:
    """Add the class and the attributes of an instance of a subclass of a container or number."""
    kind = type(value)
    name = combine(kind.__name__) if kind in _CONTAINERS else walk.digest(kind, place)
    state = _state(walk, value, place)
    if isinstance(value, collections.defaultdict):
        state = combine("factory", state, walk.digest(value.default_factory, place))
    return combine("container", name, content, state)


def _number(walk: Walk, value: Any, place: str) -> bytes:
    base: Any = next(base for base in _NUMBERS if isinstance(value, base))
    return _with_state(walk, value, place, digest_scalar(walk, base.__new__(base, value)))


def _enum(walk: Walk, value: enum.Enum, place: str) -> bytes:
    return combine(
        "enum",
        walk.digest(type(value), place),
        value.name.encode() if value.name else b"",
        walk.digest(value.value, place),
    )


def _partial(walk: Walk, value: Any, place: str) -> bytes:
    keywords = walk.fields("keywords", value.keywords.items(), place)
    return combine("partial", walk.digest(value.func, place), walk.all("arguments", value.args, place), keywords)


def _wrapper(walk: Walk, value: Any, place: str) -> bytes:
    """Digest what a descriptor or decorator holds, without what it has cached."""
    wrapped = value.func if isinstance(value, functools.cached_property) else getattr(value, "__wrapped__", None)
    return walk.all(type(value).__name__, (wrapped if wrapped is not None else value.__func__,), place)


def _builtin(walk: Walk, value: Any, place: str) -> bytes:
    owner = value.__self__ if hasattr(value, "__self__") else None
    has_owner = owner is not None and not isinstance(owner, types.ModuleType)
    return combine("builtin", name_of(value).encode(), walk.digest(owner, place) if has_owner else b"")


def _context(walk: Walk, value: contextvars.ContextVar[Any], place: str) -> bytes:
    try:
        content = walk.digest(value.get(), place)
    except LookupError:
        content = b""
    return combine("context", value.name.encode(), content)


def _cell(walk: Walk, value: types.CellType, place: str) -> bytes:
    try:
        return walk.part(value.cell_contents, place)
    except ValueError:
        return combine("empty cell")


def _field(walk: Walk, value: Any, place: str) -> bytes:
    items = value.default, value.default_factory, value.init, value.kw_only, value.metadata
    return combine(
        "field",
        value.name.encode(),
        *(combine("missing") if item is dataclasses.MISSING else walk.digest(item, place) for item in items),
    )


def _object(walk: Walk, value: Any, place: str) -> bytes:
    """Digest any other object: its class, and its attributes or the way in which it is copied."""
    kind = type(value)
    if (known := _known_object(walk, value, place)) is not None:
        return known
    has_state = hasattr(value, "__dict__") or any("__slots__" in vars(base) for base in kind.__mro__)
    is_plain = not (_is_copied_by_itself(kind) and walk.is_library(find_package(kind.__module__.partition(".")[0])))
    if kind.__flags__ & HEAP_TYPE and has_state and is_plain and not isinstance(value, _OPAQUE):
        return combine("object", walk.digest(kind, place), _state(walk, value, place))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reduced = value.__reduce_ex__(4)
    except RecursionError:
        raise
    except Exception:
        raise UndigestedError from None
    if isinstance(reduced, str):
        return combine("reduced", walk.digest(kind, place), reduced.encode())
    parts = [list(part) if index > 2 and part is not None else part for index, part in enumerate(reduced)]
    return walk.all("reduced", parts, place)


def _known_object(walk: Walk, value: Any, place: str) -> bytes | None:
    """Return the digest of an object of a library whose attributes differ between processes, or None."""
    if type(value).__module__ == "loguru._logger":
        return combine("logger")  # prints, and computes nothing
    if value is getattr(sys.modules.get("numpy.random.mtrand"), "_rand", _MISSING):
        return combine("random state")  # of the process, from which scipy draws: it is seeded for each trial
    if type(value).__module__.startswith("numba."):
        dispatcher = getattr(value, "_dispatcher", value)
        if hasattr(dispatcher, "py_func"):  # what was compiled of it has random names
            parts = type(value), dispatcher.py_func, getattr(dispatcher, "targetoptions", None)
            return walk.all("compiled", parts, place)
    return None


def _state(walk: Walk, value: Any, place: str) -> bytes:
    kept = getattr(value, "__dict__", None) or {}
    fields = {name: item for name, item in kept.items() if not _is_cached(type(value), name)}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            mangled = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name
            with suppress(AttributeError):
                if mangled not in ("__dict__", "__weakref__"):
                    fields[mangled] = object.__getattribute__(value, mangled)
    named = ((str(name), _without_ids(str(name), item)) for name, item in fields.items())
    return walk.fields("state", named, place) if fields else b""


@lru_cache(maxsize=1)
def _torch_types(torch: Any) -> tuple[type, ...]:
    return (torch.Tensor, torch.Generator, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)


def _is_copied_by_itself(kind: type) -> bool:
    """Return whether a class says how its objects are copied: they may have state that no attribute shows."""
    return any(getattr(kind, name, None) is not getattr(object, name, None) for name in _COPIES)


def _without_ids(name: str, value: Any) -> Any:
    """Return the hooks of a module of torch without their ids, which count the hooks of the process."""
    return [*value.values()] if name.endswith("_hooks") and isinstance(value, dict) else value


def _is_cached(kind: type, name: object) -> bool:
    """Return whether an attribute of an object is a result that a property has kept."""
    return isinstance(name, str) and isinstance(getattr(kind, name, None), functools.cached_property)


def name_of(value: Any) -> str:
    """Return the name under which a class or function is known, without the name of the module of a plugin's file."""
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
    qualname = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
    return qualname if not isinstance(module, str) or module.startswith("paribus_file_") else f"{module}.{qualname}"


_Digest = Callable[[Any, Any, str], bytes]
_DIGESTS: Final[tuple[tuple[Any, _Digest], ...]] = (
    (types.MethodType, lambda walk, value, place: walk.all("method", (value.__func__, value.__self__), place)),
    (enum.Enum, _enum),
    (_NUMBERS, _number),
    ((functools.partial, functools.partialmethod), _partial),
    (property, lambda walk, value, place: walk.all("property", (value.fget, value.fset, value.fdel), place)),
    ((classmethod, staticmethod, functools.cached_property, functools._lru_cache_wrapper), _wrapper),
    ((types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType), _builtin),
    (
        (
            types.MethodDescriptorType,
            types.ClassMethodDescriptorType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
        ),
        lambda walk, value, place: combine("descriptor", name_of(value).encode()),
    ),
    (types.CodeType, lambda walk, value, place: digest_code(value)),
    (types.CellType, _cell),
    (contextvars.ContextVar, _context),
    ((tuple, list), lambda walk, value, place: _with_state(walk, value, place, walk.all("sequence", value, place))),
    ((set, frozenset), _set),
    ((dict, types.MappingProxyType), _mapping),
    (PurePath, lambda walk, value, place: combine("path", walk.relative(str(value)).encode())),
    (re.Pattern, lambda walk, value, place: combine("pattern", repr((value.pattern, value.flags)).encode())),
    (dataclasses.Field, _field),
    (
        (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
        lambda walk, value, place: combine("lock", type(value).__name__.encode()),
    ),
    (
        (logging.Logger, logging.LoggerAdapter),
        lambda walk, value, place: combine("logger"),
    ),  # prints, and computes nothing
    (weakref.ReferenceType, lambda walk, value, place: combine("reference", walk.digest(value(), place))),
    (  # a cache, as of `functools.singledispatch`
        (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
        lambda walk, value, place: combine("weak", type(value).__name__.encode()),
    ),
)
