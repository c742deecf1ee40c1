"""Translation scores, compared with hand counts and the library `sacrebleu`."""

import sys
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

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


def generate_pairs(*pairs: GeneratedPair) -> Any:
    return lambda examples, **options: list(pairs[:examples])


def test_exact_match_needs_no_library(fake_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    measure = Translation(scores=())
    assert measure.names(KNOWN) == ("exact", "pairs")
    assert measure.measure(fake_model(generate_pairs=generate_pairs(*PAIRS))) == {"exact": 0.25, "pairs": 4.0}
    assert Translation(scores=(), examples=1).measure(fake_model(generate_pairs=generate_pairs(*PAIRS))) == {
        "exact": 1.0,
        "pairs": 1.0,
    }


def test_the_options_reach_the_generation(fake_model: Any) -> None:
    requests: dict[str, Any] = {}

    def write(examples: int, **options: Any) -> list[GeneratedPair]:
        requests.update(options, examples=examples)
        return list(PAIRS)

    Translation(scores=(), examples=9, beam=4, length_penalty=0.6, tokens=7).measure(fake_model(generate_pairs=write))
    assert requests == {"examples": 9, "beam": 4, "length_penalty": 0.6, "tokens": 7}
    with raises_problem(SpecError, "unused-option", "measure.length_penalty", "2"):
        Translation(length_penalty=0.6)


def test_without_generated_text_every_score_has_the_reason(fake_model: Any) -> None:
    def refuse(examples: int, **options: Any) -> list[GeneratedPair]:
        raise SpecError(paribus.Problem(code="mute", message="it has no voice", valid="another"))

    values = Translation(scores=()).measure(fake_model(generate_pairs=refuse))
    assert values == {"exact": "it has no voice", "pairs": "it has no voice"}
    values = Translation(scores=()).measure(fake_model(generate_pairs=generate_pairs()))
    assert set(values.values()) == {"no pair of the validation split fits `dims.length`"}


def test_a_missing_library_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sacrebleu", "sacrebleu.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises_problem(SpecError, "not-installed", "measure", "paribus[translation]"):
        Translation().names(KNOWN)


@pytest.mark.extras
@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_chrf_equal_those_of_the_library(fake_model: Any, tokenize: Any, lowercase: bool) -> None:
    library = pytest.importorskip("sacrebleu", reason=LIBRARY)
    hypotheses, references = [pair.generated for pair in PAIRS], [[pair.target for pair in PAIRS]]
    values = Translation(tokenize=tokenize, lowercase=lowercase).measure(
        fake_model(generate_pairs=generate_pairs(*PAIRS))
    )
    bleu = library.corpus_bleu(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    assert values["bleu"] == pytest.approx(bleu.score, rel=1e-12)
    assert 0 < bleu.score < 100
    chrf = library.CHRF(lowercase=lowercase).corpus_score(hypotheses, references)
    assert values["chrf"] == pytest.approx(chrf.score, rel=1e-12)
    if not lowercase:
        assert values["chrf"] == pytest.approx(library.corpus_chrf(hypotheses, references).score, rel=1e-12)


@pytest.mark.extras
def test_copied_targets_have_the_best_scores(fake_model: Any) -> None:
    pytest.importorskip("sacrebleu", reason=LIBRARY)
    pairs = [pair._replace(generated=pair.target) for pair in PAIRS]
    values = Translation().measure(fake_model(generate_pairs=generate_pairs(*pairs)))
    assert values == pytest.approx({"bleu": 100.0, "chrf": 100.0, "exact": 1.0, "pairs": 4.0})


@pytest.mark.extras
def test_the_docstring_gives_the_signature() -> None:
    pytest.importorskip("sacrebleu", reason=LIBRARY)
    metrics = Translation(tokenize="intl").metrics()
    for metric in metrics.values():
        metric.corpus_score(["a"], [["a"]])
    signature = str(metrics["bleu"].get_signature())
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:")
    assert str(metrics["chrf"].get_signature()).startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
