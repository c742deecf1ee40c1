"""Cached decoding of prompts of different lengths equals one pass over each text, for every combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.core.paribus.inference.conftest import PROMPTS, Cells, first_texts, log_probabilities, prompts_of
from torch import nn

from paribus.inference.decoder import Decoder, Reader, pad_ids
from paribus.inference.generation_config import GenerationConfig
from paribus.models.lightning_module import Model
from paribus.parts.stack import Layer
from paribus.slots.objective import Prompt
from paribus.testing.matrix import Row

MAX_TOKENS = 5
GREEDY = GenerationConfig()
TOPOLOGIES = {
    "decoder": "gpt-tiny",
    "plain-decoder": "lstm-lm-tiny",
    "encoder-decoder": "seq2seq-tiny",
    "recurrent-encoder-decoder": "rnnsearch-tiny",
    "deep-recurrent-encoder-decoder": "gnmt-tiny",
}


def mismatches_of(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """Return the cells in which batched decoding of three prompts differs from one pass over each text."""
    mismatches = []
    for row in rows:
        cell_name = f"{row['topology']} {row['attention']} {row['position']}"
        decoder = cells.decoder(row)
        with torch.inference_mode():
            prompts = prompts_of(decoder)
            lines = first_texts(Reader(decoder, prompts, [MAX_TOKENS] * len(prompts)), GREEDY)
            for prompt, line in zip(prompts, lines, strict=True):
                alone = log_probabilities(decoder, prompt, line.ids)[:-1]
                ids, score = tuple(alone.argmax(-1).tolist()), float(alone.amax(-1).sum())
                if ids != line.ids or abs(score - line.score) > 1e-9:
                    mismatches.append(f"{cell_name}: {prompt.body} {ids} {score} {line}")
    return mismatches


@pytest.mark.thorough
def test_batched_cached_decoding_equals_one_pass(cells: Cells) -> None:
    """Each topology, with each kind of attention and each kind of position."""
    assert not mismatches_of(cells, cells.few())


@pytest.mark.matrix
def test_batched_cached_decoding_equals_one_pass_in_every_cell(cells: Cells) -> None:
    assert not mismatches_of(cells, cells.rows)


@pytest.fixture(params=sorted(TOPOLOGIES))
def decoder(request: pytest.FixtureRequest, assemble: Callable[..., Model], shake: Callable[[Model], Model]) -> Decoder:
    """Return a decoder of each topology that generates text."""
    model = shake(assemble(TOPOLOGIES[request.param], "embedding.languages=2"))
    return Decoder(model.topology, model.topology.embedding.unembed)


def test_decoding_without_a_cache_gives_the_same_texts(decoder: Decoder) -> None:
    with torch.inference_mode():
        for prompts in (prompts_of(decoder), prompts_of(decoder)[1:2]):
            limits = [MAX_TOKENS, 3, MAX_TOKENS][: len(prompts)]
            cached = first_texts(Reader(decoder, prompts, limits), GREEDY)
            uncached = first_texts(Reader(decoder, prompts, limits, cached=False), GREEDY)
            assert [line.ids for line in cached] == [line.ids for line in uncached]
            assert [len(line.ids) for line in cached] == limits
            for cached_line, uncached_line in zip(cached, uncached, strict=True):
                assert cached_line.score == pytest.approx(uncached_line.score, abs=1e-10)


def test_a_source_and_a_prompt_are_read_once_for_several_texts(decoder: Decoder) -> None:
    with torch.inference_mode():
        shapes = input_shapes(
            decoder, lambda reader: first_texts(reader, GenerationConfig(temperature=1.0, n=4, seed=1))
        )
    prompts = len(PROMPTS)
    longest = max(map(len, PROMPTS))
    assert shapes.pop("body") == [(prompts, longest), *[(4 * prompts, 1)] * (MAX_TOKENS - 1)]
    assert list(shapes.values()) in ([], [[(prompts, 4)]])


def input_shapes(decoder: Decoder, run: Callable[[Reader], Any]) -> dict[str, list[tuple[int, int]]]:
    """Return the input sizes (B, T) of each call of each part."""
    shapes: dict[str, list[tuple[int, int]]] = {}

    def record_shape(path: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, inputs: shapes.setdefault(path, []).append(tuple(inputs[0].shape[:2]))

    paths = [part.path for part in decoder.topology.parts]
    hooks = [decoder.topology.get_submodule(path).register_forward_pre_hook(record_shape(path)) for path in paths]
    prompts = prompts_of(decoder)
    run(Reader(decoder, prompts, [MAX_TOKENS] * len(prompts)))
    for hook in hooks:
        hook.remove()
    return shapes


def test_decoding_uses_the_selected_languages(decoder: Decoder) -> None:
    with torch.inference_mode():
        scores = []
        for languages in ((0, 0), (1, 1), (None, None)):
            reader = Reader(
                decoder._replace(language=languages[0], source_language=languages[1]), prompts_of(decoder), [3] * 3
            )
            scores.append([line.score for line in first_texts(reader, GREEDY)])
    assert scores[0] == scores[2] != scores[1]


def test_a_bidirectional_prompt_is_decoded(assemble: Callable[..., Model], shake: Callable[[Model], Model]) -> None:
    model = shake(assemble("gpt-tiny", "position=rope"))
    decoder = Decoder(model.topology, model.topology.embedding.unembed)
    prompts = [prompt._replace(bidirectional=True) for prompt in prompts_of(decoder)]
    with torch.inference_mode():
        lines = first_texts(Reader(decoder, prompts, [MAX_TOKENS] * 3), GREEDY)
        uncached = first_texts(Reader(decoder, prompts, [MAX_TOKENS] * 3, cached=False), GREEDY)
        for prompt, line, uncached_line in zip(prompts, lines, uncached, strict=True):
            alone = log_probabilities(decoder, prompt, line.ids)[:-1]
            assert line.ids == uncached_line.ids == tuple(alone.argmax(-1).tolist())
            assert line.score == pytest.approx(float(alone.amax(-1).sum()), abs=1e-9)
            assert len(prompt.body) == 1 or line.score != pytest.approx(
                float(log_probabilities(decoder, prompt._replace(bidirectional=False), line.ids)[:-1].amax(-1).sum()),
                abs=1e-6,
            )


def test_sequences_are_dropped_repeated_and_reordered(decoder: Decoder) -> None:
    with torch.inference_mode():
        for cached in (True, False):
            prompts = prompts_of(decoder)
            reader = Reader(decoder, prompts, [MAX_TOKENS] * 3, cached=cached)
            reader.begin()
            reader.step(torch.tensor([15, 16, 17]))
            reader.take(torch.tensor([2, 0, 2]))
            actual = reader.step(torch.tensor([18, 19, 18])).log_softmax(-1)
            expected = [
                log_probabilities(decoder, prompts[prompt_index], ids)[-1]
                for prompt_index, ids in ((2, [17, 18]), (0, [15, 19]))
            ]
            torch.testing.assert_close(actual, torch.stack([*expected, expected[0]]), rtol=0, atol=1e-10)


def layers_of(model: Model) -> list[Layer]:
    return [module for module in model.topology.modules() if isinstance(module, Layer)]


@pytest.mark.parametrize("length", [8, 16])
def test_cached_decoding_computes_each_position_once(length: int, assemble: Callable[..., Model]) -> None:
    """The cost is linear and not quadratic: each position passes each layer once."""
    model = assemble("gpt-tiny", f"dims.length={length}")
    decoder = Decoder(model.topology, model.topology.embedding.unembed)
    lengths: list[int] = []
    for layer in layers_of(model):
        assert layer.feedforward is not None
        layer.feedforward.register_forward_hook(lambda _, inputs, __: lengths.append(inputs[0].shape[1]))
    counts = {}
    for cached in (True, False):
        lengths.clear()
        with torch.inference_mode():
            first_texts(Reader(decoder, [Prompt((15,))], [length], cached=cached), GREEDY)
        counts[cached] = sum(lengths)
    assert counts == {True: 2 * length, False: 2 * length * (length + 1) // 2}


def test_a_prompt_is_padded_left_and_a_source_right() -> None:
    cpu = torch.device("cpu")
    tokens, documents = pad_ids([(1, 2), (3,)], cpu, on_left=True)
    assert (tokens.tolist(), None if documents is None else documents.tolist()) == ([[1, 2], [0, 3]], [[0, 0], [-1, 0]])
    tokens, documents = pad_ids([(1, 2), (3,)], cpu, on_left=False)
    assert (tokens.tolist(), None if documents is None else documents.tolist()) == ([[1, 2], [3, 0]], [[0, 0], [0, -1]])
    assert pad_ids([(1, 2), (3, 4)], cpu, on_left=True)[1] is None
