"""Every preset is a whole spec of what is installed, and the published ones have their published sizes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import paribus_presets
from paribus.assembly.build import build
from paribus.assembly.cost import parameters
from paribus.kernels import KERNELS
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved

FOLDER = Path(paribus_presets.__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
SPECIALS = {name: place for place, name in enumerate(("pad", "cls", "sep", "mask", "bos", "eos"))}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def shapes(registry: Registry, spec: dict[str, Any]) -> Any:
    """The model without storage."""
    size = spec["dims"]["vocabulary"] or 300
    return build(spec, registry, Vocabulary(size, SPECIALS, tuple(range(size - 32, size))), KERNELS)


def test_the_hook_offers_this_folder(registry: Registry) -> None:
    assert paribus_presets.presets() == FOLDER
    assert sorted(registry.index.presets) == NAMES
    assert {"encoder-tiny", "gpt-tiny", "bert-tiny", "seq2seq-tiny", "bert-base", "gpt2"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_a_whole_spec(registry: Registry, name: str) -> None:
    spec = resolved(name, registry=registry)
    assert resolved(spec, registry=registry) == spec
    shapes(registry, spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_says_in_its_first_line_what_it_is(name: str) -> None:
    first = (FOLDER / f"{name}.yaml").read_text().partition("\n")[0]
    assert first.startswith("# ")
    assert len(first) <= 120


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-tiny")])
def test_a_tiny_preset_is_tiny(registry: Registry, name: str) -> None:
    assert parameters(shapes(registry, resolved(name, registry=registry)).children()) < 500_000


def test_a_tiny_bert_is_a_bert_in_all_but_size_and_schedule() -> None:
    said = yaml.safe_load((FOLDER / "bert-tiny.yaml").read_text())
    assert set(said) == {"preset", "dims", "dropout", "data", "optimizer", "schedule"}
    assert said["preset"] == "bert-base"


def test_gpt2_has_the_published_number_of_parameters(registry: Registry) -> None:
    assert parameters(shapes(registry, resolved("gpt2", registry=registry)).children()) == 124_439_808


def test_bert_has_the_published_number_of_parameters(registry: Registry) -> None:
    # BertForPreTraining: 109,482,240 of encoder and pooler, and of its heads 592,128 for a dense layer and its norm,
    # 30,522 for the bias of each token, and 1,538 for whether the second segment follows.
    expected = 109_482_240 + 592_128 + 30_522 + 1_538
    assert parameters(shapes(registry, resolved("bert-base", registry=registry)).children()) == expected


def test_bert_is_post_norm_and_gpt2_pre_norm(registry: Registry) -> None:
    bert, gpt2 = resolved("bert-base", registry=registry), resolved("gpt2", registry=registry)
    assert (bert["placement"]["name"], bert["norm"]["eps"]) == ("post", 1e-12)
    assert (gpt2["placement"]["name"], gpt2["norm"]["eps"]) == ("pre", 1e-5)
    assert bert["feedforward"]["activation"] == "gelu"  # by erf
    assert gpt2["feedforward"]["activation"] == "gelu-tanh"
    assert bert["embedding"]["normed"]
    assert bert["embedding"]["segments"] == 2
    assert [node["name"] for node in bert["objective"]] == ["mlm", "nsp"]
