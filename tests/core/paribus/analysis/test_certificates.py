"""Certificates: pairs that differ only in the varied options pass, and planted faults fail."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paribus.analysis.certificates import Certificate, certify, merge_certificates
from paribus.analysis.trials import TrialEntry

Make = Callable[..., TrialEntry]

Q = "result/certificate/tensors/body.layers.0.attention.heads.q.weight"
NORM = "result/certificate/tensors/body.layers.1.placement.norms.attention.weight"
TABLE = "body.position.0.table.weight"
CERTIFICATE = "result/certificate"

# What a study may vary, what it may change along, and how the certificate tells of it.
SOUND: list[tuple[dict[str, Any], str]] = [
    ({"attention": "mqa"}, "k, v reshaped; same batches; outputs differ"),
    ({"attention": {"name": "gqa", "kv_heads": 2}}, "k, v reshaped; same batches; outputs differ"),
    ({"attention": {"name": "restricted", "window": 4}}, "same batches; outputs differ"),
    ({"norm": "rmsnorm"}, "same batches; outputs differ"),
    ({"placement": "deepnorm"}, "o, v, inner at another scale; same batches; outputs differ"),
    ({"initialisation": {"name": "xavier"}}, "k, o, q, v, inner, embedding.tokens initialised differently"),
    ({"position": "learned"}, "position.table added; same batches; outputs differ"),
    ({"feedforward.expand": 2.0}, "inner reshaped; same batches; outputs differ"),
    ({"dims.layers": 1}, "layers.1 removed; same batches; outputs differ"),
    ({"attention": "mqa", "norm": "rmsnorm"}, "k, v reshaped; same batches; outputs differ"),
    ({"optimizer.lr": 1e-3}, "same batches; training differs"),
    ({"dropout": 0.1}, "same batches; training differs"),
    ({"objective": [{"name": "clm"}]}, "other batches; training differs"),
    ({"data.batch": 8}, "6,400 tokens against 12,800; other examples; training differs"),
    ({"trainer.max_steps": 50}, "100 steps against 50; 6,400 tokens against 3,200; same outputs at step 0"),
    ({"corpus": {"name": "docstrings"}}, "other examples; training differs"),
]  # fmt: skip

REPEATED = {"loss": "l", "gradients": "g", "evaluation": "e", "unrepeatable": [], "generators": []}
CLOCK = {**REPEATED, "unrepeatable": ["loss", "gradients"]}

# What may be wrong with the record of a variant, and the word that it is told by.
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a leaked seed": ({"attention": "mqa"}, {f"{Q}/value": "x", f"{Q}/signs": "y"}, "leaked seed"),
    "a seed that leaked into a norm": ({"norm": "rmsnorm"}, {f"{NORM}/value": "x"}, "leaked seed"),
    "draws of another seed": ({"attention": "mqa"}, {f"{Q}/draws": "x", f"{Q}/value": "y"}, "leaked seed"),
    "draws that are not only scaled": (
        {"placement": "deepnorm"},
        {f"{Q}/initialisation": "x", f"{Q}/value": "y", f"{Q}/signs": "z"},
        "leaked seed",
    ),
    "an option that the engine dropped": ({"dims.layers": 1}, {"spec/dims/layers": 2}, "another spec"),
    "a swap that changes nothing": ({"attention": {"name": "restricted", "window": 16}}, {}, "changed nothing"),
    "another difference": ({"attention": "mqa"}, {"spec/norm": {"name": "rmsnorm"}}, "another difference"),
    "a difference of a value": ({"attention": "mqa"}, {"spec/norm/eps": 1e-3}, "another difference"),
    "another option of the seed": ({"attention": "mqa"}, {"spec/seed": 7}, "other seed"),
    "other batches": ({"attention": "mqa"}, {f"{CERTIFICATE}/batches": "x"}, "other batches"),
    "another order": ({"optimizer.lr": 1e-3}, {f"{CERTIFICATE}/order": "x"}, "other examples"),
    "fewer steps": ({"attention": "mqa"}, {"result/steps": 99}, "other budget"),
    "fewer tokens": ({"norm": "rmsnorm"}, {"result/tokens": 1}, "other budget"),
    "a frozen parameter": (
        {"norm": "rmsnorm"},
        {f"{CERTIFICATE}/no_gradient": ["body.layers.0.attention.heads.q.bias"]},
        "not trained",
    ),
    "a step that reads a clock": ({"norm": "rmsnorm"}, {f"{CERTIFICATE}/first_step": CLOCK}, "not repeatable"),
    "a generator of numpy": (
        {"norm": "rmsnorm"},
        {f"{CERTIFICATE}/first_step": {**REPEATED, "generators": ["numpy"]}},
        "other random numbers",
    ),
    "a changed default dtype": (
        {"norm": "rmsnorm"},
        {f"{CERTIFICATE}/settings": ["the default dtype"]},
        "other process",
    ),
    "draws in evaluation": (
        {"norm": "rmsnorm"},
        {f"{CERTIFICATE}/first_step": {**REPEATED, "generators": ["torch, in evaluation"]}},
        "random numbers in evaluation",
    ),
    "a tensor of another component": (
        {"norm": "rmsnorm"},
        {f"{CERTIFICATE}/changed_tensors": ["embedding.tokens.weight"]},
        "changed outside of the optimizer",
    ),
    "fewer targets in evaluation": (
        {"attention": "mqa"},
        {f"{CERTIFICATE}/targets": {"training": {}, "evaluation": {"mlm/loss": 50}}},
        "other targets",
    ),
    "fewer targets in training": (
        {"attention": "mqa"},
        {f"{CERTIFICATE}/targets": {"training": {"1": {"mlm/loss": 10}, "2": {"mlm/loss": 19}}, "evaluation": {}}},
        "other targets",
    ),
    "a swap beside the model": ({"position": "learned"}, {f"{CERTIFICATE}/no_gradient": [TABLE]}, "untrained"),
}


def pair(make: Make, varied: Mapping[str, Any], edits: Mapping[str, Any] | None = None, seed: int = 0) -> Certificate:
    return certify(make(seed=seed), make("it", seed, varied=varied, edits=edits))


@pytest.mark.parametrize(("varied", "text"), SOUND, ids=[",".join(varied) for varied, _ in SOUND])
def test_a_pair_that_differs_only_in_varied_options_is_certified(make: Make, varied: dict[str, Any], text: str) -> None:
    certificate = pair(make, varied)
    assert certificate.failures == ()
    assert text in certificate.text
    assert f"{certificate.equal_tensors}/{certificate.total_tensors} tensors equal at step 0; " in certificate.text
    assert "\n" not in certificate.text


@pytest.mark.parametrize(("varied", "_"), SOUND, ids=[",".join(varied) for varied, _ in SOUND])
def test_a_certificate_is_the_same_with_baseline_and_variant_exchanged(
    make: Make, varied: dict[str, Any], _: str
) -> None:
    forward, exchanged = pair(make, varied), certify(make("it", varied=varied), make())
    assert exchanged.ok
    assert (exchanged.equal_tensors, exchanged.confirmed) == (forward.equal_tensors, forward.confirmed)
    assert (exchanged.tensors["added"], exchanged.tensors["removed"]) == (
        forward.tensors["removed"],
        forward.tensors["added"],
    )
    assert sorted(exchanged.differing_paths) == sorted(forward.differing_paths)


@pytest.mark.parametrize(("varied", "edits", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_a_planted_fault_fails_the_certificate(
    make: Make, varied: dict[str, Any], edits: dict[str, Any], reason: str
) -> None:
    certificate = pair(make, varied, edits)
    assert not certificate.ok
    assert reason in certificate.reason.split("; ")
    assert certificate.text.startswith(certificate.failures[0])


def test_the_share_of_equal_tensors_is_of_the_baselines(make: Make) -> None:
    assert (pair(make, {"attention": "mqa"}).equal_tensors, pair(make, {"attention": "mqa"}).total_tensors) == (13, 21)
    assert (pair(make, {"position": "learned"}).equal_tensors, pair(make, {"position": "learned"}).total_tensors) == (
        21,
        21,
    )


@pytest.mark.parametrize(
    ("changes", "actual", "reason"),
    [
        ({"attention.window": 4}, {}, "`attention.window` is not in the resolved spec of it"),
        ({"attention": {"name": "gqa", "kv_heads": 2}}, {"attention": {"name": "gqa", "kv_heads": 4}}, "got "),
        ({"norm": "rmsnorm"}, {"norm": {"name": "layernorm", "eps": 1e-3}}, "expected rmsnorm for `norm`"),
    ],
)
def test_an_ignored_option_fails_the_certificate(make: Make, changes: Any, actual: dict[str, Any], reason: str) -> None:
    variant = make("it", varied=actual)
    variant = dataclasses.replace(variant, trial={**variant.trial, "changes": changes})
    certificate = certify(make(), variant)
    assert certificate.reason.startswith("ignored option")
    assert reason in certificate.failures[0]


def test_a_tuned_option_takes_the_place_of_that_of_its_component(make: Make) -> None:
    muon = {"name": "muon", "lr": 1e-3, "adamw": {"beta1": 0.9, "beta2": 0.95}}
    tuned = {**muon, "lr": 0.02, "adamw": {"beta1": 0.8, "beta2": 0.95}}
    variant = make("it", varied={"optimizer": tuned})
    changes = {"optimizer": muon, "optimizer.lr": 0.02, "optimizer.adamw.beta1": 0.8}
    certified = certify(make(), dataclasses.replace(variant, trial={**variant.trial, "changes": changes}))
    assert certified.failures == ()
    ignored = {**changes, "optimizer.lr": 0.04}
    failed = certify(make(), dataclasses.replace(variant, trial={**variant.trial, "changes": ignored}))
    assert failed.failures == ("ignored option: expected 0.04 for `optimizer.lr` in it, got 0.02",)


def test_probed_options_are_reported(make: Make) -> None:
    """Changes of a variant are reverted one by one, to find those without an effect."""
    varied = {"attention": {"name": "gqa", "kv_heads": 2}, "norm": {"name": "rmsnorm", "eps": 1e-3}}
    probe_keys = {"probed": ["attention.kv_heads", "norm.eps"], "neutral": ["norm.eps"]}
    certificate = pair(make, varied, {f"provenance/{key}": value for key, value in probe_keys.items()})
    assert certificate.ok
    assert "`norm.eps` has the same effect here as its default" in certificate.side_effects
    assert "attention.kv_heads changes the output" in certificate.confirmed
    edits = {"provenance/probed": ["attention.kv_heads", "norm.eps"], "provenance/ignored": ["norm.eps"]}
    ignored = pair(make, varied, edits)
    assert ignored.failures == ("ignored option: `norm.eps` is 0.001 in it, but other values have the same effect",)
    assert "attention.kv_heads changes the output" in ignored.confirmed


def test_a_component_that_acts_as_the_baselines_fails_only_against_it(make: Make) -> None:
    varied = {"attention": {"name": "restricted", "window": 99}, "norm": {"name": "rmsnorm"}}
    variant = make("it", varied=varied, edits={"provenance/same_as_baseline": ["attention"]})
    variant = dataclasses.replace(
        variant, trial={**variant.trial, "baseline_values": {"attention": make().spec["attention"]}}
    )
    assert certify(make(), variant).failures == (
        "changed nothing: `attention` has the same effect as the baseline's, and only the other changes remain",
    )
    below = make("below", varied={"attention": {"name": "gqa", "kv_heads": 2}})
    assert certify(below, variant).ok  # it is not like what this one has


def test_outputs_of_other_examples_confirm_nothing(make: Make) -> None:
    certificate = pair(make, {"corpus": {"name": "text"}})
    assert certificate.confirmed == ("training differs",)
    assert "other examples" in certificate.side_effects


def test_an_effect_of_the_last_step_counts_as_a_change(make: Make) -> None:
    """The loss of a step is computed before its update, so after one step only parameters show the learning rate."""
    same = {f"{CERTIFICATE}/losses": make().certificate["losses"]}
    assert pair(make, {"optimizer": {"name": "adamw", "lr": 1e-3}}, same).reason == "changed nothing"
    moved = {**same, "result/digests": {"parameters": "other"}}
    assert pair(make, {"optimizer": {"name": "adamw", "lr": 1e-3}}, moved).ok


def test_a_spec_equal_to_the_baselines_fails_the_certificate(make: Make) -> None:
    certificate = pair(make, {"attention": "mha"} | {"attention": {"name": "mha", "scores": {"bias": True}}})
    assert certificate.reason == "changed nothing"


def test_a_varied_value_may_equal_the_baselines(make: Make) -> None:
    assert pair(make, {"position": {"name": "rope", "theta": 10000.0}, "norm": "rmsnorm"}).ok


def test_a_matched_option_may_differ(make: Make) -> None:
    variant = make("it", varied={"attention": "mqa"}, matched={"feedforward.expand": 5.0})
    certificate = certify(make(), variant)
    assert certificate.ok
    assert "k, v, inner reshaped" in certificate.side_effects
    unmatched = dataclasses.replace(variant, trial={**variant.trial, "matched_values": {}})
    assert certify(make(), unmatched).reason == "another difference"


def test_the_number_of_workers_may_differ(make: Make) -> None:
    assert pair(make, {"attention": "mqa"}, {"spec/data/workers": 4}).ok


def test_an_effect_that_appears_only_in_training_is_a_side_effect(make: Make) -> None:
    same = make().certificate["outputs"]
    certificate = pair(make, {"attention": "mqa"}, {f"{CERTIFICATE}/outputs": same})
    assert certificate.ok
    assert "outputs differ only once trained" in certificate.side_effects


def test_tensors_without_a_gradient_are_reported_by_trial(make: Make) -> None:
    untrained = ["body.layers.0.attention.heads.q.bias"]
    certificate = certify(
        make(edits={f"{CERTIFICATE}/no_gradient": untrained}),
        make("it", varied={"position": "learned"}, edits={f"{CERTIFICATE}/no_gradient": [*untrained, TABLE]}),
    )
    assert "no gradient reaches position.table" in certificate.side_effects
    assert "no gradient in either trial reaches q.bias" in certificate.side_effects
    partial = pair(make, {"attention": "mqa"}, {f"{CERTIFICATE}/no_gradient": ["body.layers.0.attention.heads.k.bias"]})
    assert partial.ok
    assert "no gradient reaches k.bias" in partial.side_effects


def test_tensors_of_an_objective_may_be_untrained(make: Make) -> None:
    edits: dict[str, Any] = {f"{CERTIFICATE}/tensors/objectives.nsp.weight": {"shape": [2]}}
    edits |= {f"{CERTIFICATE}/no_gradient": ["objectives.nsp.weight"]}
    certificate = pair(make, {"objective": [{"name": "mlm", "rate": 0.15}, {"name": "nsp"}]}, edits)
    assert certificate.ok
    assert "no gradient reaches objectives.nsp" in certificate.side_effects


def test_a_diverged_pair_is_certified_by_its_start(make: Make) -> None:
    variant = make("it", varied={"attention": "mqa"}, state="diverged")
    assert certify(make(), variant).text == "13/21 tensors equal at step 0; k, v reshaped; outputs differ"
    assert certify(make(state="diverged"), variant).ok
    leaked = make("it", varied={"attention": "mqa"}, state="diverged", edits={f"{Q}/value": "x"})
    assert certify(make(), leaked).reason == "leaked seed"


def test_trials_of_two_seeds_fail_the_certificate(make: Make) -> None:
    assert "other seed" in certify(make(seed=0), make("it", 1, varied={"attention": "mqa"})).reason


def test_a_pair_without_two_records_cannot_be_certified(make: Make) -> None:
    with pytest.raises(ValueError, match=r"`certify` needs two records, but it \(seed 3\) has none\."):
        certify(make(seed=3), make("it", 3, varied={"attention": "mqa"}, state="failed"))


# ------------------------------------------------------------------------------------------------ over all seeds
def test_findings_of_all_seeds_are_listed_once(make: Make) -> None:
    certificates = [pair(make, {"attention": "mqa"}, seed=seed) for seed in range(3)]
    merged = merge_certificates(certificates)
    assert merged.text == certificates[0].text
    assert merged.seeds == (0, 1, 2)
    assert merge_certificates(certificates[:1]) == certificates[0]


def test_findings_of_some_seeds_are_listed_with_the_seeds(make: Make) -> None:
    sound = [pair(make, {"attention": "mqa"}, seed=seed) for seed in range(2)]
    leaked = pair(make, {"attention": "mqa"}, {f"{Q}/value": "x"}, seed=2)
    merged = merge_certificates([*sound, leaked])
    assert not merged.ok
    assert merged.failures[0].endswith("(seed 2 only)")
    assert merged.reason == "leaked seed"
    assert merged.equal_tensors == leaked.equal_tensors


def test_other_seeds_confirm_what_a_diverged_seed_cannot(make: Make) -> None:
    states = ("done", "diverged")
    certificates = [
        certify(make(seed=seed), make("it", seed, varied={"norm": "rmsnorm"}, state=state))
        for seed, state in enumerate(states)
    ]
    assert merge_certificates(certificates).confirmed == ("same batches", "outputs differ")


def test_findings_that_vary_by_seed_are_listed_with_the_seeds(make: Make) -> None:
    untrained = {f"{CERTIFICATE}/no_gradient": ["body.layers.0.attention.heads.q.bias"]}
    certificates = [pair(make, {"dropout": 0.1}, untrained if seed == 1 else {}, seed) for seed in range(2)]
    assert merge_certificates(certificates).side_effects[-1:] == ("no gradient reaches q.bias (seed 1 only)",)


def test_merging_no_certificates_is_an_error() -> None:
    with pytest.raises(ValueError, match="`certificates` must hold at least one, but is empty"):
        merge_certificates([])


def test_a_certificate_is_json(make: Make) -> None:
    certificate = pair(make, {"attention": "mqa"}, {f"{Q}/value": "x"})
    document = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
    assert document["ok"] is False
    assert document["text"] == certificate.text
    assert document["tensors"]["leaked"] == [Q.rpartition("/")[2]]


def test_random_numbers_in_training_are_a_side_effect(make: Make) -> None:
    drawing = {f"{CERTIFICATE}/first_step": {**REPEATED, "draws": True}}
    assert "random numbers in training" in pair(make, {"norm": "rmsnorm"}, drawing).side_effects
    assert "random numbers in training" not in pair(make, {"dropout": 0.1}, drawing).side_effects
    both = certify(make(edits=drawing), make("it", varied={"norm": "rmsnorm"}, edits=drawing))
    assert both.side_effects == pair(make, {"norm": "rmsnorm"}).side_effects


def test_steps_skipped_by_overflow_are_a_side_effect(make: Make) -> None:
    skipped = {f"{CERTIFICATE}/skipped_steps": 3}
    expected = "3 steps skipped by overflow in float16, and 0 of the baseline"
    assert expected in pair(make, {"norm": "rmsnorm"}, skipped).side_effects
    none = {f"{CERTIFICATE}/skipped_steps": 0}
    assert pair(make, {"norm": "rmsnorm"}, none).side_effects == pair(make, {"norm": "rmsnorm"}).side_effects


def test_a_property_that_a_model_lacks_withholds_the_verdict(make: Make) -> None:
    broken = {f"{CERTIFICATE}/properties": {"reads future tokens": "the output at position 0 changes"}}
    certificate = pair(make, {"attention": "mqa"}, broken)
    assert certificate.reason == "reads future tokens"
    assert certificate.failures == (f"reads future tokens: {certificate.variant}: the output at position 0 changes",)
    held = pair(make, {"attention": "mqa"}, {f"{CERTIFICATE}/properties": {}})
    assert held.ok
    assert f"properties of {held.variant} hold" in held.confirmed
    unchecked = pair(make, {"attention": "mqa"}, {f"{CERTIFICATE}/properties": {"unchecked": "TypeError: no copy"}})
    assert unchecked.ok
    assert f"not all properties of {unchecked.variant} were checked (TypeError: no copy)" in unchecked.side_effects


def test_records_without_these_checks_are_certified_by_the_others(make: Make) -> None:
    older = {f"{CERTIFICATE}/{key}": None for key in ("first_step", "changed_tensors", "targets")}
    assert pair(make, {"norm": "rmsnorm"}, older).ok
