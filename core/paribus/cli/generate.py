"""`paribus generate`: what a trained model writes behind a prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli._inference import asked, given
from paribus.cli.console import STORE, Session, note, out, out_json
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.generate import GeneratedText, Generation
    from paribus.train.model import Model


@click.command("generate")
@click.argument("model")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--file", type=click.Path(path_type=Path), help="Prompts, a line each; without any, stdin is read.")
@click.option("--tokens", type=int, help="At most so many are written; else until the model's length is full.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the most probable token.")
@click.option("--top-k", type=int, help="Draw from the so many most probable tokens.")
@click.option("--top-p", type=float, help="Draw from the fewest that are as probable as this together.")
@click.option("--min-p", type=float, help="Draw from those at least this probable, as a share of the most probable.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="CTRL: 1.2.")
@click.option("--beam", type=int, default=1, show_default=True, help="Hypotheses that go on side by side.")
@click.option("--length-penalty", type=float, default=0.0, show_default=True, help="Of a beam: Wu et al. 2016, 0.6.")
@click.option("-n", "n", type=int, default=1, show_default=True, help="Texts for each prompt.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--language", help="The language to be written, where the corpus tells any apart.")
@click.option("--source-language", help="The language of the prompt, where a model reads it as a source.")
@click.option("--label", help="The class that a text is to be of, by name or number, for a model that was told any.")
@click.option("--batch", type=int, default=32, show_default=True, help="Prompts that are read at once.")
@click.option("--no-cache", is_flag=True, help="Read all rows anew for each token.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Texts, ids and scores.")
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
    **manner: Any,
) -> int:
    """Write what follows each PROMPT, or what belongs to it.

    `paribus generate 1f3a9c "The import statement" --temperature 0.8 --top-p 0.9 -n 3`

    MODEL is a trial, by its folder or identity as `status` shows it, or a folder that `train --save` wrote. Of a model
    that goes on from its prompt, the prompt is shown as well. A special token is written as it is shown: `<mask>`.
    """
    texts = given(prompts, file, "PROMPT")
    found = asked(session, model, store)
    began = time.perf_counter()
    generation = _generated(session, found, texts, cache=not no_cache, **manner)
    seconds = time.perf_counter() - began
    count = sum(len(line.ids) for lines in generation.results for line in lines)
    if as_json:
        out_json(_document(texts, generation))
    else:
        for text in _lines(texts, generation, goes_on=_goes_on(found)):
            out(text)
    kept = f"; the cache took {generation.cache_bytes:,} bytes" if generation.cache_bytes else ""
    note(f"{count:,} tokens in {seconds:.1f} s{kept}")
    return EXIT_OK


def _generated(session: Session, model: Model, texts: list[str], **said: Any) -> Generation:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    import paribus

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("tokens", total=None)
        said["tell"] = lambda done, most: bar.update(task, completed=done, total=most)
        return paribus.generate(model, texts, registry=session.registry(), **said)


def _goes_on(model: Model) -> bool:
    """Whether what is written goes on from the prompt, and does not answer it."""
    return all(part.cross is None for part in model.topology.parts)


def _lines(texts: list[str], generation: Generation, *, goes_on: bool) -> Iterator[str]:
    several = len(texts) > 1 or any(len(lines) > 1 for lines in generation.results)
    for number, (text, lines) in enumerate(zip(texts, generation.results, strict=True), start=1):
        for place, line in enumerate(lines, start=1):
            if several:
                of = f", {place} of {len(lines)}" if len(lines) > 1 else ""
                yield f"# prompt {number}{of}: {line.score:.4f} nats"
            yield (text if goes_on else "") + (line.text or "")


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
