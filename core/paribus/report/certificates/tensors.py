"""Which tensors two trials began with in common, and what became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.errors import listed

Tensors = Mapping[str, Mapping[str, Any]]  # path -> shape, origin, draws, shaped, value, signs: as the record has them

KINDS: Final = ("equal", "scaled", "schemed", "derived", "reshaped", "removed", "added", "begun", "leaked")
MOST: Final = 6  # names in a line
_LEAVES: Final = ("weight", "bias")
_SHORT: Final = 3  # words of a path outside of the layers: body.norm, body.position.table
_PLACES: Final = ("attention", "cross", "feedforward")  # these alone would read as the whole component


@final
@dataclass(frozen=True, kw_only=True)
class Common:
    """The paths of the baseline's tensors and of the variant's, by what the two have in common."""

    equal: tuple[str, ...]  # bitwise
    scaled: tuple[str, ...]  # the same draws at another scale
    schemed: tuple[str, ...]  # the same draws, as another scheme of initialisation shapes them
    derived: tuple[str, ...]  # buffers, computed with other options
    reshaped: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    begun: tuple[str, ...]  # one of the two is of a saved model, or both are in another way
    leaked: tuple[str, ...]  # other values for no reason that the two records know of
    total: int  # tensors of the baseline

    @property
    def brought(self) -> frozenset[str]:
        """The tensors that only the variant has as they are."""
        return frozenset(self.added) | frozenset(self.reshaped)

    @property
    def alike(self) -> frozenset[str]:
        """The tensors that both have, in one shape."""
        return frozenset((*self.equal, *self.scaled, *self.schemed, *self.derived, *self.begun, *self.leaked))

    @property
    def changes(self) -> tuple[str, ...]:
        """What a reader is told of those that are not equal."""
        said = (
            (self.reshaped, "reshaped"),
            (self.added, "added"),
            (self.removed, "removed"),
            (self.scaled, "at another scale"),
            (self.schemed, "initialised otherwise"),
            (self.derived, "computed otherwise"),
            (self.begun, "begun otherwise"),
        )
        counts = Counter(name for paths, _ in said for name in _short(paths))
        twice = {name for name, count in counts.items() if count > 1}
        return tuple(f"{names(paths, twice)} {what}" for paths, what in said if paths)


def common(baseline: Tensors, variant: Tensors, *, scheme: bool) -> Common:
    """`scheme` says that both are initialised by the same scheme, so that a scale is all that may differ.

    A tensor of the same path, seed and shape has the same draws. So it has the same value, unless its role, the
    placement's gain or the size of its stack differs: these are in `shaped`, and may only scale what was drawn.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in baseline.keys() | variant.keys():
        kinds[_kind(baseline.get(path), variant.get(path), scheme)].append(path)
    return Common(**{kind: tuple(sorted(paths)) for kind, paths in kinds.items()}, total=len(baseline))


def _kind(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, scheme: bool) -> str:
    if before is None or after is None:
        return "added" if before is None else "removed"
    if before["shape"] != after["shape"]:
        return "reshaped"
    if before.get("origin") != after.get("origin"):
        return "equal" if before["value"] == after["value"] else "begun"
    if before["value"] == after["value"]:
        return "leaked" if before["draws"] != after["draws"] else "equal"
    if before["draws"] != after["draws"] or before["shaped"] == after["shaped"]:
        return "leaked"
    return _reason(before, after, scheme)


def _reason(before: Mapping[str, Any], after: Mapping[str, Any], scheme: bool) -> str:
    """Of two values of the same draws, where what shaped them is not the same."""
    if before.get("buffer") or after.get("buffer"):
        return "derived"
    if not scheme:
        return "schemed"
    drawn = before["signs"] and after["signs"]  # a tensor that begins as one number was not drawn
    return "leaked" if drawn and before["signs"] != after["signs"] else "scaled"


def names(paths: Iterable[str], twice: Collection[str] = ()) -> str:
    """Paths in few words: `k, v` are the keys' and values' weights and biases of all layers.

    `twice`: names that something else beside them has as well, which have a word more here.
    """
    return listed(dict.fromkeys(long if name in twice else name for name, long in _short(paths).items()), MOST)


def _short(paths: Iterable[str]) -> dict[str, str]:
    """The short name of each, and a longer one."""
    given = set(paths)
    short: dict[str, str] = {}
    for path in sorted(given):
        stem, _, leaf = path.rpartition(".")
        words = [word for word in stem.split(".") if not word.isdigit()] if leaf in _LEAVES else path.split(".")
        pair = ".".join(words[-2:])
        name = pair if words[-1] in _PLACES or len(words) <= _SHORT else words[-1]
        end = ".bias" if leaf == "bias" and f"{stem}.weight" not in given else ""
        short.setdefault(name + end, pair + end)
    return short
