"""The rules across fields, each one sentence over what components declare of themselves, and none over their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from paribus.specs import feeding, measuring, mixing, modality, sizes, training
from paribus.specs.facts import Broken, Facts

Rule = Callable[[Facts], Iterable[Broken]]

RULES: Final[tuple[Rule, ...]] = (
    mixing.position_fits,
    mixing.position_sees_the_past,
    mixing.attention_is_causal,
    mixing.attention_crosses,
    mixing.attention_keeps_documents_apart,
    feeding.objective_packs,
    feeding.examples_can_be_sorted,
    mixing.placement_can_wrap,
    mixing.recurrence_reads,
    training.objective_fits,
    training.rows_may_ask,
    training.rows_are_ordered,
    training.streams_are_asked,
    training.one_forms_one_corrupts,
    training.needs_are_met,
    training.teacher_is_asked,
    sizes.vocabulary_has_room,
    sizes.segments_have_rows,
    sizes.widths_are_met,
    sizes.groups_are_whole,
    modality.tokenizer_reads_the_corpus,
    modality.embedding_reads_the_examples,
    modality.embedding_has_a_vocabulary,
    modality.corpus_has_the_last_word,
    measuring.measure_can_ask,
)
