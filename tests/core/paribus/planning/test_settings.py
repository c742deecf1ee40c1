"""A study may hold its comparison in several settings: each is complete, and what they share is run once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.plan import Plan, plan
from paribus.planning.settings import BEST, SAME
from paribus.planning.tuning import FAILED, pending_notes, score_of
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.storage.store import Trial
from paribus.studies.designs import BASELINE
from paribus.studies.study import Study, parse_study

STUDY: Mapping[str, Any] = {
    "base": {"preset": "encoder-tiny", "optimizer.lr": 2e-3},
    "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}], "norm": ["rmsnorm"]},
    "seeds": 3,
    "budget": {"steps": 10},
    "metric": {"name": "val/mlm/loss"},
}
PARAMS: Mapping[str, Any] = {"on": "params", "by": "feedforward.expand"}
FLOPS: Mapping[str, Any] = {"on": "flops", "by": "dims.width"}
TUNE: Mapping[str, Any] = {"optimizer.lr": [5e-4, 2e-3, 8e-3], "seeds": 2}


def read(plugin_index: Index, **changes: Any) -> Study:
    return parse_study("mine", plain_tree({**STUDY, **changes}, "study"), plugin_index)


def counting(study: Study) -> Any:
    """Counts heads and the knobs, and operations otherwise than parameters."""
    assert study.match is not None
    weight = {"params": 1, "flops": 3}[study.match.on]

    def count(spec: dict[str, Any]) -> int:
        heads = {"mha": 4, "mqa": 1, "gqa": 2}[spec["attention"]["name"]]
        return int(weight * heads * 1000 + round(1000 * spec["feedforward"]["expand"]) + 100 * spec["dims"]["width"])

    return count


def planned(plugin_index: Index, scores: Any = lambda trial: None, **changes: Any) -> Plan:
    return plan(
        read(plugin_index, **changes),
        plugin_index,
        fingerprint=lambda spec: "text",
        make_count=counting,
        score=scores,
    )


def test_a_plain_study_has_one_setting_without_a_name(plugin_index: Index) -> None:
    result = planned(plugin_index)
    assert [setting.name for setting in result.settings] == [""]
    assert result.trials_of("attention=mqa") == result.trials_of("attention=mqa", setting="")
    assert all(not trial.setting and "setting" not in trial.document() for trial in result.trials)
    assert result.is_complete
    assert not result.tuned


def test_a_list_of_one_match_is_that_match(plugin_index: Index) -> None:
    alone, listed = planned(plugin_index, match=dict(PARAMS)), planned(plugin_index, match=[dict(PARAMS)])
    assert listed.trials == alone.trials
    assert [setting.name for setting in listed.settings] == [""]


def test_each_way_to_match_has_residuals_of_its_own(plugin_index: Index) -> None:
    result = planned(plugin_index, match=["none", dict(PARAMS), dict(FLOPS)])
    assert [setting.name for setting in result.settings] == ["unmatched", "params", "flops"]
    assert result.setting("unmatched").matched == {}
    for name in ("params", "flops"):
        setting = result.setting(name)
        alone = planned(plugin_index, match=dict({"params": PARAMS, "flops": FLOPS}[name]))
        assert setting.matched == alone.matched
        for variant in setting.variants:
            same = [trial.identity for trial in alone.trials_of(variant.name)]
            assert [trial.identity for trial in result.trials_of(variant.name, setting=name)] == same
    assert result.setting("params").matched["attention=mqa"].value == pytest.approx(7.0)
    assert (
        result.setting("flops").matched["attention=mqa"].value
        != result.setting("params").matched["attention=mqa"].value
    )


def test_two_matches_on_one_cost_are_named_by_their_options(plugin_index: Index) -> None:
    result = planned(plugin_index, match=[dict(PARAMS), {"on": "params", "by": "dims.width"}])
    assert [setting.name for setting in result.settings] == ["params by feedforward.expand", "params by dims.width"]


def test_a_trial_that_two_settings_have_is_run_once(plugin_index: Index) -> None:
    result = planned(plugin_index, match=["none", dict(PARAMS)])
    identities = [trial.identity for trial in result.trials]
    assert len(identities) == len(set(identities))
    initial, second = (result.trials_of(BASELINE, setting=name) for name in ("unmatched", "params"))
    assert [trial.identity for trial in initial] == [trial.identity for trial in second]
    assert len(result.new_trials(BASELINE, "", "unmatched")) == 3
    assert result.new_trials(BASELINE, "", "params") == ()
    assert len(result.trials) == 4 * 3 + 2 * 3  # the norm needs no knob turned, as it counts what the baseline does


def test_an_early_stop_leaves_whole_pairs_in_every_setting(plugin_index: Index) -> None:
    result = planned(plugin_index, scales={"s": {"dims.width": 32}, "m": {"dims.width": 64}})
    assert [trial.seed for trial in result.trials] == [0] * 8 + [1] * 8 + [2] * 8


def test_a_setting_is_not_part_of_a_trials_identity(plugin_index: Index) -> None:
    scales = {"s": {"dims.width": 32}, "m": {"dims.width": 64}}
    result, alone = planned(plugin_index, scales=scales), planned(plugin_index)  # the preset is 64 wide
    same = [trial.identity for trial in result.trials_of("attention=mqa", setting="m")]
    assert same == [trial.identity for trial in alone.trials_of("attention=mqa")]
    assert result.trials_of("attention=mqa", setting="m")[0].label == "attention=mqa, m, seed 0"


def test_presets_are_scales_with_the_bases_changes(plugin_index: Index) -> None:
    base = {"preset": "encoder-tiny", "data.batch": 8, "objective": "mlm"}
    result = planned(plugin_index, base=base, scales=["encoder-tiny", "bert-tiny"], vary={"norm": ["rmsnorm"]})
    assert [setting.name for setting in result.settings] == ["encoder-tiny", "bert-tiny"]
    specs = [result.trials_of(BASELINE, setting=setting.name)[0].spec for setting in result.settings]
    assert [spec["data"]["batch"] for spec in specs] == [8, 8]
    assert specs[0]["position"] != specs[1]["position"]


def test_every_scale_is_matched_in_every_way(plugin_index: Index) -> None:
    scales = {"s": {"dims.layers": 1}, "m": {"dims.layers": 2}}
    result = planned(plugin_index, scales=scales, match=["none", dict(PARAMS)])
    assert [setting.name for setting in result.settings] == ["s, unmatched", "s, params", "m, unmatched", "m, params"]


def test_an_error_at_one_scale_names_the_scale(plugin_index: Index) -> None:
    scales = {"s": {"dims.heads": 2}, "m": {"dims.heads": 3, "dims.width": 48}}
    with raises_problem(SpecError, "out-of-range", "attention.kv_heads", "3", "m") as caught:
        planned(plugin_index, scales=scales)
    assert all(problem.message.endswith(", in m") for problem in caught.value.problems)
    result = planned(plugin_index, scales=scales, design="grid", vary={"attention": [{"name": "gqa", "kv_heads": 2}]})
    assert [cell.variant for cell in result.excluded if cell.reason.endswith(", in m")] == ["attention=gqa(kv_heads=2)"]
    assert [variant.name for variant in result.setting("m").variants] == [BASELINE]


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"scales": {"s": {"dims.width": 32}}}, "too-few", ("scales",)),
        ({"scales": {"s": {"norm": "rmsnorm"}, "m": {"dims.width": 64}}}, "varied-twice", ("scales.s.norm",)),
        ({"scales": {"s": {}, "m": {"dims.width": 64}}}, "empty", ("scales.s",)),
        ({"scales": {"S !": {"dims.width": 32}, "m": {"dims.width": 64}}}, "bad-name", ("scales.S !",)),
        ({"match": []}, "wrong-type", ("match",)),
        ({"match": [dict(PARAMS), dict(PARAMS)]}, "wrong-type", ("match",)),
        ({"match": [dict(PARAMS), {"on": "params"}]}, "missing", ("match.1.by",)),
        ({"tune": {"optimizer.lr": [1e-3], "seeds": [1, 7]}}, "same-seeds", ("tune.seeds", "1")),
        ({"tune": {"norm": ["layernorm"]}}, "varied-twice", ("tune.norm",)),
        ({"tune": {"seeds": 2}}, "empty", ("tune",)),
        ({"tune": {"optimizer.lr": 1e-3}}, "wrong-type", ("tune.optimizer.lr", "0.001")),
        ({"tune": {"optimizer.lr": [1e-3], "seeds": 0}}, "wrong-type", ("tune.seeds", "0")),
        ({"tune": {"feedforward.expand": [2]}, "match": dict(PARAMS)}, "varied-twice", ("tune.feedforward.expand",)),
        ({"tune": {"optimizer.lrr": [1e-3]}}, "unknown-key", ("lrr",)),
    ],
)
def test_an_invalid_setting_is_refused(
    plugin_index: Index, changes: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        planned(plugin_index, **changes)


def test_settings_count_among_too_many_trials(plugin_index: Index) -> None:
    study = read(plugin_index, scales={"s": {"dims.width": 32}, "m": {"dims.width": 64}}, tune=dict(TUNE))
    with raises_problem(SpecError, "too-many-trials", "112", "scales: 2", "4 values", "seeds: 2", "seeds: 3"):
        plan(study, plugin_index, fingerprint=lambda spec: "text", max_trials=111)


# ---------------------------------------------------------------------------------------------------------- tuning


def by_rate(**best: float) -> Any:
    """Scores by which each variant is best at one rate: so far from it as the logarithm of the rate tells."""

    def score(trial: Trial) -> float:
        return abs(math.log(trial.spec["optimizer"]["lr"] / best.get(trial.variant, 2e-3)))

    return score


def test_tuning_trials_are_planned_first_and_tuned_trials_after_their_records(plugin_index: Index) -> None:
    result = planned(plugin_index, tune=dict(TUNE))
    assert [setting.name for setting in result.settings] == [SAME, BEST]
    assert not result.is_complete
    assert len(result.trials) == 4 * 3 * 2 + 4 * 3
    assert [trial.seed for trial in result.trials[:24]] == [1_000_000, 1_000_001] * 12
    assert all(result.trials_of(variant.name, setting=BEST) == () for variant in result.variants)
    (line,) = pending_notes(result.tuned)
    assert "each at its best: 24 tuning trials have no record, and at most 12 follow" in line


def test_each_variant_runs_with_its_chosen_value(plugin_index: Index) -> None:
    score = by_rate(**{"attention=mqa": 8e-3, BASELINE: 2e-3})
    result = planned(plugin_index, score, tune=dict(TUNE))
    assert result.is_complete
    assert list(pending_notes(result.tuned)) == []
    chosen = {tuning.variant: tuning.chosen for tuning in result.tuned}
    assert chosen["attention=mqa"] == (("optimizer.lr", 8e-3),)
    assert chosen[BASELINE] == (("optimizer.lr", 2e-3),)
    assert [tuning.edge_keys for tuning in result.tuned[:2]] == [(), ("optimizer.lr",)]
    best = result.trials_of("attention=mqa", setting=BEST)
    assert [trial.spec["optimizer"]["lr"] for trial in best] == [8e-3] * 3
    assert best[0].matched_values == {"optimizer.lr": 8e-3}  # what the pair may differ in besides
    assert dict(best[0].changes) == {"attention": "mqa"}
    same = result.trials_of(BASELINE, setting=SAME), result.trials_of(BASELINE, setting=BEST)
    assert [trial.identity for trial in same[0]] == [trial.identity for trial in same[1]]
    assert len(result.trials) == 24 + 12 + 3


def test_the_value_of_the_base_is_always_a_candidate(plugin_index: Index) -> None:
    result = planned(plugin_index, tune={"optimizer.lr": [1e-3, 4e-3]})
    assert {tuple(tuning.cell[0][1] for tuning in tuned.candidates) for tuned in result.tuned} == {(2e-3, 1e-3, 4e-3)}
    assert {tuned.default for tuned in result.tuned} == {0}


def test_the_variants_own_value_wins_ties(plugin_index: Index) -> None:
    result = planned(plugin_index, lambda trial: 1.0, tune=dict(TUNE))
    assert {tuning.chosen for tuning in result.tuned} == {(("optimizer.lr", 2e-3),)}
    assert len(result.trials) == 24 + 12  # at its best is as it was


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_value_is_never_chosen(plugin_index: Index, bad: float) -> None:
    def score(trial: Trial) -> float:
        rate = trial.spec["optimizer"]["lr"]
        return bad if rate == 8e-3 and trial.seed == 1_000_001 else -rate  # the other seed would be the best of all

    result = planned(plugin_index, score, tune=dict(TUNE))
    assert {tuning.chosen for tuning in result.tuned} == {(("optimizer.lr", 2e-3),)}


def test_a_value_with_a_failed_trial_is_never_chosen(plugin_index: Index) -> None:
    def score(trial: Trial) -> float:
        rate = trial.spec["optimizer"]["lr"]
        missing = trial.variant == "attention=mqa" and rate == 8e-3 and trial.seed == 1_000_001
        return FAILED if missing else -rate

    result = planned(plugin_index, score, tune=dict(TUNE))
    chosen = {tuning.variant: dict(tuning.chosen or ()) for tuning in result.tuned}
    assert chosen.pop("attention=mqa") == {"optimizer.lr": 2e-3}
    assert all(value == {"optimizer.lr": 8e-3} for value in chosen.values())
    assert result.is_complete
    (out,) = [tried for tuned in result.tuned for tried in tuned.candidates if tried.failed]
    assert (out.failed, out.diverged, out.pending, out.mean) == (1, 0, 0, None)


@pytest.mark.parametrize(
    ("state", "out"), [("failed", True), ("out-of-memory", True), ("timeout", True), ("interrupted", False)]
)
def test_an_interrupted_trial_is_not_a_failure(state: str, out: bool) -> None:
    assert score_of(None, "m", {"state": state, "why": ""}) == (FAILED if out else None)
    assert score_of({"result": {"state": "done", "metrics": {"m": 2.5}}}, "m", {"state": state}) == 2.5


def test_a_variant_keeps_its_value_where_all_candidates_diverged(plugin_index: Index) -> None:
    result = planned(plugin_index, lambda trial: math.nan, tune=dict(TUNE))
    assert {tuning.best for tuning in result.tuned} == {1}
    assert {tuning.edge_keys for tuning in result.tuned} == {()}


def test_higher_may_be_better(plugin_index: Index) -> None:
    metric = {"name": "val/mlm/accuracy", "better": "higher"}
    result = planned(plugin_index, lambda trial: trial.spec["optimizer"]["lr"], tune=dict(TUNE), metric=metric)
    assert {tuning.chosen for tuning in result.tuned} == {(("optimizer.lr", 8e-3),)}


def test_nothing_is_chosen_while_one_trial_has_no_record(plugin_index: Index) -> None:
    def score(trial: Trial) -> float | None:
        late = trial.variant == "norm=rmsnorm" and trial.seed == 1_000_001
        return None if late and trial.spec["optimizer"]["lr"] == 5e-4 else 1.0

    result = planned(plugin_index, score, tune=dict(TUNE))
    assert [tuning.variant for tuning in result.tuned if tuning.best is None] == ["norm=rmsnorm"]
    assert result.trials_of("norm=rmsnorm", setting=BEST) == ()
    assert len(result.trials_of("attention=mqa", setting=BEST)) == 3
    assert [variant.name for variant in result.setting(BEST).variants] == [variant.name for variant in result.variants]


def test_a_component_is_tuned_with_the_options_that_it_has(plugin_index: Index) -> None:
    """The optimizer itself may vary: then each variant has its own best rate."""
    vary = {"optimizer": [{"name": "sgd", "lr": 1e-4}]}
    name = "optimizer=sgd(lr=0.0001)"
    result = planned(plugin_index, by_rate(**{name: 5e-4}), vary=vary, tune=dict(TUNE))
    tuned = next(tuning for tuning in result.tuned if tuning.variant == name)
    assert tuned.candidates[tuned.default].cell == (("optimizer.lr", 1e-4),)
    assert tuned.chosen == (("optimizer.lr", 5e-4),)
    assert result.trials_of(name, setting=BEST)[0].spec["optimizer"]["name"] == "sgd"


def test_a_variant_that_equals_the_tuned_baseline_is_excluded(plugin_index: Index) -> None:
    vary = {"optimizer": [{"name": "adamw", "lr": 5e-4}]}
    result = planned(plugin_index, lambda trial: trial.spec["optimizer"]["lr"], vary=vary, tune=dict(TUNE))
    assert [variant.name for variant in result.setting(BEST).variants] == [BASELINE]
    assert [cell.reason for cell in result.excluded] == [
        "at its best it is the same spec as baseline, in each at its best"
    ]


def test_stages_are_tuned_and_scaled_as_well(plugin_index: Index) -> None:
    stages = {"pretrain": {"budget": {"steps": 5}}, "finetune": {"budget": {"steps": 3}}}
    scales = {"s": {"dims.width": 32}, "m": {"dims.width": 64}}
    result = planned(
        plugin_index, by_rate(), stages=stages, scales=scales, tune={"finetune.optimizer.lr": [1e-3, 2e-3]}
    )
    identities = {trial.identity: trial for trial in result.trials}
    visited: set[str] = set()
    for trial in result.trials:
        assert not trial.parent_id or trial.parent_id in visited  # what begins from another comes after it
        assert not trial.parent_id or identities[trial.parent_id].seed == trial.seed
        visited.add(trial.identity)
    pretrained = {trial.parent_id for tuned in result.tuned for tuning in tuned.candidates for trial in tuning.trials}
    assert len(pretrained) == 2 * 4 * 2  # one for each scale, variant and seed, whatever the values tried after it


def test_a_score_is_the_metric_of_the_record() -> None:
    assert score_of(None, "m") is None
    assert score_of({"result": {"state": "done", "metrics": {"m": 2.5}}}, "m") == 2.5
    for metrics, state in (({"m": "nan"}, "done"), ({"m": 1e300}, "done"), ({}, "done"), ({"m": 2.0}, "diverged")):
        assert math.isnan(score_of({"result": {"state": state, "metrics": metrics}}, "m") or 0.0)


def test_replanning_reads_the_studys_store(tmp_path: Path) -> None:
    import paribus

    result = paribus.study({**STUDY, "tune": dict(TUNE)}, store=tmp_path)
    assert result.replan().plan.trials == result.plan.trials
    assert paribus.study(dict(STUDY), store=tmp_path).replan().plan.is_complete
