"""A `tokenizer.json` gives the ids and the text of the tokenizer that it is written for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from paribus import Tokenizer
from paribus.datamodule.tokenizer_state import TextCodec
from paribus_text.byte_pair import BytePair
from paribus_text.bytes import Bytes
from paribus_text.symbols import Symbols
from paribus_text.tokenizer_file import TokenizerFile
from paribus_text.unigram import Unigram
from paribus_text.word_piece import WordPiece

CORPUS: Final = ["the cat sat on the mat, and the dog sat there", "def f(x):\n\treturn <0x41> ΟΔΟΣ naïve <mask>"] * 9
TOKENIZERS: Final[dict[str, tuple[Tokenizer, int | None]]] = {
    "bpe": (BytePair(), 400),
    "bytes": (Bytes(), None),
    "symbols": (Symbols(), None),
    "unigram": (Unigram(), 400),
    "unigram, folded": (Unigram(lowercase=True, nfkc=True), 400),
    "unigram, unknown": (Unigram(byte_fallback=False), 90),
    "wordpiece": (WordPiece(), 100),
    "wordpiece, cased": (WordPiece(lowercase=False, sentinels=0), None),
}
PIECES: Final = (
    "the", " cat", "mat,", "  ", "\n", "\x1c", "\x85", "\u3000", "<mask>", "<eos>", "<sentinel 3>", "<unk>", "<0x41>",
    "##", "ΟΔΟΣ", "Σ日", "İ", "ﬁ", "é", "e\u0301", "😀", "\u200b", "\x00", "x" * 120,
)  # fmt: skip
# The bytes of `▁` are in other places of a unigram's words, which its docstring says.
TEXTS: Final = st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(PIECES)
).map("".join)


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    trained, size = TOKENIZERS[request.param]
    trained.train(CORPUS, size)
    return trained


def test_the_file_gives_the_same_ids_and_text(tokenizer: Tokenizer) -> None:
    library, text = Library.from_str(tokenizer.tokenizer_json() or ""), TextCodec(tokenizer)
    assert library.get_vocab_size() == tokenizer.vocabulary().size

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def check(line: str) -> None:
        ids = text.read(line)
        assert library.encode(line).ids == ids
        assert library.decode(ids, skip_special_tokens=False) == text.decode(ids)

    check()


def test_the_tokenizer_file_reads_the_same_vocabulary(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.tokenizer_json() or "", encoding="utf-8")
    reader = TokenizerFile(path=str(path))
    reader.train([], None)
    expected, vocabulary = tokenizer.vocabulary(), reader.vocabulary()
    assert vocabulary._replace(word_starts=None) == expected._replace(word_starts=None)
    assert (vocabulary.word_starts or frozenset()) - vocabulary.reserved == expected.word_starts
    assert reader.encode_batch(CORPUS[:1]) == tokenizer.encode_batch(CORPUS[:1])
