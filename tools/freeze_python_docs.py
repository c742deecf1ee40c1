"""Write the text of the corpus `python-docs` from the Python that runs this: `make frozen-text`.

The text is frozen in the package, so that every reader trains on the same one. Python 3.11.7 writes the files that are
there. Another version writes another folder; to use that makes all records of the corpus stale: set `FOLDER` in
plugins/paribus_text/frozen_text.py, and the digests in its tests. Only the standard library is needed.
"""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import platform
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / "paribus_text"

# Tests, demonstrations, generated and installed packages, and the topics of the reference.
EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "pydoc_data"}

# A block of comments, or the text that a module has for its copyright.
NOTICE = re.compile(r'^(?:#[^\n]*\n)+|^__copyright__ = """.*?"""', re.MULTILINE | re.DOTALL)


def main(folder: Path) -> None:
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_paths()["stdlib"])
    folder.mkdir(exist_ok=True)
    write_texts(folder / "topics.json.gz", {name: text.replace("\r\n", "\n") for name, text in topics.items()})
    write_texts(folder / "docstrings.json.gz", docstrings(root))
    (folder / "LICENSE.txt").write_bytes((root / "LICENSE.txt").read_bytes())
    (folder / "NOTICES.txt").write_text(notices(root), encoding="utf-8")


def write_texts(file: Path, texts: Mapping[str, str]) -> None:
    """Write texts by name as compressed JSON without a time stamp: the same texts give the same bytes."""
    data = json.dumps(dict(sorted(texts.items())), ensure_ascii=False, indent=0) + "\n"
    file.write_bytes(gzip.compress(data.encode(), compresslevel=9, mtime=0))


def docstrings(root: Path) -> dict[str, str]:
    """Return the docstrings of each module as one text, by the name of the module, without importing it."""
    texts = {module: "\n\n".join(_docstrings(path)) for module, path in modules(root)}
    return {f"module {module}": text for module, text in texts.items() if text}


def notices(root: Path) -> str:
    """Return the copyright notices in the modules that have docstrings, each once."""
    found: dict[str, list[str]] = {}
    for module, path in modules(root):
        if any(_docstrings(path)):
            for match in NOTICE.finditer(path.read_text(encoding="utf-8", errors="replace")):
                if "copyright" in match[0].lower():
                    text = "\n".join(line.rstrip() for line in match[0].strip().splitlines())
                    found.setdefault(text, []).append(module)
    parts = [f"{', '.join(names)}\n\n{text}" for text, names in found.items()]
    return "Copyright notices of modules whose docstrings are in docstrings.json.gz.\n\n" + "\n\n".join(parts) + "\n"


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the modules whose docstrings are read."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if EXCLUDED.isdisjoint(parts) and not parts[0].startswith(("config-", "_sysconfigdata")):
            yield ".".join(parts).removesuffix(".__init__"), path


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of one file, in breadth-first order."""
    try:
        with tokenize.open(path) as file:
            tree = ast.parse(file.read())
    except (SyntaxError, UnicodeDecodeError, OSError):  # skips a broken file of the distribution
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                yield inspect.cleandoc(text)


if __name__ == "__main__":
    main(PLUGIN / f"python-{platform.python_version()}")
