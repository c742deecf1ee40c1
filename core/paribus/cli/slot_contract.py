"""Contracts of slots and of the names that plugins import, read from their source.

Their import would take seconds, since it imports torch, and has no comments, which describe fields and traits.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import paribus
from paribus.hookspecs import SLOTS

_PACKAGE: Final = Path(paribus.__file__).parent
_OTHER: Final = ("injects", "traits", "roles")  # `explain` prints them in another form, or authors do not set them
_LIBRARY: Final = ("parts", "slots", "schema.py", "random_keys.py")  # modules with names that components use
_INJECTED: Final = {"shape": "Shape", "norm": "Norms", "vocabulary": "Vocabulary", "build": "Builder", "width": "int"}
_COMMENT: Final = re.compile(r"[^#]*# *(?!type: ignore|noqa| )(.+)")
ALL_SLOTS: Final = "all slots"
TRAITS_DOC: Final = (
    "A component declares in `traits` what it needs, what it can do and what it cannot be combined with. The rules of "
    "specs read traits before a model is built, and `paribus conform` compares them with its behaviour. Values are "
    "literals; attentions that consist of `Heads` and `Attend` extend `SOFTMAX_TRAITS`."
)


class Member(NamedTuple):
    """Attribute, method or trait, with its signature or type, and one line about it."""

    name: str
    signature: str
    summary: str


class TraitField(NamedTuple):
    """Trait of a slot, with its type, the value of a component that does not declare it, and its meaning."""

    name: str
    kind: str  # bool, list[str], …
    default: str  # False, [], …; `required` if there is none
    meaning: str


class Contract(NamedTuple):
    """Docstring and members of a class; of a function or another value, only the definition."""

    name: str
    definition: str  # Heads(shape: Shape, *, kv_heads: int, …), or the source of a value; of a slot, its `__init__`
    doc: str
    attributes: tuple[Member, ...] = ()
    methods: tuple[Member, ...] = ()
    traits: tuple[Member, ...] = ()
    names: tuple[str, ...] = ()  # public names in its signatures, types and examples


def slot_contract(slot: str) -> Contract:
    """Return the contract of a slot: that of its base class, with the traits and the arguments of `__init__`."""
    body, lines = _statements(_PACKAGE / "slots" / f"{slot}.py")
    node = next(item for item in body if isinstance(item, ast.ClassDef) and item.name.lower() == slot)
    contract = _class_contract(node, lines)
    injected = _injected(node)
    arguments = ", ".join(["self", *(f"{name}: {kind}" for name, kind in injected.items()), "*", "OPTIONS"])
    names = tuple(name for name in public_names() if name in contract.names or name in injected.values())
    traits = (*_trait_members(slot), *_trait_members("component"))
    return contract._replace(definition=f"__init__({arguments})", traits=traits, names=names)


def trait_tables() -> dict[str, tuple[TraitField, ...]]:
    """Return the traits of each slot that has some, then those that all components have."""
    titles = {**{slot: slot for slot in SLOTS}, "component": ALL_SLOTS}
    tables = {title: tuple(map(_trait_field, _trait_members(slot))) for slot, title in titles.items()}
    return {title: fields for title, fields in tables.items() if fields}


def describe_trait_field(field: TraitField) -> str:
    """Describe a trait: its meaning, type and default."""
    default = field.default if field.default == "required" else f"default {field.default}"
    return f"{field.meaning} ({field.kind}; {default})"


def _trait_members(slot: str) -> tuple[Member, ...]:
    """Return the members of the typed dictionary of a slot's traits, if it has one."""
    body, lines = _statements(_PACKAGE / "slots" / f"{slot}.py")
    name = "traits" if slot == "component" else f"{slot}traits"
    classes = (item for item in body if isinstance(item, ast.ClassDef) and item.name.lower() == name)
    return tuple(member for node in classes for member in _members(node, lines))


def _trait_field(member: Member) -> TraitField:
    """Split a trait into its type, its default and its meaning; a default may be in the comment: `; default: True`."""
    is_required, kind = member.signature.endswith(", required"), member.signature.removesuffix(", required")
    stated = re.search(r"; default: ([^;(]+?)(?= \(|;|$)", member.summary)
    if stated is None:
        implied = {"bool": "False", "list": "[]", "dict": "{}"}.get(kind.partition("[")[0], "none")
        return TraitField(member.name, kind, "required" if is_required else implied, member.summary)
    meaning = (member.summary[: stated.start()] + member.summary[stated.end() :]).strip()
    return TraitField(member.name, kind, stated[1], meaning)


def _injected(node: ast.ClassDef) -> dict[str, str]:
    """Return the positional arguments of the components of a slot, with their types."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and _target(item) == "injects" and item.value is not None:
            return {name: _INJECTED[name] for name in ast.literal_eval(item.value)}
    return {}


@lru_cache(maxsize=1)
def public_names() -> dict[str, Path]:
    """Return the file of each name that `from paribus import …` gives."""
    stub = ast.parse((_PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.name: _PACKAGE.joinpath(*str(node.module).split(".")).with_suffix(".py")
        for node in imports
        for alias in node.names
    }


def name_contract(name: str) -> Contract:
    """Return the contract of a public name: a class with its fields and methods, a function, or another value."""
    file = public_names()[name]
    body, lines = _statements(file)
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_contract(node, lines)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return Contract(name, _method(node).signature, ast.get_docstring(node) or "", names=_names(node))
        if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == name:
            text = following.value if isinstance(following, ast.Expr) else None
            doc = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            definition = ast.get_source_segment("\n".join(lines), node) or ""
            return Contract(name, definition, doc or (_comment(node, lines) if "\n" not in definition else ""))
    raise AssertionError(f"{name} is not defined in {file}")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _class_contract(node: ast.ClassDef, lines: Sequence[str]) -> Contract:
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    init = next((item for item in functions if item.name == "__init__"), None)
    definition = node.name if init is None else f"{node.name}({_arguments(init)})"
    methods = tuple(_method(item) for item in functions if not item.name.startswith("_"))
    attributes = tuple(member for member in _members(node, lines) if member.name not in _OTHER)
    return Contract(node.name, definition, ast.get_docstring(node) or "", attributes, methods, names=_names(node))


def _names(node: ast.ClassDef | ast.FunctionDef) -> tuple[str, ...]:
    """Return the public names in the code of a node, and in that of its docstring, other than contracts of slots."""
    doc = ast.get_docstring(node) or ""
    code = " ".join([*re.findall(r"`([^`]+)`", doc), *re.findall(r"^ {4,}.*", doc, flags=re.MULTILINE)])
    words = {*re.findall(r"\w+", code), *(item.id for item in ast.walk(node) if isinstance(item, ast.Name))}
    words -= {node.name, "Component"}
    return tuple(
        name
        for name, file in public_names().items()
        if name in words and file.relative_to(_PACKAGE).parts[0] in _LIBRARY
        if name.lower() not in SLOTS and not name.endswith("Traits")
    )


def _statements(file: Path) -> tuple[list[ast.stmt], list[str]]:
    """Return the statements and the lines of a module."""
    source = file.read_text(encoding="utf-8")
    return ast.parse(source).body, source.splitlines()


def _arguments(node: ast.FunctionDef) -> str:
    return ast.unparse(node.args).removeprefix("self").removeprefix(", ")


def _method(node: ast.FunctionDef) -> Member:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    kind = ", required" if "abstractmethod" in decorators else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    signature = f"{node.name}{returns}" if "property" in decorators else f"{node.name}({_arguments(node)}){returns}"
    doc = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return Member(node.name, f"{signature}{kind}", " ".join(doc.split()))


def _members(node: ast.ClassDef, lines: Sequence[str]) -> Iterator[Member]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = item.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "ClassVar":
                annotation = annotation.slice
            summary = _comment(item, lines)
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
                annotation, described, *_ = getattr(annotation.slice, "elts", [annotation.slice, ast.Constant("")])
                summary = str(ast.literal_eval(described))
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Required":
                annotation, default = annotation.slice, ", required"
            yield Member(item.target.id, ast.unparse(annotation) + default, summary)


def field_comments(cls: type) -> dict[str, str]:
    """Return the comment of each field of a class, empty where it has none."""
    body, lines = _statements(Path(inspect.getsourcefile(cls) or ""))
    node = next(item for item in body if isinstance(item, ast.ClassDef) and item.name == cls.__name__)
    return {member.name: member.summary for member in _members(node, lines)}


def _comment(node: ast.stmt, lines: Sequence[str]) -> str:
    """Return the comments in the lines of a statement; if there are none, the line of comment before it."""
    comments = [match[1] for line in lines[node.lineno - 1 : node.end_lineno] if (match := _COMMENT.match(line))]
    previous_line = lines[node.lineno - 2].lstrip()
    return " ".join(comments) or (previous_line.lstrip("# ") if previous_line.startswith("#") else "")
