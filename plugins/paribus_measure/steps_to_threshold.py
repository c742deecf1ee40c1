"""When a model learned what it learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

from paribus import EvaluatedModel, Example, Measure, TrialInfo


@final
class StepsToThreshold(Measure):
    """After how many steps a metric first passed a threshold: what is learned all at once, as recall and induction are,
    is told by when, and not by how well at some step.

    The curve of a trial has as many points as `data.evaluations` says, and `steps` is one of them. Where no point
    passes, `steps` is that of the last, a lower bound, and `reached` is 0 in place of 1.
    """

    def __init__(
        self,
        *,
        metric: Annotated[str, "what is to pass, as the record calls it", Example("val/clm/accuracy")],
        at: Annotated[float, "the threshold", Example(0.5)],
        below: Annotated[bool, "whether it is passed from above, as by a loss"] = False,
    ) -> None:
        self.metric = metric
        self.at = at
        self.below = below

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("steps", "reached")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        points = [point for point in model.learning_curve if self.metric in point]
        if not points:
            trial = ", ".join(name for point in model.learning_curve[-1:] for name in point if name != "step")
            return dict.fromkeys(("steps", "reached"), f"no evaluation has `{self.metric}`; valid: {trial or 'none'}")
        passed = [point for point in points if self._passes(point[self.metric])]
        return {"steps": float((passed or points[-1:])[0]["step"]), "reached": float(bool(passed))}

    def _passes(self, value: float) -> bool:
        return value <= self.at if self.below else value >= self.at
