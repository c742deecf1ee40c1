"""The slot `objective`: which examples are formed, how they are corrupted, and what is to be predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from paribus.parts.batch import StepInputFunction, Stream
from paribus.parts.context import Capture
from paribus.parts.draw import Draw
from paribus.slots.component import Component, Cost, Load, Traits
from paribus.slots.embedding import Unembed
from paribus.slots.tokens import Tokens

if TYPE_CHECKING:
    from torchmetrics import Metric


class LossTerm(NamedTuple):
    """A part of a loss: a sum and its count, so that it is exact over micro-batches and ranks."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    weight: float = 1.0


class Prompt(NamedTuple):
    """How a model that was trained for an objective is asked to write."""

    body: tuple[int, ...]  # what the body reads before the first token that is written
    source: tuple[int, ...] | None = None  # what the part reads that the body attends to
    stop: int | None = None  # the token that ends what is written
    bidirectional: bool = False  # whether rows of the prompt see each other both ways


class GenerationTarget(NamedTuple):
    """What is known of a text that is handed over, and wanted of the one to be written, by the corpus' own numbers;
    None where nobody says."""

    language: int | None = None  # that it is to be written in
    source_language: int | None = None  # that the text which is handed over is in
    label: int | None = None  # the class that it is to be of; handed to no objective that needs no labels


class TrainingExamples(NamedTuple):
    """Streams by the path of the part that reads them, and the targets of the objective that made them."""

    streams: Mapping[str, Stream]
    targets: Mapping[str, Tensor]


class ForwardPass(Protocol):
    """One forward pass, as an objective sees it. What two objectives both ask for is computed once."""

    @property
    def streams(self) -> Mapping[str, Stream]: ...

    @property
    def targets(self) -> Mapping[str, Tensor]:
        """This objective's own."""
        ...

    def hidden(self, part: str = "body", *, tokens: Tensor | None = None, key: str = "") -> Tensor:
        """(B, T, D): the output of a part; of one that reads `tokens`, (B, T), in place of those of its stream, where
        the objective made some. It names them by a `key` of its own, and what they gave is not computed again."""
        ...

    def last_layer_input(self) -> Tensor:
        """(B, T, D): what the last layer of the body read; asked of a topology that has such."""
        ...

    def captured(self, layer: int, name: str) -> Tensor:
        """What was kept of a layer of the body, as `captures` asked: `q`, `k` and `v`, (B, H|G, T, K), or its `rows`,
        (B, T, D); those of layer 0 are what the first layer read."""
        ...

    def rerun_last_layer(self, asking: Tensor, at: Tensor, times: int = 1) -> Tensor:
        """(B, N, D), (B, N) -> (B, N, D): rows that stand where those of `at` do, through that layer `times` over.

        Each sees what the layer read, and none is seen.
        """
        ...

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        """(B, T, D): what the body says where `feed` has rows read what the one before them said; asked of a topology
        that provides `feedback`."""
        ...

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, D) -> (…, V), with a bias of the vocabulary where one is given."""
        ...

    def cached(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """`make()`, or what it gave when this objective asked for `name` before in this pass."""
        ...

    def head_logits(self, of: str | None = None) -> Tensor:
        """(B, T, C): the head of another objective on all rows of the body; None: the first that scores a vocabulary,
        or the embedding itself where there is none."""
        ...

    @property
    def teacher(self) -> ForwardPass:
        """The teacher's pass over the same streams, which no gradient reaches: for whoever needs a `teacher`."""
        ...


class ObjectiveTraits(Traits, total=False):
    """Traits of an objective. `corrupts`, `visibility`, `parts`, `segments` and `needs` are always given."""

    corrupts: bool  # changes the input of the model
    visibility: Literal["both", "past", "any"]  # positions that a token of the body must see
    parts: list[str]  # stacks that it reads besides the body
    segments: bool  # sets the segments of tokens
    needs: list[str]  # requirements: special tokens (mask, sentinels), sentences, documents, labels, teacher, …
    example_kind: Literal["stream", "segments", "texts", "pairs", "images"]  # examples that `form` makes, if it does
    optional_parts: list[str]  # stacks that it gives input to, if the topology has them
    adds_padding: bool  # pads the examples that it makes of a stream of text
    sets_order: bool  # sets an order of positions, if the topology has no stack beside the body
    packs_documents: (
        bool  # accepts examples of several whole documents; default: True if it makes no streams of its own
    )
    likelihood: bool  # loss is the negative log-likelihood of each token given the tokens before it
    unembeds: bool  # scores hidden states against a vocabulary; default: True
    teacher: dict[str, str]  # size of the teacher -> option that sets it, if it differs from the model's
    options_from_corpus: dict[
        str, str
    ]  # option -> `same` (equals the corpus' number of this name) or `least` (at least)


class Objective(Component, nn.Module, ABC):
    """What a model is trained for, or evaluated with.

    The data side knows no parameters: `form` makes examples (only where traits say `forms`), `corrupt` hides and marks
    what is to be predicted; both draw from a `Draw` and from nothing else. The model side is `forward`. Each term of
    the loss has a tensor of labels in the targets, with IGNORED where there is nothing to predict; `terms` says which.
    A term's count is the number of its labels that are not IGNORED: it is known before the model runs.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "vocabulary", "norm")
    traits: ClassVar[ObjectiveTraits] = {}
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels"}
    captures: Capture = Capture()  # what it reads of a pass besides rows; nobody else's is computed
    teacher_captures: Capture = Capture()  # and of its teacher's
    last_layer_reruns: int = 0  # how often the rows that its head runs on go through the last layer again

    def text_length(self, length: int) -> int:
        """How many tokens of text one example of `length` rows eats."""
        return length

    def example_count(self, tokens: Tokens, length: int) -> int:
        """How many examples an epoch has; asked of the objective that `forms`."""
        raise NotImplementedError

    def example_lengths(self, tokens: Tokens, length: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        """How many of `length` rows each example takes, for batches of about one length; None: all take all of them."""
        return None

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        """What of the documents is in no example, by reason: told before training starts, and kept in the record."""
        return {}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """The examples `draw.index`, padded to `length` rows; asked of the objective that `forms`.

        It may be fewer rows than `examples` was asked with, where none of these takes more by what `lengths` says.
        """
        raise NotImplementedError

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """The streams as the model is to see them, and this objective's targets (`targets` is what it formed)."""
        return TrainingExamples(streams, targets)

    @abstractmethod
    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """The head alone, on any rows: (…, D) -> (…, C)."""

    @abstractmethod
    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        """The terms of the loss."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """What the head does for `load.head_positions` rows, `unembed` not counted."""

    @abstractmethod
    def head_positions(self, length: int) -> int:
        """On how many rows the head runs, for an example of `length` rows."""

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Nats a label of `targets` that knowing how frequent labels are in `train`, and nothing else, comes to.

        `targets` are its own of all examples that are evaluated. None for one that is trained on tokens of the
        vocabulary, which are counted for it, or has none to speak of.
        """
        return None

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt | None:
        """How a text is handed to a model that is to go on from it, or to write what belongs to it.

        None: whoever is trained for this cannot write.
        """
        return None

    def fill_logits(self, run: ForwardPass) -> Tensor | None:
        """(B, N, V): scores of what is hidden in rows `run.targets["pick"]`, (B, N), of a text that every part reads.

        None: whoever is trained for this fills no gaps.
        """
        return None

    def unembed_positions(self, length: int) -> int | None:
        """How many rows are scored against the vocabulary; None: all `picks`, if `logits` has them scored."""
        return None

    def metrics(self) -> Mapping[str, Metric]:
        """What is measured besides the loss; `observe` updates them."""
        return {}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        """Updates `metrics` with one batch."""
