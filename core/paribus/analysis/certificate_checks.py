"""Checks of a fairness certificate: initial tensors, options, gradients, and the effect of a swap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.specs.diff import MISSING, touches
from paribus.specs.tree import get_path

Tensors = Mapping[str, Mapping[str, Any]]  # path -> the tensor as the record describes it

KINDS: Final = ("equal", "scaled", "reinitialised", "recomputed", "reshaped", "removed", "added", "loaded", "leaked")
MAX_PATHS: Final = 6  # paths named in a finding, which is one line of text
WHOLE_MODELS: Final = ("model", "all modules")  # names in a record of hooks that are not on a single module
_LEAVES: Final = ("weight", "bias")
_MAX_WORDS: Final = 3  # paths outside of layers are this short: body.norm, body.position.table
_SUBLAYERS: Final = ("attention", "cross", "feedforward")  # alone, these would name the whole component


@final
@dataclass(frozen=True, kw_only=True)
class TensorComparison:
    """The paths of the tensors of baseline and variant, by how their initial values compare."""

    equal: tuple[str, ...]  # bitwise
    scaled: tuple[str, ...]  # the same draws at another scale
    reinitialised: tuple[str, ...]  # the same draws, with another initialisation scheme
    recomputed: tuple[str, ...]  # buffers that were computed with other options
    reshaped: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    loaded: tuple[str, ...]  # loaded from a saved model in one trial only, or converted differently
    leaked: tuple[str, ...]  # different values without a reason in the records
    total: int  # tensors of the baseline

    @property
    def introduced(self) -> frozenset[str]:
        """Tensors that only the variant has, or that have another shape in the variant."""
        return frozenset(self.added) | frozenset(self.reshaped)

    @property
    def shared(self) -> frozenset[str]:
        """Tensors that both trials have with the same shape."""
        return frozenset((*self.equal, *self.scaled, *self.reinitialised, *self.recomputed, *self.loaded, *self.leaked))

    @property
    def changes(self) -> tuple[str, ...]:
        """Descriptions of the tensors that are not equal."""
        groups = (
            (self.reshaped, "reshaped"),
            (self.added, "added"),
            (self.removed, "removed"),
            (self.scaled, "at another scale"),
            (self.reinitialised, "initialised differently"),
            (self.recomputed, "computed differently"),
            (self.loaded, "loaded differently"),
        )
        counts = Counter(name for paths, _ in groups for name in _short(paths))
        ambiguous = {name for name, count in counts.items() if count > 1}
        return tuple(f"{short_names(paths, ambiguous)} {change}" for paths, change in groups if paths)


def compare_tensors(baseline: Tensors, variant: Tensors, *, scheme: bool) -> TensorComparison:
    """Classify the initial tensors of two trials. With `scheme`, both have the same initialisation scheme.

    Tensors with the same path, seed and shape have the same draws. With the same scheme, their values may differ only
    by a scale: their role, the gain of the placement and the size of the stack set it, and are in `initialisation`.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in baseline.keys() | variant.keys():
        kinds[_kind(baseline.get(path), variant.get(path), scheme)].append(path)
    return TensorComparison(**{kind: tuple(sorted(paths)) for kind, paths in kinds.items()}, total=len(baseline))


def _kind(baseline: Mapping[str, Any] | None, variant: Mapping[str, Any] | None, scheme: bool) -> str:
    if baseline is None or variant is None:
        return "added" if baseline is None else "removed"
    if baseline["shape"] != variant["shape"]:
        return "reshaped"
    if baseline.get("origin") != variant.get("origin"):
        return "equal" if baseline["value"] == variant["value"] else "loaded"
    if baseline["value"] == variant["value"]:
        return "leaked" if baseline["draws"] != variant["draws"] else "equal"
    if baseline["draws"] != variant["draws"] or baseline["initialisation"] == variant["initialisation"]:
        return "leaked"
    return _reason(baseline, variant, scheme)


def _reason(baseline: Mapping[str, Any], variant: Mapping[str, Any], scheme: bool) -> str:
    """Return the kind of two tensors whose values differ although their draws are the same."""
    if baseline.get("buffer") or variant.get("buffer"):
        return "recomputed"
    if not scheme:
        return "reinitialised"
    # A constant initial tensor is not drawn, and its record has no signs.
    is_drawn = baseline["signs"] and variant["signs"]
    return "leaked" if is_drawn and baseline["signs"] != variant["signs"] else "scaled"


def short_names(paths: Iterable[str], ambiguous: Collection[str] = ()) -> str:
    """Return short names of paths: `k, v` are the weights and biases of keys and values of all layers.

    A name in `ambiguous`, which another group has too, gets one more word of its path.
    """
    return join_names(
        dict.fromkeys(long_name if name in ambiguous else name for name, long_name in _short(paths).items()), MAX_PATHS
    )


def _short(paths: Iterable[str]) -> dict[str, str]:
    """Map the short name of each path to a longer one."""
    all_paths = set(paths)
    short: dict[str, str] = {}
    for path in sorted(all_paths):
        stem, _, leaf = path.rpartition(".")
        words = [word for word in stem.split(".") if not word.isdigit()] if leaf in _LEAVES else path.split(".")
        last_two = ".".join(words[-2:])
        name = last_two if words[-1] in _SUBLAYERS or len(words) <= _MAX_WORDS else words[-1]
        suffix = ".bias" if leaf == "bias" and f"{stem}.weight" not in all_paths else ""
        short.setdefault(name + suffix, last_two + suffix)
    return short


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

    A step that differs in another process state is not reproducible. A trial is trained differently from the other one
    if it changes a parameter outside of the optimizer, or has fewer targets.
    """
    for entry in pair:
        yield from _repetition_findings(entry)
    yield from _rehearsal_findings(pair)
    yield from _first_step_findings(pair)
    draws = [bool((entry.certificate.get("first_step") or {}).get("draws")) for entry in pair]
    if draws == [False, True] and not touches(pair.varied, ("dropout",)):
        yield "side effect", "random numbers in training"
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
        yield "failure", f"other gradients: hooks on {join_names(hooked, MAX_PATHS)} in one of the two trials only"


def _repetition_findings(entry: TrialEntry) -> Iterator[Finding]:
    """Yield the findings of the repeated first step of a trial."""
    step = entry.certificate.get("first_step") or {}
    if "unchecked" in step:
        yield "side effect", f"first step of {entry.variant} not repeated"
    if results := step.get("unrepeatable"):
        text = f"{join_names(results)} of the first step of {entry.variant} with another clock and other global seeds"
        cause = ", or it writes gradients in the backward pass" if results == ["gradients"] else ""
        yield "failure", f"not repeatable: other {text}{cause}"
    generators = sorted({*(step.get("generators") or ()), *(entry.certificate.get("generators") or ())})
    if used_generators := [name for name in generators if name != IN_EVALUATION]:
        yield (
            "failure",
            f"other random numbers: {entry.variant} uses global generators of {join_names(used_generators)}",
        )
    if IN_EVALUATION in generators:
        yield "failure", f"random numbers in evaluation: {entry.variant} draws from torch's global generator"


def _rehearsal_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield whether the first step of each trial is bitwise the same in another process and environment."""
    repeated = []
    for entry in pair:
        differing = _rehearsal_difference(entry)
        if differing == "":
            repeated.append(entry.variant)
        elif differing is not None:
            text = f"{differing} of the first step of {entry.variant} with another hash seed, time zone and environment"
            yield "failure", f"not repeatable: other {text}"
        elif "failure" in (entry.rehearsal or {}):
            yield "side effect", f"first step of {entry.variant} not repeated in another process"
    if repeated:
        noun = "first steps" if len(repeated) > 1 else f"first step of {repeated[0]}"
        yield "confirmed", f"{noun} repeated in another process"


def _rehearsal_difference(entry: TrialEntry) -> str | None:
    """Return the difference between a trial and its rehearsal: empty if there is none, None if they do not compare."""
    rehearsal = entry.rehearsal
    # A rehearsal has no parent, so it does not compare with a trial that starts from another one.
    if rehearsal is None or "failure" in rehearsal or entry.trial.get("parent_id"):
        return None
    if _on_other_machine(entry.provenance, rehearsal["provenance"]):
        return None
    if entry.provenance.get("hash_seed") == rehearsal["provenance"].get("hash_seed"):
        return None
    return _step_difference(entry, entry.certificate, rehearsal["certificate"])


def _first_step_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield a first step that differs between two trials whose varied options only apply after its gradients."""
    if not pair.varied or not all(touches((key,), UPDATES) for key in pair.varied):
        return
    if any(entry.trial.get("parent_id") for entry in pair) or _on_other_machine(*(entry.provenance for entry in pair)):
        return
    if differing := _step_difference(pair.variant, pair.baseline.certificate, pair.variant.certificate):
        keys = join_names(sorted(pair.varied))
        yield "failure", f"other gradients: other {differing} of the first step, which {keys} cannot change"


def _on_other_machine(baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    """Return whether two provenances are of machines or libraries that may round differently."""
    return any(baseline.get(key) != variant.get(key) for key in ("host", "machine", "versions"))


def _step_difference(entry: TrialEntry, first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the difference between the first steps of two certificates.

    On an accelerator, equal steps may round differently, so only weights and batches are compared; None if they agree.
    """
    values = [{path: tensor["value"] for path, tensor in item["tensors"].items()} for item in (first, second)]
    if paths := _differing(*values):
        return f"initial weights ({paths[0]})"
    if (first.get("batch_digests") or {}).get("1") != (second.get("batch_digests") or {}).get("1"):
        return "batch"
    steps = [item.get("first_step") or {} for item in (first, second)]
    if entry.provenance["machine"]["device"] != "cpu" or any("loss" not in step for step in steps):
        return None
    names = [name for name in ("loss", "evaluation") if steps[0][name] != steps[1][name]]
    gradients = _differing(*(step.get("tensors") or {} for step in steps))
    return join_names([*names, *(f"gradients ({path})" for path in gradients[:1])])


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, in order."""
    return [key for key in {**first, **second} if first.get(key) != second.get(key)]


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


IN_EVALUATION: Final = "torch, in evaluation"
"""Name of draws from torch's global generator in evaluation: a training step seeds it, and evaluation does not."""

DATA: Final = ("objective", "corpus", "tokenizer", "data", "dims.length", "dims.vocabulary", "trainer")
"""Options that decide the batches. If one is varied, batches may differ."""

UPDATES: Final = ("optimizer", "schedule")
"""Options that apply after the gradients of a step. If only these are varied, the first gradients are equal."""

TRAINING: Final = (*DATA, "evaluate", "measure", "optimizer", "schedule", "dropout")
"""Options that need not change the outputs of an untrained model."""

TIME_LIMIT: Final = "trainer.max_time"

Finding = tuple[Literal["failure", "side effect", "confirmed"], str]


@final
class TrialPair(NamedTuple):
    """Two trials with records, and what may differ between them."""

    baseline: TrialEntry
    variant: TrialEntry

    @property
    def varied(self) -> frozenset[str]:
        """The keys that the study set differently in the two trials."""
        baseline, variant = self.baseline.overrides, self.variant.overrides
        keys = {**baseline, **variant}
        return frozenset(key for key in keys if baseline.get(key, MISSING) != variant.get(key, MISSING))

    @property
    def budget_overrides(self) -> frozenset[str]:
        """The keys that the budget set, in each trial for itself."""
        return frozenset(self.baseline.budget_overrides) | frozenset(self.variant.budget_overrides)

    @property
    def steps(self) -> tuple[int, int]:
        return self.baseline.result["steps"], self.variant.result["steps"]

    @property
    def same_length(self) -> bool:
        """Return whether both finished with the same number of steps, so that their batches and losses compare."""
        return self.baseline.done and self.variant.done and len(set(self.steps)) == 1

    def equal(self, digest: str) -> bool:
        return bool(self.baseline.certificate[digest] == self.variant.certificate[digest])
