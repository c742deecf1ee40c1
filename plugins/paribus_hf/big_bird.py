"""Big Bird of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared
from paribus_hf.activations import HEAD_ACTIVATIONS


@final
class BigBird(Family):
    """Big Bird (Zaheer et al. 2020), with full attention.

    Its `block_sparse` attention is rejected: it draws blocks for each head in training and none afterwards, and then
    counts the first block once more for each. Up to (5 + 2 num_random_blocks) block_size tokens the model uses full
    attention itself; for these lengths, convert with `attention_type="original_full"`.
    """

    kind = "big_bird"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BigBirdForPreTraining": Architecture(spec={"objective": [bert_shared.MLM, "nsp"]}),
        "BigBirdForMaskedLM": Architecture(
            spec={"objective": bert_shared.MLM}, unused_tensors=("bert.pooler.weight", "bert.pooler.bias")
        ),
    }
    spec: ClassVar[Mapping[str, Any]] = bert_shared.SPEC
    keys: ClassVar[tuple[Key, ...]] = (
        *bert_shared.keys(50358, 4096),
        Key("hidden_act", "feedforward.activation", "gelu_new", HEAD_ACTIVATIONS),
        Key("rescale_embeddings", "embedding.scale", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**bert_shared.FIXED, "use_bias": True}
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED | {"block_size", "num_random_blocks"}
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read the activation, which the head shares, and the attention type."""
        bert_shared.read(config, spec)
        heads = spec["objective"]
        head = {**bert_shared.MLM, "activation": spec["feedforward"]["activation"]}
        spec["objective"] = [head, *heads[1:]] if isinstance(heads, list) else head
        if config.take("attention_type", "block_sparse") != "original_full":
            limit = (5 + 2 * config.values.get("num_random_blocks", 3)) * config.values.get("block_size", 64)
            message = "unsupported `attention_type`: `block_sparse` draws other blocks for each head in training"
            valid = f"'original_full', which is the same model up to {limit} tokens"
            config.add_problem("attention_type", message, valid)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        config["attention_type"] = "original_full"

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return bert_shared.moves(spec, "bert", bert_shared.PREDICTIONS, pooler="pooler")
