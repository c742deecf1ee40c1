"""Checks of embeddings, which map tokens to vectors and back, and of the scale of initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor, nn

from paribus.assembly.components import make
from paribus.errors import SpecError
from paribus.parts.batch import Stream
from paribus.parts.shape import Role
from paribus.slots.initialisation import Initialisation, ParameterInfo
from paribus.specs import resolved
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import SIZE, TOLERANCE, SmallModel, max_difference, noise

KINDS: Final = 3  # segments, or languages
USED_TOKENS: Final = (0, 40, 63)  # first, some, last


def distinct_vectors(case: Case, host: HostModel) -> Verdict:
    """Each token, segment and language has a vector of its own, and trains no other; positions are added once."""
    model = case.small_model(host)
    if not _has_vocabulary(model):
        return DOES_NOT_APPLY
    stream, placed = Stream(torch.arange(SIZE).unsqueeze(0)), list[Tensor]()
    vectors = _embed(model, stream, placed)[0]
    if len(placed) != 1 or not torch.equal(placed[0].expand(1, -1), torch.arange(SIZE).unsqueeze(0)):
        return f"it calls `place` {len(placed)} times; expected one call, with the positions of the layout"
    equal = (vectors.unsqueeze(0) == vectors.unsqueeze(1)).all(-1).triu(1).nonzero()
    if len(equal):
        first, second = equal[0].tolist()
        return f"tokens {first} and {second} of {SIZE} have the same vector"
    for name in ("segments", "languages"):
        fault = _equal_kinds_fault(case, host, name) if name in host.spec["embedding"] else HOLDS
        if fault:
            return fault
    used = torch.tensor([USED_TOKENS])
    with torch.enable_grad():
        vectors = _embed(model, Stream(used), [])
        for path, rows in _rows_with_gradient(model, (vectors * noise("loss", *vectors.shape)).sum()):
            if rows and rows != [*USED_TOKENS]:
                return f"tokens {list(USED_TOKENS)} train rows {rows[:5]} of `{path}`; expected their own rows"
    return HOLDS


def _equal_kinds_fault(case: Case, host: HostModel, name: str) -> str:
    """Return a message if two of three segments or languages have the same vector."""
    try:
        spec = resolved({**host.spec, "embedding": {**host.spec["embedding"], name: KINDS}}, registry=case.registry)
    except SpecError:
        return HOLDS  # the option means something else, or has a lower limit
    model, stream = SmallModel(spec, case.registry), Stream(torch.tensor([[40]]))
    vectors = [_embed(model, stream._replace(**{name: torch.tensor([[kind]])}), []) for kind in range(KINDS)]
    for first, second in combinations(range(KINDS), 2):
        if max_difference(vectors[first], vectors[second]) <= TOLERANCE:
            return f"a token has the same vector in {name} {first} and {second} of {KINDS}"
    return HOLDS


def scores_of_tokens(case: Case, host: HostModel) -> Verdict:
    """The score of a token reads the rows that its vector is made of, and the objective's bias is added once."""
    model = case.small_model(host)
    if not _has_vocabulary(model) or not model.topology.embedding.traits.get("unembeds", True):
        return DOES_NOT_APPLY
    hidden = noise("hidden", 3, model.stack().shape.embedding_width)
    bias = noise("bias", SIZE)
    scores = model.topology.embedding.unembed(hidden)
    if scores.shape != (3, SIZE):
        return f"scores have the shape {tuple(scores.shape)}; expected (3, {SIZE}) for 3 vectors and {SIZE} tokens"
    difference = max_difference(model.topology.embedding.unembed(hidden, bias) - scores, bias.expand_as(scores))
    if difference > TOLERANCE:
        return f"scores with a bias differ by {difference:.2g} from scores plus the bias"
    for token in USED_TOKENS:
        with torch.enable_grad():
            score = model.topology.embedding.unembed(hidden)[:, token].sum()
            for path, rows in _rows_with_gradient(model, score):
                if rows and rows != [token]:
                    return f"the score of token {token} reads rows {rows[:5]} of `{path}`; expected row {token}"
            score = model.topology.embedding.unembed(hidden)[:, token].square().sum()
            vector = _embed(model, Stream(torch.tensor([[token]])), []).square().sum()
            read, made_of = (dict(_rows_with_gradient(model, loss, every=True)) for loss in (score, vector))
            for path, rows in read.items():
                if rows and made_of.get(path) and rows != made_of[path]:
                    return (
                        f"the score of token {token} reads rows {rows[:5]} of `{path}`, and its vector is made of rows "
                        f"{made_of[path][:5]}"
                    )
    return HOLDS


def _has_vocabulary(model: SmallModel) -> bool:
    return not model.has_fixed_length and model.topology.embedding.traits.get("modality", "text") == "text"


def _embed(model: SmallModel, stream: Stream, placed: list[Tensor]) -> Tensor:
    """Embed a stream without positions; append the positions of each call of `place`."""

    def place(x: Tensor, positions: Tensor) -> Tensor:
        placed.append(positions)
        return x

    part: Any = model.stack().embedding
    vectors, _ = model.topology.embedding(stream, 0, place, part if isinstance(part, nn.ModuleDict) else None)
    return vectors  # type: ignore[no-any-return]  # a module call is untyped


def _rows_with_gradient(model: SmallModel, loss: Tensor, *, every: bool = False) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows of each table of the vocabulary that have a gradient; with `every`, of each matrix."""
    tables = {
        path: parameter
        for path, parameter in model.topology.embedding.named_parameters()
        if parameter.ndim == 2 and (every or parameter.shape[0] == SIZE)
    }
    grads = torch.autograd.grad(loss, [*tables.values()], allow_unused=True) if tables else ()
    for path, grad in zip(tables, grads, strict=True):
        yield path, [] if grad is None else grad.any(1).nonzero().flatten().tolist()


DRAWN_ROLES: Final[tuple[Role, ...]] = ("query", "key", "value", "residual", "inner", "embedding", "head", "weight")
ZERO_ROLES: Final = frozenset({"residual", "head"})  # some schemes start branches and heads at 0
SHAPE: Final = (256, 192)
MEAN_TOLERANCE: Final = 0.03  # of a standard deviation; 49,152 draws have an error of 0.0045
STD_RANGE: Final = (0.5, 1.1)  # truncation makes draws smaller


def weight_scale(case: Case, host: HostModel) -> Verdict:
    """Initial weights have a mean of 0 and no equal rows; they are proportional to `gain` and independent of calls.

    The standard deviation of a matrix is that of an option named `std`.
    """
    scheme = make(case.registry, "initialisation", host.spec["initialisation"], kind=Initialisation)
    draws = {role: standard_draws(role) for role in DRAWN_ROLES}
    expected = {role: scheme.draw(unit, parameter_info(role)).clone() for role, unit in draws.items()}
    changed = [role for role, unit in draws.items() if not torch.equal(unit, standard_draws(role))]
    if changed:
        return f"`draw` changes the draws of the role `{changed[0]}` in place; expected a new tensor"
    for role, weights in expected.items():
        fault = _weights_fault(scheme, role, weights)
        if fault:
            return fault
    declared = host.spec["initialisation"].get("std")
    ratio = float(expected["weight"].std()) / declared if declared else 1.0
    if not STD_RANGE[0] <= ratio <= STD_RANGE[1]:
        return f"a matrix has {ratio:.2g} times the standard deviation of the option `std`, {declared}"
    for role in reversed(DRAWN_ROLES):
        if not torch.equal(scheme.draw(standard_draws(role), parameter_info(role)), expected[role]):
            return f"weights of the role `{role}` change with the order of calls; expected a function of the arguments"
    return HOLDS


def _weights_fault(scheme: Initialisation, role: Role, weights: Tensor) -> str:
    if weights.shape != SHAPE or weights.dtype != torch.float32 or not torch.isfinite(weights).all():
        return f"weights of the role `{role}` have another shape or dtype than the draws, or are not finite"
    std, mean = float(weights.std()), float(weights.mean())
    if std == 0 and (mean != 0 or role not in ZERO_ROLES):
        return f"all weights of the role `{role}` are {mean:g}"
    if std and (torch.equal(weights[0], weights[1]) or torch.equal(weights[:, 0], weights[:, 1])):
        return f"weights of the role `{role}` have equal rows or columns, which would stay equal in training"
    if abs(mean) > MEAN_TOLERANCE * std:
        return f"weights of the role `{role}` have the mean {mean:.2g} and the standard deviation {std:.2g}"
    half = scheme.draw(standard_draws(role), parameter_info(role)._replace(gain=0.5))
    if float((half - 0.5 * weights).abs().max()) > 1e-5 * max(std, 1e-30):
        return f"weights of the role `{role}` are not proportional to `about.gain`, which the placement sets"
    return HOLDS


def standard_draws(role: Role) -> Tensor:
    """Return the draws of a matrix of a role, in float32."""
    return noise(f"draws of {role}", *SHAPE).float()


def parameter_info(role: Role) -> ParameterInfo:
    """Return the information about a matrix of a role."""
    path = "embedding.tokens.weight" if role == "embedding" else f"body.layers.0.{role}.weight"
    return ParameterInfo(path, role, SHAPE, layers=2, branches=4, gain=1.0, width=SHAPE[1], head_width=16)
