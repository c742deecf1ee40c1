"""GPT-Neo and GPT-J beyond `test_parity`: greedy texts of exported models, and configurations that are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES, LENGTH, VOCABULARY
from tests.hf_parity.float64 import keep_float64
from torch import nn

import paribus
from paribus import SpecError

transformers = pytest.importorskip("transformers")

PROMPTS = [[11, 20, 8], [30, 7, 9, 33, 12, 40]]
CLASSES = {"gpt-neo-tiny": "GPTNeoForCausalLM", "gpt-j-tiny": "GPTJForCausalLM"}


@pytest.mark.few(1)
@pytest.mark.parametrize("preset", CLASSES)
def test_an_exported_model_gives_equal_logits_and_greedy_texts(
    preset: str, randomise: Callable[[nn.Module], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float64(monkeypatch)
    model = randomise(paribus.assemble(paribus.spec(preset, "dims.vocabulary=300", "dims.width=32")))
    for name in ("body.norm.bias", "objectives.clm.bias"):  # which would score the same token highest everywhere
        dict(model.named_parameters()).get(name, torch.empty(0)).data.zero_()
    exported = paribus.export(model)
    assert exported.architecture == CLASSES[preset]
    exported.save(tmp_path)
    hf_model = getattr(transformers, CLASSES[preset]).from_pretrained(tmp_path, dtype=torch.float64).eval()
    tokens = torch.randint(7, 300, (2, 30), generator=torch.Generator().manual_seed(0))  # longer than a window of 16
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0], hf_model(tokens).logits, rtol=0, atol=1e-9)
    for prompt in PROMPTS:
        text = hf_model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        (results,) = paribus.generate(model, [prompt], tokens=24).results
        assert list(results[0].ids) == text[0, len(prompt) :].tolist()
        assert len(set(results[0].ids)) > 1


@pytest.mark.parametrize(
    "types", [[[["global", "local"], 2]], [[["global", "sparse"], 1]]], ids=["four layers", "an unknown kind"]
)
def test_attention_types_that_do_not_fit_the_layers_are_refused(types: list[Any]) -> None:
    config = {**CASES["gpt_neo"][0].config, "num_layers": 2, "attention_types": types, "vocab_size": VOCABULARY}
    with raises_problem(SpecError, "unsupported-option", "attention_types", "global or local"):
        read("gpt_neo", config)


@pytest.mark.parametrize("rotated", [None, 0, 3, 12])
def test_a_number_of_rotated_channels_that_a_head_lacks_is_refused(rotated: int | None) -> None:
    config = {"n_positions": LENGTH, "n_embd": 30, "n_head": 3, "n_layer": 1, "rotary_dim": rotated}
    with raises_problem(SpecError, "unsupported-option", "rotary_dim", "2 to 10"):
        read("gptj", config)


def read(family: str, config: dict[str, Any]) -> Any:
    from paribus.conversion.api import families
    from paribus.registry import installed

    families_by_name = families(installed())
    architecture = {"gpt_neo": "GPTNeoForCausalLM", "gptj": "GPTJForCausalLM"}[family]
    return families_by_name[family].spec_of(config, architecture)
