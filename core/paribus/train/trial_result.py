"""Result of a trial: metrics, losses, costs, and the digests of its fairness certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning import Trainer

from paribus.assembly.build import as_list
from paribus.assembly.cost import model_cost, training_flops
from paribus.evidence.digests import DIGEST_LENGTH, tensor_digest
from paribus.models.checkpoint import optimizer_digest, parameter_digest
from paribus.models.distributed import unsharded
from paribus.models.evaluate import Targets, learning_thresholds, unigram_baselines, validation_targets
from paribus.models.lightning_module import Model
from paribus.storage.answers import encode_scores
from paribus.storage.atomic import digest_json
from paribus.train.trial_callback import DivergedError, TrialCallback


def trial_result(
    spec: Mapping[str, Any], callback: TrialCallback, trainer: Trainer, diverged: DivergedError | None
) -> dict[str, Any]:
    """Return the part of the record that must be bitwise equal when the trial is run again."""
    model, data = callback.model, callback.data
    length = spec["dims"]["length"]
    targets = validation_targets(data)
    with unsharded(model):
        cost, baselines = model_cost(model.assembled, length), unigram_baselines(model, data, targets)
    text = data.encoded
    result: dict[str, Any] = {
        "state": "done" if diverged is None else "diverged",
        "steps": callback.step,
        "tokens": callback.step * data.batch_size * length,
        "metrics": {} if diverged else {key: value for key, value in callback.curve[-1].items() if key != "step"},
        "curve": callback.curve,
        "losses": callback.losses,
        "unigram_baseline": baselines,
        "learned_below": learning_thresholds(model, baselines, data.encoded),
        "parameters": cost.parameters,
        "flops_per_token": cost.flops_per_token,
        "cache_bytes_per_token": cost.cache_bytes_per_token(),
        "data": {
            "corpus": text.fingerprint,
            "tokenizer": text.tokenizer_fingerprint,
            "lost_bytes": text.lost,
            "dropped": data.dropped,
            "validation_examples": [data.val_count, data.val_examples.count],  # evaluated, in the split
            "full_validation": data.val_count == data.val_examples.count,
            **({} if data.fill is None else {"fill": data.fill}),
        },
        "objectives": [node["name"] for node in as_list(spec["objective"])],
        "certificate": {
            **callback.initial,
            "batches": callback.batches,
            "order": callback.order,
            "batch_digests": callback.batch_digests,
            "losses": tensor_digest(torch.tensor(callback.losses, dtype=torch.float64)),
            "no_gradient": callback.no_gradient,
            "optimizer_options": callback.optimizer_options,
            **callback.checks.to_json(),
        },
    }
    if callback.checks.updates is not None:
        result["certificate"]["skipped_steps"] = max(0, callback.step - callback.checks.updates)
    if callback.clock.limit is not None:
        result["time_budget"] = {"seconds": callback.clock.limit, "clock": callback.clock.clock}
    if callback.unmeasured:
        result["unmeasured"] = callback.unmeasured
    if diverged is not None:
        return {**result, "diverged": {"step": diverged.step, "last_loss": diverged.last_loss}}
    optimizer = trainer.optimizers[0] if trainer.optimizers else None
    digests = {"parameters": parameter_digest(model), "generators": tensor_digest(torch.get_rng_state())}
    if optimizer is not None:
        digests["optimizer"] = optimizer_digest(optimizer, model)
    if callback.answer_scores:
        result["certificate"]["answers"] = _answers(callback, targets)
    return {**result, "digests": digests}


def _answers(callback: TrialCallback, targets: Targets) -> dict[str, Any]:
    """Return the score of each evaluated example by metric, and a digest of the examples and their labels."""
    model, data = callback.model, callback.data
    answers: dict[str, Any] = {}
    for metric, scores in callback.answer_scores.items():
        name = metric.split("/")[1]
        labels = targets[name][next(iter(model.objective(name).terms.values()))]
        evaluated = f"{data.val_count} of {data.val_examples.count}"
        questions = digest_json([data.encoded.fingerprint, evaluated, tensor_digest(labels)])
        answers[metric] = encode_scores(scores, questions[:DIGEST_LENGTH])
    return answers


def training_costs(model: Model, steps: int, batch: int, previous: int | None) -> dict[str, int]:
    """Return the FLOPs of the training, and with those of the model it started from, where they are known."""
    length = model.spec["dims"]["length"]
    teacher = None if model.teacher is None else model.teacher.assembled
    with unsharded(model):
        frozen_steps = steps if model.frozen_steps is None else min(steps, model.frozen_steps)
        flops = batch * frozen_steps * training_flops(model.assembled, length, teacher, model.frozen)
        flops += batch * (steps - frozen_steps) * training_flops(model.assembled, length, teacher)
    return {"training_flops": flops, **({} if previous is None else {"total_flops": previous + flops})}
