"""Small models that generate text, and a slow reference for their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import paribus
from paribus.inference.decoder import Decoder, Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.generation_strategies import Hypothesis, sample_texts
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.registry import installed
from paribus.slots.objective import Prompt
from paribus.slots.topology import memory_of
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.matrix import AXES, UNREAD, Matrix, Row
from paribus.testing.small_model import SmallModel, noise

PROMPTS = ((17,), (20, 21, 22, 23, 24), (30, 31, 30))
SOURCES = ((16, 18, 19, 25), (26,), (33, 32, 27))


class Cells:
    """Valid combinations of attention and position in each topology that generates text."""

    def __init__(self) -> None:
        self.matrix = Matrix(installed())
        self.rows = [row for name in self.matrix.bases if self._generates(name) for row in self._rows_of(name)]

    def few(self) -> list[Row]:
        """Return a subset that covers each kind of attention and of position in each topology.

        Components with the same traits are of one kind.
        """
        covered_kinds: set[tuple[str, ...]] = set()
        rows_to_test = []
        for row in self.rows:
            topology, attention, position, *_ = self.matrix.kinds(row)
            kinds = {(topology, "attention", attention), (topology, "position", position)}
            if not kinds <= covered_kinds:
                rows_to_test.append(row)
                covered_kinds |= kinds
        return rows_to_test

    def decoder(self, row: Row) -> Decoder:
        plain: dict[str, Any] = check(load(self.matrix.spec(row), (), self.matrix.index), self.matrix.index)
        specimen = SmallModel(plain, self.matrix.registry)
        return Decoder(specimen.topology, specimen.scores)

    def _generates(self, topology: str) -> bool:
        parts = self.matrix.index.entries["topology"][topology].parts
        return next(part.causal for part in parts if part.path == "body")

    def _rows_of(self, topology: str) -> Iterator[Row]:
        base, index = self.matrix.bases[topology], self.matrix.index
        named = {slot: base[slot]["name"] if base.get(slot) else UNREAD for slot in AXES[3:]}
        reads = index.entries["topology"][topology].reads
        for attention, entry in index.entries["attention"].items():
            for position in self.matrix.axes["position"] if entry.traits.get("decodes") else ():
                row = {"topology": topology, "attention": attention, "position": position, **named}
                if ((position == UNREAD) != ("position" in reads)) and not self.matrix.kind_problems(row):
                    yield row


@pytest.fixture(scope="session")
def cells() -> Cells:
    return Cells()


def prompts_of(decoder: Decoder, stop: int | None = None) -> list[Prompt]:
    """Return three prompts with different lengths of text and source."""
    sources = SOURCES if decoder.source is not None else (None,) * len(PROMPTS)
    return [Prompt(body, source, stop) for body, source in zip(PROMPTS, sources, strict=True)]


def log_probabilities(decoder: Decoder, prompt: Prompt, ids: Sequence[int]) -> Tensor:
    """Return the log-probabilities (len(ids) + 1, V) after a prompt and after each of `ids`, in one pass."""
    memory = None
    if decoder.source is not None and prompt.source is not None:
        stream = Stream(torch.tensor([prompt.source]))
        memory = memory_of(decoder.topology.run({decoder.source: stream}, decoder.source))
    rows = torch.tensor([[*prompt.body, *ids]])
    order = torch.arange(rows.shape[1]).clamp(min=len(prompt.body) - 1).unsqueeze(0) if prompt.bidirectional else None
    hidden = decoder.topology.run({"body": Stream(rows, order=order)}, "body", memory=memory).hidden
    return decoder.head(hidden[:, len(prompt.body) - 1 :]).log_softmax(-1)[0]


def first_texts(reader: Reader, config: GenerationConfig) -> list[Hypothesis]:
    """Return the first text of each prompt."""
    return [lines[0] for lines in sample_texts(reader, config, range(len(reader.prompts)), lambda done, total: None)]


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """Return a function that assembles a small float64 model of a preset, with perturbed weights."""
    place = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    place.write_text("\n\n".join(f"The {number}th paragraph. A line, a word, a letter." for number in range(40)))

    def assembled(preset: str, *overrides: str) -> Model:
        corpus = f"corpus={{name: text, path: ['{place}'], documents: paragraph, sentences: true}}"
        small = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.length=32", "dims.vocabulary=null")
        model = paribus.assemble(paribus.spec(preset, *small, corpus, *overrides)).double()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                parameter.add_(noise(path, *parameter.shape), alpha=0.3)
        return model

    return assembled
