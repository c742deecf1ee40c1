"""Pairs of trials that are trained for a certificate, with the components of a module's `registry`."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from paribus.analysis.certificates import Certificate, certify
from paribus.analysis.trials import TrialEntry
from paribus.registry import Registry
from paribus.specs.resolve import resolved
from paribus.train.trial import TrialContext, run_trial

Entry = Callable[..., TrialEntry]
Pair = Callable[..., Certificate]

TEXT = "\n\n".join(
    f"The {number}th paragraph says {number * number} words of its own, and ends." for number in range(200)
)


@pytest.fixture(scope="module", name="train_entry")
def _train_entry(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """Return a function that trains a trial of the module's `registry`, and returns it with its record."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trials")
    (folder / "corpus.txt").write_text(TEXT)
    base: dict[str, Any] = {
        "preset": "encoder-tiny",
        "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16},
        "corpus": {"name": "text", "path": [str(folder / "corpus.txt")], "documents": "paragraph"},
        "data": {"batch": 4, "validation": 8},
        "trainer": {"max_steps": 4},
    }
    count = iter(range(1000))

    def entry(
        variant: str,
        varied: Mapping[str, Any],
        changes: Mapping[str, Any],
        baseline_spec: Mapping[str, Any] | None = None,
    ) -> TrialEntry:
        trial_spec = copy.deepcopy(base)
        for dotted, value in varied.items():
            slot, _, option = dotted.partition(".")
            trial_spec[slot] = {**trial_spec.get(slot, {}), option: value} if option else value
        spec = resolved(trial_spec, registry=registry)
        identity = f"trial-{next(count)}"
        trial_folder = folder / identity
        trial_folder.mkdir()
        baseline_values = (
            {key: baseline_spec[key] for key in changes if key in baseline_spec}
            if baseline_spec and len(changes) > 1
            else {}
        )
        record = run_trial(
            spec,
            registry,
            TrialContext(identity=identity, folder=trial_folder, changes=changes, baseline_values=baseline_values),
        )
        trial = {
            "identity": identity,
            "spec": spec,
            "changes": dict(changes),
            "code": "",
            "corpus": "",
            "baseline_values": baseline_values,
        }
        return TrialEntry(variant=variant, seed=0, trial=trial, record=record, state=record["result"]["state"])

    return entry


@pytest.fixture(scope="module", name="pair")
def _pair(train_entry: Entry) -> Pair:
    """Train a baseline and a variant, and return their certificate."""

    def pair(
        varied: Mapping[str, Any], baseline: Mapping[str, Any] | None = None, changes: Mapping[str, Any] | None = None
    ) -> Certificate:
        baseline_changes = baseline or {}
        baseline_entry = train_entry("baseline", baseline_changes, baseline_changes)
        return certify(
            baseline_entry, train_entry("variant", varied, varied if changes is None else changes, baseline_entry.spec)
        )

    return pair
