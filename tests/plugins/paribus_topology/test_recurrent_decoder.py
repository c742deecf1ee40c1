"""Recurrent decoder, compared with the equations of two papers."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from paribus import Output, Stream
from paribus.models.lightning_module import Model

SOURCES, TARGETS = [[30, 14, 41, 51, 92], [65, 35, 89]], [[79, 32, 38, 46], [26, 43, 38, 32]]
Get = Callable[[str], Tensor]
Recurrent = Callable[..., Model]
RunBoth = Callable[..., Output]
PaddedStream = Callable[..., Stream]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def bahdanau(model: Model, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Compute scores (T, V) and alignment (T, S) of one pair by appendix A of "Jointly Learning to Align and
    Translate"."""
    get = model.get_parameter
    e_x, e_y = get("encoder.table.tokens.weight"), get("embedding.tokens.weight")
    forwards, backwards = _unit(get, "encoder.layers.0.0"), _unit(get, "encoder.layers.0.1")
    zero = torch.zeros(5, dtype=torch.float64)
    ahead, behind = [zero], [zero]
    for word in source:  # A.2.1
        ahead.append(forwards(e_x[word], ahead[-1], None))
    for word in reversed(source):
        behind.append(backwards(e_x[word], behind[-1], None))
    h = [torch.cat(both) for both in zip(ahead[1:], reversed(behind[1:]), strict=True)]
    s = torch.tanh(get("body.first.layers.0.weight") @ behind[-1] + get("body.first.layers.0.bias"))
    w_a, u_a, v_a = get("body.cross.heads.q.weight"), get("body.cross.heads.k.weight"), get("body.cross.outer")[0]
    u_o, c_o, v_o = (get(f"body.readout.{side}.weight") for side in ("state", "context", "token"))
    step, scores, aligned = _unit(get, "body.layers.0"), [], []
    for word in target:  # A.2.2; the last state, the last word
        energies = torch.stack([v_a @ torch.tanh(w_a @ s + u_a @ item) for item in h])
        alpha = energies.exp() / energies.exp().sum()
        c = sum((a * item for a, item in zip(alpha, h, strict=True)), torch.zeros(10, dtype=torch.float64))
        t_tilde = u_o @ s + get("body.readout.state.bias") + v_o @ e_y[word] + c_o @ c
        t = torch.stack([torch.max(t_tilde[2 * j], t_tilde[2 * j + 1]) for j in range(len(t_tilde) // 2)])
        scores.append(get("embedding.head.weight") @ t)
        aligned.append(alpha)
        s = step(e_y[word], s, c)
    return torch.stack(scores), torch.stack(aligned)


def _unit(get: Get, path: str) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Compute the gated hidden unit: (1 - z) s + z tanh(W e + U [r s] + C c)."""
    w, b = (get(f"{path}.reads.{kind}").chunk(3) for kind in ("weight", "bias"))
    u = get(f"{path}.repeats.weight").chunk(3)

    def step(e: Tensor, s: Tensor, c: Tensor | None) -> Tensor:
        context_gates = (
            [torch.zeros_like(s)] * 3 if c is None else [part @ c for part in get(f"{path}.fed.weight").chunk(3)]
        )
        z = torch.sigmoid(w[0] @ e + b[0] + u[0] @ s + context_gates[0])
        r = torch.sigmoid(w[1] @ e + b[1] + u[1] @ s + context_gates[1])
        new = torch.tanh(w[2] @ e + b[2] + u[2] @ (r * s) + context_gates[2])
        return (1 - z) * s + z * new

    return step


def luong(
    model: Model, weigh: Callable[[Tensor, int, list[Tensor]], Tensor], source: list[int], target: list[int]
) -> Tensor:
    """Compute scores (T, V) of one pair by sections 2 and 3 of "Effective Approaches", with input feeding (3.3)."""
    get, layers = model.get_parameter, model.spec["dims"]["layers"]
    zero = torch.zeros(5, dtype=torch.float64)
    states = [(zero, zero)] * layers
    memory = []
    for word in source:
        x = get("encoder.table.tokens.weight")[word]
        for layer in range(layers):
            states[layer] = _lstm(get, f"encoder.layers.{layer}.0", x, states[layer], None)
            x = states[layer][0]
        memory.append(x)
    if model.spec["topology"]["initial_state"] == "learned":
        states = [(layer[0], layer[1]) for layer in get("body.first.states")]
    previous_output, scores = zero, []
    for t, word in enumerate(target):
        x = get("embedding.tokens.weight")[word]
        for layer in range(layers):
            states[layer] = _lstm(get, f"body.layers.{layer}", x, states[layer], None if layer else previous_output)
            x = states[layer][0]
        a = weigh(x, t, memory)
        c = sum((weight * item for weight, item in zip(a, memory, strict=True)), zero)
        w_h, w_c = get("body.readout.state.weight"), get("body.readout.context.weight")
        previous_output = torch.tanh(w_c @ c + w_h @ x + get("body.readout.state.bias"))
        scores.append(get("embedding.head.weight") @ previous_output)
    return torch.stack(scores)


def _lstm(get: Get, path: str, x: Tensor, state: tuple[Tensor, Tensor], fed: Tensor | None) -> tuple[Tensor, Tensor]:
    h, c = state
    gates = get(f"{path}.reads.weight") @ x + get(f"{path}.reads.bias") + get(f"{path}.repeats.weight") @ h
    if fed is not None:
        gates = gates + get(f"{path}.fed.weight") @ fed
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.few(1)
@pytest.mark.parametrize("side", ["right", "left"])
def test_rnnsearch_matches_the_appendix_of_its_paper(
    side: str, recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent("rnnsearch-tiny", "topology.embedding_width=4", "topology.readout_width=3")
    output = run_both(model, padded_stream(SOURCES, side), Stream(torch.tensor(TARGETS)), capture=True)
    scores = model.topology.embedding.unembed(output.hidden)
    weights = output.captured[0]["cross"]  # (B, 1, T, S)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected, alignment = bahdanau(model, source, target)
        same(scores[row], expected)
        source_positions = slice(5 - len(source), 5) if side == "left" else slice(0, len(source))
        same(weights[row, 0][:, source_positions], alignment)
        same(weights[row, 0].sum(-1), torch.ones(4, dtype=torch.float64))


@pytest.mark.few(4)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("score", ["dot", "bilinear", "additive", "local-m", "local-p"])
def test_luong_matches_its_paper(
    score: str, layers: int, recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    flat = ["attention.scores.scaled=false", "attention.scores.bias=false"]
    narrow = ["attention.reach=1"] if score.startswith("local") else []
    model = recurrent("luong-tiny", f"dims.layers={layers}", f"attention={score}", *flat, *narrow)
    hidden = run_both(model, padded_stream(SOURCES), Stream(torch.tensor(TARGETS))).hidden
    scores = model.topology.embedding.unembed(hidden)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        same(scores[row], luong(model, partial(WEIGH[score], model.get_parameter), source, target))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_learned_state_replaces_the_last_state_of_the_encoder(
    layers: int, recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    learned = ["topology.initial_state=learned", "attention.scores.scaled=false", "attention.scores.bias=false"]
    model = recurrent("luong-tiny", f"dims.layers={layers}", *learned)
    hidden = run_both(model, padded_stream(SOURCES), padded_stream(TARGETS)).hidden
    scores = model.topology.embedding.unembed(hidden)
    states = model.get_parameter("body.first.states")
    expected = torch.stack(
        [
            luong(model, partial(general, model.get_parameter), source, target)
            for source, target in zip(SOURCES, TARGETS, strict=True)
        ]
    )
    same(scores, expected)
    same(*(torch.autograd.grad(y.cos().sum(), [states]) for y in (scores, expected)))


def dot(get: Get, h: Tensor, t: int, memory: list[Tensor]) -> Tensor:
    return torch.stack([torch.dot(h, item) for item in memory]).softmax(0)


def general(get: Get, h: Tensor, t: int, memory: list[Tensor]) -> Tensor:
    return dot(get, get("body.cross.heads.q.weight") @ h, t, memory)


def concat(get: Get, h: Tensor, t: int, memory: list[Tensor]) -> Tensor:
    w_a = torch.cat([get("body.cross.heads.q.weight"), get("body.cross.heads.k.weight")], dim=1)
    v_a = get("body.cross.outer")[0]
    return torch.stack([torch.dot(v_a, torch.tanh(w_a @ torch.cat([h, item]))) for item in memory]).softmax(0)


def monotonic(get: Get, h: Tensor, t: int, memory: list[Tensor]) -> Tensor:
    """Compute local-m of section 3.2, with D = 1."""
    visible = [place for place in range(len(memory)) if t - 1 <= place <= t + 1]
    weights = torch.zeros(len(memory), dtype=torch.float64)
    weights[visible] = general(get, h, t, [memory[place] for place in visible])
    return weights


def predictive(get: Get, h: Tensor, t: int, memory: list[Tensor]) -> Tensor:
    """Compute local-p of section 3.2, with D = 1 and a deviation of 1/2."""
    inner = torch.tanh(get("body.cross.place.weight") @ h)
    p = len(memory) * torch.sigmoid(torch.dot(get("body.cross.outer.weight")[0], inner))
    visible = [place for place in range(len(memory)) if p - 1 <= place <= p + 1]
    weights = torch.zeros(len(memory), dtype=torch.float64)
    if visible:
        weights[visible] = general(get, h, t, [memory[place] for place in visible])
    return weights * torch.stack([torch.exp(-((place - p) ** 2) / (2 * 0.5**2)) for place in range(len(memory))])


WEIGH = {"dot": dot, "bilinear": general, "additive": concat, "local-m": monotonic, "local-p": predictive}
