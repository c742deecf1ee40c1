"""Extension of mkdocstrings: fields of named tuples, data classes and traits, and constants, with their comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, final

import griffe

COMMENT = re.compile(r"#\s*(?!\s|noqa|type:|fmt:)(.+)$", re.MULTILINE)


@final
class FieldDocs(griffe.Extension):
    """Add a section `Attributes` to the docstring of each class with annotated fields, and comments of constants."""

    def on_attribute(self, *, attr: griffe.Attribute, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Use the comment beside a constant as its docstring."""
        comment = COMMENT.search(attr.source) if attr.docstring is None else None
        if comment and attr.parent is not None and attr.parent.is_module:
            attr.docstring = griffe.Docstring(f"{comment[1][0].upper()}{comment[1][1:]}.", parent=attr)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Add the section."""
        lines = list(field_lines(cls))
        if lines and cls.docstring is not None:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(f"    {line}" for line in lines)


def field_lines(cls: griffe.Class) -> Iterator[str]:
    """Yield a line for each field: its name, type, description and default."""
    for name, attribute in cls.attributes.items():
        if attribute.docstring or name.startswith("_") or not attribute.source:
            continue
        field = annotated_type(attribute.source)
        if field is None:
            continue
        annotation, description = field
        comment = COMMENT.search(attribute.source) or COMMENT.match(line_above(attribute))
        description = description or (comment[1].partition("  # type:")[0] if comment else "")
        default = f"default: `{attribute.value}`" if attribute.value is not None else ""
        yield f"{name} ({annotation}): {'; '.join(filter(None, [description, default]))}"


def line_above(attribute: griffe.Attribute) -> str:
    """Return the line before a field, which may be its comment."""
    assert attribute.lineno is not None, "it has a source"
    source = attribute.lines_collection[attribute.filepath]  # type: ignore[index]  # a class is in one file
    return source[attribute.lineno - 2].strip()


def annotated_type(code: str) -> tuple[str, str] | None:
    """Return the type of a field, and the description in its `Annotated` if it has one; None: it is no field."""
    (statement,) = ast.parse(code).body
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
        return None
    annotation = statement.annotation
    kind = ast.unparse(annotation)
    if isinstance(annotation, ast.Subscript) and kind.startswith("Annotated["):
        assert isinstance(annotation.slice, ast.Tuple), "Annotated has several arguments"
        first, text, *_ = annotation.slice.elts
        return ast.unparse(first), str(text.value) if isinstance(text, ast.Constant) else ""
    return None if kind.startswith("ClassVar") else (kind, "")
