"""Costs of a variant relative to the baseline: counted parameters and FLOPs, measured speed and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, final

from paribus.analysis.program_findings import witnessed_parameters
from paribus.analysis.throughput import Throughput
from paribus.analysis.trials import TrialEntry
from paribus.specs.program_spec import is_program

INFERENCE_LABELS: Final[Mapping[str, str]] = {
    "latency": "latency",
    "inference_tokens_per_second": "inference tokens/s",
    "inference_bytes": "inference memory",
}
LABELS: Final[Mapping[str, str]] = {
    "parameters": "params",
    "flops_per_token": "FLOPs/token",
    "cache_bytes_per_token": "cache/token",
    "total_flops": "train FLOPs",
    "tokens_per_second": "tokens/s",
    "seconds": "seconds",
    "cpu_seconds": "CPU seconds",
    "peak_bytes": "memory",
}

SPEEDS: Final = ("tokens_per_second", "seconds")  # costs that other trials on the machine affect

CostFunction = Callable[[TrialEntry], float | None]
Pairs = Sequence[tuple[TrialEntry, TrialEntry]]


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """A cost of a variant, and its ratio to the baseline's."""

    value: float | None
    ratio: float | None
    rough: bool = False  # measured while other trials shared the machine, or on two machines of one kind
    low: float | None = None  # lower end of the interval of the ratio, if rounds of both were timed in turns
    high: float | None = None
    noise: float = 0.0  # deviation of the baseline's ratio to itself from 1 in these rounds
    pairs: tuple[float, ...] = ()  # ratio of each pair, for a measured cost


def declared(name: str) -> CostFunction:
    """Return a function that reads a count of the engine, which is the same for each seed."""
    return lambda entry: _positive(entry.result.get(name))


def parameters(entry: TrialEntry) -> float | None:
    """Return the number of parameters that the engine counted, or the witness of a program recorded."""
    return _positive(witnessed_parameters(entry) if is_program(entry.spec) else entry.result.get("parameters"))


def tokens_per_second(entry: TrialEntry) -> float | None:
    """Return the speed of the training steps, without start and evaluation."""
    seconds = entry.provenance.get("training_seconds")
    tokens = entry.result.get("tokens")  # of a program, they are not known
    return _positive(tokens / seconds) if entry.done and seconds and tokens else None


def _program_cost(key: str) -> CostFunction:
    """Return a function that reads what the process of a program took."""
    return lambda entry: _positive(entry.provenance.get(key)) if entry.done and is_program(entry.spec) else None


def peak_bytes(entry: TrialEntry) -> float | None:
    """Return the peak memory of a trial; on a CPU, that of its whole process."""
    return _positive(entry.provenance.get("peak_bytes")) if entry.done else None


DECLARED: Final[Mapping[str, CostFunction]] = {
    "parameters": parameters,
    **{name: declared(name) for name in ("flops_per_token", "cache_bytes_per_token", "total_flops")},
}
MEASURED: Final[Mapping[str, CostFunction]] = {
    "tokens_per_second": tokens_per_second,
    "seconds": _program_cost("training_seconds"),
    "cpu_seconds": _program_cost("cpu_seconds"),
    "peak_bytes": peak_bytes,
}


def costs(
    entries: Sequence[TrialEntry], baseline: Sequence[TrialEntry], pairs: Pairs, throughput: Throughput | None = None
) -> dict[str, Cost]:
    """Return every cost of the variant that `entries` belong to; measured costs are compared pair by pair.

    `throughput` is the timing pass after the study. It replaces the speed of trials, which may have shared a machine.
    """
    all_costs = {name: _declared_cost(number, entries, baseline) for name, number in DECLARED.items()}
    same_machine = [pair for pair in pairs if machine_key(pair[0]) == machine_key(pair[1])]
    is_rough = any(map(is_contended, entries)) or any(not on_same_host(pair) for pair in same_machine)
    for name, number in MEASURED.items():
        ratios = [
            _ratio(number(variant_entry), number(baseline_entry)) for baseline_entry, variant_entry in same_machine
        ]
        known_ratios = tuple(ratio for ratio in ratios if ratio is not None)
        value = _median(map(number, entries))
        all_costs[name] = Cost(
            value=value, ratio=_geometric_mean(known_ratios), rough=is_rough and name in SPEEDS, pairs=known_ratios
        )
    if throughput is not None:
        speed = _timed_speed(throughput, entries, baseline)
        all_costs |= {} if speed is None else {"tokens_per_second": speed}
        all_costs |= _inference_costs(throughput, entries, baseline)
    return {**dict.fromkeys(INFERENCE_LABELS, Cost(value=None, ratio=None)), **all_costs}


def _inference_costs(
    throughput: Throughput, entries: Sequence[TrialEntry], baseline: Sequence[TrialEntry]
) -> dict[str, Cost]:
    """Return the latency of one request, and the speed and the memory of a batch of many; empty if none was timed."""
    passes = throughput.inference
    speeds = [_timed_speed(timed, entries, baseline) for timed in passes]
    if not passes or None in speeds:
        return {}
    single, many = speeds[0], speeds[-1]
    assert single is not None
    assert many is not None
    sizes = [passes[-1].peak_bytes(_identities(side)) for side in (entries, baseline)]
    lengths = [passes[0].tokens_of_answer(_identities(side)) for side in (entries, baseline)]
    return {
        "latency": _latency(single, *lengths),
        "inference_tokens_per_second": many,
        "inference_bytes": Cost(value=sizes[0], ratio=_ratio(*sizes)),
    }


def _latency(speed: Cost, tokens: int, baseline_tokens: int) -> Cost:
    """Return the seconds of an answer of so many tokens, given the tokens of a second."""

    def inverse(number: float | None, factor: float) -> float | None:
        return None if number is None else factor / number

    relative = tokens / baseline_tokens
    return Cost(
        value=inverse(speed.value, tokens),
        ratio=inverse(speed.ratio, relative),
        low=inverse(speed.high, relative),
        high=inverse(speed.low, relative),
        noise=speed.noise,
    )


def _identities(entries: Sequence[TrialEntry]) -> list[str]:
    return [str(entry.trial.get("identity")) for entry in entries]


def _timed_speed(throughput: Throughput, entries: Sequence[TrialEntry], baseline: Sequence[TrialEntry]) -> Cost | None:
    """Return the speed that the timing pass measured; None if it did not time the variant and the baseline."""
    variant_ids, baseline_ids = _identities(entries), _identities(baseline)
    value = throughput.tokens_per_second(variant_ids)
    if variant_ids == baseline_ids or value is None:
        return None if value is None else Cost(value=value, ratio=1.0)
    ratio = throughput.ratio(variant_ids, baseline_ids)
    if ratio is None:
        return None
    return Cost(value=value, ratio=ratio.median, low=ratio.low, high=ratio.high, noise=throughput.noise)


def machine_key(entry: TrialEntry) -> tuple[tuple[str, str], ...]:
    """Return the facts that speed depends on: device, its name, threads."""
    return tuple(sorted((entry.provenance.get("machine") or {}).items()))


def is_contended(entry: TrialEntry) -> bool:
    """Return whether other trials shared the machine."""
    return bool(entry.provenance.get("contended"))


def on_same_host(pair: tuple[TrialEntry, TrialEntry]) -> bool:
    """Return whether both trials ran on one machine, and not on two of the same kind."""
    return bool(pair[0].provenance.get("host") == pair[1].provenance.get("host"))


def _declared_cost(number: CostFunction, entries: Sequence[TrialEntry], baseline: Sequence[TrialEntry]) -> Cost:
    value, reference = (next(filter(None, map(number, side)), None) for side in (entries, baseline))
    return Cost(value=value, ratio=_ratio(value, reference))


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None


def _geometric_mean(ratios: Sequence[float]) -> float | None:
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else None


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def _positive(value: object) -> float | None:
    """Return a positive finite number, else None; 0 means that there is no such cost."""
    return value if isinstance(value, int | float) and 0 < value < math.inf else None
