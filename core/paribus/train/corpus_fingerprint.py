"""Fingerprint of a corpus, from the cache as long as its files are unchanged."""

from __future__ import annotations

import inspect
import secrets
from contextlib import suppress
from pathlib import Path

from paribus.errors import StoreError
from paribus.slots.component import Component
from paribus.slots.corpus import Corpus
from paribus.storage.atomic import Json, digest, digest_json, make_folder, read_json, write_json


def corpus_fingerprint(corpus: Corpus, cache: Path) -> str:
    """Return the fingerprint of the corpus, from the cache if its preview is unchanged, so that it is read once."""
    quick = corpus.quick_fingerprint()
    if quick is None:
        return corpus.fingerprint()
    path = cache / "previews" / f"{digest_json([component_code(corpus), quick])}.json"
    with suppress(StoreError):
        return str(read_json(path)["fingerprint"])
    fingerprint = corpus.fingerprint()
    if corpus.quick_fingerprint() == quick:
        make_folder(path.parent)
        write_json(path, {"fingerprint": fingerprint})
    return fingerprint


def component_code(component: Component) -> str:
    """Return the class of a component, with a digest of the files in its folder.

    A class from a notebook has no file, and gets a random digest.
    """
    kind = type(component)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        file = Path(inspect.getfile(kind))
        files = sorted(file.parent.glob("*.py")) if file.is_file() else []  # "<stdin>" is not a file
        sources: list[Json] = [[file.name, digest(file.read_bytes().replace(b"\r\n", b"\n"))] for file in files]
    except (OSError, TypeError):
        sources = []
    return f"{name} {digest_json(sources) if sources else secrets.token_hex(32)}"
