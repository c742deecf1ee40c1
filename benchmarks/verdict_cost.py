"""P11, the cost of a verdict: compute for an interval of given width, with paired seeds and with Hugging Face.

    python benchmarks/verdict_cost.py            # reads results/trials, and times steps
    python benchmarks/verdict_cost.py --usual    # also trains Hugging Face models, a few minutes

Cost is the number of seeds times the CPU seconds of a step, at an equal number of steps. The width is that of
five paired seeds, at the level of Holm's first step. The unpaired way uses a Student interval of two samples (2n - 2
degrees of freedom), and the spread of Paribus trials over seeds. Steps are timed in turns, in CPU time of one thread.
The spread of seeds of `BertForMaskedLM`, with separate initial weights, order and masks, is reported as well.
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
sys.path.insert(0, str(HERE.parent))  # run as a script, this file is not in a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.collect import head  # noqa: E402  # the same
from benchmarks.paired import Estimate, Rounds, ratio  # noqa: E402  # the same

from paribus.analysis.p_values import summarise, t_quantile  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"
STUDIES = ("verdict", "verdict-2x", "verdict-8x", "gentle", "gentle-2x", "gentle-8x", "gentlest")
RATES = {"verdict": 5e-3, "gentle": 1e-3, "gentlest": 3e-4}
PAIRS, FAMILY, STEPS, ROUNDS, SEEDS, DRAWS, LEAST = 5, 4, 5, 8, 8, 4000, 6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--usual", action="store_true", help="also train Hugging Face models with independent seeds")
    options = parser.parse_args(argv)
    path = TRIALS / "verdict-cost.json"
    usual = json.loads(path.read_text(encoding="utf-8")).get("usual", []) if path.is_file() else []
    if options.usual:
        usual = [train_losses(rate, steps) for rate in (5e-3, 1e-3) for steps in (200, 400)]
    speedup = step_time_ratio()
    rows = [row for study in STUDIES for row in rows_of(study, speedup)]
    document = {"machine": machine.described(), "commit": head(), "faster_step": vars(speedup), "rows": rows}
    path.write_text(json.dumps(document | {"usual": usual}, indent=1) + "\n", encoding="utf-8")
    print(f"a step of Hugging Face / Paribus: {speedup}")
    for row in rows:
        bounds = row["reduction_between"]
        interval = f"[{bounds[0]:.2g}, {bounds[1]:.2g}]" if bounds else "(too few seeds for an interval)"
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


def rows_of(name: str, speedup: Estimate) -> list[dict[str, Any]]:
    """Return a row for each variant, of the seeds that it shares with the baseline."""
    path = TRIALS / f"{name}.json"
    if not path.is_file():
        return []
    collection = json.loads(path.read_text(encoding="utf-8"))
    values = collection["values"]
    rows = []
    for variant, variant_values in values.items():
        seeds = [seed for seed in variant_values if seed in values["baseline"]]
        if variant == "baseline" or len(seeds) < 2:
            continue
        baseline_losses, variant_losses = (
            [side[seed] for seed in seeds] for side in (values["baseline"], variant_values)
        )
        paired_sd = summarise([b - a for a, b in zip(baseline_losses, variant_losses, strict=True)]).sd or 0.0
        unpaired_sd = math.hypot(summarise(baseline_losses).sd or 0.0, summarise(variant_losses).sd or 0.0)
        needed = unpaired_seeds(paired_sd, unpaired_sd)
        rows.append(
            {
                "rate": RATES[name.partition("-")[0]],
                "steps": collection["study"]["budget"]["steps"],
                "variant": variant,
                "seeds": len(seeds),
                "sd": paired_sd,
                "loss": statistics.fmean(baseline_losses),
                "reduction": (unpaired_sd / paired_sd) ** 2,
                "reduction_between": reduction_interval(baseline_losses, variant_losses),
                "unpaired": needed,
                "cost": PAIRS / needed / speedup.figure,
            }
        )
    return rows


def unpaired_seeds(paired_sd: float, unpaired_sd: float) -> int:
    """Return the smallest number of seeds per variant whose unpaired interval is as narrow as that of five pairs."""
    alpha = 0.05 / FAMILY
    width = -t_quantile(alpha / 2, PAIRS - 1) * paired_sd / math.sqrt(PAIRS)
    return next(n for n in range(2, 100_000) if -t_quantile(alpha / 2, 2 * n - 2) * unpaired_sd / math.sqrt(n) <= width)


def reduction_interval(baseline_losses: Sequence[float], variant_losses: Sequence[float]) -> tuple[float, float] | None:
    """Return a 95 % bootstrap interval of the variance reduction by pairing; None for fewer than six pairs."""
    if len(baseline_losses) < LEAST:
        return None
    rng, pairs, ratios = random.Random(0), list(zip(baseline_losses, variant_losses, strict=True)), []
    for _ in range(DRAWS):
        sample = rng.choices(pairs, k=len(pairs))
        spread = statistics.pvariance([b - a for a, b in sample])
        if spread > 0:
            ratios.append(sum(statistics.pvariance(side) for side in zip(*sample, strict=True)) / spread)
    ratios.sort()
    return ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios))]


def train_losses(rate: float, steps: int) -> dict[str, Any]:
    """Return final losses of Hugging Face training with independent seeds: initial weights, order and masks."""
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
            starts = torch.randint(0, len(train) - 64, (32, 1))
            model(**mask_tokens(train[starts + torch.arange(64)])).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            losses.append(statistics.fmean(float(model(**mask_tokens(part)).loss) for part in rows.split(50)))
    return {"rate": rate, "steps": steps, "losses": losses, "sd": statistics.stdev(losses)}


def mask_tokens(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Mask tokens like BERT, with fresh draws: of 15 %, 80 % are masked, 10 % replaced and 10 % unchanged."""
    selected, action = torch.rand(ids.shape) < 0.15, torch.rand(ids.shape)
    corrupted = torch.where(selected & (action < 0.8), 259, ids)
    corrupted = torch.where(selected & (action >= 0.9), torch.randint(0, 256, ids.shape), corrupted)
    return {"input_ids": corrupted, "labels": torch.where(selected, ids, -100)}


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=294, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def step_time_ratio() -> Estimate:
    """Return the ratio of step times, of Hugging Face to Paribus, for models of the same sizes."""
    rounds = Rounds({"ours": paribus_steps(), "theirs": hugging_face_steps()})
    rounds.warm(2)
    for _ in range(ROUNDS):
        rounds()
    return ratio(rounds.times["theirs"], rounds.times["ours"])


def paribus_steps() -> Any:
    """Return a function that runs steps of the quickstart's baseline: batches, loss, gradients, optimizer."""
    import paribus

    spec = paribus.spec("encoder-tiny")
    model: Any = paribus.assemble(spec)
    data: Any = paribus.data(spec)
    model.steps = data.steps = 10_000
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    optimizer = model.optimizer.build(
        matrices, [parameter_1d for parameter_1d in model.parameters() if parameter_1d.ndim < 2]
    )
    steps = iter(range(10_000))

    def run() -> None:
        for _ in range(STEPS):
            model.loss(data.step(next(steps))).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def hugging_face_steps() -> Any:
    """Return a function that runs as many steps of `BertForMaskedLM` of the same sizes, on prepared ids."""
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ids = torch.randint(4, 256, (64, 32, 64))
    steps = iter(range(10_000))

    def run() -> None:
        for _ in range(STEPS):
            model(**mask_tokens(ids[next(steps) % len(ids)])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
