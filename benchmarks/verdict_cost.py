"""P11, the cost of a verdict: compute to reach an interval of one width, paired here and unpaired with Hugging Face.

    python benchmarks/verdict_cost.py            # from the trials in results/trials, and steps that it times

Cost is seeds by CPU seconds of a step; both train as many steps. The width is that of five paired seeds, at the level
of Holm's first step. The usual way has a Student interval of two samples (2n - 2 degrees of freedom), and the spread of
seeds that our own trials have, taken as if they were not paired. Steps are timed in turns, in CPU time of one thread.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # run by its path, this is no part of a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.collect import head  # noqa: E402  # the same
from benchmarks.paired import Estimate, Rounds, ratio  # noqa: E402  # the same

from paribus.report.statistics.student import summarise, t_quantile  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"
PAIRS, FAMILY, STEPS, ROUNDS = 5, 4, 5, 8


def main() -> int:
    faster = timed()
    rows = [row for name in ("verdict", "verdict-2x", "verdict-8x") for row in rows_of(name, faster)]
    document = {"machine": machine.described(), "commit": head(), "faster_step": vars(faster), "rows": rows}
    (TRIALS / "verdict-cost.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"a step of Hugging Face / ours: {faster}")
    for row in rows:
        print(
            f"{row['steps']:5} steps  {row['variant']:32} n {row['seeds']}  variance / {row['reduction']:.3g}  "
            f"seeds {PAIRS} against {row['unpaired']:.0f}  cost {row['cost']:.3g}"
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
                "steps": found["study"]["budget"]["steps"],
                "variant": variant,
                "seeds": len(seeds),
                "reduction": (apart / paired) ** 2,
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
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=264, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: Any = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ids = torch.randint(4, 260, (64, 32, 64))
    at = iter(range(10_000))

    def run() -> None:
        for _ in range(STEPS):
            batch = ids[next(at) % len(ids)]
            hidden = torch.rand(batch.shape) < 0.15
            labels = torch.where(hidden, batch, -100)
            model(input_ids=torch.where(hidden, 3, batch), labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
