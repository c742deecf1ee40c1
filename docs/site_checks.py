"""Checks of the built site: every internal link has a target, and no page loads anything from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r'<(a|img|script|link|source)\b[^>]*?\s(?:href|src)="?([^">\s]+)')
IDENTIFIER = re.compile(r'\s(?:id|name)="?([^">\s]+)')
OUTSIDE = re.compile(r"(?:https?:)?//")


def problems(site: Path) -> Iterator[str]:
    """Yield a line for each link without a target, and for each file of another host that a page loads."""
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site).as_posix()
        for tag, link in dict.fromkeys(LINK.findall(page.read_text(encoding="utf-8"))):
            if OUTSIDE.match(link):
                if tag != "a":
                    yield f"{name} loads {link}"
            elif page.name != "404.html" and ":" not in link.partition("/")[0] and not has_target(page, link):
                yield f"{name} links to {link}, which does not exist"


def has_target(page: Path, link: str) -> bool:
    """Return True if the file of a link exists, and has the anchor that the link names."""
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return False
    return not anchor or target.suffix != ".html" or anchor.startswith("__") or anchor in identifiers(target)


@cache
def identifiers(page: Path) -> frozenset[str]:
    return frozenset(map(unquote, IDENTIFIER.findall(page.read_text(encoding="utf-8"))))
