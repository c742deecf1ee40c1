"""ViT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, layer_moves

PRE_NORM: Final[Mapping[str, str]] = {
    "attention.heads.q": "attention.q_proj",
    "attention.heads.k": "attention.k_proj",
    "attention.heads.v": "attention.v_proj",
    "attention.heads.o": "attention.o_proj",
    "placement.norms.attention": "layernorm_before",
    "feedforward.inner": "mlp.fc1",
    "feedforward.outer": "mlp.fc2",
    "placement.norms.feedforward": "layernorm_after",
}
SHAPE_CLASSES: Final = 8  # classes of the corpus `shapes`


def label_names(count: int) -> dict[int, str]:
    """Return default names of classes."""
    return {number: f"LABEL_{number}" for number in range(count)}


@final
class Vit(Family):
    """ViT (Dosovitskiy et al. 2021), with its fine-tuning head."""

    kind = "vit"
    architectures: ClassVar[Mapping[str, Architecture]] = {"ViTForImageClassification": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "vit-b16",
        "topology": "encoder",
        "embedding": {"name": "patches"},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "image-classify", "head": "linear"},
        "corpus": {"name": "shapes"},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("image_size", "embedding.image", 224),
        Key("patch_size", "embedding.patch", 16),
        Key("num_channels", "embedding.channels", 3),
        Key("hidden_size", "dims.width", 768),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_attention_heads", "dims.heads", 12),
        Key("intermediate_size", "feedforward.inner", 3072, factors=EXPAND),
        Key("hidden_act", "feedforward.activation", "gelu", ACTIVATIONS),
        Key("hidden_dropout_prob", "dropout", 0.0),
        Key("attention_probs_dropout_prob", "dropout", 0.0),
        Key("layer_norm_eps", "norm.eps", 1e-12),
        Key("id2label", "objective.classes", label_names(2), read=len, write=label_names),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"qkv_bias": True, "is_encoder_decoder": False}
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"encoder_stride", "initializer_range", "num_labels", "pooler_act", "pooler_output_size"}
    )
    variable_slots: ClassVar[frozenset[str]] = frozenset({"corpus"})  # any corpus of images
    renamed: ClassVar[Mapping[str, str]] = {
        "vit.encoder.layer.": "vit.layers.",
        ".attention.attention.query.": ".attention.q_proj.",
        ".attention.attention.key.": ".attention.k_proj.",
        ".attention.attention.value.": ".attention.v_proj.",
        ".attention.output.dense.": ".attention.o_proj.",
        ".intermediate.dense.": ".mlp.fc1.",
        ".output.dense.": ".mlp.fc2.",
    }

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        image, patch = spec["embedding"]["image"], spec["embedding"]["patch"]
        for name, size in (("image_size", image), ("patch_size", patch)):
            if not isinstance(size, int):
                config.add_problem(
                    name, f"images and patches must be square, got `{name}` {size!r}", "one whole number"
                )
                return
        if not patch or image % patch:
            message = f"`patch_size` must divide `image_size` ({image}), got {patch}"
            config.add_problem("patch_size", message)
            return
        spec["dims"]["length"] = 1 + (image // patch) ** 2
        classes = min(spec["objective"]["classes"], SHAPE_CLASSES)
        spec["corpus"] |= {"image": image, "channels": spec["embedding"]["channels"], "classes": classes}

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        config["label2id"] = {name: number for number, name in config["id2label"].items()}

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield all tensors; those of the embedding have more dimensions there."""
        width, length, embedding = spec["dims"]["width"], spec["dims"]["length"], spec["embedding"]
        embeddings, patch_shape = "vit.embeddings", (embedding["channels"], embedding["patch"], embedding["patch"])
        yield Move("embedding.cls", f"{embeddings}.cls_token", hf_shape=(1, 1, width))
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings", hf_shape=(1, length, width))
        projection = f"{embeddings}.patch_embeddings.projection"
        yield Move("embedding.patches.weight", f"{projection}.weight", hf_shape=(width, *patch_shape))
        yield Move("embedding.patches.bias", f"{projection}.bias")
        yield from layer_moves(spec, "vit.layers", PRE_NORM)
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"vit.layernorm.{kind}")
            yield Move(f"objectives.image-classify.head.{kind}", f"classifier.{kind}")
