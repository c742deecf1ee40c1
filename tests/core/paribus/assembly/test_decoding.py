"""Step-by-step decoding and cross-attention: equal to one pass over all tokens."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import PADDING, DataError, Stream, memory_of
from paribus.models.lightning_module import Model

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Hidden = Callable[..., Tensor]
ROWS = 16
TOKENS = torch.stack([torch.arange(15, 15 + ROWS), torch.arange(39, 39 - ROWS, -1)])
SOURCE = torch.stack([torch.arange(20, 27), torch.arange(30, 37)])
same = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
CUTS = {"uneven": [0, 5, 6, 7, 11, 16], "one by one": list(range(ROWS + 1)), "at once": [0, ROWS]}


def source_of(model: Model) -> dict[str, Tensor]:
    return {"source": SOURCE} if model.spec["topology"]["name"] == "encoder-decoder" else {}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_decoding_in_any_chunks_equals_one_pass(cuts: list[int], causal: Model) -> None:
    with torch.no_grad():
        expected, none = causal(TOKENS, **source_of(causal))
    assert none is None
    same(decoded(causal, cuts), expected)


def decoded(causal: Model, cuts: list[int]) -> Tensor:
    """Return the scores of all tokens, decoded in chunks."""
    with torch.no_grad():
        states = causal.start(2)
        steps = [causal(TOKENS[:, a:b], states, **source_of(causal))[0] for a, b in pairwise(cuts)]
    return torch.cat(steps, dim=1)


HYBRID = ("gpt-tiny", "attention=[gated-delta, mha]", "position=rope")


def test_layers_with_and_without_a_position_decode_as_one_pass(assemble: Assemble, shake: Shake) -> None:
    model = shake(assemble(*HYBRID))
    with torch.no_grad():
        expected, _ = model(TOKENS)
    same(decoded(model, CUTS["uneven"]), expected)


def test_layers_with_and_without_a_position_keep_documents_apart(
    assemble: Assemble, shake: Shake, hidden: Hidden
) -> None:
    model = shake(assemble(*HYBRID))
    documents = torch.arange(2).repeat_interleave(ROWS).unsqueeze(0)
    positions = torch.arange(ROWS).repeat(2).unsqueeze(0)
    packed = hidden(model, Stream(TOKENS.flatten().unsqueeze(0), documents, positions))
    same(packed.view(2, ROWS, -1), hidden(model, Stream(TOKENS)))


def test_a_source_is_encoded_once(crossing: Model) -> None:
    calls: list[object] = []
    hook = crossing.topology.get_submodule("encoder").register_forward_hook(lambda *_: calls.append(object()))
    with torch.no_grad():
        expected, _ = crossing(TOKENS, source=SOURCE)
        states = crossing.start(2)
        steps = [crossing(TOKENS[:, :3], states, source=SOURCE)[0]]
        steps += [crossing(TOKENS[:, position : position + 1], states)[0] for position in range(3, ROWS)]
    hook.remove()
    same(torch.cat(steps, dim=1), expected)
    assert len(calls) == 2


def test_prompts_of_different_lengths_decode_as_if_separate(causal: Model, hidden: Hidden) -> None:
    lengths = (3, 6)
    prompt = torch.full((2, 6), 0)
    documents = torch.zeros(2, ROWS, dtype=torch.long)
    for row, length in enumerate(lengths):
        prompt[row, 6 - length :] = TOKENS[row, :length]
        documents[row, : 6 - length] = PADDING
    positions = torch.arange(ROWS) - torch.tensor([[6 - length] for length in lengths])
    rest = torch.stack([TOKENS[row, length : length + 10] for row, length in enumerate(lengths)])
    tokens = torch.cat([prompt, rest], dim=1)
    memory = None
    if source_of(causal):
        memory = memory_of(causal.topology.run({"encoder": Stream(SOURCE)}, "encoder"))
    states, steps = causal.start(2), []
    for a, b in pairwise([0, 6, 7, 8, 12, 16]):
        stream = Stream(tokens[:, a:b], documents[:, a:b], positions[:, a:b])
        steps.append(causal.topology.run({"body": stream}, "body", memory=memory, states=states).hidden)
    together = torch.cat(steps, dim=1)
    for row, length in enumerate(lengths):
        alone = hidden(causal, Stream(TOKENS[row : row + 1, : length + 10]), Stream(SOURCE[row : row + 1]))
        same(together[row, 6 - length :], alone[0])


def test_states_of_two_batches_are_independent(causal: Model) -> None:
    with torch.no_grad():
        first_states, second_states = causal.start(1), causal.start(1)
        expected, _ = causal(TOKENS[:1], **{name: value[:1] for name, value in source_of(causal).items()})
        steps = []
        for position in range(6):
            causal(
                TOKENS[1:, position : position + 1],
                second_states,
                **{name: value[1:] for name, value in source_of(causal).items()},
            )
            sources = {name: value[:1] for name, value in source_of(causal).items()}
            steps.append(causal(TOKENS[:1, position : position + 1], first_states, **sources)[0])
    same(torch.cat(steps, dim=1), expected[:, :6])


@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_decoding_state_has_the_requested_dtype_and_length(preset: str, assemble: Callable[..., Model]) -> None:
    model = assemble(preset, "attention=gqa").to(torch.bfloat16)
    states = model.start(3, 5)
    for layer in states.layers:
        for tensor in layer["attention"].values():
            assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, (3, 2, 5, 4))


@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_tokens_beyond_the_state_length_are_rejected_without_changing_the_state(
    preset: str, assemble: Callable[..., Model]
) -> None:
    model = assemble(preset, "position=rope")
    states, match = model.start(2, 9), r"at most 9 tokens, got 8 \+ 2"
    with torch.no_grad():
        expected, _ = model(TOKENS[:, :9], **source_of(model))
        model(TOKENS[:, :8], states, **source_of(model))
        with pytest.raises(ValueError, match=match):
            model(TOKENS[:, 8:10], states)
        output, _ = model(TOKENS[:, 8:9], states)
    torch.testing.assert_close(output, expected[:, 8:])


def test_a_missing_source_is_an_error(assemble: Callable[..., Model]) -> None:
    with pytest.raises(ValueError, match=r"this topology reads a source: model\(tokens, source=…\), \(B, S\) for `enc"):
        assemble("seq2seq-tiny")(TOKENS)


def test_decoding_past_a_position_table_is_an_error(assemble: Callable[..., Model]) -> None:
    model = assemble("gpt-tiny", "position=learned")
    states = model.start(2, 20)
    model(TOKENS, states)
    with raises_problem(DataError, "position-out-of-range", "position.length", "16"):
        model(TOKENS[:, :1], states)


# -- reading another stack ---------------------------------------------------------------------------------------


def test_every_decoder_token_depends_on_every_source_token(crossing: Model) -> None:
    with torch.no_grad():
        expected = crossing.hidden(TOKENS, source=SOURCE)
        for position in range(SOURCE.shape[1]):
            changed = SOURCE.clone()
            changed[:, position] = 39
            differ = (crossing.hidden(TOKENS, source=changed) - expected).abs().amax(-1)
            assert (differ > 1e-10).all()


def test_the_order_of_a_source_matters_only_with_positions(crossing: Model) -> None:
    order = torch.randperm(SOURCE.shape[1], generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        moved = crossing.hidden(TOKENS, source=SOURCE[:, order]) - crossing.hidden(TOKENS, source=SOURCE)
    blind = crossing.spec["position"]["name"] == "none" and crossing.spec["attention"]["name"] != "restricted"
    assert bool((moved.abs() > 1e-10).any()) != blind


def test_the_source_of_one_example_does_not_change_another(crossing: Model) -> None:
    with torch.no_grad():
        expected = crossing.hidden(TOKENS, source=SOURCE)
        changed = torch.stack([SOURCE[0], SOURCE[1].flip(0)])
        output = crossing.hidden(TOKENS, source=changed)
    same(output[0], expected[0])


@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_a_cross_attention_position_works_in_stepwise_decoding(
    position: str, assemble: Callable[..., Model], shake: Callable[[Model], Model]
) -> None:
    model = shake(assemble("seq2seq-tiny", f"parts.decoder.cross.position={position}"))
    plain = shake(assemble("seq2seq-tiny"))
    with torch.no_grad():
        expected, _ = model(TOKENS, source=SOURCE)
        states = model.start(2)
        steps = [model(TOKENS[:, a:b], states, source=SOURCE)[0] for a, b in pairwise(CUTS["uneven"])]
        without, _ = plain(TOKENS, source=SOURCE)
    same(torch.cat(steps, dim=1), expected)
    assert (expected - without).abs().max() > 1e-3
