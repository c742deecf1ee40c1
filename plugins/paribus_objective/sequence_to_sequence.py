"""Sequence to sequence: write the target of a pair, such as a translation of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from paribus import (
    ForwardPass,
    GenerationTarget,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Shape,
    Vocabulary,
)
from paribus_objective import pair_objective, vocabulary_head
from paribus_objective.translation_pairs import Overlong, TranslationPairs


@final
class SequenceToSequence(Objective):
    """Sequence to sequence: the decoder predicts each token of the target from the source and the tokens before.
    "Sequence to Sequence Learning with Neural Networks" (Sutskever et al. 2014), "Attention Is All You Need" (Vaswani
    et al. 2017).

    Both sides end in eos. The decoder reads its labels shifted by one, after pad (bos if the tokenizer has no pad), or
    after the token of a language if languages have tokens. Label smoothing is torch's, and applies in training only.
    `exact` is the share of pairs of which every token is the most likely class: those that greedy decoding writes.
    (B,) -> encoder (B, S), body and labels (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "pairs",
        "corrupts": False,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["pairs", "eos"],
        "options_from_corpus": {"languages": "least"},
    }
    example_count = pair_objective.example_count
    example_lengths = pair_objective.example_lengths
    skipped_documents = pair_objective.skipped_documents
    form = pair_objective.form
    unigram_loss = pair_objective.unigram_loss
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    cost = vocabulary_head.cost
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.exact_match_metrics
    update_metrics = vocabulary_head.update_exact_match_metrics

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        smoothing: Annotated[
            float, "label smoothing: share spread over the vocabulary (Transformer: 0.1)", Range(0, below=1)
        ] = 0.0,
        languages: Annotated[
            int | None, "number of languages, each with a sentinel as its token (M2M-100); null: no tokens", Range(1)
        ] = None,
        reversed: Annotated[bool, "reverse the source (Luong: yes)"] = False,
        overlong: Annotated[Overlong, "handling of pairs with a side longer than `dims.length`"] = "truncate",
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.smoothing = smoothing
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)
        self.pairs = TranslationPairs(shape, vocabulary, "seq2seq", languages, overlong, reverse_source=reversed)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Write the target of a source; of two languages the source has the other, unless it starts with a token."""
        return self.pairs.prompt(ids, wish)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        return {"loss": vocabulary_head.token_loss(self, run, smoothing)}
