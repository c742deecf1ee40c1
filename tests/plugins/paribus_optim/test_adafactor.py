"""Adafactor, compared with the paper's algorithms 4 and 5."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paribus import Optimizer
from paribus_optim.adafactor import Adafactor

LR, DECAY, CLIP, LEAST = 0.6, 0.8, 1.05, 1e-3
TakeSteps = Callable[[Optimizer], list[Tensor]]
Rows = list[list[float]]


def root_mean_square(rows: Rows) -> float:
    flat = [number for row in rows for number in row]
    return math.sqrt(sum(number**2 for number in flat) / len(flat))


def reference(value: Tensor, gradients: Sequence[Tensor]) -> Rows:
    w: Rows = value.tolist()
    n, m = value.shape
    rows, columns = [0.0] * n, [0.0] * m
    for step, step_gradients in enumerate(gradients, start=1):
        g: Rows = step_gradients.tolist()
        decay_rate = 1 - step**-DECAY
        rows = [decay_rate * rows[i] + (1 - decay_rate) * sum(g[i][j] ** 2 for j in range(m)) for i in range(n)]
        columns = [decay_rate * columns[j] + (1 - decay_rate) * sum(g[i][j] ** 2 for i in range(n)) for j in range(m)]
        update = [[g[i][j] / math.sqrt(rows[i] * columns[j] / sum(rows)) for j in range(m)] for i in range(n)]
        rate = max(LEAST, root_mean_square(w)) * min(LR, 1 / math.sqrt(step))
        clipped = max(1.0, root_mean_square(update) / CLIP)
        w = [[w[i][j] - rate * update[i][j] / clipped for j in range(m)] for i in range(n)]
    return w


def test_matrices_match_the_paper(take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    actual = take_steps(Adafactor(lr=LR, decay=DECAY, clip=CLIP, min_rms=LEAST))
    for place in (0, 1):
        expected = torch.tensor(
            reference(start[place], [step_gradients[place] for step_gradients in gradients]), dtype=torch.float64
        )
        torch.testing.assert_close(actual[place], expected, rtol=0, atol=1e-9)


def test_vectors_keep_all_squares(take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    actual = take_steps(Adafactor(lr=LR, decay=DECAY, clip=CLIP, min_rms=LEAST))[2]
    w, squares = start[2], torch.zeros_like(start[2])
    for step, step_gradients in enumerate(gradients, start=1):
        decay_rate = 1 - step**-DECAY
        squares = decay_rate * squares + (1 - decay_rate) * step_gradients[2] ** 2
        update = step_gradients[2] / squares.sqrt()
        rate = max(LEAST, w.square().mean().sqrt().item()) * min(LR, 1 / math.sqrt(step))
        w = w - rate * update / max(1.0, update.square().mean().sqrt().item() / CLIP)
    torch.testing.assert_close(actual, w, rtol=0, atol=1e-9)
