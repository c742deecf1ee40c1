"""WordPiece tokenizer: splits words greedily into the longest known pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from paribus import Range, Tokenizer, TokenizerTraits, Vocabulary
from paribus_text.reserved_tokens import (
    display,
    display_names,
    pack_state,
    reserve_tokens,
    unpack_state,
    vocabulary_too_small,
)
from paribus_text.tokenizer_json import library_json, numbered_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers

UNKNOWN = "[UNK]"  # no text produces it: brackets are split off
INSIDE = "##"
DEFAULT_PIECES = 30_000
MINIMUM_COUNT = 2  # of a pair of pieces that is merged


@final
class WordPiece(Tokenizer):
    """WordPiece, as in BERT: text is normalized, split at spaces and punctuation, and each word is split greedily from
    the left.

    Wu et al. 2016 (https://arxiv.org/abs/1609.08144), Devlin et al. 2018 (https://arxiv.org/abs/1810.04805). Decoding
    does not restore spaces nor, with `lowercase`, capitals and accents. Training merges the most frequent pair,
    as Hugging Face's tokenizers do, where the paper merges the pair that raises the likelihood of the text most.
    """

    traits: ClassVar[TokenizerTraits] = {
        "provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"],
        "lossy": True,
    }

    def __init__(
        self,
        *,
        lowercase: Annotated[bool, "fold case and strip accents"] = True,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._lowercase = lowercase
        self._sentinels = sentinels
        self._pieces: tuple[str, ...] = ()
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        texts = list(texts) if isinstance(texts, Iterator) else texts  # they are read three times
        room = None if size is None else size - self._reserved.size
        if room is not None and room < 2:
            minimum = self._reserved.size + 2
            raise vocabulary_too_small(
                "wordpiece", size or 0, minimum, "special tokens, sentinels and a letter take more"
            )
        normalizer = _normalizer(self._lowercase)
        letters = _letters(map(normalizer.normalize_str, texts), room)
        # The library numbers the pieces within words in an order that differs between runs, and breaks ties by
        # number: a first round collects them, and the second gets them in order.
        inside = sorted(piece for piece in self._train_vocabulary(texts, letters, [], 0) if piece.startswith(INSIDE))
        vocabulary = self._train_vocabulary(texts, letters, inside, DEFAULT_PIECES if room is None else room)
        self._set_pieces(sorted(vocabulary, key=vocabulary.__getitem__))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train the tokenizer or load its state first"
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        special = display_names(self._reserved)
        first = self._reserved.size
        pieces = [
            self._pieces[token - first] if first <= token < first + len(self._pieces) else display(special, token)
            for token in ids
        ]
        return "".join(
            piece.removeprefix(INSIDE) if _continues_word(piece) else f" {piece}" for piece in pieces
        ).removeprefix(" ")

    def piece(self, token: int) -> str:
        place = token - self._reserved.size
        return self._pieces[place] if 0 <= place < len(self._pieces) else self.decode([token])

    def tokenizer_json(self) -> str | None:
        from tokenizers import decoders, models, pre_tokenizers

        tokens = numbered_tokens(self._reserved, self._pieces, self._reserved.size)
        unknown = display_names(self._reserved)[self._reserved.specials["unk"]]
        return library_json(
            self._reserved,
            models.WordPiece(tokens, unk_token=unknown),
            normalizer=_normalizer(self._lowercase),
            pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
            decoder=decoders.WordPiece(INSIDE, cleanup=False),
        )

    def vocabulary(self) -> Vocabulary:
        first = self._reserved.size
        word_starts = frozenset(
            first + number for number, piece in enumerate(self._pieces) if not _continues_word(piece)
        )
        return self._reserved._replace(size=first + len(self._pieces), word_starts=word_starts)

    def state(self) -> bytes:
        return pack_state(
            "wordpiece", {"lowercase": self._lowercase, "sentinels": self._sentinels, "pieces": list(self._pieces)}
        )

    def load(self, state: bytes) -> None:
        with unpack_state("wordpiece", state) as content:
            self._lowercase, self._sentinels = bool(content["lowercase"]), int(content["sentinels"])
            self._set_pieces([str(piece) for piece in content["pieces"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserve_tokens(0, self._sentinels, unknown=True)

    def _set_pieces(self, pieces: Iterable[str]) -> None:
        from tokenizers import models

        self._pieces = tuple(pieces)
        numbered = {piece: self._reserved.size + place for place, piece in enumerate(self._pieces)}
        vocabulary = {UNKNOWN: self._reserved.specials["unk"], **numbered}
        self._library = _library(models.WordPiece(vocabulary, unk_token=UNKNOWN), self._lowercase)

    def _train_vocabulary(
        self, texts: Iterable[str], letters: Sequence[str], ordered: Sequence[str], size: int
    ) -> Mapping[str, int]:
        from tokenizers import models, trainers

        library = _library(models.WordPiece(unk_token=UNKNOWN), self._lowercase)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=MINIMUM_COUNT,
            special_tokens=list(ordered),
            initial_alphabet=list(letters),
            limit_alphabet=len(letters),
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        vocabulary: Mapping[str, int] = library.get_vocab()
        return vocabulary


def _continues_word(piece: str) -> bool:
    """Return True if a piece continues a word; two signs alone are text."""
    return piece.startswith(INSIDE) and piece != INSIDE


def _letters(texts: Iterator[str], room: int | None) -> list[str]:
    """Return the most frequent characters that fit, both at the start of words and inside."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    by_count = sorted((letter for letter in counts if not letter.isspace()), key=lambda it: (-counts[it], it))
    return sorted(by_count[: None if room is None else room // 2])


def _normalizer(lowercase: bool) -> normalizers.BertNormalizer:
    from tokenizers import normalizers

    return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)


def _library(model: models.Model, lowercase: bool) -> Library:
    from tokenizers import Tokenizer as Library
    from tokenizers import pre_tokenizers

    library = Library(model)
    library.normalizer = _normalizer(lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library
