"""Reading a row at a time behind prompts of any length: the same as reading each text at once, in every cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.core.paribus.inference.conftest import PROMPTS, Cells, followed, prompts_of, wrote
from torch import nn

from paribus.inference.decoder import Decoder, Reader, pad_ids
from paribus.inference.generation_config import GenerationConfig
from paribus.parts.layer import Layer
from paribus.slots.objective import Prompt
from paribus.testing.matrix import Row
from paribus.train.model import Model

MOST = 5
GREEDY = GenerationConfig()
TOPOLOGIES = {
    "decoder": "gpt-tiny",
    "plain-decoder": "lstm-lm-tiny",
    "encoder-decoder": "seq2seq-tiny",
    "recurrent-encoder-decoder": "rnnsearch-tiny",
}


def wrong(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """Where what three ragged prompts come to together is not what each comes to alone, read at once."""
    found = []
    for row in rows:
        said = f"{row['topology']} {row['attention']} {row['position']}"
        voice = cells.voice(row)
        with torch.inference_mode():
            prompts = prompts_of(voice)
            lines = wrote(Reader(voice, prompts, [MOST] * len(prompts)), GREEDY)
            for prompt, line in zip(prompts, lines, strict=True):
                alone = followed(voice, prompt, line.ids)[:-1]
                ids, score = tuple(alone.argmax(-1).tolist()), float(alone.amax(-1).sum())
                if ids != line.ids or abs(score - line.score) > 1e-9:
                    found.append(f"{said}: {prompt.body} {ids} {score} {line}")
    return found


def test_cached_and_ragged_is_what_each_text_is_at_once(cells: Cells) -> None:
    """In each topology, with each kind of attention and each kind of position."""
    assert not wrong(cells, cells.few())


@pytest.mark.matrix
def test_cached_and_ragged_is_what_each_text_is_at_once_in_every_cell(cells: Cells) -> None:
    assert not wrong(cells, cells.rows)


@pytest.fixture(params=sorted(TOPOLOGIES))
def voice(request: pytest.FixtureRequest, assemble: Callable[..., Model], shake: Callable[[Model], Model]) -> Decoder:
    """A model that writes, of each topology that can."""
    model = shake(assemble(TOPOLOGIES[request.param], "embedding.languages=2"))
    return Decoder(model.topology, model.topology.embedding.unembed)


def test_without_a_cache_it_reads_all_rows_anew_and_comes_to_the_same(voice: Decoder) -> None:
    with torch.inference_mode():
        for prompts in (prompts_of(voice), prompts_of(voice)[1:2]):
            most = [MOST, 3, MOST][: len(prompts)]
            cached = wrote(Reader(voice, prompts, most), GREEDY)
            anew = wrote(Reader(voice, prompts, most, cached=False), GREEDY)
            assert [line.ids for line in cached] == [line.ids for line in anew]
            assert [len(line.ids) for line in cached] == most
            for one, other in zip(cached, anew, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-10)


def test_a_source_is_read_once_and_each_prompt_once_however_many_lines_there_are(voice: Decoder) -> None:
    with torch.inference_mode():
        read = rows_read(voice, lambda reader: wrote(reader, GenerationConfig(temperature=1.0, n=4, seed=1)))
    prompts = len(PROMPTS)
    longest = max(map(len, PROMPTS))
    assert read.pop("body") == [(prompts, longest), *[(4 * prompts, 1)] * (MOST - 1)]
    assert list(read.values()) in ([], [[(prompts, 4)]])


def rows_read(voice: Decoder, run: Callable[[Reader], Any]) -> dict[str, list[tuple[int, int]]]:
    """The sizes (B, T) in which each part was read."""
    read: dict[str, list[tuple[int, int]]] = {}

    def watched(path: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, given: read.setdefault(path, []).append(tuple(given[0].shape[:2]))

    paths = [part.path for part in voice.topology.parts]
    hooks = [voice.topology.get_submodule(path).register_forward_pre_hook(watched(path)) for path in paths]
    prompts = prompts_of(voice)
    run(Reader(voice, prompts, [MOST] * len(prompts)))
    for hook in hooks:
        hook.remove()
    return read


def test_rows_are_of_the_language_that_is_asked_for(voice: Decoder) -> None:
    with torch.inference_mode():
        told = []
        for languages in ((0, 0), (1, 1), (None, None)):
            reader = Reader(
                voice._replace(language=languages[0], source_language=languages[1]), prompts_of(voice), [3] * 3
            )
            told.append([line.score for line in wrote(reader, GREEDY)])
    assert told[0] == told[2] != told[1]


def test_what_was_asked_may_see_itself_both_ways(
    assemble: Callable[..., Model], shake: Callable[[Model], Model]
) -> None:
    model = shake(assemble("gpt-tiny", "position=rope"))
    voice = Decoder(model.topology, model.topology.embedding.unembed)
    prompts = [prompt._replace(bidirectional=True) for prompt in prompts_of(voice)]
    with torch.inference_mode():
        lines = wrote(Reader(voice, prompts, [MOST] * 3), GREEDY)
        anew = wrote(Reader(voice, prompts, [MOST] * 3, cached=False), GREEDY)
        for prompt, line, other in zip(prompts, lines, anew, strict=True):
            alone = followed(voice, prompt, line.ids)[:-1]
            assert line.ids == other.ids == tuple(alone.argmax(-1).tolist())
            assert line.score == pytest.approx(float(alone.amax(-1).sum()), abs=1e-9)
            assert len(prompt.body) == 1 or line.score != pytest.approx(
                float(followed(voice, prompt._replace(bidirectional=False), line.ids)[:-1].amax(-1).sum()), abs=1e-6
            )


def test_sequences_are_taken_apart_doubled_and_put_in_another_order(voice: Decoder) -> None:
    with torch.inference_mode():
        for cached in (True, False):
            prompts = prompts_of(voice)
            reader = Reader(voice, prompts, [MOST] * 3, cached=cached)
            reader.begin()
            reader.step(torch.tensor([15, 16, 17]))
            reader.take(torch.tensor([2, 0, 2]))
            found = reader.step(torch.tensor([18, 19, 18])).log_softmax(-1)
            wanted = [followed(voice, prompts[at], ids)[-1] for at, ids in ((2, [17, 18]), (0, [15, 19]))]
            torch.testing.assert_close(found, torch.stack([*wanted, wanted[0]]), rtol=0, atol=1e-10)


def voice_layers(model: Model) -> list[Layer]:
    return [module for module in model.topology.modules() if isinstance(module, Layer)]


@pytest.mark.parametrize("length", [8, 16])
def test_cached_decoding_takes_as_many_rows_as_there_are_tokens(length: int, assemble: Callable[..., Model]) -> None:
    """Linear, and not quadratic: each row goes through each layer once, whatever comes behind it."""
    model = assemble("gpt-tiny", f"dims.length={length}")
    voice = Decoder(model.topology, model.topology.embedding.unembed)
    rows: list[int] = []
    for layer in voice_layers(model):
        assert layer.feedforward is not None
        layer.feedforward.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[1]))
    counts = {}
    for cached in (True, False):
        rows.clear()
        with torch.inference_mode():
            wrote(Reader(voice, [Prompt((15,))], [length], cached=cached), GREEDY)
        counts[cached] = sum(rows)
    assert counts == {True: 2 * length, False: 2 * length * (length + 1) // 2}


def test_padding_stands_before_a_prompt_and_behind_a_source() -> None:
    cpu = torch.device("cpu")
    tokens, documents = pad_ids([(1, 2), (3,)], cpu, on_left=True)
    assert (tokens.tolist(), None if documents is None else documents.tolist()) == ([[1, 2], [0, 3]], [[0, 0], [-1, 0]])
    tokens, documents = pad_ids([(1, 2), (3,)], cpu, on_left=False)
    assert (tokens.tolist(), None if documents is None else documents.tolist()) == ([[1, 2], [3, 0]], [[0, 0], [0, -1]])
    assert pad_ids([(1, 2), (3, 4)], cpu, on_left=True)[1] is None
