"""Big Bird of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import berts
from paribus_hf.activations import OF_HEADS


@final
class BigBird(Family):
    """ "Big Bird: Transformers for Longer Sequences" (Zaheer et al. 2020), where it attends to all rows.

    Its `block_sparse` is refused: theirs draws blocks for each head while it trains, and draws none afterwards, but
    counts the first block once more for each that it drew. Up to (5 + 2 num_random_blocks) block_size rows it attends
    to all of them itself: for those, `attention_type="original_full"` when you convert is the same model.
    """

    kind = "big_bird"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BigBirdForPreTraining": Architecture(spec={"objective": [berts.MLM, "nsp"]}),
        "BigBirdForMaskedLM": Architecture(
            spec={"objective": berts.MLM}, unread=("bert.pooler.weight", "bert.pooler.bias")
        ),
    }
    spec: ClassVar[Mapping[str, Any]] = berts.SPEC
    keys: ClassVar[tuple[Key, ...]] = (
        *berts.keys(50358, 4096),
        Key("hidden_act", "feedforward.activation", "gelu_new", OF_HEADS),
        Key("rescale_embeddings", "embedding.scale", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**berts.FIXED, "use_bias": True}
    former: ClassVar[Mapping[str, Any]] = berts.FORMER
    ignored: ClassVar[frozenset[str]] = berts.IGNORED | {"block_size", "num_random_blocks"}
    buffers: ClassVar[tuple[str, ...]] = berts.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """The activation, which is also that of the head; and which rows see which."""
        berts.read(config, spec)
        heads = spec["objective"]
        own = {**berts.MLM, "activation": spec["feedforward"]["activation"]}
        spec["objective"] = [own, *heads[1:]] if isinstance(heads, list) else own
        if config.take("attention_type", "block_sparse") != "original_full":
            rows = (5 + 2 * config.given.get("num_random_blocks", 3)) * config.given.get("block_size", 64)
            how = "for each head in training, and afterwards counts the first block again for each that it would draw"
            what = f"`attention_type` is not 'original_full': theirs draws blocks {how}, which no component here does"
            valid = f"'original_full' when you convert, which it is itself up to {rows} rows"
            config.wrong("attention_type", what, valid)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        config["attention_type"] = "original_full"

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return berts.moves(spec, "bert", berts.PREDICTIONS, pooler="pooler")
