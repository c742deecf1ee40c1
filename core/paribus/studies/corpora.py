"""The fingerprint of a corpus, without torch: only the plugin that has the corpus is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from paribus.assembly.components import make
from paribus.registry import Index
from paribus.registry.loading import load
from paribus.slots.corpus import Corpus


def fingerprint(node: Mapping[str, Any], index: Index) -> str:
    """What the corpus that `node` names has in it now."""
    entry = index.find("corpus", node["name"])
    return make(Loaded(load(entry.door).classes), "corpus", node, kind=Corpus).fingerprint()


@final
class Loaded:
    """The classes of one plugin."""

    def __init__(self, classes: Mapping[tuple[str, str], type]) -> None:
        self.classes = classes

    def get(self, slot: str, name: str) -> type:
        return self.classes[slot, name]
