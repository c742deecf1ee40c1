"""The fingerprint of what a trial reads, without torch: only the plugins that have corpus and tokenizer are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from paribus.assembly.components import make
from paribus.durable import digest_json
from paribus.registry import Index
from paribus.registry.loading import load
from paribus.slots.corpus import Corpus
from paribus.slots.tokenizer import Tokenizer


def fingerprint(spec: Mapping[str, Any], index: Index) -> str:
    """What the corpus of a spec has in it now, and what its tokenizer reads besides, if anything."""
    found = make(_classes("corpus", spec, index), "corpus", spec["corpus"], kind=Corpus).fingerprint()
    read = make(_classes("tokenizer", spec, index), "tokenizer", spec["tokenizer"], kind=Tokenizer).reads()
    return digest_json([found, read]) if read else found


def _classes(slot: str, spec: Mapping[str, Any], index: Index) -> Loaded:
    """The classes of the plugin that has what a spec names."""
    return Loaded(load(index.find(slot, spec[slot]["name"]).door).classes)


@final
class Loaded:
    """The classes of one plugin."""

    def __init__(self, classes: Mapping[tuple[str, str], type]) -> None:
        self.classes = classes

    def get(self, slot: str, name: str) -> type:
        return self.classes[slot, name]
