"""Training steps, windows, decoding and peak memory beside other libraries.

    python benchmarks/peer_steps.py --output benchmarks/results/peers.json
    python benchmarks/peer_steps.py --part windows decoding --seconds 20

Needs the extra `peers`; a library that is not installed is left out with a line. CPU time of one thread, in interleaved
rounds; ratios are of times of one round. The reference runs twice in a round, which shows the noise. Before its
time is measured, a model is checked: its parameters, its first loss, and its outputs where the mathematics is equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import machine, peer_decoding, peer_windows  # noqa: E402  # found by the line above
from benchmarks.claims import microseconds  # noqa: E402  # the same
from benchmarks.gpu import quiet  # noqa: E402  # the same
from benchmarks.hugging_face import Size  # noqa: E402  # the same
from benchmarks.paired import Rounds, estimate, ratio  # noqa: E402  # the same
from benchmarks.peak import peaks  # noqa: E402  # the same
from benchmarks.peer_models import FAMILIES, Contestant, built, checked  # noqa: E402  # the same
from benchmarks.report import table  # noqa: E402  # the same

AGAIN = ", again"


class Options(NamedTuple):
    """Options of a measurement. Without `rounds`, as many as fit into `seconds`."""

    seconds: float = 60.0
    rounds: int | None = None
    rehearse: bool = False


class Section(NamedTuple):
    """Table of results, with the raw times."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str]
    microseconds: dict[str, list[float]]

    def markdown(self) -> str:
        return "\n".join([f"### {self.title}", "", *table(self.heads, self.rows), "", *self.notes])


def timed(contestants: Mapping[str, Callable[[], object]], options: Options) -> dict[str, list[float]]:
    """Return CPU seconds by round; the reference, which is the first, runs a second time as its own contestant.

    Half of the others run between the two, because what runs before affects the caches.
    """
    labels = list(contestants)
    again, middle = f"{labels[0]}{AGAIN}", (len(labels) + 1) // 2
    runs = {**contestants, again: contestants[labels[0]]}
    rounds = Rounds({label: runs[label] for label in (*labels[:middle], again, *labels[middle:])})
    duration = rounds.warm(1 if options.rehearse else 2)
    for _ in range(options.rounds or max(5, int(options.seconds / max(duration, 1e-4)))):
        rounds()
    return {label: rounds.times[label] for label in (labels[0], again, *labels[1:])}


def time_cells(times: Mapping[str, Sequence[float]], label: str) -> tuple[str, str]:
    """Return the median in milliseconds, and the ratio to the reference with its interval."""
    reference = next(iter(times))
    share = "1" if label == reference else ratio(times[label], times[reference]).rounded()
    milliseconds = estimate(times[label]).figure * 1e3
    return f"{milliseconds:.{0 if milliseconds >= 100 else 1}f}", share


# -- training steps --------------------------------------------------------------------------------------------------


def step(contestant: Contestant, batch: Any) -> Callable[[], None]:
    """Return a function that runs a training step: loss, gradients and fused AdamW."""
    optimizer = torch.optim.AdamW(contestant.module.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        contestant.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def steps(options: Options) -> list[Section]:
    size = Size(32, 2, 2, 16, 2, 128) if options.rehearse else Size()
    return [family_steps(name, size, options) for name in FAMILIES]


def family_steps(name: str, size: Size, options: Options) -> Section:
    family = FAMILIES[name]
    contestants, notes = built(family.models, size)
    batch = family.batch(size)
    figures = checked(contestants, batch, size)
    times = timed({label: step(contestant, batch) for label, contestant in contestants.items()}, options)
    rows, tokens = [], sum(stream.tokens.numel() for stream in batch.streams.values())
    for label in times:
        parameters, loss = figures[label.removesuffix(AGAIN)]
        rate = tokens / estimate(times[label]).figure
        rows.append((label, f"{parameters / 1e6:.2f} M", f"{loss:.3f}", f"{rate:,.0f}", *time_cells(times, label)))
    heads = ("model", "parameters", "first loss", "tokens/s", "ms a step", "of the first row")
    return Section(f"Training steps: {family.title} ({size})", heads, rows, notes, microseconds(times))


# -- windows -----------------------------------------------------------------------------------------------------------


def windows(options: Options) -> list[Section]:
    return [
        window_section(rows, window, backward, options)
        for rows, window in ([(128, 16)] if options.rehearse else peer_windows.SIZES)
        for backward in (False, True)
    ]


def window_section(rows: int, window: int, backward: bool, options: Options) -> Section:
    runs, notes = peer_windows.contestants(rows, window, backward=backward)
    times = timed(runs, options)
    mode = "forward and backward" if backward else "forward"
    title = f"Windows: n {rows}, {window} tokens to each side, {peer_windows.HEADS} heads of 64, {mode}"
    cells = [(label, *time_cells(times, label)) for label in times]
    return Section(title, ("attention", "ms", "of the first row"), cells, notes, microseconds(times))


# -- decoding ----------------------------------------------------------------------------------------------------------


def decoding(options: Options) -> list[Section]:
    size = peer_decoding.Size(32, 2, 4, 16, 2, 2) if options.rehearse else peer_decoding.Size()
    runs, notes = peer_decoding.contestants(size)
    times = timed(runs, options)
    cells = [(label, *time_cells(times, label)) for label in times]
    title = f"Decoding of {size.new} tokens ({size})"
    return [Section(title, ("model", "ms", "of the first row"), cells, notes, microseconds(times))]


# -- memory ------------------------------------------------------------------------------------------------------------

MEMORY = {
    "decoder": (
        Size(768, 4, 12, 512, 4, 50_304),
        ("by hand", "paribus", "Hugging Face, GPT-2", "x-transformers", "litgpt, rotary positions"),
    ),
    "encoder": (
        Size(256, 4, 4, 128, 32, 30_528),
        ("by hand", "by hand, scores at every position", "paribus", "Hugging Face, BERT", "x-transformers"),
    ),
}


def memory_job(*, small: bool, family: str, label: str, size: Sequence[int]) -> Callable[[], object]:
    """Return two training steps of a new model, as `peak.py` measures them."""
    torch.set_num_threads(1)
    read = Size(32, 2, 2, 16, 2, 128) if small else Size(*size)

    def run() -> None:
        batch = FAMILIES[family].batch(read)
        take = step(FAMILIES[family].models[label](read), batch)
        take()
        take()

    return run


def memory(options: Options) -> list[Section]:
    sections = []
    for name, (real, labels) in MEMORY.items():
        size = Size(32, 2, 2, 16, 2, 1024) if options.rehearse else real
        available, notes = built({label: FAMILIES[name].models[label] for label in labels}, Size(32, 2, 2, 16, 2, 128))
        jobs = [{"family": name, "label": label, "size": size} for label in available]
        measured = peaks("benchmarks.peer_steps:memory_job", jobs)
        rows = [
            (label, f"{peak / 2**20:,.0f} MiB", f"{peak / measured[0]:.2f}")
            for label, peak in zip(available, measured, strict=True)
        ]
        title = f"Peak memory of a training step: {FAMILIES[name].title} ({size})"
        sections.append(Section(title, ("model", "peak", "of the first row"), rows, notes, {}))
    return sections


# -- all ---------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[Options], list[Section]]] = {
    "steps": steps,
    "windows": windows,
    "decoding": decoding,
    "memory": memory,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall seconds of each comparison; default: 60")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison, in place of --seconds")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes and two rounds: no figure means anything")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(1)
    rounds = 2 if options.rehearse else options.rounds
    document: dict[str, Any] = {
        "machine": {**machine.described(), "threads": "1"},
        "commit": machine.commit(),
        "date": machine.today(),
        "rehearsal": options.rehearse,
        "parts": {},
    }
    sections: list[Section] = []
    for name in options.part:
        started = time.perf_counter()
        part = PARTS[name](Options(options.seconds, rounds, options.rehearse))
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        sections += part
        document["parts"][name] = [section._asdict() for section in part]
        if options.output:  # after each part: a later one may fail
            options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.rehearse:
        print("REHEARSAL: no figure means anything\n")
    print("\n\n".join(section.markdown() for section in sections))


if __name__ == "__main__":
    main()
