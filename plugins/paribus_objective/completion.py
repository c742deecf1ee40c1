"""Completion: predict the answer to a prompt, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from paribus import GenerationTarget, Norms, Objective, ObjectiveTraits, Prompt, Shape, Vocabulary, WeightConverter
from paribus_objective import pair_objective, vocabulary_head, z_loss
from paribus_objective.prompt_answer import Overlong, PromptAnswerPairs


@final
class Completion(Objective, WeightConverter):
    """Causal language modelling of pairs: the source is a prompt without a loss, the target is its answer.

    "Zoology: Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023) and others evaluate their
    tasks like this, because a loss over unpredictable tokens would hide the answer. A task with a mark of its own
    between the two needs no `separator`; one with answers of one length needs no `stop`. `exact` is the share of pairs
    of which every label is the most likely class. (B,) -> tokens (B, T), labels (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "pairs",
        "corrupts": False,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": ["pairs", "eos"],
        "options_from_corpus": {"marks": "same"},
    }
    example_count = pair_objective.example_count
    example_lengths = pair_objective.example_lengths
    skipped_documents = pair_objective.skipped_documents
    form = pair_objective.form
    unigram_loss = pair_objective.unigram_loss
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = z_loss.forward
    cost = vocabulary_head.cost
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.exact_match_metrics
    update_metrics = vocabulary_head.update_exact_match_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        separator: Annotated[bool, "put sep between prompt and answer"] = True,
        stop: Annotated[bool, "predict eos after the answer"] = True,
        marks: Annotated[bool, "read labels as marks of the sentences of the target that are predicted"] = False,
        overlong: Annotated[Overlong, "handling of long pairs; prompts are truncated at the start"] = "drop",
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = False,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.z, self.terms = z, z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        self.classes = shape.vocabulary
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)
        self.pairs = PromptAnswerPairs(
            shape, vocabulary, "completion", separator=separator, stop=stop, marks=marks, overlong=overlong
        )

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return Prompt((*ids, *self.pairs.sep), stop=self.pairs.eos)
