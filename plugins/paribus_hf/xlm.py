"""XLM of the `transformers` library, with tables that FlauBERT shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.layer_names import SUMMARY_KEYS, stack_depth

NAMES: Final[Mapping[str, str]] = {  # its layers are in four lists
    **{f"attention.heads.{letter}": f"attentions.{{}}.{letter}_lin" for letter in "qkv"},
    "attention.heads.o": "attentions.{}.out_lin",
    "placement.norms.attention": "layer_norm1.{}",
    "feedforward.inner": "ffns.{}.lin1",
    "feedforward.outer": "ffns.{}.lin2",
    "placement.norms.feedforward": "layer_norm2.{}",
}


@final
class Xlm(Family):
    """XLM (Conneau & Lample 2019): BERT with language embeddings.

    Tokens without a language get the first language here, and none there.
    """

    kind = "xlm"
    architectures: ClassVar[Mapping[str, Architecture]] = {"XLMWithLMHeadModel": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "xlm",
        "topology": "encoder",
        "embedding": {"name": "tokens", "normed": True},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp", "inner": None, "expand": 4.0},
        "objective": {"name": "mlm", "transform": False, "bias": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30145),
        Key("max_position_embeddings", "dims.length", 512),
        Key("emb_dim", "dims.width", 2048),
        Key("n_layers", "dims.layers", 12),
        Key("n_heads", "dims.heads", 16),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "dropout", 0.1),
        Key("gelu_activation", "feedforward.activation", True, {True: "gelu", False: "relu"}),
        Key("layer_norm_eps", "norm.eps", 1e-12),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "asm": False,
        "causal": False,
        "is_encoder": True,
        "is_encoder_decoder": False,
        "sinusoidal_embeddings": False,  # True: a fixed sinusoidal table
    }
    same_heads: ClassVar[frozenset[str]] = frozenset({"tlm"})
    ignored: ClassVar[frozenset[str]] = SUMMARY_KEYS | {
        "bos_index", "embed_init_std", "end_n_top", "eos_index", "id2lang", "init_std", "lang2id", "lang_id",
        "mask_index", "mask_token_id", "n_words", "pad_index", "start_n_top", "unk_index",
    }  # fmt: skip
    buffers: ClassVar[tuple[str, ...]] = ("position_ids",)

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        read_languages(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        write_languages(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return moves(spec)


def read_languages(config: Config, spec: MutableMapping[str, Any]) -> None:
    """Read the number of language embeddings, 0 for a single language."""
    count, has_embedding = config.take("n_langs", 1), config.take("use_lang_emb", True)
    spec["embedding"]["languages"] = count if has_embedding and count > 1 else 0


def write_languages(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    config["n_langs"] = spec["embedding"]["languages"] or 1
    config["use_lang_emb"] = True


def moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    """Yield all tensors, whose names FlauBERT shares."""
    scores, tie = "pred_layer.proj", spec["embedding"]["tie"]
    tied = (f"{scores}.weight",) if tie else ()
    yield Move("embedding.tokens.weight", "transformer.embeddings.weight", tied_names=tied)
    if not tie:
        yield Move("embedding.head.weight", f"{scores}.weight")
    if spec["embedding"]["languages"]:
        yield Move("embedding.languages.weight", "transformer.lang_embeddings.weight")
    yield Move("body.position.0.table.weight", "transformer.position_embeddings.weight")
    yield Move("objectives.mlm.bias", f"{scores}.bias")
    for kind in ("weight", "bias"):
        yield Move(f"body.embedding.norm.{kind}", f"transformer.layer_norm_emb.{kind}")
        for layer in range(stack_depth(spec, "body")):
            for module, hf_module in NAMES.items():
                yield Move(f"body.layers.{layer}.{module}.{kind}", f"transformer.{hf_module.format(layer)}.{kind}")
