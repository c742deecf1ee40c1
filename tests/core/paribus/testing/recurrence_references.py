"""References of the recurrences of a matrix state, token by token; each from its paper."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def document_before(visible: Tensor, token: int) -> list[int]:
    """Return the tokens of a token's document up to itself, without padding."""
    return [index for index in visible[token].nonzero().flatten().tolist() if index <= token]


def convolved(module: Any, x: Tensor, visible: Tensor) -> list[Tensor]:
    """Project to queries, keys and values, add a sum over the last tokens, and apply SiLU: 3 x (T, W)."""
    heads = module.heads
    channels = torch.cat([heads.q(x), heads.k(x), heads.v(x)], dim=-1)
    rows = []
    for token in range(len(x)):
        row = channels[token].clone()
        if heads.convolution is not None:
            weight = heads.convolution.weight
            for distance, source in enumerate(reversed(document_before(visible, token)[-weight.shape[1] :])):
                row += weight[:, weight.shape[1] - 1 - distance] * channels[source]
        rows.append(row / (1 + (-row).exp()))
    sizes = [heads.q.out_features, heads.k.out_features, heads.v.out_features]
    return list(torch.stack(rows).split(sizes, dim=-1))


def run(visible: Tensor, head_step: Callable[[Tensor, int], tuple[Tensor, Tensor]], state: Tensor) -> Tensor:
    """Step through the tokens of each document, from a state of 0: (T, V)."""
    zero, outputs, previous = state, [], None
    for token in range(len(visible)):
        if not visible[token, token]:  # padding
            outputs.append(torch.zeros_like(zero[0]))
            continue
        if previous is not None and not visible[token, previous]:  # another document
            state = zero
        state, y = head_step(state, token)
        previous = token
        outputs.append(y)
    return torch.stack(outputs)


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum().sqrt()


def rms(x: Tensor, norm: Any) -> Tensor:
    result: Tensor = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return result


def softplus_decay(module: Any, x: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return decays (T, H, E) and steps: rates from 1 to 16 and steps from 0.001 to 0.1, in equal ratios."""
    heads = module.heads
    rates = torch.tensor([16 ** (head / max(1, heads - 1)) for head in range(heads)], dtype=x.dtype)
    count = heads * channels
    starts = [1e-3 * 100 ** (index / max(1, count - 1)) for index in range(count)]
    offsets = torch.tensor([math.log(math.exp(start) - 1) for start in starts], dtype=x.dtype)
    steps = (1 + (module.step(x) + offsets).exp()).log().unflatten(-1, (heads, channels))
    return (-(rates * module.log_rate.exp()).unsqueeze(-1) * steps).exp(), steps


def delta_rule(
    module: Any, x: Tensor, visible: Tensor, options: Mapping[str, Any], decays: Tensor | None, writes: int = 1
) -> Tensor:
    """Run the heads of a delta rule, `writes` times for each token: (T, H, V)."""
    heads, (q, k, v) = module.heads.heads, convolved(module, x, visible)
    strengths = torch.sigmoid(module.write(x)) * (2 if options["negative_eigenvalues"] else 1)
    outputs = []
    for head in range(heads):
        own_q = q.unflatten(-1, (heads, -1))[:, head]
        own_k, own_v, own_b = (part.unflatten(-1, (writes, heads, -1))[:, :, head] for part in (k, v, strengths))

        def step(
            state: Tensor,
            token: int,
            head: int = head,
            q: Tensor = own_q,
            k: Tensor = own_k,
            v: Tensor = own_v,
            b: Tensor = own_b,
        ) -> tuple[Tensor, Tensor]:
            if decays is not None:
                state = decays[token, head].unsqueeze(-1) * state
            for write in range(writes):
                key = unit(k[token, write])
                state = state + b[token, write] * torch.outer(key, v[token, write] - key @ state)
            return state, unit(q[token]) @ state

        outputs.append(run(visible, step, x.new_zeros(own_k.shape[-1], own_v.shape[-1])))
    return torch.stack(outputs, dim=1)


def merged(module: Any, y: Tensor) -> Tensor:
    """Apply the output projection: (T, H, V) -> (T, D)."""
    output: Tensor = module.heads.o(y.flatten(-2))
    return output


def silu_gated(norm: Any, y: Tensor, x: Tensor) -> Tensor:
    gate: Tensor = norm.gate(x).view_as(y)
    return rms(y, norm.norm) * gate * torch.sigmoid(gate)


def delta(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """The delta rule (Yang et al. 2024)."""
    y = delta_rule(module, x, visible, options, None)
    return merged(module, silu_gated(module.norm, y, x) if options["gate"] else rms(y, module.norm))


def gated_delta(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A delta rule with a decay for each head (Yang et al. 2024)."""
    decays, _ = softplus_decay(module.decay, x, 1)
    return merged(module, silu_gated(module.norm, delta_rule(module, x, visible, options, decays), x))


def kimi_delta(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A delta rule with a decay for each channel of a key (Kimi Team 2025)."""
    decays, _ = softplus_decay(module.decay, x, module.heads.key_width)
    y = delta_rule(module, x, visible, options, decays)
    return merged(module, rms(y, module.norm.norm) * torch.sigmoid(module.norm.gate(x).view_as(y)))


def delta_product(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Several writes for each token (Siems et al. 2025)."""
    decays = None if module.decay is None else softplus_decay(module.decay, x, 1)[0]
    y = delta_rule(module, x, visible, options, decays, options["writes"])
    return merged(module, silu_gated(module.norm, y, x))


def additive(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, visible: Tensor) -> Tensor:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T in each head, read by q_t: (T, H, K), (T, H, V), (T, H, E) -> (T, H, V)."""
    outputs = []
    for head in range(v.shape[1]):

        def step(state: Tensor, token: int, head: int = head) -> tuple[Tensor, Tensor]:
            state = decays[token, head].unsqueeze(-1) * state + torch.outer(k[token, head], v[token, head])
            return state, q[token, head] @ state

        outputs.append(run(visible, step, k.new_zeros(k.shape[-1], v.shape[-1])))
    return torch.stack(outputs, dim=1)


def split_heads(module: Any, x: Tensor) -> list[Tensor]:
    """Return queries, keys and values, (T, H, K), with keys divided by the root of their width."""
    heads = module.heads
    q, k, v = (part(x).unflatten(-1, (heads.heads, -1)) for part in (heads.q, heads.k, heads.v))
    return [q, k / math.sqrt(k.shape[-1]), v]


def gated_linear(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A gate for each channel of a key (Yang et al. 2023)."""
    q, k, v = split_heads(module, x)
    decays = torch.sigmoid(module.decay(x).unflatten(-1, (q.shape[1], -1))) ** (1 / 16)
    return merged(module, silu_gated(module.norm, additive(q, k, v, decays, visible), x))


def retention(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any], positions: Any
) -> Tensor:
    """A fixed decay for each head, and rotated queries and keys (Sun et al. 2023)."""
    q, k, v = split_heads(module, x)
    heads, half = q.shape[1], q.shape[-1] // 2
    if options["rotary"]:
        frequencies = torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=x.dtype)
        angles = positions[0].to(x.dtype)[:, None, None] * frequencies
        turns = torch.polar(torch.ones_like(angles), angles)
        q, k = (
            torch.cat([(z := torch.complex(side[..., :half], side[..., half:]) * turns).real, z.imag], dim=-1)
            for side in (q, k)
        )
    decays = torch.tensor([1 - 2.0 ** (-5 - head) for head in range(heads)], dtype=x.dtype)
    y = additive(q, k, v, decays[None, :, None].expand(len(x), -1, -1), visible)
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    if options["gate"]:
        gate = module.gate(x).view_as(y)
        y = y * gate * torch.sigmoid(gate)
    return merged(module, y)


def mamba2(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Structured state space duality (Dao & Gu 2024)."""
    channels, weight = module.reads(x), module.convolution.weight
    rows = []
    for token in range(len(x)):
        row = channels[token] + module.convolution.bias
        for distance, earlier in enumerate(reversed(document_before(visible, token)[-weight.shape[1] :])):
            row = row + weight[:, weight.shape[1] - 1 - distance] * channels[earlier]
        rows.append(row * torch.sigmoid(row))
    inner, state = module.outer.in_features, options["state"]
    v, k, q = torch.stack(rows).split([inner, state, state], dim=-1)
    v = v.unflatten(-1, (module.decay.heads, -1))
    decays, steps = softplus_decay(module.decay, x, 1)
    q, k = (side.unsqueeze(1).expand(-1, v.shape[1], -1) for side in (q, k))
    y = (additive(q, steps * k, v, decays, visible) + module.skip.unsqueeze(-1) * v).flatten(-2)
    gate = module.gate(x)
    output: Tensor = module.outer(rms(y * gate * torch.sigmoid(gate), module.norm))
    return output


REFERENCES: dict[str, Callable[..., Any]] = {
    "attention.delta": delta,
    "attention.delta-product": delta_product,
    "attention.gated-delta": gated_delta,
    "attention.gated-linear": gated_linear,
    "attention.kimi-delta": kimi_delta,
    "attention.mamba2": mamba2,
    "attention.retention": retention,
}
