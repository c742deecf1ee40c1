"""Evaluation of a trained model in a new process, from its saved weights, with its components loaded anew.

What the training process has changed besides the weights does not reach it: attributes of modules, hooks, counters and
replaced functions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

from paribus.datamodule.data import Data
from paribus.models.assemble import build_model
from paribus.models.checkpoint import load_weights
from paribus.models.evaluate import compute_metrics, evaluation_mode
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import LazyRegistry, Registry, index
from paribus.registry.component_index import Index
from paribus.slots.tokenizer import Vocabulary
from paribus.specs.components import components_of

SAVED: Final = "is another model when it is loaded"
EXAMPLES: Final = 4
SECONDS: Final = 600
TOLERANCE: Final = 1e-3  # of a metric, relative
ACCELERATOR_TOLERANCE: Final = 2e-2  # the new process evaluates on the CPU
PROGRAM: Final = "import sys; from paribus.evidence.saved_model_check import main; main(sys.argv[1])"


@final
class _Request(NamedTuple):
    """What the new process needs to evaluate the model."""

    spec: Mapping[str, Any]
    plugins: Sequence[str]  # files
    vocabulary: Vocabulary
    weights: Path
    dtype: torch.dtype
    batch: Batch
    threads: int


def saved_model_faults(model: Model, data: Data, classes: Registry, weights: Path) -> Iterator[tuple[str, str]]:
    """Yield a metric of some validation examples that differs if the saved model is loaded in a new process.

    Models that another one teaches, and components that no file has, are not loaded.
    """
    files = plugin_files(model.spec, classes.index)
    if files is None or model.teacher is not None:
        return
    whole = data.validation_batch(0)
    batch = whole.rows(slice(0, min(EXAMPLES, len(whole.index))))
    with evaluation_mode(model):
        expected = compute_metrics(model, [batch])
    dtype = next(model.parameters()).dtype
    request = _Request(model.spec, files, data.encoded.vocabulary, weights, dtype, batch, torch.get_num_threads())
    loaded = _evaluated_anew(request)
    if isinstance(loaded, str):
        yield SAVED, f"a new process cannot load it: {loaded}"
        return
    tolerance = TOLERANCE if model.device.type == "cpu" and dtype.itemsize >= 4 else ACCELERATOR_TOLERANCE
    for name, value in expected.items():
        if abs(value - loaded[name]) > tolerance * max(1.0, abs(value)):
            yield (
                SAVED,
                f"`{name}` of {len(batch.index)} examples is {loaded[name]:.4g} there, and {value:.4g} in training",
            )
            return


def plugin_files(spec: Mapping[str, Any], components: Index) -> list[str] | None:
    """Return the plugins of a spec that are files, or None if one of its components is only in this process."""
    sources = {components.find(slot, name).source for slot, name in components_of(spec, components)}
    files = [source.value for source in sources if not source.distribution]
    return None if not all(files) else sorted(files)


def _evaluated_anew(request: _Request) -> dict[str, float] | str:
    """Return the metrics that a new process computes, or the last line of its error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.pt"
        torch.save(tuple(request), file)
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(file)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    if process.returncode:
        return (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    metrics: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return metrics


def main(file: str) -> None:
    """Evaluate the model of a request, and print its metrics as JSON."""
    request = _Request(*torch.load(file, weights_only=False))
    torch.set_num_threads(request.threads)
    classes = LazyRegistry(index(plugins=request.plugins))
    model = build_model(request.spec, classes, request.vocabulary).to(request.dtype)
    load_weights(request.weights, model)
    with evaluation_mode(model):
        sys.stdout.write(json.dumps(compute_metrics(model, [request.batch])) + "\n")
