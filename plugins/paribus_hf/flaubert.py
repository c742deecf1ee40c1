"""FlauBERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import xlm


@final
class Flaubert(Family):
    """FlauBERT base (Le et al. 2020): XLM for French.

    FlauBERT large is refused: it has pre-norm without a norm after the last layer. Layer drop is not supported: set its
    rate to 0 to convert.
    """

    kind = "flaubert"
    architectures: ClassVar[Mapping[str, Architecture]] = {"FlaubertWithLMHeadModel": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {**xlm.Xlm.spec, "preset": "flaubert"}
    keys: ClassVar[tuple[Key, ...]] = xlm.Xlm.keys
    fixed: ClassVar[Mapping[str, Any]] = {**xlm.Xlm.fixed, "pre_norm": False, "layerdrop": 0.0}
    ignored: ClassVar[frozenset[str]] = xlm.Xlm.ignored
    buffers: ClassVar[tuple[str, ...]] = xlm.Xlm.buffers

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        xlm.read_languages(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        xlm.write_languages(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return xlm.moves(spec)
