"""Values that the code of a component depends on, as a digest: its own constants, globals, closures and defaults.

Code itself is hashed by file (`paribus.storage.code_hash`). Only a function without a readable file, as in a notebook,
is digested by its bytecode. A digest has no addresses and no random order, so that it is equal in every process.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from paribus.registry.component_index import ComponentValues
from paribus.registry.function_code import changed_globals, combine, digest_code, position, scan_code
from paribus.registry.return_types import MARK
from paribus.registry.run_time_reads import READING_MODULES, reader_ids, reads_state, reads_the_clock
from paribus.registry.value_digests import HEAP_TYPE, SCALARS, UndigestedError, digest_scalar, digest_value, name_of
from paribus.storage.code_hash import CodeHashes
from paribus.storage.packages import Package, find_package, package_of_file, source_root

LEVELS: Final = 400  # of values in each other
FRAMES: Final = 10  # of Python for each level
_READING_SLOTS: Final = frozenset({"corpus", "tokenizer", "launcher"})  # have a fingerprint, or compute nothing
_WITHOUT_VALUE: Final = (types.ModuleType, classmethod, staticmethod, property, functools.cached_property)
_MISSING: Final = object()
_UNUSED: Final = (  # attributes of a class that compute nothing, or repeat what is digested
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__qualname__", "__firstlineno__", "__static_attributes__", "__parameters__",
    "__type_params__", "__orig_bases__", "__abstractmethods__", "_abc_impl", "__dataclass_params__",
    "__conditional_annotations__", "__hash__", "__slotnames__",
    "__protocol_attrs__", "__non_callable_proto_members__", "__callable_proto_members_only__", "_is_protocol",
    "_is_runtime_protocol", "_backward_cls",
    "__pydantic_validator__", "__pydantic_serializer__", "__pydantic_core_schema__",  # made of its fields
)  # fmt: skip
_GENERATED: Final = (  # methods of a dataclass
    "__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__", "__hash__",
    "__replace__",
)  # fmt: skip
_CODE_GENERATORS: Final = ("<attrs generated ", "<class 'networkx.")  # in names of files, with random constants
_COMPILED: Final = "_torchdynamo_orig_callable"
_CHECKED: Final = "__beartype_wrapper"  # of a check by beartype: generated code with addresses in names
_MODULE_NAMES: Final = (
    "__name__", "__doc__", "__spec__", "__package__", "__loader__", "__builtins__", "__annotations__",
)  # fmt: skip


def component_values(component: type, slot: str = "", hashes: CodeHashes | None = None) -> ComponentValues:
    """Return the values that a class depends on, and the files that its code comes from."""
    walk = Walk(component, slot, hashes or CodeHashes())
    return walk.values()


@final
class Walk:
    """Digests of everything that a class reaches, each computed once."""

    def __init__(self, component: type, slot: str, hashes: CodeHashes) -> None:
        self.component, self.slot, self.hashes = component, slot, hashes
        self.files: set[str] = set()
        self.versions: set[str] = set()
        self.reasons: dict[str, None] = {}
        self.parts: dict[str, str] = {}
        self.is_complete = True
        self.digests: dict[int, tuple[object, bytes]] = {}  # with the object, so that its id stays its own
        self._depths: dict[int, int] = {}  # of what is being digested
        self._roots: dict[str, None] = {}
        self._known_files: dict[str, Path | None] = {}
        self._own_package = find_package(component.__module__.partition(".")[0])
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
        if type(value) in SCALARS:
            return digest_scalar(self, value)
        key = id(value)
        if key in self.digests:
            return self.digests[key][1]
        if key in self._depths:  # a cycle: the distance to the object in it, which is the same in every process
            return combine("cycle", str(len(self._depths) - self._depths[key]).encode())
        self._depths[key] = len(self._depths)
        try:
            if len(self._depths) > LEVELS:
                raise UndigestedError("is nested too deeply to be compared")
            result = self._compound(value, place)
        except UndigestedError as error:
            self.is_complete = False
            message = str(error) or f"is a {name_of(type(value))}, which has no value to compare"
            self.reasons[f"`{place}` {message}"] = None
            result = combine("undigested", name_of(type(value)).encode())
        finally:
            del self._depths[key]
        self.digests[key] = value, result
        return result

    def relative(self, text: str) -> str:
        """Return a path without the folder of the code, which is another one on another machine."""
        for root in self._roots if "/" in text or "\\" in text else ():
            if text == root or text.startswith((f"{root}/", f"{root}\\")):
                return f"<code>{text[len(root) :]}"
        return text

    def all(self, tag: str, values: Iterable[Any], place: str) -> bytes:
        return combine(tag, *(self.digest(value, place) for value in values))

    def fields(self, tag: str, fields: Iterable[tuple[str, Any]], place: str) -> bytes:
        """Return the digest of named values, in the order of their names."""
        return combine(
            tag,
            *(
                part
                for name, value in sorted(fields, key=lambda field: field[0])
                for part in (name.encode(), self.part(value, f"{place}.{name}" if place else name))
            ),
        )

    def part(self, value: Any, place: str) -> bytes:
        """Return the digest of a value that a message can name."""
        result = self.digest(value, place)
        if not callable(value) and not isinstance(value, _WITHOUT_VALUE):
            self.parts[place] = result[:4].hex()
        return result

    def _compound(self, value: Any, place: str) -> bytes:
        if isinstance(value, type):
            return self._class(value, place)
        if isinstance(value, types.FunctionType):
            return self._function(value, place)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        return digest_value(self, value, place)

    def _module(self, value: types.ModuleType) -> bytes:
        """Digest a module that the code passes on: every value in it, if it is the user's."""
        if self.is_library(_package_of_module(value)):
            return combine("module", value.__name__.encode())
        public = ((name, item) for name, item in vars(value).items() if name not in _MODULE_NAMES)
        own = ((name, item) for name, item in public if not isinstance(item, types.ModuleType))
        return self.fields("module", own, value.__name__.rpartition(".")[2])

    def is_library(self, package: Package | None) -> bool:
        """Return whether code of a package counts by its name and version, and note the version.

        The component's own package does not, however it is installed. For a component that has a fingerprint, or that
        computes nothing, no version counts: which of the packages that it can import are installed changes no number.
        """
        if package is None or (package == self._own_package and not package.ignored):
            return False
        if package.version and self.slot not in _READING_SLOTS:
            self.versions.add(package.version)
        return package.ignored or bool(package.version)

    def _class(self, value: type, place: str) -> bytes:
        if not value.__flags__ & HEAP_TYPE:
            return combine("class", name_of(value).encode())
        if _is_importable(value) and self.is_library(_package_of(value)):
            return combine("class", *(self._library_class(base) for base in value.__mro__))
        file = Path(getattr(sys.modules.get(value.__module__), "__file__", None) or "")
        if file.suffix == ".py" and file.is_file():
            self._add_file(file)
        bases = [self.digest(base, place) for base in value.__mro__[1:]]
        kind = type(value)
        metaclass = b"" if kind is type else self.digest(kind, place)
        attributes = {name: item for name, item in vars(value).items() if not _is_unused(value, name, item)}
        if issubclass(value, enum.Enum):
            attributes |= {name: member.value for name, member in value.__members__.items()}
        content = self.fields("class", attributes.items(), value.__qualname__)
        return combine("class", value.__qualname__.encode(), metaclass, content, *bases)

    def _library_class(self, value: type) -> bytes:
        """Return the digest of the name of a library's class, and of functions that the user's code put there."""
        replaced = [(name, item) for name, item in vars(value).items() if _is_replaced(item)]
        return combine("base", name_of(value).encode(), self.fields("replaced", replaced, value.__qualname__))

    def _function(self, function: types.FunctionType, place: str) -> bytes:
        if vars(function).keys() & {MARK, _CHECKED}:  # a check, which has no effect
            return self.digest(vars(function)["__wrapped__"], place)
        if _COMPILED in vars(function):  # by torch, which changes what is around it
            return combine("compiled", self.digest(vars(function)[_COMPILED], place))
        code = function.__code__
        package = _package_of_code(function)
        is_ignored = self.is_library(package)
        if is_ignored and getattr(function, "hooked", False):  # torch wraps `step` when an optimizer is first made
            return self.digest(function.__wrapped__, place)  # type: ignore[attr-defined]  # it has one
        if is_ignored and _is_importable(function) and self.is_library(_package_of(function)):
            return combine("function", name_of(function).encode())
        name = function.__qualname__.rpartition(">.")[2]
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        state = [
            self.all("defaults", function.__defaults__ or (), f"a default of `{name}`"),
            self.fields("keywords", (function.__kwdefaults__ or {}).items(), f"{name}()"),
            self.fields("attributes", _own_attributes(function), name),
            self.fields("closure", cells, f"{name}()"),
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
        for module, imported, line in scan.imports:
            parts |= self._imported(function, module, imported or sorted(scan.attributes), f"{file}:{line}")
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
            is_library = is_library or not is_module or self.is_library(_package_of_module(value))
            value = getattr(value, attribute, _MISSING)
            used.append(attribute)
        name = ".".join(used)
        if is_library and not isinstance(value, type | types.FunctionType | functools.partial):
            return name, combine("library")  # its version is recorded
        if len(used) > 1 and isinstance(value, types.ModuleType):
            return name, combine("module")  # its attributes are other names
        return name, self.part(value, name if len(used) > 1 else f"{where.partition(':')[0]}: {name}")

    def _imported(
        self, function: types.FunctionType, module: str, names: Sequence[str], where: str
    ) -> dict[str, bytes]:
        """Return the digests of what a function imports when it is called, from the user's modules."""
        package = str(function.__globals__.get("__package__") or "")
        attributes = scan_code(function.__code__).attributes
        try:
            absolute = importlib.util.resolve_name(module, package) if module.startswith(".") else module
            found = find_package(absolute.partition(".")[0])
            if self.is_library(found) or found == Package():
                self._note_library_reads(absolute, names, attributes, where)
                return {}
            imported = importlib.import_module(absolute)
        except Exception:  # whatever the module raises, the function would see it too
            return {module: combine("missing")}
        values: dict[str, Any] = {}
        for name in names:
            value = _imported_value(imported, name)
            if not isinstance(value, types.ModuleType):
                values[f"{absolute}.{name}"] = value
            elif not self.is_library(_package_of_module(value)):
                values |= {f"{value.__name__}.{it}": vars(value)[it] for it in attributes & set(vars(value))}
        return {
            name: self.part(value, name)
            for name, value in values.items()
            if value is not _MISSING and not isinstance(value, types.ModuleType)
        }

    def _note_library_reads(self, module: str, names: Iterable[str], attributes: Set[str], where: str) -> None:
        """Note what a function imports from a library, if it reads from outside of the process."""
        if module not in READING_MODULES:
            return
        library = importlib.import_module(module)
        self._readers |= reader_ids()
        for name in names:
            value = vars(library).get(name, _MISSING)
            self._is_run_time_read(value, f"{module}.{name}", where)
            for method in attributes if reads_the_clock(value) else ():
                self._is_run_time_read(getattr(value, method, _MISSING), f"{module}.{name}.{method}", where)

    def _is_run_time_read(self, value: Any, name: str, where: str) -> bool:
        """Return whether a value is what a library reads from outside of the process, and note it."""
        if id(value) not in self._readers and not reads_state(value):
            return False
        self._add_read(f"`{name}` is read at run time", where)
        return True

    def _add_read(self, text: str, where: str) -> None:
        if self.slot not in _READING_SLOTS:
            self.reasons[f"{text} ({where})"] = None


def _is_importable(value: Any) -> bool:
    """Return whether the module that an object names has it under its name."""
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for name in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is value


def _imported_value(module: types.ModuleType, name: str) -> Any:
    """Return what `from module import name` gives, also a submodule that was not imported before."""
    if name not in vars(module) and hasattr(module, "__path__"):
        with suppress(ImportError):
            return importlib.import_module(f"{module.__name__}.{name}")
    return getattr(module, name, _MISSING)


def _package_of_module(value: types.ModuleType) -> Package:
    return find_package(value.__name__.partition(".")[0])


def _package_of(value: type | types.FunctionType) -> Package:
    return find_package(value.__module__.partition(".")[0])


def _package_of_code(function: types.FunctionType) -> Package | None:
    """Return the package that holds the code of a function, also if it was generated for a library."""
    file = function.__code__.co_filename
    if file.startswith(_CODE_GENERATORS):
        package = find_package((function.__module__ or file.rpartition(" ")[2]).partition(".")[0])
        if package.ignored or package.version:
            return package
    return package_of_file(file)


def _is_unused(owner: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a class is generated from others, or computes nothing."""
    function = getattr(value, "__func__", value)
    file = function.__code__.co_filename if isinstance(function, types.FunctionType) else ""
    is_generated = file.startswith(("<string>", *_CODE_GENERATORS))
    is_own = bool(file) and not is_generated and package_of_file(file) is None
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
    return isinstance(value, types.FunctionType) and _package_of_code(value) is None


def _own_attributes(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a function, without the notes of torch's compiler."""
    return ((name, value) for name, value in vars(function).items() if not name.startswith(("_torch", "_dynamo")))
