"""Contextual embeddings of texts: `paribus.embed(model, texts)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.inference.decoder import Decoder, pad_ids
from paribus.inference.prompts import TextOrIds, as_prompts, encode_prompts, join_pair, position_limit, resolve_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.parts.context import Capture
from paribus.parts.stack import Stack
from paribus.registry import Registry

Pool = Literal["mean", "first", "last", "none"]
Combine = Literal["mean", "sum", "concat"]
POOLS: Final[tuple[Pool, ...]] = get_args(Pool)
COMBINATIONS: Final[tuple[Combine, ...]] = get_args(Combine)


class Embeddings(NamedTuple):
    """Embeddings of texts from one layer, or from several."""

    vectors: tuple[Tensor, ...]  # (D,) for each text, or (T, D) without pooling; on the CPU. D: of all, if concatenated
    ids: tuple[tuple[int, ...], ...]  # of each text, without special tokens
    tokens: tuple[tuple[str, ...], ...]  # the same as text; empty if the model has no tokenizer
    layers: tuple[int, ...]  # indices of the layers; 0 is the embedding


class TextEncoder(NamedTuple):
    """Part of a model that encodes texts, and the special tokens before and after a text."""

    model: Model
    path: str
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


class Row(NamedTuple):
    """Tokens that a model reads of one text, or of a pair."""

    ids: Sequence[int]
    is_text: Sequence[bool]  # for each token: not a mark
    segments: Sequence[int] | None = None

    @property
    def text(self) -> Iterator[int]:
        return compress(self.ids, self.is_text)


def embed(
    model: Model | str | Path,
    texts: TextOrIds | Sequence[TextOrIds],
    pairs: TextOrIds | Sequence[TextOrIds] | None = None,
    *,
    layers: int | slice | Sequence[int] = -1,
    combine: Combine = "mean",
    pool: Pool = "mean",
    part: str | None = None,
    batch: int = 32,
    registry: Registry | None = None,
) -> Embeddings:
    """Return contextual embeddings of texts, or of lists of ids, from one layer of a trained model, or from several.

    `paribus.embed("runs/bert", ["Two texts.", "Both at once."], layers=2).vectors`. Layer 0 is the embedding's rows,
    the last one the stack's output, behind its final norm if it has one, and -1 is that as well. The rows of several
    layers, such as `slice(-4, None)`, are combined: by `mean`, `sum` or `concat`. Pooled are the rows of the text
    itself, by `mean`; or the `first` or the `last` that is read, which may be a mark: where rows see both sides, a text
    stands between the marks of one segment if the model was trained on such. Of a model with two stacks, `part` says
    which; unless it does, it is the one that reads a source. With `pairs`, each text is read together with its second
    one, as a pair of segments that the model was trained on, and the rows of both are pooled.
    """
    _known(pool, combine, batch)
    model = resolve_model(model, registry)
    encoder = _text_encoder(model, part)
    numbers_of_layers = _layers(encoder, layers)
    firsts = encode_prompts(model, as_prompts(texts), registry)
    seconds = None if pairs is None else encode_prompts(model, as_prompts(pairs), registry)
    rows = _rows(encoder, firsts, seconds, registry)
    _check_lengths(encoder, rows)
    ids = [list(row.text) for row in rows]
    vectors: dict[int, Tensor] = {}
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for numbers in _batches(encoder, rows, batch):
                read = _read(encoder, [rows[index] for index in numbers], numbers_of_layers, combine, pool)
                vectors.update(zip(numbers, read, strict=True))
    finally:
        model.train(training)
    decode = None if model.text is None else model.text.decode
    tokens = tuple(() if decode is None else tuple(decode([token]) for token in text) for text in ids)
    ordered = tuple(vectors[index] for index in range(len(ids)))
    return Embeddings(ordered, tuple(map(tuple, ids)), tokens, numbers_of_layers)


def _known(pool: str, combine: str, batch: int) -> None:
    for key, name, names in (("pool", pool, POOLS), ("combine", combine, COMBINATIONS)):
        if name not in names:
            message = f'unknown {key} "{name}"'
            raise SpecError(Problem(code=f"unknown-{key}", path=key, message=message, valid=join_names(names)))
    if batch < 1:
        raise SpecError(
            Problem(code="out-of-range", path="batch", message=f"expected at least 1, got {batch}", valid="≥ 1")
        )


def _text_encoder(model: Model, part: str | None) -> TextEncoder:
    """Return the requested part; the default is the encoder, if the body attends to one."""
    if model.topology.embedding.values_per_example is not None:
        message = "expected a model of text, got one of images"
        raise SpecError(Problem(code="no-text", path="embedding", message=message, valid="a model of text"))
    parts = {stack_part.path: stack_part for stack_part in model.topology.parts}
    path = part or parts["body"].cross or "body"
    if path not in parts or parts[path].cross is not None:
        message = "this part needs a source" if path in parts else "unknown part"
        valid = join_names(name for name, stack_part in parts.items() if stack_part.cross is None)
        raise SpecError(Problem(code="unknown-part", path="part", message=f"`{path}`: {message}", valid=valid))
    uses_marks = any(model.objective(name).traits.get("segments") for name in model.trained)
    specials = (
        model.text.vocabulary.specials if model.text is not None and uses_marks and not parts[path].causal else {}
    )
    prefix, suffix = ((specials[name],) if name in specials else () for name in ("cls", "sep"))
    return TextEncoder(model, path, prefix, suffix)


def _layers(encoder: TextEncoder, layers: int | slice | Sequence[int]) -> tuple[int, ...]:
    """Return the indices of layers, from 0, the embedding, to the number of layers."""
    stage = encoder.model.topology.stage(encoder.path)
    if not isinstance(stage, Stack):
        if layers != -1:
            message = f"the part `{encoder.path}` has no layers, got {layers}"
            raise SpecError(Problem(code="unknown-layer", path="layers", message=message, valid="-1, its output"))
        return (0,)
    indices = range(len(stage.layers) + 1)
    try:
        chosen = indices[layers] if isinstance(layers, int | slice) else [indices[layer] for layer in layers]
    except IndexError:
        chosen = []
    numbers = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    if not numbers:
        message = f"unknown layers {layers} of `{encoder.path}`, which has {len(stage.layers)}"
        valid = f"from 0, the embedding's rows, to {indices[-1]}; or from -1, the last, to {-len(indices)}"
        raise SpecError(Problem(code="unknown-layer", path="layers", message=message, valid=valid))
    return numbers


def _rows(
    encoder: TextEncoder,
    texts: Sequence[Sequence[int]],
    seconds: Sequence[Sequence[int]] | None,
    registry: Registry | None,
) -> list[Row]:
    """Return what the model reads of each text, or of each pair."""
    before, after = [False] * len(encoder.prefix), [False] * len(encoder.suffix)
    if seconds is None:
        return [
            Row((*encoder.prefix, *text, *encoder.suffix), (*before, *[True] * len(text), *after)) for text in texts
        ]
    if len(seconds) != len(texts):
        message, valid = f"{len(texts)} texts have {len(seconds)} second texts", "one for each text"
        raise SpecError(Problem(code="wrong-count", path="pairs", message=message, valid=valid))
    rows = []
    for first, second in zip(texts, seconds, strict=True):
        ids, segments = join_pair(encoder.model, first, second, registry)
        is_text = (*before, *[True] * len(first), *after, *[True] * len(second), *after)
        rows.append(Row(ids, is_text, segments))
    return rows


def _check_lengths(encoder: TextEncoder, rows: Sequence[Row]) -> None:
    """Raise an error for texts that are empty or longer than the positions."""
    limit = position_limit(encoder.model.topology, encoder.path)
    problems: list[Problem] = []
    for index, row in enumerate(rows):
        path, length = f"text {index + 1}", sum(row.is_text)
        mark_count = len(row.ids) - length
        if not length:
            problems.append(
                Problem(
                    code="empty-text", path=path, message="expected at least one token, got none", valid="at least one"
                )
            )
        elif limit is not None and len(row.ids) > limit:
            message = (
                f"it has {length:,} tokens and {mark_count} marks, but the positions of this model end at {limit:,}"
            )
            problems.append(
                Problem(
                    code="position-out-of-range", path=path, message=message, valid=f"≤ {limit - mark_count:,} tokens"
                )
            )
    if problems:
        raise DataError(*problems)


def _batches(encoder: TextEncoder, rows: Sequence[Row], batch: int) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, or of equal length if padding cannot be masked."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    groups: dict[int, list[int]] = {}
    can_mask_padding = Decoder(encoder.model.topology, nn.Identity()).can_mask_padding
    for index in order:
        groups.setdefault(0 if can_mask_padding else len(rows[index].ids), []).append(index)
    for group in groups.values():
        yield from (group[index : index + batch] for index in range(0, len(group), batch))


def _read(
    encoder: TextEncoder, rows: Sequence[Row], layers: Sequence[int], combine: Combine, pool: Pool
) -> list[Tensor]:
    """Return the vectors of one batch of texts, on the CPU, so that those of many batches fit."""
    device = next(encoder.model.parameters()).device
    stream = Stream(*pad_ids([row.ids for row in rows], device, on_left=False))
    segments = [row.segments for row in rows if row.segments is not None]
    if segments:
        stream = stream._replace(segments=pad_ids(segments, device, on_left=False)[0])
    by_layer = _hidden(encoder, stream, layers)
    states = [by_layer[layer] for layer in layers]
    hidden = torch.cat(states, -1) if combine == "concat" else sum(states[1:], states[0])
    hidden = (hidden / len(states) if combine == "mean" else hidden).cpu()
    hidden_states: list[Tensor] = []
    for text_states, row in zip(hidden, rows, strict=True):
        if pool in ("first", "last"):
            hidden_states.append(text_states[0 if pool == "first" else len(row.ids) - 1].clone())
            continue
        text = text_states[: len(row.ids)][torch.tensor(row.is_text)]
        hidden_states.append(text.mean(0) if pool == "mean" else text)
    return hidden_states


def _hidden(encoder: TextEncoder, stream: Stream, numbers: Sequence[int]) -> dict[int, Tensor]:
    """Return the outputs (B, T, D) of layers: of the last one behind the final norm, and of layer 0 its input."""
    stage = encoder.model.topology.stage(encoder.path)
    last = len(stage.layers) if isinstance(stage, Stack) else 0
    capture = Capture(hidden=tuple(number for number in numbers if number < last))
    output = encoder.model.topology.run({encoder.path: stream}, encoder.path, capture=capture)
    layers = {
        number: output.captured[number - 1]["hidden"] if number else output.captured[0]["input"]
        for number in capture.hidden
    }
    return {**layers, last: output.hidden}
