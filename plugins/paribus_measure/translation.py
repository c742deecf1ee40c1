"""How good a model's translations are, as it writes them itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, final

from paribus import EvaluatedModel, GeneratedPair, Measure, ParibusError, Problem, Range, SpecError, Traits, TrialInfo

Score = Literal["bleu", "chrf"]


@final
class Translation(Measure):
    """What a model writes for the sources of the validation split, held against their targets: "BLEU" (Papineni et al.
    2002) and "chrF" (Popović 2015), as "A Call for Clarity in Reporting BLEU Scores" (Post 2018) has them computed.

    An objective's accuracy is of tokens that follow the true ones; here a model goes on from its own. `bleu` and `chrf`
    are of all pairs together, 0 to 100, by the library `sacrebleu`, whose version a record's provenance has; what else
    its signature says are these options, one reference, no effective order and smoothing `exp`. `exact` is the share
    that is written without a fault, and `pairs` how many there were.
    """

    traits: ClassVar[Traits] = {"needs": ["pairs"], "sight": "past"}

    def __init__(
        self,
        *,
        examples: Annotated[int, "pairs of the validation split, at most", Range(1)] = 256,
        scores: Annotated[tuple[Score, ...], "what is computed besides `exact`"] = ("bleu", "chrf"),
        beam: Annotated[int, "hypotheses that go on; 1: the most probable token each time", Range(1)] = 1,
        length_penalty: Annotated[
            float, "power of a hypothesis's length that its score is over (GNMT)", Range(0)
        ] = 0.0,
        tokens: Annotated[int | None, "most tokens that are written; null: as many as there is room", Range(1)] = None,
        tokenize: Annotated[
            Literal["13a", "intl", "char", "zh", "none"], "how BLEU tells words apart, in sacrebleu's words"
        ] = "13a",
        lowercase: Annotated[bool, "whether case does not matter to BLEU and chrF"] = False,
    ) -> None:
        if beam == 1 and length_penalty:
            what = "it compares the hypotheses of a beam, and there is one"
            raise SpecError(
                Problem(code="unread", path="measure.length_penalty", message=what, valid="a beam of at least 2")
            )
        self.examples = examples
        self.scores = tuple(dict.fromkeys(scores))
        self.tokenize, self.lowercase = tokenize, lowercase
        self._manner: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "tokens": tokens}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        if self.scores:
            _library()
        return (*self.scores, "exact", "pairs")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        names = self.names(model.trial)
        try:
            found = model.generate(self.examples, **self._manner)
        except ParibusError as error:  # it cannot write, or nobody lets it
            return dict.fromkeys(names, error.problems[0].message)
        if not found:
            return dict.fromkeys(names, "no pair of the validation split fits `dims.length`")
        exact = sum(each.generated == each.target for each in found) / len(found)
        return {**self._scored(found), "exact": exact, "pairs": float(len(found))}

    def _scored(self, found: Sequence[GeneratedPair]) -> dict[str, float]:
        """Of the whole corpus: the mean over sentences is something else."""
        written, targets = [each.generated for each in found], [[each.target for each in found]]
        return {name: float(metric.corpus_score(written, targets).score) for name, metric in self.metrics().items()}

    def metrics(self) -> dict[str, Any]:
        """The library's own, by name; `get_signature()` of one that has scored says how it did."""
        if not self.scores:
            return {}
        library = _library()
        made = {
            # force: what is written may have a space before its full stop, which the library would warn of
            "bleu": lambda: library.BLEU(lowercase=self.lowercase, tokenize=self.tokenize, force=True),
            "chrf": lambda: library.CHRF(lowercase=self.lowercase),
        }
        return {name: made[name]() for name in self.scores}


def _library() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError as error:
        what = "the measure `translation` takes the library `sacrebleu`, which is not installed"
        valid = "pip install 'paribus[translation]', or `scores: []` for `exact` alone"
        raise SpecError(Problem(code="not-installed", path="measure", message=what, valid=valid)) from error
    return sacrebleu.metrics
