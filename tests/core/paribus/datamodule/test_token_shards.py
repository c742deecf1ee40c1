"""Tokenized corpora: ids are read where they are, checked once, and divided into documents."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

import paribus
from paribus import Corpus, CorpusTraits, DataError, Document, Split, Tokenizer, TokenShard, TokenShards, Vocabulary
from paribus.assembly.metric_names import metric_names
from paribus.datamodule import token_shards
from paribus.datamodule.packing import ConcatenatedDocuments, PackedDocuments
from paribus.datamodule.token_shards import JoinedIds, join_shards, scan
from paribus.datamodule.token_store import EncodedCorpus, encode_corpus
from paribus.models.evaluate import evaluate, unigram_baselines
from paribus.registry import Registry
from paribus.specs import resolved
from paribus_text.byte_pair import BytePair
from paribus_text.token_ids import TokenIds

END = 9
VOCABULARY = Vocabulary(10, {"eos": END})

lengths = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any)


def joined(sizes: Sequence[int]) -> tuple[Any, JoinedIds]:
    """Return one array, and the same ids in arrays of these sizes."""
    whole = np.arange(100, 100 + sum(sizes), dtype=np.uint16)
    return whole, JoinedIds(np.split(whole, np.cumsum(sizes)[:-1]))


@pytest.mark.thorough
@given(lengths, st.data())
def test_joined_ids_are_read_like_one_array(sizes: list[int], data: st.DataObject) -> None:
    whole, ids = joined(sizes)
    size = len(whole)
    assert (len(ids), ids.dtype) == (size, whole.dtype)
    assert np.array_equal(np.asarray(ids), whole)
    places = np.array(data.draw(st.lists(st.integers(-size, size - 1), max_size=12)), np.int64)
    for index in (places, np.resize(places, (2, len(places))), np.array(places[:1].sum() % size)):
        assert np.array_equal(ids[index], whole[index])
    assert np.array_equal(ids.take(places + 3, mode="clip"), whole.take(places + 3, mode="clip"))
    bound = st.none() | st.integers(-size - 2, size + 2)
    piece = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert np.array_equal(ids[piece], whole[piece])


def test_a_place_outside_of_joined_ids_is_an_error() -> None:
    ids = joined([2, 3])[1]
    for place in (5, -6):
        with pytest.raises(IndexError, match="outside of the 5 ids"):
            ids[np.array([place])]


def shards(*arrays: Sequence[int], bounds: Literal["end", "start", "whole"] = "end") -> TokenShards:
    return TokenShards([TokenShard(f"shard {n}", np.array(ids, np.uint16)) for n, ids in enumerate(arrays)], bounds)


@pytest.mark.parametrize("block", [1, 2, 100])
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("end", [0, 2, 6, 7, 9]),  # the second document continues in the second shard
        ("start", [0, 1, 5, 6, 9]),
        ("whole", [0, 4, 9]),
    ],
)
def test_documents_are_bounded_by_tokens_or_shards(
    bounds: Any, expected: list[int], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "BLOCK", block)
    split = shards([1, END, 2, 3], [4, END, END, 5, 6], bounds=bounds)
    assert scan(split, VOCABULARY).bounds.tolist() == expected


def test_a_document_starts_with_bos_where_there_is_one() -> None:
    split = shards([8, 1, END, 2, 8, 3], bounds="start")
    assert scan(split, Vocabulary(10, {"eos": END, "bos": 8})).bounds.tolist() == [0, 4, 6]


def test_rows_bound_documents_beside_tokens() -> None:
    ids, rows = np.array([1, END, 2, 3, 4], np.int32), np.array([0, 3, 3, 5])
    for bounds, expected in (("whole", [0, 3, 5]), ("end", [0, 2, 3, 5])):
        split = TokenShards([TokenShard("rows", ids, rows)], bounds)  # type: ignore[arg-type]  # a literal
        assert scan(split, VOCABULARY).bounds.tolist() == expected


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize(("ids", "size"), [([0, 1, 2, 3, 10, 11], 10), ([0, 1, 2, 3, -1, 0], 4)])
def test_the_first_id_outside_of_the_vocabulary_is_an_error_with_its_place(
    ids: list[int], size: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "BLOCK", block)
    split = TokenShards([TokenShard("a.bin", np.array(ids))], "whole")
    with raises_problem(DataError, "id-out-of-range", "a.bin, token 4", ids[4], size):
        scan(split, Vocabulary(size, {}))


def test_documents_need_a_token_between_them_or_a_file_each() -> None:
    with raises_problem(DataError, "missing-special-token", "tokenizer", "corpus.documents=whole"):
        scan(shards([1, 2]), Vocabulary(10, {}))
    assert scan(shards([1, 2], bounds="whole"), Vocabulary(10, {})).bounds.tolist() == [0, 2]


@final
class Tokenized(Corpus):
    """Tokenized corpus of two shards, or of one."""

    traits: ClassVar[CorpusTraits] = {"modality": "ids"}

    def __init__(self, train: Sequence[int], val: Sequence[int], shards: int = 2) -> None:
        self.splits: dict[Split, Sequence[int]] = {"train": train, "val": val}
        self.shards = shards
        self.reads: Counter[str] = Counter()

    def documents(self, split: Split) -> Iterator[Document]:
        raise AssertionError("the ids are not text")

    def token_shards(self, split: Split) -> TokenShards:
        self.reads[split] += 1
        return shards(*(part.tolist() for part in np.array_split(self.splits[split], self.shards)))

    def fingerprint(self) -> str:
        return repr(self.splits)


def ids_of(lengths: Sequence[int], seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [token for length in lengths for token in (*rng.integers(END, size=length).tolist(), END)]


TRAIN, VAL = ids_of(range(1, 9), 0), ids_of((3, 4), 1)


def build(cache: Path, corpus: Corpus, tokenizer: Tokenizer | None = None, **options: Any) -> EncodedCorpus:
    options = {"spec": None, "size": None, **options}
    return encode_corpus(corpus, tokenizer or TokenIds(size=10, eos=END), cache=cache, **options)


def test_the_ids_of_a_tokenized_corpus_are_used_where_they_are(tmp_path: Path) -> None:
    corpus = Tokenized(TRAIN, VAL)
    first, second = build(tmp_path, corpus), build(tmp_path, corpus)
    assert (first.built, second.built) == (True, False)
    for encoded in (first, second):
        assert np.asarray(encoded.train.ids).tolist() == TRAIN
        assert np.asarray(encoded.val.ids).tolist() == VAL
        assert encoded.train.sentences.tolist() == np.cumsum([0, *range(2, 10)]).tolist()
        assert encoded.train.documents.tolist() == list(range(9))
        assert (encoded.bytes, encoded.languages, encoded.unknown) == (0, (), 0.0)
        assert encoded.token_counts is not None
        assert encoded.token_counts.tolist() == np.bincount(TRAIN, minlength=10).tolist()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.tokens")) < 8 * (2 * (9 + 3) + 10) + 200
    assert not list(tmp_path.rglob("building"))


def test_no_token_is_added_between_documents_that_contain_it(tmp_path: Path) -> None:
    encoded = build(tmp_path, Tokenized(TRAIN, VAL, shards=3))
    assert encoded.vocabulary.end_token == END
    vocabulary = encoded.packing_vocabulary
    flow = ConcatenatedDocuments(encoded.train, vocabulary, apart=True)
    assert flow.size == len(TRAIN)
    stream = flow.examples(np.arange(flow.count(4)), 4)
    assert stream.tokens.flatten().tolist() == TRAIN[: len(TRAIN) // 4 * 4]
    assert stream.documents is not None
    owners = np.repeat(np.arange(8), np.arange(2, 10))[: stream.tokens.numel()].reshape(-1, 4)
    assert stream.documents.tolist() == (owners - owners[:, :1]).tolist()
    packed = PackedDocuments(encoded.train, vocabulary, 16)
    tokens = packed.examples(np.arange(packed.count))
    assert tokens.documents is not None
    assert Counter(tokens.tokens[tokens.documents >= 0].tolist()) == Counter(TRAIN)


def test_a_tokenizer_that_is_trained_on_text_does_not_fit_ids(tmp_path: Path) -> None:
    with raises_problem(DataError, "no-text", "tokenizer"):
        build(tmp_path, Tokenized(TRAIN, VAL), BytePair())


def test_a_trained_tokenizer_fits_ids(tmp_path: Path) -> None:
    trained = BytePair()
    trained.train(["some text to learn"], 300)
    train, val = trained.encode_batch(["some text to learn", "to learn more"])
    encoded = build(tmp_path, Tokenized(train, val), BytePair(), learned=trained.state())
    assert encoded.show(encoded.val, slice(None)) == "to learn more"


def test_a_split_without_ids_is_an_error(tmp_path: Path) -> None:
    with raises_problem(DataError, "no-documents", "corpus", "val"):
        build(tmp_path, Tokenized(TRAIN, []))


def test_ids_that_changed_without_another_fingerprint_are_an_error(tmp_path: Path) -> None:
    corpus = Tokenized(TRAIN, VAL)
    build(tmp_path, corpus)
    fingerprint = corpus.fingerprint()
    corpus.splits["train"] = TRAIN[:-1]
    corpus.fingerprint = lambda: fingerprint  # type: ignore[method-assign]  # an unchanged file time
    with raises_problem(DataError, "corpus-changed", "corpus"):
        build(tmp_path, corpus)


def test_a_model_is_evaluated_and_saved_with_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, components: Registry
) -> None:
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "cache"))
    for name, lengths in (("train", range(5, 60)), ("val", range(8, 20))):
        np.array(ids_of(lengths, 0), "<u2").tofile(tmp_path / f"{name}.bin")
    spec = paribus.spec(
        "gpt-tiny",
        f"corpus={{name: tokens, path: [{tmp_path}/train.bin], validation: [{tmp_path}/val.bin]}}",
        "tokenizer={name: ids, size: 12, eos: 9}",
        "data={batch: 4, validation: 8}",
        "dims.length=16",
        registry=components,
    )
    data, model = paribus.data(spec, registry=components), paribus.assemble(spec, registry=components)
    tokens = data.step(0).streams["body"].tokens
    assert int(tokens.max()) <= END
    assert not ((tokens[:, 1:] == END) & (tokens[:, :-1] == END)).any()
    metrics = evaluate(model, data)
    assert metrics.keys() == set(metric_names(resolved(spec, registry=components), components, components.index))
    assert not any("bits-per-byte" in name for name in metrics)
    assert math.isfinite(unigram_baselines(model, data)["val/clm/loss"])
    paribus.save(model, tmp_path / "saved")
    text = paribus.load(tmp_path / "saved", registry=components).text
    assert text is not None
    assert text.read(text.decode([3, END, 4])) == [3, END, 4]


def test_join_shards_keeps_a_single_array() -> None:
    split = shards([1, 2], [])
    assert join_shards(split) is not None
    assert isinstance(join_shards(split), np.ndarray)
    assert np.shares_memory(join_shards(split), split.shards[0].ids)
