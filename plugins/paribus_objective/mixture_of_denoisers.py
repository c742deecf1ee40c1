"""Take much or little out of a text, or its end, and say which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, final

import numpy as np
from torch import Tensor, nn

from paribus import (
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Prompt,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, vocabulary_head
from paribus_objective.spans import Amount, Array, amount, apart, sides
from paribus_objective.two_sides import Side, Sides

if TYPE_CHECKING:
    from torchmetrics import Metric


class Denoiser(NamedTuple):
    """One way to take spans out of a text."""

    mode: int  # which of the modes it is of
    rate: float
    mean_span: float | None  # None: one span, at the end

    def amount(self, length: int) -> Amount:
        found = amount(length, self.rate, self.mean_span or 1.0)
        return found if self.mean_span is not None else Amount(found.noise, 1)


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
    """Each example is spoilt in one of seven ways, and a token before it says of which mode that is: "UL2" (Tay et al.
    2022).

    Regular: short spans, few of them. Sequential: the last quarter, as a prefix language model has it. Extreme: long
    spans, or many. The denoisers of one mode are as likely as each other. All else is as in `span-corruption`; the
    modes' tokens are the last three sentinels.
    (B, n) -> encoder (B, S), body and labels (B, T), filled up with padding; S and T follow from n alone.
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "past",
        "parts": ["encoder"],
        "segments": False,
        "pads": True,
        "needs": ["sentinels", "eos"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        regular: Annotated[float, "how often spans are short and few, beside the other two", Range(0)] = 2.0,
        sequential: Annotated[float, "how often the end of a text is taken", Range(0)] = 1.0,
        extreme: Annotated[float, "how often spans are long or many", Range(0)] = 4.0,
    ) -> None:
        super().__init__()
        weights = (regular, sequential, extreme)
        if not sum(weights):
            raise ValueError("`regular`, `sequential` and `extreme` are all 0; valid: one above 0")
        self.classes = shape.vocabulary
        of = [sum(each.mode == mode for each in DENOISERS) for mode in range(MODES)]
        shares = np.array([weights[each.mode] / of[each.mode] for each in DENOISERS])
        self.denoisers = tuple(each for each, share in zip(DENOISERS, shares, strict=True) if share)
        self.ends = (shares[shares > 0] / shares.sum()).cumsum()[:-1]
        self.sides = Sides(vocabulary, "ul2")
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=False)
        cut = max(len(vocabulary.sentinels) - MODES, 0)
        self.sentinels, self.modes = np.array(vocabulary.sentinels[:cut], dtype=np.int64), vocabulary.sentinels[cut:]
        self._check(shape.length)

    def text_length(self, length: int) -> int:
        """The longest text of which both sides fit `length` rows, however it is spoilt."""
        text = 2
        while max(self._rows(text + 1)) <= length:
            text += 1
        return text

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        tokens: Array = streams["body"].tokens.numpy()
        kinds = np.searchsorted(self.ends, draw.uniform("denoiser", 1)[:, 0].numpy(), side="right")
        widths = [rows - 1 for rows in self._rows(tokens.shape[1])]  # eos comes behind them
        read, written = (_empty(len(tokens), width) for width in widths)
        for kind, denoiser in enumerate(self.denoisers):
            rows = np.flatnonzero(kinds == kind)
            if not len(rows):
                continue
            own = Draw(draw.seed, draw.epoch, draw.index[rows], draw.progress)
            left, taken = apart(tokens[rows], denoiser.amount(tokens.shape[1]), self.sentinels, own)
            _put(read, rows, left, self.modes[denoiser.mode])
            _put(written, rows, taken)
        return self.sides.formed(streams, read, written)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text is read in the sequential mode, and what comes behind it is written."""
        first = int(self.sentinels[0])
        return self.sides.prompt((self.modes[SEQUENTIAL], *ids, first), (first,))

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return self._rows(self.text_length(length))[1]

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)

    def _rows(self, text: int) -> tuple[int, int]:
        """How many rows the encoder and the decoder have of a text: as many as the denoiser that makes the most."""
        both = [sides(text, each.amount(text)) for each in self.denoisers]
        return max(read for read, _ in both) + 1, max(written for _, written in both)

    def _check(self, length: int) -> None:
        if max(self._rows(2)) > length:
            what = f"ul2 needs rows for a mode, a token, a sentinel and eos, but there are {length}"
            raise SpecError(
                Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {max(self._rows(2))}")
            )
        text = self.text_length(length)
        needed = max(each.amount(text).spans for each in self.denoisers) + MODES
        had = len(self.sentinels) + len(self.modes)
        if needed > had:
            what = (
                f"ul2 takes {needed - MODES} spans out of {text} tokens, and needs a sentinel for each and for "
                f"{MODES} modes, but the tokenizer has {had}"
            )
            raise SpecError(Problem(code="too-few-sentinels", path="tokenizer", message=what, valid=f"≥ {needed}"))


def _empty(examples: int, width: int) -> Side:
    tokens, places = np.zeros((2, examples, width), dtype=np.int64)
    return Side(tokens, places, np.zeros(examples, dtype=np.int64))


def _put(side: Side, rows: Array, part: Side, mode: int | None = None) -> None:
    """Writes some examples into a side, each behind its mode."""
    assert side.lengths is not None, "examples of several lengths are put together"
    begin = 0 if mode is None else 1
    end = begin + part.tokens.shape[1]
    side.tokens[rows, begin:end], side.places[rows, begin:end] = part.tokens, part.places
    side.lengths[rows] = end
    if mode is not None:
        side.tokens[rows, 0] = mode
