"""Encoding of a corpus with a tokenizer to arrays of ids."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus import Corpus, DataError, Document, Split, Tokenizer, Vocabulary
from paribus.datamodule import encoding
from paribus.datamodule.encoding import Progress, encode_sentences, lost_bytes, pieces_of
from paribus.datamodule.token_store import EncodedCorpus, encode_corpus, overlap
from paribus_text.byte_pair import BytePair
from paribus_text.bytes import Bytes
from paribus_text.symbols import Symbols
from paribus_text.unigram import Unigram
from paribus_text.word_piece import WordPiece


@final
class Listed(Corpus):
    """Corpus of listed documents."""

    def __init__(self, train: Sequence[Document], val: Sequence[Document]) -> None:
        self.splits: dict[Split, Sequence[Document]] = {"train": train, "val": val}

    def documents(self, split: Split) -> Iterator[Document]:
        yield from self.splits[split]

    def fingerprint(self) -> str:
        return repr(self.splits)

    def skipped_inputs(self) -> dict[str, int]:
        return {"burnt": 2}


class Letters(Tokenizer):
    """Tokenizer of code points that records its training texts."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self.training_texts: list[str] = []

    def train(self, texts: Iterable[str], size: int | None) -> None:
        self.training_texts = list(texts)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text if letter != "\a"] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.size, {})

    def state(self) -> bytes:
        return b"letters"

    def load(self, state: bytes) -> None:
        assert state == b"letters"


sentence = st.text(st.characters(max_codepoint=127, exclude_characters="\a"), min_size=1).filter(str.strip)
split = st.lists(st.lists(sentence, min_size=1, max_size=4), min_size=1, max_size=6)
VAL = [Document("held", ("x", "y"))]


def encode(corpus: Corpus, tokenizer: Tokenizer, progress: Progress = lambda stage, done: None) -> EncodedCorpus:
    with TemporaryDirectory() as cache:
        return encode_corpus(
            corpus, tokenizer, spec=None, size=None, cache=Path(cache), allow_overlap=True, progress=progress
        )


@pytest.mark.thorough
@given(split)
def test_ids_of_a_document_encode_its_text(texts: list[list[str]]) -> None:
    documents = [Document(f"{place}", tuple(text)) for place, text in enumerate(texts)]
    side = encode(Listed(documents, VAL), Letters()).train
    assert len(side.documents) == len(documents) + 1
    assert len(side.sentences) == sum(map(len, texts)) + 1
    for place, document in enumerate(documents):
        bounds = side.sentences[side.documents[place] : side.documents[place + 1] + 1]
        sentence_ids = [side.ids[a:b].tolist() for a, b in pairwise(bounds)]
        assert [ids for ids in sentence_ids if not ids] == []
        assert [token for ids in sentence_ids for token in ids] == list(map(ord, document.text))
        assert sentence_ids[0] == list(map(ord, document.sentences[0]))


def test_the_tokenizer_is_trained_on_the_training_split_only() -> None:
    tokenizer = Letters()
    encode(
        Listed([Document("a", ("One.", "Two."), ("Eins.",))], [Document("b", ("Three.",), ("Drei.",))]),
        tokenizer,
    )
    assert tokenizer.training_texts == ["One. Two.", "Eins."]


def test_both_sides_of_pairs_are_aligned() -> None:
    documents = [Document("a", ("One.",), ("Eins.",)), Document("b", ("Two.",)), Document("c", ("Three.",), ("Drei.",))]
    encoded = encode(Listed(documents, documents[:1]), Letters())
    assert bytes(encoded.train.ids.astype(np.uint8)) == b"One.Three."
    assert encoded.train.targets is not None
    assert bytes(encoded.train.targets.ids.astype(np.uint8)) == b"Eins.Drei."
    assert encoded.train.targets.documents.tolist() == [0, 1, 2]
    assert encoded.dropped["documents with one side among pairs, or with two among others"] == 1


def test_labels_and_languages_are_aligned_with_their_documents() -> None:
    documents = [
        Document("a", ("One.", "Two."), ("Eins.",), "en", (1, 0), "de"),
        Document("b", ("One.", " "), ("Eins.",), "en", (1, 0), "de"),
        Document("c", ("Three.",), ("Drei.",), "en", (2.5,), "de"),
    ]
    encoded = encode(Listed(documents, documents[2:]), Letters())
    assert encoded.train.labels is not None
    assert encoded.train.labels.values.tolist() == [1, 0, 2.5]
    assert encoded.train.labels.documents.tolist() == [0, 2, 3]
    assert encoded.train.targets is not None
    assert encoded.train.targets.labels is None
    assert encoded.dropped["documents whose labels count a sentence that has no token"] == 1
    assert encoded.languages == ("en", "de")
    assert encoded.train.languages is not None
    assert encoded.train.languages.tolist() == [0, 0]
    assert encoded.train.targets.languages is not None
    assert encoded.train.targets.languages.tolist() == [1, 1]


def test_documents_and_sentences_without_ids_are_skipped_and_counted() -> None:
    documents = [Document("a", ()), Document("b", ("\a",)), Document("c", ("", "One.", " "))]
    encoded = encode(Listed(documents, VAL), Letters())
    assert encoded.train.documents.tolist() == [0, 1]
    assert encoded.train.sentences.tolist() == [0, 4]
    assert encoded.dropped == {"burnt": 2, "documents without a sentence": 2}


@pytest.mark.parametrize(("size", "kind"), [(256, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_ids_have_the_smallest_dtype_for_the_vocabulary(size: int, kind: type) -> None:
    assert encode(Listed(VAL, VAL), Letters(size)).val.ids.dtype == kind


def test_an_id_outside_of_the_vocabulary_is_reported_with_its_position() -> None:
    corpus = Listed([Document("a", ("abc", "abz"))], VAL)
    with raises_problem(DataError, "id-out-of-range", "ids", "a", "122", "6"):
        encode(corpus, Letters(122))


@pytest.mark.parametrize("empty", ["train", "val"])
def test_an_empty_split_is_rejected_with_the_skipped_documents(empty: Split) -> None:
    corpus = Listed(VAL, VAL)
    corpus.splits[empty] = [Document("a", ())]
    with raises_problem(DataError, "no-documents", empty, "2", "1"):
        encode(corpus, Letters())


def test_documents_in_both_splits_are_counted() -> None:
    train = [Document("a", ("One.", "Two.")), Document("b", ("Three.",))]
    val = [Document("c", ("One. Two.",)), Document("d", ("Four.",)), Document("e", ("Three.",))]
    encoded = encode(Listed(train, val), Letters())
    assert encoded.overlap == 2


@given(st.lists(st.binary(min_size=16, max_size=16)), st.lists(st.integers(0, 20), min_size=1))
def test_overlap_equals_a_linear_search(train: list[bytes], picked: list[int]) -> None:
    val = [train[index] if index < len(train) else bytes([index] * 16) for index in picked]
    first_half, second_half = train[: len(train) // 2], train[len(train) // 2 :]
    keys = [np.frombuffer(b"".join(part), np.uint8).reshape(-1, 16) for part in (first_half, second_half, val)]
    assert overlap(keys[:2], keys[2:]) == sum(key in train for key in val)


def test_encoding_reports_its_progress() -> None:
    reports: list[tuple[str, int]] = []
    encode(Listed(VAL * 600, VAL), Letters(), lambda stage, done: reports.append((stage, done)))
    whole = [256, 512, 600]
    assert reports == [*(("tokenizer", done) for done in whole), *(("train", done) for done in whole), ("val", 1)]


TOKENIZERS: dict[str, tuple[type[Tokenizer], dict[str, bool]]] = {
    "bytes": (Bytes, {}),
    "bpe": (BytePair, {}),
    "symbols": (Symbols, {}),
    "wordpiece": (WordPiece, {}),
    "wordpiece cased": (WordPiece, {"lowercase": False}),
    "unigram": (Unigram, {}),
    "unigram lowercase": (Unigram, {"lowercase": True}),
    "unigram nfkc": (Unigram, {"nfkc": True}),
    "unigram unk": (Unigram, {"byte_fallback": False}),
}
TRAINING = ["The cat saw Émile at ﬁve, and the dog saw the cat.", "a-b a - b A B c d e 1 2 3"]


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    tokenizers = {name: make(**options) for name, (make, options) in TOKENIZERS.items()}
    for tokenizer in tokenizers.values():
        tokenizer.train(TRAINING, 400)
    return tokenizers


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.lists(st.text("aAbB éÉeﬁfi-cat\n☃", min_size=1), min_size=2, max_size=2, unique=True))
@example(texts=["The cat", "the cat"])
@example(texts=["a - b", "a-b"])
@example(texts=["a  b", "a b"])
@example(texts=["ﬁve", "five"])
@example(texts=["☃", "☂"])
def test_a_tokenizer_that_merges_distinct_texts_is_lossy(
    name: str, texts: list[str], trained: dict[str, Tokenizer]
) -> None:
    tokenizer = trained[name]
    first, second = tokenizer.encode_batch(texts)
    reserved = tokenizer.vocabulary().reserved
    lost = [lost_bytes(tokenizer, text, ids, reserved) for text, ids in zip(texts, (first, second), strict=True)]
    if first == second:
        assert sum(lost) > 0
    if name in ("bytes", "bpe", "unigram"):
        assert lost == [0, 0]
    assert all(count <= len(text.encode()) for count, text in zip(lost, texts, strict=True))


# -- long documents -----------------------------------------------------------------------------------------------


@final
class WholeLines(Letters):
    """Tokenizer whose ids depend on the text before them, so that no text can be cut."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[(place + ord(letter)) % 128 for place, letter in enumerate(text)] for text in texts]


def long_text(letters: str, lines: int = 60) -> str:
    """Return lines with words of some letters, of unequal length, with spaces and empty lines between."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(letters), rng.integers(1, 9))) for _ in range(lines * 9)]
    gaps = rng.choice([" ", " ", " ", "  ", "\n", "\n\n", " \n", "\t"], len(words))
    return "".join(word + gap for word, gap in zip(words, gaps, strict=True))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("letters", ["abcdeT", "aéﬁ漢☃."], ids=["ascii", "other"])
def test_a_long_document_has_the_ids_of_the_whole(
    name: str, letters: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, tokenizer = long_text(letters).strip(), trained[name]
    (expected,) = tokenizer.encode_batch([text])
    monkeypatch.setattr(encoding, "PIECE", 64)
    monkeypatch.setattr(encoding, "CONTEXT", 16)
    pieces = [*pieces_of(text, tokenizer)]
    assert "".join(pieces) == text
    assert len(pieces) > 10, [len(piece) for piece in pieces]
    (rows,) = encode_sentences(tokenizer, [[text]])
    assert [*rows[0]] == expected


def test_a_text_that_cannot_be_cut_is_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PIECE", 64)
    text = long_text("abc")
    assert [*pieces_of(text, WholeLines())] == [text]
    assert [*pieces_of("x" * 200, Bytes())] == ["x" * 200]  # no place between two words


def test_a_text_is_cut_before_a_long_run_of_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PIECE", 64)
    text = "a b\nc" + " " * 60 + "d" + "\n" * 60 + "e"
    assert [*pieces_of(text, Bytes())] == ["a b", "\nc" + " " * 60 + "d" + "\n" * 60 + "e"]


def test_no_more_than_a_piece_is_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PIECE", 64)
    sizes: list[int] = []

    class Watched(Letters):
        def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
            sizes.append(sum(map(len, texts)))
            return super().encode_batch(texts)

    texts = [["a b"] * 40, [long_text("abc")], ["c"], []]
    rows = encode_sentences(Watched(), texts)
    assert max(sizes) <= max(64, 4 * encoding.CONTEXT)
    plain = [
        [[ord(letter) for letter in " " * (index > 0) + sentence] for index, sentence in enumerate(text)]
        for text in texts
    ]
    assert [[[*row] for row in text] for text in rows] == plain
