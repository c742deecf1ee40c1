"""Metrics on another corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, final

from paribus import Corpus, EvaluatedModel, Measure, MeasureTraits, ParibusError, Range, Slot, TrialInfo


@final
class OtherCorpus(Measure):
    """Metrics of the objectives on the validation split of another corpus: another domain, or the mismatched texts of
    MNLI, "A Broad-Coverage Challenge Corpus" (Williams et al. 2018).

    `val/other-corpus/classify.accuracy` is the accuracy of `classify` there. The tokenizer is that of the trial, and
    nothing is trained on the other corpus.
    """

    traits: ClassVar[MeasureTraits] = {"other_corpus": "corpus"}

    def __init__(
        self,
        *,
        corpus: Annotated[
            Callable[[], Corpus], "corpus whose validation split is evaluated", Slot("corpus")
        ] = "python-docs",  # type: ignore[assignment]  # a name in the spec, its factory here
        examples: Annotated[int, "maximum number of examples", Range(1)] = 1024,
    ) -> None:
        self.corpus = corpus()
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return [_name(metric) for metric in trial.metrics]

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        try:
            metrics = model.metrics(model.batches(self.examples, corpus=self.corpus))
        except ParibusError as error:  # the trained model is worth more than these numbers
            return dict.fromkeys(self.names(model.trial), error.problems[0].message)
        missing = dict.fromkeys(self.names(model.trial), "the validation split of the other corpus has no example")
        return {_name(metric): value for metric, value in metrics.items()} or missing


def _name(metric: str) -> str:
    return metric.replace("/", ".")
