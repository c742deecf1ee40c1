"""What stands behind a mask: `paribus.fill(model, "The <mask> statement")`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.inference.prompts import Given, require_text, resolve_model, vocabulary_size, whole
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.registry import Registry
from paribus.train.model import Model


class Candidate(NamedTuple):
    """A token that may stand behind a mask."""

    text: str | None  # None where the model has no tokenizer, and was asked by ids
    id: int
    probability: float


def fill(
    model: Model | str | Path, text: Given, *, top: int = 5, registry: Registry | None = None
) -> tuple[tuple[Candidate, ...], ...]:
    """For each `<mask>` of a text the `top` most probable tokens, the most probable first.

    A text may be given as ids as well. All masks are filled by one pass, none of which sees what another may hide.
    """
    if top < 1:
        raise SpecError(Problem(code="out-of-range", path="top", message=f"it is {top}", valid="≥ 1"))
    model = resolve_model(model, registry)
    mask = _mask(model, text, registry)
    ids = whole(model, text, registry, joined=mask)
    places = [place for place, token in enumerate(ids) if token == mask]
    if not places:
        what = "there is no mask in it"
        raise DataError(Problem(code="no-mask", path="text", message=what, valid="`<mask>` where a token is asked for"))
    best = _scores(model, ids, places).double().softmax(-1).topk(min(top, vocabulary_size(model)), dim=-1)
    decode = None if model.text is None else model.text.decode
    return tuple(
        tuple(
            Candidate(None if decode is None else decode([token]), token, share)
            for token, share in zip(tokens, shares, strict=True)
        )
        for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def _mask(model: Model, text: Given, registry: Registry | None) -> int:
    known = require_text(model, registry) if isinstance(text, str) else model.text
    specials = known.vocabulary.specials if known is not None else {}
    if "mask" not in specials:
        what = f"its special tokens are {join_names(specials) or 'not known'}, and there is no mask among them"
        raise DataError(Problem(code="no-mask", path="tokenizer", message=what, valid="a tokenizer with a mask"))
    return specials["mask"]


def _scores(model: Model, ids: Sequence[int], places: Sequence[int]) -> Tensor:
    """(N, V): by the head of the first objective that fills gaps."""
    device, training = model.device, model.training
    rows, pick = torch.tensor([ids], device=device), torch.tensor([places], device=device)
    streams = {part.path: Stream(rows) for part in model.topology.parts}
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
    what = f"a model that was trained for {join_names(model.trained)} fills no gaps"
    raise SpecError(Problem(code="cannot-fill", path="objective", message=what, valid="a model that was trained to"))
