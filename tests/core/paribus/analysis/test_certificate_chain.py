"""Certificates of fine-tuning trials include the pretraining they start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paribus.analysis.certificates import certify, certify_chain
from paribus.analysis.compare import compare
from paribus.analysis.trials import TrialEntry
from paribus.report.terminal import table_text

Make = Callable[..., TrialEntry]


def tuned(make: Make, parent: TrialEntry, **options: Any) -> TrialEntry:
    """Return a trial that starts from `parent`."""
    parent = replace(parent, trial={**parent.trial, "identity": f"{parent.variant}-{parent.seed}", "stage": "pretrain"})
    entry = make(parent.variant, parent.seed, **options)
    assert entry.record is not None
    source = {"trial": parent.trial["identity"]}
    spec = {**entry.spec, "from": source}
    varied = {**entry.trial["changes"], **({} if parent.variant == "baseline" else {"from": source})}
    record = {**entry.record, "spec": spec}
    return replace(entry, trial={**entry.trial, "spec": spec, "changes": varied}, record=record, parent=parent)


def test_the_certificate_of_a_chain_lists_side_effects_of_both_stages(make: Make) -> None:
    varied = {"attention": "mqa"}
    pretrained = make("mqa", varied=varied)
    chain = certify_chain(tuned(make, make()), tuned(make, pretrained, varied=varied))
    pretraining = certify(make(), pretrained)
    assert chain.ok
    assert (chain.equal_tensors, chain.total_tensors, chain.tensors) == (
        pretraining.equal_tensors,
        pretraining.total_tensors,
        pretraining.tensors,
    )
    assert "k, v reshaped (in pretrain)" in chain.side_effects
    assert "k, v reshaped" not in chain.side_effects
    assert "from.trial" in chain.differing_paths


def test_a_fault_in_the_pretraining_fails_the_fine_tuning(make: Make) -> None:
    varied = {"attention": "mqa"}
    leaked = make("mqa", varied=varied, edits={"spec/dropout": 0.5})
    chain = certify_chain(tuned(make, make()), tuned(make, leaked, varied=varied))
    assert not chain.ok
    assert "another difference (in pretrain)" in chain.reason


def test_a_shared_pretraining_is_not_certified(make: Make) -> None:
    base = tuned(make, make())
    variant = make("lr", varied={"optimizer.lr": 1e-3})
    assert variant.record is not None
    spec = {**variant.spec, "from": base.spec["from"]}
    shared = replace(
        variant,
        trial={**variant.trial, "spec": spec},
        record={**variant.record, "spec": spec},
        parent=base.parent,
    )
    assert certify_chain(base, shared) == certify(base, shared)
    assert certify_chain(base, shared).ok


def test_a_fine_tuning_of_a_diverged_trial_counts_as_diverged(make: Make, ask: Callable[..., Any]) -> None:
    base = [tuned(make, make(seed=seed), loss=2.0 + seed) for seed in range(3)]
    varied = {"attention": "mqa"}
    mine = [tuned(make, make("mqa", seed, varied=varied), varied=varied, loss=2.5) for seed in range(2)]
    lost = make("mqa", 2, varied=varied, state="pending")
    lost = replace(lost, state="diverged", failure={"state": "diverged", "reason": "it begins from mqa, pretrain"})
    table = compare([*base, *mine, lost], ask([*base, *mine, lost], stage="finetune/order"))
    assert (table.rows[0].diverged, table.rows[0].n) == (1, 2)
    assert "diverged 1/3" in table.rows[0].verdict
    assert table_text(table, 80).startswith("attention: val/mlm/loss after finetune/order, lower is better")
    assert "starts from `pretrain` of the same variant" in table.caption[4]
    assert table.to_json()["metric"]["stage"] == "finetune/order"
