"""Slot `objective`: forming of examples, corruption, prediction targets, head and loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Required, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paribus.parts.batch import StepInputFunction, Stream
from paribus.parts.context import Capture
from paribus.parts.random_draws import Draw
from paribus.parts.shape import Cost, Load
from paribus.slots.component import Component, Traits
from paribus.slots.corpus import Tokens
from paribus.slots.embedding import Unembed

if TYPE_CHECKING:
    from torchmetrics import Metric


Cached = TypeVar("Cached")


class LossTerm(NamedTuple):
    """Term of a loss, as a sum and a count, so that it is exact over micro-batches and ranks."""

    total: Tensor  # sum over labels
    # number of labels
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    weight: float = 1.0  # factor in the loss of the objective


class Prompt(NamedTuple):
    """Prompt of generation for a model that was trained with an objective."""

    body: tuple[int, ...]  # tokens that the body reads before the first generated token
    source: tuple[int, ...] | None = None  # tokens of the part that the body attends to
    stop: int | None = None  # token that ends the generated text
    bidirectional: bool = False  # tokens of the prompt see each other in both directions
    mask: int | None = None  # token in place of each new one, which are filled in any order; None: from left to right
    block: int | None = None  # tokens of a block of masks: blocks are filled from left to right; None: one block


class GenerationTarget(NamedTuple):
    """Requested properties of generated text, as numbers of the corpus; None: not specified."""

    language: int | None = None  # language of the generated text
    source_language: int | None = None  # language of the source text
    label: int | None = None  # class of the generated text; only for objectives that need labels


class TrainingExamples(NamedTuple):
    """Batch of examples: streams by the path of the part that reads them, and the targets of the objective that made
    them.
    """

    streams: Mapping[str, Stream]  # by the path of the part that reads them: `body`, `encoder`
    targets: Mapping[str, Tensor]  # labels, and whatever else `forward` reads


class ForwardPass(Protocol):
    """Forward pass of a batch, as an objective reads it. Results that two objectives read are computed once."""

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Streams of the batch by the path of the part that reads them."""
        ...

    @property
    def targets(self) -> Mapping[str, Tensor]:
        """Targets of this objective."""
        ...

    def hidden(self, part: str = "body", *, tokens: Tensor | None = None, key: str = "") -> Tensor:
        """Return the output of a part, (B, T, D).

        With `tokens`, (B, T), the part reads these in place of the tokens of its stream; results are cached by `key`.
        """
        ...

    def last_layer_input(self) -> Tensor:
        """Return the input of the last layer of the body, (B, T, D); only with the topology trait `provides:
        last-layer`.
        """
        ...

    def captured(self, layer: int, name: str) -> Tensor:
        """Return a captured value of a layer of the body, as `captures` requested: `q`, `k` and `v`, (B, H|G, T, K), or
        its output `hidden`, (B, T, D). Layer 0 is the input of the first layer.
        """
        ...

    def embedded(self) -> Tensor:
        """Return the embeddings of the body's tokens, without positions: (B, T, D)."""
        ...

    def run_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return the output of one of the objective's `layers` for vectors at the last positions of the body.

        Shapes: (B, N, D) -> (B, N, D).
        """
        ...

    def rerun_last_layer(self, queries: Tensor, positions: Tensor, times: int = 1) -> Tensor:
        """Return queries at some positions after `times` passes through the last layer: (B, N, D), (B, N) -> (B, N, D).

        Each query attends to the input of the layer; no position attends to a query.
        """
        ...

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        """Return the output of the body, (B, T, D), where `feed` replaces tokens by predictions of the position before.

        Only with the topology trait `provides: feedback`.
        """
        ...

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return scores over the vocabulary, (…, D) -> (…, V), plus a bias if one is given."""
        ...

    def summed_cross_entropy(
        self,
        head: Callable[[Tensor], Tensor],
        hidden: Tensor,
        labels: Tensor,
        classes: int,
        *,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
        z: float = 0.0,
    ) -> Tensor:
        """Return the sum of the cross-entropy over the labels that are not IGNORED, each times its weight: (…, D), (…)
        -> ().

        `head` returns logits over the classes of each position by itself, (…, D) -> (…, C). Those of a large vocabulary
        are computed in chunks. With `trainer.compile`, the head and the loss are compiled. With `z`, a second sum is
        that of the squared log-sum-exp of the logits, (2,), and the loss must have the first plus `z` times the second.
        """
        ...

    def cached(self, name: str, make: Callable[[], Cached]) -> Cached:
        """Return `make()`, computed once per pass for this objective and `name`."""
        ...

    def head_logits(self, head_name: str | None = None) -> Tensor:
        """Return the output of another objective's head at all positions of the body, (B, T, C).

        None: the first objective that scores the vocabulary, or the embedding itself if there is none.
        """
        ...

    @property
    def teacher(self) -> ForwardPass:
        """Forward pass of the teacher over the same streams, without gradients; for an objective that needs a
        `teacher`.
        """
        ...


class Prediction(NamedTuple):
    """What an objective predicts for a text, or for a pair of texts, by the trait `predicts`."""

    classes: Sequence[float] = ()  # class, choice: the probability of each class, or of each choice
    words: Sequence[Sequence[float]] = ()  # tags: the probability of each tag, for each word of the text
    score: float | None = None  # score: a number; answer: how much higher it scores than no answer
    answer: tuple[int, int] | None = None  # answer: first and last word in the second text; -1 and -1: none


class ObjectiveTraits(Traits, total=False):
    """Traits of an objective."""

    corrupts: Required[bool]  # changes the input of the model
    visibility: Required[Literal["both", "past", "any"]]  # positions that a token of the body must see
    parts: Required[list[str]]  # stacks that it reads besides the body
    segments: Required[bool]  # sets the segments of tokens
    needs: Required[
        list[str]
    ]  # requirements: special tokens (mask, sentinels), sentences, documents, labels, teacher, …
    example_kind: Literal["stream", "segments", "texts", "pairs", "images"]  # examples that `form` makes, if it does
    optional_parts: list[str]  # stacks that it gives input to, if the topology has them
    adds_padding: bool  # pads the examples that it makes of a stream of text
    sets_order: bool  # sets an order of positions, if the topology has no stack beside the body
    copies_tokens: bool  # its examples have a second copy of the text, which few tokens see; with `sets_order`
    separates: bool  # its examples have several documents, which must not see each other
    packs_documents: (
        bool  # accepts examples of several whole documents; default: True if it makes no streams of its own
    )
    likelihood: bool  # loss is the negative log-likelihood of each token given the tokens before it
    token_terms: list[str]  # terms of the loss whose labels are tokens of the text; the engine counts their frequencies
    squared_error: bool  # loss is a mean squared error, not in nats
    predicts: Literal["class", "tags", "score", "answer", "choice"]  # what `predict` returns; default: nothing
    unembeds: bool  # scores hidden states against a vocabulary; default: True
    teacher: dict[str, str]  # size of the teacher -> option that sets it, if it differs from the model's
    options_from_corpus: dict[
        str, str
    ]  # option -> `same` (equals the corpus' number of this name) or `least` (at least)


class Objective(Component, nn.Module, ABC):
    """Objective: trains or evaluates a model.

    The data side has no parameters: `form` makes examples (if the trait `example_kind` is set), `corrupt` hides tokens
    and returns the labels; both draw random numbers from a `Draw` only. The model side is `forward`. Each term of the
    loss has a tensor of labels in the targets, with IGNORED where nothing is predicted; `terms` names it. The count of
    a term is the number of labels that are not IGNORED, so it is known before the model runs. Every example has at
    least one label.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "vocabulary", "norm")
    traits: ClassVar[ObjectiveTraits]
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels"}  # term of the loss -> its labels in the targets
    class_names: ClassVar[Sequence[str]] = ()  # names of its classes, where the corpus does not name them
    captures: Capture = Capture()  # values that it reads of a pass besides the output
    teacher_captures: Capture = Capture()  # the same for the teacher's pass
    further_layers: int = 0  # number of layers like the last of the body that the engine sets as `layers`
    layers: nn.ModuleList  # `Stack` of each of them
    last_layer_reruns: int = 0  # number of further passes through the last layer for the positions of its head

    def text_length(self, length: int) -> int:
        """Return the number of tokens of text that one example of `length` tokens takes."""
        return length

    def example_count(self, tokens: Tokens, length: int) -> int:
        """Return the number of examples of an epoch. Called for the objective that forms examples."""
        raise NotImplementedError

    def example_lengths(self, tokens: Tokens, length: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Return the number of tokens of each example, at most `length`, for batches of similar length; None: all are
        full.
        """
        return None

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        """Return the number of documents that are in no example, by reason; reported and recorded."""
        return {}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """Return the examples `draw.index`, padded to `length`. Called for the objective that forms examples.

        The result may be shorter than `length` if `example_lengths` allows it.
        """
        raise NotImplementedError

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """Return the streams as the model reads them, and the targets of this objective; `targets` are those that it
        formed.
        """
        return TrainingExamples(streams, targets)

    @abstractmethod
    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """Return the output of the head, at any positions: (…, D) -> (…, C)."""

    @abstractmethod
    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        """Return the terms of the loss."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of the head for `load.head_positions`, without `unembed`."""

    @abstractmethod
    def head_positions(self, length: int) -> int:
        """Return the number of positions that the head runs on, for an example of `length` tokens."""

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Return the loss of the best prediction that ignores the input, learned from the labels of `train`.

        It is the unigram baseline, below which a model has learned: class frequencies for classes, the mean score for
        a regression, ln(candidates) for a contrastive loss. `targets` are the objective's own targets of all evaluated
        examples. None: there is no such baseline, as in distillation. For the terms of the trait `token_terms` the
        engine counts the tokens of the text instead.
        """
        return None

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt | None:
        """Return the prompt for generation after, or from, a text; None: a model trained for this objective cannot
        generate.

        With `mask`, `logits` of a position that has this token are those of the token in its place, and the mask itself
        has no share.
        """
        return None

    def fill_logits(self, run: ForwardPass) -> Tensor | None:
        """Return scores of the masked tokens at `run.targets["pick"]`, (B, N), of a text that every part reads: (B, N,
        V).

        None: a model trained for this objective cannot fill masks.
        """
        return None

    def form_texts(self, tokens: Tokens, length: int) -> TrainingExamples:
        """Return the examples of texts, and of their second texts in `tokens.targets`, in order, to `predict` from.

        A text may take several examples. Their labels mean nothing. By default all examples are formed as in training.
        """
        index = torch.arange(self.example_count(tokens, length))
        return self.form(tokens, length, Draw(0, 0, index))

    def predict(self, run: ForwardPass, tokens: Tokens) -> Sequence[Prediction]:
        """Return the prediction for each text of `tokens`, whose examples the batch consists of. Called if `predicts`
        is set.
        """
        raise NotImplementedError

    def unembed_positions(self, length: int) -> int | None:
        """Return the number of positions scored against the vocabulary; None: all `head_positions`, if `logits` calls
        `unembed`.
        """
        return None

    def metrics(self) -> Mapping[str, Metric]:
        """Return the metrics besides the loss by name, as `torchmetrics.Metric`; `update_metrics` updates them.

        A metric of `torchmetrics`, such as `MeanMetric`, adds up over batches and processes. The results are in the
        record as `val/<objective>/<name>`. If each update has one value for each example, as those of `MeanMetric` or
        of `MulticlassAccuracy` with `average="micro"`, the record has these as well, for intervals over questions.
        """
        return {}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        """Update `metrics`, those that `metrics()` returned, with one batch."""
