"""Mixture of denoisers: span corruption at several rates, and sequential denoising, with a mode token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, NamedTuple, final

import numpy as np
from torch import Tensor

from paribus import (
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Prompt,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import vocabulary_head, z_loss
from paribus_objective.encoder_decoder import Side, Sides
from paribus_objective.spans import Array, NoiseSize, corrupt_spans, noise_size, side_lengths


class Denoiser(NamedTuple):
    """Parameters of one kind of span corruption."""

    mode: int
    rate: float
    mean_span: float | None  # None: one span, at the end

    def noise_size(self, length: int) -> NoiseSize:
        size = noise_size(length, self.rate, self.mean_span or 1.0)
        return size if self.mean_span is not None else NoiseSize(size.tokens, 1)


REGULAR, SEQUENTIAL, EXTREME = range(3)
MODES: Final = 3
DENOISERS: Final = (  # table 1 of the paper
    Denoiser(REGULAR, 0.15, 3.0),
    Denoiser(REGULAR, 0.15, 8.0),
    Denoiser(SEQUENTIAL, 0.25, None),
    Denoiser(EXTREME, 0.5, 3.0),
    Denoiser(EXTREME, 0.5, 8.0),
    Denoiser(EXTREME, 0.15, 64.0),
    Denoiser(EXTREME, 0.5, 64.0),
)


@final
class MixtureOfDenoisers(Objective, WeightConverter):
    """Mixture of denoisers: each example is corrupted by one of seven denoisers, and starts with a token of the mode of
    that denoiser. "UL2" (Tay et al. 2022).

    Regular: few short spans. Sequential: the last quarter, as in a prefix language model. Extreme: long spans, or many.
    The denoisers of one mode are equally likely. Everything else is as in `span-corruption`; the mode tokens are the
    last three sentinels.
    (B, n) -> encoder (B, S), body and labels (B, T), padded; S and T depend on n only.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "adds_padding": True,
        "needs": ["sentinels", "eos"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = z_loss.forward
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        regular: Annotated[float, "weight of few short spans", Range(0)] = 2.0,
        sequential: Annotated[float, "weight of one span at the end of the text", Range(0)] = 1.0,
        extreme: Annotated[float, "weight of long or many spans", Range(0)] = 4.0,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.z, self.terms = z, z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        weights = (regular, sequential, extreme)
        if not sum(weights):
            raise ValueError("expected `regular`, `sequential` or `extreme` > 0, got 0 for all")
        self.classes = shape.vocabulary
        counts = [sum(denoiser.mode == mode for denoiser in DENOISERS) for mode in range(MODES)]
        shares = np.array([weights[denoiser.mode] / counts[denoiser.mode] for denoiser in DENOISERS])
        self.denoisers = tuple(denoiser for denoiser, share in zip(DENOISERS, shares, strict=True) if share)
        self.cdf = (shares[shares > 0] / shares.sum()).cumsum()[:-1]
        self.sides = Sides(vocabulary, "ul2")
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)
        span_sentinels = max(len(vocabulary.sentinels) - MODES, 0)
        self.sentinels = np.array(vocabulary.sentinels[:span_sentinels], dtype=np.int64)
        self.mode_tokens = vocabulary.sentinels[span_sentinels:]
        self._check(shape.length)

    def text_length(self, length: int) -> int:
        """Return the length of the longest text both sides of which fit `length`, for every denoiser."""
        text_length = 2
        while max(self._side_lengths(text_length + 1)) <= length:
            text_length += 1
        return text_length

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        tokens: Array = streams["body"].tokens.numpy()
        choices = np.searchsorted(self.cdf, draw.uniform("denoiser", 1)[:, 0].numpy(), side="right")
        widths = [length - 1 for length in self._side_lengths(tokens.shape[1])]  # eos is appended later
        source, target = (_empty_side(len(tokens), width) for width in widths)
        for number, denoiser in enumerate(self.denoisers):
            examples = np.flatnonzero(choices == number)
            if not len(examples):
                continue
            examples_draw = Draw(draw.seed, draw.epoch, draw.index[examples], draw.progress)
            size = denoiser.noise_size(tokens.shape[1])
            text, noise = corrupt_spans(tokens[examples], size, self.sentinels, examples_draw)
            _write(source, examples, text, self.mode_tokens[denoiser.mode])
            _write(target, examples, noise)
        return self.sides.example(streams, source, target)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Continue a text, in the sequential mode."""
        sentinel = int(self.sentinels[0])
        return self.sides.prompt((self.mode_tokens[SEQUENTIAL], *ids, sentinel), (sentinel,))

    def head_positions(self, length: int) -> int:
        return self._side_lengths(self.text_length(length))[1]

    def _side_lengths(self, text_length: int) -> tuple[int, int]:
        """Return the lengths of the encoder's and the decoder's side: the maxima over the denoisers."""
        lengths = [side_lengths(text_length, denoiser.noise_size(text_length)) for denoiser in self.denoisers]
        return max(source for source, _ in lengths) + 1, max(target for _, target in lengths)

    def _check(self, length: int) -> None:
        minimum = max(self._side_lengths(2))
        if minimum > length:
            message = f"ul2 needs positions for a mode, a token, a sentinel and eos; got a length of {length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {minimum}"))
        text_length = self.text_length(length)
        needed = max(denoiser.noise_size(text_length).spans for denoiser in self.denoisers) + MODES
        available = len(self.sentinels) + len(self.mode_tokens)
        if needed > available:
            message = (
                f"ul2 needs {needed} sentinels, for {needed - MODES} spans of {text_length} tokens and {MODES} modes; "
                f"the tokenizer has {available}"
            )
            raise SpecError(Problem(code="too-few-sentinels", path="tokenizer", message=message, valid=f"≥ {needed}"))


def _empty_side(examples: int, width: int) -> Side:
    tokens, origins = np.zeros((2, examples, width), dtype=np.int64)
    return Side(tokens, origins, np.zeros(examples, dtype=np.int64))


def _write(side: Side, examples: Array, content: Side, mode_token: int | None = None) -> None:
    """Write the content of some examples into a side, after their mode token."""
    assert side.lengths is not None, "examples of several lengths are padded"
    start = 0 if mode_token is None else 1
    end = start + content.tokens.shape[1]
    side.tokens[examples, start:end], side.origins[examples, start:end] = content.tokens, content.origins
    side.lengths[examples] = end
    if mode_token is not None:
        side.tokens[examples, 0] = mode_token
