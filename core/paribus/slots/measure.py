"""The slot `measure`: what is asked of a trained model besides its losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from paribus.parts.batch import Batch
from paribus.parts.draw import Draw
from paribus.parts.shape import Shape
from paribus.slots.component import Component, Traits
from paribus.slots.tokenizer import Vocabulary


class TrialInfo(NamedTuple):
    """What is known of a trial before it begins."""

    metrics: tuple[str, ...]  # of the objectives that it is evaluated with: clm/loss, clm/accuracy
    length: int  # rows of an example
    max_length: int | None = None  # rows that the model can read; None: as many as one likes


class GeneratedPair(NamedTuple):
    """A pair of the validation split, as text, and what a model made of its source."""

    source: str
    target: str
    generated: str


class EvaluatedModel(Protocol):
    """A model with its data, as a measure asks it: in the mode in which a model is used, and without a gradient."""

    @property
    def trial(self) -> TrialInfo: ...

    @property
    def shape(self) -> Shape:
        """That of the body."""
        ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def learning_curve(self) -> Sequence[Mapping[str, float]]:
        """What each evaluation so far came to, this one last: `step`, `val/clm/loss`, and the measures before."""
        ...

    def batches(self, examples: int, *, times: int = 1) -> Iterator[Batch]:
        """The first examples of the validation split, as objectives form and corrupt them; or of `times` as many rows,
        from the corpus where it draws such, and else from more of the same text."""
        ...

    def metrics(self, batches: Iterable[Batch]) -> dict[str, float]:
        """What the objectives make of batches: `clm/loss`, `clm/accuracy`. Nothing of no batch."""
        ...

    def token_batch(self, tokens: Tensor) -> Batch:
        """(B, T) ids as a batch of bare rows, for a model that reads no other stack."""
        ...

    def logits(self, batch: Batch) -> Tensor:
        """(B, T, C): what the head of the first objective says of all rows of the body."""
        ...

    def attention_weights(self, batch: Batch) -> list[Tensor]:
        """Of each layer of the body that has any, how much its rows weigh each other: (B, H, T, S)."""
        ...

    def generate(
        self, examples: int, *, beam: int = 1, length_penalty: float = 0.0, tokens: int | None = None
    ) -> Sequence[GeneratedPair]:
        """The first pairs of the validation split that the model has room for, and what it writes for their sources:
        a token at a time, fed what it wrote itself, at most so many `tokens`.

        A ParibusError where it cannot: nothing taught it to write, there are no pairs, nobody here lets it write.
        """
        ...

    def draw(self, examples: int) -> Draw:
        """What a measure draws from: the same for every trial, and for every model."""
        ...


class MeasureTraits(Traits, total=False):
    """Traits of a measure."""

    needs: list[str]  # requirements: attention with `weights` or `normalized` weights, a corpus of `pairs`, …
    visibility: Literal["both", "past", "any"]  # positions that a token of the body must see; default: any
    every_evaluation: bool  # runs at each evaluation, not only at the end of training
    own_tokens: bool  # runs the model on tokens of its own, which have no other stack beside them


class Measure(Component, ABC):
    """Asks something of a model that no loss says: what its attention does, how it fares on longer rows.

    A measure trains nothing, takes no gradient and has no parameters. It runs at the end of a trial, and where its
    trait `often` says so at each evaluation on the way. A spec lists measures, `measure: [span, induction]`; what one
    finds stands in the record's metrics as `val/<measure>/<name>`, and a study may be about it:

        class Sharpness(Measure):
            traits = {"needs": ["weights"], "often": True}

            def __init__(self, *, examples: Annotated[int, "validation examples", Range(1)] = 32) -> None:
                self.examples = examples

            def names(self, known: Known) -> Sequence[str]:
                return ("largest",)

            def measure(self, subject: Subject) -> Mapping[str, float | str]:
                found = [each.amax(-1).mean() for b in subject.batches(self.examples) for each in subject.weights(b)]
                return {"largest": float(torch.stack(found).mean())}

    Traits say what it asks: attention that has `weights`, or `shares`, weights that share out 1 (`needs`); rows that
    see only what came before (`sight`); a model that can be shown rows of the measure's own making (`own`), which are
    tokens of a text and have no other stack beside them; a corpus of `pairs` (`needs`). A rule refuses the spec whose
    model cannot answer. What it draws it draws from `subject.draw`; a fixed number of examples keeps its cost small.
    """

    traits: ClassVar[MeasureTraits] = {}

    @abstractmethod
    def names(self, trial: TrialInfo) -> Sequence[str]:
        """What it will measure of a trial, told before it begins."""

    @abstractmethod
    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        """A number for each name; where there is none, the reason in a few words. What it did not name for a reason may
        have that reason as well."""
