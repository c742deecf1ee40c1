"""Beam search against every line that there is: 4 tokens, at most 4 of them long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from tests.core.paribus.inference.conftest import followed, prompts_of, wrote

from paribus.inference.decoder import Decoder, Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.search import Hypothesis, beam_search
from paribus.registry import installed
from paribus.slots.objective import Prompt
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.testing.small_model import noise
from paribus.train.assemble import build_model
from paribus.train.model import Model

SIZE = MOST = 4
WHOLE = SIZE**MOST
PROMPTS = (Prompt((2,)), Prompt((1, 0, 2)), Prompt((0, 1)))
ALPHAS = (0.0, 0.6, 1.5)


@lru_cache
def voice(seed: int) -> Decoder:
    """A decoder of four tokens, far off where it starts, so that what is probable now may not be so in the end."""
    small = ("dims={width: 8, heads: 2, layers: 1, length: 16, vocabulary: null}", "position=rope")
    spec = resolved("gpt-tiny", *small, registry=installed())
    model = build_model(spec, installed(), Vocabulary(SIZE, {"bos": 0, "eos": 3})).double().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.add_(noise(f"{path} {seed}", *parameter.shape), alpha=0.7)
    return Decoder(model.topology, model.topology.embedding.unembed)


def found(prompts: tuple[Prompt, ...], manner: GenerationConfig, seed: int, most: int = MOST) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return beam_search(Reader(voice(seed), prompts, [most] * len(prompts)), manner, lambda done, most: None)


@lru_cache
def every_line(prompt: Prompt, alpha: float, seed: int) -> list[Hypothesis]:
    """All lines behind a prompt, the best one first."""

    def grown(ids: tuple[int, ...], total: float) -> Iterator[Hypothesis]:
        logarithms = followed(voice(seed), prompt, ids)[-1].tolist()
        for token, logarithm in enumerate(logarithms):
            length, ended = len(ids) + 1, token == prompt.stop
            if ended or length == MOST:
                penalty = (5 + length) ** alpha / 6**alpha
                yield Hypothesis(ids if ended else (*ids, token), (total + logarithm) / penalty, ended)
            else:
                yield from grown((*ids, token), total + logarithm)

    with torch.inference_mode():
        return sorted(grown((), 0.0), key=lambda line: -line.score)


def same(lines: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [(line.ids, line.ended) for line in lines] == [(line.ids, line.ended) for line in wanted]
    assert [line.score for line in lines] == pytest.approx([line.score for line in wanted], abs=1e-10)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("stop", [3, None])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_beam_as_wide_as_the_space_finds_what_trying_everything_finds(
    alpha: float, stop: int | None, seed: int
) -> None:
    prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
    lines = found(prompts, GenerationConfig(beam=WHOLE, length_penalty=alpha, n=12), seed)
    for prompt, own in zip(prompts, lines, strict=True):
        wanted = every_line(prompt, alpha, seed)
        assert len(wanted) == (121 if stop is not None else WHOLE)
        same(own, wanted[:12])


def test_a_length_penalty_prefers_longer_lines() -> None:
    lengths = []
    for alpha in (0.0, 1.5, 4.0):
        manner = GenerationConfig(beam=8, length_penalty=alpha)
        lengths.append(sum(len(lines[0].ids) for seed in (1, 2, 3) for lines in found(PROMPTS, manner, seed)))
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("stop", [3, None])
def test_no_beam_finds_more_than_there_is_and_a_wider_one_finds_no_less(stop: int | None) -> None:
    for seed in (1, 2, 3):
        prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
        best = [
            [lines[0].score for lines in found(prompts, GenerationConfig(beam=width), seed)]
            for width in (2, 4, 16, WHOLE)
        ]
        for scores, prompt in zip(zip(*best, strict=True), prompts, strict=True):
            assert all(one <= other + 1e-12 for one, other in pairwise(scores))
            assert scores[-1] == pytest.approx(every_line(prompt, 0.0, seed)[0].score, abs=1e-10)


@pytest.mark.parametrize("stop", [3, None])
def test_a_beam_of_one_is_greedy(stop: int | None) -> None:
    for seed in (1, 2, 3):
        prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
        with torch.inference_mode():
            greedy = wrote(Reader(voice(seed), prompts, [MOST] * 3), GenerationConfig())
        for lines, line in zip(found(prompts, GenerationConfig(), seed), greedy, strict=True):
            same(lines, [line])


def test_prompts_are_searched_together_as_each_is_alone() -> None:
    prompts = tuple(prompt._replace(stop=3) for prompt in PROMPTS)
    for seed in (1, 2):
        together = found(prompts, GenerationConfig(beam=3, n=3), seed)
        for prompt, lines in zip(prompts, together, strict=True):
            same(lines, found((prompt,), GenerationConfig(beam=3, n=3), seed)[0])


def test_each_prompt_may_have_room_of_its_own() -> None:
    with torch.inference_mode():
        lines = beam_search(
            Reader(voice(1), PROMPTS, [1, 3, 2]), GenerationConfig(beam=3, n=2), lambda done, most: None
        )
    assert [[len(line.ids) for line in own] for own in lines] == [[1, 1], [3, 3], [2, 2]]
    for own, prompt, most in zip(lines, PROMPTS, (1, 3, 2), strict=True):
        same(own, found((prompt,), GenerationConfig(beam=3, n=2), 1, most)[0])


@pytest.mark.parametrize("preset", ["gpt-tiny", "lstm-lm-tiny", "seq2seq-tiny", "rnnsearch-tiny", "luong-tiny"])
def test_every_topology_that_writes_is_searched(
    preset: str, assemble: Callable[..., Model], shake: Callable[[Model], Model]
) -> None:
    """What is scored is the line that is told: states followed their hypotheses."""
    model = shake(assemble(preset))
    speaks = Decoder(model.topology, model.topology.embedding.unembed)
    prompts = prompts_of(speaks, stop=6)
    with torch.inference_mode():
        lines = beam_search(
            Reader(speaks, prompts, [5] * 3), GenerationConfig(beam=4, n=4, length_penalty=0.6), lambda *_: None
        )
        for prompt, own in zip(prompts, lines, strict=True):
            assert [line.score for line in own] == sorted((line.score for line in own), reverse=True)
            for line in own:
                ids = [*line.ids, *([6] if line.ended else [])]
                logarithms = followed(speaks, prompt, ids)[:-1]
                total = float(logarithms.gather(1, torch.tensor(ids).unsqueeze(1)).sum())
                assert line.score == pytest.approx(total / ((5 + len(ids)) / 6) ** 0.6, abs=1e-9)


def test_what_was_there_is_discouraged_in_each_hypothesis_for_itself() -> None:
    manner = GenerationConfig(beam=3, n=3, repetition_penalty=1.5)
    for prompt, own in zip(PROMPTS, found(PROMPTS, manner, 1), strict=True):
        for line in own:
            had, total = set(prompt.body), 0.0
            for place, token in enumerate(line.ids):
                with torch.inference_mode():
                    hidden = scores_behind(prompt, line.ids[:place])
                discouraged = [s if t not in had else s * 1.5 if s < 0 else s / 1.5 for t, s in enumerate(hidden)]
                total += float(torch.tensor(discouraged, dtype=torch.float64).log_softmax(0)[token])
                had.add(token)
            assert line.score == pytest.approx(total, abs=1e-9)


def scores_behind(prompt: Prompt, ids: tuple[int, ...]) -> list[float]:
    reader = Reader(voice(1), [Prompt((*prompt.body, *ids))], [1])
    scores: list[float] = reader.begin()[0].tolist()
    return scores
