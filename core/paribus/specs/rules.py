"""All rules across the fields of a spec. Rules read the traits of components, never their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from paribus.specs import attention_rules, data_rules, training_rules
from paribus.specs.spec_view import SpecView, Violation

Rule = Callable[[SpecView], Iterable[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    attention_rules.position_fits,
    attention_rules.position_sees_the_past,
    attention_rules.attention_is_causal,
    attention_rules.attention_crosses,
    attention_rules.attention_keeps_documents_apart,
    data_rules.objective_packs,
    data_rules.examples_can_be_sorted,
    attention_rules.placement_can_wrap,
    attention_rules.recurrence_reads,
    training_rules.objective_fits,
    training_rules.visibility_fits_the_objective,
    training_rules.attention_supports_order,
    training_rules.streams_are_trained,
    training_rules.objectives_combine,
    training_rules.needs_are_met,
    training_rules.teacher_is_used,
    training_rules.vocabulary_has_room,
    training_rules.segments_have_embeddings,
    training_rules.widths_are_met,
    training_rules.groups_are_whole,
    data_rules.tokenizer_reads_the_corpus,
    data_rules.embedding_reads_the_examples,
    data_rules.embedding_has_a_vocabulary,
    data_rules.options_match_the_corpus,
    data_rules.measure_fits_the_model,
)
