"""Comparison of the initial tensors of two trials, and short names of their paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from paribus.errors import join_names

Tensors = Mapping[str, Mapping[str, Any]]  # path -> the tensor as the record describes it

KINDS: Final = ("equal", "scaled", "reinitialised", "recomputed", "reshaped", "removed", "added", "loaded", "leaked")
MAX_PATHS: Final = 6  # paths named in a finding, which is one line of text
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
        counts = Counter(name for paths, _ in groups for name in {it.short for it in _names(paths)})
        ambiguous = {name for name, count in counts.items() if count > 1}
        biases = [path for path in self.equal if path.endswith(".bias")]
        equal = {it.short for paths in (self.equal, biases) for it in _names(paths)}
        every = {path for kind in KINDS for path in getattr(self, kind)}
        texts = [(short_names(paths, ambiguous, equal, every.difference(paths)), change) for paths, change in groups]
        return tuple(f"{names} {change}" for names, change in texts if names)


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


class _Names(NamedTuple):
    """Names of a tensor, of which the first that is unambiguous is shown."""

    short: str
    long: str  # with one more word of its path
    layer: str  # the path of the first module with a number
    numbered: str  # from that module on


def short_names(
    paths: Iterable[str],
    ambiguous: Collection[str] = (),
    numbered: Collection[str] = (),
    others: Collection[str] = (),
) -> str:
    """Return short names of paths: `k, v` are the weights and biases of keys and values of all layers.

    A name in `ambiguous`, which another group has too, gets one more word of its path. One in `numbered`, which tensors
    of other layers have, gets the numbers of its layers, `layers.1.heads.k`; or only the layer, `layers.1`, if no path
    of `others` is in it.
    """
    names = []
    for it in _names(paths):
        if it.short in numbered:
            is_whole = it.layer and not any(path.startswith(f"{it.layer}.") for path in others)
            names.append(".".join(it.layer.split(".")[-2:]) if is_whole else it.numbered)
        else:
            names.append(it.long if it.short in ambiguous else it.short)
    return join_names(dict.fromkeys(names), MAX_PATHS)


def _names(paths: Iterable[str]) -> Iterator[_Names]:
    """Yield the names of each path."""
    all_paths = set(paths)
    for path in sorted(all_paths):
        stem, _, leaf = path.rpartition(".")
        is_leaf = bool(stem) and leaf in _LEAVES
        parts = stem.split(".") if is_leaf else path.split(".")
        words = [word for word in parts if not word.isdigit()] if is_leaf else parts
        words = words or parts  # of a layer that has a number only, as in `nn.Sequential`
        last_two = ".".join(words[-2:])
        name = last_two if words[-1] in _SUBLAYERS or len(words) <= _MAX_WORDS else words[-1]
        suffix = ".bias" if is_leaf and leaf == "bias" and f"{stem}.weight" not in all_paths else ""
        first = next((place for place, word in enumerate(parts) if word.isdigit()), -1)
        layer, numbered = ".".join(parts[: first + 1]), ".".join(parts[max(0, first - 1) :])
        yield _Names(name + suffix, last_two + suffix, layer, numbered + suffix)
