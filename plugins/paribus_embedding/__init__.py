"""Embedding components: token, factorised and patch embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Embedding, hookimpl, registered
from paribus_embedding.factorised_table import FactorisedTable as factorised
from paribus_embedding.patches import Patches as patches
from paribus_embedding.token_table import TokenTable as tokens


@hookimpl
def embedding() -> Mapping[str, type[Embedding]]:
    return registered(globals(), Embedding)
