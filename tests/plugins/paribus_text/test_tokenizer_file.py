"""Tokenizer from a `tokenizer.json` file."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from paribus import DataError, SpecError, Tokenizer
from paribus.planning.api import fingerprint
from paribus.registry import installed
from paribus.specs import resolved
from paribus_text.tokenizer_file import Specials, TokenizerFile

TEXTS = ["the cat sat on the mat and the dog sat there", "then there they are, these other cats"] * 3
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
T5 = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in (2, 0, 1))]


def word_piece(path: Path) -> Path:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=80, special_tokens=BERT, show_progress=False)
    )
    library.save(str(path))
    return path


def byte_pair(path: Path, specials: list[str] = ROBERTA) -> Path:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    library.enable_truncation(4)
    library.save(str(path))
    return path


def read(path: Path, specials: Specials = Specials()) -> Tokenizer:
    tokenizer = TokenizerFile(path=str(path), specials=specials)
    tokenizer.train([], None)
    return tokenizer


def test_encoding_and_decoding_equal_those_of_the_library(tmp_path: Path) -> None:
    path = byte_pair(tmp_path / "tokenizer.json")
    tokenizer, library = read(path), Library.from_file(str(path))
    library.no_truncation()
    assert tokenizer.encode_batch(TEXTS) == [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    for text in (*TEXTS, "", " a\n\tb ☃ ", "naïve"):
        assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


def test_special_tokens_are_found_by_their_usual_names(tmp_path: Path) -> None:
    assert dict(read(word_piece(tmp_path / "bert.json")).vocabulary().specials) == {
        "pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4,
    }  # fmt: skip
    assert dict(read(byte_pair(tmp_path / "roberta.json")).vocabulary().specials) == {
        "pad": 1, "unk": 3, "cls": 0, "sep": 2, "mask": 4, "bos": 0, "eos": 2,
    }  # fmt: skip
    assert dict(read(byte_pair(tmp_path / "gpt.json", ["<|endoftext|>"])).vocabulary().specials) == {"bos": 0, "eos": 0}
    t5 = read(byte_pair(tmp_path / "t5.json", T5)).vocabulary()
    assert t5.sentinels == (4, 5, 3)


def test_special_tokens_may_be_given_and_missing_ones_are_refused(tmp_path: Path) -> None:
    path = byte_pair(tmp_path / "tokenizer.json", ["<|endoftext|>", "<hole>"])
    assert read(path, Specials(mask="<hole>")).vocabulary().specials["mask"] == 1
    with raises_problem(SpecError, "missing-special-token", "tokenizer.specials.mask", "<gap>"):
        read(path, Specials(mask="<gap>"))


def test_a_special_token_in_a_text_is_encoded_as_text(tmp_path: Path) -> None:
    for path in (word_piece(tmp_path / "one.json"), byte_pair(tmp_path / "two.json")):
        tokenizer = read(path)
        reserved = tokenizer.vocabulary().reserved - {tokenizer.vocabulary().specials["unk"]}
        (ids,) = tokenizer.encode_batch(["the [MASK] <mask> cat </s> [SEP]<s>"])
        assert reserved.isdisjoint(ids)


def test_special_tokens_are_decoded_to_their_names(tmp_path: Path) -> None:
    tokenizer = read(word_piece(tmp_path / "tokenizer.json"))
    vocabulary = tokenizer.vocabulary()
    (ids,) = tokenizer.encode_batch(["the cat"])
    ids = [vocabulary.specials["cls"], *ids, vocabulary.size]
    assert tokenizer.decode(ids) == f"<cls>the cat<no token {vocabulary.size}>"


def test_word_beginnings_follow_the_kind_of_tokenizer(tmp_path: Path) -> None:
    for tokenizer, word, inside in (
        (read(word_piece(tmp_path / "one.json")), "cat", "##at"),
        (read(byte_pair(tmp_path / "two.json")), "Ġthe", "the"),
    ):
        begins = tokenizer.vocabulary().word_starts
        assert begins is not None
        ids = {tokenizer.piece(token): token for token in range(tokenizer.vocabulary().size)}
        assert ids[word] in begins
        assert ids[inside] not in begins


def test_the_fingerprint_depends_on_the_contents_of_the_file(tmp_path: Path) -> None:
    path = byte_pair(tmp_path / "tokenizer.json")
    tokenizer = TokenizerFile(path=str(path))
    assert tokenizer.external_fingerprint() == hashlib.sha256(path.read_bytes()).hexdigest()
    spec = resolved("gpt-tiny", f"tokenizer={{name: file, path: {path}}}", registry=installed(no_plugins=True))
    index = installed(no_plugins=True).index
    original = fingerprint(spec, index)
    assert fingerprint(spec, index) == original
    byte_pair(path, [*ROBERTA, "<more>"])
    assert fingerprint(spec, index) != original


def test_a_tokenizer_is_restored_without_its_file(tmp_path: Path) -> None:
    path = byte_pair(tmp_path / "tokenizer.json", ["<|endoftext|>", "<hole>"])
    tokenizer, loaded = read(path, Specials(mask="<hole>")), TokenizerFile(path="nowhere")
    path.unlink()
    loaded.load(tokenizer.state())
    assert loaded.state() == tokenizer.state()
    assert loaded.vocabulary() == tokenizer.vocabulary()
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with raises_problem(DataError, "cannot-read", "No such file"):
        read(tmp_path / "missing.json")
    for place, text in enumerate(("{", "[]", json.dumps({"model": 3}), "\0")):
        path = tmp_path / f"{place}.json"
        path.write_text(text)
        with raises_problem(DataError, "not-a-tokenizer", "tokenizer.path"):
            read(path)


def test_too_small_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenizer = TokenizerFile(path=str(byte_pair(tmp_path / "tokenizer.json")))
    with raises_problem(SpecError, "vocabulary-too-small", "100", "file"):
        tokenizer.train([], 100)


@pytest.mark.parametrize("state", [b"{", b'{"file": {"specials": {}, "tokenizer": "{}"}}'])
def test_a_broken_state_is_refused(state: bytes) -> None:
    with raises_problem(DataError, "tokenizer-state", "file"):
        TokenizerFile(path="nowhere").load(state)
