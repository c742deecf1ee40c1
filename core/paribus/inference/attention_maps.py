"""Attention weights of a text: `paribus.attend(model, "The import statement")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from paribus.errors import Problem, SpecError, join_names
from paribus.inference.attention_scores import AttentionScores, ScoreReader, read_scores
from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.generation_strategies import sample_texts
from paribus.inference.prompts import (
    TextOrIds,
    check_room,
    encode_prompts,
    generation_request,
    generation_target,
    require_text,
    resolve_model,
    text_stream,
)
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.parts.context import Memory
from paribus.registry import Registry
from paribus.slots.objective import GenerationTarget
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.topology import Topology, memory_of

Kind = Literal["self", "cross", "source"]
KINDS: Final[tuple[Kind, ...]] = ("self", "cross", "source")


class AttentionMaps(NamedTuple):
    """Attention weights of each layer, with the tokens of queries and keys."""

    kind: Kind  # self-attention of the text, cross-attention, or self-attention of the source
    query_tokens: tuple[str, ...]  # for `cross`, the tokens that each query predicts
    key_tokens: tuple[str, ...]
    layers: tuple[Tensor | None, ...]  # (H, T, S) each; None: the layer has no weights
    second: int | None = None  # the first token of the second text, of a pair
    scores: tuple[AttentionScores | None, ...] = ()  # of each layer, if they were requested; None: it has none
    reasons: tuple[str, ...] = ()  # why a layer has no scores, or an empty text
    query_words: tuple[int | None, ...] = ()  # number of each token's word, as Hugging Face's `word_ids`; (): unknown
    key_words: tuple[int | None, ...] = ()

    def map(self, layer: int | None = None, head: int | None = None) -> tuple[int, Tensor]:
        """Return a layer, by default the last with weights, and the weights (T, S) of one head or their mean."""
        layers_with_weights = [index for index, weights in enumerate(self.layers) if weights is not None]
        if layer is None:
            layer = layers_with_weights[-1]
        if layer not in layers_with_weights:
            message = f"unknown layer {layer}" if not 0 <= layer < len(self.layers) else f"layer {layer} has no weights"
            raise SpecError(
                Problem(code="out-of-range", path="layer", message=message, valid=join_names(layers_with_weights))
            )
        weights = self.layers[layer]
        assert weights is not None, "one that is shown has some"
        if head is not None and not 0 <= head < len(weights):
            valid = join_names(range(len(weights)))
            raise SpecError(Problem(code="out-of-range", path="head", message=f"unknown head {head}", valid=valid))
        return layer, weights.mean(0) if head is None else weights[head]


def attend(
    model: Model | str | Path,
    text: TextOrIds | None = None,
    pair: TextOrIds | None = None,
    *,
    source: TextOrIds | None = None,
    kind: Kind | None = None,
    language: str | None = None,
    source_language: str | None = None,
    scores: bool = False,
    registry: Registry | None = None,
) -> AttentionMaps:
    """Return the attention weights of a text: self-attention, or cross-attention to a `source` (the alignment matrix).

    The default of a model with a source is `cross`. Such a model generates the text if none is given. A model that was
    trained on pairs of segments reads a text and its `pair` as such. `scores` adds the queries, keys and scores of each
    layer whose weights are computed from them.
    """
    model = resolve_model(model, registry)
    source_path = next(part.cross for part in model.topology.parts if part.path == "body")
    kind = kind or ("self" if source_path is None else "cross")
    _check_inputs(kind, source_path, text, source)
    if pair is not None and (text is None or source is not None):
        message = "a pair needs a text, and a model without a source"
        raise SpecError(Problem(code="unused-option", path="pair", message=message, valid="a text and its pair"))
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            if source is not None:
                target = generation_target(model, language, source_language)
                return _with_source(model, kind, text, source, target, scores, registry)
            assert text is not None, "there is a text where there is no source"
            stream = text_stream(model, text, pair, registry)
            ids = stream.tokens[0].tolist()
            maps = _attention_maps(model, kind, ids, ids, _run(model.topology, "body", stream, scores), registry)
            return maps if pair is None else maps._replace(second=_start_of_pair(model, stream, text, registry))
    finally:
        model.train(training)


def _start_of_pair(model: Model, stream: Stream, text: TextOrIds, registry: Registry | None) -> int:
    """Return the first token of the second text, after the first one and its separator."""
    if stream.segments is not None:
        return int((stream.segments[0] == 0).sum())
    return len(text_stream(model, text, None, registry).tokens[0])


def _with_source(
    model: Model,
    kind: Kind,
    text: TextOrIds | None,
    source: TextOrIds,
    target: GenerationTarget,
    scores: bool,
    registry: Registry | None,
) -> AttentionMaps:
    (source_ids,) = encode_prompts(model, [source], registry)
    decoder, (prompt,), limits = generation_request(model, [source_ids], GenerationConfig(), target)
    assert decoder.source is not None, "it reads one"
    source_tokens = list(prompt.source or ())
    if kind == "source":
        stream = decoder.stream(source_tokens, decoder.source_language)
        layers = _run(decoder.topology, decoder.source, stream, scores)
        return _attention_maps(model, kind, source_tokens, source_tokens, layers, registry)
    if text is None:
        reader = Reader(decoder, [prompt], limits, cached=decoder.has_cache)
        ids = list(sample_texts(reader, GenerationConfig(), [0], lambda done, total: None)[0][0].ids)
    else:
        (ids,) = encode_prompts(model, [text], registry)
    target_tokens = ids if prompt.stop is None else [*ids, prompt.stop]
    input_ids = [*prompt.body, *target_tokens[:-1]]
    check_room(model, input_ids if target_tokens else [])
    memory = memory_of(
        decoder.topology.run({decoder.source: decoder.stream(source_tokens, decoder.source_language)}, decoder.source)
    )
    layers = _run(decoder.topology, "body", decoder.stream(input_ids, decoder.language), scores, memory)
    if kind == "self":
        return _attention_maps(model, kind, input_ids, input_ids, layers, registry)
    return _attention_maps(model, kind, [*input_ids[1:], target_tokens[-1]], source_tokens, layers, registry)


class _Layers(NamedTuple):
    """Captured weights of each layer, and the reader of their scores if they were requested."""

    captured: Sequence[Mapping[str, Tensor]]
    reader: ScoreReader | None


def _run(topology: Topology, part: str, stream: Stream, scores: bool, memory: Memory | None = None) -> _Layers:
    try:
        with read_scores(topology) if scores else nullcontext() as reader:
            return _Layers(topology.run({part: stream}, part, memory=memory, capture=True).captured, reader)
    except ValueError as error:
        raise SpecError(Problem(code="missing-weights", path="attention", message=str(error))) from error


def _attention_maps(
    model: Model,
    kind: Kind,
    query_ids: Sequence[int],
    key_ids: Sequence[int],
    layers: _Layers,
    registry: Registry | None,
) -> AttentionMaps:
    key = "cross" if kind == "cross" else "weights"
    captured = [layer.get(key) for layer in layers.captured]
    if all(weights is None for weights in captured):
        message = "this model has no attention weights"
        other_kinds = [other_kind for other_kind in KINDS if other_kind != kind] if any(layers.captured) else []
        raise SpecError(Problem(code="missing-weights", path="kind", message=message, valid=join_names(other_kinds)))
    (queries, query_words), (keys, key_words) = (_tokens(model, ids, registry) for ids in (query_ids, key_ids))
    maps = AttentionMaps(
        kind,
        queries,
        keys,
        tuple(None if weights is None else weights[0] for weights in captured),
        query_words=query_words,
        key_words=key_words,
    )
    if layers.reader is None:
        return maps
    read = ["it has no weights" if weights is None else layers.reader.scores_of(weights) for weights in captured]
    return maps._replace(
        scores=tuple(None if isinstance(scores, str) else scores for scores in read),
        reasons=tuple(scores if isinstance(scores, str) else "" for scores in read),
    )


def _tokens(
    model: Model, ids: Sequence[int], registry: Registry | None
) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Return the text of each token, and the number of its word.

    A token that continues a word starts with `##` if the texts of tokens do not have the spaces between words.
    """
    if model.text is None and not model.tokenizer:
        return tuple(map(str, ids)), ()
    text = require_text(model, registry)
    tokens, words = [text.decode([token]) for token in ids], _word_ids(ids, text.vocabulary)
    if words and "".join(tokens).count(" ") != text.decode(ids).count(" "):
        for index in range(1, len(ids)):
            if words[index] is not None and words[index] == words[index - 1]:
                tokens[index] = f"##{tokens[index]}"
    return tuple(tokens), words


def _word_ids(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[int | None, ...]:
    """Return the number of each token's word, None for special tokens; nothing if the starts of words are unknown."""
    if vocabulary.word_starts is None:
        return ()
    words: list[int | None] = []
    number = -1
    for token in ids:
        if token in vocabulary.reserved:
            words.append(None)
            continue
        if token in vocabulary.word_starts or not words or words[-1] is None:
            number += 1
        words.append(number)
    return tuple(words)


def _check_inputs(kind: Kind, source_path: str | None, text: TextOrIds | None, source: TextOrIds | None) -> None:
    """Validate `kind`, and that text and source match the model."""
    if kind not in KINDS or (source_path is None and kind != "self"):
        valid = join_names(KINDS if source_path is not None else ["self"])
        raise SpecError(
            Problem(code="missing-weights", path="kind", message=f"this model has no `{kind}` weights", valid=valid)
        )
    if (source is None) != (source_path is None):
        message = "expected a source" if source_path else "this model has no source"
        raise SpecError(
            Problem(code="invalid-source", path="source", message=message, valid="a text" if source_path else "none")
        )
    if source_path is None and text is None:
        raise SpecError(Problem(code="no-text", path="text", message="expected a text", valid="a text"))
