"""Steps to a threshold: training steps until a metric reaches a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

from paribus import EvaluatedModel, Example, Measure, TrialInfo


@final
class StepsToThreshold(Measure):
    """Number of steps after which a metric first passes a threshold, for abilities that emerge suddenly, such as recall
    and induction.

    The curve of a trial has `data.evaluations` points, and `steps` is one of them. If no point passes, `steps` is that
    of the last, a lower bound, and `reached` is 0, otherwise 1.
    """

    def __init__(
        self,
        *,
        metric: Annotated[str, "name of the metric in the record", Example("val/clm/accuracy")],
        value: Annotated[float, "threshold", Example(0.5)],
        below: Annotated[bool, "pass the threshold from above, as a loss does"] = False,
    ) -> None:
        self.metric = metric
        self.value = value
        self.below = below

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("steps", "reached")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        points = [point for point in model.learning_curve if self.metric in point]
        if not points:
            names = ", ".join(name for point in model.learning_curve[-1:] for name in point if name != "step")
            return dict.fromkeys(("steps", "reached"), f"unknown metric `{self.metric}`; valid: {names or 'none'}")
        passed = [point for point in points if self._passes(point[self.metric])]
        return {"steps": float((passed or points[-1:])[0]["step"]), "reached": float(bool(passed))}

    def _passes(self, metric: float) -> bool:
        return metric <= self.value if self.below else metric >= self.value
