"""Checks of tokenizers beyond the round trip of plain text: any Unicode text, batches, states, training and options."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Final

from paribus.assembly.components import make
from paribus.errors import DataError, ParibusError
from paribus.slots.tokenizer import Tokenizer
from paribus.testing.data_checks import WORDS, SyntheticCorpus
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict, alternative_values
from paribus.testing.option_checks import flatten_options

LONG_TEXT: Final = " ".join(WORDS * 1200)
TEXTS: Final = (
    "",
    " ",
    "e\u0301a\u0308n\u0303 and \u00e9\u00e4\u00f1",  # combining and composed
    "\U0001d518\U0001d55f\U0001f600 astral",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",  # right to left
    "one\r\ntwo\ttabs\n\nand  two spaces ",
    "null\0byte and \ufeffmark",
    "\ufb01ne \u2460 \uff21\uff22 compatibility",
    "\u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d",
    "<mask> [MASK] <pad> [PAD] </s> <s> [CLS] <sentinel 0> <extra_id_0> <bytes>",
    "MiXeD Case 1234567890 !?.,;",
)
UNSEEN_TEXT: Final = "\u0436\u2603\u00fe unseen"
UNSEEN_TEXTS: Final = (UNSEEN_TEXT, LONG_TEXT)


def any_text(case: Case, host: HostModel) -> Verdict:
    """Any text is encoded as a whole, alone as in a batch, by ids of text, and restored where no token is unknown."""
    tokenizer = _trained(case, host)
    if tokenizer is None:
        return DOES_NOT_APPLY
    texts = (*TEXTS, *UNSEEN_TEXTS)
    vocabulary = tokenizer.vocabulary()
    unknown = vocabulary.specials.get("unk")
    special = vocabulary.reserved - {unknown}
    encoded = tokenizer.encode_batch(list(texts))
    if tokenizer.encode_batch([]) != [] or len(encoded) != len(texts):
        return f"`encode_batch` returns {len(encoded)} lists for {len(texts)} texts; expected one for each"
    for text, ids in zip(texts, encoded, strict=True):
        if tokenizer.encode_batch([text]) != [ids] or tokenizer.encode_batch([LONG_TEXT, text])[1] != ids:
            return f"{text[:40]!r} has other ids alone than in a batch"
        invalid = [token for token in ids if not 0 <= token < vocabulary.size or token in special]
        if invalid or (ids and not text):
            return f"{text[:40]!r} is encoded with the id {(invalid or ids)[0]}; expected ids of text only"
        decoded = tokenizer.decode(ids)
        if unknown not in ids and _letters(decoded) != _letters(text):
            return (
                f"{text[:40]!r}, of {len(text):,} characters, is decoded as {decoded[:40]!r}, of {len(decoded):,}; "
                "expected the same letters, or the unknown token. Usual cause: a limit of the length"
            )
    return HOLDS


def _letters(text: str) -> str:
    """Return the characters that every tokenizer keeps: without case, accents, spaces and control characters."""
    kept = (letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter)[0] not in "MCZ")
    return "".join(kept).casefold()


def training_and_state(case: Case, host: HostModel) -> Verdict:
    """Two trainings learn the same, a state restores the tokenizer, and the vocabulary is as declared."""
    tokenizer, second = _trained(case, host), _trained(case, host)
    if tokenizer is None or second is None:
        return DOES_NOT_APPLY
    if tokenizer.state() != second.state():
        return (
            "two trainings on the same texts give different states. Usual cause: the order of a set, or a random draw"
        )
    restored = _tokenizer(case, host.spec["tokenizer"])
    restored.load(tokenizer.state())
    if restored.state() != tokenizer.state():
        return "`load(state())` does not restore the state: `state()` differs afterwards"
    texts = [*TEXTS, *UNSEEN_TEXTS]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if restored.encode_batch([text]) != [ids] or restored.decode(ids) != tokenizer.decode(ids):
            return f"{text[:40]!r} has other ids or another text after `load(state())`"
    return _vocabulary_fault(tokenizer, restored) or _size_fault(case, host, tokenizer)


def _vocabulary_fault(tokenizer: Tokenizer, restored: Tokenizer) -> str:
    vocabulary = tokenizer.vocabulary()
    if restored.vocabulary() != vocabulary:
        return "its vocabulary differs after `load(state())`"
    invalid = [token for token in (*vocabulary.reserved, *(vocabulary.word_starts or ())) if token >= vocabulary.size]
    if invalid:
        return f"its vocabulary has {vocabulary.size} ids, but names the id {invalid[0]}"
    if len(set(vocabulary.sentinels)) < len(vocabulary.sentinels):
        return "two sentinels have the same id"
    provided = {*vocabulary.specials, *(["sentinels"] if vocabulary.sentinels else [])}
    missing = [name for name in tokenizer.traits.get("provides", []) if name not in provided]
    if missing:
        return f"its trait `provides` contains `{missing[0]}`, which its vocabulary lacks"
    return _display_fault(tokenizer)


def _display_fault(tokenizer: Tokenizer) -> str:
    """Return a message if special tokens are not displayed, or if two tokens have the same piece."""
    vocabulary = tokenizer.vocabulary()
    for name, token in vocabulary.specials.items():
        if not tokenizer.decode([token]).startswith("<"):
            return f"the special token `{name}` is decoded as {tokenizer.decode([token])!r}; expected `<{name}>`"
    pieces: dict[str, int] = {}
    for token in sorted(set(range(min(vocabulary.size, 4096))) - vocabulary.reserved):
        other = pieces.setdefault(tokenizer.piece(token), token)
        if other != token:
            return f"the tokens {other} and {token} have the same `piece`: {tokenizer.piece(token)!r}"
    return HOLDS


def _size_fault(case: Case, host: HostModel, tokenizer: Tokenizer) -> str:
    """Return a message if a smaller vocabulary is too large."""
    size = tokenizer.vocabulary().size - 5
    smaller = _tokenizer(case, host.spec["tokenizer"])
    try:
        smaller.train(iter(_texts()), size)
    except ParibusError:  # the vocabulary is fixed
        return HOLDS
    count = smaller.vocabulary().size
    return f"`train` with a size of {size} gives {count} ids; expected at most {size}" if count > size else HOLDS


def tokenizer_options(case: Case, host: HostModel) -> Verdict:
    """Each value of a choice, and some other value of each number, changes ids or vocabulary."""
    if not case.entry.options or _trained(case, host) is None:
        return DOES_NOT_APPLY
    default = _behaviour(case, host.spec["tokenizer"])
    for path, option in flatten_options(case.entry.options):
        effects = []
        for value in alternative_values(option, host.spec) if len(path) == 1 else ():
            changed = _behaviour(case, {**host.spec["tokenizer"], path[0]: value})
            effects += [] if changed is None else [changed != default]
        is_choice = option.kind.name in ("choice", "bool")
        if effects and not (all(effects) if is_choice else any(effects)):
            return f"the option `{'.'.join(path)}` has no effect on ids or vocabulary"
    return HOLDS


def _behaviour(case: Case, node: dict[str, Any]) -> Sequence[Any] | None:
    try:
        tokenizer = _tokenizer(case, node)
        tokenizer.train(iter(_texts()), None)
    except (ParibusError, ValueError):
        return None
    return [tokenizer.encode_batch([*TEXTS, UNSEEN_TEXT]), tokenizer.vocabulary()]


def _trained(case: Case, host: HostModel) -> Tokenizer | None:
    """Return the tokenizer, trained on text; None if it reads images or a file."""
    tokenizer = _tokenizer(case, host.spec["tokenizer"])
    if tokenizer.traits.get("modality", "text") != "text":
        return None
    try:
        tokenizer.train(iter(_texts()), None)
    except DataError:  # it reads a file that its example options do not have
        return None
    return tokenizer


def _texts() -> list[str]:
    return [*(document.text for document in SyntheticCorpus().documents("train")), *TEXTS]


def _tokenizer(case: Case, node: Any) -> Tokenizer:
    return make(case.registry, "tokenizer", node, kind=Tokenizer)
