"""Checks of tokenizers beyond the round trip of plain text: any text, exact text, states, training and options."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from paribus.assembly.components import make
from paribus.datamodule.synthetic_corpus import WORDS, SyntheticCorpus
from paribus.errors import DataError, ParibusError
from paribus.slots.corpus import PIXEL_VALUES, pixels_to_text
from paribus.slots.tokenizer import Tokenizer
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import Spec, option_specs
from paribus.testing.purity_checks import process_fault

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
EQUALLY_FREQUENT: Final = "".join(map(chr, range(0x4E00, 0x4E00 + 192)))  # characters that no other text has
SIGNS: Final = "a # sign and ## signs \u2581 low \u0120 high"  # of the spaces and pieces of some tokenizers
EXACT_TEXTS: Final = (
    SIGNS,
    "  outer and  double \t\t spaces \n\n",
    "sign\u2581inside \u2581before \u2581\u2581 \u0120after\u0120 \u010a##part",
    "\ud83d and \udc00",  # halves of a pair of surrogates
)
STARTED_WORDS: Final = ("cat", "#", "##", "!", "old")
CAPITALS: Final = [document.text.upper() for document in SyntheticCorpus().documents("train")]
VALUES: Final = 1  # other values of a numeric option
SPECIAL_TOKENS: Final = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<bos>", "<eos>", "<extra_id_0>")
BYTE_LETTERS: Final = [chr(code) for code in range(33, 324) if code not in (*range(127, 161), 173)]
_TRAINING: Final = """
from paribus.slots.tokenizer import Tokenizer
for size in request["sizes"]:
    tokenizer = make(registry, "tokenizer", request["node"], kind=Tokenizer)
    tokenizer.train(iter(request["texts"]), size)
    digest.update(tokenizer.state())
"""
EXAMPLE_NAME: Final = "tokenizer.json"
EXAMPLE_FILE: Final = {  # of bytes, and of the special tokens as words, so that a text may spell them out
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": token, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for token, name in enumerate(SPECIAL_TOKENS)
    ],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\s"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    },
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "model": {
        "type": "BPE",
        "vocab": {piece: token for token, piece in enumerate([*SPECIAL_TOKENS, *BYTE_LETTERS])},
        "merges": [],
        "ignore_merges": True,
    },
}


def any_text(case: Case, host: HostModel) -> Verdict:
    """Any text is encoded as a whole, alone as in a batch, by ids of text, and restored where no token is unknown.

    The same holds for other values of the options.
    """
    for description, spec in option_specs(case, host, VALUES):
        tokenizer = _trained(case, spec["tokenizer"])
        if tokenizer is None:
            return DOES_NOT_APPLY
        fault = _text_fault(tokenizer, (*TEXTS, UNSEEN_TEXT) if description else (*TEXTS, *UNSEEN_TEXTS))
        if fault:
            return fault + description
    return HOLDS


def _text_fault(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    vocabulary = tokenizer.vocabulary()
    unknown = vocabulary.specials.get("unk")
    special = vocabulary.reserved - {unknown}
    encoded = tokenizer.encode_batch(list(texts))
    if tokenizer.encode_batch([]) != [] or len(encoded) != len(texts):
        return f"`encode_batch` returns {len(encoded)} lists for {len(texts)} texts; expected one for each"
    for text, ids in zip(texts, encoded, strict=True):
        if tokenizer.encode_batch([text]) != [ids] or tokenizer.encode_batch([texts[-1], text])[1] != ids:
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


def exact_text(case: Case, host: HostModel) -> Verdict:
    """A text without unknown tokens is restored with its spaces and signs, unless the trait `lossy` is declared.

    This holds for the default options. Of images, every pixel value is restored, and no other character is encoded as a
    special token.
    """
    node, is_lossy = host.spec["tokenizer"], case.entry.traits.get("lossy", False)
    if case.entry.traits.get("modality") == "images":
        return _pixel_fault(_tokenizer(case, node), is_lossy=is_lossy)
    choices = [option for option in case.entry.options if option.kind.name in ("bool", "choice")]
    tokenizer = _trained(case, node)
    if is_lossy or tokenizer is None or any(node[option.name] != option.sample for option in choices):
        return DOES_NOT_APPLY
    unknown = tokenizer.vocabulary().specials.get("unk")
    for text in (*TEXTS, *EXACT_TEXTS, *UNSEEN_TEXTS):
        try:
            (ids,) = tokenizer.encode_batch([text])
        except (UnicodeError, TypeError):  # a surrogate that it does not encode
            continue
        decoded = tokenizer.decode(ids)
        if unknown not in ids and decoded != text:
            return f"{text[:40]!r} is decoded as {decoded[:40]!r}; expected the same text, or the trait `lossy`"
    return HOLDS


def _pixel_fault(tokenizer: Tokenizer, *, is_lossy: bool) -> str:
    image, vocabulary = pixels_to_text(np.arange(PIXEL_VALUES, dtype=np.uint8)), tokenizer.vocabulary()
    (ids,) = tokenizer.encode_batch([image])
    if not is_lossy and tokenizer.decode(ids) != image:
        return f"the pixel values 0 to {PIXEL_VALUES - 1} are decoded as others"
    for letter in ("a", chr(ord(image[0]) - 1), chr(ord(image[-1]) + 1)):
        try:
            ((token, *_),) = tokenizer.encode_batch([letter])
        except DataError:
            continue
        if token in vocabulary.reserved or not 0 <= token < vocabulary.size:
            return f"{letter!r}, which is no pixel value, is encoded with the id {token}; expected a DataError"
    return HOLDS


def _letters(text: str) -> str:
    """Return the characters that every tokenizer keeps: without case, accents, spaces and control characters."""
    kept = (letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter)[0] not in "MCZ")
    return "".join(kept).casefold()


def training_and_state(case: Case, host: HostModel) -> Verdict:
    """Trainings learn the same, a state alone restores the tokenizer, and the vocabulary is as declared.

    Two new processes also learn the same. A state is restored by a tokenizer with the same options, by one with others,
    and by one that has encoded texts with another state.
    """
    node = host.spec["tokenizer"]
    tokenizer, second = _trained(case, node), _train(case, node, _texts())
    again, capitals = _train(case, node, CAPITALS, _texts()), _train(case, node, CAPITALS)
    if tokenizer is None or second is None or again is None or capitals is None:
        return DOES_NOT_APPLY
    if tokenizer.state() != second.state():
        return (
            "two trainings on the same texts give different states. Usual cause: the order of a set, or a random draw"
        )
    if tokenizer.state() != again.state():
        return "a second training keeps something of the first: the state differs from that of one training"
    unknown = capitals.vocabulary().specials.get("unk")
    for text, ids in zip(CAPITALS, capitals.encode_batch(CAPITALS), strict=True):
        if unknown in ids:
            return f"{text!r} has an unknown token, although the tokenizer was trained on this text alone"
    for description, spec in option_specs(case, host, VALUES):
        changed = _trained(case, spec["tokenizer"])
        for other in (spec["tokenizer"], node):
            used = _train(case, other, CAPITALS)
            if changed is None or used is None:
                continue
            used.encode_batch([*TEXTS, *_texts()])  # it may keep their ids
            fault = _restored_fault(changed, _tokenizer(case, other)) or _restored_fault(changed, used)
            if fault:
                return fault + description
    reads_file = any(option.sample == EXAMPLE_NAME for option in case.entry.options)
    return (
        _fixed_fault(case, node)
        or _word_start_fault(tokenizer)
        or _size_fault(case, host, tokenizer)
        or (
            HOLDS
            if reads_file
            else process_fault(
                case,
                _TRAINING,
                {"node": dict(node), "texts": _texts(), "sizes": _training_sizes(case, node, tokenizer)},
                "learn other states",
            )
        )
    )


def _training_sizes(case: Case, node: Mapping[str, Any], tokenizer: Tokenizer) -> list[int | None]:
    """Return sizes to train at: the default, and those at which some of equally frequent tokens have no room."""
    sizes = [tokenizer.vocabulary().size - count for count in (len(EQUALLY_FREQUENT) // 2, 5)]
    try:
        _tokenizer(case, node).train(iter(_texts()), sizes[0])
    except ParibusError:  # the vocabulary is fixed
        return [None]
    return [None, *sizes]


def _fixed_fault(case: Case, node: Mapping[str, Any]) -> str:
    """Return a message if a tokenizer that needs no training reads the texts of one."""
    count, texts = len(_texts()), iter(_texts())
    _train(case, node, texts)
    is_fault = case.entry.traits.get("fixed") and len(list(texts)) < count
    return "its trait `fixed` is declared, but `train` reads texts" if is_fault else HOLDS


def _restored_fault(tokenizer: Tokenizer, restored: Tokenizer) -> str:
    restored.load(tokenizer.state())
    if restored.state() != tokenizer.state():
        return "`load(state())` does not restore the state: `state()` differs afterwards"
    texts = [*TEXTS, UNSEEN_TEXT, *_texts()]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if restored.encode_batch([text]) != [ids] or restored.decode(ids) != tokenizer.decode(ids):
            return (
                f"{text[:40]!r} has other ids or another text after `load(state())`. Usual cause: an option that "
                "`state` or `load` lacks"
            )
    return _vocabulary_fault(tokenizer, restored)


def _word_start_fault(tokenizer: Tokenizer) -> str:
    """Return a message if a word after a space has no id that starts a word."""
    vocabulary = tokenizer.vocabulary()
    (first,) = tokenizer.encode_batch(["the"])
    for word in STARTED_WORDS if vocabulary.word_starts is not None else ():
        (ids,) = tokenizer.encode_batch([f"the {word}"])
        is_known = vocabulary.specials.get("unk") not in ids and ids[: len(first)] == first
        if is_known and not (vocabulary.word_starts or frozenset()).intersection(ids[len(first) :]):
            return f"{word!r} after a space has none of the ids in `word_starts`"
    return HOLDS


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
    shared = set(vocabulary.sentinels) & set(vocabulary.specials.values())
    if shared:
        return f"the id {min(shared)} is a sentinel and a special token"
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
    size = _training_sizes(case, host.spec["tokenizer"], tokenizer)[-1]
    if size is None:
        return HOLDS
    smaller = _tokenizer(case, host.spec["tokenizer"])
    smaller.train(iter(_texts()), size)
    count = smaller.vocabulary().size
    return f"`train` with a size of {size} gives {count} ids; expected at most {size}" if count > size else HOLDS


def behaviour(case: Case, host: HostModel, spec: Spec) -> Sequence[Any] | None:
    """Return ids of texts and the vocabulary; None if the tokenizer cannot be trained on text."""
    tokenizer = _trained(case, spec["tokenizer"])
    return None if tokenizer is None else [tokenizer.encode_batch([*TEXTS, UNSEEN_TEXT]), tokenizer.vocabulary()]


def _trained(case: Case, node: Mapping[str, Any]) -> Tokenizer | None:
    """Return the tokenizer, trained once on text; None if it reads images or a file that is not there."""
    key = ("tokenizer", repr(node))
    if key not in case.setups:
        case.setups[key] = _train(case, node, _texts())
    tokenizer: Tokenizer | None = case.setups[key]
    return tokenizer


def _train(case: Case, node: Mapping[str, Any], *trainings: Iterable[str]) -> Tokenizer | None:
    """Return a new tokenizer after some trainings; an example file takes the place of a `tokenizer.json`."""
    if case.entry.traits.get("modality", "text") != "text":
        return None
    with TemporaryDirectory() as folder:
        file = Path(folder) / EXAMPLE_NAME
        file.write_text(json.dumps(EXAMPLE_FILE), encoding="utf-8")
        paths = {option.name: str(file) for option in case.entry.options if option.sample == file.name}
        tokenizer = _tokenizer(
            case, {**node, **{name: path for name, path in paths.items() if node[name] == file.name}}
        )
        try:
            for texts in trainings:
                tokenizer.train(iter(texts), None)
        except DataError as error:  # it reads another file, which its example options do not have
            case.obstacles.append(str(error))
            return None
    return tokenizer


def _texts() -> list[str]:
    texts = (document.text for document in SyntheticCorpus().documents("train"))
    return [*texts, *TEXTS, *2 * [SIGNS, EQUALLY_FREQUENT]]


def _tokenizer(case: Case, node: Any) -> Tokenizer:
    return make(case.registry, "tokenizer", node, kind=Tokenizer)
