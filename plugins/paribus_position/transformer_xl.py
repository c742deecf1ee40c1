"""The position `transformer-xl`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, Range, Shape, Traits
from paribus_position.remembered import Remembered, stored


@final
class TransformerXL(Position):
    """Scores each distance by its sines, as each query leans to them: "Transformer-XL" (Dai et al. 2019), section 3.3.

    To q·k it adds u·k, q·r and v·r, where r is a projection of the sines and cosines of i - j. Each layer has its own
    projection; u and v are the layer's own, or shared by all. With `segments` it adds q·e and w·e, where e is a vector
    for keys of the query's segment or one for those of any other: "XLNet" (Yang et al. 2019), section 2.5.

    Where rows count on from one another, queries meet r of each distance once, and their scores are shifted into
    place. Elsewhere, and where queries are few, sin(i - j) and cos(i - j) are written out in those of i and of j:
    queries are turned by where they are, and meet the sines of where the keys are. Any integers will do there.
    """

    traits: ClassVar[Traits] = {"moments": ["bias"], "bias": "content", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        untied: Annotated[bool, "whether u and v are each layer's own (XLNet), and not shared by all"] = False,
        segments: Annotated[bool, "whether queries lean to keys of their own segment, or of others (XLNet)"] = False,
        base: Annotated[float, "the longest wavelength is 2 pi times this", Range(above=1)] = 10_000.0,
    ) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.untied = untied
        self.pairs = -(-shape.width // 2)  # an odd width has a last cosine, too
        exponents = [2 * pair / shape.width for pair in range(self.pairs)]
        self.frequencies = [base**-exponent for exponent in exponents]
        self.segments = segments
        self.leanings = None if untied else Leanings(shape, segments=segments)
        self._asking, self._asked = (Remembered[Tensor]() for _ in range(2))

    def own(self, shape: Shape) -> Apart:
        return Apart(shape, 2 * self.pairs, untied=self.untied, segments=self.segments)

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a bias that reads content is shown it"
        assert pair.k is not None, "a bias that reads content is shown it"
        assert isinstance(pair.own, Apart), "each layer has a projection of its own"
        leanings = pair.own.leanings or self.leanings
        assert leanings is not None, "u and v are the layer's or the stack's"
        u, v = (vector.to(pair.q.dtype).unsqueeze(-2) for vector in (leanings.key, leanings.distance))  # (H, 1, K)
        weight = pair.own.project.weight.to(pair.q.dtype).unflatten(0, (self.heads, -1))  # (H, K, W)
        queries, keys = pair.q_positions.shape[-1], pair.k_positions.shape[-1]
        ahead = counted(pair.q_positions, pair.k_positions)  # before sizes: torch.compile would guard on those
        by_distance = (
            self._turned(pair.q + v, weight, pair)
            if ahead is None or queries > keys or self._turning(queries, keys) <= self._shifting(queries, keys)
            else self._shifted(pair.q + v, weight, ahead, keys, pair.q_positions.device)
        )
        scores: Tensor = by_distance + u @ pair.k.transpose(-1, -2)
        if leanings.segment is not None:
            assert pair.own.segments is not None, "who leans to segments has vectors for them"
            scores = scores + by_segment(
                pair.q + leanings.segment.to(pair.q.dtype).unsqueeze(-2), pair.own.segments, pair
            )
        return (scores * pair.scale).to(pair.dtype)

    def _shifted(self, q: Tensor, weight: Tensor, ahead: int, keys: int, device: torch.device) -> Tensor:
        """(B, H, T, K), (H, K, W) -> (B, H, T, S), where the first query is `ahead` of the first key."""
        queries = q.shape[-2]
        distances = ahead + queries - 1 - torch.arange(queries + keys, device=device)
        waves = self._waves(self._asking, distances.unsqueeze(0), q.dtype)[0]  # (T + S, W)
        r = waves @ weight.transpose(-1, -2)  # (H, T + S, K)
        return shifted(torch.einsum("bhtk,hrk->bhtr", q, r))

    def _turned(self, q: Tensor, weight: Tensor, pair: Pair) -> Tensor:
        """(B, H, T, K), (H, K, W) -> (B, H, T, S), whatever the positions are."""
        of_sine, of_cosine = torch.einsum("bhtk,hkw->bhtw", q, weight).chunk(2, dim=-1)
        sine, cosine = self._waves(self._asking, pair.q_positions, q.dtype).unsqueeze(1).chunk(2, dim=-1)
        # sin(i - j) = sin i cos j - cos i sin j, cos(i - j) = cos i cos j + sin i sin j: what meets sin j, then cos j
        met_by = [of_cosine * sine - of_sine * cosine, of_sine * sine + of_cosine * cosine]
        turned = torch.cat(met_by, dim=-1).flatten(1, 2)  # (B, H * T, W)
        waves = self._waves(self._asked, pair.k_positions, q.dtype)  # (B|1, S, W)
        met: Tensor = turned @ (waves[0] if waves.shape[0] == 1 else waves).transpose(-1, -2)
        return met.view(q.shape[0], self.heads, -1, met.shape[-1])

    def _waves(self, remembered: Remembered[Tensor], positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B|1, T) -> (B|1, T, W): sines, then cosines."""
        return remembered(positions, dtype, lambda: self._made(positions, dtype))

    def _made(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=positions.device)
        angles = positions.unsqueeze(-1) * frequencies
        return stored(torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype))

    def _shifting(self, queries: int, keys: int) -> int:
        """Multiply-adds of one head: to project all distances, and to meet them."""
        return (queries + keys) * self.head_width * (2 * self.pairs + queries)

    def _turning(self, queries: int, keys: int) -> int:
        """Multiply-adds of one head: to project all queries, and to meet the waves of the keys."""
        return queries * 2 * self.pairs * (self.head_width + keys)

    def cost(self, load: Load) -> Cost:
        fewest = self._turning(load.queries, load.keys)
        if load.queries <= load.keys:  # rows that only ask do not count on from the others
            fewest = min(fewest, self._shifting(load.queries, load.keys))
        told = 2 * load.queries if self.segments else 0
        return Cost(flops=2 * self.heads * (fewest + (load.keys + told) * self.head_width))

    def reach(self) -> int | None:
        return None


@final
class Leanings(nn.Module):
    """What every query leans to besides what it asks for: u towards keys, v towards distances, w towards segments."""

    def __init__(self, shape: Shape, *, segments: bool) -> None:
        super().__init__()
        self.key, self.distance = (nn.Parameter(torch.empty(shape.heads, shape.head_width)) for _ in "uv")
        self.segment = nn.Parameter(torch.empty(shape.heads, shape.head_width)) if segments else None


@final
class Apart(nn.Module):
    """What each layer has for itself."""

    def __init__(self, shape: Shape, waves: int, *, untied: bool, segments: bool) -> None:
        super().__init__()
        self.project = nn.Linear(waves, shape.heads * shape.head_width, bias=False)
        self.leanings = Leanings(shape, segments=segments) if untied else None
        self.segments = nn.Parameter(torch.empty(2, shape.heads, shape.head_width)) if segments else None


def by_segment(q: Tensor, segments: Tensor, pair: Pair) -> Tensor:
    """(B, H, T, K), (2, H, K) -> (B, H, T, S): one vector for keys of the query's segment, the other for all others."""
    met: Tensor = torch.einsum("bhtk,shk->sbht", q, segments.to(q.dtype)).unsqueeze(-1)
    same, other = met[0], met[1]
    if pair.q_segments is None or pair.k_segments is None:
        return same  # for all keys alike: so it changes no weight
    alike = pair.q_segments.unsqueeze(-1) == pair.k_segments.unsqueeze(-2)
    return torch.where(alike.unsqueeze(1), same, other)


def shifted(by_distance: Tensor) -> Tensor:
    """(B, H, T, T + S), a column for each distance from the largest down -> (B, H, T, S), as a view of the same.

    Each query starts one column further left than the one before it: so rows one column shorter fall into line.
    """
    queries, distances = by_distance.shape[-2:]
    laid = by_distance.flatten(-2)[..., queries - 1 : queries - 1 + queries * (distances - 1)]
    return laid.view(*laid.shape[:-1], queries, distances - 1)[..., : distances - queries]


def counted(q_positions: Tensor, k_positions: Tensor) -> int | None:
    """By how much the first query is ahead of the first key, where rows of both count on one by one, and all alike.

    None where they do not, and where nobody knows without waiting for a device.
    """
    if torch.compiler.is_compiling():  # asked first, as the compiler does not know all of the other questions
        return None
    if q_positions.is_meta:  # shapes alone, as costs are counted on: taken for plain rows
        return k_positions.shape[-1] - q_positions.shape[-1]
    if type(q_positions) is not Tensor or q_positions.device.type != "cpu":
        return None
    starts = q_positions[:, :1] - k_positions[:, :1]
    if not all(bool((positions.diff(dim=-1) == 1).all()) for positions in (q_positions, k_positions)):
        return None
    first = int(starts[0, 0])
    return first if bool((starts == first).all()) else None
