"""How a model fares on more rows than it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

from paribus import EvaluatedModel, Measure, ParibusError, Range, TrialInfo


@final
class LengthExtrapolation(Measure):
    """What the objectives measure on so many times as many rows: "Train Short, Test Long" (Press et al. 2022).

    `val/extrapolation/clm.loss.x2` is the loss of `clm` on twice as many rows. They are more of the validation split's
    text, or what a corpus draws for it, such as a probe's longer questions. Where a table of positions ends before that
    there is no such metric, and the record says why; a study about it is refused before it runs.
    """

    def __init__(
        self,
        *,
        times: Annotated[tuple[int, ...], "how many times as many rows", Range(2, 1024)] = (2, 4),
        examples: Annotated[int, "examples of each length", Range(1)] = 64,
    ) -> None:
        self.times = tuple(dict.fromkeys(times))
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        within = [times for times in self.times if trial.max_length is None or times * trial.length <= trial.max_length]
        return [_name(metric, times) for times in within for metric in trial.metrics]

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        found: dict[str, float | str] = {}
        for times in self.times:
            metrics = self._asked(model, times)
            trial = dict.fromkeys(model.trial.metrics, metrics) if isinstance(metrics, str) else metrics
            found |= {_name(metric, times): value for metric, value in trial.items()}
        return found

    def _asked(self, model: EvaluatedModel, times: int) -> Mapping[str, float] | str:
        """The metrics, or why there are none."""
        length, longest = times * model.trial.length, model.trial.max_length
        if longest is not None and length > longest:
            return f"the model has places for {longest} rows, and these are {length}"
        try:
            metrics = model.metrics(model.batches(self.examples, times=times))
        except ParibusError as error:  # nothing is so long, or nothing may be
            return error.problems[0].message
        return metrics or f"the validation split has no example of {length} rows"


def _name(metric: str, times: int) -> str:
    return f"{metric.replace('/', '.')}.x{times}"
