"""P11, the cost of a verdict: compute to reach an interval of one width, paired here and unpaired with Hugging Face.

    python benchmarks/verdict_cost.py            # from the trials in results/trials, and steps that it times
    python benchmarks/verdict_cost.py --usual    # trains the usual way as well, seed by seed: some minutes

Cost is seeds by CPU seconds of a step; both train as many steps. The width is that of five paired seeds, at the level
of Holm's first step. The usual way has a Student interval of two samples (2n - 2 degrees of freedom), and the spread of
seeds that our own trials have, taken as if they were not paired. Steps are timed in turns, in CPU time of one thread.
How much seeds of `BertForMaskedLM` really stray, with first values, order and masks of their own, stands beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # run by its path, this is no part of a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.collect import head  # noqa: E402  # the same
from benchmarks.paired import Estimate, Rounds, ratio  # noqa: E402  # the same

from paribus.analysis.student_t import summarise, t_quantile  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"
STUDIES = ("verdict", "verdict-2x", "verdict-8x", "gentle", "gentle-2x", "gentle-8x", "gentlest")
RATES = {"verdict": 5e-3, "gentle": 1e-3, "gentlest": 3e-4}
PAIRS, FAMILY, STEPS, ROUNDS, SEEDS, DRAWS, LEAST = 5, 4, 5, 8, 8, 4000, 6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--usual", action="store_true", help="train the usual way, too")
    asked = parser.parse_args(argv)
    path = TRIALS / "verdict-cost.json"
    usual = json.loads(path.read_text(encoding="utf-8")).get("usual", []) if path.is_file() else []
    if asked.usual:
        usual = [trained(rate, steps) for rate in (5e-3, 1e-3) for steps in (200, 400)]
    faster = timed()
    rows = [row for study in STUDIES for row in rows_of(study, faster)]
    document = {"machine": machine.described(), "commit": head(), "faster_step": vars(faster), "rows": rows}
    path.write_text(json.dumps(document | {"usual": usual}, indent=1) + "\n", encoding="utf-8")
    print(f"a step of Hugging Face / ours: {faster}")
    for row in rows:
        between = row["reduction_between"]
        interval = f"[{between[0]:.2g}, {between[1]:.2g}]" if between else "(too few seeds for an interval)"
        print(
            f"rate {row['rate']:g} {row['steps']:5} steps  {row['variant']:32} n {row['seeds']}  "
            f"sd {row['sd']:.3f}  variance / {row['reduction']:.3g} {interval}  "
            f"seeds {PAIRS} against {row['unpaired']:.0f}  cost {row['cost']:.2f}"
        )
    for row in usual:
        print(
            f"usual way: rate {row['rate']:g}, {row['steps']} steps: sd of {len(row['losses'])} seeds {row['sd']:.3f}"
        )
    return 0


def rows_of(name: str, faster: Estimate) -> list[dict[str, Any]]:
    """A row a variant, of the seeds that it and the baseline have."""
    path = TRIALS / f"{name}.json"
    if not path.is_file():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    values = found["values"]
    rows = []
    for variant, own in values.items():
        seeds = [seed for seed in own if seed in values["baseline"]]
        if variant == "baseline" or len(seeds) < 2:
            continue
        before, after = ([side[seed] for seed in seeds] for side in (values["baseline"], own))
        paired = summarise([b - a for a, b in zip(before, after, strict=True)]).sd or 0.0
        apart = math.hypot(summarise(before).sd or 0.0, summarise(after).sd or 0.0)
        needed = unpaired(paired, apart)
        rows.append(
            {
                "rate": RATES[name.partition("-")[0]],
                "steps": found["study"]["budget"]["steps"],
                "variant": variant,
                "seeds": len(seeds),
                "sd": paired,
                "loss": statistics.fmean(before),
                "reduction": (apart / paired) ** 2,
                "reduction_between": strayed(before, after),
                "unpaired": needed,
                "cost": PAIRS / needed / faster.figure,
            }
        )
    return rows


def unpaired(paired: float, apart: float) -> int:
    """The fewest seeds a side whose interval is as narrow as that of five pairs."""
    alpha = 0.05 / FAMILY
    width = -t_quantile(alpha / 2, PAIRS - 1) * paired / math.sqrt(PAIRS)
    return next(n for n in range(2, 100_000) if -t_quantile(alpha / 2, 2 * n - 2) * apart / math.sqrt(n) <= width)


def strayed(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % interval of how pairing divides the variance: the pairs drawn again; none of fewer than six."""
    if len(before) < LEAST:
        return None
    draw, pairs, found = random.Random(0), list(zip(before, after, strict=True)), []
    for _ in range(DRAWS):
        own = draw.choices(pairs, k=len(pairs))
        spread = statistics.pvariance([b - a for a, b in own])
        if spread > 0:
            found.append(sum(statistics.pvariance(side) for side in zip(*own, strict=True)) / spread)
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def trained(rate: float, steps: int) -> dict[str, Any]:
    """The usual way's last losses, of seeds with nothing in common: first values, order, masks, how it is asked."""
    from transformers import get_cosine_schedule_with_warmup

    import paribus

    encoded: Any = paribus.data(paribus.spec("encoder-tiny")).encoded
    train, val = (torch.from_numpy(np.array(side.ids)).long() for side in (encoded.train, encoded.val))
    rows = val[: len(val) // 64 * 64].view(-1, 64)
    losses = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = bert()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        schedule = get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
        for _ in range(steps):
            begins = torch.randint(0, len(train) - 64, (32, 1))
            model(**spoilt(train[begins + torch.arange(64)])).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            losses.append(statistics.fmean(float(model(**spoilt(part)).loss) for part in rows.split(50)))
    return {"rate": rate, "steps": steps, "losses": losses, "sd": statistics.stdev(losses)}


def spoilt(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """BERT's masks, drawn anew each time: of 15 % eight tenths are hidden, one replaced and one left."""
    hidden, how = torch.rand(ids.shape) < 0.15, torch.rand(ids.shape)
    shown = torch.where(hidden & (how < 0.8), 259, ids)
    shown = torch.where(hidden & (how >= 0.9), torch.randint(0, 256, ids.shape), shown)
    return {"input_ids": shown, "labels": torch.where(hidden, ids, -100)}


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=294, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def timed() -> Estimate:
    """How many times as long as ours a step of a model of the same sizes takes, in turns."""
    rounds = Rounds({"ours": ours(), "theirs": theirs()})
    rounds.warm(2)
    for _ in range(ROUNDS):
        rounds()
    return ratio(rounds.times["theirs"], rounds.times["ours"])


def ours() -> Any:
    """Some steps of the quickstart's baseline: batches, loss, gradients, optimizer."""
    import paribus

    spec = paribus.spec("encoder-tiny")
    model: Any = paribus.assemble(spec)
    data: Any = paribus.data(spec)
    model.steps = data.steps = 10_000
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    optimizer = model.optimizer.build(matrices, [each for each in model.parameters() if each.ndim < 2])
    at = iter(range(10_000))

    def run() -> None:
        for _ in range(STEPS):
            model.loss(data.step(next(at))).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def theirs() -> Any:
    """The same number of steps of `BertForMaskedLM` in the same sizes, masked by a vectorised draw, on ready ids."""
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ids = torch.randint(4, 256, (64, 32, 64))
    at = iter(range(10_000))

    def run() -> None:
        for _ in range(STEPS):
            model(**spoilt(ids[next(at) % len(ids)])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
