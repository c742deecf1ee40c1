"""Tensor names of a layer, shared by several families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus import Move

EXPAND: Final = ("feedforward.expand", "dims.width")
"""Factors of the inner width of a feed-forward: a spec may give it as a multiple of the model width."""

POST_NORM: Final[Mapping[str, str]] = {
    "attention.heads.q": "attention.self.query",
    "attention.heads.k": "attention.self.key",
    "attention.heads.v": "attention.self.value",
    "attention.heads.o": "attention.output.dense",
    "placement.norms.attention": "attention.output.LayerNorm",
    "feedforward.inner": "intermediate.dense",
    "feedforward.outer": "output.dense",
    "placement.norms.feedforward": "output.LayerNorm",
}
"""BERT and families derived from it."""

SAME_AS_CLM: Final = frozenset({"completion", "control"})
"""Objectives with the head of `clm`."""
SAME_AS_DENOISE: Final = frozenset({"denoise", "prefix-lm", "seq2seq", "span-corruption"})
"""Objectives of an encoder-decoder with the head of `denoise` without a bias."""

GATED: Final[Mapping[str, str]] = {
    "attention.heads.q": "self_attn.q_proj",
    "attention.heads.k": "self_attn.k_proj",
    "attention.heads.v": "self_attn.v_proj",
    "attention.heads.o": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.inner": "mlp.up_proj",
    "feedforward.outer": "mlp.down_proj",
}
"""Llama and families derived from it."""
GATED_NORMS: Final[Mapping[str, str]] = {
    "placement.norms.attention": "input_layernorm",
    "placement.norms.feedforward": "post_attention_layernorm",
}


SUMMARY_KEYS: Final = frozenset(
    {
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    }
)  # fmt: skip
"""Keys of a sequence summary head, which no supported class has."""


def layer_moves(
    spec: Mapping[str, Any],
    prefix: str,
    names: Mapping[str, str],
    kinds: tuple[str, ...] = ("weight", "bias"),
    *,
    stack: str = "body",
) -> Iterator[Move]:
    """Yield the tensors of all layers of a stack, with the same names in each layer."""
    for layer in range(stack_depth(spec, stack)):
        for module, hf_module in names.items():
            for kind in kinds:
                yield Move(f"{stack}.layers.{layer}.{module}.{kind}", f"{prefix}.{layer}.{hf_module}.{kind}")


def stack_depth(spec: Mapping[str, Any], stack: str) -> int:
    """Return the number of layers of a stack, which the encoder may override."""
    overrides = spec.get("parts", {}).get(stack, {}).get("dims", {})
    depth: int = overrides.get("layers", spec["dims"]["layers"])
    return depth


def shortest_cycle(nodes: Sequence[Any]) -> Any:
    """Return the shortest list that layers repeat to get these components, or the only component of all of them."""
    size = next(
        size
        for size in range(1, len(nodes) + 1)
        if all(node == nodes[layer % size] for layer, node in enumerate(nodes))
    )
    return nodes[0] if size == 1 else list(nodes[:size])


def as_list(node: Any) -> list[Any]:
    """Return the components that layers repeat."""
    return list(node) if isinstance(node, (list, tuple)) else [node]


def llama_moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    """Yield all tensors of Llama and derived families: norms without a bias, and gated feed-forwards."""
    tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
    yield Move("embedding.tokens.weight", "model.embed_tokens.weight", tied_names=tied)
    if not tied:
        yield Move("embedding.head.weight", "lm_head.weight")
    yield Move("body.norm.weight", "model.norm.weight")
    yield from layer_moves(spec, "model.layers", GATED_NORMS, ("weight",))
    attention = spec["attention"]["scores"]
    for module in (module for module in GATED if "heads" in module):
        has_bias = attention["bias"] and (module != "attention.heads.o" or spec["attention"].get("output_bias", True))
        suffixes = ("weight", "bias") if has_bias else ("weight",)
        yield from layer_moves(spec, "model.layers", {module: GATED[module]}, suffixes)
    suffixes = ("weight", "bias") if spec["feedforward"]["bias"] else ("weight",)
    yield from layer_moves(
        spec, "model.layers", {module: GATED[module] for module in GATED if "heads" not in module}, suffixes
    )
    if attention["qk_norm"]:
        norms = {f"attention.attend.{side}_norm": f"self_attn.{side}_norm" for side in "qk"}
        yield from layer_moves(spec, "model.layers", norms, ("weight",))
