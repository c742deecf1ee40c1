"""Models that write, in sizes for milliseconds, and a slow way to everything that they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import paribus
from paribus.inference.decoder import Decoder, Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.search import Hypothesis, sample_texts
from paribus.parts.batch import Stream
from paribus.registry import installed
from paribus.slots.objective import Prompt
from paribus.slots.topology import memory_of
from paribus.specs.check import check
from paribus.specs.load import load
from paribus.testing.matrix import AXES, UNREAD, Matrix, Row
from paribus.testing.small_model import Specimen, noise
from paribus.train.model import Model

PROMPTS = ((17,), (20, 21, 22, 23, 24), (30, 31, 30))
SOURCES = ((16, 18, 19, 25), (26,), (33, 32, 27))


class Cells:
    """Every attention with every position, in each topology that writes; only cells that `check` passes."""

    def __init__(self) -> None:
        self.matrix = Matrix(installed())
        self.rows = [row for name in self.matrix.bases if self._writes(name) for row in self._of(name)]

    def few(self) -> list[Row]:
        """Of each topology so many that each kind of attention, and of position, is in one: those that declare the
        same of themselves are a kind."""
        seen: set[tuple[str, ...]] = set()
        kept = []
        for row in self.rows:
            topology, attention, position, *_ = self.matrix.kinds(row)
            kinds = {(topology, "attention", attention), (topology, "position", position)}
            if not kinds <= seen:
                kept.append(row)
                seen |= kinds
        return kept

    def voice(self, row: Row) -> Decoder:
        plain: dict[str, Any] = check(load(self.matrix.spec(row), (), self.matrix.index), self.matrix.index)
        made = Specimen(plain, self.matrix.registry)
        return Decoder(made.topology, made.scores)

    def _writes(self, topology: str) -> bool:
        parts = self.matrix.index.entries["topology"][topology].parts
        return next(part.causal for part in parts if part.path == "body")

    def _of(self, topology: str) -> Iterator[Row]:
        base, index = self.matrix.bases[topology], self.matrix.index
        named = {slot: base[slot]["name"] if base.get(slot) else UNREAD for slot in AXES[3:]}
        reads = index.entries["topology"][topology].reads
        for attention, entry in index.entries["attention"].items():
            for position in self.matrix.axes["position"] if entry.traits.get("decodes") else ():
                row = {"topology": topology, "attention": attention, "position": position, **named}
                if ((position == UNREAD) != ("position" in reads)) and not self.matrix.verdict(row):
                    yield row


@pytest.fixture(scope="session")
def cells() -> Cells:
    return Cells()


def prompts_of(voice: Decoder, stop: int | None = None) -> list[Prompt]:
    """Three, of different lengths on both sides."""
    sources = SOURCES if voice.source is not None else (None,) * len(PROMPTS)
    return [Prompt(body, source, stop) for body, source in zip(PROMPTS, sources, strict=True)]


def followed(voice: Decoder, prompt: Prompt, ids: Sequence[int]) -> Tensor:
    """(len(ids) + 1, V): log p of what follows the prompt and each of `ids`, all at once and without any state."""
    memory = None
    if voice.source is not None and prompt.source is not None:
        stream = Stream(torch.tensor([prompt.source]))
        memory = memory_of(voice.topology.run({voice.source: stream}, voice.source))
    rows = torch.tensor([[*prompt.body, *ids]])
    order = torch.arange(rows.shape[1]).clamp(min=len(prompt.body) - 1).unsqueeze(0) if prompt.bidirectional else None
    hidden = voice.topology.run({"body": Stream(rows, order=order)}, "body", memory=memory).hidden
    return voice.head(hidden[:, len(prompt.body) - 1 :]).log_softmax(-1)[0]


def wrote(reader: Reader, manner: GenerationConfig) -> list[Hypothesis]:
    """The first line of each prompt."""
    return [lines[0] for lines in sample_texts(reader, manner, range(len(reader.prompts)), lambda done, most: None)]


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """A preset in a small size, in float64, far off where it starts."""
    place = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    place.write_text("\n\n".join(f"The {number}th paragraph. A line, a word, a letter." for number in range(40)))

    def assembled(preset: str, *overrides: str) -> Model:
        corpus = f"corpus={{name: text, path: ['{place}'], documents: paragraph}}"
        small = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.length=32", "dims.vocabulary=null")
        model = paribus.assemble(paribus.spec(preset, *small, corpus, *overrides)).double()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                parameter.add_(noise(path, *parameter.shape), alpha=0.3)
        return model

    return assembled
