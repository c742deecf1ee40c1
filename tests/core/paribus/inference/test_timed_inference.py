"""Inference that is timed: it writes what greedy decoding writes, reads what the body reads, and counts its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paribus.inference.generate import generate_hypotheses
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.timed_inference import TimedInference, can_generate, generation
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.train.timed_steps import TimedSteps

SMALL = ("dims.width=32", "dims.layers=2", "dims.heads=4", "dims.length=16", "data.batch=4")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def steps(registry: Registry, preset: str, *overrides: str) -> Any:
    return TimedSteps(resolved(preset, *SMALL, *overrides, registry=registry), registry, torch.device("cpu"))


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["gpt-tiny", "transformer-tiny", "rnnsearch-tiny", "lstm-lm-tiny"])
def test_the_timed_text_is_that_of_greedy_decoding(
    registry: Registry, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = steps(registry, preset)
    examples = timed.data.step(0)
    assert can_generate(timed.model, examples)
    answer = TimedInference(timed.model, examples, 3, generates=True)
    assert answer.request is not None
    written: list[torch.Tensor] = []
    greedy = torch.Tensor.argmax

    def recorded(scores: torch.Tensor, dim: int) -> torch.Tensor:
        written.append(greedy(scores, dim))
        return written[-1]

    monkeypatch.setattr(torch.Tensor, "argmax", recorded)
    answer.take(1)
    monkeypatch.undo()
    config = GenerationConfig(tokens=answer.request.limits[0])
    prompts = [prompt._replace(stop=None) for prompt in answer.request.prompts]
    expected, _ = generate_hypotheses(timed.model, answer.request._replace(prompts=tuple(prompts)), config)
    for row in range(3):
        ids = [int(tokens[row]) for tokens in written]
        assert ids == list(expected[row][0].ids)[: len(ids)]
        assert len(ids) == answer.request.limits[row] - 1  # the last token is scored and not read


@pytest.mark.thorough
def test_a_forward_pass_reads_every_position_of_the_batch(registry: Registry) -> None:
    timed = steps(registry, "encoder-tiny")
    examples = timed.data.step(0)
    assert not can_generate(timed.model, examples)
    shapes: list[torch.Size] = []
    timed.model.topology.get_submodule("body").register_forward_hook(
        lambda _, __, output: shapes.append(output.hidden.shape)
    )
    answer = TimedInference(timed.model, examples, 6, generates=False)
    answer.take(2)
    assert shapes == [torch.Size([6, 16, 32])] * 2
    assert answer.tokens == 6 * 16


@pytest.mark.thorough
def test_the_memory_has_the_weights_and_the_largest_activations(registry: Registry) -> None:
    timed = steps(registry, "encoder-tiny")
    examples = timed.data.step(0)
    weights = sum(tensor.nbytes for tensor in (*timed.model.parameters(), *timed.model.buffers()))
    small, large = (TimedInference(timed.model, examples, size, generates=False).peak_bytes() for size in (1, 32))
    assert weights + 4 * 16 * 32 <= small
    assert large - weights == pytest.approx(32 * (small - weights), rel=0.2)


@pytest.mark.thorough
def test_a_prompt_has_half_of_the_positions_and_leaves_room(registry: Registry) -> None:
    timed = steps(registry, "gpt-tiny")
    request = generation(timed.model, timed.data.step(0), 2)
    assert [len(prompt.body) for prompt in request.prompts] == [8, 8]
    assert request.limits == (8, 8)
