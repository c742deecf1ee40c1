"""Attentions without scores: padding, documents, decoding and costs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Load, Memory, Stack, TokenLayout
from paribus.complexity.counting import flop_counter
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]

KINDS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "uniform": {"name": "uniform"},
    "conv": {"name": "conv"},
    "conv-even": {"name": "conv", "kernel": 4},
    "lstm": {"name": "lstm"},
    "gru": {"name": "gru"},
    "fixed": {"name": "fixed"},
    "fourier": {"name": "fourier"},
    "linear": {"name": "linear"},
    "linear-relu-gqa": {"name": "linear", "features": "relu", "kv_heads": 2},
    "linformer": {"name": "linformer", "rank": 6},
    "linformer-shared": {"name": "linformer", "rank": 6, "shared": True},
}
LENGTH = 150


def kinds_with(*traits: str) -> pytest.MarkDecorator:
    """Return each kind with any of the traits, causal and bidirectional where it can be both."""
    return pytest.mark.parametrize(("kind", "causal"), [*_kinds_with(*traits)])


def _kinds_with(*traits: str) -> Iterator[Any]:
    for kind, options in KINDS.items():
        declared: Any = attention()[options["name"]].traits
        if not any(declared[trait] for trait in traits if trait in declared):
            continue
        for causal in (True, False) if declared["causal"] else (False,):
            yield pytest.param(kind, causal, id=f"{kind}-{'causal' if causal else 'both'}")


def ramp(length: int, start: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(start, start + length).unsqueeze(0))


def packed() -> TokenLayout:
    """Return documents of 70, 1, 59 and 20 tokens; and 10 of padding, 80, and 25 and 35 around a hole of 15."""
    left = torch.tensor([3] * 70 + [4] + [7] * 59 + [9] * 20)
    right = torch.tensor([PADDING] * 10 + [0] * 80 + [2] * 10 + [PADDING] * 15 + [2] * 35)
    documents = torch.stack([left, right])
    return TokenLayout(torch.arange(LENGTH).expand(2, -1), documents)


def run_separately(stack: Stack, x: Tensor, layout: TokenLayout) -> Tensor:
    """Run every document in a separate pass, without padding."""
    assert layout.documents is not None
    output = torch.zeros_like(x)
    for row, documents in enumerate(layout.documents):
        for document in documents[documents >= 0].unique():
            in_document = documents == document
            output[row, in_document] = stack(x[row : row + 1, in_document], ramp(int(in_document.sum()))).hidden[0]
    return output


@kinds_with("documents")
def test_packed_documents_match_separate_ones_for_any_padding(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal, layers=2, residual=True)
    x, layout = randn(2, LENGTH, 12), packed()
    assert layout.documents is not None
    real = layout.documents >= 0
    expected = run_separately(stack, x, layout)
    for padding in (0.0, 1e3):
        actual = stack(x.masked_fill(~real.unsqueeze(-1), padding), layout).hidden
        assert torch.allclose(actual[real], expected[real], rtol=0, atol=1e-9)


@kinds_with("documents", "padding")
def test_padding_on_any_side_does_not_change_outputs(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal, layers=2, residual=True)
    x = randn(3, 8, 12)
    documents = torch.tensor([[0] * 5 + [PADDING] * 3, [PADDING] * 3 + [0] * 5, [0, 0, PADDING, 0, 0, 0, PADDING, 0]])
    layout = TokenLayout(torch.arange(8).expand(3, -1), documents)
    expected, real = run_separately(stack, x, layout), documents >= 0
    for padding in (0.0, 1e3):
        actual = stack(x.masked_fill(~real.unsqueeze(-1), padding), layout).hidden
        assert torch.allclose(actual[real], expected[real], rtol=0, atol=1e-9)


@kinds_with("documents", "padding")
def test_a_batch_of_padding_has_finite_outputs_and_gradients(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal)
    x = randn(2, 8, 12).requires_grad_()
    output = stack(x, TokenLayout(torch.arange(8).unsqueeze(0), torch.full((2, 8), PADDING))).hidden
    assert torch.isfinite(output).all()
    for grad in torch.autograd.grad(output.sum(), [x, *stack.parameters()], allow_unused=True):
        assert grad is None or torch.isfinite(grad).all()


@pytest.mark.covering
@kinds_with("decodes")
@pytest.mark.parametrize("separate", [False, True], ids=["plain", "packed"])
def test_decoding_in_chunks_matches_one_pass(
    kind: str, causal: bool, separate: bool, build_stack: BuildStack, randn: Randn
) -> None:
    if not causal:
        return
    stack = build_stack(**KINDS[kind], layers=2, residual=True)
    x, layout = randn(2, LENGTH, 12), packed() if separate else ramp(LENGTH)
    if separate and not attention()[KINDS[kind]["name"]].traits["documents"]:
        return
    expected = stack(x, layout).hidden
    real = slice(None) if layout.documents is None else layout.documents >= 0
    for sizes in ([1] * LENGTH, [68, 1, 1, 1, 40, 39], [4, 64, 2, 80]):
        states = stack.start(2, LENGTH)
        parts, past = [], 0
        for size in sizes:
            chunk_layout = TokenLayout(*(None if side is None else side[:, past : past + size] for side in layout))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
            parts.append(stack(x[:, past : past + size], chunk_layout, states=states).hidden)
            past += size
        assert torch.allclose(torch.cat(parts, 1)[real], expected[real], rtol=0, atol=1e-9)


@kinds_with("decodes")
def test_the_state_keeps_the_declared_size(kind: str, causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    if not causal:
        return
    stack = build_stack(**KINDS[kind])
    module: Any = stack.layers[0]
    states = stack.start(3, 20)
    for past in range(3):
        tensors = states.layers[0]["attention"].values()
        assert module.attention.cost(Load(1, 20)).state * 3 == sum(value.numel() for value in tensors)
        assert all(value.shape[0] == 3 and value.dtype == torch.float64 for value in tensors)
        stack(randn(3, 1, 12), ramp(1, past), states=states)


@kinds_with("cross")
def test_a_memory_is_read_by_document_without_padding(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal, memory_width=10, residual=True)
    x, memory = randn(2, 9, 12), randn(2, 7, 10, seed=1)
    query_documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 3 + [5] * 4 + [PADDING] * 2])
    memory_documents = torch.tensor([[0] * 3 + [1] * 4, [0, 0, PADDING, 5, 5, 5, PADDING]])
    actual = stack(
        x,
        TokenLayout(torch.arange(9).expand(2, -1), query_documents),
        Memory(memory, TokenLayout(torch.arange(7).expand(2, -1), memory_documents)),
    )
    plain = stack(
        x[:1], ramp(9), Memory(memory[1:], TokenLayout(torch.arange(7).unsqueeze(0), memory_documents[1:].clamp(max=0)))
    ).hidden
    for row in range(2):
        for document in query_documents[row][query_documents[row] >= 0].unique():
            in_queries, in_keys = query_documents[row] == document, memory_documents[row] == document
            expected = stack(
                x[row : row + 1, in_queries],
                ramp(int(in_queries.sum())),
                Memory(memory[row : row + 1, in_keys], ramp(int(in_keys.sum()))),
            ).hidden
            assert torch.allclose(actual.hidden[row : row + 1, in_queries], expected, rtol=0, atol=1e-9)
    alone = stack(x[:1], ramp(9), Memory(memory[1:, [0, 1, 3, 4, 5]], ramp(5))).hidden
    assert torch.allclose(plain, alone, rtol=0, atol=1e-9)


@kinds_with("cross")
def test_decoding_with_a_memory_matches_one_pass(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    if not causal:
        return
    stack = build_stack(**KINDS[kind], layers=2, memory_width=10, residual=True)
    x, hidden = randn(2, 6, 12), randn(2, 7, 10, seed=1)
    documents = torch.tensor([[0] * 7, [PADDING] * 2 + [0] * 5])
    for layout in (ramp(7), TokenLayout(torch.arange(7).unsqueeze(0), documents)):
        memory = Memory(hidden, layout)
        states = stack.start(2, 6)
        parts = [
            stack(x[:, positions : positions + 2], ramp(2, positions), memory, states).hidden for positions in (0, 2, 4)
        ]
        assert torch.allclose(torch.cat(parts, 1), stack(x, ramp(6), memory).hidden, rtol=0, atol=1e-9)


@pytest.mark.few(8)
@kinds_with("residual")
@pytest.mark.parametrize("length", [1, 20, LENGTH])
def test_cost_matches_the_torch_flop_counter(kind: str, causal: bool, length: int, build_stack: BuildStack) -> None:
    module: Any = build_stack(**KINDS[kind], causal=causal).to("meta")
    x = torch.zeros(1, length, 12, device="meta", dtype=torch.float64)
    with flop_counter() as counter:
        module(x, TokenLayout(torch.arange(length).unsqueeze(0).to("meta")))
    assert module.layers[0].attention.cost(Load(length, length)).flops == counter.get_total_flops()


@kinds_with("cross")
def test_cross_attention_cost_matches_the_torch_flop_counter(kind: str, causal: bool, build_stack: BuildStack) -> None:
    module: Any = build_stack(**KINDS[kind], causal=causal, memory_width=10).to("meta")
    x, hidden = (torch.zeros(1, *size, device="meta", dtype=torch.float64) for size in ((20, 12), (30, 10)))
    with flop_counter() as counter:
        module(
            x,
            *(TokenLayout(torch.arange(20).unsqueeze(0).to("meta")),),
            Memory(hidden, TokenLayout(torch.arange(30)[None].to("meta"))),
        )
    assert module.layers[0].cross.cost(Load(20, 20, memory=30)).flops == counter.get_total_flops()


@pytest.mark.covering
@kinds_with("residual")
@pytest.mark.parametrize("mode", ["autocast", "bfloat16"])
def test_half_precision_is_close(kind: str, causal: bool, mode: str, build_stack: BuildStack, randn: Randn) -> None:
    stack, x = build_stack(**KINDS[kind], causal=causal), randn(2, LENGTH, 12)
    exact = stack(x, ramp(LENGTH)).hidden
    small = stack.to(torch.float32 if mode == "autocast" else torch.bfloat16)
    inputs = x.to(torch.float32 if mode == "autocast" else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        near = small(inputs, ramp(LENGTH)).hidden
    assert ((near - exact).norm() / exact.norm()).item() < 2**-5
    near.sum().backward() if near.requires_grad else None


@kinds_with("residual")
def test_unscored_attentions_use_no_kernel_and_have_no_weights(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal)
    assert stack.kernels() == ("its own",)
    with pytest.raises(ValueError, match="expected an attention with the trait `weights`"):
        stack(randn(1, 3, 12), ramp(3), capture=True)


def test_unscored_attentions_use_no_positions() -> None:
    module = [attention()[options["name"]] for options in KINDS.values()]
    assert all(item.traits["position_hooks"] == [] and not item.traits["weights"] for item in module)
