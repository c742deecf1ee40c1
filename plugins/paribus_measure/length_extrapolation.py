"""Length extrapolation: metrics on sequences longer than in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

from paribus import EvaluatedModel, Measure, ParibusError, Range, TrialInfo


@final
class LengthExtrapolation(Measure):
    """Metrics of the objectives on sequences several times as long as in training: "Train Short, Test Long" (Press et
    al. 2022).

    `val/extrapolation/clm.loss.x2` is the loss of `clm` on sequences twice as long. They are longer pieces of the
    validation text, or longer examples that the corpus generates, such as a probe's. If the positions of a model end
    before, the metric is missing and the record has the reason; a study of such a metric is refused before it runs.
    """

    def __init__(
        self,
        *,
        times: Annotated[tuple[int, ...], "lengths as multiples of that in training", Range(2, 1024)] = (2, 4),
        examples: Annotated[int, "number of examples of each length", Range(1)] = 64,
    ) -> None:
        self.times = tuple(dict.fromkeys(times))
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        within = [times for times in self.times if trial.max_length is None or times * trial.length <= trial.max_length]
        return [_name(metric, times) for times in within for metric in trial.metrics]

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        values: dict[str, float | str] = {}
        for times in self.times:
            metrics = self._metrics(model, times)
            by_metric = dict.fromkeys(model.trial.metrics, metrics) if isinstance(metrics, str) else metrics
            values |= {_name(metric, times): value for metric, value in by_metric.items()}
        return values

    def _metrics(self, model: EvaluatedModel, times: int) -> Mapping[str, float] | str:
        """Return the metrics, or the reason why they are missing."""
        length, longest = times * model.trial.length, model.trial.max_length
        if longest is not None and length > longest:
            return f"the model has {longest} positions, fewer than {length}"
        try:
            metrics = model.metrics(model.batches(self.examples, times=times))
        except ParibusError as error:  # no text is so long
            return error.problems[0].message
        return metrics or f"the validation split has no example of length {length}"


def _name(metric: str, times: int) -> str:
    return f"{metric.replace('/', '.')}.x{times}"
