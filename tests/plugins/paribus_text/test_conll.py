"""Words and tags in columns: sentences, documents, schemes, splits and invalid files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError
from paribus_text.conll import Conll
from paribus_text.conll_tags import converted, entities

TRAIN = """-DOCSTART- -X- O O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER
. . O O

Anna NNP I-NP I-PER
Bert NNP I-NP B-PER
Meyer NNP I-NP I-PER

-DOCSTART- -X- O O

Rain NN I-NP O
"""
DEV = """-DOCSTART- -X- O O

Carla NNP I-NP I-PER
"# NN I-NP O

Rain NN I-NP O
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conll").mkdir()
    (tmp_path / "conll" / "eng.train").write_text(TRAIN)
    (tmp_path / "conll" / "eng.testa").write_text(DEV)
    (tmp_path / "conll" / "eng.testb").write_text("Never O\n")
    return tmp_path


def contents(corpus: Conll, split: Any) -> list[tuple[str, str]]:
    names = corpus.classes()
    return [
        (" ".join(document.sentences), " ".join(names[int(label)] for label in document.labels))
        for document in corpus.documents(split)
    ]


def test_a_folder_has_its_own_training_and_validation_files() -> None:
    corpus = Conll(path=("conll",))
    assert corpus.classes() == ("O", "B-PER", "I-ORG", "I-PER")
    assert contents(corpus, "train") == [
        ("U.N. official Ekeus .", "I-ORG O I-PER O"),
        ("Anna Bert Meyer", "I-PER B-PER I-PER"),
    ]
    assert contents(corpus, "val") == [('Carla "#', "I-PER O"), ("Rain", "O")]
    assert corpus.skipped_inputs() == {"training documents that the validation split has too": 1}
    assert next(corpus.documents("train")).name == "conll/eng.train:3"


def test_tags_may_be_converted_to_another_scheme() -> None:
    iob2 = Conll(path=("conll/eng.train",), validation=("conll/eng.testa",), scheme="iob2")
    assert contents(iob2, "train")[1] == ("Anna Bert Meyer", "B-PER B-PER I-PER")
    bioes = Conll(path=("conll",), scheme="bioes")
    assert contents(bioes, "train")[1] == ("Anna Bert Meyer", "S-PER B-PER E-PER")
    assert bioes.classes() == ("O", "B-PER", "E-PER", "S-ORG", "S-PER")
    assert len({corpus.fingerprint() for corpus in (iob2, bioes, Conll(path=("conll",)))}) == 3


@pytest.mark.parametrize(
    ("tags", "iob2", "bioes"),
    [
        ("O I-A I-A I-B O", "O B-A I-A B-B O", "O B-A E-A S-B O"),
        ("I-A B-A I-A", "B-A B-A I-A", "S-A B-A E-A"),
        ("S-A B-A E-A I-A", "B-A B-A I-A B-A", "S-A B-A E-A S-A"),
        ("B I O U L", "B- I- O B- B-", "B- E- O S- S-"),
    ],
)
def test_the_entities_of_tags_stay_the_same(tags: str, iob2: str, bioes: str) -> None:
    words = tags.split()
    for scheme, expected in (("file", tags), ("iob2", iob2), ("bioes", bioes)):
        result = converted(words, scheme)  # type: ignore[arg-type]  # each is a scheme
        assert " ".join(result) == expected
        assert list(entities(result)) == list(entities(words))


def test_a_document_is_a_sentence_or_all_up_to_the_next_marker() -> None:
    corpus = Conll(path=("conll",), documents="document")
    assert [words for words, _ in contents(corpus, "train")] == ["U.N. official Ekeus . Anna Bert Meyer", "Rain"]
    assert [words for words, _ in contents(corpus, "val")] == ['Carla "# Rain']
    assert not corpus.skipped_inputs()  # no whole document is in both


def test_any_column_has_tags_and_their_order_may_be_given() -> None:
    corpus = Conll(path=("conll",), column=2, names=("I-NP", "O"))
    assert contents(corpus, "val")[0] == ('Carla "#', "I-NP I-NP")
    assert [document.labels for document in corpus.documents("val")] == [(0, 0), (0,)]
    assert corpus.classes() == ("I-NP", "O")


def test_without_validation_files_a_part_is_held_out() -> None:
    lines = "\n\n".join(f"word{number}\tO\nlast\tB-X" for number in range(50))
    Path("all.tsv").write_text(lines)
    corpus = Conll(path=("all.tsv",), held_out=0.2)
    sizes = Counter(split for split in ("train", "val") for _ in corpus.documents(split))
    assert sizes["train"] + sizes["val"] == 50
    assert 5 <= sizes["val"] <= 15
    assert contents(corpus, "val")[0][1] == "O B-X"


def test_unknown_tags_and_columns_are_refused_with_their_place() -> None:
    with raises_problem(DataError, "missing-label", "conll/eng.train:3", "I-ORG", "O, I-PER"):
        Conll(path=("conll",), names=("O", "I-PER")).fingerprint()
    with raises_problem(DataError, "columns", "conll/eng.train:3", "4", "1 to 3"):
        Conll(path=("conll",), column=4).fingerprint()
    Path("conll/eng.testa").write_text("Carla I-PER\nRain\n")
    with raises_problem(DataError, "columns", "conll/eng.testa:2", "2", "1"):
        Conll(path=("conll",)).fingerprint()


def test_a_tag_of_the_validation_files_alone_is_unknown() -> None:
    Path("conll/eng.testa").write_text("Carla NNP I-NP I-MISC\n")
    with raises_problem(DataError, "missing-label", "conll/eng.testa:1", "I-MISC"):
        Conll(path=("conll",)).fingerprint()


def test_a_folder_without_one_file_of_a_split_is_refused() -> None:
    Path("conll/eng.testa").unlink()
    with raises_problem(DataError, "missing-file", "conll", "val", "*.testa", "eng.train"):
        Conll(path=("conll",)).fingerprint()
    Path("conll/deu.train").write_text(TRAIN)
    with raises_problem(DataError, "missing-file", "train", "found 2", "deu.train"):
        Conll(path=("conll",)).fingerprint()
    with raises_problem(DataError, "missing-file", "eng.trian"):
        Conll(path=("conll/eng.trian",)).fingerprint()
