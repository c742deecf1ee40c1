"""`paribus generate`: generate text with a trained model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, load_named_model, note, out, out_json, read_texts, store_option
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.generate import GeneratedText, Generation
    from paribus.models.lightning_module import Model


@click.command("generate")
@click.argument("model")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--file", type=click.Path(path_type=Path), help="File with one prompt a line; default: stdin.")
@click.option("--tokens", type=int, help="Maximum number of new tokens; default: up to the model's length.")
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, help="Temperature of sampling; 0: greedy decoding."
)
@click.option("--top-k", type=int, help="Sample from the K most probable tokens.")
@click.option("--top-p", type=float, help="Sample from the fewest tokens with this total probability (nucleus).")
@click.option("--min-p", type=float, help="Sample from tokens with at least this share of the maximum probability.")
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Divisor of the scores of earlier tokens (CTRL: 1.2).",
)
@click.option("--beam", type=int, default=1, show_default=True, help="Width of beam search.")
@click.option(
    "--length-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Length penalty of beam search (Wu et al. 2016: 0.6).",
)
@click.option("-n", "n", type=int, default=1, show_default=True, help="Number of texts for each prompt.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of sampling.")
@click.option("--steps", type=int, help="Steps in which a model of masked diffusion fills masks; default: one a token.")
@click.option(
    "--remasking",
    help="Tokens that such a step keeps: random, or not the low-confidence ones; default: random with a temperature.",
)
@click.option("--language", help="Target language, if the corpus has languages.")
@click.option("--source-language", help="Language of the prompt, for an encoder-decoder.")
@click.option("--label", help="Class of the text, by name or number, for a model trained with labels.")
@click.option("--batch", type=int, default=32, show_default=True, help="Number of prompts in a batch.")
@click.option("--no-cache", is_flag=True, help="Do not cache keys and values: recompute all positions for each token.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print texts, ids and scores as JSON.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    prompts: tuple[str, ...],
    file: Path | None,
    store: Path,
    as_json: bool,
    no_cache: bool,
    **options: Any,
) -> int:
    """Generate text with a trained model.

    `paribus generate 1f3a9c "The import statement" --temperature 0.8 --top-p 0.9 -n 3`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`. A
    decoder continues each PROMPT, and the prompt is printed too; so does an encoder that was trained by masked
    diffusion, which fills masks in any order. An encoder-decoder prints the target of its source.
    Special tokens are written as `<mask>`.
    """
    texts = read_texts(prompts, file, "PROMPT")
    loaded = load_named_model(session, model, store)
    start_time = time.perf_counter()
    generation = _generated(session, loaded, texts, cache=not no_cache, **options)
    seconds = time.perf_counter() - start_time
    count = sum(len(line.ids) for lines in generation.results for line in lines)
    if as_json:
        out_json(_document(texts, generation))
    else:
        for text in _lines(texts, generation, continues=_continues_prompt(loaded)):
            out(text)
    cache_note = f"; the cache took {generation.cache_bytes:,} bytes" if generation.cache_bytes else ""
    note(f"{count:,} tokens in {seconds:.1f} s{cache_note}")
    return EXIT_OK


def _generated(session: Session, model: Model, texts: list[str], **options: Any) -> Generation:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    import paribus

    console = Console(stderr=True)
    if not console.is_terminal:
        return paribus.generate(model, texts, registry=session.registry(), **options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("tokens", total=None)
        options["on_progress"] = lambda done, total: bar.update(task, completed=done, total=total)
        return paribus.generate(model, texts, registry=session.registry(), **options)


def _continues_prompt(model: Model) -> bool:
    """Return whether the model continues its prompt instead of answering it."""
    return all(part.cross is None for part in model.topology.parts)


def _lines(texts: list[str], generation: Generation, *, continues: bool) -> Iterator[str]:
    several = len(texts) > 1 or any(len(lines) > 1 for lines in generation.results)
    for number, (text, lines) in enumerate(zip(texts, generation.results, strict=True), start=1):
        for index, line in enumerate(lines, start=1):
            if several:
                position = f", {index} of {len(lines)}" if len(lines) > 1 else ""
                yield f"# prompt {number}{position}: {line.score:.4f} nats"
            yield (text if continues else "") + (line.text or "")


def _document(texts: list[str], generation: Generation) -> dict[str, Any]:
    return {
        "cache_bytes": generation.cache_bytes,
        "prompts": [
            {"prompt": text, "ids": list(ids), "written": [_written(line) for line in lines]}
            for text, ids, lines in zip(texts, generation.prompts, generation.results, strict=True)
        ],
    }


def _written(line: GeneratedText) -> dict[str, Any]:
    return {"text": line.text, "ids": list(line.ids), "score": line.score, "ended": line.ended}
