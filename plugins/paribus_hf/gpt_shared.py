"""Shared keys and tensor names of GPT-1 and GPT-2, whose matrices are transposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus import Key, Move
from paribus_hf.layer_names import SUMMARY_KEYS

IGNORED: Final = SUMMARY_KEYS | {"initializer_range", "n_ctx"}


def keys(vocabulary: int, length: int) -> tuple[Key, ...]:
    """Return the table of keys, with the defaults in which the families differ."""
    return (
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("n_positions", "dims.length", length),
        Key("n_embd", "dims.width", 768),
        Key("n_layer", "dims.layers", 12),
        Key("n_head", "dims.heads", 12),
        Key("resid_pdrop", "dropout", 0.1),
        Key("embd_pdrop", "dropout", 0.1),
        Key("attn_pdrop", "dropout", 0.1),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Key("tie_word_embeddings", "embedding.tie", True),
    )


def moves(spec: Mapping[str, Any], tokens: str, positions: str) -> Iterator[Move]:
    """Yield all tensors but the final norm's; query, key and value are one matrix there."""
    tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
    yield Move("embedding.tokens.weight", f"transformer.{tokens}.weight", tied_names=tied)
    if not tied:
        yield Move("embedding.head.weight", "lm_head.weight")
    yield Move("body.position.0.table.weight", f"transformer.{positions}.weight")
    for layer in range(spec["dims"]["layers"]):
        layer_path, hf_layer = f"body.layers.{layer}", f"transformer.h.{layer}"
        for kind in ("weight", "bias"):
            for part, name in enumerate("qkv"):
                yield Move(
                    f"{layer_path}.attention.heads.{name}.{kind}", f"{hf_layer}.attn.c_attn.{kind}", True, part, 3
                )
            yield Move(f"{layer_path}.attention.heads.o.{kind}", f"{hf_layer}.attn.c_proj.{kind}", True)
            yield Move(f"{layer_path}.placement.norms.attention.{kind}", f"{hf_layer}.ln_1.{kind}")
            yield Move(f"{layer_path}.placement.norms.feedforward.{kind}", f"{hf_layer}.ln_2.{kind}")
            yield Move(f"{layer_path}.feedforward.inner.{kind}", f"{hf_layer}.mlp.c_fc.{kind}", True)
            yield Move(f"{layer_path}.feedforward.outer.{kind}", f"{hf_layer}.mlp.c_proj.{kind}", True)
