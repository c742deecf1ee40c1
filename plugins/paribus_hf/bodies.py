"""What tensors of a layer are called, by the families that agree on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus import Move

EXPAND: Final = ("feedforward.expand", "dims.width")
"""How a spec may say the inner width of a feed-forward, where they say it outright."""

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
"""BERT, and those that began as a copy of it."""

GATED: Final[Mapping[str, str]] = {
    "attention.heads.q": "self_attn.q_proj",
    "attention.heads.k": "self_attn.k_proj",
    "attention.heads.v": "self_attn.v_proj",
    "attention.heads.o": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.inner": "mlp.up_proj",
    "feedforward.outer": "mlp.down_proj",
}
"""Llama, and those that began as a copy of it."""
GATED_NORMS: Final[Mapping[str, str]] = {
    "placement.norms.attention": "input_layernorm",
    "placement.norms.feedforward": "post_attention_layernorm",
}


def layers(
    spec: Mapping[str, Any],
    where: str,
    names: Mapping[str, str],
    kinds: tuple[str, ...] = ("weight", "bias"),
    *,
    stack: str = "body",
) -> Iterator[Move]:
    """The tensors of all layers of a stack, which are called alike in each."""
    for layer in range(depth(spec, stack)):
        for ours, theirs in names.items():
            for kind in kinds:
                yield Move(f"{stack}.layers.{layer}.{ours}.{kind}", f"{where}.{layer}.{theirs}.{kind}")


def depth(spec: Mapping[str, Any], stack: str) -> int:
    """How many layers a stack has, which an encoder may say of its own."""
    own = spec.get("parts", {}).get(stack, {}).get("dims", {})
    found: int = own.get("layers", spec["dims"]["layers"])
    return found


def turned_layers(spec: Mapping[str, Any], where: str = "transformer.h") -> Iterator[Move]:
    """The tensors of all layers of GPT-1 and GPT-2, whose matrices are turned, and three of them one."""
    for layer in range(spec["dims"]["layers"]):
        ours, theirs = f"body.layers.{layer}", f"{where}.{layer}"
        for kind in ("weight", "bias"):
            for part, name in enumerate("qkv"):
                yield Move(f"{ours}.attention.heads.{name}.{kind}", f"{theirs}.attn.c_attn.{kind}", True, part, 3)
            yield Move(f"{ours}.attention.heads.o.{kind}", f"{theirs}.attn.c_proj.{kind}", True)
            yield Move(f"{ours}.placement.norms.attention.{kind}", f"{theirs}.ln_1.{kind}")
            yield Move(f"{ours}.placement.norms.feedforward.{kind}", f"{theirs}.ln_2.{kind}")
            yield Move(f"{ours}.feedforward.inner.{kind}", f"{theirs}.mlp.c_fc.{kind}", True)
            yield Move(f"{ours}.feedforward.outer.{kind}", f"{theirs}.mlp.c_proj.{kind}", True)


def gated_moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    """Every tensor of Llama and its like: norms without a bias, and gated feed-forwards."""
    tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
    yield Move("embedding.tokens.weight", "model.embed_tokens.weight", also=tied)
    if not tied:
        yield Move("embedding.head.weight", "lm_head.weight")
    yield Move("body.norm.weight", "model.norm.weight")
    yield from layers(spec, "model.layers", GATED_NORMS, ("weight",))
    attention = spec["attention"]["scores"]
    biased = ("weight", "bias") if attention["bias"] else ("weight",)
    yield from layers(spec, "model.layers", {ours: GATED[ours] for ours in GATED if "heads" in ours}, biased)
    biased = ("weight", "bias") if spec["feedforward"]["bias"] else ("weight",)
    yield from layers(spec, "model.layers", {ours: GATED[ours] for ours in GATED if "heads" not in ours}, biased)
    if attention["qk_norm"]:
        normed = {f"attention.attend.{side}_norm": f"self_attn.{side}_norm" for side in "qk"}
        yield from layers(spec, "model.layers", normed, ("weight",))
