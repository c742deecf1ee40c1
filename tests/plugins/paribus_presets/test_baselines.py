"""Every system, in its tiny size, learns more by one command than how frequent tokens and classes are."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.assemble import text_of
from paribus.train.tokens import unigram_nats
from paribus.train.trial import Terms, run_trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TABLE: Final = "PARIBUS_BASELINES_TABLE"
STEPS: Final = {
    "bert-tiny": 600,
    "albert-tiny": 600,
    "roberta-tiny": 400,
    "spanbert-tiny": 400,
    "electra-tiny": 1000,
    "xlnet-tiny": 400,
    "t5-tiny": 400,
    "bart-tiny": 400,
    "gpt1-tiny": 400,
    "ctrl-tiny": 400,
    "m2m100-tiny": 400,
    "xlm-tiny": 400,
    "distilbert-tiny": 400,
    "vit-tiny": 200,
    "rnnsearch-tiny": 400,
    "luong-tiny": 400,
}
REPORTED: Final = {"bert-tiny": "val/nsp/loss"}  # a head of two classes, which need not learn in so few steps
BEATEN: Final = 0.02  # nats


class Found(NamedTuple):
    """One loss of one system, and what frequencies alone come to."""

    preset: str
    loss: str
    value: float
    frequencies: float
    seconds: float


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="module")
def found() -> Iterator[list[Found]]:
    """All that was measured; `make baselines` writes it down."""
    rows: list[Found] = []
    yield rows
    if TABLE in os.environ:
        Path(os.environ[TABLE]).write_text(table(rows), encoding="utf-8")


@pytest.mark.parametrize("preset", STEPS)
def test_it_learns_more_than_how_frequent_things_are(
    preset: str, registry: Registry, found: list[Found], tmp_path: Path
) -> None:
    started = time.process_time()
    spec = resolved(preset, f"trainer.max_steps={STEPS[preset]}", registry=registry)
    result: dict[str, Any] = run_trial(spec, registry, Terms(preset, tmp_path))["result"]
    seconds = time.process_time() - started
    known = result["frequencies"] or of_two_networks(spec, registry, result["metrics"])
    for loss, frequencies in known.items():
        found.append(Found(preset, loss, result["metrics"][loss], frequencies, seconds))
    for each in found:
        if each.preset == preset and REPORTED.get(preset) != each.loss:
            assert each.value < each.frequencies - BEATEN, each


def of_two_networks(spec: dict[str, Any], registry: Registry, metrics: dict[str, float]) -> dict[str, float]:
    """ELECTRA's generator is held against the frequency of tokens, its discriminator against that of replaced ones."""
    text, share = text_of(spec, registry), metrics["val/rtd/replaced"]
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    tokens = unigram_nats(text.train, text.val, text.vocabulary.size)
    return {"val/rtd/generator": tokens, "val/rtd/detection": entropy}


def table(rows: list[Found]) -> str:
    lines = [
        "# What each tiny preset learns",
        "",
        "Each row is one command, on text that ships with Python or on what a corpus draws: the loss on the validation",
        "split, and what knowing how frequent labels are, and nothing else, comes to. Written by `make baselines`; the",
        f"slow tests hold every loss to {BEATEN} nats below that, but for heads that are marked as not learnt.",
        "",
        "| command | loss | nats | by frequencies alone | CPU seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        command = f"paribus train {row.preset} trainer.max_steps={STEPS[row.preset]}"
        learnt = "" if row.value < row.frequencies - BEATEN else ", not learnt"
        lines.append(
            f"| `{command}` | {row.loss.removeprefix('val/').removesuffix('/loss')}{learnt} | {row.value:.3f} |"
            f" {row.frequencies:.3f} | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"
