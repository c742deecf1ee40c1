"""What tensors of a layer are called, by the families that agree on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus import Alone, Move

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


SUMMARY: Final = frozenset(
    {
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    }
)  # fmt: skip
"""Keys of a head that no class has which is known here."""


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


def headed(spec: Mapping[str, Any], name: str, meant: Mapping[str, Any]) -> Alone:
    """A model that was trained by the objective `name`, as one that was by what is `meant`, whose head is the same."""
    node = spec["objective"]
    if not isinstance(node, Mapping) or node["name"] != name:
        return Alone(spec, str)
    same = {key: node[key] for key in meant if key != "name"}
    whole = f"objectives.{meant['name']}."
    return Alone(
        {**spec, "objective": {**same, "name": meant["name"]}, "evaluate": None},
        lambda path: path.replace(whole, f"objectives.{name}."),
    )
