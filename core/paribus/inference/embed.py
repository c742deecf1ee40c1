"""The public way to what a model makes of texts: `paribus.embed(model, texts)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.inference.decoder import Decoder, pad_left_or_right
from paribus.inference.prompts import Given, as_prompts, encode_prompts, position_limit, resolve_model
from paribus.parts.batch import Stream
from paribus.parts.stack import Stack
from paribus.registry import Registry
from paribus.train.model import Model

Pool = Literal["mean", "first", "last", "none"]
POOLS: Final[tuple[Pool, ...]] = get_args(Pool)


class Embeddings(NamedTuple):
    """What a layer made of some texts."""

    vectors: tuple[Tensor, ...]  # of each text (D,), or, where its rows are not pooled, (T, D), one for each of its ids
    ids: tuple[tuple[int, ...], ...]  # of each text, without marks around it
    tokens: tuple[tuple[str, ...], ...]  # the same, as they are shown; empty where the model has no tokenizer
    layer: int  # which it was, counted from the embedding's rows, 0


class TextPart(NamedTuple):
    """A part of a model, and the marks that a text stands between there."""

    model: Model
    path: str
    before: tuple[int, ...]
    behind: tuple[int, ...]


def embed(
    model: Model | str | Path,
    texts: Given | Sequence[Given],
    *,
    layer: int = -1,
    pool: Pool = "mean",
    part: str | None = None,
    batch: int = 32,
    registry: Registry | None = None,
) -> Embeddings:
    """What a layer of a trained model makes of texts, or of lists of ids: contextual embeddings.

    `paribus.embed("runs/bert", ["Two texts.", "Both at once."], layer=2).vectors`. Layer 0 is the embedding's rows, the
    last one the stack's output, behind its final norm if it has one, and -1 is that as well. Pooled are the rows of the
    text itself, by `mean`; or the `first` or the `last` that is read, which may be a mark: where rows see both sides, a
    text stands between the marks of one segment if the model was trained on such. Of a model with two stacks, `part`
    says which; unless it does, it is the one that reads a source.
    """
    _known(pool, batch)
    model = resolve_model(model, registry)
    around = _around(model, part)
    number = _layer(around, layer)
    ids = encode_prompts(model, as_prompts(texts), registry)
    _fitting(around, ids)
    vectors: dict[int, Tensor] = {}
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for numbers in _batches(around, ids, batch):
                vectors.update(zip(numbers, _read(around, [ids[at] for at in numbers], number, pool), strict=True))
    finally:
        model.train(training)
    decode = None if model.text is None else model.text.decode
    shown = tuple(() if decode is None else tuple(decode([token]) for token in row) for row in ids)
    return Embeddings(tuple(vectors[at] for at in range(len(ids))), tuple(map(tuple, ids)), shown, number)


def _known(pool: str, batch: int) -> None:
    if pool not in POOLS:
        raise SpecError(Problem(code="unknown-pool", path="pool", message=f"it is {pool!r}", valid=join_names(POOLS)))
    if batch < 1:
        raise SpecError(Problem(code="out-of-range", path="batch", message=f"it is {batch}", valid="≥ 1"))


def _around(model: Model, part: str | None) -> TextPart:
    """The part that is asked: the one that the body attends to, if it attends to one."""
    if model.topology.embedding.values_per_example is not None:
        what = "this model reads images, and texts are to be embedded"
        raise SpecError(Problem(code="no-text", path="embedding", message=what, valid="a model of text"))
    parts = {each.path: each for each in model.topology.parts}
    path = part or parts["body"].cross or "body"
    if path not in parts or parts[path].cross is not None:
        what = "it reads a source besides" if path in parts else "there is no such part"
        valid = join_names(name for name, each in parts.items() if each.cross is None)
        raise SpecError(Problem(code="no-part", path="part", message=f"`{path}`: {what}", valid=valid))
    marked = any(model.objective(name).traits.get("segments") for name in model.trained)
    specials = model.text.vocabulary.specials if model.text is not None and marked and not parts[path].causal else {}
    before, behind = ((specials[name],) if name in specials else () for name in ("cls", "sep"))
    return TextPart(model, path, before, behind)


def _layer(around: TextPart, layer: int) -> int:
    """The number of a layer, from 0, the embedding's rows, to as many as there are."""
    stage = around.model.topology.stage(around.path)
    layers = len(stage.layers) if isinstance(stage, Stack) else None
    if layers is None and layer != -1:
        what = f"the part `{around.path}` is no stack of layers, and layer {layer} is asked for"
        raise SpecError(Problem(code="no-layer", path="layer", message=what, valid="-1, its output"))
    layers = layers or 0
    if not -layers - 1 <= layer <= layers:
        what = f"there is no layer {layer} in `{around.path}`, which has {layers}"
        valid = f"from 0, the embedding's rows, to {layers}; or from -1, the last, to {-layers - 1}"
        raise SpecError(Problem(code="no-layer", path="layer", message=what, valid=valid))
    return layer if layer >= 0 else layers + 1 + layer


def _fitting(around: TextPart, ids: Sequence[Sequence[int]]) -> None:
    """Refuses what has no token, and what is longer than positions can tell apart."""
    most = position_limit(around.model.topology, around.path)
    marks = len(around.before) + len(around.behind)
    problems: list[Problem] = []
    for place, row in enumerate(ids):
        path = f"text {place + 1}"
        if not row:
            problems.append(Problem(code="empty-text", path=path, message="it has no token", valid="at least one"))
        elif most is not None and len(row) + marks > most:
            what = f"it has {len(row):,} tokens and {marks} marks, but the positions of this model end at {most:,}"
            problems.append(Problem(code="past-the-table", path=path, message=what, valid=f"≤ {most - marks:,} tokens"))
    if problems:
        raise DataError(*problems)


def _batches(around: TextPart, ids: Sequence[Sequence[int]], batch: int) -> Iterator[list[int]]:
    """The numbers of texts that are read at once: of about one length, or of one where nothing may be padded."""
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    alike: dict[int, list[int]] = {}
    pads = Decoder(around.model.topology, nn.Identity()).pads
    for at in order:
        alike.setdefault(0 if pads else len(ids[at]), []).append(at)
    for same in alike.values():
        yield from (same[at : at + batch] for at in range(0, len(same), batch))


def _read(around: TextPart, ids: Sequence[Sequence[int]], layer: int, pool: Pool) -> list[Tensor]:
    """The vectors of some texts, read at once."""
    rows = [(*around.before, *row, *around.behind) for row in ids]
    device = next(around.model.parameters()).device
    hidden = _hidden(around, Stream(*pad_left_or_right(rows, device, before=False)), layer)
    found: list[Tensor] = []
    for own, row in zip(hidden, rows, strict=True):
        if pool in ("first", "last"):
            found.append(own[0 if pool == "first" else len(row) - 1].clone())
            continue
        text = own[len(around.before) : len(row) - len(around.behind)]
        found.append(text.mean(0) if pool == "mean" else text.clone())
    return found


def _hidden(around: TextPart, stream: Stream, layer: int) -> Tensor:
    """(B, T, D) of one layer. It is taken as it passes: what is not asked for is kept by nobody."""
    stage = around.model.topology.stage(around.path)
    taken: list[Tensor] = []
    met = 0

    def take(module: nn.Module, given: tuple[Any, ...], made: tuple[Tensor, ...]) -> None:
        nonlocal met
        met += 1
        if met == 1 and layer == 0:
            taken.append(given[0])
        elif met == layer:
            taken.append(made[0])

    layers: list[nn.Module] = []
    if isinstance(stage, Stack) and layer < len(stage.layers):
        layers = list({id(each): each for each in stage.layers}.values())  # one that is met again is one
    handles = [each.register_forward_hook(take) for each in layers]
    try:
        hidden = around.model.topology.run({around.path: stream}, around.path).hidden
    finally:
        for handle in handles:
            handle.remove()
    return taken[0] if taken else hidden
