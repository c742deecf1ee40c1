"""Whole models, in sizes for milliseconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paribus.keyed import key32
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.tokens import Labels
from paribus.specs import resolved
from paribus.train.assemble import build_data, build_model
from paribus.train.data import Data
from paribus.train.lightning_module import Model
from paribus.train.token_store import EncodedCorpus, SplitTokens

SMALL = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.length=16", "dims.vocabulary=null")
UNTOLD: Any = None  # the tokenizer of ids that no text gave


@pytest.fixture(scope="session")
def components() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def swap() -> Mapping[str, Any]:
    """What a study says that swaps one part, and whose trials take milliseconds."""
    small = {"width": 8, "layers": 1, "heads": 2, "length": 16}
    return {
        "base": {"preset": "encoder-tiny", "dims": small, "data": {"batch": 4, "validation": 8}},
        "vary": {"attention": ["mqa"]},
        "seeds": 2,
        "budget": {"steps": 3},
        "metric": "val/mlm/loss",
    }


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    first = len(names) + 8
    specials = {name: at for at, name in enumerate(names)}
    return Vocabulary(40, specials, tuple(range(len(names), first)), frozenset(range(first, 40, 2)))


@pytest.fixture(scope="session")
def assemble(components: Registry, vocabulary: Vocabulary) -> Callable[..., Model]:
    """A preset in a small size, with overrides; `registry` brings components of the test's own."""

    def assemble(preset: str, *overrides: str, registry: Registry | None = None) -> Model:
        classes = registry or components
        return build_model(resolved(preset, *SMALL, *overrides, registry=classes), classes, vocabulary)

    return assemble


@pytest.fixture(scope="session")
def text(vocabulary: Vocabulary) -> EncodedCorpus:
    """Some documents of sentences of words, without a tokenizer."""
    train, val = (_documents(vocabulary, count, 2, 7, seed) for count, seed in ((60, 1), (20, 2)))
    return EncodedCorpus(UNTOLD, vocabulary, train, val, "corpus", "tokenizer", {}, 0)


@pytest.fixture(scope="session")
def pairs(vocabulary: Vocabulary) -> EncodedCorpus:
    """Some documents of a sentence, each with another beside it."""

    def side(count: int, seed: int) -> SplitTokens:
        source, target = (_documents(vocabulary, count, 1, 2, seed + 10 * at) for at in range(2))
        return replace(source, targets=target)

    return EncodedCorpus(UNTOLD, vocabulary, side(60, 1), side(20, 2), "corpus", "tokenizer", {}, 0)


def _documents(vocabulary: Vocabulary, count: int, fewest: int, most: int, seed: int) -> SplitTokens:
    """Documents of `fewest` up to, not including, `most` sentences of three words and more."""
    luck = np.random.default_rng(seed)
    lengths = luck.integers(fewest, most, size=count)
    sentences = np.insert(np.cumsum(luck.integers(3, 9, size=lengths.sum())), 0, 0)
    ids = luck.integers(15, vocabulary.size, size=sentences[-1])
    return SplitTokens(ids, sentences, np.insert(np.cumsum(lengths), 0, 0))


@pytest.fixture(scope="session")
def pictures() -> EncodedCorpus:
    """Some images of 16 by 16, each of one of 8 classes."""

    def side(count: int, seed: int) -> SplitTokens:
        luck, numbers = np.random.default_rng(seed), np.arange(count + 1)
        labels = Labels(luck.integers(8, size=count).astype(float), numbers)
        return SplitTokens(luck.integers(256, size=256 * count), 256 * numbers, numbers, labels=labels)

    return EncodedCorpus(UNTOLD, Vocabulary(257, {"mask": 256}), side(40, 1), side(20, 2), "corpus", "tokenizer", {}, 0)


@pytest.fixture(scope="session")
def feed(
    components: Registry, text: EncodedCorpus, pairs: EncodedCorpus, pictures: EncodedCorpus
) -> Callable[..., Data]:
    """The data of a preset in a small size: that text, those pairs or those pictures, as its corpus would have it."""

    def feed(preset: str, *overrides: str, registry: Registry | None = None, text: EncodedCorpus = text) -> Data:
        classes = registry or components
        spec = resolved(preset, *SMALL, "data.batch=8", *overrides, registry=classes)
        traits = classes.index.find("corpus", spec["corpus"]["name"]).traits
        if traits.get("modality") == "images":
            return build_data(spec, classes, pictures)
        return build_data(spec, classes, pairs if "pairs" in traits.get("provides", []) else text)

    return feed


@pytest.fixture(scope="session")
def shake() -> Callable[[Model], Model]:
    """A model in float64, all of it moved off where it starts: gains of 1 and biases of 0 hide what is wrong."""

    def shake(model: Model) -> Model:
        model.double().eval()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                generator = torch.Generator().manual_seed(key32("shake", path))
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.2)
        return model

    return shake
