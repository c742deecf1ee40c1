"""Pretrained tokenizer from a `tokenizer.json` file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, final

from paribus import DataError, Example, Problem, SpecError, Tokenizer, TokenizerTraits, Vocabulary
from paribus_text.reserved_tokens import display, display_names, pack_state, unpack_state, vocabulary_too_small

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

Spelling = Annotated[str | None, "the token in the file; null: one of the usual spellings"]


@final
@dataclass(frozen=True)
class Specials:
    """Special tokens of the file. One token may have two roles: RoBERTa's `<s>` is cls and bos."""

    pad: Spelling = None
    unk: Spelling = None
    cls: Spelling = None
    sep: Spelling = None
    mask: Spelling = None
    bos: Spelling = None
    eos: Spelling = None


USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "bos": ("[BOS]", "<s>", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
SENTINEL: Final = re.compile(r"<(?:extra_id_|sentinel )(\d+)>")  # of T5, and of exported models
SPACES: Final = "[▁ \t\n\r\v\f]"
WORD_STARTS: Final = {
    "WordPiece": r"(?!##)",
    "ByteLevel": "[ĠĊĉčċČ]",
    "Metaspace": SPACES,
    "Unigram": SPACES,
    "WordLevel": "",
}


@final
class TokenizerFile(Tokenizer):
    """Pretrained tokenizer from a `tokenizer.json` of Hugging Face's `tokenizers`; its identity is the content of the
    file, not its path.

    Special tokens are recognized by their spelling among the added tokens of the file; those that an objective needs
    are checked after the file is read. A special token that is spelled out in a text becomes unk, and is removed if the
    tokenizer has no unk.
    """

    traits: ClassVar[TokenizerTraits] = {
        "provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"],
        "fixed": True,
    }

    def __init__(
        self,
        *,
        path: Annotated[str, "path of tokenizer.json", Example("tokenizer.json")],
        specials: Specials = Specials(),
    ) -> None:
        self._path = path
        self._spellings = {field.name: getattr(specials, field.name) for field in fields(specials)}
        self._text = ""
        self._library: Library | None = None
        self._vocabulary = Vocabulary(0, {})
        self._reserved = frozenset[int]()
        self._text_ids = frozenset[int]()  # all others

    def external_fingerprint(self) -> str:
        return hashlib.sha256(self._read()).hexdigest()

    def train(self, texts: Iterable[str], size: int | None) -> None:
        data = self._read()
        try:
            self._set_library(data.decode())
        except SpecError:
            raise
        except Exception as error:  # exceptions of the library have no common base
            message = f"the library `tokenizers` cannot read the file: {type(error).__name__}: {error}"
            valid = "a tokenizer.json, written by `save_pretrained` of a fast tokenizer"
            raise self._error("not-a-tokenizer", message, valid) from error
        if size is not None and size < self._vocabulary.size:
            reason = f"the file has {self._vocabulary.size:,}"
            raise vocabulary_too_small("file", size, self._vocabulary.size, reason)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train the tokenizer or load its state first"
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._without_reserved(encoding.ids) for encoding in encodings]

    def _without_reserved(self, ids: list[int]) -> list[int]:
        """Return ids with `unk` in place of special tokens that the text spells, or without them."""
        reserved, unknown = self._reserved, self._vocabulary.specials.get("unk")
        if reserved.isdisjoint(ids):
            return ids
        if unknown is None:
            return [token for token in ids if token not in reserved]
        return [unknown if token in reserved else token for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        assert self._library is not None, "train the tokenizer or load its state first"
        if self._text_ids.issuperset(ids):
            return self._library.decode(ids, skip_special_tokens=False)
        special = display_names(self._vocabulary)
        text, run = "", list[int]()
        for token in (*ids, None):
            if token is not None and token not in special and self._library.id_to_token(token) is not None:
                run.append(token)
                continue
            text += self._library.decode(run, skip_special_tokens=False) if run else ""
            text += "" if token is None else display(special, token)
            run = []
        return text

    def piece(self, token: int) -> str:
        assert self._library is not None, "train the tokenizer or load its state first"
        return self._library.id_to_token(token) or display({}, token)

    def tokenizer_json(self) -> str | None:
        return self._text or None

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def state(self) -> bytes:
        return pack_state("file", {"specials": self._spellings, "tokenizer": self._text})

    def load(self, state: bytes) -> None:
        with unpack_state("file", state) as content:
            self._spellings = {name: content["specials"][name] for name in USUAL}
            self._set_library(str(content["tokenizer"]))

    def _set_library(self, text: str) -> None:
        from tokenizers import Tokenizer as Library

        library = Library.from_str(text)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True  # a special token spelled out in a text is text
        vocabulary = library.get_vocab(with_added_tokens=True)
        numbered = {match[1]: token for name, token in vocabulary.items() if (match := SENTINEL.fullmatch(name))}
        self._text, self._library = text, library
        self._vocabulary = Vocabulary(
            max(vocabulary.values(), default=-1) + 1,
            dict(self._specials(vocabulary, {token.content for token in library.get_added_tokens_decoder().values()})),
            tuple(numbered[number] for number in sorted(numbered, key=int)),
            _word_starts(json.loads(text), vocabulary),
        )
        self._reserved = self._vocabulary.reserved
        self._text_ids = frozenset(vocabulary.values()) - self._reserved

    def _specials(self, vocabulary: Mapping[str, int], added: Collection[str]) -> Iterator[tuple[str, int]]:
        """Yield the id of each special token; a usual spelling that the file does not add may be a piece of text."""
        for name, usual in USUAL.items():
            spelling = self._spellings[name]
            if spelling is not None and spelling not in vocabulary:
                message = f"unknown token {spelling!r} in {self._path}"
                raise SpecError(
                    Problem(code="missing-special-token", path=f"tokenizer.specials.{name}", message=message)
                )
            candidates = (spelling,) if spelling else usual
            names = vocabulary if spelling or name == "unk" or not added else added
            token = next((candidate for candidate in candidates if candidate in names), None)
            if token is not None:
                yield name, vocabulary[token]

    def _read(self) -> bytes:
        try:
            return Path(self._path).read_bytes()
        except OSError as error:
            message = f"cannot read {self._path!r}: {error.strerror}"
            raise self._error("cannot-read", message, "the path of a tokenizer.json") from error

    def _error(self, code: str, message: str, valid: str) -> DataError:
        return DataError(Problem(code=code, path="tokenizer.path", location=self._path, message=message, valid=valid))


def _word_starts(document: Mapping[str, Any], vocabulary: Mapping[str, int]) -> frozenset[int] | None:
    """Return the ids that start a word, if the kind of tokenizer marks them."""
    kinds = set(re.findall(r'"type": ?"(\w+)"', json.dumps([document.get("decoder"), document.get("pre_tokenizer")])))
    kinds.add((document.get("model") or {}).get("type", ""))
    pattern = next((pattern for kind, pattern in WORD_STARTS.items() if kind in kinds), None)
    if pattern is None:
        return None
    return frozenset(token for piece, token in vocabulary.items() if re.match(pattern, piece))
