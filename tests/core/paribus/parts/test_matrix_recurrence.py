"""The chunked recurrence of a matrix state, compared with its steps in float64 and with closed forms."""

import itertools
import json
import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus.parts import fla_kernels
from paribus.parts.decayed_products import unit_lower_inverse
from paribus.parts.fla_kernels import KERNELS, is_installed, serves
from paribus.parts.matrix_recurrence import CHUNK, Inputs, MatrixRecurrence, run_chunks, uses_kernel

Randn = Callable[..., Tensor]
WIDTHS = {"no decay": 0, "scalar": 1, "vector": 5}
CASES = [
    pytest.param(length, decay, strength, delta, id=f"{length}-{decay}-{strength}-{'delta' if delta else 'sum'}")
    for length, decay, strength, delta in itertools.product(
        (1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3), WIDTHS, (0.1, 100.0), (False, True)
    )
    if decay != "no decay" or strength == 0.1
]


def steps(tokens: Inputs, state: Tensor, documents: Tensor | None, *, delta: bool) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token, from a state of the first document: (B, H, T, V), (B, H, K, V)."""
    outputs = []
    for t in range(tokens.v.shape[2]):
        q, k, v = (part[:, :, t].unsqueeze(-1) for part in tokens[:3])  # columns
        if documents is not None and t and documents[0, t] != documents[0, t - 1]:
            state = torch.zeros_like(state)
        if tokens.log_decay is not None:
            state = tokens.log_decay[:, :, t].exp().unsqueeze(-1) * state
        written = v.mT - k.mT @ state if delta else v.mT
        state = state + k @ (written if tokens.b is None else tokens.b[:, :, t].unsqueeze(-1) * written)
        outputs.append((q.mT @ state).squeeze(-2))
    return torch.stack(outputs, dim=2), state


def draw(randn: Randn, length: int, decay: str, strength: float) -> tuple[Inputs, Tensor]:
    """Return tokens, half of whose step sizes exceed 1 (negative eigenvalues), and a state."""
    q, k, v = (randn(2, 2, length, width, seed=seed) for seed, width in enumerate((5, 5, 4)))
    log_decay = None
    if decay != "no decay":
        log_decay = -strength * functional.softplus(3 * randn(2, 2, length, WIDTHS[decay], seed=3))
    b = 2 * randn(2, 2, length, 1, seed=4).sigmoid()
    return Inputs(q, functional.normalize(k, dim=-1), v, log_decay, b), randn(2, 2, 5, 4, seed=5)


@pytest.mark.few(12)
@pytest.mark.parametrize(("length", "decay", "strength", "delta"), CASES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_outputs_states_and_gradients_equal_the_steps(
    length: int, decay: str, strength: float, delta: bool, packed: bool, randn: Randn
) -> None:
    tokens, initial = draw(randn, length, decay, strength)
    documents = torch.arange(length).unsqueeze(0) // 37 if packed else None
    leaves = [part.requires_grad_() for part in (*tokens, initial) if part is not None]
    expected = steps(tokens, initial, documents, delta=delta)
    actual = run_chunks(tokens, initial, documents, delta=delta)
    gradients = [torch.autograd.grad(y.sin().sum() + s.cos().sum(), leaves) for y, s in (actual, expected)]
    for pair in zip((*actual, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


@pytest.mark.parametrize("decay", WIDTHS)
@pytest.mark.parametrize("writes", [2, 3, CHUNK + 1])
def test_several_writes_of_a_token_equal_as_many_tokens(writes: int, decay: str, randn: Randn) -> None:
    """The state decays at the first of them, and is read after the last."""
    length = 2 * CHUNK // writes + 3
    tokens, initial = draw(randn, length * writes, decay, 0.1)
    documents = (torch.arange(length) // 5).repeat_interleave(writes).unsqueeze(0)
    first, last = slice(None, None, writes), slice(writes - 1, None, writes)
    of_tokens = tokens._replace(q=tokens.q[:, :, last])
    if tokens.log_decay is not None:
        is_first = torch.arange(length * writes) % writes == 0
        of_tokens = of_tokens._replace(log_decay=tokens.log_decay[:, :, first])
        tokens = tokens._replace(log_decay=tokens.log_decay * is_first.unsqueeze(-1))
    expected, expected_state = steps(tokens, initial, documents, delta=True)
    y, state = run_chunks(of_tokens, initial, documents, delta=True, writes=writes)
    torch.testing.assert_close(y, expected[:, :, last], rtol=0, atol=1e-10)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", ["scalar", "vector"])
def test_float32_is_finite_and_exact_where_a_decay_forgets_everything(decay: str, delta: bool, randn: Randn) -> None:
    """After exp(-10^4) an output is that of the token alone, q k b v."""
    tokens, _ = draw(randn, 2 * CHUNK, decay, 1.0)
    tokens = Inputs(*(part.float() for part in tokens if part is not None))
    assert tokens.log_decay is not None
    leaf = torch.full_like(tokens.log_decay, -1e4).requires_grad_()
    y, _ = run_chunks(tokens._replace(log_decay=leaf), delta=delta)
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    assert tokens.b is not None
    expected = (tokens.q * tokens.k).sum(-1, keepdim=True) * tokens.b * tokens.v
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
    assert (gradient == 0).all()


def test_a_delta_rule_with_orthonormal_keys_recalls_every_value(randn: Randn) -> None:
    values = randn(1, 1, 8, 3)
    keys = torch.eye(8, dtype=values.dtype).expand(1, 1, -1, -1)
    tokens = Inputs(torch.cat([keys] * 2, 2), torch.cat([keys] * 2, 2), torch.cat([values, -values], 2))
    y, _ = run_chunks(tokens, delta=True)
    torch.testing.assert_close(y[:, :, 8:], -values, rtol=0, atol=1e-14)  # the second value of a key replaces the first


def test_a_step_of_two_changes_the_sign_of_the_state(randn: Randn) -> None:
    """Without values, such a step reflects the state: the parity of the number of tokens."""
    length = 2 * CHUNK + 3
    key = functional.normalize(randn(1, 1, 1, 5), dim=-1)
    keys, zeros = key.expand(-1, -1, length, -1), torch.zeros(1, 1, length, 1, dtype=key.dtype)
    y, _ = run_chunks(Inputs(keys, keys, zeros, None, zeros + 2), key.mT.contiguous(), delta=True)
    signs = (-1.0) ** torch.arange(1, length + 1, dtype=key.dtype)
    torch.testing.assert_close(y.flatten(), signs, rtol=0, atol=1e-12)


def test_the_inverse_is_stable_for_equal_keys_and_steps_of_two() -> None:
    """Powers of this matrix exceed 10^18; its inverse has entries of at most 2."""
    lower = torch.full((CHUNK, CHUNK), 2.0).tril(-1)
    inverse = unit_lower_inverse(lower)
    torch.testing.assert_close(inverse @ (lower + torch.eye(CHUNK)), torch.eye(CHUNK), rtol=0, atol=1e-5)


PEERS: dict[str, Any] = {
    "delta_rule": ("delta_rule_recurrence", True, 0),
    "gated_delta_rule": ("naive_recurrent_gated_delta_rule", True, 1),
    "gla": ("naive_recurrent_gla", False, 5),
    "kda": ("naive_recurrent_kda", True, 5),
    "simple_gla": ("naive_recurrent_simple_gla", False, 1),
}


@pytest.mark.parametrize("peer", PEERS)
def test_outputs_equal_those_of_fla(peer: str, randn: Randn) -> None:
    """`fla-core` has references in float32. They are read by path, since an import of `fla` needs Triton."""
    package = find_spec("fla")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("fla-core is not installed")
    name, delta, width = PEERS[peer]
    module = runpy.run_path(str(Path(package.submodule_search_locations[0], "ops", peer, "naive.py")))
    tokens, _ = draw(randn, 2 * CHUNK + 3, "no decay", 0.1)
    log_decay = -functional.softplus(randn(2, 2, 2 * CHUNK + 3, width, seed=3)) if width else None
    tokens = tokens._replace(log_decay=log_decay, b=tokens.b if delta else None)
    q, k, v, g, b = (part if part is None or peer == "delta_rule" else part.transpose(1, 2) for part in tokens)
    named = {"q": q, "k": k, "v": v}
    if g is not None:
        named["gk" if peer == "gla" else "g"] = g if width > 1 else g.squeeze(-1)
    if b is not None:
        named["beta"] = b.squeeze(-1)
    expected = module[name](**named)[0]
    expected = expected if peer == "delta_rule" else expected.transpose(1, 2)
    y, _ = run_chunks(tokens._replace(q=tokens.q / math.sqrt(tokens.q.shape[-1])), delta=delta)
    torch.testing.assert_close(y, expected.double(), rtol=0, atol=1e-5)


@pytest.mark.extras
def test_kernels_of_fla_compute_the_same_by_triton_s_interpreter() -> None:
    """Outputs and gradients of each kernel, in float16. Their speed and their compiled form need a GPU."""
    script = Path(__file__).with_name("interpreted_kernels.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    errors = json.loads(ended.stdout)
    assert len(errors) == len(KERNELS)
    assert max(errors.values()) < 2e-3, errors


def test_kernels_of_fla_serve_half_precision_on_cuda_only(randn: Randn) -> None:
    tokens, _ = draw(randn, CHUNK, "no decay", 0.1)
    for part in (tokens, tokens._replace(v=tokens.v.bfloat16())):
        assert not serves(part, writes=1, has_state=False, has_documents=False)
    assert not uses_kernel(MatrixRecurrence(2, 4, 4), torch.device("cpu"))


@pytest.mark.parametrize(("version", "expected"), [("0.5.3", False), ("0.6.0", True), ("1.0", True)])
def test_kernels_of_other_arguments_are_not_used(version: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "version", {"fla-core": version}.__getitem__)
    monkeypatch.setattr(fla_kernels, "find_spec", lambda name: name == "triton" or None)
    assert is_installed() is expected
