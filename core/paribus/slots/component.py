"""What every component is, and what may be said about one without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypedDict

from paribus.parts.shape import Role

if TYPE_CHECKING:  # corpora and tokenizers are components that need no torch
    from torch import Tensor


class Traits(TypedDict, total=False):
    """What a component needs, provides and cannot be combined with: literals only, so that the index can hold them."""

    # attention
    consumes: list[str]  # the position moments it asks for: rotate, bias, mix; read: its heads
    causal: bool  # can be made causal
    cross: bool  # can attend to a memory
    documents: bool  # keeps documents of a packed row apart, and never sees padding
    padding: bool  # never sees padding; one that keeps documents apart need not say so
    sees: Literal["all", "one", "none"]  # how many of the rows that a row may see it reads; unless said, all
    asks: bool  # what a row reads depends on what it holds itself; unless said, it does
    order: bool  # follows an explicit order of rows (permutation, prefix)
    appended: bool  # lets rows ask behind its keys, which no row sees
    residual: bool  # returns the width of the stream, so that a placement can wrap it
    raw: bool  # can give back a memory's rows, weighed, as they stand: with no projection of values, and none back
    weights: bool  # can say how much each query weighs each key, (B, H, T, S)
    shares: bool  # none of its weights is below 0, and those of a row sum to 1, or less where it may weigh nothing
    decodes: bool  # keeps state from step to step
    # position
    moments: list[str]  # embed, rotate, bias, mix
    bias: Literal["none", "positions", "content"]
    distances: bool  # its bias depends on nothing but how far apart rows are
    owner: Literal["stack", "layer"]
    terms: int  # how many score terms share the scale, unless options leave some out (DeBERTa: 3)
    table: bool  # cannot go beyond dims.length
    # placement
    final: bool  # a norm follows the last layer
    # embedding
    widens: bool  # brings its rows to the width of each stack, so that these may differ
    # position, objective and measure
    sight: Literal["both", "past", "any"]  # what a row of the body may see for it to mean anything
    # objective
    forms: Literal["stream", "segments", "texts", "pairs", "images"]
    corrupts: bool
    parts: list[str]  # stacks that it reads besides the body
    may: list[str]  # stacks that it gives something to read where there are any
    pads: bool  # fills up with padding what it makes of a flow of text
    orders: bool  # says who comes before whom, where there is no stack beside the body
    packs: bool  # takes rows of several whole documents; unless said, one that makes no other rows of text
    segments: bool  # gives the rows segments
    needs: list[str]  # specials or other provisions it needs: mask, sentinels, sentences, documents, teacher
    # tokenizer
    provides: list[str]  # the specials it has: mask, sentinels …
    # corpus, tokenizer, embedding
    modality: Literal["text", "images"]  # what documents are, or are read as; unless said, text
    # corpus
    where: dict[str, str]  # of what it provides, that which only one with this option given does
    tells: dict[str, int | str]  # what it says of its documents: a number, or which option of it has the number
    # embedding and objective
    teacher: dict[str, str]  # sizes of the teacher's, and its options that say them where the model's are others
    told: dict[str, str]  # options that the corpus has a say in: `same` as what it tells, or at `least` that
    likelihood: bool  # its loss is of each token of a text once, given those before it: of how likely the text is
    unembeds: bool  # scores rows against a vocabulary; unless said, it does
    # measure
    often: bool  # asked at each evaluation, and not only at the end
    own: bool  # shows the model rows of its own making, which are tokens and have no other stack beside them
    # optimizer
    pieces: bool  # steps as well on tensors of which each process holds a piece
    # any
    compiles: bool


class Cost(NamedTuple):
    """What a component does for a load: floating-point operations, and elements of state kept for decoding.

    A multiply-add counts as two operations; norms, softmax and activations count as none, as in torch's own counter.
    """

    flops: int = 0
    state: int = 0

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.flops + other.flops, self.state + other.state)


class Load(NamedTuple):
    """One sequence's worth of work. A decoding step is `queries=1` against all the keys."""

    queries: int  # more than keys where rows are appended that only ask
    keys: int
    memory: int = 0  # rows of the memory that a cross-attention reads
    head_positions: int = 0  # rows that an objective's head runs on


class KeyedDraws(Protocol):
    """Draws for buffers that a component makes for itself, keyed like parameters."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal float32 draws, keyed by (seed, path of the component, name)."""
        ...


class Component:
    """Anything that fills a slot.

    The keyword-only parameters of `__init__` are its options: typed, with a one-line description and their limits in
    the annotation. What is positional is injected; each slot says what (`injects`). Nothing else may be declared.
    """

    injects: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = {}
    roles: ClassVar[Mapping[str, Role]] = {}
    class_specific: ClassVar[bool] = (
        False  # whether its tensors mean nothing to another class, were they alike in all else
    )

    def prepare(self, keyed: KeyedDraws) -> None:
        """Makes buffers, once the parameters have been drawn; what can be derived in `forward` needs none."""
