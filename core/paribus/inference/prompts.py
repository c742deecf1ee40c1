"""From what a user hands over to prompts that the model can read; whatever cannot be is told here, all at once.

A text as a model reads it that goes on from nothing: whole, and with the marks that it was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from paribus.assembly.cost import scores_the_vocabulary
from paribus.errors import DataError, Problem, SpecError, closest_match, join_names
from paribus.inference.decoder import Decoder
from paribus.inference.generation_config import GenerationConfig
from paribus.registry import Registry, installed
from paribus.slots.objective import GenerationTarget, Objective, Prompt
from paribus.slots.position import Position
from paribus.slots.topology import Topology
from paribus.specs import resolved
from paribus.storage.saved_model import read_model
from paribus.train.assemble import load_corpus, load_model
from paribus.train.model import Model
from paribus.train.tokenizer_state import TextCodec

Given = str | Sequence[int]
"""A text, or its ids."""


class GenerationRequest(NamedTuple):
    """A model that can write, its prompts, and how many tokens may follow each."""

    voice: Decoder
    prompts: tuple[Prompt, ...]
    most: tuple[int, ...]


def require_text(model: Model, registry: Registry | None = None) -> TextCodec:
    """What makes the model's ids: what was kept beside its weights, or else its corpus read again."""
    if model.text is None:
        if not model.tokenizer:
            what = "which tokenizer this model reads is not known: it came from another library, or was never given one"
            valid = "ids in place of text, or a model that was trained or adapted here"
            raise DataError(Problem(code="no-tokenizer", path="tokenizer", message=what, valid=valid))
        classes = registry or installed()
        read = load_corpus(resolved(model.spec, registry=classes), classes)
        if read.tokenizer_fingerprint != model.tokenizer:
            what = "the corpus gives another tokenizer than the model was trained with, and none was kept beside it"
            raise DataError(Problem(code="other-tokenizer", path="tokenizer", message=what, valid="the corpus of then"))
        model.text = TextCodec.of(read)
    return model.text


def resolve_model(model: Model | str | Path, registry: Registry | None = None) -> Model:
    """A model, or what is in its folder."""
    return model if isinstance(model, Model) else load_model(read_model(model), registry or installed())


def as_prompts(prompt: Given | Sequence[Given]) -> list[Given]:
    """One prompt or several, as several."""
    if isinstance(prompt, str):
        return [prompt]
    items: list[int | Given] = list(prompt)
    whole = [item for item in items if isinstance(item, int)]
    if whole and len(whole) == len(items):
        return [whole]
    return [item for item in items if not isinstance(item, int)]


def encode_prompts(model: Model, given: Sequence[Given], registry: Registry | None) -> list[list[int]]:
    """The ids of each prompt, all of them of the vocabulary."""
    ids = [require_text(model, registry).read(each) if isinstance(each, str) else list(each) for each in given]
    size = vocabulary_size(model)
    problems = [
        Problem(
            code="id-outside",
            path=f"prompt {place + 1}",
            message=f"it has the id {token} at position {at}, of a vocabulary of {size:,}",
            valid=f"ids from 0 to {size - 1:,}",
        )
        for place, row in enumerate(ids)
        for at, token in islice(((at, token) for at, token in enumerate(row) if not 0 <= token < size), 1)
    ]
    if problems:
        raise DataError(*problems)
    return ids


def asked(
    model: Model, ids: Sequence[Sequence[int]], manner: GenerationConfig, wish: GenerationTarget = GenerationTarget()
) -> GenerationRequest:
    """How the model is asked to write behind `ids`."""
    objective, prompts = build_prompts(model, ids, wish)
    voice = Decoder(model.topology, _head(model, objective), wish.language, wish.source_language)
    length = int(model.spec["dims"]["length"])
    most = tuple(manner.tokens or length + 1 - len(prompt.body) for prompt in prompts)
    problems = [*_empty(prompts, voice)] or [*_too_long(prompts, most, voice, manner, length)]
    if problems:
        raise DataError(*problems)
    return GenerationRequest(voice, prompts, most)


def build_prompts(
    model: Model, ids: Sequence[Sequence[int]], wish: GenerationTarget
) -> tuple[Objective, tuple[Prompt, ...]]:
    """The first objective that it was trained for which can write, and what that makes of each text."""
    for name in model.trained:
        objective = model.objective(name)
        told = "labels" in objective.traits.get("needs", [])
        found = [objective.prompt(row, wish if told else wish._replace(label=None)) for row in ids]
        prompts = tuple(prompt for prompt in found if prompt is not None)
        if len(prompts) == len(found):
            if wish.label is not None and not told:
                what = f"a model that writes as it was trained for {name} was told no classes, so this would be ignored"
                raise SpecError(Problem(code="not-read", path="label", message=what, valid="none"))
            return objective, prompts
    scores = any(scores_the_vocabulary(model.objective(name), model.assembled) for name in model.trained)
    why = "nothing taught it what comes next" if scores else "its head scores no tokens that could come next"
    what = f"a model that was trained for {join_names(model.trained)} cannot write: {why}"
    raise SpecError(
        Problem(code="cannot-write", path="objective", message=what, valid="a model that was trained to write")
    )


def generation_target(
    model: Model, language: str | None, source_language: str | None, label: str | None = None
) -> GenerationTarget:
    """The numbers of the languages and the class that a user names; of two languages, a source is in the other one."""
    to, of = _language(model, language, "language"), _language(model, source_language, "source_language")
    kind = _class(model, label)
    known = () if model.text is None else model.text.languages
    crosses = any(part.cross for part in model.topology.parts if part.path == "body")
    if crosses and len(known) == 2 and (to is None) != (of is None):
        return GenerationTarget(1 - of, of, kind) if of is not None else GenerationTarget(to, 1 - (to or 0), kind)
    return GenerationTarget(to, of, kind)


def _head(model: Model, objective: Objective) -> Callable[[Tensor], Tensor]:
    def head(hidden: Tensor) -> Tensor:
        return objective.logits(hidden, model.topology.embedding.unembed)

    return head


def _language(model: Model, name: str | None, key: str) -> int | None:
    """The number of a language that the corpus tells apart."""
    if name is None:
        return None
    known = model.text.languages if model.text is not None else ()
    if name.isdecimal() and int(name) < len(known):
        return int(name)
    if name not in known:
        what = f"there is no language `{name}` in what the model was trained on"
        valid = join_names(known) or "none, as it tells no languages apart"
        raise SpecError(
            Problem(code="unknown-language", path=key, message=what, valid=valid, suggestion=closest_match(name, known))
        )
    return known.index(name)


def _class(model: Model, name: str | None) -> int | None:
    """The number of a class, by its name where the corpus gives any."""
    known = model.text.classes if model.text is not None else ()
    if name is None or name in known:
        return None if name is None else known.index(name)
    if name.isdecimal() and (not known or int(name) < len(known)):
        return int(name)
    what = f"there is no class `{name}` in what the model was trained on"
    valid = join_names(known) or "its number, as the corpus has no names for them"
    raise SpecError(
        Problem(code="unknown-class", path="label", message=what, valid=valid, suggestion=closest_match(name, known))
    )


def vocabulary_size(model: Model) -> int:
    return model.topology.stage("body").shape.vocabulary


def check_room(model: Model, ids: Sequence[int], path: str = "body") -> None:
    """Refuses a text that is empty, or longer than the positions of a part can tell."""
    reach = position_limit(model.topology, path)
    if not ids:
        raise DataError(Problem(code="empty-prompt", path="text", message="it is empty", valid="at least one token"))
    if reach is not None and len(ids) > reach:
        raise DataError(_past("text", f"it has {len(ids):,} tokens", reach, f"≤ {reach:,} tokens"))


def _empty(prompts: Sequence[Prompt], voice: Decoder) -> Iterator[Problem]:
    for place, prompt in enumerate(prompts):
        if not prompt.body or (voice.source is not None and not prompt.source):
            what = "it is empty, and the tokenizer has no mark that a text begins or ends with"
            yield Problem(code="empty-prompt", path=f"prompt {place + 1}", message=what, valid="at least one token")


def _too_long(
    prompts: Sequence[Prompt], most: Sequence[int], voice: Decoder, manner: GenerationConfig, length: int
) -> Iterator[Problem]:
    reach = position_limit(voice.topology, "body")
    far = None if voice.source is None else position_limit(voice.topology, voice.source)
    for place, (prompt, more) in enumerate(zip(prompts, most, strict=True)):
        path, rows = f"prompt {place + 1}", len(prompt.body)
        if far is not None and len(prompt.source or ()) > far:
            yield _past(path, f"its source has {len(prompt.source or ()):,} tokens", far, f"≤ {far:,} tokens")
        elif reach is not None and rows > reach:
            yield _past(path, f"it has {rows:,} tokens", reach, f"≤ {reach:,} tokens")
        elif more < 1:
            what = f"it has {rows:,} tokens, and the model was made for {length:,} (dims.length)"
            valid = f"≤ {length:,} tokens, or `tokens`, which says how many may follow none the less"
            yield Problem(code="too-long", path=path, message=what, valid=valid)
        elif reach is not None and rows + more - 1 > reach:
            what = f"it has {rows:,} tokens, and {more:,} more are asked for"
            yield _past(path, what, reach, f"`tokens` ≤ {reach + 1 - rows:,}")


def _past(path: str, what: str, reach: int, valid: str) -> Problem:
    told = f"{what}, but the positions of this model end at {reach:,}"
    return Problem(code="past-the-table", path=path, message=told, valid=valid)


def position_limit(topology: Topology, path: str) -> int | None:
    """How many rows the positions of a part can tell apart; None: any number."""
    own = [m for m in topology.get_submodule(path).modules() if isinstance(m, Position)]
    found = own or [m for m in topology.modules() if isinstance(m, Position)]  # another part may lend its own
    reaches = [reach for position in found if (reach := position.position_limit()) is not None]
    return min(reaches, default=None)


def whole(model: Model, text: Given, registry: Registry | None = None, *, joined: int | None = None) -> list[int]:
    """The ids of a text, between the marks of one segment where the model was trained on such.

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


def _joined(model: Model, text: str, token: int, registry: Registry | None) -> str:
    reads = require_text(model, registry)
    shown = reads.decode([token])
    return text.replace(f" {shown}", shown) if len(reads.encode(" a")) == 1 else text
