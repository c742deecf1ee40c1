"""Whole training runs beside other libraries do the same work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.whole_runs import RUNNERS, Decoder, Size, factor, read_text, run, table, write_text

from paribus.assembly.cost import count_parameters
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import build_data, load_corpus, meta_model

SMALL = Size(width=32, layers=2, heads=2, length=32, batch=4, steps=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_text(folder, SMALL)
    return folder


def test_the_models_have_the_same_parameters(folder: Path, registry: Registry) -> None:
    spec = resolved(*SMALL.words(), registry=registry)
    parameters = sum(parameter.numel() for parameter in Decoder(SMALL, read_text(folder).vocabulary).parameters())
    assert parameters == count_parameters(meta_model(spec, registry).children())


def test_the_runs_evaluate_the_same_tokens(folder: Path, registry: Registry) -> None:
    spec = resolved(*SMALL.words(), registry=registry)
    data = build_data(spec, registry, load_corpus(spec, registry))
    batches = [data.validation_batch(number) for number in range(data.val_count // SMALL.batch)]
    count = sum(int((batch.targets["clm"]["labels"] >= 0).sum()) for batch in batches)
    assert count == sum(labels.numel() for _, labels in read_text(folder).validation(SMALL))


def test_the_learning_rates_are_those_of_the_schedule(registry: Registry) -> None:
    from paribus.assembly.components import make
    from paribus.slots.schedule import Schedule

    spec = resolved(*SMALL.words(), registry=registry)
    schedule = make(registry, "schedule", spec["schedule"], kind=Schedule)
    ours = [schedule.factor(step, 400) for step in range(400)]
    np.testing.assert_allclose([factor(step, 400) for step in range(400)], ours, atol=0.01)


@pytest.mark.slow
def test_every_runner_trains(folder: Path) -> None:
    pytest.importorskip("accelerate")
    runs = {name: [run(name, folder, SMALL)] for name in RUNNERS}
    losses = [results[0].loss for results in runs.values()]
    assert max(losses) - min(losses) < 0.5
    assert max(losses) < torch.tensor(float(read_text(folder).vocabulary)).log() + 0.1
    assert all(results[0].cpu > 1 and results[0].peak_bytes > 1 << 27 for results in runs.values())
    assert len(table(runs, SMALL)) == 2 + len(RUNNERS)
