"""Beam search compared with exhaustive search: 4 tokens, sequences of at most 4 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from tests.core.paribus.inference.conftest import first_texts, log_probabilities, prompts_of

from paribus.inference.decoder import Decoder, Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.generation_strategies import Hypothesis, beam_search
from paribus.models.assemble import build_model
from paribus.models.lightning_module import Model
from paribus.registry import installed
from paribus.slots.objective import Prompt
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.testing.small_model import noise

VOCABULARY_SIZE = MAX_TOKENS = 4
FULL_WIDTH = VOCABULARY_SIZE**MAX_TOKENS
PROMPTS = (Prompt((2,)), Prompt((1, 0, 2)), Prompt((0, 1)))
ALPHAS = (0.0, 0.6, 1.5)


@lru_cache
def make_decoder(seed: int) -> Decoder:
    """Return a decoder of four tokens with perturbed weights, for which greedy decoding is not optimal."""
    small = ("dims={width: 8, heads: 2, layers: 1, length: 16, vocabulary: null}", "position=rope")
    spec = resolved("gpt-tiny", *small, registry=installed())
    model = build_model(spec, installed(), Vocabulary(VOCABULARY_SIZE, {"bos": 0, "eos": 3})).double().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.add_(noise(f"{path} {seed}", *parameter.shape), alpha=0.7)
    return Decoder(model.topology, model.topology.embedding.unembed)


def search(
    prompts: tuple[Prompt, ...], config: GenerationConfig, seed: int, limit: int = MAX_TOKENS
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return beam_search(
            Reader(make_decoder(seed), prompts, [limit] * len(prompts)), config, lambda done, limit: None
        )


@lru_cache
def all_hypotheses(prompt: Prompt, alpha: float, seed: int) -> list[Hypothesis]:
    """Return all continuations of a prompt, the best one first."""

    def continuations(ids: tuple[int, ...], total: float) -> Iterator[Hypothesis]:
        logarithms = log_probabilities(make_decoder(seed), prompt, ids)[-1].tolist()
        for token, logarithm in enumerate(logarithms):
            length, ended = len(ids) + 1, token == prompt.stop
            if ended or length == MAX_TOKENS:
                penalty = (5 + length) ** alpha / 6**alpha
                yield Hypothesis(ids if ended else (*ids, token), (total + logarithm) / penalty, ended)
            else:
                yield from continuations((*ids, token), total + logarithm)

    with torch.inference_mode():
        return sorted(continuations((), 0.0), key=lambda line: -line.score)


def assert_same_hypotheses(lines: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [(line.ids, line.ended) for line in lines] == [(line.ids, line.ended) for line in expected]
    assert [line.score for line in lines] == pytest.approx([line.score for line in expected], abs=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("stop", [3, None])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_beam_of_full_width_equals_exhaustive_search(alpha: float, stop: int | None, seed: int) -> None:
    prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
    lines = search(prompts, GenerationConfig(beam=FULL_WIDTH, length_penalty=alpha, n=12), seed)
    for prompt, prompt_lines in zip(prompts, lines, strict=True):
        expected = all_hypotheses(prompt, alpha, seed)
        assert len(expected) == (121 if stop is not None else FULL_WIDTH)
        assert_same_hypotheses(prompt_lines, expected[:12])


@pytest.mark.thorough
def test_a_length_penalty_prefers_longer_texts() -> None:
    lengths = []
    for alpha in (0.0, 1.5, 4.0):
        config = GenerationConfig(beam=8, length_penalty=alpha)
        lengths.append(sum(len(lines[0].ids) for seed in (1, 2, 3) for lines in search(PROMPTS, config, seed)))
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("stop", [3, None])
def test_a_wider_beam_is_never_worse(stop: int | None) -> None:
    for seed in (1, 2, 3):
        prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
        best = [
            [lines[0].score for lines in search(prompts, GenerationConfig(beam=width), seed)]
            for width in (2, 4, 16, FULL_WIDTH)
        ]
        for scores, prompt in zip(zip(*best, strict=True), prompts, strict=True):
            assert all(narrow_score <= wide_score + 1e-12 for narrow_score, wide_score in pairwise(scores))
            assert scores[-1] == pytest.approx(all_hypotheses(prompt, 0.0, seed)[0].score, abs=1e-10)


@pytest.mark.parametrize("stop", [3, None])
def test_a_beam_of_one_is_greedy(stop: int | None) -> None:
    for seed in (1, 2, 3):
        prompts = tuple(prompt._replace(stop=stop) for prompt in PROMPTS)
        with torch.inference_mode():
            greedy = first_texts(Reader(make_decoder(seed), prompts, [MAX_TOKENS] * 3), GenerationConfig())
        for lines, line in zip(search(prompts, GenerationConfig(), seed), greedy, strict=True):
            assert_same_hypotheses(lines, [line])


def test_a_search_does_not_depend_on_the_other_prompts() -> None:
    prompts = tuple(prompt._replace(stop=3) for prompt in PROMPTS)
    for seed in (1, 2):
        together = search(prompts, GenerationConfig(beam=3, n=3), seed)
        for prompt, lines in zip(prompts, together, strict=True):
            assert_same_hypotheses(lines, search((prompt,), GenerationConfig(beam=3, n=3), seed)[0])


def test_each_prompt_may_have_its_own_length_limit() -> None:
    with torch.inference_mode():
        lines = beam_search(
            Reader(make_decoder(1), PROMPTS, [1, 3, 2]), GenerationConfig(beam=3, n=2), lambda done, limit: None
        )
    assert [[len(line.ids) for line in prompt_lines] for prompt_lines in lines] == [[1, 1], [3, 3], [2, 2]]
    for prompt_lines, prompt, limit in zip(lines, PROMPTS, (1, 3, 2), strict=True):
        assert_same_hypotheses(prompt_lines, search((prompt,), GenerationConfig(beam=3, n=2), 1, limit)[0])


@pytest.mark.parametrize(
    "preset",
    ["gpt-tiny", "lstm-lm-tiny", "seq2seq-tiny", "rnnsearch-tiny", "luong-tiny", "convs2s-tiny"],
)
def test_every_generating_topology_supports_beam_search(
    preset: str, assemble: Callable[..., Model], shake: Callable[[Model], Model]
) -> None:
    """The score of a hypothesis equals the probability of its tokens, so decoder states were reordered with it."""
    model = shake(assemble(preset))
    decoder = Decoder(model.topology, model.topology.embedding.unembed)
    prompts = prompts_of(decoder, stop=6)
    with torch.inference_mode():
        lines = beam_search(
            Reader(decoder, prompts, [5] * 3), GenerationConfig(beam=4, n=4, length_penalty=0.6), lambda *_: None
        )
        for prompt, prompt_lines in zip(prompts, lines, strict=True):
            assert [line.score for line in prompt_lines] == sorted((line.score for line in prompt_lines), reverse=True)
            for line in prompt_lines:
                ids = [*line.ids, *([6] if line.ended else [])]
                logarithms = log_probabilities(decoder, prompt, ids)[:-1]
                total = float(logarithms.gather(1, torch.tensor(ids).unsqueeze(1)).sum())
                assert line.score == pytest.approx(total / ((5 + len(ids)) / 6) ** 0.6, abs=1e-9)


def test_the_repetition_penalty_applies_to_each_hypothesis_separately() -> None:
    config = GenerationConfig(beam=3, n=3, repetition_penalty=1.5)
    for prompt, prompt_lines in zip(PROMPTS, search(PROMPTS, config, 1), strict=True):
        for line in prompt_lines:
            present_ids, total = set(prompt.body), 0.0
            for position, token in enumerate(line.ids):
                with torch.inference_mode():
                    hidden = next_scores(prompt, line.ids[:position])
                discouraged = [
                    s if t not in present_ids else s * 1.5 if s < 0 else s / 1.5 for t, s in enumerate(hidden)
                ]
                total += float(torch.tensor(discouraged, dtype=torch.float64).log_softmax(0)[token])
                present_ids.add(token)
            assert line.score == pytest.approx(total, abs=1e-9)


def next_scores(prompt: Prompt, ids: tuple[int, ...]) -> list[float]:
    reader = Reader(make_decoder(1), [Prompt((*prompt.body, *ids))], [1])
    scores: list[float] = reader.begin()[0].tolist()
    return scores
