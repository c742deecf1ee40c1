"""`paribus convert`: round trips, and folders that it rejects without writing anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.paribus.cli.conftest import CommandResult
from tests.fixtures.problems import raises_problem

import paribus
from paribus.conversion.source_model import SourceModel

Cli = Callable[..., CommandResult]

TINY = ("dims.width=12", "dims.heads=3", "dims.length=9", "dims.vocabulary=300", "dims.layers=2")


@pytest.fixture(scope="session")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 in the format of Hugging Face."""
    folder = tmp_path_factory.mktemp("gpt2")
    spec = paribus.spec("gpt2", *TINY, "tokenizer=bytes", "dropout=0.1")
    paribus.export(paribus.assemble(spec), "gpt2").save(folder)
    return folder


def edited_copy(folder: Path, target: Path, **changes: Any) -> Path:
    """Return a copy of a model with a changed configuration; None removes a key."""
    target.mkdir()
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    remaining = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(remaining))
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


@pytest.mark.thorough
def test_a_model_converted_to_paribus_and_back_has_the_same_files(cli: Cli, gpt: Path) -> None:
    result = cli("convert", str(gpt), "-o", "ours")
    assert (result.code, result.out) == (0, "7,500 parameters: GPT2LMHeadModel → a Paribus model\nwritten to ours\n")
    assert "paribus.load('ours')" in result.err
    result = cli("convert", "ours", "-o", "theirs", "--json")
    assert json.loads(result.out)["tokenizer"] == "tokenizer.json"
    assert json.loads(result.out)["to"] == "GPT2LMHeadModel"
    assert {path.name: path.read_bytes() for path in Path("theirs").iterdir()} == {
        path.name: path.read_bytes() for path in gpt.iterdir()
    }


@pytest.mark.thorough
def test_a_model_without_a_tokenizer_is_converted_both_ways_with_a_note(cli: Cli, gpt: Path, tmp_path: Path) -> None:
    result = cli("convert", str(edited_copy(gpt, tmp_path / "bare")), "-o", "ours")
    assert "no `tokenizer.json` written" in result.err
    result = cli("convert", "ours", "-o", "theirs")
    assert "no `tokenizer.json` written: the model has no tokenizer" in result.err
    assert not Path("theirs", "tokenizer.json").exists()


@pytest.mark.thorough
def test_two_networks_convert_to_one_model_and_back(cli: Cli) -> None:
    trained = paribus.assemble(paribus.spec("electra-tiny", "dims.width=12", "dims.length=9", "dims.vocabulary=300"))
    for network in ("ElectraForPreTraining", "ElectraForMaskedLM"):
        paribus.export(trained, architecture=network).save(network)
    result = cli("convert", "ElectraForPreTraining", "--beside", "ElectraForMaskedLM", "-o", "ours")
    assert result.out.endswith("ElectraForPreTraining and ElectraForMaskedLM → a Paribus model\nwritten to ours\n")
    for network in ("ElectraForPreTraining", "ElectraForMaskedLM"):
        assert cli("convert", "ours", "-o", f"back/{network}", "--as", network).code == 0
        for name in ("config.json", "model.safetensors"):
            assert Path("back", network, name).read_bytes() == Path(network, name).read_bytes()


@pytest.mark.thorough
def test_a_loaded_model_can_be_trained_further(cli: Cli, gpt: Path) -> None:
    cli("convert", str(gpt), "-o", "ours")
    tokens = torch.randint(0, 300, (2, 9))
    loaded, converted = paribus.load("ours").eval(), paribus.convert(gpt).eval()
    assert torch.equal(loaded(tokens)[0], converted(tokens)[0])
    assert loaded.spec.attention.name == "mha" if hasattr(loaded.spec, "attention") else loaded.spec["attention"]


@pytest.mark.thorough
def test_a_configuration_key_can_be_overridden(cli: Cli, gpt: Path, tmp_path: Path) -> None:
    uneven = edited_copy(gpt, tmp_path / "uneven", attn_pdrop=0.0)
    result = cli("convert", str(uneven), "-o", "ours")
    assert result.code == 2
    assert "error[unsupported-option] attn_pdrop" in result.err
    assert "attn_pdrop=0.1" in result.err
    assert cli("convert", str(uneven), "attn_pdrop=0.1", "-o", "ours").code == 0


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("changes", "code", "problem"),
    [
        ({"model_type": "gpt3"}, 2, "error[unknown-family] model_type"),
        ({"model_type": None}, 2, "error[unknown-family] model_type"),
        ({"rotary": True}, 2, "error[unknown-option] rotary"),
        ({"add_cross_attention": True}, 2, "error[unsupported-option] add_cross_attention"),
        ({"activation_function": "mish"}, 2, "error[unsupported-option] activation_function"),
        ({"architectures": ["GPT2ForQuestionAnswering"]}, 2, "error[unknown-architecture] architectures"),
        ({"architectures": None}, 5, "error[missing-model]"),
        ({"n_layer": 3}, 5, "error[missing-tensor] transformer.h.2.attn.c_attn.weight"),
        ({"n_layer": 1}, 5, "error[extra-tensor] transformer.h.1.attn.c_attn.bias"),
        ({"n_embd": 24}, 5, "error[wrong-shape] transformer.wte.weight"),
        ({"n_head": 5}, 2, "error[not-divisible] dims.heads"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_invalid_configuration_is_refused(
    cli: Cli, gpt: Path, tmp_path: Path, changes: dict[str, Any], code: int, problem: str
) -> None:
    result = cli("convert", str(edited_copy(gpt, tmp_path / "edited", **changes)), "-o", "ours")
    assert (result.code, result.out) == (code, "")
    assert problem in result.err
    assert "Traceback" not in result.err
    assert not Path("ours").exists()


def test_a_pickle_is_not_opened(cli: Cli, gpt: Path, tmp_path: Path) -> None:
    folder = edited_copy(gpt, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    result = cli("convert", str(folder), "-o", "ours")
    assert result.code == 5
    assert "error[pickle]" in result.err
    assert "valid: safetensors" in result.err


def test_a_truncated_file_is_refused(cli: Cli, gpt: Path, tmp_path: Path) -> None:
    folder = edited_copy(gpt, tmp_path / "cut")
    (folder / "model.safetensors").write_bytes((gpt / "model.safetensors").read_bytes()[:-100])
    result = cli("convert", str(folder), "-o", "ours")
    assert (result.code, "error[damaged]" in result.err) == (5, True)
    (folder / "config.json").write_text("{not json")
    result = cli("convert", str(folder), "-o", "ours")
    assert (result.code, "error[damaged]" in result.err, "Traceback" in result.err) == (5, True, False)


def test_sharded_weights_are_read_from_inside_the_folder_only(cli: Cli, gpt: Path, tmp_path: Path) -> None:
    folder = edited_copy(gpt, tmp_path / "pieces")
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "model-00001.safetensors"}}))
    assert cli("convert", str(folder), "-o", "ours").code == 0
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "../pieces/model-00001.safetensors"}}))
    result = cli("convert", str(folder), "-o", "others")
    assert (result.code, "error[missing-weights]" in result.err) == (5, True)


def test_files_are_never_overwritten(cli: Cli, gpt: Path) -> None:
    Path("ours").mkdir()
    Path("ours", "notes").write_text("mine")
    result = cli("convert", str(gpt), "-o", "ours")
    assert (result.code, "error[not-empty]" in result.err) == (5, True)
    assert [path.name for path in Path("ours").iterdir()] == ["notes"]


@pytest.mark.thorough
def test_a_model_that_no_family_supports_is_refused_with_the_reason(cli: Cli) -> None:
    spec = paribus.spec("gpt2", *TINY, "tokenizer=bytes", "attention=mqa")
    paribus.save(paribus.assemble(spec), "ours")
    result = cli("convert", "ours", "-o", "theirs", "--to", "gpt2")
    assert result.code == 2
    assert "error[cannot-export] gpt2: " in result.err
    assert "`attention`" in result.err
    assert "error[cannot-export]: " in cli("convert", "ours", "-o", "theirs").err
    result = cli("convert", "ours", "-o", "theirs", "--to", "gpt")
    assert "error[unknown-family]" in result.err
    assert '"gpt"; did you mean "gptj"?' in result.err


@pytest.mark.thorough
def test_a_head_that_the_family_does_not_have_is_refused() -> None:
    spec = paribus.spec("gpt2", *TINY, "tokenizer=bytes", "dropout=0.1", "objective.bias=true")
    with raises_problem(paribus.SpecError, "cannot-export", "bias", "clm"):
        paribus.export(paribus.assemble(spec), "gpt2")


def test_an_empty_folder_is_no_model(cli: Cli, tmp_path: Path) -> None:
    result = cli("convert", str(tmp_path), "-o", "ours")
    assert (result.code, "error[missing-record]" in result.err) == (5, True)


def test_a_folder_without_a_model_is_refused() -> None:
    with raises_problem(paribus.StoreError, "missing-model", "dict"):
        paribus.convert({"config": 1})


@pytest.mark.thorough
def test_an_exported_model_is_converted_in_memory() -> None:
    exported = paribus.export(paribus.assemble(paribus.spec("gpt2", *TINY, "tokenizer=bytes")))
    assert isinstance(exported, SourceModel)
    assert exported.architecture == "GPT2LMHeadModel"
    assert paribus.convert(exported).spec["dims"]["width"] == 12
