"""GPT-1 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Family, Key, Move
from paribus_hf import gpt_shared
from paribus_hf.layer_names import SAME_AS_CLM

ACTIVATIONS: Final[Mapping[str, str]] = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""In this family only, "gelu" is the tanh approximation."""


@final
class OpenAIGpt(Family):
    """GPT-1 (Radford et al. 2018), with post-norm."""

    kind = "openai-gpt"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "OpenAIGPTLMHeadModel": Architecture(),
        "OpenAIGPTModel": Architecture(prefix="transformer."),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt2",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        *gpt_shared.keys(40478, 512),
        Key("afn", "feedforward.activation", "gelu", ACTIVATIONS),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": False}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = gpt_shared.IGNORED | {"n_special", "predict_special_tokens"}
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", "transformer.position_ids", "position_ids")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return gpt_shared.moves(spec, "tokens_embed", "positions_embed")
