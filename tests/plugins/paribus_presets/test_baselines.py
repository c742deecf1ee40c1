"""Every tiny preset learns more than the frequencies of tokens and classes (slow)."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from paribus.models.evaluate import UNIGRAM_TOLERANCE
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TABLE: Final = "PARIBUS_BASELINES_TABLE"
COMMANDS: Final = (
    "bert-tiny corpus.docstrings=true corpus.held_out=0.2 dims.length=128 data.validation=1024 data.batch=16 "
    "placement=pre optimizer.lr=4e-3 trainer.max_steps=3000",  # pairs take more text and steps
    "albert-tiny trainer.max_steps=600",
    "roberta-tiny trainer.max_steps=400",
    "scibert-tiny objective=mlm trainer.max_steps=600",  # next sentences as in the row of BERT
    "flaubert-tiny trainer.max_steps=400",
    "xlm-r-tiny trainer.max_steps=400",
    "xlm-t-tiny trainer.max_steps=400",
    "spanbert-tiny trainer.max_steps=400",
    "bigbird-tiny trainer.max_steps=400",
    "deberta-tiny trainer.max_steps=400",
    "deberta-v3-tiny trainer.max_steps=800",
    "econberta-tiny trainer.max_steps=1300",
    "electra-tiny position=rope optimizer.lr=4e-3 trainer.max_steps=1000",
    "xlnet-tiny trainer.max_steps=400",
    "crammed-bert-tiny trainer.max_steps=400",
    "modernbert-tiny trainer.max_steps=400",
    "encoder-tiny trainer.max_steps=400",
    "mdlm-tiny trainer.max_steps=400",
    "bd3lm-tiny trainer.max_steps=400",
    "distilbert-tiny trainer.max_steps=400",
    "minilm-tiny trainer.max_steps=400",
    "tinybert-tiny trainer.max_steps=600",
    "xtremedistil-tiny trainer.max_steps=400",
    "xlm-tiny trainer.max_steps=400",
    "gpt-tiny trainer.max_steps=400",
    "gpt1-tiny trainer.max_steps=400",
    "gpt2-tiny trainer.max_steps=400",
    "gpt3-tiny trainer.max_steps=400",
    "ctrl-tiny trainer.max_steps=400",
    "gpt-neo-tiny trainer.max_steps=400",
    "gpt-j-tiny trainer.max_steps=400",
    "llama-tiny trainer.max_steps=400",
    "mistral-tiny trainer.max_steps=400",
    "deltanet-tiny trainer.max_steps=400",
    "kimi-linear-tiny trainer.max_steps=400",
    "nanochat-tiny trainer.max_steps=400",
    "qwen3-next-tiny trainer.max_steps=400",
    "mamba2-tiny trainer.max_steps=400",
    "olmo3-tiny trainer.max_steps=400",
    "lstm-lm-tiny trainer.max_steps=400",
    "elmo-tiny trainer.max_steps=400",
    "t5-tiny trainer.max_steps=400",
    "t5-v1.1-tiny trainer.max_steps=400",
    "seq2seq-tiny trainer.max_steps=400",
    "bart-tiny trainer.max_steps=400",
    "m2m100-tiny trainer.max_steps=400",
    "transformer-tiny trainer.max_steps=400",
    "rnnsearch-tiny trainer.max_steps=400",
    "luong-tiny trainer.max_steps=400",
    "gnmt-tiny trainer.max_steps=400",
    "convs2s-tiny trainer.max_steps=400",
    "bytenet-tiny trainer.max_steps=400",
    "vit-tiny trainer.max_steps=200",
)
PAIRS: Final = 500  # held out, at least
ACCURACY: Final = 0.7  # of the next sentences among them, at least


class MeasuredLoss(NamedTuple):
    """One loss of one preset, and the loss of label frequencies."""

    command: str
    loss: str
    value: float
    frequencies: float
    seconds: float
    right: str = ""  # share and number of the pairs that are classified right


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="module")
def results() -> Iterator[list[MeasuredLoss]]:
    """All measured losses; `make baselines` writes them to a table."""
    rows: list[MeasuredLoss] = []
    yield rows
    if TABLE in os.environ:
        Path(os.environ[TABLE]).write_text(table(rows), encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition(" ")[0])
def test_a_tiny_preset_is_better_than_label_frequencies(
    command: str, registry: Registry, results: list[MeasuredLoss], tmp_path: Path
) -> None:
    started = time.process_time()
    spec = resolved(*command.split(), registry=registry)
    result: dict[str, Any] = run_trial(spec, registry, TrialContext("tiny", tmp_path))["result"]
    seconds = time.process_time() - started
    frequency_losses = {**result["unigram_baseline"], **of_a_detector(result["metrics"])}
    for loss, frequencies in frequency_losses.items():
        right = accuracy_of_pairs(result) if loss == "val/nsp/loss" else ""
        results.append(MeasuredLoss(command, loss, result["metrics"][loss], frequencies, seconds, right))
    for entry in results:
        if entry.command == command:
            assert entry.value < entry.frequencies - UNIGRAM_TOLERANCE, entry
    if "val/nsp/accuracy" in result["metrics"]:
        assert result["data"]["validation_examples"][0] >= PAIRS
        assert result["metrics"]["val/nsp/accuracy"] >= ACCURACY


def test_every_tiny_preset_has_a_row(registry: Registry) -> None:
    tiny = {name for name in registry.index.presets if name.endswith("-tiny")}
    assert {command.split()[0] for command in COMMANDS} == tiny


def of_a_detector(metrics: dict[str, float]) -> dict[str, float]:
    """The loss that the share of replaced tokens gives ELECTRA's detector; it depends on the trained generator."""
    share = metrics.get("val/rtd/replaced")
    if share is None:
        return {}
    return {"val/rtd/detection": -share * math.log(share) - (1 - share) * math.log(1 - share)}


def accuracy_of_pairs(result: dict[str, Any]) -> str:
    count: int = result["data"]["validation_examples"][0]
    return f", {result['metrics']['val/nsp/accuracy']:.1%} of {count} pairs right"


def table(rows: list[MeasuredLoss]) -> str:
    lines = [
        "# Baselines of tiny presets",
        "",
        "Each row is one command: a loss on the validation split, and that of the unigram baseline, which predicts the",
        "frequencies of the labels. The text is in the package, or is drawn. Written by `make baselines`. A slow test",
        f"requires every loss to be {UNIGRAM_TOLERANCE} nats lower than its baseline, and {ACCURACY:.0%} of at least",
        f"{PAIRS} pairs of sentences to be right.",
        "",
        "| command | loss | nats | unigram baseline | CPU seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        loss = row.loss.removeprefix("val/").removesuffix("/loss") + row.right
        numbers = f"{row.value:.3f} | {row.frequencies:.3f} | {row.seconds:.0f}"
        lines.append(f"| `paribus train {row.command}` | {loss} | {numbers} |")
    return "\n".join(lines) + "\n"
