"""A tokenizer that somebody else has trained, in a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, final

from paribus import DataError, Example, Problem, SpecError, Tokenizer, Traits, Vocabulary
from paribus_text.reserved import names, packed, shown, too_small, unpacked

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

Written = Annotated[str | None, "how the file spells it; null: as one of the usual ways"]


@final
@dataclass(frozen=True)
class Specials:
    """Which tokens of the file are which specials. One may be two: RoBERTa's `<s>` is cls and bos."""

    pad: Written = None
    unk: Written = None
    cls: Written = None
    sep: Written = None
    mask: Written = None
    bos: Written = None
    eos: Written = None


USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "bos": ("[BOS]", "<s>", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
SENTINEL: Final = re.compile(r"<extra_id_(\d+)>")
BEGINS: Final = {"WordPiece": r"(?!##)", "ByteLevel": "[ĠĊĉčċČ]", "Metaspace": "[▁ \t\n\r\v\f]"}


@final
class TokenizerFile(Tokenizer):
    """A `tokenizer.json` as Hugging Face's `tokenizers` writes it: nothing is learned, and what counts is what the file
    holds, wherever it lies.

    Its special tokens are told by how they are spelled. Whether it has those that an objective needs is known once it
    was read. What a text spells like one of them is unknown to it, and left out where it has no token for that.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(
        self,
        *,
        path: Annotated[str, "the file, tokenizer.json", Example("tokenizer.json")],
        specials: Specials = Specials(),
    ) -> None:
        self._path = path
        self._written = {each.name: getattr(specials, each.name) for each in fields(specials)}
        self._text = ""
        self._library: Library | None = None
        self._known = Vocabulary(0, {})

    def external_fingerprint(self) -> str:
        return hashlib.sha256(self._read()).hexdigest()

    def train(self, texts: Iterable[str], size: int | None) -> None:
        data = self._read()
        try:
            self._become(data.decode())
        except SpecError:
            raise
        except Exception as error:  # the library raises its own kinds, which share no base
            what = f"it is no tokenizer that the library `tokenizers` reads: {type(error).__name__}: {error}"
            valid = "a tokenizer.json, as `save_pretrained` of a fast tokenizer writes it"
            raise self._wrong("not-a-tokenizer", what, valid) from error
        if size is not None and size < self._known.size:
            why = f"the file has {self._known.size:,}"
            raise too_small("file", size, self._known.size, why)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train it, or load a state, before it is asked to encode"
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        reserved, unknown = self._known.reserved, self._known.specials.get("unk")
        if unknown is None:
            return [[token for token in each.ids if token not in reserved] for each in found]
        return [[unknown if token in reserved else token for token in each.ids] for each in found]

    def decode(self, ids: Sequence[int]) -> str:
        assert self._library is not None, "train it, or load a state, before it is asked to decode"
        special = names(self._known)
        text, run = "", list[int]()
        for token in (*ids, None):
            if token is not None and token not in special and self._library.id_to_token(token) is not None:
                run.append(token)
                continue
            text += self._library.decode(run, skip_special_tokens=False) if run else ""
            text += "" if token is None else shown(special, token)
            run = []
        return text

    def piece(self, token: int) -> str:
        assert self._library is not None, "train it, or load a state, before it is asked for pieces"
        return self._library.id_to_token(token) or shown({}, token)

    def vocabulary(self) -> Vocabulary:
        return self._known

    def state(self) -> bytes:
        return packed("file", {"specials": self._written, "tokenizer": self._text})

    def load(self, state: bytes) -> None:
        with unpacked("file", state) as kept:
            self._written = {name: kept["specials"][name] for name in USUAL}
            self._become(str(kept["tokenizer"]))

    def _become(self, text: str) -> None:
        from tokenizers import Tokenizer as Library

        library = Library.from_str(text)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True  # a text that spells one does not mean it
        vocabulary = library.get_vocab(with_added_tokens=True)
        numbered = {match[1]: token for name, token in vocabulary.items() if (match := SENTINEL.fullmatch(name))}
        self._text, self._library = text, library
        self._known = Vocabulary(
            max(vocabulary.values(), default=-1) + 1,
            dict(self._specials(vocabulary)),
            tuple(numbered[number] for number in sorted(numbered, key=int)),
            _begins(json.loads(text), vocabulary),
        )

    def _specials(self, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for name, usual in USUAL.items():
            asked = self._written[name]
            if asked is not None and asked not in vocabulary:
                what = f"the tokenizer of {self._path} has no token {asked!r}"
                raise SpecError(Problem(code="no-special", path=f"tokenizer.specials.{name}", message=what))
            spelled = next((each for each in ((asked,) if asked else usual) if each in vocabulary), None)
            if spelled is not None:
                yield name, vocabulary[spelled]

    def _read(self) -> bytes:
        try:
            return Path(self._path).read_bytes()
        except OSError as error:
            what = f"{self._path!r} cannot be read: {error.strerror}"
            raise self._wrong("cannot-read", what, "the path of a tokenizer.json") from error

    def _wrong(self, code: str, what: str, valid: str) -> DataError:
        return DataError(Problem(code=code, path="tokenizer.path", location=self._path, message=what, valid=valid))


def _begins(document: Mapping[str, Any], vocabulary: Mapping[str, int]) -> frozenset[int] | None:
    """The ids that a word begins with, where the kind of tokenizer says how pieces show it."""
    kinds = set(re.findall(r'"type": ?"(\w+)"', json.dumps([document.get("decoder"), document.get("pre_tokenizer")])))
    said = next((pattern for kind, pattern in BEGINS.items() if kind in kinds), None)
    if said is None:
        return None
    return frozenset(token for piece, token in vocabulary.items() if re.match(said, piece))
