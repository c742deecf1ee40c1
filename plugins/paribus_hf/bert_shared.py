"""Shared spec, keys and tensor names of BERT, RoBERTa, XLM-R and Big Bird."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

from paribus import Config, Key, Move
from paribus_hf.layer_names import EXPAND, POST_NORM, layer_moves

MLM: Final[Mapping[str, Any]] = {
    "name": "mlm",
    "transform": True,
    "transform_bias": True,
    "activation": "gelu",
    "bias": True,
}
NO_HEAD: Final[Mapping[str, Any]] = {"name": "mlm", "transform": False, "bias": False}
"""Scores from the embedding table alone, without parameters."""
CLASSIFY: Final[Mapping[str, Any]] = {"name": "classify", "pool": "first", "pooler": True}
REGRESS: Final[Mapping[str, Any]] = {**CLASSIFY, "name": "regress"}
TAG: Final[Mapping[str, Any]] = {"name": "tag"}
EXTRACT: Final[Mapping[str, Any]] = {"name": "extract"}
SPEC: Final[Mapping[str, Any]] = {
    "preset": "bert-base",
    "topology": "encoder",
    "embedding": {"name": "tokens", "normed": True, "tie": True},
    "attention": {"name": "mha"},
    "position": "learned",
    "norm": {"name": "layernorm"},
    "placement": "post",
    "feedforward": {"name": "mlp", "activation": "gelu"},
}
FIXED: Final[Mapping[str, Any]] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,  # otherwise the head has two biases, one of them unused
}
GELU: Final = {"hidden_act": "gelu"}  # also that of the head
FORMER: Final[Mapping[str, Any]] = {"position_embedding_type": "absolute"}
IGNORED: Final = frozenset({"classifier_dropout", "gradient_checkpointing", "initializer_range"})
BUFFERS: Final = ("embeddings.position_ids", "embeddings.token_type_ids")


def keys(vocabulary: int, positions: int) -> tuple[Key, ...]:
    """Return the table of keys, with the defaults in which the families differ."""
    return (
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("max_position_embeddings", "dims.length", positions),
        Key("hidden_size", "dims.width", 768),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_attention_heads", "dims.heads", 12),
        Key("intermediate_size", "feedforward.inner", 3072, factors=EXPAND),
        Key("type_vocab_size", "embedding.segments", 2),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )


class HeadNames(NamedTuple):
    """Tensor names of the masked language modelling head."""

    path: str
    dense: str
    norm: str


PREDICTIONS: Final = HeadNames("cls.predictions", "transform.dense", "transform.LayerNorm")
POOLED: Final = {"nsp": "cls.seq_relationship", "classify": "classifier", "regress": "classifier"}
"""Tensor names of the scores behind the pooler, by objective."""
LM_HEAD: Final = HeadNames("lm_head", "dense", "layer_norm")


def read(config: Config, spec: Mapping[str, Any]) -> None:
    """Reject a missing segment table, because the class looks up segment 0 of every token."""
    if not spec["embedding"]["segments"]:
        config.add_problem("type_vocab_size", "`type_vocab_size` must be at least 1, got 0", "at least 1")


def read_labels(config: Config, spec: MutableMapping[str, Any]) -> None:
    """Read the number of classes; one is a score, as in `transformers`."""
    count, problem = len(config.values.get("id2label") or (0, 1)), config.values.get("problem_type")
    if problem == "multi_label_classification" or (problem == "regression" and count != 1):
        config.add_problem("problem_type", f"`problem_type` is {problem!r} with {count} labels", "one class or score")
    elif count == 1 and spec["objective"] == CLASSIFY:
        spec["objective"], spec["corpus"] = dict(REGRESS), "overlap"
    else:
        spec["objective"] = {**spec["objective"], "classes": count}


def write_labels(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    """Write default names of the classes, and that one class is a score."""
    head = spec["objective"]
    if isinstance(head, Mapping) and head["name"] in ("classify", "regress", "tag"):
        names = {str(number): f"LABEL_{number}" for number in range(head.get("classes", 1))}
        if head["name"] == "regress":
            config["problem_type"] = "regression"  # otherwise pipelines apply a sigmoid to the score
        config["id2label"], config["label2id"] = names, {name: int(number) for number, name in names.items()}


def moves(spec: Mapping[str, Any], body: str, head: HeadNames, pooler: str = "pooler.dense") -> Iterator[Move]:
    """Yield all tensors of the body and of its heads."""
    embeddings = f"{body}.embeddings"
    nodes = spec["objective"] if isinstance(spec["objective"], (list, tuple)) else [spec["objective"]]
    heads = {node["name"]: node for node in nodes}
    has_transform = "mlm" in heads and heads["mlm"]["transform"]
    tied = (f"{head.path}.decoder.weight",) if has_transform else ()
    yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", tied_names=tied)
    if spec["embedding"]["segments"]:
        yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
    yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
    if has_transform:
        yield Move("objectives.mlm.bias", f"{head.path}.bias", tied_names=(f"{head.path}.decoder.bias",))
    if "extract" in heads:
        yield Move("objectives.extract.head.weight", "qa_outputs.weight")
    for kind in ("weight", "bias"):
        yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
        if "tag" in heads:
            yield Move(f"objectives.tag.head.{kind}", f"classifier.{kind}")
        if has_transform:
            yield Move(f"objectives.mlm.dense.{kind}", f"{head.path}.{head.dense}.{kind}")
            yield Move(f"objectives.mlm.norm.{kind}", f"{head.path}.{head.norm}.{kind}")
        for name, scores in POOLED.items():
            if name in heads:
                yield Move(f"objectives.{name}.head.dense.{kind}", f"{body}.{pooler}.{kind}")
                yield Move(f"objectives.{name}.head.scores.{kind}", f"{scores}.{kind}")
    yield from layer_moves(spec, f"{body}.encoder.layer", POST_NORM)
