"""`paribus predict`: the class, tags, number, answer or choice that a trained model predicts for new texts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from paribus.cli._example_file import read_examples
from paribus.cli.console import Session, load_named_model, note, out, read_texts, store_option, table
from paribus.errors import EXIT_OK, DataError, Problem, join_names

if TYPE_CHECKING:
    from paribus import Pixels
    from paribus.inference.predict import TextPrediction

COLUMNS: Final = "text,pair"
CHOICES: Final = "choices"  # key of a list in JSON lines
TOP: Final = 5  # classes that are printed for a single text
WIDTH: Final = 60  # characters of a text in a table


@click.command("predict")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--pair", help="Second text of the only TEXT; of a question, the context with the answer.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="File with one text a line, or a .jsonl file with an object a line; default: lines on stdin.",
)
@click.option(
    "--columns",
    metavar="TEXT[,PAIR]",
    help=f"Keys of the text and of its second text in JSON lines, also on stdin; default: {COLUMNS}.",
)
@click.option(
    "--choice",
    "choices",
    multiple=True,
    help="Continuation to choose, or label of a language model; repeatable. JSON lines may have a list `choices`.",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    help="For a language model: .csv, .tsv or .jsonl file with `text`, `label` and, of pairs, `pair`, for the prompt.",
)
@click.option("--template", help="For a language model: format of an example; default: {text} : {label}.")
@click.option(
    "--normalize",
    type=click.Choice(["none", "tokens", "bytes"]),
    default="none",
    help="For a language model: divide the log-likelihood of a label by its number of tokens or bytes.",
)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    help="For a model of images: .npy file of pixels from 0 to 255, (images, height, width) or with channels last.",
)
@click.option("--objective", help="Objective whose prediction is asked for; default: the first that has one.")
@click.option(
    "--split",
    type=click.Choice(["words", "spaces"]),
    default="words",
    help="Divide a text that is tagged, or has the answer, into words and punctuation marks, or at spaces only.",
)
@click.option("--batch", type=int, default=32, show_default=True, help="Number of texts of a forward pass.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each text, one a line.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    texts: tuple[str, ...],
    pair: str | None,
    file: Path | None,
    columns: str | None,
    examples: Path | None,
    images: Path | None,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict the labels of texts by a trained head.

    `paribus predict 1f3a9c "The film was a delight."`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`. It
    predicts what it was trained for: a class, a tag for each word, a number, the answer to a question, or the best of
    several choices. A language model reads --examples in its prompt, and predicts the label that it finds most likely.
    """
    import paribus

    if images is not None and (texts or file is not None):
        raise click.UsageError("--images replaces TEXT and --file")
    inputs = _inputs(texts, pair, file, columns) if images is None else Inputs(_read_images(images))
    options["choices"] = _one_of(inputs.choices, options["choices"] or None)
    options["examples"] = None if examples is None else read_examples(examples)
    loaded = load_named_model(session, model, store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        predictions = paribus.predict(loaded, inputs.texts, inputs.pairs, registry=session.registry(), **options)
    for warning in caught:
        note(f"! {warning.message}")
    if as_json:
        for prediction in predictions:
            out(json.dumps(prediction.to_json(), ensure_ascii=False))
        return EXIT_OK
    for line in _lines(predictions):
        out(line)
    return EXIT_OK


class Inputs(NamedTuple):
    """Texts, with the second text and the choices of each if there are any."""

    texts: list[str] | list[Pixels]
    pairs: list[str] | None = None
    choices: list[list[str]] | None = None


def _read_images(path: Path) -> list[Pixels]:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _no_images(path, f"it cannot be read: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim not in (3, 4) or not len(array):
        raise _no_images(path, f"it has an array of the shape {getattr(array, 'shape', '(none)')}")
    return list(array)


def _no_images(path: Path, message: str) -> DataError:
    valid = "a .npy file with an array (images, height, width) or (images, height, width, channels)"
    return DataError(Problem(code="not-an-image", location=str(path), message=message, valid=valid))


def _one_of(listed: list[list[str]] | None, given: Sequence[str] | None) -> Sequence[str] | list[list[str]] | None:
    if listed is not None and given is not None:
        raise click.UsageError("--choice is for texts whose JSON lines have no `choices`")
    return listed if given is None else given


def _inputs(words: Sequence[str], pair: str | None, file: Path | None, columns: str | None) -> Inputs:
    """Return the texts of arguments, lines or JSON lines."""
    rows = read_texts(words, file, "TEXT")
    if columns is None and (words or file is None or file.suffix != ".jsonl"):
        if not words:
            _check_lines(rows, file)
        if pair is not None and len(rows) != 1:
            raise click.UsageError(f"--pair is the second text of one TEXT, got {len(rows)}")
        return Inputs(rows, None if pair is None else [pair])
    if words or pair is not None:
        raise click.UsageError("--columns is for JSON lines of --file or stdin, without TEXT and --pair")
    names = (columns or COLUMNS).split(",")
    if len(names) > 2 or not all(names):
        raise click.UsageError(f"--columns is one name or two with a comma between them, got {columns}")
    location = "stdin" if file is None else str(file)
    documents = [_document(row, number, location) for number, row in enumerate(rows, start=1)]
    items = [_texts(document, number, names, location) for number, document in enumerate(documents, start=1)]
    has_pairs = (columns is None and any(len(item) > 1 for item in items)) or (len(names) > 1 and columns is not None)
    short = [number for number, item in enumerate(items, start=1) if has_pairs and len(item) < 2]
    if short:
        raise _invalid(location, short[0], f"it has no `{names[1]}`", f"a text under `{names[1]}` in each line")
    pairs = [item[1] for item in items] if has_pairs else None
    return Inputs([item[0] for item in items], pairs, _listed_choices(documents, location))


def _listed_choices(documents: Sequence[Mapping[str, Any]], location: str) -> list[list[str]] | None:
    """Return the choices of each text, if JSON lines have them."""
    if not any(CHOICES in document for document in documents):
        return None
    for number, document in enumerate(documents, start=1):
        choices = document.get(CHOICES)
        if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
            raise _invalid(location, number, f"its `{CHOICES}` is no list of texts", f'"{CHOICES}": ["…", "…"]')
    return [document[CHOICES] for document in documents]


def _check_lines(rows: Sequence[str], file: Path | None) -> None:
    """Reject a table, and JSON objects, whose lines are no texts."""
    if file is not None and file.suffix in (".csv", ".tsv"):
        valid = "a file with one text a line, or a .jsonl file"
        raise DataError(Problem(code="invalid-line", location=str(file), message="tables are not read", valid=valid))
    if all(row.lstrip().startswith("{") and row.rstrip().endswith("}") for row in rows):
        place = "stdin" if file is None else str(file)
        message, valid = "its lines are JSON objects, not texts", "--columns with the key of the text"
        raise DataError(Problem(code="invalid-line", location=place, message=message, valid=valid))


def _document(row: str, number: int, location: str) -> dict[str, Any]:
    try:
        document = json.loads(row)
    except json.JSONDecodeError as error:
        raise _invalid(location, number, f"it is not JSON: {error.msg}", "a JSON object in each line") from error
    if not isinstance(document, dict):
        raise _invalid(location, number, "it is no JSON object", '{"text": "…"}')
    return document


def _texts(document: Mapping[str, Any], number: int, names: Sequence[str], location: str) -> list[str]:
    """Return the texts of a JSON object, as far as it has them."""
    if names[0] not in document:
        valid = f"--columns with one of {join_names(document) or 'its keys'}"
        raise _invalid(location, number, f"it has no `{names[0]}`", valid)
    item = [document[name] for name in names if document.get(name) is not None]
    wrong = [name for name in names if name in document and not isinstance(document[name], str | None)]
    if wrong:
        raise _invalid(location, number, f"its `{wrong[0]}` is no text", "a text")
    return item


def _invalid(location: str, number: int, message: str, valid: str) -> DataError:
    return DataError(Problem(code="invalid-line", location=f"{location}:{number}", message=message, valid=valid))


def _lines(predictions: Sequence[TextPrediction]) -> Iterator[str]:
    """Yield the predictions as a table: of a single text its classes, otherwise a row for each text."""
    first = predictions[0]
    if first.tags is not None:
        for number, prediction in enumerate(predictions):
            if number:
                yield ""
            yield from table([[word, tag, f"{share:.4f}"] for word, tag, share in prediction.tags or ()])
    elif first.probabilities is not None and len(predictions) == 1:
        ranked = sorted(first.probabilities.items(), key=lambda item: -item[1])
        yield from table([[f"{share:.4f}", name] for name, share in ranked[:TOP]])
    else:
        yield from table([[*_cells(prediction), _short(prediction.text)] for prediction in predictions])


def _cells(prediction: TextPrediction) -> list[str]:
    if prediction.label is not None:
        return [f"{prediction.probability:.4f}", prediction.label]
    if prediction.answer is not None:
        return [f"{prediction.score:+.2f}", repr(prediction.answer) if prediction.answer else "no answer"]
    return [f"{prediction.score:.4f}"]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
