"""Contract of a slot, read from the source of its base class without importing torch."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, final

import paribus

_FOLDER: Final = Path(paribus.__file__).parent / "slots"
_OTHER: Final = ("injects", "traits")  # attributes that `explain` prints in another form, or that authors do not set


class Member(NamedTuple):
    """Attribute, method or trait, with its signature or type, and one line about it."""

    name: str
    signature: str
    summary: str


@final
class SlotContract:
    """Docstring, attributes, methods and traits of a slot."""

    def __init__(self, slot: str) -> None:
        file = _FOLDER / f"{slot}.py"
        classes = {node.name.lower(): node for node in _classes(file)}
        self.doc = ast.get_docstring(classes[slot]) or ""
        self.methods = [_method(node) for node in classes[slot].body if _is_public_method(node)]
        common = next(node for node in _classes(_FOLDER / "component.py") if node.name == "Traits")
        own = classes.get(f"{slot}traits")
        self.attributes = [member for member in _members(classes[slot], file) if member.name not in _OTHER]
        self.traits = [*(_members(own, file) if own is not None else ()), *_members(common, _FOLDER / "component.py")]


def _classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]


def _is_public_method(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def _method(node: ast.stmt) -> Member:
    assert isinstance(node, ast.FunctionDef)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    kind = ", required" if "abstractmethod" in decorators else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    signature = f"{node.name}{returns}" if "property" in decorators else f"{node.name}({arguments}){returns}"
    doc = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return Member(node.name, f"{signature}{kind}", " ".join(doc.split()))


def _members(node: ast.ClassDef, file: Path) -> Iterator[Member]:
    comments = _comments(file)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            lines = range(item.lineno, (item.end_lineno or item.lineno) + 1)
            summary = " ".join(comments[line] for line in lines if line in comments)
            annotation = item.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "ClassVar":
                annotation = annotation.slice
            yield Member(item.target.id, ast.unparse(annotation), summary)


def _comments(file: Path) -> dict[int, str]:
    """Return the comment of each line that has one."""
    with tokenize.open(file) as source:
        tokens = list(tokenize.generate_tokens(source.readline))
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
