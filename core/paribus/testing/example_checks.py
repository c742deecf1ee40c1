"""Checks of the content of examples: their tokens, lengths, documents and labels, and the unigram baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.build import build
from paribus.errors import ParibusError
from paribus.kernels import KERNELS
from paribus.parts.batch import IGNORED, Batch, Stream
from paribus.parts.random_draws import Draw
from paribus.slots.corpus import Tokens
from paribus.slots.objective import Objective, TrainingExamples
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.objective_checks import DOCUMENTS_LENGTH, has_padding
from paribus.testing.objective_setup import (
    EPOCH,
    SEED,
    ObjectiveSetup,
    build_setup,
    difference,
    objective_setup,
    replaced,
    required_setup,
    select_documents,
    with_fields,
    with_length,
)

EXAMPLES: Final = 48  # examples of an epoch that are read
EPOCHS: Final = (0, 1, 2, 3)
LONG: Final = 128  # length of an example with many spans
PADDED: Final = 160  # length of which some texts are padded
SHORT_LENGTHS: Final = (8, 14)  # some texts of the synthetic corpus are longer
DOCUMENTS: Final = 8  # documents of which every token is replaced
IMPOSSIBLE: Final = 1e6  # a larger loss is that of a label with a masked score


def example_content(case: Case, host: HostModel) -> Verdict:
    """Examples have the declared lengths and special tokens, and labels of text only, in whole segments."""
    setup = required_setup(case, host)
    fault = content_fault(setup) or possible_fault(setup)
    shorts = [with_length(case, setup, length) for length in SHORT_LENGTHS] if setup.examples.former else []
    for other in (*shorts, longer_setup(case, setup)):
        if other is not None and not fault:
            fault = content_fault(other) or (HOLDS if other.length > setup.length else possible_fault(other))
            fault = fault and f"in examples of {other.length} tokens, {fault}"
    packed = objective_setup(case, host, documents="packed", length=DOCUMENTS_LENGTH)
    apart = objective_setup(case, host, documents="apart", length=DOCUMENTS_LENGTH)
    for other in (packed, apart):
        fault = fault or (HOLDS if other is None else _order_fault(other))
    return fault


def longer_setup(case: Case, setup: ObjectiveSetup) -> ObjectiveSetup | None:
    """Return a setup of longer examples: for texts, so that some have padding, and for sentinels, so that many are
    needed; None if the examples need not be longer.
    """
    if setup.examples.former is not None:
        is_full = not any(map(has_padding, setup.formed().streams.values()))
        length = PADDED if is_full and setup.model.topology.embedding.values_per_example is None else 0
    else:
        length = LONG if "sentinels" in setup.objective.traits.get("needs", []) else 0
    return build_setup(case, setup.spec, length) if length else None


def content_fault(setup: ObjectiveSetup, epochs: Sequence[int] = EPOCHS) -> str:
    """Return a message about the tokens, lengths or labels of some examples."""
    fault = _lengths_fault(setup)
    for epoch in epochs if not fault else ():
        draw = setup.draw(torch.arange(min(setup.examples.count, EXAMPLES)), epoch=epoch)
        formed = setup.examples.form(draw, setup.length)
        streams, targets = setup.objective.corrupt(formed.streams, formed.targets, draw)
        batch = Batch(streams, {setup.name: targets}, draw.index)
        fault = (
            _reserved_fault(setup, formed, batch)
            or _change_fault(setup, formed, batch)
            or _segments_fault(setup, formed)
            or _labels_fault(setup, batch)
        )
        if fault:
            return fault
    return fault


def _lengths_fault(setup: ObjectiveSetup) -> str:
    examples = setup.examples
    if examples.former is None:
        return HOLDS
    lengths = setup.objective.example_lengths(examples.tokens, setup.length)
    if lengths is None:
        return HOLDS
    if len(lengths) != examples.count:
        return f"`example_lengths` has {len(lengths)} numbers; expected {examples.count}, as many as examples"
    count = min(examples.count, EXAMPLES)
    sizes, other_sizes = (_sizes(setup, count, epoch) for epoch in EPOCHS[:2])
    is_drawn = not torch.equal(sizes, other_sizes)  # the declared length is an upper bound then
    for number in range(count):
        if int(lengths[number]) < int(sizes[number]) or (not is_drawn and int(lengths[number]) > int(sizes[number])):
            return (
                f"`example_lengths` declares {lengths[number]} tokens for example {number}, but `form` makes "
                f"{int(sizes[number])} besides padding"
            )
    return HOLDS


def _sizes(setup: ObjectiveSetup, count: int, epoch: int) -> Tensor:
    """(count,): number of tokens besides padding of the longest stream of each example."""
    formed = setup.examples.form(setup.draw(torch.arange(count), epoch=epoch), setup.length)
    return torch.stack([_text_mask(stream).sum(1) for stream in formed.streams.values()]).amax(0)


def _text_mask(stream: Stream) -> Tensor:
    """(B, T) bool: all tokens besides padding."""
    return torch.ones_like(stream.tokens, dtype=torch.bool) if stream.documents is None else stream.documents >= 0


def _reserved_fault(setup: ObjectiveSetup, formed: TrainingExamples, batch: Batch) -> str:
    """Return a message if the input has special tokens that are not declared in `needs`, or the same sentinel twice."""
    vocabulary, needs = setup.text.vocabulary, setup.objective.traits.get("needs", [])
    declared = {token for name, token in vocabulary.specials.items() if name in needs}
    if "encoder" in batch.streams:  # the input of a decoder starts with pad, or bos
        declared |= {token for name, token in vocabulary.specials.items() if name in ("pad", "bos", "eos")}
    sentinels = set(vocabulary.sentinels)
    layout_tokens = {token for name, token in vocabulary.specials.items() if name not in ("mask", "unk")}
    for source in (formed, batch):
        for path, stream in source.streams.items():
            allowed = declared | (sentinels if "sentinels" in needs else set()) | set(_ids(setup.examples.tokens))
            allowed |= layout_tokens if source is formed else set(formed.streams["body"].tokens.unique().tolist())
            mask = _text_mask(stream)
            for token in sorted(set(stream.tokens[mask].unique().tolist()) & (vocabulary.reserved - allowed)):
                names = [name for name, special in vocabulary.specials.items() if special == token]
                return (
                    f"the stream `{path}` contains the special token {token} ({', '.join(names) or 'a sentinel'}), "
                    f"which the text does not contain and `needs` does not declare"
                )
            for sentinel in sorted(sentinels):
                if int(((stream.tokens == sentinel) & mask).sum(1).amax()) > 1:
                    return f"the sentinel {sentinel} occurs twice in an example of the stream `{path}`"
    return HOLDS


def _ids(tokens: Tokens) -> list[int]:
    own: list[int] = np.unique(np.asarray(tokens.ids)).tolist()
    return own if tokens.targets is None else own + _ids(tokens.targets)


def _change_fault(setup: ObjectiveSetup, formed: TrainingExamples, batch: Batch) -> str:
    """Return a message if more tokens are replaced than have a label."""
    targets = batch.targets[setup.name]
    label_count = sum((_per_example(targets[key] != IGNORED) for key in setup.label_keys.values()), torch.tensor(0))
    for path, stream in batch.streams.items():
        source = formed.streams.get(path, formed.streams["body"])
        if stream.tokens.shape != source.tokens.shape or path not in formed.streams:
            continue
        change_count = ((stream.tokens != source.tokens) & _text_mask(source)).sum(1)
        if bool((change_count > label_count).any()):
            row = int((change_count > label_count).nonzero()[0])
            return (
                f"{int(change_count[row])} tokens of example {row} of the stream `{path}` are replaced, but it has "
                f"{int(label_count[row])} labels"
            )
    return HOLDS


def _per_example(mask: Tensor) -> Tensor:
    return mask.reshape(len(mask), -1).sum(1)


def _segments_fault(setup: ObjectiveSetup, formed: TrainingExamples) -> str:
    reserved = torch.tensor(sorted(setup.text.vocabulary.reserved))
    for path, stream in formed.streams.items():
        if stream.segments is None:
            continue
        text = _text_mask(stream) & ~torch.isin(stream.tokens, reserved)
        for segment in stream.segments[_text_mask(stream)].unique().tolist():
            without_text = ~(text & (stream.segments == segment)).any(1)
            if bool(without_text.any()):
                row = int(without_text.nonzero()[0])
                return f"segment {segment} of example {row} of the stream `{path}` has no text"
    return HOLDS


def _labels_fault(setup: ObjectiveSetup, batch: Batch) -> str:
    labels = {term: setup.labels(batch, term) for term in setup.label_keys}
    count = sum((_per_example(values != IGNORED) for values in labels.values()), torch.tensor(0))
    if bool((count == 0).any()):
        return f"example {int((count == 0).nonzero()[0])} has no label"
    body, specials = batch.streams["body"], setup.text.vocabulary.specials
    pad, mask = specials.get("pad"), specials.get("mask")
    for term, values in labels.items():
        if values.shape != body.tokens.shape:
            continue
        is_token = term in setup.objective.traits.get("token_terms", [])
        if is_token and mask is not None and bool(((values == mask) & (body.tokens == mask)).any()):
            return (
                f"the label of `{term}` at a masked token is the mask token; expected the token of the text. Usual "
                "cause: labels that are read after masking"
            )
        if not has_padding(body) or pad is None:
            continue
        is_next = (values[:, :-1] == body.tokens[:, 1:]) & (values[:, :-1] == pad)  # of a next-token loss
        if bool((is_next & ~_text_mask(body)[:, 1:]).any()):
            return f"padding is a label of `{term}`; expected {IGNORED} for the last token of a text"
    return HOLDS


def possible_fault(setup: ObjectiveSetup) -> str:
    """Return a message if a label is not possible: its loss is that of a masked score."""
    batch = setup.batch(torch.arange(min(setup.examples.count, EXAMPLES)))
    for term, value in setup.terms(batch).items():
        mean = float(value.total) / max(1.0, float(value.count))
        if not mean < IMPOSSIBLE:
            return f"the mean loss `{term}` is {mean:.3g}. Usual cause: a label that the head cannot predict"
    return HOLDS


def _order_fault(setup: ObjectiveSetup) -> str:
    """Return a message if tokens of one document lie between those of another."""
    for path, stream in setup.batch().streams.items():
        if stream.documents is not None and stream.order is None:
            known = stream.documents.masked_fill(stream.documents < 0, torch.iinfo(torch.int64).max)
            if bool((known.diff(dim=1) < 0).any()):
                return f"the documents of the stream `{path}` are not one after the other, so their tokens are mixed"
    return HOLDS


def example_origin(case: Case, host: HostModel) -> Verdict:
    """An example has the text of its own document only, and each document is in one or is reported as skipped."""
    setup = required_setup(case, host)
    if setup.examples.former is None:
        return DOES_NOT_APPLY
    return origin_fault(case, setup) or _languages_fault(setup)


def origin_fault(case: Case, setup: ObjectiveSetup) -> str:
    """Return a message about documents that are missing, mixed up, or taken from another corpus."""
    fault = _corpora_fault(case, setup) or _own_documents_fault(setup) or fit_fault(case, setup)
    for length in SHORT_LENGTHS if not fault else ():
        short = with_length(case, setup, length)
        if short is not None:
            fault = _lengths_fault(short) or _own_documents_fault(short) or _coverage_fault(short)
        if fault:
            return f"in examples of {length} tokens, {fault}"
    return fault


def forms_alike(case: Case, setup: ObjectiveSetup, other: ObjectiveSetup) -> bool:
    """Return True if two setups form the same examples of a short length, and skip the same documents."""
    first, second = (with_length(case, each, SHORT_LENGTHS[0]) or each for each in (setup, other))
    return (
        first.examples.count == second.examples.count
        and not difference(first.formed(), second.formed(), setup.name)
        and _skipped_count(first) == _skipped_count(second)
    )


def _skipped_count(setup: ObjectiveSetup) -> int:
    return sum(setup.objective.skipped_documents(setup.examples.tokens, setup.length).values())


def _new_objective(case: Case, setup: ObjectiveSetup, length: int) -> Any:
    spec = {**setup.spec, "dims": {**setup.spec["dims"], "length": length}}
    return build(spec, case.registry, setup.text.vocabulary, KERNELS).objectives[setup.name]


def _form(objective: Objective, tokens: Tokens, length: int, epoch: int = EPOCH) -> TrainingExamples:
    """Return the first examples of a corpus."""
    count = min(objective.example_count(tokens, length), EXAMPLES)
    return objective.form(tokens, length, Draw(SEED, epoch, torch.arange(count)))


def _corpora_fault(case: Case, setup: ObjectiveSetup) -> str:
    """Return a message if the examples of one corpus depend on a corpus that the objective read before."""
    other = setup.text.val
    after = _form(setup.objective, other, setup.length)
    changed = difference(after, _form(_new_objective(case, setup, setup.length), other, setup.length), setup.name)
    return changed and f"{changed} of the validation split depends on the training split, which was read before"


def _own_documents_fault(setup: ObjectiveSetup) -> str:
    """Return a message if examples of some documents are not among those of all documents."""
    tokens, objective, length = setup.examples.tokens, setup.objective, setup.length
    if setup.model.topology.embedding.values_per_example is not None:
        return HOLDS
    whole = _form(objective, tokens, length)
    if difference(whole, _form(objective, tokens, length, EPOCH + 1), setup.name):
        return HOLDS  # examples are drawn
    numbers = np.arange(len(tokens.documents) - 1)
    if tokens.labels is not None and len(tokens.labels.values) == len(numbers):
        numbers = numbers[np.asarray(tokens.labels.values) == np.max(tokens.labels.values)]
    else:
        numbers = numbers[::2]
    count = objective.example_count(tokens, length)
    whole = objective.form(tokens, length, Draw(SEED, EPOCH, torch.arange(count)))
    known = set(_rows(setup, whole))
    for number, row in enumerate(_rows(setup, _form(objective, select_documents(tokens, numbers.tolist()), length))):
        if row not in known:
            return (
                f"example {number} of a part of the documents is no example of the whole corpus; expected the same "
                "text and labels. Usual cause: a token of the next document, or classes numbered by occurrence"
            )
    return HOLDS


def _rows(setup: ObjectiveSetup, formed: TrainingExamples) -> list[bytes]:
    """Return the tokens and labels of each example as bytes."""
    values = [stream.tokens for stream in formed.streams.values()]
    values += [formed.targets[key] for key in setup.label_keys.values() if key in formed.targets]
    count = len(values[0])
    return [b"|".join(value[row].contiguous().numpy().tobytes() for value in values) for row in range(count)]


def fit_fault(case: Case, setup: ObjectiveSetup) -> str:
    """Return a message if documents are skipped that fit the length exactly."""
    tokens, objective = setup.examples.tokens, setup.objective
    lengths = objective.example_lengths(tokens, setup.length)
    if lengths is None or not len(lengths) or int(max(lengths)) >= setup.length:
        return HOLDS
    length = int(max(lengths))
    try:
        exact = _new_objective(case, setup, length)
        count = exact.example_count(tokens, length)
    except ParibusError:
        return HOLDS
    skipped = {reason: number for reason, number in exact.skipped_documents(tokens, length).items() if number}
    if count < setup.examples.count and not skipped:
        return f"{setup.examples.count - count} documents of exactly {length} tokens, the sequence length, are skipped"
    return HOLDS


def _coverage_fault(setup: ObjectiveSetup) -> str:
    """Return a message if tokens of more documents are in no example than `skipped_documents` reports."""
    objective, length = setup.objective, setup.length
    if objective.traits.get("example_kind") not in ("texts", "pairs"):
        return HOLDS
    tokens = select_documents(setup.examples.tokens, range(DOCUMENTS))
    reported = sum(objective.skipped_documents(tokens, length).values())
    if reported >= DOCUMENTS:
        return HOLDS
    whole = _form(objective, tokens, length)
    missing: dict[int, int] = {}  # a place that no example has, by document
    for side in (tokens, tokens.targets):
        if side is None:
            continue
        starts = np.asarray(side.sentences)[np.asarray(side.documents)]
        for place in range(len(side.ids)):
            ids = replaced(setup, side.ids, place)
            if ids is not None:
                changes = {"ids": ids} if side is tokens else {"targets": with_fields(side, ids=ids)}
                if not difference(_form(objective, with_fields(tokens, **changes), length), whole, setup.name):
                    missing[int(np.searchsorted(starts, place, side="right")) - 1] = place
    if len(missing) > reported:
        return (
            f"tokens of {len(missing)} documents are in no example (the first: token {min(missing.values())}), but "
            f"`skipped_documents` reports {reported}"
        )
    return HOLDS


def _languages_fault(setup: ObjectiveSetup) -> str:
    """Return a message if a token does not have the language of its document."""
    tokens = setup.examples.tokens
    if tokens.targets is None:
        return HOLDS
    numbers = np.arange(len(tokens.documents) - 1)
    targets = with_fields(tokens.targets, languages=1 - numbers % 2)
    tokens = with_fields(tokens, languages=numbers % 2, targets=targets)
    starts = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    whole = _form(setup.objective, tokens, setup.length)
    for place in range(0, min(len(tokens.ids), 256), 5):
        ids = replaced(setup, tokens.ids, place)
        if ids is None:
            continue
        language = (int(np.searchsorted(starts, place, side="right")) - 1) % 2
        changed = _form(setup.objective, with_fields(tokens, ids=ids), setup.length)
        for path, stream in changed.streams.items():
            is_changed = stream.tokens != whole.streams[path].tokens
            if stream.languages is not None and bool((stream.languages[is_changed] != language).any()):
                return f"a token of the stream `{path}` has another language than its document"
    return HOLDS
