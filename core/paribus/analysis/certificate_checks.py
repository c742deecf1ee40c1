"""Checks of a fairness certificate: effect of a swap, options, gradients, and training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from paribus.analysis.first_step_findings import first_step_findings
from paribus.analysis.tensor_comparison import MAX_PATHS, TensorComparison, short_names
from paribus.analysis.trial_pair import DATA, TRAINING, Finding, TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.evidence.property_names import UNCHECKED, withholds_verdict
from paribus.specs.diff import MISSING, touches
from paribus.specs.tree import get_path

WHOLE_MODELS: Final = (
    "model",
    "all modules",
    "optimizer",
    "learning rate",
)  # names in a record of hooks that are not on a single module


def effect_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield whether the swap changed the outputs of the untrained model, or only its training.

    Outputs are compared only if both trials have the same validation examples.
    """
    same_examples = pair.equal("validation")
    if same_examples and not pair.equal("outputs"):
        yield "confirmed", "outputs differ"
    elif pair.same_length and pair.equal("losses") and not _final_parameters_differ(pair):
        yield "failure", "changed nothing: the outputs at step 0 and the loss of every step equal the baseline's"
    elif touches(pair.varied, TRAINING) or not same_examples:
        yield "confirmed", "training differs" if pair.same_length else "same outputs at step 0"
    else:
        yield "side effect", "outputs differ only once trained" if pair.same_length else "same outputs at step 0"


def _final_parameters_differ(pair: TrialPair) -> bool:
    """Return whether an option of training changed the final parameters; no loss is measured after the last step."""
    baseline, variant = ((entry.result.get("digests") or {}).get("parameters") for entry in pair)
    return touches(pair.varied, TRAINING) and baseline != variant


def option_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield options of a variant with and without an effect on the outputs."""
    for entry in pair:
        for path in entry.provenance.get("ignored") or ():
            value = get_path(entry.spec, path, MISSING)
            yield (
                "failure",
                f"ignored option: `{path}` is {value} in {entry.variant}, but other values have the same effect",
            )
    variant = pair.variant
    for path in variant.provenance.get("same_as_baseline") or ():
        variant_value = (variant.trial.get("baseline_values") or {}).get(path, MISSING)
        if path in pair.varied and get_path(pair.baseline.spec, path, MISSING) == variant_value:
            yield (
                "failure",
                f"changed nothing: `{path}` has the same effect as the baseline's, and only the other changes remain",
            )
    neutral = variant.provenance.get("neutral") or ()
    for path in neutral:
        yield "side effect", f"`{path}` has the same effect here as its default"
    without_effect = {*neutral, *(variant.provenance.get("ignored") or ())}
    if checked := [path for path in variant.provenance.get("probed") or () if path not in without_effect]:
        yield "confirmed", f"{join_names(checked, MAX_PATHS)} {'changes' if len(checked) == 1 else 'change'} the output"


def gradient_findings(pair: TrialPair, shared: TensorComparison) -> Iterator[Finding]:
    """Yield parameters without gradients in the variant or in both trials.

    Such a parameter is a side effect: an expert may never be selected. It is a failure if the baseline trains the same
    tensor, as then more differs than was varied, or if no tensor that the swap introduced gets a gradient, as then the
    swap is not connected to the model. Neither is a failure if the study varies an option of training.
    """
    baseline, variant = (frozenset(entry.certificate["no_gradient"]) for entry in pair)
    is_excused = touches(pair.varied, TRAINING)
    frozen = frozenset() if is_excused else (variant - baseline) & shared.shared
    if frozen:
        yield "failure", f"not trained: no gradient ever reaches {short_names(frozen)}, which the baseline trains"
    if variant - baseline - frozen:
        yield "side effect", f"no gradient reaches {short_names(variant - baseline - frozen)}"
    if variant & baseline:
        yield "side effect", f"no gradient in either trial reaches {short_names(variant & baseline)}"
    if shared.introduced and shared.introduced <= variant and not is_excused:
        yield (
            "failure",
            f"untrained: no gradient reaches any tensor that the swap added: {short_names(shared.introduced)}",
        )


def step_findings(pair: TrialPair, shared: TensorComparison) -> Iterator[Finding]:
    """Yield findings on the training steps of two trials.

    A trial is trained differently from the other one if it changes a parameter outside of the optimizer, or has fewer
    targets.
    """
    yield from first_step_findings(pair)
    for entry in pair:
        yield from _property_findings(entry)
    baseline, variant = (frozenset(entry.certificate.get("changed_tensors") or ()) for entry in pair)
    differing = (baseline ^ variant) & shared.shared
    if differing:
        yield "failure", f"changed outside of the optimizer: {short_names(differing)}, in one of the two trials only"
    if changed_in_both := (baseline | variant) - differing:
        yield "side effect", f"{short_names(changed_in_both)} changed outside of the optimizer"
    yield from _hook_findings(pair, shared)
    yield from _target_findings(pair)
    skipped = [int(entry.certificate.get("skipped_steps") or 0) for entry in pair]
    if any(skipped):
        yield "side effect", f"{skipped[1]:,} steps skipped by overflow in float16, and {skipped[0]:,} of the baseline"


def _property_findings(entry: TrialEntry) -> Iterator[Finding]:
    """Yield the properties that the model of a trial lacks, where a component does not come with Paribus."""
    properties = entry.certificate.get("properties")
    if properties is None:
        return
    for name, fault in properties.items():
        if name == UNCHECKED:
            yield "side effect", f"not all properties of {entry.variant} were checked ({fault})"
        elif withholds_verdict(name):
            yield "failure", f"{name}: {entry.variant}: {fault}"
        else:
            yield "side effect", f"{entry.variant} {name}: {fault}"
    if not properties:
        yield "confirmed", f"properties of {entry.variant} hold"


def _hook_findings(pair: TrialPair, shared: TensorComparison) -> Iterator[Finding]:
    """Yield hooks on tensors and modules that the study did not vary, in one of the two trials only.

    Such hooks change outputs or gradients of other components. A component may have hooks on its own tensors.
    """
    baseline, variant = (frozenset(entry.certificate.get("hooks") or ()) for entry in pair)
    if touches(pair.varied, ("topology", "optimizer")):
        return
    varied_words = {word for key in pair.varied for word in key.split(".")}
    hooked = [
        path
        for path in sorted(baseline ^ variant)
        if varied_words.isdisjoint(path.split("."))
        and (
            path in shared.shared or path in WHOLE_MODELS or any(name.startswith(f"{path}.") for name in shared.shared)
        )
    ]
    if hooked:
        yield "failure", f"other training: hooks on {join_names(hooked, MAX_PATHS)} in one of the two trials only"


def _target_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield loss terms whose number of targets differs, although both trials have the same examples."""
    if touches(pair.varied, (*DATA, "evaluate")):
        return
    baseline, variant = (entry.certificate.get("targets") or {} for entry in pair)
    for name, expected, count in _common_counts(baseline.get("evaluation") or {}, variant.get("evaluation") or {}):
        yield "failure", f"other targets: {name} has {count:,} in evaluation, and {expected:,} in the baseline"
    steps = [step for step in baseline.get("training") or () if step in (variant.get("training") or ())]
    for step in sorted(steps, key=int):
        differing = list(_common_counts(baseline["training"][step], variant["training"][step]))
        for name, expected, count in differing:
            yield "failure", f"other targets: {name} has {count:,} up to step {step}, and {expected:,} in the baseline"
        if differing:
            return


def _common_counts(baseline: Mapping[str, float], variant: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield the loss terms that both trials have with different numbers of targets."""
    for name in baseline:
        if name in variant and baseline[name] != variant[name]:
            yield name, baseline[name], variant[name]
