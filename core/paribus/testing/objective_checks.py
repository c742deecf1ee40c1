"""Checks of objectives: their examples, and the labels that the model must not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from paribus.errors import ParibusError
from paribus.evidence.process_state import process_settings
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.slots.objective import TrainingExamples
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.objective_setup import (
    BATCH,
    EPOCH,
    SEED,
    ObjectiveSetup,
    difference,
    objective_setup,
    replaced,
    required_setup,
    substitutions,
    tensors,
)
from paribus.testing.purity_checks import (
    component_folder,
    external_reads,
    generator_states,
    restored_settings,
    seed_generators,
)

SUBSTITUTIONS: Final = 96  # tokens that are replaced, one at a time
MAX_LABELS: Final = 48  # labels of which the loss is compared
DOCUMENTS_LENGTH: Final = 96  # most examples of this length have tokens of two documents
MAX_VISIBLE: Final = 0.5  # share of the labels that may be in the input: BERT leaves a tenth as they are
TOLERANCE: Final = 1e-9
BATCH_SEEDS: Final = (SEED, SEED + 1, SEED + 2)  # a draw of a batch may be the same for one seed by chance


def keyed_examples(case: Case, host: HostModel) -> Verdict:
    """An example depends on the corpus and its key (seed, epoch, index) only, in any batch and for any global seed."""
    setup = required_setup(case, host)
    batch = setup.batch()
    fault = _global_draws_fault(case, setup, batch) or _batch_fault(setup)
    if fault:
        return fault
    other_epoch, other_seed = setup.batch(epoch=EPOCH + 1), setup.batch(seed=SEED + 1)
    depends_on_epoch = difference(batch, other_epoch, setup.name)
    if depends_on_epoch and not difference(batch, other_seed, setup.name):
        return f"{depends_on_epoch} differs between epochs, but is the same for two seeds; expected draws keyed by both"
    return _index_fault(setup) if depends_on_epoch else HOLDS


def _global_draws_fault(case: Case, setup: ObjectiveSetup, batch: Batch) -> str:
    with restored_settings():
        for seed in (1, 2):
            seed_generators(seed)
            before = {**generator_states(), **process_settings()}
            changed = difference(setup.batch(), batch, setup.name)
            if changed:
                return f"{changed} changes with the global random seed, or between two calls; draw from `draw` only"
            after = {**generator_states(), **process_settings()}
            advanced = [name for name, value in after.items() if value != before[name]]
            if advanced:
                return f"forming examples changes {advanced[0]}, which is global; draw from `draw` only"
        reads = external_reads(setup.batch, folder=component_folder(case))
    return f"forming examples calls {reads[0]}; expected examples that depend on text and key only" if reads else HOLDS


def _batch_fault(setup: ObjectiveSetup) -> str:
    batch = setup.batch()
    reordered = setup.batch(torch.arange(BATCH).flip(0))
    for row in range(BATCH):
        one = slice(BATCH - 1 - row, BATCH - row)
        changed = difference(reordered.rows(one), batch.rows(slice(row, row + 1)), setup.name)
        if changed:
            return f"{changed} of example {row} changes when the batch is in another order"
    return next((fault for seed in BATCH_SEEDS if (fault := single_examples_fault(setup, seed))), HOLDS)


def single_examples_fault(setup: ObjectiveSetup, seed: int = SEED) -> str:
    """Return a message if an example alone is not the same as in a batch."""
    batch = setup.batch(seed=seed)
    for row in range(BATCH):
        single = setup.batch(torch.tensor([setup.first + row]), seed=seed)
        changed = difference(single, batch.rows(slice(row, row + 1)), setup.name)
        if changed:
            return f"{changed} of example {row} alone differs from the same example in a batch of {BATCH}"
    return HOLDS


def _index_fault(setup: ObjectiveSetup) -> str:
    """Return a message if examples of the same text draw the same numbers."""
    formed = setup.formed()
    if setup.examples.former is not None:
        return HOLDS
    same_text = TrainingExamples({path: _repeat_first(stream) for path, stream in formed.streams.items()}, {})
    corrupted = setup.corrupted(same_text)
    if all(torch.equal(value, value[:1].expand_as(value)) for value in tensors(corrupted, setup.name).values()):
        return f"{BATCH} examples with the same text are corrupted alike; expected draws keyed by the example's index"
    return HOLDS


def _repeat_first(stream: Stream) -> Stream:
    return stream.apply(lambda vector: vector[:1].repeat(len(vector), 1))


def example_traits(case: Case, host: HostModel) -> Verdict:
    """Examples have the declared streams and padding, fit the length, and are made without changing their input."""
    return traits_fault(required_setup(case, host))


def traits_fault(setup: ObjectiveSetup) -> str:
    """Return a message if examples do not match the traits, or if making them changes their input."""
    formed = setup.formed()
    before = {key: value.clone() for key, value in tensors(formed, setup.name).items()}
    ids = np.array(setup.examples.tokens.ids)
    batch = setup.corrupted(formed)
    for key, value in tensors(formed, setup.name).items():
        if not torch.equal(value, before[key]):
            return f"`corrupt` changes {key} in place; expected a copy"
    if not np.array_equal(ids, setup.examples.tokens.ids):
        return "`form` changes the ids of the corpus in place; expected a copy"
    traits = setup.objective.traits
    changes = difference(TrainingExamples(batch.streams, {}), TrainingExamples(formed.streams, {}), setup.name)
    if changes and not traits.get("corrupts"):
        return f"its trait `corrupts` is False, but `corrupt` changes {changes}"
    if traits.get("corrupts") and not changes:
        return "its trait `corrupts` is True, but the model reads the text unchanged"
    missing = {"body", *traits.get("parts", [])} - batch.streams.keys()
    unknown = batch.streams.keys() - {"body", *traits.get("parts", []), *traits.get("optional_parts", [])}
    if missing or unknown:
        return f"its examples have the streams {sorted(batch.streams)}; expected `body` and those of its trait `parts`"
    return _shape_fault(setup, formed, batch)


def _shape_fault(setup: ObjectiveSetup, formed: TrainingExamples, batch: Batch) -> str:
    for path, stream in batch.streams.items():
        length = stream.tokens.shape[1] // (2 if setup.objective.traits.get("copies_tokens") else 1)
        if length > setup.length and setup.model.topology.embedding.values_per_example is None:
            return f"the stream `{path}` has {length} tokens; expected at most {setup.length}, the sequence length"
        declared = setup.objective.traits.get("adds_padding") or setup.objective.traits.get("example_kind")
        if has_padding(stream) and not declared and not any(map(has_padding, formed.streams.values())):
            return f"the stream `{path}` has padding; expected none, as its trait `adds_padding` is False"
    for term, key in setup.label_keys.items():
        if key not in batch.targets[setup.name]:
            return f"its targets have no `{key}`, which `terms` names for `{term}`"
        if not (batch.targets[setup.name][key] != IGNORED).any():
            return f"{BATCH} examples have no label for `{term}`"
    return HOLDS


def has_padding(stream: Stream) -> bool:
    return stream.documents is not None and bool((stream.documents < 0).any())


def hidden_labels(case: Case, host: HostModel) -> Verdict:
    """The loss of a label does not depend on the label through the input: no position sees what it predicts."""
    setup = required_setup(case, host)
    batch = setup.batch()
    traits = setup.objective.traits
    reads_source = bool(traits.get("parts")) or "encoder" in batch.streams
    hidden, visible = 0, 0
    message = ""
    for changed, place, term, slot in _label_changes(setup, batch):
        single = setup.only_label(batch, term, slot)
        streams = changed.rows(slice(slot[0], slot[0] + 1)).streams
        loss = setup.total(single, term)
        if reads_source and "body" in streams and traits.get("visibility") == "past":
            own = single._replace(streams={**single.streams, "body": streams["body"]})
            if _differ(loss, setup.total(own, term)):
                return f"{_leak(place, term, slot)} The body sees the label"
        if _differ(loss, setup.total(single._replace(streams=streams), term)):
            visible, message = visible + 1, message or _leak(place, term, slot)
        else:
            hidden += 1
        if hidden + visible == MAX_LABELS:
            break
    count = hidden + visible
    if not count:
        return DOES_NOT_APPLY
    is_denoising = reads_source and traits.get("corrupts")  # a decoder may copy what the corruption leaves
    is_language_model = traits["visibility"] == "past" or "separate-directions" in traits.get("needs", [])
    limit = 1.0 if is_denoising else MAX_VISIBLE if traits.get("corrupts") and not is_language_model else 0.0
    if visible > limit * count or visible == count:
        return f"{message} {visible} of {count} labels are visible"
    return HOLDS


def _label_changes(setup: ObjectiveSetup, batch: Batch) -> Iterator[tuple[Batch, str, str, tuple[int, ...]]]:
    """Yield examples of texts with another token or label, and the one label of an example that changes with it."""
    for substitution in substitutions(setup, SUBSTITUTIONS):
        try:
            changed = setup.batch_of(substitution.tokens)
        except ParibusError:  # such a label is not valid
            continue
        for term in setup.label_keys:
            labels, other_labels = setup.labels(batch, term), setup.labels(changed, term)
            if labels.shape != other_labels.shape:
                continue
            slots = [tuple(slot) for slot in (labels != other_labels).nonzero().tolist()]
            for slot in slots:
                if sum(other[0] == slot[0] for other in slots) == 1:
                    yield changed, substitution.place, term, slot


def _leak(place: str, term: str, slot: tuple[int, ...]) -> str:
    return f"when {place} is replaced, the loss `{term}` of its former value (label {list(slot)}) changes."


def _differ(value: float, other: float) -> bool:
    return not abs(value - other) <= TOLERANCE * max(1.0, abs(value))


def label_documents(case: Case, host: HostModel) -> Verdict:
    """Of documents kept apart, a label is predicted from its own document only, and padding has no label."""
    apart = objective_setup(case, host, documents="apart", length=DOCUMENTS_LENGTH)
    packed = objective_setup(case, host, documents="packed")
    setup = required_setup(case, host)
    padding = padding_fault(setup if packed is None or setup.examples.former is not None else packed)
    if padding or apart is None or setup.examples.former is not None:
        return padding
    return _documents_fault(apart) or HOLDS


def _documents_fault(setup: ObjectiveSetup) -> str:
    formed = setup.formed()
    body = formed.streams["body"]
    assert body.documents is not None
    batch = setup.corrupted(formed)
    tested = 0
    for row, place in _places_near_boundaries(body.documents):
        ids = replaced(setup, body.tokens[row].numpy(), place)
        if ids is None or tested == MAX_LABELS:
            continue
        changed = setup.corrupted(_with_body(formed, row, torch.from_numpy(ids)))
        others = _with_body(formed, row, _replace_others(setup, body, row, int(body.documents[row, place])))
        for term in setup.label_keys:
            labels = setup.labels(batch, term)
            for slot in (labels != setup.labels(changed, term)).nonzero().tolist():
                tested += 1
                if _depends_on(setup, batch, setup.corrupted(others), term, tuple(slot)):
                    return (
                        f"the loss `{term}` of label {slot}, token {place} of example {row}, changes with the tokens "
                        "of other documents in its example"
                    )
    return HOLDS


def _places_near_boundaries(documents: Tensor) -> Iterator[tuple[int, int]]:
    """Yield tokens of text as (row, position): those near the boundary of a document, and some others."""
    boundaries = documents[:, 1:] != documents[:, :-1]
    for row in range(len(documents)):
        ends = boundaries[row].nonzero().flatten().tolist()
        near = {end + offset for end in ends for offset in (-1, 0, 1, 2)}
        for place in sorted(near | set(range(row % 7, documents.shape[1], 7))) if ends else ():
            if 0 <= place < documents.shape[1] and documents[row, place] >= 0:
                yield row, place


def _depends_on(setup: ObjectiveSetup, batch: Batch, others: Batch, term: str, slot: tuple[int, ...]) -> bool:
    single = setup.only_label(batch, term, slot)
    streams = others.rows(slice(slot[0], slot[0] + 1)).streams
    return _differ(setup.total(single, term), setup.total(single._replace(streams=streams), term))


def _with_body(formed: TrainingExamples, row: int, ids: Tensor) -> TrainingExamples:
    body = formed.streams["body"]
    tokens = body.tokens.clone()
    tokens[row] = ids
    return TrainingExamples({**formed.streams, "body": body._replace(tokens=tokens)}, formed.targets)


def _replace_others(setup: ObjectiveSetup, body: Stream, row: int, document: int) -> Tensor:
    """(T,): the tokens of an example, with other tokens in all documents but one."""
    ids: Any = body.tokens[row].numpy()
    assert body.documents is not None
    for place in ((body.documents[row] != document) & (body.documents[row] >= 0)).nonzero().flatten().tolist():
        changed = replaced(setup, ids, place)
        ids = ids if changed is None else changed
    return torch.from_numpy(np.array(ids))


def padding_fault(setup: ObjectiveSetup) -> Verdict:
    """Return a message if the content of padding changes labels or loss."""
    formed = setup.formed()
    padded = TrainingExamples({path: _fill(setup, stream) for path, stream in formed.streams.items()}, formed.targets)
    batch, filled = setup.corrupted(formed), setup.corrupted(padded)
    filled = filled._replace(streams={path: _fill(setup, stream) for path, stream in filled.streams.items()})
    if not any(map(has_padding, (*formed.streams.values(), *batch.streams.values()))):
        return DOES_NOT_APPLY
    for term in setup.label_keys:
        if not torch.equal(setup.labels(batch, term), setup.labels(filled, term)):
            return f"labels of `{term}` change with the tokens of padding; expected {IGNORED} there"
    terms, other_terms = setup.terms(batch), setup.terms(filled)
    for term in terms:
        if _differ(float(terms[term].total), float(other_terms[term].total)):
            return f"the loss `{term}` changes with the tokens of padding. Usual cause: padding has labels"
    return HOLDS


def _fill(setup: ObjectiveSetup, stream: Stream) -> Stream:
    """Return the stream with tokens of text as padding."""
    if stream.documents is None:
        return stream
    text = torch.from_numpy(np.array(setup.text.train.ids[: stream.tokens.numel()], dtype=np.int64))
    text = text.repeat(-(-stream.tokens.numel() // max(1, len(text))))[: stream.tokens.numel()]
    return stream._replace(tokens=torch.where(stream.documents < 0, text.view_as(stream.tokens), stream.tokens))
