"""`generate`, `fill-mask` and `attend` as their user sees them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.paribus.cli.conftest import Said

import paribus
from paribus.cli.main import main

Cli = Callable[..., Said]

TINY = ("dims={width: 16, heads: 4, layers: 2, length: 24}", "data.validation=16", "trainer.max_steps=2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a decoder, and an encoder and an encoder-decoder that were saved."""
    place = tmp_path_factory.mktemp("models")
    corpus = place / "corpus.txt"
    corpus.write_text("\n\n".join(f"The {number}th paragraph says something." for number in range(60)))
    said = (f"corpus={{name: text, path: ['{corpus}'], documents: paragraph}}", *TINY)
    assert main(["train", "gpt-tiny", *said, "data.batch=4", "--store", str(place / "runs")]) == 0
    for preset, objective in (("encoder-tiny", "mlm"), ("rnnsearch-tiny", "span-corruption")):
        spec = paribus.spec(preset, *said, f"objective={objective}")
        paribus.save(paribus.assemble(spec), place / preset)
    return place


@pytest.fixture
def gpt(models: Path) -> str:
    (folder,) = (models / "runs" / "train").iterdir()
    return str(folder)


def test_a_trial_is_asked_by_its_folder_or_its_identity(cli: Cli, models: Path, gpt: str) -> None:
    said = cli("generate", gpt, "The 3", "--tokens", "6")
    assert said.code == 0
    assert said.out.startswith("The 3")
    assert said.err.startswith("6 tokens in ")
    assert f"the cache took {2 * 2 * (5 + 6 - 1) * 16 * 4:,} bytes" in said.err
    again = cli("generate", Path(gpt).name[:8], "The 3", "--tokens", "6", "--store", str(models / "runs"))
    assert again.out == said.out


def test_as_json_it_tells_ids_and_scores(cli: Cli, gpt: str) -> None:
    words = ("--tokens", "4", "--temperature", "1", "--top-k", "20", "-n", "2", "--seed", "3", "--json")
    said = cli("generate", gpt, "The 3", "A", *words)
    document = json.loads(said.out)
    wanted = paribus.generate(gpt, ["The 3", "A"], tokens=4, temperature=1, top_k=20, n=2, seed=3)
    assert document["cache_bytes"] == wanted.cache_bytes
    for prompt, lines, text in zip(document["prompts"], wanted.results, ("The 3", "A"), strict=True):
        assert prompt["prompt"] == text
        assert [{**each, "ids": tuple(each["ids"])} for each in prompt["written"]] == [line._asdict() for line in lines]


def test_several_texts_are_told_apart(cli: Cli, gpt: str) -> None:
    said = cli("generate", gpt, "The 3", "A", "--tokens", "3", "--beam", "3", "-n", "2", "--length-penalty", "0.6")
    heads = [line for line in said.out.splitlines() if line.startswith("# ")]
    assert [head.partition(":")[0] for head in heads] == [
        f"# prompt {prompt}, {place} of 2" for prompt in (1, 2) for place in (1, 2)
    ]
    assert all(head.endswith(" nats") for head in heads)


def test_prompts_stand_in_a_file_or_on_stdin(
    cli: Cli, gpt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The 3\n\nA\n")
    wanted = cli("generate", gpt, "The 3", "A", "--tokens", "3").out
    assert cli("generate", gpt, "--file", str(file), "--tokens", "3").out == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert cli("generate", gpt, "--tokens", "3").out == wanted
    monkeypatch.setattr(sys, "stdin", None)
    said = cli("generate", gpt)
    assert said.code == 2
    assert said.err == (
        "error[usage] PROMPT: missing PROMPT; valid: PROMPT as arguments, --file FILE, or lines on stdin\n"
    )
    assert "expected --file or texts, got --file and 1 texts" in cli("generate", gpt, "A", "--file", str(file)).err


def test_what_is_wrong_is_told_with_its_place_and_its_exit_code(cli: Cli, models: Path, gpt: str) -> None:
    said = cli("generate", gpt, "A", "--beam", "0")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error[out-of-range] beam: got 0; valid: ≥ 1; 1 takes the most probable token\n"
    assert cli("generate", "nowhere", "A").code == 5
    assert cli("generate", gpt, "x" * 60).code == 4
    Path("odd.txt").write_bytes(b"fine\nnot \xff fine\n")
    said = cli("generate", gpt, "--file", "odd.txt")
    assert said.code == 4
    assert said.err == "error[not-utf-8] (odd.txt:2): byte 0xff at offset 9 is not UTF-8; valid: a file in UTF-8\n"
    Path("empty.txt").write_bytes(b"\n")
    assert "error[empty] PROMPT (empty.txt): the input is empty" in cli("generate", gpt, "--file", "empty.txt").err
    assert "error[cannot-read] (no.txt): cannot read this file" in cli("generate", gpt, "--file", "no.txt").err
    said = cli("generate", str(models / "encoder-tiny"), "A")
    assert said.code == 2
    assert "a model that was trained for mlm cannot generate" in said.err


def test_masks_are_filled(cli: Cli, models: Path) -> None:
    name = str(models / "encoder-tiny")
    said = cli("fill-mask", name, "The <mask>th", "--top", "3")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    (wanted,) = paribus.fill(name, "The <mask>th", top=3)
    assert [float(line[0]) for line in lines] == pytest.approx([each.probability for each in wanted], abs=1e-4)
    both = cli("fill-mask", name, "The <mask>th <mask>", "A<mask>", "--top", "2").out.splitlines()
    assert both[0] == "The <mask>th <mask>"
    assert [line[:6] for line in both[1:5]] == ["mask 1"] * 2 + ["mask 2"] * 2
    assert both[5:7] == ["", "A<mask>"]
    document = json.loads(cli("fill-mask", name, "The <mask>th", "--top", "3", "--json").out)
    assert document == [{"text": "The <mask>th", "masks": [[each._asdict() for each in wanted]]}]
    assert "error[no-mask] text: expected at least one `<mask>`, got none" in cli("fill-mask", name, "The").err


def test_maps_of_attention_are_shown(cli: Cli, models: Path, gpt: str) -> None:
    said = cli("attend", gpt, "The 3rd")
    assert said.code == 0
    head, *lines = said.out.splitlines()
    assert head.startswith("layer 1 of 2, the mean of 4 heads: rows are queries")
    assert lines[0].split() == ["T", "h", "e", "·", "3", "r", "d"]
    assert max(map(len, lines)) <= 80
    assert cli("attend", gpt, "The 3rd", "--layer", "0", "--head", "3").out.startswith("layer 0 of 2, head 3 of 4: ")
    every = [line for line in cli("attend", gpt, "The", "--all").out.splitlines() if line.startswith("layer")]
    assert len(every) == 8
    document = json.loads(cli("attend", gpt, "The", "--json").out)
    assert (document["of"], document["rows"], len(document["layers"])) == ("own", ["T", "h", "e"], 2)
    one = json.loads(cli("attend", gpt, "The", "--layer", "1", "--head", "2", "--json").out)
    assert one["weights"] == document["layers"][1][2]
    said = cli("attend", str(models / "rnnsearch-tiny"), "ab", "--source", "The 3")
    assert "rows are generated tokens, columns are source tokens" in said.out
    assert [line.split()[0] for line in said.out.splitlines()[-5:-2]] == ["a", "b", "<eos>"]
    assert cli("attend", gpt, "The", "--layer", "9").code == 2


def test_help_takes_no_torch() -> None:
    code = (
        "import sys; from paribus.cli.main import main\n"
        "for verb in ('generate', 'fill-mask', 'attend'): assert main([verb, '--help']) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
