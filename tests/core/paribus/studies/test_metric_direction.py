"""The direction of a metric of which only the name is known."""

import pytest

from paribus.studies.metric_direction import direction


@pytest.mark.parametrize(
    "name",
    ["acc", "valAcc", "top5_acc", "acc@1", "F1Score", "macro-f1", "val/classify/accuracy", "val/x/exact", "bleu"],
)
def test_a_metric_such_as_accuracy_needs_a_direction(name: str) -> None:
    assert direction(name) is None
    assert direction(name, "lower") == "lower"
    assert direction(name, "higher") == "higher"


@pytest.mark.parametrize(
    "name", ["val_loss", "nll", "reward_loss", "acc_error", "val/clm/bits-per-byte", "value", "accelerator_time"]
)
def test_other_metrics_are_better_if_lower(name: str) -> None:
    assert direction(name) == "lower"
