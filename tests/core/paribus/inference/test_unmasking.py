"""Filling of masks: the distribution of texts of a model whose joint distribution is known, and what never changes."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus.errors import SpecError
from paribus.inference.decoder import Decoder
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.unmasking import fill_masks
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.slots.objective import Prompt

MASK, SIZE, TEXTS = 3, 3, 4000
JOINT = torch.tensor([[0.30, 0.02, 0.08], [0.01, 0.25, 0.04], [0.05, 0.05, 0.20]], dtype=torch.float64)


class KnownTopology:
    """Topology of texts of two tokens, whose hidden states are the exact log-probabilities given the other token."""

    def run(self, streams: dict[str, Stream], part: str) -> Any:
        tokens = streams[part].tokens
        if tokens.shape[1] == 1:  # the first block
            return SimpleNamespace(hidden=self.given(JOINT, MASK).log().expand(len(tokens), 1, -1))
        rows = [[self.given(JOINT, int(b)), self.given(JOINT.T, int(a))] for a, b in tokens.tolist()]
        hidden = torch.stack([torch.stack(row) for row in rows]).log()
        return SimpleNamespace(hidden=hidden)

    def given(self, joint: Tensor, other: int) -> Tensor:
        """Return the probabilities of a token, (V,), given the other one or its mask, and none of the mask."""
        shares = joint.sum(1) if other == MASK else joint[:, other] / joint[:, other].sum()
        return torch.cat([shares, torch.zeros(1, dtype=torch.float64)])

    def stage(self, path: str) -> Any:
        return SimpleNamespace(shape=SimpleNamespace(vocabulary=SIZE + 1))

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])


def frequencies(prompt: tuple[int, ...] = (), block: int | None = None, **options: Any) -> Tensor:
    """Return the share of each text of two tokens, (V, V)."""
    decoder = Decoder(KnownTopology(), lambda hidden: hidden)  # type: ignore[arg-type]  # what it needs of a topology
    config = GenerationConfig(temperature=1.0, n=TEXTS, **options)
    (lines,) = fill_masks(
        decoder, [Prompt(prompt, mask=MASK, block=block)], 2 - len(prompt), config, [0], lambda done, limit: None
    )
    counts = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for line in lines:
        a, b = (*prompt, *line.ids)
        counts[a, b] += 1
    return counts / TEXTS


def assert_close(shares: Tensor, expected: Tensor) -> None:
    assert ((shares - expected).abs() < 4.5 * (expected * (1 - expected) / TEXTS).sqrt() + 1e-12).all()


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_ancestral_samples_have_the_distribution_in_closed_form(steps: int) -> None:
    """Two tokens fall into one step with the probability 1 / steps, and are independent then; else they are exact."""
    independent = JOINT.sum(1, keepdim=True) * JOINT.sum(0)
    assert_close(frequencies(steps=steps), JOINT * (1 - 1 / steps) + independent / steps)


@pytest.mark.parametrize("options", [{}, {"steps": 1}, {"remasking": "low-confidence"}])
def test_blocks_of_one_token_have_the_joint_distribution(options: dict[str, Any]) -> None:
    """In any number of steps: each block has at least one."""
    assert_close(frequencies(block=1, **options), JOINT)


def test_a_prompt_may_end_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = paribus.assemble(paribus.spec("bd3lm-tiny", "dims={width: 16, layers: 1, length: 24}")).double()
    read: list[Stream] = []
    run = model.topology.run

    def recorded(streams: dict[str, Stream], *args: Any, **options: Any) -> Any:
        read.append(streams["body"])
        return run(streams, *args, **options)

    monkeypatch.setattr(model.topology, "run", recorded)
    ((line,),) = paribus.generate(model, [[5, 6, 7, 8, 9, 10]], tokens=7, steps=7).results
    assert [stream.tokens.shape[1] for stream in read] == [8, 8, 12, 12, 12, 12, 13]
    assert all(stream.order is not None and stream.order[0, :5].tolist() == [0, 0, 0, 0, 1] for stream in read)
    assert line.ids == tuple(read[-1].tokens[0, 6:12].tolist()) + line.ids[6:]


def test_samples_that_keep_the_surest_token_have_the_distribution_in_closed_form() -> None:
    assert_close(frequencies(steps=2, remasking="low-confidence"), low_confidence_distribution())


def low_confidence_distribution() -> Tensor:
    """Both tokens are drawn independently, and the one that is more probable by itself is kept; ties keep the first."""
    first, second = JOINT.sum(1), JOINT.sum(0)
    expected = torch.zeros_like(JOINT)
    for a in range(SIZE):
        for b in range(SIZE):
            share = first[a] * second[b]
            if first[a] >= second[b]:
                expected[a] += share * JOINT[a] / first[a]
            else:
                expected[:, b] += share * JOINT[:, b] / second[b]
    return expected


def test_a_token_after_a_prompt_has_its_conditional_distribution() -> None:
    expected = torch.zeros_like(JOINT)
    expected[1] = JOINT[1] / JOINT[1].sum()
    assert_close(frequencies((1,)), expected)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return paribus.assemble(paribus.spec("mdlm-tiny", "dims={width: 16, layers: 1, length: 24}")).double()


PROMPTS = [[5, 6, 7], [9], [10, 11]]


@pytest.mark.parametrize("options", [{"temperature": 1.0, "n": 2}, {}, {"temperature": 0.5, "remasking": "random"}])
def test_a_text_depends_on_its_seed_and_prompt_only(model: Model, options: dict[str, Any]) -> None:
    together = paribus.generate(model, PROMPTS, tokens=9, steps=4, **options)
    singly = paribus.generate(model, PROMPTS, tokens=9, steps=4, batch=1, **options)
    assert [[line.ids for line in lines] for lines in together.results] == [
        [line.ids for line in lines] for lines in singly.results
    ]
    if options:
        other = paribus.generate(model, PROMPTS, tokens=9, steps=4, seed=1, **options)
        assert other.results != together.results


def test_a_prompt_and_written_tokens_never_change(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tensor] = []
    run = model.topology.run

    def recorded(streams: dict[str, Stream], *args: Any, **options: Any) -> Any:
        read.append(streams["body"].tokens)
        return run(streams, *args, **options)

    monkeypatch.setattr(model.topology, "run", recorded)
    paribus.generate(model, [[5, 6, 7]], tokens=8, steps=4)
    prompt = model.objective("masked-diffusion").prompt([])
    assert prompt is not None
    masks = [tokens.eq(prompt.mask or 0) for tokens in read]
    assert [int(mask.sum()) for mask in masks] == [8, 6, 4, 2]
    for mask, (before, after) in zip(masks[:-1], pairwise(read), strict=True):
        assert torch.equal(before[~mask], after[~mask])
    assert read[-1][0, :3].tolist() == [5, 6, 7]


def test_a_text_ends_before_its_stop_token() -> None:
    decoder = Decoder(KnownTopology(), lambda hidden: hidden)  # type: ignore[arg-type]  # as above
    prompt, config = Prompt((), stop=1, mask=MASK), GenerationConfig(temperature=1.0, n=200)
    (lines,) = fill_masks(decoder, [prompt], 2, config, [0], lambda done, limit: None)
    assert {len(line.ids) for line in lines} == {0, 1, 2}
    assert all(line.ended == (len(line.ids) < 2) and 1 not in line.ids for line in lines)


@pytest.mark.parametrize(
    ("options", "name"), [({"beam": 2}, "beam"), ({"repetition_penalty": 1.2}, "repetition_penalty")]
)
def test_options_of_left_to_right_decoding_are_refused(model: Model, options: dict[str, Any], name: str) -> None:
    with raises_problem(SpecError, "unused-option", name, "masks"):
        paribus.generate(model, [5], **options)


@pytest.mark.parametrize("options", [{"steps": 2}, {"remasking": "random"}])
def test_options_of_masks_are_refused_by_a_decoder(options: dict[str, Any]) -> None:
    decoder = paribus.assemble(paribus.spec("gpt-tiny", "dims={width: 16, layers: 1, length: 24}"))
    with raises_problem(SpecError, "unused-option", next(iter(options)), "left to right"):
        paribus.generate(decoder, [5], **options)
