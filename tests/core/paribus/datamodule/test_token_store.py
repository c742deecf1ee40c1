"""Token store: entries are cached, found again and always verified."""

import importlib
import logging
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import Corpus, DataError, Document, Split, StoreError, Tokenizer, Vocabulary, labels_of
from paribus.datamodule.corpus_fingerprint import component_code
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens, encode_corpus

TRAIN = [Document("a", ("One.", "Two.")), Document("b", ("Three.",))]
VAL = [Document("c", ("Four.",))]


@final
class Listed(Corpus):
    """Corpus of listed documents."""

    def __init__(self, train: Sequence[Document] = TRAIN, val: Sequence[Document] = VAL) -> None:
        self.splits: dict[Split, Sequence[Document]] = {"train": train, "val": val}
        self.reads = 0

    def documents(self, split: Split) -> Iterator[Document]:
        self.reads += 1
        yield from self.splits[split]

    def fingerprint(self) -> str:
        return repr(self.splits)

    def classes(self) -> tuple[str, ...]:
        return ("no", "yes")


@final
class Letters(Tokenizer):
    """Tokenizer of the letters of the training text, by frequency."""

    def __init__(self) -> None:
        self.letters = ""

    def train(self, texts: Iterable[str], size: int | None) -> None:
        counts = Counter("".join(texts))
        self.letters = "".join(sorted(counts, key=lambda letter: (-counts[letter], letter)))[:size]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.letters.find(letter) + 1 for letter in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"?{self.letters}"[token] for token in ids)

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(len(self.letters) + 1, {"unk": 0})

    def state(self) -> bytes:
        return self.letters.encode()

    def load(self, state: bytes) -> None:
        self.letters = state.decode()


def build(cache: Path, corpus: Corpus | None = None, **options: Any) -> EncodedCorpus:
    options = {"spec": None, "size": None, **options}
    return encode_corpus(corpus or Listed(), Letters(), cache=cache, **options)


def same(left_corpus: EncodedCorpus, right_corpus: EncodedCorpus) -> bool:
    sides = [(left_corpus.train, right_corpus.train), (left_corpus.val, right_corpus.val)]
    names = ("ids", "sentences", "documents", "languages")
    arrays = [(getattr(a, name), getattr(b, name)) for a, b in sides for name in names]
    return left_corpus.tokenizer_fingerprint == right_corpus.tokenizer_fingerprint and all(
        np.array_equal(a, b) for a, b in arrays
    )


def in_memory(encoded: EncodedCorpus) -> EncodedCorpus:
    """Return a copy in memory: truncating a mapped file kills the process."""
    train, val = (
        SplitTokens(side.ids.copy(), side.sentences.copy(), side.documents.copy())
        for side in (encoded.train, encoded.val)
    )
    return replace(encoded, train=train, val=val)


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_languages_are_stored_with_their_names(tmp_path: Path) -> None:
    train = [Document("a", ("One.",), language="en"), Document("b", ("Eins.",), language="de")]
    corpus = Listed(train, [Document("c", ("Zwei.",), language="de")])
    for encoded in (build(tmp_path, corpus), build(tmp_path, corpus)):
        assert encoded.languages == ("en", "de")
        assert encoded.train.languages is not None
        assert encoded.train.languages.tolist() == [0, 1]
        assert encoded.val.languages is not None
        assert encoded.val.languages.tolist() == [1]
    alone = build(tmp_path / "one", Listed(train[:1], [Document("c", ("Two.",), language="en")]))
    assert (alone.languages, alone.train.languages) == ((), None)


def test_a_cached_corpus_is_not_read_again(tmp_path: Path) -> None:
    corpus = Listed()
    encoded = build(tmp_path, corpus)
    reads = corpus.reads
    second = build(tmp_path, corpus)
    assert corpus.reads == reads > 0
    assert same(encoded, second)
    assert second.tokenizer.decode(second.tokenizer.encode_batch(["Two"])[0]) == "Two"
    assert second.vocabulary == encoded.vocabulary


def test_encoded_text_can_be_decoded(tmp_path: Path) -> None:
    encoded = build(tmp_path)
    assert encoded.show(encoded.train, slice(0, None)) == "One. Two.Three."
    assert encoded.show(encoded.val, slice(None)) == "?o?r."  # the tokenizer was not trained on F and u


def test_ids_are_memory_mapped_and_read_only(tmp_path: Path) -> None:
    encoded = build(tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        encoded.train.ids[0] = 1


def test_targets_of_pairs_are_stored(tmp_path: Path) -> None:
    pairs = [Document("a", ("One.",), ("Eins.", "Ja.")), Document("b", ("Two.",), ("Zwei.",))]
    encoded = build(tmp_path, Listed(pairs, [Document("c", ("Six.",), ("Sechs.",))]))
    assert encoded.train.targets is not None
    assert encoded.show(encoded.train.targets, slice(None)) == "Eins. Ja.Zwei."
    assert encoded.train.targets.documents.tolist() == [0, 2, 3]
    assert encoded.val.targets is not None
    assert build(tmp_path).train.targets is None


def test_labels_and_class_names_are_stored(tmp_path: Path) -> None:
    labelled = [Document("a", ("One.",), labels=(1,)), Document("b", ("Two.",), labels=(0.5, -1))]
    encoded = build(tmp_path, Listed(labelled, [Document("c", ("Six.",), labels=(2,))]))
    assert encoded.train.labels is not None
    assert encoded.train.labels.values.tolist() == [1, 0.5, -1]
    assert encoded.train.labels.documents.tolist() == [0, 1, 3]
    assert labels_of(encoded.val).tolist() == [2]
    assert encoded.classes == encoded.train.labels.names == ("no", "yes")
    assert build(tmp_path).train.labels is None


def test_another_corpus_spec_or_size_has_another_entry(tmp_path: Path) -> None:
    build(tmp_path)
    changes: list[dict[str, Any]] = [{"corpus": Listed(VAL, TRAIN)}, {"spec": {"a": 1}}, {"size": 5}]
    for count, options in enumerate(changes, start=2):
        build(tmp_path, **options)
        assert len(list(tmp_path.iterdir())) == count


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_class_without_a_file_is_never_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # its Python files are not those of the class
    if file is not None:
        module = ModuleType("notebook")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, "notebook", module)
    namespace: dict[str, Any] = {"Tokenizer": Tokenizer, "__name__": "notebook"}
    methods = "\n".join(
        f"    {name} = L.{name}" for name in ("train", "encode_batch", "decode", "vocabulary", "state", "load")
    )
    exec(f"class Loose(Tokenizer):\n    letters = ''\n{methods}", namespace | {"L": Letters}, namespace)
    for count in (1, 2):
        encode_corpus(Listed(), namespace["Loose"](), spec=None, size=None, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == count


# --- damage ---


@pytest.mark.parametrize("name", ["*.tokens", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "removed"])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    encoded = in_memory(build(tmp_path))
    contents = {path: path.read_bytes() for path in files(tmp_path)}
    (path,) = tmp_path.rglob(name)
    data = path.read_bytes()
    match damage:
        case "removed":
            path.unlink()
        case "flipped":
            path.write_bytes(data[:20] + bytes([data[20] ^ 4]) + data[21:])
        case _:
            path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    corpus = Listed()
    with caplog.at_level(logging.WARNING):
        assert same(build(tmp_path, corpus), encoded)
    assert corpus.reads > 0
    assert ("it is rebuilt" in caplog.text) == ((name, damage) != ("meta.json", "removed"))
    assert {path: path.read_bytes() for path in files(tmp_path)} == contents


def test_an_interrupted_build_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*arguments: object) -> None:
        raise KeyboardInterrupt("cut")

    with monkeypatch.context() as patch:
        patch.setattr("paribus.datamodule.token_cache_entries.write_json", die)
        with pytest.raises(KeyboardInterrupt, match="cut"):
            build(tmp_path)
    corpus = Listed()
    build(tmp_path, corpus)
    assert corpus.reads > 0


def test_an_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with raises_problem(StoreError, "cannot-read", "Not a directory"):
        build(tmp_path / "file")


def test_several_threads_can_build_one_entry(tmp_path: Path) -> None:
    wait = threading.Barrier(4)
    encoded_corpora: list[EncodedCorpus] = []

    def work() -> None:
        wait.wait()
        encoded_corpora.append(build(tmp_path))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(one, encoded_corpora[0]) for one in encoded_corpora)
    assert len(encoded_corpora) == 4
    assert len(files(tmp_path)) == 2


# --- rejected corpora ---


def test_a_document_in_both_splits_is_rejected_unless_allowed(tmp_path: Path) -> None:
    corpus = Listed(TRAIN, [*VAL, TRAIN[0], Document("other name", ("Three.",))])
    for _ in range(2):
        with raises_problem(DataError, "overlap", "2", "3", "66.7%"):
            build(tmp_path, corpus)
    assert build(tmp_path, corpus, allow_overlap=True).overlap == 2


def test_a_corpus_that_changes_during_reading_is_rejected_and_not_stored(tmp_path: Path) -> None:
    corpus = Listed()

    def change(stage: str, done: int) -> None:
        corpus.splits["train"] = VAL

    with raises_problem(DataError, "corpus-changed", "corpus"):
        build(tmp_path, corpus, progress=change)
    assert files(tmp_path) == []


# --- imports ---


def test_the_store_imports_no_torch() -> None:
    code = "import sys, paribus.datamodule.token_store; print('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"


def test_the_code_of_a_component_is_its_file_with_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "__init__": "",
        "letters": "from acme.words import spell\nclass Mine: ...",
        "words": "spell = 1",
        "other": "",
    }
    (tmp_path / "acme").mkdir()
    for name, text in files.items():
        (tmp_path / "acme" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    component = importlib.import_module("acme.letters").Mine()
    code = component_code(component)
    (tmp_path / "acme" / "other.py").write_text("unrelated = 2")
    assert component_code(component) == code
    (tmp_path / "acme" / "words.py").write_text("spell = 2")
    assert component_code(component) != code
