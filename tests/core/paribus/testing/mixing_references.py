"""References of the attentions without values: Fourier transform, convolution, recurrence; each from its paper.

A token (T, D) of `x` mixes with those that `visible` (T, T) marks as its document's, and as not in the future.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Any, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def identity(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    return x


def fourier(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    """The real part of the discrete Fourier transform of tokens and channels (Lee-Thorp et al. 2021)."""

    def waves(size: int) -> Tensor:
        angles = [[-2 * math.pi * row * column / size for column in range(size)] for row in range(size)]
        return torch.polar(torch.ones(size, size, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))

    tokens, channels = (waves(size) for size in x.shape)
    return (tokens @ x.to(tokens.dtype) @ channels).real


def convolution(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A weighted sum of nearby tokens in each channel, then a linear map (Wu et al. 2019)."""
    kernel, weight = options["kernel"], module.depthwise.weight  # (D, kernel)
    is_causal = not visible.triu(1).any()
    before = kernel - 1 if is_causal else kernel // 2  # an even kernel has one more token on the left
    sums = torch.zeros_like(x) if module.depthwise.bias is None else module.depthwise.bias.repeat(len(x), 1)
    for i in range(len(x)):
        document = visible[i].nonzero().flatten().tolist()  # without padding, and without later tokens if causal
        for tap in range(kernel if document else 0):
            neighbour = document.index(i) - before + tap
            if 0 <= neighbour < len(document):
                sums[i] += weight[:, tap] * x[document[neighbour]]
    mixed: Tensor = module.pointwise(sums)
    return mixed


def full_convolution(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A matrix for each token of the window (Collobert et al. 2011), then a gate (Gehring et al. 2017)."""
    return convolve(module, x, visible, options, options["dilation"])


def dilated_convolution(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """The same with another dilation in each layer (Kalchbrenner et al. 2016)."""
    growth, dilations = options["growth"] or options["kernel"], [1]
    for _ in range(module.shape.layer):
        dilations.append(dilations[-1] * growth if dilations[-1] * growth < module.shape.length else 1)
    return convolve(module, x, visible, options, dilations[-1])


def bottleneck_convolution(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]
) -> Tensor:
    """Figure 3, left (Kalchbrenner et al. 2016): ReLU, map, norm, ReLU, convolution, norm, ReLU, map."""

    def layer_norm(h: Tensor, norm: Any) -> Any:
        centred = h - h.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias

    h = layer_norm(module.reduce(x.clamp_min(0)), module.before).clamp_min(0)
    h = convolve(module, h, visible, {**options, "gate": False}, options["dilation"])
    mapped: Tensor = module.outer(layer_norm(h, module.after).clamp_min(0))
    return mapped


def convolve(module: Any, x: Tensor, visible: Tensor, options: Mapping[str, Any], dilation: int) -> Tensor:
    kernel, matrices = options["kernel"], module.convolution.weight.split(x.shape[1], dim=1)  # (O, D) each
    is_causal = not visible.triu(1).any()
    before = kernel - 1 if is_causal else kernel // 2
    rows = []
    for i in range(len(x)):
        document = visible[i].nonzero().flatten().tolist()  # without padding, and without later tokens if causal
        total = x.new_zeros(len(matrices[0])) if module.convolution.bias is None else module.convolution.bias
        for tap in range(kernel if document else 0):
            neighbour = document.index(i) + (tap - before) * dilation
            if 0 <= neighbour < len(document):
                total = total + matrices[tap] @ x[document[neighbour]]
        a, b = total.chunk(2) if options["gate"] else (total, None)
        rows.append(a if b is None else a / (1 + (-b).exp()))
    return torch.stack(rows)


def gated_recurrent_unit(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    """Reset and update gate (Cho et al. 2014), the reset gate after the product, as in cuDNN."""

    def step(direction: Any, token: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (read_r, read_z, read_n), (r, z, n) = direction.reads(token).chunk(3), direction.repeats(states[0]).chunk(3)
        reset, update = torch.sigmoid(read_r + r), torch.sigmoid(read_z + z)
        return ((1 - update) * torch.tanh(read_n + reset * n) + update * states[0],)

    return recurrent(module, x, visible, step, count=1)


def long_short_term_memory(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    """Input, forget and output gate (Hochreiter & Schmidhuber 1997, Gers et al. 2000)."""

    def step(direction: Any, token: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = states
        i, f, new, o = (direction.reads(token) + direction.repeats(h)).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        return torch.sigmoid(o) * torch.tanh(c), c

    return recurrent(module, x, visible, step, count=2)


def recurrent(module: Any, x: Tensor, visible: Tensor, step: Step, count: int) -> Tensor:
    """Read the tokens of each document from a state of 0; in bidirectional stacks, also in reverse."""
    outputs: list[list[Tensor]] = [[] for _ in x]
    orders = (range(len(x)), reversed(range(len(x))))
    for direction, tokens in zip(module.directions, orders, strict=False):
        zeros = (x.new_zeros(direction.repeats.in_features),) * count
        states, previous = zeros, None
        for token in tokens:
            if not visible[token, token]:  # padding
                outputs[token].append(zeros[0])
                continue
            if previous is not None and not visible[max(token, previous), min(token, previous)]:  # another document
                states = zeros
            states, previous = step(direction, x[token], states), token
            outputs[token].append(states[0])
    return torch.stack([torch.cat(both) for both in outputs])


def quasi_recurrent_neural_network(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]
) -> Tensor:
    """A convolution of the last `kernel` tokens for z and the gates, and their pooling (Bradbury et al. 2017)."""
    kernel, pooling = options["kernel"], options["pooling"]
    outputs: list[list[Tensor]] = [[] for _ in x]
    for convolution, tokens in zip(module.directions, (range(len(x)), reversed(range(len(x)))), strict=False):
        inner = convolution.out_features // {"f": 2, "fo": 3, "ifo": 4}[pooling]
        document: list[int] = []  # tokens read so far
        c = x.new_zeros(inner)
        for token in tokens:
            if not visible[token, token]:  # padding
                outputs[token].append(x.new_zeros(inner))
                continue
            if document and not visible[max(token, document[-1]), min(token, document[-1])]:  # another document
                document, c = [], x.new_zeros(inner)
            document.append(token)
            window = [x[row] for row in document[-kernel:]]
            window = [x.new_zeros(x.shape[1])] * (kernel - len(window)) + window
            z, f, *others = convolution(torch.cat(window)).chunk(convolution.out_features // inner)
            f = torch.sigmoid(f)
            i = torch.sigmoid(others[1]) if pooling == "ifo" else 1 - f
            c = f * c + i * torch.tanh(z)
            outputs[token].append(c if pooling == "f" else torch.sigmoid(others[0]) * c)
    return torch.stack([torch.cat(both) for both in outputs])


REFERENCES: dict[str, Callable[..., Any]] = {
    "attention.bottleneck-conv": bottleneck_convolution,
    "attention.conv": convolution,
    "attention.dilated-conv": dilated_convolution,
    "attention.fourier": fourier,
    "attention.full-conv": full_convolution,
    "attention.gru": gated_recurrent_unit,
    "attention.identity": identity,
    "attention.lstm": long_short_term_memory,
    "attention.qrnn": quasi_recurrent_neural_network,
}
