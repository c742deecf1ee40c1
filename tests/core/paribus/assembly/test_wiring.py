"""Whole models that must be equal, and the output properties of norm placements."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from paribus import Stream
from paribus.models.lightning_module import Model

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Hidden = Callable[..., Tensor]
TOKENS = torch.stack([torch.arange(15, 27), torch.arange(39, 27, -1)])
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)

# Two ways to name one model: what they share is keyed by path, so both begin with the same parameters.
SAME = {
    "gqa with a key head for each query head is mha": (["attention=gqa", "attention.kv_heads=4"], ["attention=mha"]),
    "gqa with one key head is mqa": (["attention=gqa", "attention.kv_heads=1"], ["attention=mqa"]),
    "a window as long as the text is none": (["attention=restricted", "attention.window=16"], ["attention=mha"]),
    "a window over shared heads": (
        ["attention=restricted", "attention.window=16", "attention.kv_heads=2"],
        ["attention=gqa", "attention.kv_heads=2"],
    ),
    "heads of the usual width": (["dims.head_width=4"], []),
    "an inner width that is said twice": (["feedforward.inner=64"], ["feedforward.expand=4"]),
    "a cycle of one": (["attention=[mqa]", "position=[rope]"], ["attention=mqa", "position=rope"]),
    "a position that is added to rows is added once, whichever layer names it": (
        ["position=[none, sinusoidal]"],
        ["position=sinusoidal"],
    ),
    "a layer that reads no position has none": (
        ["attention=[uniform, mha]", "position=shaw"],
        ["attention=[uniform, mha]", "position=[none, shaw]"],
    ),
    "a cycle of the same": (["attention=[mqa, mqa]"], ["attention=mqa"]),
    "all of each head is turned": (["position=rope", "position.fraction=1"], ["position=rope"]),
}


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
@pytest.mark.parametrize(("first_overrides", "second_overrides"), SAME.values(), ids=SAME)
def test_equivalent_specs_have_equal_hidden_states(
    first_overrides: list[str],
    second_overrides: list[str],
    preset: str,
    assemble: Assemble,
    shake: Shake,
    hidden: Hidden,
) -> None:
    first_model, second_model = (
        shake(assemble(preset, "position=alibi", *names)) for names in (first_overrides, second_overrides)
    )
    assert first_model.state_dict().keys() == second_model.state_dict().keys()
    same(hidden(first_model, Stream(TOKENS)), hidden(second_model, Stream(TOKENS)))


@pytest.mark.parametrize("cap", ["null", "5"])  # of the scores: with one, the eager kernel computes them
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
def test_shared_heads_equal_repeated_heads(
    preset: str, kv_heads: int, cap: str, assemble: Assemble, shake: Shake, hidden: Hidden
) -> None:
    usual = ["position=rope", f"attention.scores.soft_cap={cap}"]
    shared = shake(assemble(preset, "attention=gqa", f"attention.kv_heads={kv_heads}", *usual))
    full = shake(assemble(preset, "attention=mha", *usual))
    state = full.state_dict()
    for path, value in shared.state_dict().items():
        if state[path].shape == value.shape:
            state[path] = value
        else:  # (G * K, …) -> (H * K, …): each head beside those that read it, not each group after the other
            headed = value.unflatten(0, (kv_heads, 4)).repeat_interleave(4 // kv_heads, dim=0)
            state[path] = headed.flatten(0, 1)
    full.load_state_dict(state)
    same(hidden(full, Stream(TOKENS)), hidden(shared, Stream(TOKENS)))


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
def test_zero_pre_norm_layers_equal_the_final_norm_of_the_embedding(
    preset: str, norm: str, assemble: Assemble, shake: Shake, hidden: Hidden
) -> None:
    model = shake(assemble(preset, "placement=pre", f"norm={norm}", "position=rope"))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.rpartition(".")[0].endswith((".o", ".outer")):
                parameter.zero_()
    rows, _ = model.topology.embedding(Stream(TOKENS), 0, lambda x, positions: x, None)
    expected = model.topology.get_submodule("body.norm")(rows)
    same(hidden(model, Stream(TOKENS)), expected)


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_hidden_states_are_normalised(placement: str, preset: str, assemble: Assemble, hidden: Hidden) -> None:
    overrides = [f"placement={placement}", "initialisation=xavier"]  # gains of 1, biases of 0
    rows = hidden(assemble(preset, *overrides, "norm=layernorm").double(), Stream(TOKENS))
    torch.testing.assert_close(rows.mean(-1), torch.zeros(TOKENS.shape, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(rows.var(-1, correction=0), torch.ones_like(rows[..., 0]), rtol=0, atol=1e-3)
    rows = hidden(assemble(preset, *overrides, "norm=rmsnorm").double(), Stream(TOKENS))
    torch.testing.assert_close(rows.square().mean(-1), torch.ones_like(rows[..., 0]), rtol=0, atol=1e-3)


def test_only_a_placement_that_needs_it_has_a_final_norm(assemble: Assemble) -> None:
    assert "body.norm.weight" in assemble("gpt-tiny", "placement=pre").state_dict()
    assert "body.norm.weight" not in assemble("gpt-tiny", "placement=post").state_dict()


def test_tokens_without_segments_belong_to_segment_0(assemble: Assemble, shake: Shake, hidden: Hidden) -> None:
    model = shake(assemble("bert-tiny"))
    segments = torch.zeros_like(TOKENS)
    without = hidden(model, Stream(TOKENS))
    same(hidden(model, Stream(TOKENS, segments=segments)), without)
    segments[:, 6:] = 1
    assert (hidden(model, Stream(TOKENS, segments=segments)) - without).abs().amax(-1).min() > 1e-6


def test_scores_come_from_the_first_objective(assemble: Assemble, shake: Shake) -> None:
    model = shake(assemble("gpt-tiny"))
    scores, _ = model(TOKENS)
    same(scores, model.hidden(TOKENS) @ model.get_parameter("embedding.tokens.weight").T)
    assert scores.shape == (2, 12, 40)
