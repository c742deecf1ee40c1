"""GPT-2 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

from paribus import Architecture, Family, Key, Move
from paribus_hf import gpt_shared
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM


@final
class Gpt2(Family):
    """GPT-2 (Radford et al. 2019), whose matrices are transposed."""

    kind = "gpt2"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "GPT2LMHeadModel": Architecture(),
        "GPT2Model": Architecture(prefix="transformer."),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt2",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        *gpt_shared.keys(50257, 1024),
        Key("activation_function", "feedforward.activation", "gelu_new", ACTIVATIONS),
        Key("n_inner", "feedforward.inner", None, factors=EXPAND),
        Key("scale_attn_weights", "attention.scores.scaled", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
    }
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = gpt_shared.IGNORED | {"reorder_and_upcast_attn"}
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        yield from gpt_shared.moves(spec, "wte", "wpe")
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"transformer.ln_f.{kind}")
