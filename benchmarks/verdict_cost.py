"""P11, the cost of a verdict: compute until a decision about a variant, compared with the usual way.

    python benchmarks/verdict_cost.py            # reads results/trials and ablations/, and times steps: minutes
    python benchmarks/verdict_cost.py --usual    # also trains Hugging Face models, a few minutes

Both ways compare two arms at 5 % error, divided by the number of variants of the study, and plan their seeds to detect
a difference of the study's margin with 80 % power.

- The usual way runs as many seeds as it planned, with Welch's test of independent samples, and Hugging Face's steps.
- Ours pairs seeds, and stops at the first look that decides (`stop: when-decided`). The expected number of seeds is
  simulated for the measured difference with its standard deviation between seeds, with the code of studies.

Cost is the number of seeds times the CPU time of a step. Steps are timed in turns, in CPU time of one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # run as a script, this file is not in a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.collect import head  # noqa: E402  # the same
from benchmarks.paired import Estimate, Rounds, ratio  # noqa: E402  # the same

from paribus.analysis.early_stopping import LookData, alpha_shares, decide_sequentially  # noqa: E402  # the same
from paribus.analysis.power import MAX_SEEDS, power_to_detect, seeds_for_power  # noqa: E402  # the same
from paribus.analysis.verdicts import PairedDifferences  # noqa: E402  # the same
from paribus.specs.yaml_reader import read_file  # noqa: E402  # the same
from paribus.studies.parse_options import default_looks  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"
ABLATIONS = HERE.parent / "ablations"
COLLECTED = ("verdict", "verdict-2x", "verdict-8x", "gentle", "gentle-2x", "gentle-8x")
SHIPPED = ("quickstart", "recipe", "bert-to-modernbert", "perplexity", "probes", "translation")  # studies of one metric
ALPHA, POWER = 0.05, 0.8
STEPS, ROUNDS, SEEDS = 5, 12, 8
SIMULATIONS, RESAMPLES, RESAMPLE_SIMULATIONS, LEAST_SEEDS = 1000, 60, 40, 6
SMALL = 1e-9  # a standard deviation: all seeds agree


class Effect(NamedTuple):
    """A variant of a study beside its baseline: the metric of both on equal seeds."""

    study: str
    variant: str
    variants: int  # that share the error of the study
    steps: int
    margin: float
    baseline: Sequence[float]
    values: Sequence[float]

    @property
    def alpha(self) -> float:
        return ALPHA / self.variants

    @property
    def difference(self) -> float:
        return statistics.fmean(self.values) - statistics.fmean(self.baseline)

    @property
    def paired_sd(self) -> float:
        return max(SMALL, statistics.stdev(b - a for a, b in zip(self.baseline, self.values, strict=True)))

    @property
    def unpaired_sd(self) -> float:
        return max(SMALL, math.hypot(statistics.stdev(self.baseline), statistics.stdev(self.values)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usual", action="store_true", help="also train Hugging Face models with independent seeds")
    parser.add_argument("--simulations", type=int, default=SIMULATIONS)
    options = parser.parse_args(argv)
    path = TRIALS / "verdict-cost.json"
    usual = json.loads(path.read_text(encoding="utf-8")).get("usual", []) if path.is_file() else []
    if options.usual:
        usual = [train_losses(rate, steps) for rate in (5e-3, 1e-3) for steps in (200, 400)]
    speedup = step_time_ratio()
    print(f"a step of Hugging Face / paribus: {speedup}\n")
    rows = []
    for effect in effects():
        rows.append(row_of(effect, speedup.figure, options.simulations))
        print(line_of(rows[-1]), flush=True)
    document = {"machine": machine.described(), "commit": head(), "faster_step": vars(speedup), "rows": rows}
    path.write_text(json.dumps(document | {"usual": usual}, indent=1) + "\n", encoding="utf-8")
    for row in usual:
        print(
            f"usual way: rate {row['rate']:g}, {row['steps']} steps: sd of {len(row['losses'])} seeds {row['sd']:.3f}"
        )
    return 0


def effects() -> Iterator[Effect]:
    """Yield the effects of the shipped studies, and of the collected ones, which have more seeds."""
    for name in SHIPPED:
        study = read_file(ABLATIONS / name / "study.yaml").data
        yield from effects_of(name, study, shipped_values(name, study))
    for name in COLLECTED:
        collection = json.loads((TRIALS / f"{name}.json").read_text(encoding="utf-8"))
        yield from effects_of(name, collection["study"], collection["values"])


def shipped_values(name: str, study: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the metric of each variant of a shipped study, by seed."""
    metric = study["metric"]
    values: dict[str, dict[str, float]] = {}
    for line in (ABLATIONS / name / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["result"]["state"] == "done":
            values.setdefault(record["variant"], {})[str(record["seed"])] = record["result"]["metrics"][metric["name"]]
    return values


def effects_of(name: str, study: Mapping[str, Any], values: Mapping[str, Mapping[str, float]]) -> Iterator[Effect]:
    """Yield each variant beside the baseline, or beside the previous variant in a ladder, on the seeds of both."""
    labels = sorted(values, key="baseline".__ne__)  # the baseline first, and the others in their order
    steps = int(study["budget"]["steps"])
    for index, label in enumerate(labels[1:]):
        base = values[labels[index if study.get("design") == "ladder" else 0]]
        seeds = [seed for seed in values[label] if seed in base]
        if len(seeds) >= 3:
            sides = ([side[seed] for seed in seeds] for side in (base, values[label]))
            yield Effect(name, label, len(labels) - 1, steps, study["metric"]["margin"], *sides)


def row_of(effect: Effect, faster_step: float, simulations: int) -> dict[str, Any]:
    """Return the seeds that both ways need, and the ratio of their costs with an interval where there are seeds."""
    rng = random.Random(f"{effect.study} {effect.variant}")
    ours, decided = sequential_seeds(effect, simulations, rng)
    costs = []
    for _ in range(RESAMPLES if len(effect.values) >= LEAST_SEEDS else 0):
        pairs = rng.choices(list(zip(effect.baseline, effect.values, strict=True)), k=len(effect.values))
        sample = effect._replace(baseline=[a for a, _ in pairs], values=[b for _, b in pairs])
        costs.append(sequential_seeds(sample, RESAMPLE_SIMULATIONS, rng)[0] / usual_seeds(sample) / faster_step)
    costs.sort()
    return {
        "study": effect.study,
        "variant": effect.variant,
        "steps": effect.steps,
        "seeds": len(effect.values),
        "margin": effect.margin,
        "difference": effect.difference,
        "paired_sd": effect.paired_sd,
        "unpaired_sd": effect.unpaired_sd,
        "usual_seeds": usual_seeds(effect),
        "paired_seeds": planned_seeds(effect),
        "expected_seeds": ours,
        "decided": decided,
        "cost": ours / usual_seeds(effect) / faster_step,
        "cost_between": [costs[int(0.025 * len(costs))], costs[int(0.975 * len(costs))]] if costs else None,
    }


def line_of(row: Mapping[str, Any]) -> str:
    between = row["cost_between"]
    interval = f" [{between[0]:.2f}, {between[1]:.2f}]" if between else ""
    return (
        f"| {row['study']} | {row['variant']} | {row['difference']:+.3f} | {row['paired_sd']:.3f} | "
        f"{row['unpaired_sd']:.3f} | {row['usual_seeds']} | {row['paired_seeds']} | {row['expected_seeds']:.1f} | "
        f"{100 * row['decided']:.0f} % | {row['cost']:.2f}{interval} |"
    )


def usual_seeds(effect: Effect) -> int:
    """Return the seeds of each arm with which Welch's test of two equal spreads detects the margin."""

    def reached(n: int) -> float:
        pairs = 2 * n - 1  # a paired test with as many degrees of freedom, and the same standard error
        return power_to_detect(effect.margin, effect.unpaired_sd * math.sqrt(pairs / n), pairs, effect.alpha)

    return seeds_for_power(reached, POWER) or MAX_SEEDS


def planned_seeds(effect: Effect) -> int:
    """Return the seeds with which the last look of a study that stops early detects the margin."""

    def reached(n: int) -> float:
        alpha = effect.alpha * alpha_shares(default_looks(n))[-1]
        return power_to_detect(effect.margin, effect.paired_sd, n, alpha)

    return seeds_for_power(reached, POWER) or MAX_SEEDS


def sequential_seeds(effect: Effect, simulations: int, rng: random.Random) -> tuple[float, float]:
    """Return the mean number of seeds until a decision, and the share of studies that come to one."""
    planned = planned_seeds(effect)
    looks = default_looks(planned)
    seeds = decided = 0
    for _ in range(simulations):
        differences = tuple(rng.gauss(effect.difference, effect.paired_sd) for _ in range(planned))

        def see(name: str, n: int, differences: tuple[float, ...] = differences) -> LookData:
            paired = PairedDifferences(differences=differences[:n], diverged=0, planned=n)
            return LookData(paired=paired, ended=True, has_all_records=True)

        state = decide_sequentially(
            ["variant"], see, looks=looks, better="lower", margin=effect.margin, alpha=effect.alpha
        )["variant"]
        seeds += state.n
        decided += state.verdict.kind != "inconclusive"
    return seeds / simulations, decided / simulations


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
