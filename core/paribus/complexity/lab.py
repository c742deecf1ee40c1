"""Complexity lab: every attention at several lengths and widths, counted and measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch

from paribus.complexity.counting import Node, count_flops, has_window
from paribus.complexity.derivation import ClosedForm, Growth, closed_form, path, sequential
from paribus.complexity.measuring import clock, current_device, make_pass, one_thread, peak_bytes, repeated
from paribus.complexity.rounds import Rounds
from paribus.complexity.sublayer import Candidate, Size, attention_of, node_of
from paribus.errors import ParibusError
from paribus.parts.attend import component_cost
from paribus.parts.shape import Load
from paribus.registry import Registry
from paribus.slots.attention import Attention
from paribus.train.step_memory import free_memory

REFERENCE: Final = "mha"
TWIN: Final = "twin"  # the reference once more: how far equal programs differ
MEMORY_SHARE: Final = 0.5  # of the free memory that a pass may need
SHORT: Final = 0.05  # seconds of a pass that is timed again before the rounds
SLOW_TRACE: Final = 1.0  # CPU seconds of a pass without data, after which longer ones run with data
FURTHEST: Final = 1 << 20  # tokens up to which a crossover of FLOPs is searched

Report = Callable[[str], None]
Key = tuple[str, Size]


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes and conditions of a measurement."""

    lengths: Sequence[int]
    widths: Sequence[int]
    heads: int = 4
    causal: bool = False
    backward: bool = False
    device: str = "cpu"
    rounds: int = 7
    limit: float = 1.0  # seconds of a pass: longer ones are skipped

    @property
    def reference(self) -> Size:
        """Size at which lengths are varied with its width, and widths with its length: the middle ones."""
        return self.at(sorted(self.lengths)[len(self.lengths) // 2], sorted(self.widths)[len(self.widths) // 2])

    def at(self, length: int, width: int) -> Size:
        return Size(length, width, self.heads, self.causal)

    @property
    def by_length(self) -> list[Size]:
        return [self.at(length, self.reference.width) for length in sorted(set(self.lengths))]

    @property
    def by_width(self) -> list[Size]:
        return [self.at(self.reference.length, width) for width in sorted(set(self.widths))]

    @property
    def sizes(self) -> list[Size]:
        """All sizes; those of each length come first, the smallest first."""
        return list(dict.fromkeys([*self.by_length, *self.by_width]))


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """Complexity of one attention."""

    label: str
    options: Mapping[str, Any]
    form: ClosedForm
    sequential: Growth
    path: Growth
    flops: Mapping[Size, int]  # by `cost`
    counted: Mapping[Size, int]  # by torch, at the smallest size that fits
    windowed: bool  # torch counts the pairs that a kernel computes besides those in the window
    crossover: int | None  # tokens from which it has fewer FLOPs than the reference; None: never
    seconds: Mapping[Size, Sequence[float]] = field(default_factory=dict)  # of each round
    memory: Mapping[Size, int] = field(default_factory=dict)  # bytes
    skipped: Mapping[Size, str] = field(default_factory=dict)  # the reason

    @property
    def mismatch(self) -> str:
        """The difference between declared and counted FLOPs, or "" if they agree."""
        for size, counted in self.counted.items():
            declared = self.flops[size]
            if declared > counted or (declared < counted and not self.windowed):
                place = f"n = {size.length}, d = {size.width}"
                return f"`cost` declares {declared:,} FLOPs at {place}, but torch counts {counted:,}"
        return ""


@final
@dataclass(frozen=True, kw_only=True)
class Complexity:
    """Complexity of several attentions, the reference first."""

    settings: Settings
    profiles: Sequence[Profile]
    failures: Mapping[str, str]  # attentions that cannot run at any size, with the reason
    twin: Mapping[Size, Sequence[float]]  # seconds of the reference once more
    seconds: float

    @property
    def reference(self) -> Profile:
        return self.profiles[0]


def measure(registry: Registry, attentions: Sequence[Candidate], settings: Settings, report: Report) -> Complexity:
    """Return the complexity of attentions and of the reference."""
    started = time.perf_counter()
    others = [candidate for candidate in attentions if candidate.label != REFERENCE]
    ordered = [Candidate(REFERENCE, REFERENCE), *others]
    failures: dict[str, str] = {}
    profiles: list[Profile] = []
    with one_thread(), current_device(settings.device):
        for number, candidate in enumerate(ordered, 1):
            report(f"counting {number} of {len(ordered)}: {candidate.label}")
            try:
                profiles.append(_count(registry, candidate, settings))
            except (ParibusError, RuntimeError, ValueError) as error:
                failures[candidate.label] = _reason(error)
        profiles, twin = _measure(registry, profiles, [c for c in ordered if c.label not in failures], settings, report)
    return Complexity(
        settings=settings, profiles=profiles, failures=failures, twin=twin, seconds=time.perf_counter() - started
    )


def _reason(error: Exception) -> str:
    problems = error.problems if isinstance(error, ParibusError) else ()
    return problems[0].message if problems else f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


# -- counted ---------------------------------------------------------------------------------------------------------


def _count(registry: Registry, candidate: Candidate, settings: Settings) -> Profile:
    skipped: dict[Size, str] = {}
    flops: dict[Size, int] = {}
    counted: dict[Size, int] = {}
    windowed, crossover = False, None
    for size in settings.sizes:
        try:
            node = node_of(registry, candidate, size)
            attention = attention_of(registry, node, size)
        except ParibusError as error:
            skipped[size] = _reason(error)
            continue
        flops[size] = component_cost(attention, Load(size.length, size.length)).flops
        if not counted:
            counted[size] = count_flops(registry, node, size).flops
        if size == settings.reference:
            windowed = has_window(attention)
            crossover = flops_crossover(attention, attention_of(registry, node_of_reference(registry, size), size))
    if not flops:
        raise ValueError(next(iter(skipped.values())))
    steps = sequential(registry, candidate, causal=settings.causal)
    return Profile(
        label=candidate.label,
        options=candidate.options,
        form=closed_form(registry, candidate, causal=settings.causal),
        sequential=steps,
        path=path(registry, candidate, steps, causal=settings.causal),
        flops=flops,
        counted=counted,
        windowed=windowed,
        crossover=crossover,
        skipped=skipped,
    )


def node_of_reference(registry: Registry, size: Size) -> dict[str, Any]:
    return node_of(registry, Candidate(REFERENCE, REFERENCE), size)


def flops_crossover(attention: Attention, reference: Attention) -> int | None:
    """Return the tokens from which an attention has fewer FLOPs than the reference, or None if it never has."""

    def is_cheaper(length: int) -> bool:
        load = Load(length, length)
        return component_cost(attention, load).flops < component_cost(reference, load).flops

    high = FURTHEST
    if not is_cheaper(high):
        return None
    while high > 1 and is_cheaper(high // 2):
        high //= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_cheaper(middle) else (middle, high)
    return high


# -- measured --------------------------------------------------------------------------------------------------------


def _measure(
    registry: Registry, profiles: Sequence[Profile], attentions: Sequence[Candidate], settings: Settings, report: Report
) -> tuple[list[Profile], dict[Size, list[float]]]:
    """Return the profiles with time and memory, and the times of the twin."""
    contestants: dict[Key, Callable[[], object]] = {}
    repetitions: dict[Key, int] = {}
    memory: dict[str, dict[Size, int]] = {}
    skipped: dict[str, dict[Size, str]] = {}
    for number, (profile, candidate) in enumerate(zip(profiles, attentions, strict=True), 1):
        report(f"first pass {number} of {len(profiles)}: {profile.label}")
        trial = _FirstPasses(registry, candidate, settings)
        memory[profile.label], skipped[profile.label] = trial.memory, {**profile.skipped, **trial.skipped}
        for size, (run, count) in trial.passes.items():
            contestants[profile.label, size], repetitions[profile.label, size] = run, count
            if profile is profiles[0] and size in settings.by_length:
                contestants[TWIN, size], repetitions[TWIN, size] = run, count
    seconds = _rounds(contestants, repetitions, settings, report)
    measured = [
        Profile(
            **{
                **vars(profile),
                "seconds": {size: seconds[profile.label, size] for size in memory[profile.label]
                            if (profile.label, size) in seconds},
                "memory": memory[profile.label],
                "skipped": skipped[profile.label],
            }
        )
        for profile in profiles
    ]  # fmt: skip
    return measured, {size: times for (label, size), times in seconds.items() if label == TWIN}


def _rounds(
    contestants: Mapping[Key, Callable[[], object]], repetitions: Mapping[Key, int], settings: Settings, report: Report
) -> dict[Key, list[float]]:
    """Return the seconds of a pass in each round, by contestant."""
    names = {f"{label} {size}": (label, size) for label, size in contestants}
    rounds = Rounds({name: contestants[key] for name, key in names.items()}, clock(settings.device))
    started = time.perf_counter()
    for number in range(1, settings.rounds + 1 if names else 1):
        rounds()
        elapsed = time.perf_counter() - started
        remaining = elapsed / number * (settings.rounds - number)
        report(f"round {number} of {settings.rounds}" + (f": about {remaining:.0f} s left" if remaining >= 1 else ""))
    return {key: [s / repetitions[key] for s in rounds.times[name]] for name, key in names.items()}


@final
class _FirstPasses:
    """First passes of an attention: which sizes fit in memory and time, and how often each must be repeated."""

    def __init__(self, registry: Registry, candidate: Candidate, settings: Settings) -> None:
        self.registry, self.candidate, self.settings = registry, candidate, settings
        self.memory: dict[Size, int] = {}
        self.skipped: dict[Size, str] = {}
        self.passes: dict[Size, tuple[Callable[[], object], int]] = {}
        self._with_data = False  # each of thousands of small operations takes longer without data than with it
        for sizes in (settings.by_length, settings.by_width):
            self._run(sizes)

    def _run(self, sizes: Sequence[Size]) -> None:
        times: list[tuple[Size, float]] = []
        for size in sizes:
            if size in self.passes or size in self.skipped:
                continue
            try:
                node = node_of(self.registry, self.candidate, size)
                needed = self._peak_bytes(node, size)
            except (ParibusError, RuntimeError) as error:
                self.skipped[size] = _reason(error)
                continue
            self.memory[size] = needed
            reason = self._excess(needed, times, size)
            if reason:
                self.skipped[size] = reason
                continue
            run = make_pass(self.registry, node, size, self.settings.device, backward=self.settings.backward)
            measure_pass = clock(self.settings.device)
            run()
            seconds = measure_pass(run)
            if seconds < SHORT:  # libraries prepare themselves for a shape, which the first passes pay for
                seconds = min(seconds, measure_pass(run), measure_pass(run))
            times.append((size, seconds))
            self.passes[size] = repeated(run, seconds)

    def _peak_bytes(self, node: Node, size: Size) -> int:
        started = time.process_time()
        settings = self.settings
        needed = peak_bytes(
            self.registry, node, size, settings.device, backward=settings.backward, with_data=self._with_data
        )
        self._with_data |= time.process_time() - started > SLOW_TRACE
        return needed

    def _excess(self, needed: int, times: Sequence[tuple[Size, float]], size: Size) -> str:
        """Return why a size is not run, or ""."""
        free = free_memory(torch.device(self.settings.device))
        if needed > MEMORY_SHARE * free:
            return f"a pass needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        expected = predicted_seconds([(math.prod(done[:2]), seconds) for done, seconds in times], math.prod(size[:2]))
        if expected > self.settings.limit:
            return f"a pass would take about {expected:.2g} s, and the limit is {self.settings.limit:g} s"
        return ""


def predicted_seconds(times: Sequence[tuple[int, float]], size: int) -> float:
    """Return the seconds of a pass of a larger size: those of the last one, with the growth between the last two."""
    if not times:
        return 0.0
    slope = 1.0
    if len(times) > 1:
        (before, earlier), (last, later) = times[-2:]
        slope = max(1.0, math.log(later / earlier) / math.log(last / before))
    growth: float = (size / times[-1][0]) ** slope
    return times[-1][1] * growth
