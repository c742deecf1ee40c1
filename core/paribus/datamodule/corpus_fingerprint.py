"""Fingerprint of a corpus, from the cache as long as its files are unchanged."""

from __future__ import annotations

import inspect
import secrets
from contextlib import suppress
from pathlib import Path

from paribus.errors import StoreError
from paribus.slots.component import Component
from paribus.slots.corpus import Corpus
from paribus.storage.atomic import digest_json, make_folder, read_json, write_json
from paribus.storage.code_hash import closure, code_fingerprint


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
    """Return the class of a component, with a hash of its file and of the modules of its package that this imports.

    A file outside of a package may import any of its folder. A class from a notebook has no file, and gets a random
    hash.
    """
    kind = type(component)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        file = Path(inspect.getfile(kind))
        files = closure(file) if (file.parent / "__init__.py").exists() else file.parent.glob("*.py")
        hashes = code_fingerprint(*sorted(files)) if file.is_file() else []  # "<stdin>" is not a file
    except (OSError, TypeError):
        hashes = []
    return f"{name} {digest_json([*hashes]) if hashes else secrets.token_hex(32)}"
