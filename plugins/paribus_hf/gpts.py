"""What GPT-1 and GPT-2 have in common: keys, and what their tensors are called; their matrices are turned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus import Key, Move
from paribus_hf.bodies import SUMMARY

IGNORED: Final = SUMMARY | {"initializer_range", "n_ctx"}


def keys(vocabulary: int, length: int) -> tuple[Key, ...]:
    """The table of keys, with the defaults that the two do not share."""
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
    """Every tensor but a final norm's; three matrices of a layer are one."""
    tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
    yield Move("embedding.tokens.weight", f"transformer.{tokens}.weight", also=tied)
    if not tied:
        yield Move("embedding.head.weight", "lm_head.weight")
    yield Move("body.position.0.table.weight", f"transformer.{positions}.weight")
    for layer in range(spec["dims"]["layers"]):
        ours, theirs = f"body.layers.{layer}", f"transformer.h.{layer}"
        for kind in ("weight", "bias"):
            for part, name in enumerate("qkv"):
                yield Move(f"{ours}.attention.heads.{name}.{kind}", f"{theirs}.attn.c_attn.{kind}", True, part, 3)
            yield Move(f"{ours}.attention.heads.o.{kind}", f"{theirs}.attn.c_proj.{kind}", True)
            yield Move(f"{ours}.placement.norms.attention.{kind}", f"{theirs}.ln_1.{kind}")
            yield Move(f"{ours}.placement.norms.feedforward.{kind}", f"{theirs}.ln_2.{kind}")
            yield Move(f"{ours}.feedforward.inner.{kind}", f"{theirs}.mlp.c_fc.{kind}", True)
            yield Move(f"{ours}.feedforward.outer.{kind}", f"{theirs}.mlp.c_proj.{kind}", True)
