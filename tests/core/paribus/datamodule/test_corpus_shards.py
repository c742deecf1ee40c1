"""Corpus shards: a build by several processes, or in several attempts, equals one by a single process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import Corpus, DataError, Document, Split
from paribus.datamodule import corpus_shards as module
from paribus.datamodule.encoding import SPLITS
from paribus.datamodule.token_store import EncodedCorpus, encode_corpus
from paribus.datamodule.worker_pool import may_fork
from paribus_text.bytes import Bytes
from paribus_text.word_piece import WordPiece

WORDS = [
    "all",
    "else",
    "equal",
    "swap",
    "one",
    "part",
    "of",
    "a",
    "transformer",
    "and",
    "learn",
    "whether",
    "it",
    "mattered",
]


class SyntheticCorpus(Corpus):
    """Synthetic documents in a few languages, half of them pairs with labels, and some empty."""

    def __init__(self, documents: int = 160, paired: bool = False) -> None:
        self.counts: dict[Split, int] = {"train": documents, "val": documents // 8}
        self.paired = paired

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(self.counts[split]):
            rng = np.random.default_rng([number, split == "val"])
            texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 9))) + f" {number}." for _ in range(3)]
            language = ("", "de", "en")[number * 3 // self.counts[split]]
            if number % 50 == 49:
                yield Document(f"{split} {number}", (" ",))
            elif self.paired:
                yield Document(f"{split} {number}", tuple(texts[:2]), (texts[2],), language, (number / 2,), "fr")
            else:
                yield Document(f"{split} {number}", tuple(texts), language=language)

    def fingerprint(self) -> str:
        return f"{self.counts} {self.paired}"


def build(cache: Path, corpus: Corpus | None = None, **options: Any) -> EncodedCorpus:
    source_corpus = corpus or SyntheticCorpus()
    tokenizer = options.pop("tokenizer", None) or Bytes()
    return encode_corpus(source_corpus, tokenizer, spec=None, size=None, cache=cache, allow_overlap=True, **options)


def contents(encoded: EncodedCorpus) -> list[Any]:
    """Return the contents of an encoded corpus, for comparison."""
    sides = [encoded.train, encoded.val, encoded.train.targets, encoded.val.targets]
    arrays: list[Any] = []
    for side in sides:
        for name in ("ids", "sentences", "documents", "languages"):
            array = getattr(side, name, None)
            arrays.append(None if array is None else (array.dtype.str, array.tolist()))
        labels = getattr(side, "labels", None)
        arrays.append(None if labels is None else [list(vector) for vector in labels])
    return [*arrays, encoded.dropped, encoded.overlap, encoded.languages, encoded.tokenizer_fingerprint]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the size of a shard to about twenty documents."""
    monkeypatch.setattr(module, "MAX_CHARACTERS", 1500)


@pytest.fixture
def alone() -> None:
    """Limit torch to one thread: only a process with a single thread can fork."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.mark.few(2)
@pytest.mark.parametrize("paired", [False, True], ids=["texts", "pairs"])
@pytest.mark.parametrize("processes", [1, 3])
def test_the_result_does_not_depend_on_shards_and_processes(
    paired: bool, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    whole = contents(build(tmp_path / "whole", SyntheticCorpus(paired=paired)))
    monkeypatch.setattr(module, "MAX_CHARACTERS", 1500)
    numbers: list[int] = []
    write = module.ShardWriter.__call__

    def record_number(self: module.ShardWriter, number: int, documents: list[Document]) -> module.Shard:
        numbers.append(number)
        return write(self, number, documents)

    monkeypatch.setattr(module.ShardWriter, "__call__", record_number)
    assert contents(build(tmp_path / "cut", SyntheticCorpus(paired=paired), processes=processes)) == whole
    # Other processes do not write into this list; with a thread left by an earlier test, there are none.
    assert (len(numbers) > 6) == (processes == 1 or not may_fork())
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "cut").rglob("*") if path.is_file()}


def test_the_encoded_corpus_equals_its_documents(small: None, tmp_path: Path) -> None:
    corpus = SyntheticCorpus(60)
    encoded = build(tmp_path, corpus, processes=1)
    texts = [document.text for document in corpus.documents("train") if document.text.strip()]
    bounds = encoded.train.sentences[encoded.train.documents]
    assert [encoded.show(encoded.train, slice(a, b)) for a, b in pairwise(bounds)] == texts
    assert encoded.languages == ("", "de", "en")
    assert encoded.dropped == {"documents without a sentence": 1}


@pytest.mark.few(1)
@pytest.mark.parametrize("writes_before_stop", [0, 1, 8])
def test_an_interrupted_build_is_resumed(
    writes_before_stop: int, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents(build(tmp_path / "whole", tokenizer=WordPiece(), processes=1))
    shard_numbers: list[int] = []
    write = module.ShardWriter.__call__

    def interrupt_write(self: module.ShardWriter, number: int, documents: list[Document]) -> module.Shard:
        if len(shard_numbers) == writes_before_stop:
            raise KeyboardInterrupt("cut")
        shard_numbers.append(number)
        return write(self, number, documents)

    with monkeypatch.context() as patch:
        patch.setattr(module.ShardWriter, "__call__", interrupt_write)
        with pytest.raises(KeyboardInterrupt, match="cut"):
            build(tmp_path / "cut", tokenizer=WordPiece(), processes=1)
    shard_numbers.clear()
    writes_before_stop = -1
    monkeypatch.setattr(module.ShardWriter, "__call__", interrupt_write)
    monkeypatch.setattr(WordPiece, "train", lambda self, *rest: pytest.fail("the tokenizer is trained already"))
    shard_count = len(list((tmp_path / "cut").rglob("*.shard")))
    assert contents(build(tmp_path / "cut", tokenizer=WordPiece(), processes=1)) == whole
    assert len(shard_numbers) + shard_count == sum(
        len(list(module.shard_documents(SyntheticCorpus().documents(split)))) for split in SPLITS
    )
    assert not list((tmp_path / "cut").rglob("building"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "removed", "of another tokenizer"])
def test_a_damaged_shard_is_rebuilt(damage: str, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(build(tmp_path / "whole", processes=1))
    with monkeypatch.context() as patch:
        patch.setattr(
            "paribus.datamodule.token_store.write_entry", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt("cut"))
        )
        with pytest.raises(KeyboardInterrupt, match="cut"):
            build(tmp_path / "cut", processes=1)
    path = sorted((tmp_path / "cut").rglob("*.shard"))[3]
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-100])
        case "flipped":
            path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        case "removed":
            path.unlink()
        case _:
            (state,) = (tmp_path / "cut").rglob("tokenizer")
            state.write_bytes(b"{}")
    assert contents(build(tmp_path / "cut", processes=1)) == whole


KILLED = """
import sys, time
sys.path[:0] = [{here!r}]
import test_corpus_shards as t
from pathlib import Path
t.module.MAX_CHARACTERS = 1500
write = t.module.ShardWriter.__call__
t.module.ShardWriter.__call__ = lambda *rest: (time.sleep(0.05), write(*rest))[1]
t.build(Path(sys.argv[1]), processes=2)
"""


def test_the_build_of_a_killed_process_is_resumed(tmp_path: Path, small: None) -> None:
    whole = contents(build(tmp_path / "whole", processes=1))
    code = KILLED.format(here=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cut")], env=environment)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "cut").rglob("*.shard"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    shard_count = len(list((tmp_path / "cut").rglob("*.shard")))
    assert 3 <= shard_count < 11
    assert contents(build(tmp_path / "cut", processes=1)) == whole  # waits for the lock of its workers


def test_the_build_reports_its_progress(tmp_path: Path, small: None) -> None:
    reports: list[tuple[str, int]] = []
    build(tmp_path, SyntheticCorpus(600), progress=lambda stage, done: reports.append((stage, done)), processes=1)
    whole = [256, 512, 600]
    assert reports == [*(("train", done) for done in whole), ("val", 75)]


def test_an_id_outside_of_the_vocabulary_is_reported_by_every_process(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    encode = Bytes.encode_batch
    monkeypatch.setattr(Bytes, "encode_batch", lambda self, texts: [[*row, 999] for row in encode(self, texts)])
    for processes in (1, 3):
        with raises_problem(DataError, "id-out-of-range", "train 0", "999", "294"):
            build(tmp_path, processes=processes)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
