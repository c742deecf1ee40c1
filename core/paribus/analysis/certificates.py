"""Fairness certificates: two trials differ in the options that the study varied, and in nothing else.

A failed certificate withholds the verdict. A side effect is another change that the varied option causes for a known
reason: it is reported, and does not fail the certificate. The certificate of a pair also covers the trials that both
start from, because an unfair pretraining makes a fine-tuning unfair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, final

from paribus.analysis.certificate_checks import effect_findings, gradient_findings, option_findings, step_findings
from paribus.analysis.program_findings import (
    KEYED,
    UNWITNESSED,
    judged,
    measured_steps,
    program_findings,
    unwitnessed_by_pair,
    weight_findings,
    witness_findings,
    witnessed_tensors,
)
from paribus.analysis.tensor_comparison import KINDS, TensorComparison, compare_tensors, short_names
from paribus.analysis.trial_pair import DATA, TIME_LIMIT, Finding, TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.planning.comparability import BUDGET
from paribus.specs.diff import MISSING, covered, differences, holds, touches
from paribus.specs.program_spec import is_program
from paribus.specs.tree import get_path

MAX_SEEDS: Final = 4  # seeds named in a finding, which is one line of text
LOADED_DIFFERENTLY: Final = " loaded differently"  # end of the side effect of tensors that come from two saved models


@final
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The findings on the pairs of one variant. A failure is `subject: detail`."""

    variant: str
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    side_effects: tuple[str, ...]
    confirmed: tuple[str, ...]
    equal_tensors: int  # tensors whose initial values equal the baseline's bitwise
    total_tensors: int  # tensors of the baseline
    differing_paths: tuple[str, ...]  # dotted paths of the resolved specs
    tensors: Mapping[str, tuple[str, ...]]  # kind of `KINDS` -> paths of the tensors that are not equal
    unwitnessed: tuple[str, ...] = ()  # what a program does not show, so that it is not certified
    effects: tuple[str, ...] = ()  # what differs besides the model in trials of a program, as `effects` names it
    hint: str = ""  # what to state in the study if these effects are meant
    unrepeated: str = ""  # why it is not known that an equal trial of a program has equal values

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def mark(self) -> str:
        """✓ for a pair that is fair in all that is checked, ✗ for one that is not, · where not all is known."""
        return "✗" if self.failures else "·" if self.unwitnessed or self.unrepeated else "✓"

    @property
    def reason(self) -> str:
        """The subjects of the failures, for the text of a withheld verdict."""
        return "; ".join(dict.fromkeys(failure.partition(":")[0] for failure in self.failures))

    @property
    def text(self) -> str:
        """All findings in one line."""
        counted = (f"{self.equal_tensors}/{self.total_tensors} tensors equal at step 0",) if self.total_tensors else ()
        is_witnessed = len(self.unwitnessed) < len(UNWITNESSED)  # otherwise, a warning says it once
        unknown = (f"not witnessed: {join_names(self.unwitnessed)}",) if self.unwitnessed and is_witnessed else ()
        unrepeated = (self.unrepeated,) if self.unrepeated else ()
        hint = (self.hint,) if self.hint else ()
        return "; ".join((*self.failures, *hint, *counted, *unknown, *unrepeated, *self.side_effects, *self.confirmed))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ok": self.ok, "text": self.text, "tensors": dict(self.tensors)}


def certify(baseline: TrialEntry, variant: TrialEntry) -> Certificate:
    """Return the certificate of one pair of trials with records; either may have diverged."""
    if baseline.record is None or variant.record is None:
        missing = " and ".join(
            f"{entry.variant} (seed {entry.seed})" for entry in (baseline, variant) if not entry.record
        )
        raise ValueError(f"`certify` needs two records, but {missing} has none.")
    pair = TrialPair(baseline, variant)
    if is_program(baseline.spec):
        tensors = witnessed_tensors(pair)
        findings = (
            _spec_findings(pair),
            program_findings(pair),
            _tensor_findings(tensors, KEYED),
            weight_findings(pair, tensors),
            witness_findings(pair),
            measured_steps(pair),
        )
        judged_findings, effects = judged(pair, chain(*findings))
        certificate = _certificate(pair, tensors, judged_findings, unwitnessed_by_pair(pair, tensors))
        return replace(certificate, effects=effects)
    same_scheme = not touches(pair.varied, ("initialisation",))
    tensors = compare_tensors(baseline.certificate["tensors"], variant.certificate["tensors"], scheme=same_scheme)
    all_findings = (
        *_spec_findings(pair),
        *_tensor_findings(tensors),
        *_source_findings(pair),
        *_data_findings(pair),
        *option_findings(pair),
        *effect_findings(pair),
        *_optimizer_findings(pair, tensors),
        *gradient_findings(pair, tensors),
        *step_findings(pair, tensors),
    )
    return _certificate(pair, tensors, all_findings)


def _certificate(
    pair: TrialPair, tensors: TensorComparison, all_findings: Sequence[Finding], unwitnessed: tuple[str, ...] = ()
) -> Certificate:
    findings = list(dict.fromkeys(all_findings))
    texts = {
        kind: tuple(text for finding_kind, text in findings if finding_kind == kind)
        for kind in ("failure", "side effect", "confirmed")
    }
    return Certificate(
        variant=pair.variant.variant,
        seeds=(pair.variant.seed,),
        failures=texts["failure"],
        side_effects=texts["side effect"],
        confirmed=texts["confirmed"],
        equal_tensors=len(tensors.equal),
        total_tensors=tensors.total,
        differing_paths=tuple(difference.path for difference in differences(pair.baseline.spec, pair.variant.spec)),
        tensors={kind: getattr(tensors, kind) for kind in KINDS if kind != "equal"},
        unwitnessed=unwitnessed,
    )


def merge_certificates(certificates: Sequence[Certificate]) -> Certificate:
    """Merge the certificates of all seeds of a variant. A finding that not all seeds share is listed with its seeds."""
    if not certificates:
        raise ValueError("`certificates` must hold at least one, but is empty.")
    worst = min(certificates, key=lambda certificate: certificate.equal_tensors)
    return Certificate(
        variant=worst.variant,
        seeds=tuple(seed for certificate in certificates for seed in certificate.seeds),
        failures=_merged(certificates, "failures"),
        side_effects=_merged(certificates, "side_effects"),
        confirmed=_merged(certificates, "confirmed")
        if any(certificate.failures or certificate.effects for certificate in certificates)
        else tuple(dict.fromkeys(text for certificate in certificates for text in certificate.confirmed)),
        equal_tensors=worst.equal_tensors,
        total_tensors=worst.total_tensors,
        differing_paths=tuple(
            dict.fromkeys(path for certificate in certificates for path in certificate.differing_paths)
        ),
        tensors=worst.tensors,
        unwitnessed=tuple(dict.fromkeys(name for certificate in certificates for name in certificate.unwitnessed)),
        effects=tuple(dict.fromkeys(name for certificate in certificates for name in certificate.effects)),
    )


def _merged(certificates: Sequence[Certificate], field: str) -> tuple[str, ...]:
    """Return the findings of all certificates, with the seeds of those that not all share."""
    seeds_by_text: dict[str, list[int]] = {}
    for certificate in certificates:
        for text in getattr(certificate, field):
            seeds_by_text.setdefault(text, []).extend(certificate.seeds)
    total = sum(len(certificate.seeds) for certificate in certificates)
    return tuple(
        text if len(seeds) == total else f"{text} (seed {join_names(seeds, MAX_SEEDS)} only)"
        for text, seeds in seeds_by_text.items()
    )


def _spec_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield ignored options, differences that the study did not vary, and specs that are not those of their trials."""
    for entry in pair:
        for difference in differences(entry.trial["spec"], entry.spec):
            yield "failure", f"another spec: the spec of {entry.variant} differs from that of its trial: {difference}"
        overrides = {**entry.overrides, **entry.budget_overrides}
        for key, changed in overrides.items():
            expected = _without_overridden(changed, key, overrides)
            value = get_path(entry.spec, key, MISSING)
            if value is MISSING and expected is not None:
                yield "failure", f"ignored option: `{key}` is not in the resolved spec of {entry.variant}"
            elif not holds(value, expected):
                yield "failure", f"ignored option: expected {expected} for `{key}` in {entry.variant}, got {value}"
    if len({pair.baseline.seed, pair.variant.seed, pair.baseline.spec["seed"], pair.variant.spec["seed"]}) > 1:
        yield "failure", f"other seed: {pair.baseline.spec['seed']} against {pair.variant.spec['seed']}"
    spec_differences = [item for item in differences(pair.baseline.spec, pair.variant.spec) if item.path != "seed"]
    if all(covered(difference.path, pair.budget_overrides) for difference in spec_differences):
        yield "failure", "changed nothing: the resolved specs are equal"
    unplanned = [
        difference
        for difference in spec_differences
        if not covered(difference.path, pair.varied | pair.budget_overrides)
    ]
    if unplanned:
        suffix = f", and {len(unplanned) - 1} more" if len(unplanned) > 1 else ""
        yield "failure", f"another difference: the study did not vary this: {unplanned[0]}{suffix}"


def _without_overridden(value: Any, path: str, overrides: Mapping[str, Any]) -> Any:
    """Return the value that a study set, without the options that it also set by keys of their own, as a tuned one."""
    if not isinstance(value, Mapping):
        return value
    inner = {key: f"{path}.{key}" for key in value}
    return {key: _without_overridden(value[key], inner[key], overrides) for key in value if inner[key] not in overrides}


def _tensor_findings(tensors: TensorComparison, hint: str = "") -> Iterator[Finding]:
    """Yield the tensors whose initial values differ."""
    if tensors.leaked:
        count = f"{len(tensors.leaked)} of {tensors.total} tensors"
        yield (
            "failure",
            f"leaked seed: {count} have other initial weights, although path, seed and shape agree: "
            f"{short_names(tensors.leaked)}{hint}",
        )
    for change in tensors.changes:
        yield "side effect", change


def _source_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield the tensors that the variant loads, converts or adds to the saved model that it starts from."""
    source = pair.variant.result.get("from")
    if source is None:
        return
    yield "confirmed", f"{len(source['kept'])} tensors loaded from the saved model"
    paths_by_conversion: dict[str, list[str]] = {}
    for path, conversion in source["converted"].items():
        paths_by_conversion.setdefault(conversion, []).append(path)
    for conversion, paths in paths_by_conversion.items():
        yield "side effect", f"{short_names(paths)} converted ({conversion})"
    if source["new"]:
        yield "side effect", f"{short_names(source['new'])} not in the saved model"


def _data_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield differences in the examples, their order, corruption and number."""
    is_varied = touches(pair.varied, DATA)
    budget = pair.steps, (pair.baseline.result["tokens"], pair.variant.result["tokens"])
    if pair.baseline.done and pair.variant.done:
        for unit, (baseline, variant) in zip(("steps", "tokens"), budget, strict=True):
            if baseline != variant:
                is_excused = touches(pair.varied | pair.budget_overrides, BUDGET)
                text = (
                    f"{baseline:,} {unit} against {variant:,}"
                    if TIME_LIMIT not in pair.budget_overrides
                    else "stopped by time, after different steps"
                )
                yield ("side effect", text) if is_excused else ("failure", f"other budget: {text}")
    if not pair.same_length:
        yield from _common_batches(pair, is_varied)
        return
    for digest, unit in (("order", "other examples"), ("batches", "other batches")):
        if not pair.equal(digest):
            yield (("side effect", unit) if is_varied else ("failure", f"{unit}: not equal at each step"))
            return
    yield "confirmed", "same batches"


def _common_batches(pair: TrialPair, is_varied: bool) -> Iterator[Finding]:
    """Compare the batches as far as both ran; digests are recorded at each power of two."""
    baseline, variant = (entry.certificate.get("batch_digests") or {} for entry in pair)
    common_steps = [step for step in baseline if step in variant]
    if not common_steps:
        return
    last_step = max(common_steps, key=int)
    if baseline[last_step] == variant[last_step]:
        yield "confirmed", f"same batches for {int(last_step):,} steps"
    else:
        yield (
            ("side effect", "other batches") if is_varied else ("failure", "other batches: not equal to the baseline's")
        )


def _optimizer_findings(pair: TrialPair, tensors: TensorComparison) -> Iterator[Finding]:
    """Yield tensors that are trained with another learning rate or weight decay, and how many are frozen."""
    baseline, variant = (entry.certificate.get("optimizer_options") or {} for entry in pair)
    if touches(pair.varied, ("freeze",)) and baseline and variant:
        trained = sum(path in variant for path in tensors.shared)
        yield "confirmed", f"{trained} of {len(tensors.shared)} tensors trained"
    if not baseline or not variant or touches(pair.varied, ("optimizer", "schedule", "trainer")):
        return
    differing = [
        path
        for path in sorted(tensors.shared)
        if path in baseline and path in variant and baseline[path] != variant[path]
    ]
    if differing:
        yield (
            "failure",
            f"trained differently: {short_names(differing)} have other optimizer options than in the baseline",
        )
    rates, other_rates = (entry.certificate.get("rates") or {} for entry in pair)
    changed = [step for step in rates if step in other_rates and rates[step] != other_rates[step]]
    if changed and pair.same_length:
        yield "failure", f"other learning rates: not the baseline's at step {int(min(changed, key=int)) + 1:,}"


def certify_chain(baseline: TrialEntry, variant: TrialEntry) -> Certificate:
    """Return the certificate of a pair, including the pairs of trials that the two start from.

    Its tensors are those of the first pair, because only the first trials draw initial values. The certificate of an
    average is that of all its tasks.
    """
    if variant.tasks:
        return _certify_tasks(baseline, variant)
    certificate = certify(baseline, variant)
    baseline_parent, variant_parent = baseline.parent, variant.parent
    if (
        baseline_parent is None
        or variant_parent is None
        or baseline_parent.trial["identity"] == variant_parent.trial["identity"]
    ):
        return certificate
    if baseline_parent.record is None or variant_parent.record is None:
        return certificate
    earlier = certify_chain(baseline_parent, variant_parent)
    stage = str(variant_parent.trial.get("stage") or "before")
    return replace(
        earlier,
        variant=certificate.variant,
        failures=(*(_with_stage(stage, text) for text in earlier.failures), *certificate.failures),
        side_effects=(
            *(_with_stage(stage, text) for text in earlier.side_effects),
            *(
                text
                for text in certificate.side_effects
                if not text.endswith(LOADED_DIFFERENTLY) and text not in earlier.side_effects
            ),
        ),
        confirmed=certificate.confirmed,
        differing_paths=tuple(dict.fromkeys((*earlier.differing_paths, *certificate.differing_paths))),
    )


def _certify_tasks(baseline: TrialEntry, variant: TrialEntry) -> Certificate:
    """Return the certificate of two averages over tasks: each finding once, with its task unless all tasks have it."""
    certificates = {
        other.task: certify_chain(task.entry, other.entry)
        for task, other in zip(baseline.tasks, variant.tasks, strict=True)
    }

    def merged(kind: str) -> tuple[str, ...]:
        texts = [(task, text) for task, certificate in certificates.items() for text in getattr(certificate, kind)]
        counts = Counter(text for _, text in texts)
        everywhere = len(certificates)
        named = (text if counts[text] == everywhere else _with_stage(task, text) for task, text in texts)
        return tuple(dict.fromkeys(named))

    return replace(
        next(iter(certificates.values())),
        failures=merged("failures"),
        side_effects=merged("side_effects"),
        confirmed=merged("confirmed"),
        differing_paths=tuple(
            dict.fromkeys(path for certificate in certificates.values() for path in certificate.differing_paths)
        ),
    )


def _with_stage(stage: str, text: str) -> str:
    """Add the stage of an earlier trial to a finding: `leaked seed (in pretrain): …`."""
    subject, colon, detail = text.partition(":")
    return text if subject.endswith(")") and "(in " in subject else f"{subject} (in {stage}){colon}{detail}"
