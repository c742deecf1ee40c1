"""The timing pass of a store: speed of training and of inference, as ratios to the baseline with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from paribus.planning.paired_ratio import GENERATION, TWIN, Ratio, paired_ratio, widen


@final
@dataclass(frozen=True)
class Throughput:
    """The last timing pass of a store: of training steps, and of inference in documents of the same form."""

    document: Mapping[str, Any]

    @property
    def inference(self) -> tuple[Throughput, ...]:
        """The passes of inference, one for each size of a batch; empty in a store of an earlier version."""
        shared = {key: self.document[key] for key in ("clock", "machine")}
        return tuple(Throughput({**document, **shared}) for document in self.document.get("inference", ()))

    @property
    def batch(self) -> int:
        """Number of requests of a batch of inference."""
        return int(self.document["batch"])

    def peak_bytes(self, identities: Sequence[str]) -> int | None:
        """Return the memory of the first of these trials that was timed."""
        sizes: Mapping[str, int] = self.document.get("bytes", {})
        return next((sizes[identity] for identity in identities if identity in sizes), None)

    def tokens_of_answer(self, identities: Sequence[str]) -> int:
        """Return the tokens that the latency is about: one that is written, or all of a forward pass."""
        generates = self.task(identities) == GENERATION
        tokens: Mapping[str, int] = self.document["tokens"]
        return 1 if generates else next(tokens[identity] for identity in identities if identity in tokens)

    @property
    def kinds(self) -> frozenset[str]:
        """What the inference of any group was: a forward pass, or generation."""
        return frozenset(str(group["task"]) for group in self._groups())

    def task(self, identities: Sequence[str]) -> str:
        """Return what the inference of these trials was: a forward pass, or generation."""
        return next(
            str(group["task"])
            for group in self._groups()
            if any(identity in group["rounds"] for identity in identities)
        )

    def tokens_per_second(self, identities: Sequence[str]) -> float | None:
        """Return the speed of the first of these trials that was timed."""
        for group in self._groups():
            for identity in identities:
                if times := group["rounds"].get(identity):
                    return float(self.document["tokens"][identity] / median(times))
        return None

    def ratio(self, identities: Sequence[str], baseline: Sequence[str]) -> Ratio | None:
        """Return the speed relative to the baseline, paired by round; None if either was not timed.

        The interval is widened by the deviation of the baseline's twin.
        """
        for group in self._groups():
            variant_id = next((identity for identity in identities if identity in group["rounds"]), None)
            if variant_id is not None and group["baseline"] in baseline:
                tokens = self.document["tokens"]
                size = tokens[variant_id] / tokens[group["baseline"]]
                ratio = _ratio(group["rounds"][group["baseline"]], group["rounds"][variant_id], size)
                return ratio if variant_id == group["baseline"] else widen(ratio, _twin(group))
        return None

    def twins(self) -> list[Ratio]:
        """Return the ratio of the baseline to its twin (the same spec again) in each group, which measures noise."""
        return [_twin(group) for group in self._groups()]

    @property
    def noise(self) -> float:
        """The largest deviation of the twins' ratios from 1."""
        return max((max(abs(twin.low - 1), abs(twin.high - 1)) for twin in self.twins()), default=0.0)

    def caption(self) -> Iterator[str]:
        """Describe how the speed was measured."""
        twins = self.twins()
        if not twins:
            return
        low, high = min(twin.low for twin in twins), max(twin.high for twin in twins)
        counts = sorted({twin.rounds for twin in twins})
        spread = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        clock = "CPU time" if self.document["clock"] == "cpu" else "time"
        name = str(self.document["machine"].get("name"))
        yield (
            f"Tokens/s are of training steps in turns, alone on {name}, after the study: medians of {spread} paired "
            f"rounds of {clock}, with 95 % intervals, widened by the deviation of the baseline from itself: "
            f"[{low:.3f}, {high:.3f}]."
        )

    def _groups(self) -> Sequence[Mapping[str, Any]]:
        groups: Sequence[Mapping[str, Any]] = [
            group for group in self.document["groups"] if all(group["rounds"].values())
        ]
        return groups


def _twin(group: Mapping[str, Any]) -> Ratio:
    return _ratio(group["rounds"][group["baseline"]], group["rounds"][TWIN], 1.0)


def _ratio(baseline: Sequence[float], variant: Sequence[float], size: float) -> Ratio:
    """Return the speed of the variant divided by the baseline's, where a step has `size` times as many tokens."""
    return paired_ratio(variant, [size * seconds for seconds in baseline])
