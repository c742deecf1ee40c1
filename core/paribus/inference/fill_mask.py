"""Prediction of masked tokens: `paribus.fill(model, "The <mask> statement")`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.inference.prompts import TextOrIds, require_text, resolve_model, text_stream, vocabulary_size
from paribus.models.lightning_module import Model
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.registry import Registry


class Candidate(NamedTuple):
    """Candidate token for a mask."""

    text: str | None  # None if the model has no tokenizer
    id: int
    probability: float


def fill(
    model: Model | str | Path,
    text: TextOrIds,
    pair: TextOrIds | None = None,
    *,
    top: int = 5,
    registry: Registry | None = None,
) -> tuple[tuple[Candidate, ...], ...]:
    """Return the `top` most probable tokens of each `<mask>` of a text, the most probable first.

    The text may also be a list of ids, or a text and its `pair`, for a model that was trained on pairs of segments. All
    masks are filled independently, in one pass.
    """
    if top < 1:
        raise SpecError(
            Problem(code="out-of-range", path="top", message=f"expected at least 1, got {top}", valid="≥ 1")
        )
    model = resolve_model(model, registry)
    mask = _mask(model, text, registry)
    stream = text_stream(model, text, pair, registry, joined=mask)
    ids = stream.tokens[0].tolist()
    positions = [position for position, token in enumerate(ids) if token == mask]
    if not positions:
        message = "expected at least one `<mask>`, got none"
        raise DataError(
            Problem(code="missing-mask", path="text", message=message, valid="`<mask>` in place of a token")
        )
    best = _scores(model, stream, positions).double().softmax(-1).topk(min(top, vocabulary_size(model)), dim=-1)
    decode = None if model.text is None else model.text.decode
    return tuple(
        tuple(
            Candidate(None if decode is None else decode([token]), token, share)
            for token, share in zip(tokens, shares, strict=True)
        )
        for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def _mask(model: Model, text: TextOrIds, registry: Registry | None) -> int:
    tokenizer = require_text(model, registry) if isinstance(text, str) else model.text
    specials = tokenizer.vocabulary.specials if tokenizer is not None else {}
    if "mask" not in specials:
        message = f"its special tokens are {join_names(specials) or 'not known'}, without a mask"
        raise DataError(
            Problem(code="missing-mask", path="tokenizer", message=message, valid="a tokenizer with a mask")
        )
    return specials["mask"]


def _scores(model: Model, stream: Stream, positions: Sequence[int]) -> Tensor:
    """Return the scores (N, V) of the first objective that predicts masked tokens."""
    training, pick = model.training, torch.tensor([positions], device=model.device)
    streams = {part.path: stream for part in model.topology.parts}
    targets = {name: {"pick": pick, "labels": torch.full_like(pick, IGNORED)} for name in model.trained}
    model.eval()
    try:
        with torch.inference_mode():
            run = model.run(Batch(streams, targets, torch.zeros(1, dtype=torch.long)))
            for name in model.trained:
                scores = model.objective(name).fill_logits(run.of(name))
                if scores is not None:
                    return scores[0]
    finally:
        model.train(training)
    message = f"a model that was trained for {join_names(model.trained)} cannot predict masked tokens"
    raise SpecError(Problem(code="cannot-fill", path="objective", message=message, valid="a model that was trained to"))
