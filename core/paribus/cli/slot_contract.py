"""Contracts of slots and of the names that plugins import, read from their source without importing torch."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import paribus
from paribus.hookspecs import SLOTS

_PACKAGE: Final = Path(paribus.__file__).parent
_OTHER: Final = (
    "injects",
    "traits",
    "roles",
)  # attributes that `explain` prints in another form, or that authors do not set
_LIBRARY: Final = ("parts", "slots", "schema.py", "random_keys.py")  # modules with names that components use
_INJECTED: Final = {"shape": "Shape", "norm": "Norms", "vocabulary": "Vocabulary", "build": "Builder", "width": "int"}
_LINT: Final = ("type: ignore", "noqa")
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
    file = _PACKAGE / "slots" / f"{slot}.py"
    classes = {node.name.lower(): node for node in _classes(file)}
    contract = _class_contract(classes[slot], file)
    injected = _injected(classes[slot])
    arguments = ", ".join(["self", *(f"{name}: {kind}" for name, kind in injected.items()), "*", "OPTIONS"])
    names = tuple(name for name in public_names() if name in contract.names or name in injected.values())
    traits = (*_trait_members(slot), *_trait_members("component"))
    return contract._replace(definition=f"__init__({arguments})", traits=traits, names=names)


def trait_tables() -> dict[str, tuple[TraitField, ...]]:
    """Return the traits of each slot that has some, then those that all components have."""
    tables = {slot: _trait_fields(slot) for slot in SLOTS}
    return {**{slot: fields for slot, fields in tables.items() if fields}, ALL_SLOTS: _trait_fields("component")}


def describe_trait_field(field: TraitField) -> str:
    """Describe a trait: its meaning, type and default."""
    default = field.default if field.default == "required" else f"default {field.default}"
    return f"{field.meaning} ({field.kind}; {default})"


def _trait_fields(slot: str) -> tuple[TraitField, ...]:
    """Return the traits that only the components of a slot have; of `component`, those that all components have."""
    return tuple(_trait_field(member) for member in _trait_members(slot))


def _trait_members(slot: str) -> tuple[Member, ...]:
    """Return the members of the typed dictionary of a slot's traits, if it has one."""
    file = _PACKAGE / "slots" / f"{slot}.py"
    name = "traits" if slot == "component" else f"{slot}traits"
    return tuple(member for node in _classes(file) if node.name.lower() == name for member in _members(node, file))


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
    stub = ast.parse((_PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.name: _PACKAGE.joinpath(*str(node.module).split(".")).with_suffix(".py")
        for node in imports
        for alias in node.names
    }


def name_contract(name: str) -> Contract:
    """Return the contract of a public name: a class with its fields and methods, a function, or another value."""
    file = public_names()[name]
    source = file.read_text()
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_contract(node, file)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return Contract(name, _method(node).signature, ast.get_docstring(node) or "", names=_names(node))
        if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == name:
            text = following.value if isinstance(following, ast.Expr) else None
            doc = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            definition = ast.get_source_segment(source, node) or ""
            comment = " ".join(_summary(node, _comments(file)))
            return Contract(name, definition, doc or (comment if "\n" not in definition else ""))
    raise AssertionError(f"{name} is not defined in {file}")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _class_contract(node: ast.ClassDef, file: Path) -> Contract:
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    definition = node.name if init is None else f"{node.name}({_arguments(init)})"
    methods = tuple(_method(item) for item in node.body if _is_public_method(item))
    attributes = tuple(member for member in _members(node, file) if member.name not in _OTHER)
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


def _classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]


def _is_public_method(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def _arguments(node: ast.FunctionDef) -> str:
    return ast.unparse(node.args).removeprefix("self").removeprefix(", ")


def _method(node: ast.stmt) -> Member:
    assert isinstance(node, ast.FunctionDef)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    kind = ", required" if "abstractmethod" in decorators else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    signature = f"{node.name}{returns}" if "property" in decorators else f"{node.name}({_arguments(node)}){returns}"
    doc = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return Member(node.name, f"{signature}{kind}", " ".join(doc.split()))


def _members(node: ast.ClassDef, file: Path) -> Iterator[Member]:
    comments = _comments(file)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = item.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "ClassVar":
                annotation = annotation.slice
            summary = " ".join(_summary(item, comments))
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
                annotation, described, *_ = getattr(annotation.slice, "elts", [annotation.slice, ast.Constant("")])
                summary = str(ast.literal_eval(described))
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Required":
                annotation, default = annotation.slice, ", required"
            yield Member(item.target.id, ast.unparse(annotation) + default, summary)


def _summary(node: ast.stmt, comments: dict[int, str]) -> Iterator[str]:
    """Yield the comments in the lines of a statement; if there are none, the line of comment before it."""
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    own = [comments[line] for line in lines if line in comments and not comments[line].startswith(_LINT)]
    yield from own or filter(None, [comments.get(-(node.lineno - 1))])


def _comments(file: Path) -> dict[int, str]:
    """Return the comment of each line that has one; a line of comment alone has its number below 0."""
    with tokenize.open(file) as source:
        tokens = list(tokenize.generate_tokens(source.readline))
    return {
        (-1 if token.line.lstrip().startswith("#") else 1) * token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }
