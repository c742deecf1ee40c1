"""`paribus embed`: output, files and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.core.paribus.cli.conftest import CommandResult

import paribus

Cli = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bert"
    sizes = ("dims.width=16", "dims.layers=2", "dims.length=32", "dims.vocabulary=300")
    paribus.save(paribus.assemble(paribus.spec("bert-tiny", *sizes)), folder)
    return str(folder)


@pytest.mark.thorough
def test_a_line_is_printed_for_each_text_or_each_token(cli: Cli, bert: str) -> None:
    result = cli("embed", bert, "Two texts.", "Both")
    assert result.code == 0
    lines = result.out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("'Two texts.'  16 numbers  norm ")
    assert lines[0].endswith(" …")
    rows = cli("embed", bert, "Both", "--pool", "none").out.splitlines()
    assert len(rows) == len(paribus.embed(bert, "Both").ids[0])


@pytest.mark.thorough
def test_json_contains_every_number(cli: Cli, bert: str) -> None:
    document = json.loads(cli("embed", bert, "Two texts.", "--layer", "1", "--pool", "none", "--json").out)
    embeddings = paribus.embed(bert, "Two texts.", layers=1, pool="none")
    assert (document["layers"], document["pool"], document["combine"]) == ([1], "none", "mean")
    (text,) = document["texts"]
    assert text["ids"] == list(embeddings.ids[0])
    assert text["tokens"] == list(embeddings.tokens[0])
    assert torch.allclose(torch.tensor(text["vectors"]), embeddings.vectors[0])


@pytest.mark.parametrize(("text", "layers"), [("-2:", slice(-2, None)), ("0,2", [0, 2]), (":", slice(None))])
def test_layers_are_a_number_a_list_or_a_slice(text: str, layers: Any, cli: Cli, bert: str) -> None:
    document = json.loads(cli("embed", bert, "Two", "--layers", text, "--combine", "concat", "--json").out)
    expected = paribus.embed(bert, "Two", layers=layers, combine="concat")
    assert document["layers"] == list(expected.layers)
    assert torch.allclose(torch.tensor(document["texts"][0]["vectors"]), expected.vectors[0])


def test_vectors_are_written_to_a_file(cli: Cli, bert: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Two texts.\n\nBoth\n")
    texts = ["Two texts.", "Both"]
    result = cli("embed", bert, "--file", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "v.npy"))
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("written to ")
    assert np.allclose(np.load(tmp_path / "v.npy"), torch.stack(paribus.embed(bert, texts).vectors).numpy())
    cli("embed", bert, *texts, "--pool", "none", "-o", str(tmp_path / "v.safetensors"))
    read, rows = load_file(tmp_path / "v.safetensors"), paribus.embed(bert, texts, pool="none")
    assert torch.allclose(read["vectors"], torch.cat(rows.vectors))
    assert read["lengths"].tolist() == [len(vectors) for vectors in rows.vectors]


def test_an_output_file_is_validated_before_the_model_is_loaded(cli: Cli, bert: str, tmp_path: Path) -> None:
    result = cli("embed", bert, "A", "-o", str(tmp_path / "v.txt"))
    assert result.code == 2
    assert result.err.startswith("error[usage] --out: ")
    assert ".npy or .safetensors" in result.err
    (tmp_path / "v.npy").write_text("mine")
    result = cli("embed", bert, "A", "-o", str(tmp_path / "v.npy"))
    assert result.code != 0
    assert "error[not-empty]" in result.err
    assert (tmp_path / "v.npy").read_text() == "mine"


def test_errors_have_their_exit_codes(cli: Cli, bert: str) -> None:
    assert cli("embed", bert, "A", "--layer", "9").code == 2
    assert "expected layers, got `last`" in cli("embed", bert, "A", "--layers", "last").err
    assert cli("embed", bert, "one two " * 40).code == 4


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from paribus.cli.main import main; assert main(['embed', '--help']) == 0; "
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.thorough
def test_pairs_of_texts_are_read_by_three_commands(cli: Cli, bert: str) -> None:
    document = json.loads(cli("embed", bert, "Two", "Both", "--pair", "one", "--pair", "other", "--json").out)
    expected = paribus.embed(bert, ["Two", "Both"], ["one", "other"])
    assert torch.allclose(torch.tensor(document["texts"][1]["vectors"]), expected.vectors[1])
    maps = json.loads(cli("attend", bert, "Two", "Both", "--json").out)
    assert tuple(maps["key_tokens"]) == paribus.attend(bert, "Two", "Both").key_tokens
    ((mask,),) = [
        text["masks"] for text in json.loads(cli("fill-mask", bert, "<mask>", "--pair", "Both", "--json").out)
    ]
    assert mask[0]["probability"] == pytest.approx(paribus.fill(bert, "<mask>", "Both")[0][0].probability)
    assert cli("fill-mask", bert, "<mask>", "a <mask>", "--pair", "Both").code == 2
