"""What a swap does: to an untrained model, to its training, and whether each thing that it sets has a say."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.errors import listed
from paribus.report.certificates.pair import TRAINING, Finding, Pair
from paribus.report.certificates.tensors import MOST, Common, names
from paribus.studies.differences import MISSING, at, touches


def effect(pair: Pair) -> Iterator[Finding]:
    """The swap did something: to an untrained model's outputs, or at least to its training.

    Outputs of other examples would differ whatever was swapped, and say nothing.
    """
    measured_alike = pair.equal("validation")
    if measured_alike and not pair.equal("outputs"):
        yield "confirmed", "outputs differ"
    elif pair.alike and pair.equal("losses") and not _ends_otherwise(pair):
        yield "failure", "changed nothing: the outputs at step 0 and the loss of every step are the baseline's"
    elif touches(pair.keys, TRAINING) or not measured_alike:
        yield "confirmed", "training differs" if pair.alike else "same outputs at step 0"
    else:
        yield "side effect", "outputs differ only once trained" if pair.alike else "same outputs at step 0"


def _ends_otherwise(pair: Pair) -> bool:
    """Whether what changes the training alone changed the model: by the last step, of which no loss tells."""
    before, after = ((entry.result.get("digests") or {}).get("parameters") for entry in pair)
    return touches(pair.keys, TRAINING) and before != after


def options(pair: Pair) -> Iterator[Finding]:
    """Each thing that is set beside others has a say by itself: it was put back, and another model came of it."""
    for entry in pair:
        for path in entry.provenance.get("ignored") or ():
            value = at(entry.spec, path)
            yield (
                "failure",
                f"ignored option: `{path}` is {value} in {entry.variant}, and another value changes nothing",
            )
    variant = pair.variant
    for path in variant.provenance.get("dead") or ():
        there = (variant.trial.get("instead") or {}).get(path, MISSING)
        if path in pair.keys and at(pair.baseline.spec, path) == there:
            yield "failure", f"changed nothing: `{path}` does what the baseline's does, and other changes are beside it"
    idle = variant.provenance.get("idle") or ()
    for path in idle:
        yield "side effect", f"at its default `{path}` would do the same here"
    if asked := [path for path in variant.provenance.get("asked") or () if path not in idle]:
        yield "confirmed", f"{listed(asked, MOST)} {'has' if len(asked) == 1 else 'have'} a say"


def gradients(pair: Pair, shared: Common) -> Iterator[Finding]:
    """What is trained with the baseline is trained with the variant, and so is what the swap brought.

    A tensor that no gradient reaches counts among the parameters and does nothing. Where a swap has brought it, that is
    told: an expert may wait in vain to be asked. It is a failure where none of what an architecture brought gets any,
    as the swap then sits beside the model, and where the baseline trains the very tensor: then the variant is held back
    by more than what was meant.
    """
    baseline, variant = (frozenset(entry.certificate["no_gradient"]) for entry in pair)
    excused = touches(pair.keys, TRAINING)
    frozen = frozenset() if excused else (variant - baseline) & shared.alike
    if frozen:
        yield "failure", f"not trained: no gradient ever reaches {names(frozen)}, which the baseline trains"
    if variant - baseline - frozen:
        yield "side effect", f"no gradient reaches {names(variant - baseline - frozen)}"
    if variant & baseline:
        yield "side effect", f"in both no gradient reaches {names(variant & baseline)}"
    if shared.brought and shared.brought <= variant and not excused:
        yield "failure", f"untrained: no gradient reaches anything that the swap brought: {names(shared.brought)}"
