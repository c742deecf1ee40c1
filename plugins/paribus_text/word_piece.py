"""Words cut into the longest pieces that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from paribus import Range, Tokenizer, Traits, Vocabulary
from paribus_text.reserved import names, packed, reserved, shown, too_small, unpacked

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers

UNKNOWN = "[UNK]"  # no text gives it: the brackets are pieces of their own
INSIDE = "##"
MOST = 30_000  # pieces, where the spec does not say
RARE = 2  # a pair of pieces seen less often is not made one


@final
class WordPiece(Tokenizer):
    """BERT's tokenizer: text is cleaned, split at spaces and punctuation, and each word is cut greedily from the left.

    Wu et al. 2016 (https://arxiv.org/abs/1609.08144), Devlin et al. 2018 (https://arxiv.org/abs/1810.04805). What it
    decodes has lost the spaces and, with `lowercase`, the capitals and accents.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(
        self,
        *,
        lowercase: Annotated[bool, "fold case and strip accents"] = True,
        sentinels: Annotated[int, "ids that stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._lowercase = lowercase
        self._sentinels = sentinels
        self._pieces: tuple[str, ...] = ()
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        texts = list(texts) if isinstance(texts, Iterator) else texts  # they are gone through three times
        room = None if size is None else size - self._reserved.size
        if room is not None and room < 2:
            least = self._reserved.size + 2
            raise too_small("wordpiece", size or 0, least, "the specials, the sentinels and a letter take more")
        normalizer = _normalizer(self._lowercase)
        letters = _letters(map(normalizer.normalize_str, texts), room)
        # The library numbers the pieces within words in an order that changes from run to run, and breaks ties by
        # number: a first round finds them, and the second is handed them in order.
        inside = sorted(piece for piece in self._learned(texts, letters, [], 0) if piece.startswith(INSIDE))
        learned = self._learned(texts, letters, inside, MOST if room is None else room)
        self._become(sorted(learned, key=learned.__getitem__))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train it, or load a state, before it is asked to encode"
        return [found.ids for found in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        special = names(self._reserved)
        first = self._reserved.size
        pieces = [
            self._pieces[token - first] if first <= token < first + len(self._pieces) else shown(special, token)
            for token in ids
        ]
        return "".join(piece.removeprefix(INSIDE) if _inside(piece) else f" {piece}" for piece in pieces).removeprefix(
            " "
        )

    def piece(self, token: int) -> str:
        place = token - self._reserved.size
        return self._pieces[place] if 0 <= place < len(self._pieces) else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        first = self._reserved.size
        begins = frozenset(first + at for at, piece in enumerate(self._pieces) if not _inside(piece))
        return self._reserved._replace(size=first + len(self._pieces), word_starts=begins)

    def state(self) -> bytes:
        return packed(
            "wordpiece", {"lowercase": self._lowercase, "sentinels": self._sentinels, "pieces": list(self._pieces)}
        )

    def load(self, state: bytes) -> None:
        with unpacked("wordpiece", state) as learned:
            self._lowercase, self._sentinels = bool(learned["lowercase"]), int(learned["sentinels"])
            self._become([str(piece) for piece in learned["pieces"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserved(0, self._sentinels, unknown=True)

    def _become(self, pieces: Iterable[str]) -> None:
        from tokenizers import models

        self._pieces = tuple(pieces)
        numbered = {piece: self._reserved.size + place for place, piece in enumerate(self._pieces)}
        vocabulary = {UNKNOWN: self._reserved.specials["unk"], **numbered}
        self._library = _library(models.WordPiece(vocabulary, unk_token=UNKNOWN), self._lowercase)

    def _learned(
        self, texts: Iterable[str], letters: Sequence[str], first: Sequence[str], size: int
    ) -> Mapping[str, int]:
        from tokenizers import models, trainers

        library = _library(models.WordPiece(unk_token=UNKNOWN), self._lowercase)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=RARE,
            special_tokens=list(first),
            initial_alphabet=list(letters),
            limit_alphabet=len(letters),
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        found: Mapping[str, int] = library.get_vocab()
        return found


def _inside(piece: str) -> bool:
    """Whether a piece goes on with a word; two signs by themselves are text."""
    return piece.startswith(INSIDE) and piece != INSIDE


def _letters(texts: Iterator[str], room: int | None) -> list[str]:
    """The characters of the texts, or of the most frequent as many as have room, at the start of words and inside."""
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
