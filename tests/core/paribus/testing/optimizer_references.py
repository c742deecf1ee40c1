"""Readable optimizers with a rule for hidden matrices: the steps of one tensor at a time."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paribus import ParameterInfo

Options = Mapping[str, Any]


def adamw_of_the_rest(
    weight: Tensor, gradients: Sequence[Tensor], options: Options, factors: Sequence[float]
) -> Tensor:
    own = {name: options[name] if value is None else value for name, value in options["adamw"].items()}
    mean = square = torch.zeros_like(weight)
    for step, (gradient, factor) in enumerate(zip(gradients, factors, strict=True), start=1):
        mean = own["beta1"] * mean + (1 - own["beta1"]) * gradient
        square = own["beta2"] * square + (1 - own["beta2"]) * gradient**2
        root = (square / (1 - own["beta2"] ** step)).sqrt() + own["eps"]
        direction = mean / (1 - own["beta1"] ** step) / root
        decay = own["weight_decay"] if weight.ndim > 1 else 0.0
        weight = decayed(weight, direction, factor * own["lr"] * decay, options) - factor * own["lr"] * direction
    return weight


def decayed(weight: Tensor, direction: Tensor, share: float, options: Options) -> Tensor:
    if not options["cautious_decay"]:
        return weight - share * weight
    return torch.where(direction.sign() * weight.sign() >= 0, weight - share * weight, weight)


def orthogonal(matrices: Tensor, options: Options) -> Tensor:
    """(…, O, I) -> (…, O, I): the polynomial of the iterations, of singular values; in bfloat16, torch's products."""
    steps, (a, b, c) = options["newton_schulz"]["steps"], (3.4445, -4.7750, 2.0315)
    if not options["newton_schulz"]["bfloat16"]:
        u, s, v = torch.linalg.svd(matrices, full_matrices=False)
        s = s / s.norm(dim=-1, keepdim=True)
        for _ in range(steps):
            s = a * s + b * s**3 + c * s**5
        product: Tensor = u * s.unsqueeze(-2) @ v
        return product
    is_tall, add_product = matrices.shape[-2] > matrices.shape[-1], torch.baddbmm if matrices.ndim > 2 else torch.addmm
    x = matrices.bfloat16().mT if is_tall else matrices.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(steps):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


def momenta(gradients: Sequence[Tensor], options: Options) -> list[Tensor]:
    mean, share, momenta = torch.zeros_like(gradients[0]), options["momentum"], list[Tensor]()
    for gradient in gradients:
        mean = mean.lerp(gradient, 1 - share)  # rounded as there: bfloat16 makes more of another last digit
        momenta.append(gradient.lerp(mean, share) if options["nesterov"] else mean)
    return momenta


Directions = Callable[[Sequence[Tensor], Options], list[Tensor]]


def muon_directions(gradients: Sequence[Tensor], options: Options) -> list[Tensor]:
    rows, columns = gradients[0].shape[-2:]
    scale = (
        0.2 * math.sqrt(max(rows, columns)) if options["scale"] == "match-rms" else math.sqrt(max(1, rows / columns))
    )
    return [scale * orthogonal(momentum, options) for momentum in momenta(gradients, options)]


def with_hidden_matrices(directions: Directions) -> Callable[..., Tensor]:
    """Return the reference of an optimizer that steps in these directions for each hidden matrix."""

    def reference(
        optimizer: Any,
        weight: Tensor,
        gradients: Sequence[Tensor],
        options: Options,
        factors: Sequence[float],
        about: ParameterInfo,
    ) -> Tensor:
        if about.role in ("embedding", "bias"):
            return adamw_of_the_rest(weight, gradients, options, factors)
        for direction, factor in zip(directions(gradients, options), factors, strict=True):
            rate = factor * options["lr"]
            weight = decayed(weight, direction, rate * options["weight_decay"], options) - rate * direction
        return weight

    return reference


def normuon_directions(gradients: Sequence[Tensor], options: Options) -> list[Tensor]:
    square, directions = torch.zeros_like(gradients[0][..., :1]), list[Tensor]()
    for momentum in momenta(gradients, options):
        direction = orthogonal(momentum, options)
        square = options["beta2"] * square + (1 - options["beta2"]) * direction.square().mean(-1, keepdim=True)
        direction = direction / square.sqrt()
        directions.append(0.2 * direction / direction.square().mean((-2, -1), keepdim=True).sqrt())
    return directions


def soap(
    optimizer: Any,
    weight: Tensor,
    gradients: Sequence[Tensor],
    options: Options,
    factors: Sequence[float],
    about: ParameterInfo,
) -> Tensor:
    """Algorithm 3 of Vyas et al. 2024 and algorithm 4, its power iteration; its first step is Adam's."""
    options = {**options, "cautious_decay": False}
    if about.role in ("embedding", "bias"):
        return adamw_of_the_rest(weight, gradients, options, factors)
    if weight.ndim > 2:
        each = [soap(optimizer, *of, options, factors, about) for of in zip(weight, zip(*gradients, strict=True))]  # noqa: B905  one list of gradients a matrix
        return torch.stack(each)
    means, squares = torch.zeros_like(weight), torch.zeros_like(weight)
    statistics = [(1 - options["beta2"]) * g for g in (gradients[0] @ gradients[0].T, gradients[0].T @ gradients[0])]
    bases = [first_basis(s) if len(s) <= options["max_side"] else torch.eye(len(s)).to(s) for s in statistics]
    for step, (gradient, factor) in enumerate(zip(gradients, factors, strict=True)):
        direction = gradient / (gradient.abs() + options["eps"])
        if step:
            rotated = bases[0].T @ gradient @ bases[1]
            means = options["beta1"] * means + (1 - options["beta1"]) * gradient
            squares = options["beta2"] * squares + (1 - options["beta2"]) * rotated**2
            root = (squares / (1 - options["beta2"] ** step)).sqrt() + options["eps"]
            mean = bases[0].T @ means @ bases[1] / (1 - options["beta1"] ** step)
            direction = bases[0] @ (mean / root) @ bases[1].T
            for side, product in enumerate((gradient @ gradient.T, gradient.T @ gradient)):
                statistics[side] = options["beta2"] * statistics[side] + (1 - options["beta2"]) * product
                if step % options["frequency"] == 0 and len(product) <= options["max_side"]:
                    turned = statistics[side] @ bases[side]
                    order = (bases[side] * turned).sum(0).argsort(descending=True)
                    squares = squares[order] if side == 0 else squares[:, order]
                    bases[side] = torch.linalg.qr(turned[:, order]).Q
        rate = factor * options["lr"]
        weight = weight - rate * options["weight_decay"] * weight - rate * direction
    return weight


def first_basis(statistic: Tensor) -> Tensor:
    """Return eigenvectors, by falling eigenvalues; a small ramp determines those of eigenvalues of 0."""
    ramp = torch.linspace(0, 1e-6, len(statistic), dtype=statistic.dtype) * statistic.trace() / len(statistic)
    vectors: Tensor = torch.linalg.eigh(statistic + torch.diag(ramp)).eigenvectors
    return vectors.flip(-1)


def lion(
    optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Options, factors: Sequence[float]
) -> Tensor:
    mean = torch.zeros_like(weight)
    for gradient, factor in zip(gradients, factors, strict=True):
        direction = (options["beta1"] * mean + (1 - options["beta1"]) * gradient).sign()
        rate, decay = factor * options["lr"], options["weight_decay"] if weight.ndim > 1 else 0.0
        weight = decayed(weight, direction, rate * decay, options) - rate * direction
        mean = options["beta2"] * mean + (1 - options["beta2"]) * gradient
    return weight


def ademamix(
    optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Options, factors: Sequence[float]
) -> Tensor:
    """Algorithm 1 of Pagliardini et al. 2024; the decay rises so that its half-life is linear in the step."""
    mean = square = slow = torch.zeros_like(weight)
    alpha, beta1, beta2, beta3 = (options[name] for name in ("alpha", "beta1", "beta2", "beta3"))
    for step, (gradient, factor) in enumerate(zip(gradients, factors, strict=True), start=1):
        progress = min(1.0, step / options["warmup"]) if options["warmup"] else 1.0
        inverse = (
            (1 - progress) / math.log(max(beta1, 1e-8)) + progress / math.log(beta3)
            if progress < 1
            else 1 / math.log(beta3)
        )
        decay = min(beta3, math.exp(1 / inverse))
        mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
        slow = decay * slow + (1 - decay) * gradient
        root = (square / (1 - beta2**step)).sqrt() + options["eps"]
        direction = (mean / (1 - beta1**step) + progress * alpha * slow) / root
        share = options["weight_decay"] if weight.ndim > 1 else 0.0
        weight = weight - factor * options["lr"] * (direction + share * weight)
    return weight


def schedule_free(
    optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Options, factors: Sequence[float]
) -> Tensor:
    """Algorithm 1 of Defazio et al. 2024, with x, y and z apart, and steps weighted by the squared maximum rate."""
    beta, decay = options["beta1"], options["weight_decay"] if weight.ndim > 1 else 0.0
    x = y = z = weight
    square, largest, total = torch.zeros_like(weight), 0.0, 0.0
    for step, (gradient, factor) in enumerate(zip(gradients, factors, strict=True), start=1):
        rate = factor * options["lr"]
        largest = max(largest, rate)
        total += largest**2
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        root = (square / (1 - options["beta2"] ** step)).sqrt() + options["eps"]
        z = z - rate * (gradient / root + decay * y)
        share = largest**2 / total if total else 0.0
        x = (1 - share) * x + share * z
        y = (1 - beta) * z + beta * x
    return y


REFERENCES = {
    "optimizer.ademamix": ademamix,
    "optimizer.lion": lion,
    "optimizer.schedule-free": schedule_free,
    "optimizer.normuon": with_hidden_matrices(normuon_directions),
    "optimizer.soap": soap,
    "optimizer.muon": with_hidden_matrices(muon_directions),
}
