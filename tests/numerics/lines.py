"""Lines of the engine that golden trials reach, and the functions with others.

Python reports each line of a function until all of its lines were reached once, and then no more.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import yaml

KINDS: Final = {
    "accelerator": "only a GPU reaches it",
    "error": "it reports an error, or cleans up after one",
    "interface": "a library calls it, or a user, but no trial",
    "large": "only models or corpora reach it that take long",
    "message": "it writes text for the user, and no number",
    "new": "the tree with which the epoch began cannot run it",
    "processes": "it runs in a further process of a trial, where lines are not recorded",
    "version": "other versions of a package or processor reach it, so here it may be reached",
}


class LineRecorder:
    """Lines of some files that were executed in this process since `start`."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = {str(path) for path in files}
        self.reached: dict[str, set[int]] = {path: set() for path in self.files}
        self._open: dict[int, set[int]] = {}  # lines that were not reached yet, by the id of a code object
        self._codes: list[CodeType] = []  # so that no id is used again

    def start(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def stop(self) -> dict[str, list[int]]:
        """Return the reached lines of each file."""
        sys.settrace(None)
        threading.settrace(None)
        return {path: sorted(lines) for path, lines in self.reached.items()}

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        missing = self._open.get(id(code))
        if missing is None:
            self._codes.append(code)
            is_counted = code.co_filename in self.files
            missing = {line for _, _, line in code.co_lines() if line} if is_counted else set()
            self._open[id(code)] = missing
        if not missing:
            return None
        reached = self.reached[code.co_filename]

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            missing.discard(frame.f_lineno)
            reached.add(frame.f_lineno)
            return on_line if missing else None

        return on_line(frame, event, argument)


def unreached(path: Path, reached: Iterable[int]) -> dict[str, list[int]]:
    """Return the lines of a file that were not reached, by function, without those of error paths."""
    left_out = set(reached) | set(_left_out(ast.parse(path.read_text(encoding="utf-8"))))
    functions = {name: lines - left_out for name, lines in _functions(path).items()}
    return {name: sorted(lines) for name, lines in functions.items() if lines}


def _functions(path: Path) -> dict[str, set[int]]:
    """Return the lines of each function of a file."""
    functions: dict[str, set[int]] = {}
    for code in _codes(compile(path.read_text(encoding="utf-8"), str(path), "exec")):
        words = [word for word in code.co_qualname.split(".") if not word.startswith("<")]
        if words:
            functions.setdefault(".".join(words), set()).update(line for _, _, line in code.co_lines() if line)
    return functions


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _left_out(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of error paths, of abstract methods, of imports for types and of messages of assertions."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(msg=ast.expr() as message):
                yield from _span(message)
            case ast.Raise():
                yield from _span(node)
            case ast.FunctionDef() if _is_abstract(node) or _returns_an_error(node):
                yield from _span(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from (line for statement in node.body for line in _span(statement))
        blocks: list[list[ast.stmt]] = []
        match node:
            case ast.If(body=body, orelse=other):
                blocks = [body, other]
            case ast.ExceptHandler(body=body) | ast.match_case(body=body):
                blocks = [body]
            case ast.For(orelse=other) | ast.While(orelse=other):
                blocks = [other]
        for block in blocks:
            if block and isinstance(block[-1], ast.Raise):
                first = node.lineno if isinstance(node, ast.ExceptHandler) else block[0].lineno
                yield from range(first, (block[-1].end_lineno or first) + 1)


def _span(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_abstract(node: ast.FunctionDef) -> bool:
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    is_stub = all(isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) for item in node.body)
    return "abstractmethod" in names or "overload" in names or is_stub


def _returns_an_error(node: ast.FunctionDef) -> bool:
    return node.returns is not None and ast.unparse(node.returns).endswith(("Problem", "Error", "NoReturn", "Problem]"))


def coverage_problems(root: Path, reached: dict[str, list[int]], reasons_file: Path) -> list[str]:
    """Return a line for each function with more unreached lines than are listed, and for each reason of no use."""
    reasons: dict[str, dict[str, str]] = yaml.safe_load(reasons_file.read_text(encoding="utf-8")) or {}
    problems: list[str] = []
    for file, lines in reached.items():
        name = Path(file).relative_to(root).as_posix()
        given = reasons.pop(name, {})
        functions = unreached(Path(file), lines)
        for function, missing in functions.items():
            listed = int(given[function].partition(" ")[0]) if function in given else 0
            if len(missing) > listed:
                problems.append(
                    f"{name}: no golden trial reaches {len(missing)} lines of `{function}`, {_ranges(missing)}; "
                    f"the list has {listed}"
                )
        for function, reason in given.items():
            kind = reason.partition(" ")[2].partition(":")[0]
            if function not in (_functions(Path(file)) if kind == "version" else functions):
                problems.append(f"{name}: all lines of `{function}` are reached, or it is gone: remove its reason")
            if kind not in KINDS:
                problems.append(f"{name}: the kind of the reason of `{function}` is none of {', '.join(KINDS)}")
    problems += [f"{name}: this is no file of the engine: remove its reasons" for name in reasons]
    return problems


def _ranges(lines: list[int]) -> str:
    """Return `3-5, 9` for 3, 4, 5 and 9."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
