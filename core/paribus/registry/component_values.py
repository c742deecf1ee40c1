"""Values that the code of a component depends on, as a digest: its own constants, globals, closures and defaults.

Code itself is hashed by file (`paribus.storage.code_hash`). Only a function without a readable file, as in a notebook,
is digested by its bytecode. A digest has no addresses and no random order, so that it is equal in every process.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import importlib.util
import logging
import re
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Final, final

from paribus.registry.component_index import ComponentValues
from paribus.registry.function_code import changed_globals, combine, digest_code, position, scan_code
from paribus.registry.return_types import MARK
from paribus.registry.run_time_reads import reader_ids, reads_state, reads_the_clock
from paribus.storage.code_hash import CodeHashes, source_root
from paribus.storage.packages import Package, find_package, package_of_file

LEVELS: Final = 400  # of values in each other
FRAMES: Final = 10  # of this module for each level
_HEAP_TYPE: Final = 1 << 9  # flag of a class that a `class` statement made
_READING_SLOTS: Final = frozenset({"corpus", "tokenizer", "launcher"})  # have a fingerprint, or compute nothing
_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, bytearray, type(Ellipsis), type(NotImplemented))
_NUMBERS: Final = (bool, int, float, complex, str, bytes)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)
_BUILTINS: Final = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
_DESCRIPTORS: Final = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_MISSING: Final = object()
_UNUSED: Final = (  # attributes of a class that compute nothing, or repeat what is digested
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__qualname__", "__firstlineno__", "__static_attributes__", "__parameters__",
    "__type_params__", "__orig_bases__", "__abstractmethods__", "_abc_impl", "__dataclass_params__",
    "__conditional_annotations__", "__hash__", "__slotnames__",
    "__protocol_attrs__", "__non_callable_proto_members__", "__callable_proto_members_only__", "_is_protocol",
    "_is_runtime_protocol", "_backward_cls",
)  # fmt: skip
_GENERATED: Final = (  # methods of a dataclass
    "__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__", "__hash__",
    "__replace__",
)  # fmt: skip
_COMPILED: Final = "_torchdynamo_orig_callable"
_COPIES: Final = ("__reduce_ex__", "__reduce__", "__getstate__")
_MODULE_NAMES: Final = (
    "__name__", "__doc__", "__spec__", "__package__", "__loader__", "__builtins__", "__annotations__",
)  # fmt: skip


def component_values(component: type, slot: str = "", hashes: CodeHashes | None = None) -> ComponentValues:
    """Return the values that a class depends on, and the files that its code comes from."""
    walk = _Walk(component, slot, hashes or CodeHashes())
    return walk.values()


class _Undigested(Exception):  # noqa: N818  # caught in this module
    """A value without a digest."""


@final
class _Walk:
    """Digests of everything that a class reaches, each computed once."""

    def __init__(self, component: type, slot: str, hashes: CodeHashes) -> None:
        self.component, self.slot, self.hashes = component, slot, hashes
        self.files: set[str] = set()
        self.versions: set[str] = set()
        self.reasons: dict[str, None] = {}
        self.parts: dict[str, str] = {}
        self.is_complete = True
        self._digests: dict[int, tuple[object, bytes]] = {}  # with the object, so that its id stays its own
        self._depths: dict[int, int] = {}  # of what is being digested
        self._roots: dict[str, None] = {}
        self._known_files: dict[str, Path | None] = {}
        self._readers = reader_ids()

    def values(self) -> ComponentValues:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + LEVELS * FRAMES)
        try:
            digest = self.digest(self.component, self.component.__qualname__)
        except Exception as error:  # of the user's code, such as the iterator of a container
            self.is_complete, digest = False, b""
            self.reasons[f"its values cannot be compared ({type(error).__name__}: {error})"] = None
        finally:
            sys.setrecursionlimit(limit)
        return ComponentValues(
            digest=digest.hex(),
            files=tuple(sorted(self.files)),
            versions=tuple(sorted(self.versions)),
            reasons=tuple(self.reasons),
            is_complete=self.is_complete,
            parts=self.parts,
        )

    def digest(self, value: Any, place: str) -> bytes:
        """Return the digest of a value; `place` names it in messages."""
        if type(value) in _SCALARS:
            return self._scalar(value)
        key = id(value)
        if key in self._digests:
            return self._digests[key][1]
        if key in self._depths:  # a cycle: the distance to the object in it, which is the same in every process
            return combine("cycle", str(len(self._depths) - self._depths[key]).encode())
        self._depths[key] = len(self._depths)
        try:
            if len(self._depths) > LEVELS:
                raise _Undigested("is nested too deeply to be compared")
            result = self._compound(value, place)
        except _Undigested as error:
            self.is_complete = False
            message = str(error) or f"is a {_name(type(value))}, which has no value to compare"
            self.reasons[f"`{place}` {message}"] = None
            result = combine("undigested", _name(type(value)).encode())
        finally:
            del self._depths[key]
        self._digests[key] = value, result
        return result

    def _scalar(self, value: Any) -> bytes:
        if isinstance(value, str):
            value = self._relative(value)
            return combine("str", value.encode(errors="surrogatepass"))
        if isinstance(value, float):
            return combine("float", value.hex().encode())
        return combine(type(value).__name__, repr(value).encode())

    def _relative(self, text: str) -> str:
        """Return a path without the folder of the code, which is another one on another machine."""
        for root in self._roots if "/" in text or "\\" in text else ():
            if text == root or text.startswith((f"{root}/", f"{root}\\")):
                return f"<code>{text[len(root) :]}"
        return text

    def _all(self, tag: str, values: Iterable[Any], place: str) -> bytes:
        return combine(tag, *(self.digest(value, place) for value in values))

    def _fields(self, tag: str, fields: Iterable[tuple[str, Any]], place: str) -> bytes:
        """Return the digest of named values, in the order of their names."""
        return combine(
            tag,
            *(
                part
                for name, value in sorted(fields, key=lambda field: field[0])
                for part in (name.encode(), self._part(value, f"{place}.{name}" if place else name))
            ),
        )

    def _part(self, value: Any, place: str) -> bytes:
        """Return the digest of a value that a message can name."""
        result = self.digest(value, place)
        if not callable(value) and not isinstance(value, _WITHOUT_VALUE):
            self.parts[place] = result[:4].hex()
        return result

    def _compound(self, value: Any, place: str) -> bytes:
        kind = type(value)
        for types_, method in _HANDLERS:
            if isinstance(value, types_):
                return method(self, value, place)
        arguments = getattr(value, "__args__", None) if kind.__module__ in ("typing", "types") else None
        if isinstance(arguments, tuple):
            return self._all("generic", (getattr(value, "__origin__", None), *arguments), place)
        if kind.__module__ == "typing":
            return self._checked(kind.__name__, repr(value))
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, _torch_types(torch)):
            return self._torch(value, torch)
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return self._array(value, place)
        return self._object(value, place)

    def _checked(self, tag: str, text: str) -> bytes:
        if " at 0x" in text:
            raise _Undigested("has an address instead of a value")
        return combine(tag, text.encode())

    def _torch(self, value: Any, torch: Any) -> bytes:
        if isinstance(value, torch.Generator):
            return combine("generator", bytes(value.get_state().numpy().tobytes()))
        if not isinstance(value, torch.Tensor):
            return combine(type(value).__name__, str(value).encode())
        header = f"{value.dtype} {tuple(value.shape)} {value.requires_grad} {_name(type(value))}".encode()
        if value.is_meta:
            return combine("tensor", header)
        try:
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise _Undigested(f"is a tensor without plain values ({error})") from None
        return combine("tensor", header, data)

    def _array(self, value: Any, place: str) -> bytes:
        header = f"{value.dtype.str} {value.shape} {type(value).__name__}".encode()
        if value.dtype.hasobject:
            return combine("array", header, self.digest(value.tolist(), place))
        return combine("array", header, value.tobytes())

    def _sequence(self, value: Any, place: str) -> bytes:
        return self._with_state(value, place, self._all("sequence", value, place))

    def _set(self, value: Any, place: str) -> bytes:
        """Digest a set: each element by itself, since a cycle would have another beginning in another order."""
        digests, elements = self._digests, []
        for element in value:
            if type(element) not in _SCALARS:
                self._digests = dict(digests)
            elements.append(self.digest(element, place))
        self._digests = digests
        return self._with_state(value, place, combine("set", *sorted(elements)))

    def _mapping(self, value: Any, place: str) -> bytes:
        items = dict.items(value) if isinstance(value, dict) else value.items()
        parts = [part for key, item in items for part in (self.digest(key, place), self._item(key, item, place))]
        return self._with_state(value, place, combine("mapping", *parts))

    def _item(self, key: object, item: Any, place: str) -> bytes:
        if isinstance(key, str):
            item = _without_ids(key, item)
        return self.digest(item, f"{place}[{key!r}]" if isinstance(key, str | int) else place)

    def _with_state(self, value: Any, place: str, content: bytes) -> bytes:
        """Add the class and the attributes of an instance of a subclass of a container or number."""
        kind = type(value)
        name = combine(kind.__name__) if kind in _CONTAINERS else self.digest(kind, place)
        state = self._state(value, place)
        if isinstance(value, collections.defaultdict):
            state = combine("factory", state, self.digest(value.default_factory, place))
        return combine("container", name, content, state)

    def _number(self, value: Any, place: str) -> bytes:
        base: Any = next(base for base in _NUMBERS if isinstance(value, base))
        return self._with_state(value, place, self._scalar(base.__new__(base, value)))

    def _enum(self, value: enum.Enum, place: str) -> bytes:
        return combine(
            "enum",
            self.digest(type(value), place),
            value.name.encode() if value.name else b"",
            self.digest(value.value, place),
        )

    def _path(self, value: PurePath, place: str) -> bytes:
        return combine("path", self._relative(str(value)).encode())

    def _pattern(self, value: re.Pattern[Any], place: str) -> bytes:
        return combine("pattern", repr((value.pattern, value.flags)).encode())

    def _partial(self, value: Any, place: str) -> bytes:
        keywords = self._fields("keywords", value.keywords.items(), place)
        return combine("partial", self.digest(value.func, place), self._all("arguments", value.args, place), keywords)

    def _property(self, value: property, place: str) -> bytes:
        return self._all("property", (value.fget, value.fset, value.fdel), place)

    def _wrapper(self, value: Any, place: str) -> bytes:
        """Digest what a descriptor or decorator holds, without what it has cached."""
        wrapped = value.func if isinstance(value, functools.cached_property) else getattr(value, "__wrapped__", None)
        return self._all(type(value).__name__, (wrapped if wrapped is not None else value.__func__,), place)

    def _method(self, value: types.MethodType, place: str) -> bytes:
        return self._all("method", (value.__func__, value.__self__), place)

    def _builtin(self, value: Any, place: str) -> bytes:
        owner = value.__self__ if hasattr(value, "__self__") else None
        has_owner = owner is not None and not isinstance(owner, types.ModuleType)
        return combine("builtin", _name(value).encode(), self.digest(owner, place) if has_owner else b"")

    def _descriptor(self, value: Any, place: str) -> bytes:
        return combine("descriptor", _name(value).encode())

    def _lock(self, value: Any, place: str) -> bytes:
        return combine("lock", type(value).__name__.encode())

    def _logger(self, value: Any, place: str) -> bytes:
        return combine("logger")  # what it prints is no result

    def _reference(self, value: weakref.ref[Any], place: str) -> bytes:
        return combine("reference", self.digest(value(), place))

    def _weak(self, value: Any, place: str) -> bytes:
        return combine("weak", type(value).__name__.encode())  # a cache, as of `functools.singledispatch`

    def _context(self, value: contextvars.ContextVar[Any], place: str) -> bytes:
        try:
            content = self.digest(value.get(), place)
        except LookupError:
            content = b""
        return combine("context", value.name.encode(), content)

    def _cell(self, value: types.CellType, place: str) -> bytes:
        try:
            return self._part(value.cell_contents, place)
        except ValueError:
            return combine("empty cell")

    def _field(self, value: Any, place: str) -> bytes:
        items = value.default, value.default_factory, value.init, value.kw_only, value.metadata
        return combine("field", value.name.encode(), *(self._missing_or(item, place) for item in items))

    def _missing_or(self, value: Any, place: str) -> bytes:
        return combine("missing") if value is dataclasses.MISSING else self.digest(value, place)

    def _module(self, value: types.ModuleType, place: str) -> bytes:
        """Digest a module that the code passes on: every value in it, if it is the user's."""
        if self._is_ignored(_package_of_module(value)):
            return combine("module", value.__name__.encode())
        public = ((name, item) for name, item in vars(value).items() if name not in _MODULE_NAMES)
        own = ((name, item) for name, item in public if not isinstance(item, types.ModuleType))
        return self._fields("module", own, value.__name__.rpartition(".")[2])

    def _is_ignored(self, package: Package | None) -> bool:
        """Return whether code of a package counts by its name; the version of a large one is added."""
        if package is None:
            return False
        if package.version:
            self.versions.add(package.version)
        return package.ignored or bool(package.version)

    def _class(self, value: type, place: str) -> bytes:
        if not value.__flags__ & _HEAP_TYPE:
            return combine("class", _name(value).encode())
        if _is_importable(value) and self._is_ignored(_package_of(value)):
            return combine("class", *(self._library_class(base) for base in value.__mro__))
        file = Path(_file_of_class(value))
        if file.suffix == ".py" and file.is_file():
            self._add_file(file)
        bases = [self.digest(base, place) for base in value.__mro__[1:]]
        kind = type(value)
        metaclass = b"" if kind is type else self.digest(kind, place)
        attributes = {name: item for name, item in vars(value).items() if not _is_unused(value, name, item)}
        if issubclass(value, enum.Enum):
            attributes |= {name: member.value for name, member in value.__members__.items()}
        content = self._fields("class", attributes.items(), value.__qualname__)
        return combine("class", value.__qualname__.encode(), metaclass, content, *bases)

    def _library_class(self, value: type) -> bytes:
        """Return the digest of the name of a library's class, and of functions that the user's code put there."""
        replaced = [(name, item) for name, item in vars(value).items() if _is_replaced(item)]
        return combine("base", _name(value).encode(), self._fields("replaced", replaced, value.__qualname__))

    def _function(self, function: types.FunctionType, place: str) -> bytes:
        if MARK in vars(function):  # a check of ours, which has no effect
            return self.digest(vars(function)["__wrapped__"], place)
        if _COMPILED in vars(function):  # by torch, which changes what is around it
            return combine("compiled", self.digest(vars(function)[_COMPILED], place))
        code = function.__code__
        package = package_of_file(code.co_filename)
        is_ignored = self._is_ignored(package)
        if is_ignored and getattr(function, "hooked", False):  # torch wraps `step` when an optimizer is first made
            return self.digest(function.__wrapped__, place)  # type: ignore[attr-defined]  # it has one
        if is_ignored and _is_importable(function) and self._is_ignored(_package_of(function)):
            return combine("function", _name(function).encode())
        name = function.__qualname__.rpartition(">.")[2]
        state = [
            self._all("defaults", function.__defaults__ or (), f"a default of `{name}`"),
            self._fields("keywords", (function.__kwdefaults__ or {}).items(), f"{name}()"),
            self._fields("attributes", _own_attributes(function), name),
            self._closure(function, name),
        ]
        if is_ignored:  # a library's wrapper of the user's function
            return combine("wrapper", code.co_name.encode(), *state)
        file = self._file(function)
        source = self.hashes.source(file) if file is not None else b""
        if file is not None:
            self._add_file(file)
            content = combine("file", self.hashes.hash(file).encode(), position(code, source))
        else:
            content = digest_code(code)
        return combine("function", function.__qualname__.encode(), content, *state, self._globals(function, source))

    def _file(self, function: types.FunctionType) -> Path | None:
        """Return the source file of a function, or None without one that can be read."""
        name = function.__code__.co_filename
        if not name.startswith("/") and name.endswith(".py"):  # of a script, relative to the folder of its start
            name = str(function.__globals__.get("__file__") or name)
        if name not in self._known_files:
            file = Path(name)
            self._known_files[name] = file if file.suffix == ".py" and file.is_file() else None
        return self._known_files[name]

    def _closure(self, function: types.FunctionType, name: str) -> bytes:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        return self._fields("closure", cells, f"{name}()")

    def _add_file(self, file: Path) -> None:
        if str(file) not in self.files:
            self.files.add(str(file))
            self._roots[str(source_root(file.parent))] = None

    def _globals(self, function: types.FunctionType, source: bytes) -> bytes:
        """Return the digest of the globals and of the modules' attributes that a function names."""
        names: Mapping[str, Any] = function.__globals__
        scan = scan_code(function.__code__)
        file = function.__code__.co_filename.rpartition("/")[2]
        changed = scan.stored | changed_globals(source)
        parts: dict[str, bytes] = {}
        for chain, line in scan.chains:
            if chain[0] in changed:
                self.reasons[f"the global `{chain[0]}` is changed at run time ({file})"] = None
            if chain[0] not in _MODULE_NAMES:
                name, part = self._chain(names, chain, f"{file}:{line}")
                parts[name] = part
        for method, line in scan.methods:
            self._add_read(f"`{method}` is called", f"{file}:{line}")
        for module, imported in scan.imports:
            parts |= self._imported(function, module, imported, scan.attributes)
        return combine("globals", *(part for name in sorted(parts) for part in (name.encode(), parts[name])))

    def _chain(self, names: Mapping[str, Any], chain: tuple[str, ...], where: str) -> tuple[str, bytes]:
        """Return the digest of a dotted name: of a global, or of an attribute of the user's module."""
        builtins = names.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        value = names.get(chain[0], builtins.get(chain[0], _MISSING))
        used, is_library = [chain[0]], False
        for attribute in (*chain[1:], ""):
            if value is _MISSING or self._is_run_time_read(value, ".".join(used), where):
                return ".".join(used), combine("missing")
            is_module = isinstance(value, types.ModuleType)
            if not attribute or not (is_module or reads_the_clock(value)):
                break
            is_library = is_library or not is_module or self._is_ignored(_package_of_module(value))
            value = getattr(value, attribute, _MISSING)
            used.append(attribute)
        name = ".".join(used)
        if is_library and not isinstance(value, type | types.FunctionType | functools.partial):
            return name, combine("library")  # its version is recorded
        if len(used) > 1 and isinstance(value, types.ModuleType):
            return name, combine("module")  # its attributes are other names
        return name, self._part(value, name if len(used) > 1 else f"{where.partition(':')[0]}: {name}")

    def _imported(
        self, function: types.FunctionType, module: str, names: tuple[str, ...], attributes: frozenset[str]
    ) -> dict[str, bytes]:
        """Return the digests of what a function imports when it is called, from the user's modules."""
        package = str(function.__globals__.get("__package__") or "")
        try:
            absolute = importlib.util.resolve_name(module, package) if module.startswith(".") else module
            found = find_package(absolute.partition(".")[0])
            if self._is_ignored(found) or found == Package():
                return {}
            imported = importlib.import_module(absolute)
        except Exception:  # whatever the module raises, the function would see it too
            return {module: combine("missing")}
        used = names or sorted(attributes & set(vars(imported)))
        values = ((name, getattr(imported, name, _MISSING)) for name in used if name != "*")
        return {
            f"{absolute}.{name}": self._part(value, f"{absolute}.{name}")
            for name, value in values
            if value is not _MISSING and not isinstance(value, types.ModuleType)
        }

    def _is_run_time_read(self, value: Any, name: str, where: str) -> bool:
        """Return whether a value is what a library reads from outside of the process, and note it."""
        if id(value) not in self._readers and not reads_state(value):
            return False
        self._add_read(f"`{name}` is read at run time", where)
        return True

    def _add_read(self, text: str, where: str) -> None:
        if self.slot not in _READING_SLOTS:
            self.reasons[f"{text} ({where})"] = None

    def _object(self, value: Any, place: str) -> bytes:
        """Digest any other object: its class, and its attributes or the way in which it is copied."""
        kind = type(value)
        has_state = hasattr(value, "__dict__") or any("__slots__" in vars(base) for base in kind.__mro__)
        is_plain = not (_is_copied_by_itself(kind) and self._is_ignored(_package_of(kind)))
        if kind.__flags__ & _HEAP_TYPE and has_state and is_plain and not isinstance(value, _OPAQUE):
            return combine("object", self.digest(kind, place), self._state(value, place))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reduced = value.__reduce_ex__(4)
        except RecursionError:
            raise
        except Exception:
            raise _Undigested from None
        if isinstance(reduced, str):
            return combine("reduced", self.digest(kind, place), reduced.encode())
        parts = [list(part) if index > 2 and part is not None else part for index, part in enumerate(reduced)]
        return self._all("reduced", parts, place)

    def _state(self, value: Any, place: str) -> bytes:
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
        return self._fields("state", named, place) if fields else b""


_WITHOUT_VALUE: Final = (types.ModuleType, classmethod, staticmethod, property, functools.cached_property)
_OPAQUE: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, weakref.ProxyType)
_CONTAINERS: Final = (tuple, list, dict, set, frozenset, types.MappingProxyType)
_Handler = Callable[[_Walk, Any, str], bytes]
_HANDLERS: Final[tuple[tuple[Any, _Handler], ...]] = (
    (type, _Walk._class),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (types.ModuleType, _Walk._module),
    (enum.Enum, _Walk._enum),
    (_NUMBERS, _Walk._number),
    ((functools.partial, functools.partialmethod), _Walk._partial),
    (property, _Walk._property),
    ((classmethod, staticmethod, functools.cached_property, functools._lru_cache_wrapper), _Walk._wrapper),
    (_BUILTINS, _Walk._builtin),
    (_DESCRIPTORS, _Walk._descriptor),
    (types.CodeType, lambda walk, value, place: digest_code(value)),
    (types.CellType, _Walk._cell),
    (contextvars.ContextVar, _Walk._context),
    ((tuple, list), _Walk._sequence),
    ((set, frozenset), _Walk._set),
    ((dict, types.MappingProxyType), _Walk._mapping),
    (PurePath, _Walk._path),
    (re.Pattern, _Walk._pattern),
    (dataclasses.Field, _Walk._field),
    (_LOCKS, _Walk._lock),
    ((logging.Logger, logging.LoggerAdapter), _Walk._logger),
    (weakref.ReferenceType, _Walk._reference),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet), _Walk._weak),
)


def _name(value: Any) -> str:
    """Return the name under which a class or function is known, without the name of the module of a plugin's file."""
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
    qualname = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
    return qualname if not isinstance(module, str) or module.startswith("paribus_file_") else f"{module}.{qualname}"


def _is_importable(value: Any) -> bool:
    """Return whether the module that an object names has it under its name."""
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for name in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is value


def _package_of_module(value: types.ModuleType) -> Package:
    return find_package(value.__name__.partition(".")[0])


def _package_of(value: type | types.FunctionType) -> Package:
    return find_package(value.__module__.partition(".")[0])


def _file_of_class(value: type) -> str:
    return str(getattr(sys.modules.get(value.__module__), "__file__", None) or "")


def _is_unused(owner: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a class is generated from others, or computes nothing."""
    function = getattr(value, "__func__", value)
    file = function.__code__.co_filename if isinstance(function, types.FunctionType) else ""
    is_own = bool(file) and not file.startswith("<string>") and package_of_file(file) is None
    if name in _UNUSED:
        return not (name == "__hash__" and is_own)
    if issubclass(owner, enum.Enum) and name != "_ignore_" and (name[:1] == name[-1:] == "_"):
        return not is_own  # what a member is, is in its value
    if type(value).__name__ == "_tuplegetter":  # a field of a named tuple
        return True
    if file and not is_own:
        is_generated = name in _GENERATED and "__dataclass_fields__" in vars(owner)
        return is_generated or hasattr(owner, "_field_defaults")  # a named tuple
    return False


def _is_replaced(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and package_of_file(value.__code__.co_filename) is None


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


def _own_attributes(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a function, without the notes of torch's compiler."""
    return ((name, value) for name, value in vars(function).items() if not name.startswith(("_torch", "_dynamo")))
