"""Evaluation is the same for every variant, independent of its training objective."""

from __future__ import annotations

import torch

from paribus.models.assemble import build_data, load_corpus
from paribus.registry import installed
from paribus.specs import resolved


def test_evaluate_options_apply_to_validation_examples_only() -> None:
    registry = installed()
    batches = []
    for rate in (0.15, 0.4):
        words = [f"objective.rate={rate}", "evaluate=[{name: mlm, rate: 0.2}]"]
        spec = resolved("encoder-tiny", *words, registry=registry)
        data = build_data(spec, registry, load_corpus(spec, registry))
        batches.append((data.step(0), data.validation_batch(0)))
    (train, val), (other_train, other_val) = batches
    assert torch.equal(val.streams["body"].tokens, other_val.streams["body"].tokens)
    assert torch.equal(val.targets["mlm"]["labels"], other_val.targets["mlm"]["labels"])
    assert train.targets["mlm"]["labels"].shape != other_train.targets["mlm"]["labels"].shape
    assert val.targets["mlm"]["labels"].shape[1] == 13  # of 64 rows, a fifth, rounded up
