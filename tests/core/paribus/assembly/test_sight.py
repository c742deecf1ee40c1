"""Visibility between tokens in whole models, for every attention with every position in every topology."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from paribus import Stream
from paribus.models.lightning_module import Model

Hidden = Callable[..., Tensor]
ROWS = 12
TOKENS = torch.arange(15, 15 + ROWS).view(1, ROWS)
TOLERANCE = 1e-10
same = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE)


def changed_positions(actual: Tensor, expected: Tensor) -> set[int]:
    """Return the positions at which two outputs differ."""
    differ = ((actual - expected).abs() > TOLERANCE).any(-1).any(0)
    return set(differ.nonzero().flatten().tolist())


def reachable(model: Model, row: int) -> set[int]:
    """Return the positions that a token may change, after all layers."""
    window = model.spec["attention"].get("window")
    reach = ROWS if window is None else (window - 1) * model.spec["dims"]["layers"]
    back = reach if model.spec["topology"]["name"] == "encoder" else 0
    return set(range(max(0, row - back), min(ROWS, row + reach + 1)))


def test_a_token_changes_exactly_the_outputs_that_see_it(cell: Model, hidden: Hidden) -> None:
    baseline = hidden(cell, Stream(TOKENS))
    for row in range(ROWS):
        changed = TOKENS.clone()
        changed[0, row] = 39
        assert changed_positions(baseline, hidden(cell, Stream(changed))) == reachable(cell, row)


def test_an_output_has_gradients_for_exactly_its_visible_tokens(cell: Model, hidden: Hidden) -> None:
    table = cell.get_parameter("embedding.tokens.weight")
    output = hidden(cell, Stream(TOKENS))
    for row in (0, ROWS // 2, ROWS - 1):
        (grad,) = torch.autograd.grad(output[0, row].square().sum(), table, retain_graph=True)
        visible = {position for position in range(ROWS) if grad[TOKENS[0, position]].any()}
        assert visible == {position for position in range(ROWS) if row in reachable(cell, position)}


def test_a_causal_model_computes_equal_states_for_a_prefix(causal: Model, hidden: Hidden) -> None:
    whole = hidden(causal, Stream(TOKENS))
    for length in range(1, ROWS):
        prefix = hidden(causal, Stream(TOKENS[:, :length]))
        same(prefix, whole[:, :length])


def test_examples_of_a_batch_are_independent(cell: Model, hidden: Hidden) -> None:
    batch = torch.stack([TOKENS[0], TOKENS[0].flip(0), TOKENS[0].roll(3)])
    together = hidden(cell, Stream(batch))
    for index in range(len(batch)):
        alone = hidden(cell, Stream(batch[index : index + 1]))
        same(alone[0], together[index])


def test_an_encoder_depends_on_the_order_only_with_positions(encoder: Model, hidden: Hidden) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    moved = hidden(encoder, Stream(TOKENS[:, order]))
    blind = encoder.spec["position"]["name"] == "none" and encoder.spec["attention"]["name"] != "restricted"
    assert bool(changed_positions(moved, hidden(encoder, Stream(TOKENS))[:, order])) != blind


def test_tokens_with_explicit_positions_may_be_reordered(encoder: Model, hidden: Hidden) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    documents = torch.zeros_like(TOKENS)  # with documents, windows are measured in positions
    moved = hidden(encoder, Stream(TOKENS[:, order], documents, positions=order.unsqueeze(0)))
    same(moved, hidden(encoder, Stream(TOKENS))[:, order])


def test_a_causal_model_follows_an_explicit_order(causal: Model, hidden: Hidden) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    batch_order = order.unsqueeze(0)
    moved = hidden(causal, Stream(TOKENS[:, order], torch.zeros_like(TOKENS), positions=batch_order, order=batch_order))
    same(moved, hidden(causal, Stream(TOKENS))[:, order])


def test_only_absolute_positions_depend_on_the_offset(cell: Model, hidden: Hidden) -> None:
    ramp = torch.arange(ROWS).unsqueeze(0)
    shifted = changed_positions(hidden(cell, Stream(TOKENS, positions=ramp + 3)), hidden(cell, Stream(TOKENS)))
    assert bool(shifted) == (cell.spec["position"]["name"] in ("learned", "sinusoidal"))


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
def test_windows_of_a_cycle_of_layers_add_up(
    preset: str, assemble: Callable[..., Model], shake: Callable[[Model], Model], hidden: Hidden
) -> None:
    cycle = "attention=[{name: restricted, window: 2}, {name: restricted, window: 4}]"
    cross = ["parts.decoder.cross.attention=mha"] if preset == "seq2seq-tiny" else []
    model = shake(assemble(preset, cycle, *cross))
    baseline, reach = hidden(model, Stream(TOKENS)), 1 + 3
    for row in range(ROWS):
        changed = TOKENS.clone()
        changed[0, row] = 39
        first_row = row if preset != "encoder-tiny" else max(0, row - reach)
        expected = set(range(first_row, min(ROWS, row + reach + 1)))
        assert changed_positions(baseline, hidden(model, Stream(changed))) == expected
