"""What each row of a text weighs of which other: `paribus.attend(model, "The import statement")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from paribus.errors import Problem, SpecError, join_names
from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.prompts import (
    Given,
    asked,
    check_room,
    encode_prompts,
    generation_target,
    require_text,
    resolve_model,
    whole,
)
from paribus.inference.search import sample_texts
from paribus.parts.batch import Stream
from paribus.parts.context import Memory
from paribus.registry import Registry
from paribus.slots.objective import GenerationTarget
from paribus.slots.topology import Topology, memory_of
from paribus.train.model import Model

Of = Literal["own", "cross", "source"]
OF: Final[tuple[Of, ...]] = ("own", "cross", "source")


class AttentionMaps(NamedTuple):
    """Weights, layer by layer, and the tokens that stand for their rows and columns."""

    of: Of  # a text's rows among themselves, its rows and those of the source, or those of the source among themselves
    rows: tuple[str, ...]  # of `cross`, what each row writes; else what it reads
    columns: tuple[str, ...]
    layers: tuple[Tensor | None, ...]  # (H, T, S) each; None: this layer has none to show

    def map(self, layer: int | None = None, head: int | None = None) -> tuple[int, Tensor]:
        """(T, S): of one head, or the mean of all, of a layer, or of the last that has weights; and its number."""
        shown = [place for place, weights in enumerate(self.layers) if weights is not None]
        if layer is None:
            layer = shown[-1]
        if layer not in shown:
            what = f"it is {layer}" if not 0 <= layer < len(self.layers) else f"layer {layer} has no weights to show"
            raise SpecError(Problem(code="out-of-range", path="layer", message=what, valid=join_names(shown)))
        weights = self.layers[layer]
        assert weights is not None, "one that is shown has some"
        if head is not None and not 0 <= head < len(weights):
            valid = join_names(range(len(weights)))
            raise SpecError(Problem(code="out-of-range", path="head", message=f"it is {head}", valid=valid))
        return layer, weights.mean(0) if head is None else weights[head]


def attend(
    model: Model | str | Path,
    text: Given | None = None,
    *,
    source: Given | None = None,
    of: Of | None = None,
    language: str | None = None,
    source_language: str | None = None,
    registry: Registry | None = None,
) -> AttentionMaps:
    """How much each row of a text weighs which: its own rows, or those of a `source` (`cross`, the alignment matrix).

    A model that reads a source shows `cross` unless told otherwise, and writes the text itself where none is given.
    """
    model = resolve_model(model, registry)
    crosses = next(part.cross for part in model.topology.parts if part.path == "body")
    of = of or ("own" if crosses is None else "cross")
    _fits(of, crosses, text, source)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            if source is not None:
                wish = generation_target(model, language, source_language)
                return _with_source(model, of, text, source, wish, registry)
            assert text is not None, "there is a text where there is no source"
            ids = whole(model, text, registry)
            rows = Stream(torch.tensor([ids], device=model.device))
            return _shown(model, of, ids, ids, _weights(model.topology, "body", rows), registry)
    finally:
        model.train(training)


def _with_source(
    model: Model, of: Of, text: Given | None, source: Given, wish: GenerationTarget, registry: Registry | None
) -> AttentionMaps:
    (given,) = encode_prompts(model, [source], registry)
    voice, (prompt,), most = asked(model, [given], GenerationConfig(), wish)
    assert voice.source is not None, "it reads one"
    read = list(prompt.source or ())
    if of == "source":
        stream = voice.stream(read, voice.source_language)
        return _shown(model, of, read, read, _weights(voice.topology, voice.source, stream), registry)
    if text is None:
        reader = Reader(voice, [prompt], most, cached=voice.steps)
        ids = list(sample_texts(reader, GenerationConfig(), [0], lambda done, most: None)[0][0].ids)
    else:
        (ids,) = encode_prompts(model, [text], registry)
    ended = ids if prompt.stop is None else [*ids, prompt.stop]
    rows = [*prompt.body, *ended[:-1]]
    check_room(model, rows if ended else [])
    memory = memory_of(voice.topology.run({voice.source: voice.stream(read, voice.source_language)}, voice.source))
    weights = _weights(voice.topology, "body", voice.stream(rows, voice.language), memory)
    if of == "own":
        return _shown(model, of, rows, rows, weights, registry)
    return _shown(model, of, [*rows[1:], ended[-1]], read, weights, registry)


def _weights(
    topology: Topology, part: str, stream: Stream, memory: Memory | None = None
) -> Sequence[Mapping[str, Tensor]]:
    try:
        return topology.run({part: stream}, part, memory=memory, capture=True).captured
    except ValueError as error:
        raise SpecError(Problem(code="no-weights", path="attention", message=str(error))) from error


def _shown(
    model: Model,
    of: Of,
    rows: Sequence[int],
    columns: Sequence[int],
    weights: Sequence[Mapping[str, Tensor]],
    registry: Registry | None,
) -> AttentionMaps:
    key = "cross" if of == "cross" else "weights"
    layers = tuple(layer[key][0] if key in layer else None for layer in weights)
    if all(layer is None for layer in layers):
        what = "there are no attention weights to show: no layer says how much a row weighs another"
        others = [each for each in OF if each != of] if any(weights) else []
        raise SpecError(Problem(code="no-weights", path="of", message=what, valid=join_names(others)))
    named = _names(model, rows, registry), _names(model, columns, registry)
    return AttentionMaps(of, *named, layers)


def _names(model: Model, ids: Sequence[int], registry: Registry | None) -> tuple[str, ...]:
    if model.text is None and not model.tokenizer:
        return tuple(map(str, ids))
    return tuple(require_text(model, registry).decode([token]) for token in ids)


def _fits(of: Of, crosses: str | None, text: Given | None, source: Given | None) -> None:
    """Refuses a source that nobody would read, and the lack of one, or of a text."""
    if of not in OF or (crosses is None and of != "own"):
        valid = join_names(OF if crosses is not None else ["own"])
        raise SpecError(Problem(code="no-weights", path="of", message=f"this model has no `{of}` to show", valid=valid))
    if (source is None) != (crosses is None):
        what = "this model reads a source, and there is none" if crosses else "this model reads no source"
        raise SpecError(Problem(code="source", path="source", message=what, valid="a text" if crosses else "none"))
    if crosses is None and text is None:
        raise SpecError(Problem(code="no-text", path="text", message="there is none", valid="a text"))
