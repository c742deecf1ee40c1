"""Translation quality: BLEU and chrF of generated translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, final

from paribus import (
    EvaluatedModel,
    GeneratedPair,
    Measure,
    MeasureTraits,
    ParibusError,
    Problem,
    Range,
    SpecError,
    TrialInfo,
    missing_package,
)

Score = Literal["bleu", "chrf"]


@final
class Translation(Measure):
    """Quality of generated translations of the validation split: "BLEU" (Papineni et al. 2002) and "chrF" (Popović
    2015), computed as in "A Call for Clarity in Reporting BLEU Scores" (Post 2018).

    The accuracy of an objective is with true previous tokens; here the model continues its own. `bleu` and `chrf` are
    corpus scores, 0 to 100, by the library `sacrebleu`, whose version is in the provenance of a record; the rest of its
    signature is these options, one reference, no effective order and smoothing `exp`. `exact` is the share of
    translations equal to the target, and `pairs` is their number.
    """

    traits: ClassVar[MeasureTraits] = {"needs": ["pairs"], "visibility": "past"}

    def __init__(
        self,
        *,
        examples: Annotated[int, "maximum number of pairs of the validation split", Range(1)] = 256,
        scores: Annotated[tuple[Score, ...], "scores besides `exact`"] = ("bleu", "chrf"),
        beam: Annotated[int, "beam size; 1: greedy decoding", Range(1)] = 1,
        length_penalty: Annotated[
            float, "exponent of the length that divides the score of a hypothesis (GNMT)", Range(0)
        ] = 0.0,
        tokens: Annotated[int | None, "maximum number of generated tokens; null: as many as fit", Range(1)] = None,
        tokenize: Annotated[
            Literal["13a", "intl", "char", "zh", "none"], "tokenization of BLEU, as sacrebleu names it"
        ] = "13a",
        lowercase: Annotated[bool, "ignore case in BLEU and chrF"] = False,
    ) -> None:
        if beam == 1 and length_penalty:
            message = "the penalty has no effect with one hypothesis"
            raise SpecError(
                Problem(
                    code="unused-option", path="measure.length_penalty", message=message, valid="a beam of at least 2"
                )
            )
        self.examples = examples
        self.scores = tuple(dict.fromkeys(scores))
        self.tokenize, self.lowercase = tokenize, lowercase
        self._generation_options: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "tokens": tokens}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        if self.scores:
            _library()
        return (*self.scores, "exact", "pairs")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        names = self.names(model.trial)
        try:
            pairs = model.generate(self.examples, **self._generation_options)
        except ParibusError as error:  # the model cannot generate
            return dict.fromkeys(names, error.problems[0].message)
        if not pairs:
            return dict.fromkeys(names, "no pair of the validation split fits `dims.length`")
        exact = sum(pair.generated == pair.target for pair in pairs) / len(pairs)
        return {**self._scores(pairs), "exact": exact, "pairs": float(len(pairs))}

    def _scores(self, pairs: Sequence[GeneratedPair]) -> dict[str, float]:
        """Return corpus scores, which differ from the mean over sentences."""
        hypotheses, references = [pair.generated for pair in pairs], [[pair.target for pair in pairs]]
        return {
            name: float(metric.corpus_score(hypotheses, references).score) for name, metric in self.metrics().items()
        }

    def metrics(self) -> dict[str, Any]:
        """Return metrics of the library by name; after scoring, `get_signature()` describes the computation."""
        if not self.scores:
            return {}
        library = _library()
        constructors = {
            # force: without it, the library warns of a space before a full stop, which a model may generate
            "bleu": lambda: library.BLEU(lowercase=self.lowercase, tokenize=self.tokenize, force=True),
            "chrf": lambda: library.CHRF(lowercase=self.lowercase),
        }
        return {name: constructors[name]() for name in self.scores}


def _library() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError as error:
        user, alternative = "the measure `translation`", "`scores: []` for `exact` only"
        raise SpecError(
            missing_package("sacrebleu", "translation", user, path="measure", alternative=alternative)
        ) from error
    return sacrebleu.metrics
