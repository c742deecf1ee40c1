"""Translations as a model might write them, by hand and by the library that scores them."""

import sys
from typing import Any

import pytest

import paribus
from paribus import GeneratedPair, SpecError, TrialInfo
from paribus_measure.translation import Translation

LIBRARY = "the library `sacrebleu` is not installed (extra `translation`)"
KNOWN = TrialInfo(("seq2seq/loss",), 16)
PAIRS = (
    GeneratedPair("Das Haus ist alt.", "The house is old.", "The house is old."),
    GeneratedPair("Die Katze schläft.", "The cat is asleep, or so it seems.", "the cat is sleeping, so it seems."),
    GeneratedPair("Wo ist der Zug?", "Where is the train?", "Where is the Train"),
    GeneratedPair("Nichts.", "Nothing at all .", ""),
)


def wrote(*pairs: GeneratedPair) -> Any:
    return lambda examples, **manner: list(pairs[:examples])


def test_what_is_written_without_a_fault_is_counted_without_a_library(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    measure = Translation(scores=())
    assert measure.names(KNOWN) == ("exact", "pairs")
    assert measure.measure(shown(wrote=wrote(*PAIRS))) == {"exact": 0.25, "pairs": 4.0}
    assert Translation(scores=(), examples=1).measure(shown(wrote=wrote(*PAIRS))) == {"exact": 1.0, "pairs": 1.0}


def test_the_model_writes_as_the_options_say(shown: Any) -> None:
    asked: dict[str, Any] = {}

    def write(examples: int, **manner: Any) -> list[GeneratedPair]:
        asked.update(manner, examples=examples)
        return list(PAIRS)

    Translation(scores=(), examples=9, beam=4, length_penalty=0.6, tokens=7).measure(shown(wrote=write))
    assert asked == {"examples": 9, "beam": 4, "length_penalty": 0.6, "tokens": 7}
    match = r"error\[unread\] measure.length_penalty: .*; valid: a beam of at least 2"
    with pytest.raises(SpecError, match=match):
        Translation(length_penalty=0.6)


def test_where_nothing_is_written_the_reason_stands_for_every_number(shown: Any) -> None:
    def refuse(examples: int, **manner: Any) -> list[GeneratedPair]:
        raise SpecError(paribus.Problem(code="mute", message="it has no voice", valid="another"))

    found = Translation(scores=()).measure(shown(wrote=refuse))
    assert found == {"exact": "it has no voice", "pairs": "it has no voice"}
    found = Translation(scores=()).measure(shown(wrote=wrote()))
    assert set(found.values()) == {"no pair of the validation split fits `dims.length`"}


def test_without_the_library_it_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sacrebleu", "sacrebleu.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    match = r"error\[not-installed\] measure: .*; valid: pip install 'paribus\[translation\]'"
    with pytest.raises(SpecError, match=match):
        Translation().names(KNOWN)


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_chrf_are_the_librarys(shown: Any, tokenize: Any, lowercase: bool) -> None:
    library = pytest.importorskip("sacrebleu", reason=LIBRARY)
    written, targets = [each.generated for each in PAIRS], [[each.target for each in PAIRS]]
    found = Translation(tokenize=tokenize, lowercase=lowercase).measure(shown(wrote=wrote(*PAIRS)))
    bleu = library.corpus_bleu(written, targets, tokenize=tokenize, lowercase=lowercase)
    assert found["bleu"] == pytest.approx(bleu.score, rel=1e-12)
    assert 0 < bleu.score < 100
    chrf = library.CHRF(lowercase=lowercase).corpus_score(written, targets)
    assert found["chrf"] == pytest.approx(chrf.score, rel=1e-12)
    if not lowercase:
        assert found["chrf"] == pytest.approx(library.corpus_chrf(written, targets).score, rel=1e-12)


def test_who_copies_the_targets_has_all_of_every_score(shown: Any) -> None:
    pytest.importorskip("sacrebleu", reason=LIBRARY)
    pairs = [each._replace(generated=each.target) for each in PAIRS]
    found = Translation().measure(shown(wrote=wrote(*pairs)))
    assert found == pytest.approx({"bleu": 100.0, "chrf": 100.0, "exact": 1.0, "pairs": 4.0})


def test_the_signature_is_what_the_docstring_says() -> None:
    pytest.importorskip("sacrebleu", reason=LIBRARY)
    metrics = Translation(tokenize="intl").metrics()
    for metric in metrics.values():
        metric.corpus_score(["a"], [["a"]])
    signature = str(metrics["bleu"].get_signature())
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:")
    assert str(metrics["chrf"].get_signature()).startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
