"""Prompts: from user input to token ids, with all problems reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.assembly.cost import scores_the_vocabulary
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import DataError, Problem, SpecError, closest_match, join_names
from paribus.inference.decoder import Decoder
from paribus.inference.generation_config import GenerationConfig
from paribus.models.assemble import load_corpus, load_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.registry import Registry, installed
from paribus.slots.objective import GenerationTarget, Objective, Prompt
from paribus.slots.position import Position
from paribus.slots.topology import Topology
from paribus.specs import resolved
from paribus.storage.saved_model import read_model

TextOrIds = str | Sequence[int]
"""Text or token ids."""


class GenerationRequest(NamedTuple):
    """Decoder, prompts, and the maximum number of new tokens of each."""

    decoder: Decoder
    prompts: tuple[Prompt, ...]
    limits: tuple[int, ...]

    @property
    def fills_masks(self) -> bool:
        """Whether the new tokens are masks that are filled in any order."""
        return self.prompts[0].mask is not None


def require_text(model: Model, registry: Registry | None = None) -> TextCodec:
    """Return the tokenizer of a model, saved with it or learned again from its corpus."""
    if model.text is None:
        if not model.tokenizer:
            message = "this model has no tokenizer: it was converted or made without one"
            valid = "ids in place of text, or a model that was trained or adapted here"
            raise DataError(Problem(code="missing-tokenizer", path="tokenizer", message=message, valid=valid))
        classes = registry or installed()
        read = load_corpus(resolved(model.spec, registry=classes), classes)
        if read.tokenizer_fingerprint != model.tokenizer:
            message = "the corpus gives another tokenizer than that of the training, and none was saved"
            raise DataError(
                Problem(code="other-tokenizer", path="tokenizer", message=message, valid="the corpus of the training")
            )
        model.text = TextCodec.of(read)
    return model.text


def resolve_model(model: Model | str | Path, registry: Registry | None = None) -> Model:
    """Return a model, loaded if a folder is given."""
    return model if isinstance(model, Model) else load_model(read_model(model), registry or installed())


def as_prompts(prompt: TextOrIds | Sequence[TextOrIds]) -> list[TextOrIds]:
    """Return one prompt or several as a list."""
    if isinstance(prompt, str):
        return [prompt]
    items: list[int | TextOrIds] = list(prompt)
    whole = [item for item in items if isinstance(item, int)]
    if whole and len(whole) == len(items):
        return [whole]
    return [item for item in items if not isinstance(item, int)]


def encode_prompts(model: Model, prompts: Sequence[TextOrIds], registry: Registry | None) -> list[list[int]]:
    """Return the ids of each prompt, after checking that the vocabulary contains them."""
    ids = [
        require_text(model, registry).read(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts
    ]
    size = vocabulary_size(model)
    problems = [
        Problem(
            code="id-out-of-range",
            path=f"prompt {index + 1}",
            message=f"unknown id {token} at position {position}, of a vocabulary of {size:,}",
            valid=f"ids from 0 to {size - 1:,}",
        )
        for index, row in enumerate(ids)
        for position, token in islice(
            ((position, token) for position, token in enumerate(row) if not 0 <= token < size), 1
        )
    ]
    if problems:
        raise DataError(*problems)
    return ids


def generation_request(
    model: Model, ids: Sequence[Sequence[int]], config: GenerationConfig, target: GenerationTarget = GenerationTarget()
) -> GenerationRequest:
    """Return the request to continue `ids`."""
    objective, prompts = build_prompts(model, ids, target)
    decoder = Decoder(model.topology, _head(model, objective), target.language, target.source_language)
    length = int(model.spec["dims"]["length"])
    # The last token that is written from left to right is not read.
    limits = tuple(config.tokens or length + (prompt.mask is None) - len(prompt.body) for prompt in prompts)
    problems = [*_empty(prompts, decoder)] or [*_too_long(prompts, limits, decoder, config, length)]
    if problems:
        raise DataError(*problems)
    return GenerationRequest(decoder, prompts, limits)


def build_prompts(
    model: Model, ids: Sequence[Sequence[int]], target: GenerationTarget
) -> tuple[Objective, tuple[Prompt, ...]]:
    """Return the first trained objective that can generate, and its prompt for each sequence of ids."""
    for name in model.trained:
        objective = model.objective(name)
        uses_labels = "labels" in objective.traits.get("needs", [])
        results = [objective.prompt(row, target if uses_labels else target._replace(label=None)) for row in ids]
        prompts = tuple(prompt for prompt in results if prompt is not None)
        if len(prompts) == len(results):
            if target.label is not None and not uses_labels:
                message = f"a model that writes as it was trained for {name} has no classes, so this has no effect"
                raise SpecError(Problem(code="unused-option", path="label", message=message, valid="none"))
            return objective, prompts
    scores = any(scores_the_vocabulary(model.objective(name), model.assembled) for name in model.trained)
    reason = "it was not trained to predict the next token" if scores else "its head does not score next tokens"
    message = f"a model that was trained for {join_names(model.trained)} cannot generate: {reason}"
    raise SpecError(
        Problem(code="cannot-write", path="objective", message=message, valid="a model that was trained to generate")
    )


def generation_target(
    model: Model, language: str | None, source_language: str | None, label: str | None = None
) -> GenerationTarget:
    """Return the ids of the requested languages and class; with two languages, the source has the other one."""
    target_id, source_id = _language(model, language, "language"), _language(model, source_language, "source_language")
    class_id = _class(model, label)
    languages = () if model.text is None else model.text.languages
    reads_source = any(part.cross for part in model.topology.parts if part.path == "body")
    if reads_source and len(languages) == 2 and (target_id is None) != (source_id is None):
        return (
            GenerationTarget(1 - source_id, source_id, class_id)
            if source_id is not None
            else GenerationTarget(target_id, 1 - (target_id or 0), class_id)
        )
    return GenerationTarget(target_id, source_id, class_id)


def _head(model: Model, objective: Objective) -> Callable[[Tensor], Tensor]:
    def head(hidden: Tensor) -> Tensor:
        return objective.logits(hidden, model.topology.embedding.unembed)

    return head


def _language(model: Model, name: str | None, key: str) -> int | None:
    """Return the id of a language."""
    if name is None:
        return None
    languages = model.text.languages if model.text is not None else ()
    if name.isdecimal() and int(name) < len(languages):
        return int(name)
    if name not in languages:
        message = f'unknown language "{name}"'
        valid = join_names(languages) or "none: the model has no languages"
        raise SpecError(
            Problem(
                code="unknown-language",
                path=key,
                message=message,
                valid=valid,
                suggestion=closest_match(name, languages),
            )
        )
    return languages.index(name)


def _class(model: Model, name: str | None) -> int | None:
    """Return the id of a class, by name if the corpus has names."""
    classes = model.text.classes if model.text is not None else ()
    if name is None or name in classes:
        return None if name is None else classes.index(name)
    if name.isdecimal() and (not classes or int(name) < len(classes)):
        return int(name)
    message = f'unknown class "{name}"'
    valid = join_names(classes) or "its number: the corpus has no names of classes"
    raise SpecError(
        Problem(
            code="unknown-class", path="label", message=message, valid=valid, suggestion=closest_match(name, classes)
        )
    )


def vocabulary_size(model: Model) -> int:
    return model.topology.stage("body").shape.vocabulary


def check_room(model: Model, ids: Sequence[int], path: str = "body") -> None:
    """Raise an error if a text is empty, or longer than the positions of a part."""
    reach = position_limit(model.topology, path)
    if not ids:
        raise DataError(Problem(code="empty-prompt", path="text", message="it is empty", valid="at least one token"))
    if reach is not None and len(ids) > reach:
        raise DataError(_past("text", f"it has {len(ids):,} tokens", reach, f"≤ {reach:,} tokens"))


def _empty(prompts: Sequence[Prompt], decoder: Decoder) -> Iterator[Problem]:
    for index, prompt in enumerate(prompts):
        if (not prompt.body and prompt.mask is None) or (decoder.source is not None and not prompt.source):
            message = "it is empty, and the tokenizer has no special token to start from"
            yield Problem(code="empty-prompt", path=f"prompt {index + 1}", message=message, valid="at least one token")


def _too_long(
    prompts: Sequence[Prompt], limits: Sequence[int], decoder: Decoder, config: GenerationConfig, length: int
) -> Iterator[Problem]:
    limit_of_positions = position_limit(decoder.topology, "body")
    source_limit = None if decoder.source is None else position_limit(decoder.topology, decoder.source)
    for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        path, length_of_prompt = f"prompt {index + 1}", len(prompt.body)
        if source_limit is not None and len(prompt.source or ()) > source_limit:
            yield _past(
                path, f"its source has {len(prompt.source or ()):,} tokens", source_limit, f"≤ {source_limit:,} tokens"
            )
        elif limit_of_positions is not None and length_of_prompt > limit_of_positions:
            yield _past(
                path, f"it has {length_of_prompt:,} tokens", limit_of_positions, f"≤ {limit_of_positions:,} tokens"
            )
        elif limit < 1:
            message = f"it has {length_of_prompt:,} tokens, got a model of length {length:,} (dims.length)"
            valid = f"≤ {length - (prompt.mask is not None):,} tokens, or set `tokens`"
            yield Problem(code="too-long", path=path, message=message, valid=valid)
        elif limit_of_positions is not None and length_of_prompt + limit - (prompt.mask is None) > limit_of_positions:
            message = f"it has {length_of_prompt:,} tokens, and {limit:,} new ones are requested"
            room = limit_of_positions + (prompt.mask is None) - length_of_prompt
            yield _past(path, message, limit_of_positions, f"`tokens` ≤ {room:,}")


def _past(path: str, message: str, limit: int, valid: str) -> Problem:
    text = f"{message}, but the positions of this model end at {limit:,}"
    return Problem(code="position-out-of-range", path=path, message=text, valid=valid)


def position_limit(topology: Topology, path: str) -> int | None:
    """Return the maximum sequence length of the positions of a part, or None."""
    part_positions = [m for m in topology.get_submodule(path).modules() if isinstance(m, Position)]
    positions = part_positions or [
        m for m in topology.modules() if isinstance(m, Position)
    ]  # a part may share those of another
    limits = [reach for position in positions if (reach := position.position_limit()) is not None]
    return min(limits, default=None)


def encode_text(
    model: Model, text: TextOrIds, registry: Registry | None = None, *, joined: int | None = None
) -> list[int]:
    """Return the ids of a text, between the special tokens of one segment if the model was trained with them.

    Where words carry the space before them, the one before a `joined` token, which stands for a word, is its own.
    """
    if isinstance(text, str) and joined is not None:
        text = _joined(model, text, joined, registry)
    (ids,) = encode_prompts(model, [text], registry)
    if isinstance(text, str) and any(model.objective(name).traits.get("segments") for name in model.trained):
        specials = require_text(model, registry).vocabulary.specials
        marks = [specials.get(name) for name in ("cls", "sep")]
        ids = [token for token in (marks[0], *ids, marks[1]) if token is not None]
    check_room(model, ids)
    return ids


def text_stream(
    model: Model,
    text: TextOrIds,
    pair: TextOrIds | None = None,
    registry: Registry | None = None,
    *,
    joined: int | None = None,
) -> Stream:
    """Return a text as a stream (1, T), or two as the pair of segments that the model was trained on."""
    if pair is None:
        return Stream(torch.tensor([encode_text(model, text, registry, joined=joined)], device=model.device))
    texts = [
        _joined(model, each, joined, registry) if isinstance(each, str) and joined is not None else each
        for each in (text, pair)
    ]
    first, second = encode_prompts(model, texts, registry)
    ids, segments = join_pair(model, first, second, registry)
    check_room(model, ids)
    stream = Stream(torch.tensor([ids], device=model.device))
    return stream if segments is None else stream._replace(segments=torch.tensor([segments], device=model.device))


def join_pair(
    model: Model, first: Sequence[int], second: Sequence[int], registry: Registry | None = None
) -> tuple[list[int], list[int] | None]:
    """Return `[cls] A [sep] B [sep]` of two texts, and the segment of each token if the embedding has two or more."""
    is_causal = next(part.causal for part in model.topology.parts if part.path == "body")
    if is_causal or not any(model.objective(name).traits.get("segments") for name in model.trained):
        message = f"a model that was trained for {join_names(model.trained)} reads no pairs of texts"
        valid = "an encoder that was trained on segments, such as bert or albert"
        raise SpecError(Problem(code="no-pairs", path="pair", message=message, valid=valid))
    specials = require_text(model, registry).vocabulary.specials
    start, separator = ([specials[name]] if name in specials else [] for name in ("cls", "sep"))
    before, after = [*start, *first, *separator], [*second, *separator]
    segments = [0] * len(before) + [1] * len(after)
    return before + after, segments if model.spec["embedding"].get("segments", 0) > 1 else None


def _joined(model: Model, text: str, token: int, registry: Registry | None) -> str:
    tokenizer = require_text(model, registry)
    word = tokenizer.decode([token])
    return text.replace(f" {word}", word) if len(tokenizer.encode(" a")) == 1 else text
