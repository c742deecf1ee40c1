"""Matrix of all combinations of layer components and topologies, with covering arrays and quick checks of each model.

A covering array is a small set of rows in which any few values that are valid together occur together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import Any, Final, final

import torch
from torch import Tensor

from paribus.errors import Problem, SpecError
from paribus.parts.batch import PADDING, Stream
from paribus.parts.stack import Layer
from paribus.registry import Entry, Registry
from paribus.slots.attention import Attention
from paribus.specs import resolved
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.forward_checks import gradient_fault, weights_fault
from paribus.testing.host_models import HOLDS, PRESETS, SMALL_SIZES, example_node
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, relative_change, replace_tokens, tokens
from paribus.testing.token_checks import causality_fault, mixing_fault

Row = dict[str, str]
Combination = tuple[tuple[str, str], ...]
"""Some values of a row as (axis, value), in the order of the axes."""


def covering(
    axes: Mapping[str, Sequence[str]], possible: Callable[[Combination], bool], strength: int = 3
) -> list[Row]:
    """Return rows that contain every possible combination of `strength` values of different axes.

    `possible` returns True if some valid row contains the combination. Greedy and deterministic: each row starts from
    the first missing combination, as in "The AETG System" (Cohen et al. 1997), but without random draws.
    """
    missing = dict.fromkeys(combination for combination in _all_combinations(axes, strength) if possible(combination))
    rows: list[Row] = []
    while missing:
        row = _complete_row(dict(next(iter(missing))), axes, possible, missing, strength, offset=len(rows))
        for combination in _combinations_in(row, axes, strength):
            missing.pop(combination, None)
        rows.append(row)
    return rows


def _all_combinations(axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Combination]:
    """Yield all combinations, starting with the axes of most values: their rows contain many of the others."""
    chosen = sorted(combinations(axes, strength), key=lambda names: -_product_size(axes, names))
    for names in chosen:
        for values in product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def _product_size(axes: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    size = 1
    for name in names:
        size *= len(axes[name])
    return size


def _complete_row(
    row: Row,
    axes: Mapping[str, Sequence[str]],
    possible: Callable[[Combination], bool],
    missing: Mapping[Combination, None],
    strength: int,
    offset: int,
) -> Row:
    """Fill the other axes of a row, each with the value that adds the most missing combinations."""
    for name in sorted((name for name in axes if name not in row), key=lambda name: -len(axes[name])):
        values = axes[name]
        rotated = [
            values[(index + offset) % len(values)] for index in range(len(values))
        ]  # ties select different values
        valid_values = [value for value in rotated if possible(_sorted({**row, name: value}, axes))]
        assert valid_values, "every possible combination is part of a valid row"
        combinations_in_row = list(_combinations_in(row, axes, strength - 1))
        row[name] = max(
            valid_values,
            key=lambda value: sum(
                _sorted({**dict(combination), name: value}, axes) in missing for combination in combinations_in_row
            ),
        )
    return row


def _combinations_in(row: Row, axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Combination]:
    return combinations(_sorted(row, axes), strength)


def _sorted(row: Row, axes: Mapping[str, Sequence[str]]) -> Combination:
    return tuple((name, row[name]) for name in axes if name in row)


AXES: Final = ("topology", "attention", "position", "placement", "norm", "feedforward")
UNREAD: Final = ""  # stands for a slot that the topology does not read
_SIZES: Final = {**SMALL_SIZES, "dims.layers": 1, "dims.length": 16}


@final
class Matrix:
    """All combinations of the installed components; a cell names a component for each axis, or `UNREAD`.

    The rules of specs read traits, not names. Components with equal traits are one *kind*, and all cells of a kind have
    the same problems. `make test-matrix` validates every cell to test this.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.index = registry.index
        self.bases = self._bases()
        self.axes: dict[str, tuple[str, ...]] = {"topology": tuple(self.bases)}
        for slot in AXES[1:]:
            unread = any(slot not in self._topology(name).reads for name in self.bases)
            self.axes[slot] = (*self.index.entries[slot], *([UNREAD] if unread else []))
        self._verdicts: dict[tuple[str, ...], tuple[Problem, ...]] = {}

    def cells(self) -> Iterator[Row]:
        """Yield every cell that names a component for exactly the slots that its topology reads."""
        for values in product(*self.axes.values()):
            row = dict(zip(self.axes, values, strict=True))
            if self._has_read_slots(row):
                yield row

    def spec(self, row: Mapping[str, str]) -> dict[str, Any]:
        """Return the spec of a cell: the smallest preset of its topology, with the components of the cell."""
        base = self.bases[row["topology"]]
        nodes = {slot: example_node(self.index.entries[slot][row[slot]]) for slot in AXES[1:] if row[slot] != UNREAD}
        return {**base, **nodes, "parts": self._parts(row, base)}

    def cell_problems(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """Return the problems of one cell; empty if it is valid."""
        return self.spec_problems(self.spec(row))

    def spec_problems(self, spec: Mapping[str, Any]) -> tuple[Problem, ...]:
        """Return the problems of a spec."""
        try:
            check(load(spec, (), self.index), self.index)
        except SpecError as error:
            return error.problems
        return ()

    def kind_problems(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """Return the problems of the first cell of the same kind (cached)."""
        kinds = self.kinds(row)
        if kinds not in self._verdicts:
            self._verdicts[kinds] = self.cell_problems(row)
        return self._verdicts[kinds]

    def kinds(self, row: Mapping[str, str]) -> tuple[str, ...]:
        """Return the kind of each component; rules depend only on kinds."""
        return tuple(self._kind(slot, row[slot]) for slot in AXES)

    def nearest_valid(self, row: Mapping[str, str]) -> Row | None:
        """Return the valid cell of the same topology with the fewest other components, or None."""
        slots = AXES[:0:-1]  # the feed-forward is replaced first, the attention last
        for count in range(1, len(AXES)):
            for changed in combinations(slots, count):
                for values in product(*(self.axes[slot] for slot in changed)):
                    candidate = {**row, **dict(zip(changed, values, strict=True))}
                    if self._has_read_slots(candidate) and not self.kind_problems(candidate):
                        return candidate
        return None

    def covering(self, strength: int = 3) -> list[Row]:
        """Return valid cells that contain every valid combination of `strength` components."""
        return covering(self.axes, self.possible, strength)

    def possible(self, combination: Combination) -> bool:
        """Return True if some cell with these components is valid."""
        return tuple((slot, self._kind(slot, value)) for slot, value in combination) in self._passing

    @cached_property
    def _passing(self) -> set[Combination]:
        """Combinations of kinds that occur in a valid cell."""
        passing: set[Combination] = set()
        for row in self.representatives():
            if not self.kind_problems(row):
                kinds = tuple(zip(AXES, self.kinds(row), strict=True))
                passing.update(
                    combination for count in range(1, len(AXES) + 1) for combination in combinations(kinds, count)
                )
        return passing

    def representatives(self) -> Iterator[Row]:
        """Yield the first cell of each kind."""
        for values in product(*(self._component_representatives(slot) for slot in AXES)):
            row = dict(zip(AXES, values, strict=True))
            if self._has_read_slots(row):
                yield row

    def _component_representatives(self, slot: str) -> list[str]:
        """Return the first component of each kind."""
        firsts: dict[str, str] = {}
        for name in self.axes[slot]:
            firsts.setdefault(self._kind(slot, name), name)
        return list(firsts.values())

    def _kind(self, slot: str, name: str) -> str:
        if slot == "topology" or name == UNREAD:
            return name
        return self._declared[slot, name]

    @cached_property
    def _declared(self) -> dict[tuple[str, str], str]:
        return {
            (slot, entry.name): json.dumps(entry.traits, sort_keys=True)
            for slot in AXES[1:]
            for entry in self.index.entries[slot].values()
        }

    def _has_read_slots(self, row: Mapping[str, str]) -> bool:
        reads = self._topology(row["topology"]).reads
        return all((row[slot] != UNREAD) == (slot in reads) for slot in AXES[1:])

    def _topology(self, name: str) -> Entry:
        return self.index.entries["topology"][name]

    def _bases(self) -> dict[str, dict[str, Any]]:
        """Return the base spec of each topology: a preset of the conformance kit, or else the narrowest preset."""
        narrowest: dict[str, tuple[int, str]] = {}
        for name in (*reversed(PRESETS), *self.index.presets):
            spec = resolved(name, registry=self.registry)
            width = 0 if name in PRESETS else spec["dims"]["width"]
            topology = spec["topology"]["name"]
            narrowest[topology] = min((width, name), narrowest.get(topology, (width, name)))
        return {
            name: resolved({"preset": narrowest[name][1], **_SIZES, **self._layers(name)}, registry=self.registry)
            for name in self.index.entries["topology"]
            if name in narrowest
        }

    def _layers(self, topology: str) -> dict[str, int]:
        """Return the number of layers: the only one of a deep recurrent encoder would read in both directions."""
        is_recurrent = any(part.recurrent for part in self._topology(topology).parts)
        return {"dims.layers": 2} if is_recurrent else {}

    def _parts(self, row: Mapping[str, str], base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `parts` of the spec; an attention that cannot cross keeps the preset's cross-attention."""
        parts = {name: dict(part) for name, part in (base.get("parts") or {}).items()}
        if row["attention"] == UNREAD or self.index.entries["attention"][row["attention"]].traits.get("cross"):
            return parts
        for part in self._topology(row["topology"]).parts:
            if part.cross and not part.recurrent:
                part_spec = parts.setdefault(part.name, {})
                part_spec["cross"] = {**(part_spec.get("cross") or {}), "attention": base["attention"]}
        return parts


LENGTH: Final = 7
CHUNKS: Final = (5, 1, 1)
PADDING_LENGTH: Final = 3  # padding tokens


def quick_faults(model: SmallModel) -> list[str]:
    """Check visibility, attention weights, decoding, padding and gradients in few passes; return the messages."""
    token_ids = tokens(1, LENGTH)
    changed = torch.where(torch.eye(LENGTH, dtype=torch.bool), replace_tokens(token_ids), token_ids)
    with torch.no_grad():
        hidden = _hidden(model, Stream(torch.cat([changed, token_ids])))
        if not torch.isfinite(hidden).all():
            return ["the output is not finite"]
        full_output = hidden[-1:]
        reads_nothing = _queries_without_weights(model, token_ids)
        visibility_fault = _visibility_fault(model, relative_change(hidden[:-1], full_output), reads_nothing)
        faults = [
            visibility_fault,
            weights_fault(model, token_ids, tokens(1, 6, "source")),
            _decoding_fault(model, token_ids, full_output),
            _padding_fault(model, token_ids, full_output),
            gradient_fault(model, LENGTH),
        ]
    return [fault for fault in faults if fault]


def _hidden(model: SmallModel, stream: Stream) -> Tensor:
    """(B, T) -> (B, T, D): hidden states; all examples share one source."""
    return model.hidden(stream, source=tokens(1, 6, "source").expand(stream.tokens.shape[0], -1))


def _queries_without_weights(model: SmallModel, token_ids: Tensor) -> set[int]:
    """Return the positions whose weights are all 0 in some layer, as ReLU attention may give."""
    if not any(attention.traits.get("weights", False) for attention in _attentions(model)):
        return set()
    captured = model.output(token_ids, source=tokens(1, 6, "source"), capture=True).captured
    layers = [layer["weights"] for layer in captured if "weights" in layer]  # (B, H, T, S)
    return {position for position in range(LENGTH) for weights in layers if not bool(weights[..., position, :].any())}


def _visibility_fault(model: SmallModel, changed: Tensor, reads_nothing: set[int]) -> str:
    """Return a message if a position ignores its own token or reads one that it must not; input (token, position).

    Without a residual stream, a position that reads nothing, or one token only, does not depend on its own.
    """
    independent = [
        token for token in range(LENGTH) if float(changed[token, token]) <= TOLERANCE and token not in reads_nothing
    ]
    layers = model.layers()
    if layers and all(layer.placement is None and _reads_one_key(layer) for layer in layers):
        independent = []
    if independent:
        return (
            f"in a sequence of {LENGTH} tokens, the output at position {independent[0]} does not depend on its own "
            "token"
        )
    return (causality_fault(changed) if model.body.causal else HOLDS) or mixing_fault(model, changed)


def _reads_one_key(layer: Layer) -> bool:
    return str(layer.attention.traits.get("reads_keys", "all")) == "one"


def _decoding_fault(model: SmallModel, token_ids: Tensor, full_output: Tensor) -> str:
    if not model.body.causal or not _all_attentions_declare(model, "decodes"):
        return HOLDS
    difference = max_difference(model.decode_chunks(token_ids, CHUNKS), full_output)
    if difference > TOLERANCE:
        return f"{LENGTH} tokens decoded in chunks of {CHUNKS} differ by {difference:.2g} from one pass"
    return HOLDS


def _padding_fault(model: SmallModel, token_ids: Tensor, full_output: Tensor) -> str:
    """Return a message if right or left padding changes the output, or padding alone is not finite."""
    if not _all_attentions_declare(model, "documents", "padding"):
        return HOLDS
    filled, length = torch.full((3, LENGTH + PADDING_LENGTH), 20), LENGTH + PADDING_LENGTH
    filled[0, :LENGTH] = filled[1, PADDING_LENGTH:] = token_ids[0]
    indices = torch.arange(length)
    hidden = torch.stack([indices >= LENGTH, indices < PADDING_LENGTH, indices >= 0])
    positions = torch.stack([indices, indices - PADDING_LENGTH, indices])
    output = _hidden(model, Stream(filled, torch.zeros_like(filled).masked_fill(hidden, PADDING), positions))
    for side, unpadded in (("right", output[:1, :LENGTH]), ("left", output[1:2, PADDING_LENGTH:])):
        difference = max_difference(unpadded, full_output)
        if difference > TOLERANCE:
            return f"{LENGTH} tokens change by {difference:.2g} with {PADDING_LENGTH} padding tokens on the {side}"
    return HOLDS if torch.isfinite(output).all() else "the output for a sequence of only padding is not finite"


def _all_attentions_declare(model: SmallModel, *traits: str) -> bool:
    """Return True if every attention of the model declares one of these traits."""
    return all(any(attention.traits.get(trait, False) for trait in traits) for attention in _attentions(model))


def _attentions(model: SmallModel) -> list[Attention]:
    return [module for module in model.topology.modules() if isinstance(module, Attention)]
