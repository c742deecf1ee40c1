"""`paribus generate`, `fill-mask` and `attend`: output, errors and exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.paribus.cli.conftest import CommandResult

import paribus
from paribus.cli.main import main
from paribus.report.html import generator_tag

Cli = Callable[..., CommandResult]

TINY = ("dims={width: 16, heads: 4, layers: 2, length: 24}", "data.validation=16", "trainer.max_steps=2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with a trained decoder, a saved encoder and a saved encoder-decoder."""
    folder = tmp_path_factory.mktemp("models")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join(f"The {number}th paragraph says something." for number in range(60)))
    options = (f"corpus={{name: text, path: ['{corpus}'], documents: paragraph}}", *TINY)
    assert main(["train", "gpt-tiny", *options, "data.batch=4", "--store", str(folder / "runs")]) == 0
    for preset in ("encoder-tiny", "mdlm-tiny", "rnnsearch-tiny"):
        spec = paribus.spec(preset, *options, *(["objective=span-corruption"] if preset == "rnnsearch-tiny" else []))
        paribus.save(paribus.assemble(spec), folder / preset)
    return folder


@pytest.fixture
def gpt(models: Path) -> str:
    (folder,) = (models / "runs" / "train").iterdir()
    return str(folder)


def test_a_model_is_a_folder_or_the_identity_of_a_trial(cli: Cli, models: Path, gpt: str) -> None:
    result = cli("generate", gpt, "The 3", "--tokens", "6")
    assert result.code == 0
    assert result.out.startswith("The 3")
    assert result.err.startswith("6 tokens in ")
    assert f"the cache took {2 * 2 * (5 + 6 - 1) * 16 * 4:,} bytes" in result.err
    by_identity = cli("generate", Path(gpt).name[:8], "The 3", "--tokens", "6", "--store", str(models / "runs"))
    assert by_identity.out == result.out


def test_a_model_of_masked_diffusion_continues_a_prompt(cli: Cli, models: Path) -> None:
    words = ("--tokens", "6", "--steps", "3", "--temperature", "1", "--remasking", "low-confidence")
    model = str(models / "mdlm-tiny")
    result = cli("generate", model, "The 3", *words)
    assert result.code == 0
    assert result.out.startswith("The 3")
    assert cli("generate", model, "The 3", *words).out == result.out
    refused = cli("generate", str(models / "encoder-tiny"), "The 3", *words)
    assert refused.code == 2
    assert "error[cannot-write]" in refused.err


@pytest.mark.thorough
def test_json_contains_ids_and_scores(cli: Cli, gpt: str) -> None:
    words = ("--tokens", "4", "--temperature", "1", "--top-k", "20", "-n", "2", "--seed", "3", "--json")
    result = cli("generate", gpt, "The 3", "A", *words)
    document = json.loads(result.out)
    expected = paribus.generate(gpt, ["The 3", "A"], tokens=4, temperature=1, top_k=20, n=2, seed=3)
    assert document["cache_bytes"] == expected.cache_bytes
    for prompt, lines, text in zip(document["prompts"], expected.results, ("The 3", "A"), strict=True):
        assert prompt["prompt"] == text
        assert [{**entry, "ids": tuple(entry["ids"])} for entry in prompt["written"]] == [
            line._asdict() for line in lines
        ]


def test_several_texts_have_headings(cli: Cli, gpt: str) -> None:
    result = cli("generate", gpt, "The 3", "A", "--tokens", "3", "--beam", "3", "-n", "2", "--length-penalty", "0.6")
    heads = [line for line in result.out.splitlines() if line.startswith("# ")]
    assert [head.partition(":")[0] for head in heads] == [
        f"# prompt {prompt}, {place} of 2" for prompt in (1, 2) for place in (1, 2)
    ]
    assert all(head.endswith(" nats") for head in heads)


@pytest.mark.thorough
def test_prompts_are_read_from_a_file_or_stdin(
    cli: Cli, gpt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The 3\n\nA\n")
    expected = cli("generate", gpt, "The 3", "A", "--tokens", "3").out
    assert cli("generate", gpt, "--file", str(file), "--tokens", "3").out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert cli("generate", gpt, "--tokens", "3").out == expected
    monkeypatch.setattr(sys, "stdin", None)
    result = cli("generate", gpt)
    assert result.code == 2
    assert result.err.startswith("error[usage] PROMPT: ")
    assert result.err.count("\n") == 1
    assert cli("generate", gpt, "A", "--file", str(file)).err.startswith("error[usage] PROMPT: ")


@pytest.mark.thorough
def test_invalid_input_is_reported_with_its_location_and_exit_code(cli: Cli, models: Path, gpt: str) -> None:
    result = cli("generate", gpt, "A", "--beam", "0")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[out-of-range] beam: got 0; valid: ≥ 1")
    assert result.err.count("\n") == 1
    assert cli("generate", "nowhere", "A").code == 5
    assert cli("generate", gpt, "x" * 60).code == 4
    Path("odd.txt").write_bytes(b"fine\nnot \xff fine\n")
    result = cli("generate", gpt, "--file", "odd.txt")
    assert result.code == 4
    assert result.err.startswith("error[not-utf-8] (odd.txt:2): byte 0xff at offset 9 ")
    assert result.err.count("\n") == 1
    Path("empty.txt").write_bytes(b"\n")
    assert "error[empty] PROMPT (empty.txt): " in cli("generate", gpt, "--file", "empty.txt").err
    assert "error[cannot-read] (no.txt): " in cli("generate", gpt, "--file", "no.txt").err
    result = cli("generate", str(models / "encoder-tiny"), "A")
    assert result.code == 2
    assert result.err.startswith("error[cannot-write] objective: ")
    assert "mlm" in result.err


@pytest.mark.thorough
def test_masks_are_filled(cli: Cli, models: Path) -> None:
    name = str(models / "encoder-tiny")
    result = cli("fill-mask", name, "The <mask>th", "--top", "3")
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    (expected,) = paribus.fill(name, "The <mask>th", top=3)
    assert [float(line[0]) for line in lines] == pytest.approx(
        [candidate.probability for candidate in expected], abs=1e-4
    )
    both = cli("fill-mask", name, "The <mask>th <mask>", "A<mask>", "--top", "2").out.splitlines()
    assert both[0] == "The <mask>th <mask>"
    assert [line[:6] for line in both[1:5]] == ["mask 1"] * 2 + ["mask 2"] * 2
    assert both[5:7] == ["", "A<mask>"]
    document = json.loads(cli("fill-mask", name, "The <mask>th", "--top", "3", "--json").out)
    assert document == [{"text": "The <mask>th", "masks": [[candidate._asdict() for candidate in expected]]}]
    assert "error[missing-mask] text: " in cli("fill-mask", name, "The").err


@pytest.mark.thorough
def test_attention_maps_are_printed(cli: Cli, models: Path, gpt: str) -> None:
    result = cli("attend", gpt, "The 3rd")
    assert result.code == 0
    head, *lines = result.out.splitlines()
    assert head.startswith("layer 1 of 2, the mean of 4 heads: rows are queries")
    assert lines[0].split() == ["T", "h", "e", "·", "3", "r", "d"]
    assert max(map(len, lines)) <= 80
    assert cli("attend", gpt, "The 3rd", "--layer", "0", "--head", "3").out.startswith("layer 0 of 2, head 3 of 4: ")
    every = [line for line in cli("attend", gpt, "The", "--all").out.splitlines() if line.startswith("layer")]
    assert len(every) == 8
    document = json.loads(cli("attend", gpt, "The", "--json").out)
    assert (document["kind"], document["query_tokens"], len(document["layers"])) == ("self", ["T", "h", "e"], 2)
    one = json.loads(cli("attend", gpt, "The", "--layer", "1", "--head", "2", "--json").out)
    assert one["weights"] == document["layers"][1][2]
    result = cli("attend", str(models / "rnnsearch-tiny"), "ab", "--source", "The 3")
    assert "rows are generated tokens, columns are source tokens" in result.out
    assert [line.split()[0] for line in result.out.splitlines()[-5:-2]] == ["a", "b", "<eos>"]
    assert cli("attend", gpt, "The", "--layer", "9").code == 2


@pytest.mark.thorough
def test_a_page_of_attention_overwrites_only_its_own(cli: Cli, gpt: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for text in ("The", "3rd"):
        assert cli("attend", gpt, text, "-o", str(page)).code == 0
        assert f"<h1>{text}</h1>" in page.read_text()
    report = generator_tag("report")
    for content in ("my notes", report, report.replace("report", "bench")):
        page.write_text(content)
        result = cli("attend", gpt, "The", "-o", str(page))
        assert (result.code, page.read_text()) == (5, content)
        assert "error[not-empty]" in result.err
        assert "`paribus attend`" in result.err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from paribus.cli.main import main\n"
        "for verb in ('generate', 'fill-mask', 'attend'): assert main([verb, '--help']) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
