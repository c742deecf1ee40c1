"""What makes text of ids, kept beside the weights: so that what was trained can be asked without its corpus."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from paribus.assembly.components import Classes, make
from paribus.errors import Problem, StoreError
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.storage.atomic import FILES, Files, damaged_error, digest, read_json, write_json
from paribus.storage.saved_model import TEXT, SavedModel
from paribus.train.token_store import EncodedCorpus


@final
@dataclass(frozen=True)
class TextCodec:
    """A trained tokenizer, and what its corpus calls languages and classes, by their numbers, where it tells any apart.

    In a text that is read, a token that is none of the text's stands as it is shown: `<mask>`, `<sentinel 0>`.
    """

    tokenizer: Tokenizer
    languages: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, encoded: EncodedCorpus) -> TextCodec:
        return cls(encoded.tokenizer, encoded.languages, encoded.classes)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary()

    @property
    def fingerprint(self) -> str:
        return digest(self.tokenizer.state())

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without specials around them."""
        return self.tokenizer.encode_batch([text])[0]

    def read(self, text: str) -> list[int]:
        """The ids of a text in which specials may stand by their names."""
        named = self.named
        pieces = re.split("(" + "|".join(map(re.escape, named)) + ")", text) if named else [text]
        ids = iter(self.tokenizer.encode_batch([piece for piece in pieces if piece not in named]))
        return [token for piece in pieces for token in ([named[piece]] if piece in named else next(ids))]

    @property
    def named(self) -> dict[str, int]:
        """How each special is shown, and its id; one that is shown as nothing cannot be read."""
        vocabulary = self.vocabulary
        shown = {
            self.tokenizer.decode([token]): token for token in (*vocabulary.specials.values(), *vocabulary.sentinels)
        }
        return {name: token for name, token in shown.items() if name.strip()}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; specials are shown by name in angle brackets."""
        return self.tokenizer.decode(ids)


def write_text(folder: Path, text: TextCodec | None, *, files: Files = FILES) -> None:
    """Puts it beside the weights of a model: data, sealed with its hash. What another model left there goes."""
    if text is None:
        with suppress(FileNotFoundError):
            files.unlink(folder / TEXT)
        return
    state = base64.b64encode(text.tokenizer.state()).decode()
    document = {"tokenizer": state, "languages": list(text.languages), "classes": list(text.classes)}
    write_json(folder / TEXT, document, files=files)


def read_text(found: SavedModel, spec: Mapping[str, Any], classes: Classes) -> TextCodec | None:
    """What stands beside the weights of a saved model, held against what these were trained with; None where nothing
    does."""
    read = _read(found)
    if read is None:
        return None
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    tokenizer.load(read[0])
    return TextCodec(tokenizer, read[1], read[2])


def saved_tokenizer_state(found: SavedModel) -> bytes | None:
    """What the tokenizer of a saved model has learned, where that stands beside its weights."""
    read = _read(found)
    return None if read is None else read[0]


def _read(found: SavedModel) -> tuple[bytes, tuple[str, ...], tuple[str, ...]] | None:
    path = found.folder / TEXT
    if not path.is_file():
        return None
    document = read_json(path)
    try:
        state = base64.b64decode(document["tokenizer"], validate=True)
        languages, named = (tuple(str(each) for each in document[key]) for key in ("languages", "classes"))
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise damaged_error(path, f"it does not hold a tokenizer: {error}") from error
    if digest(state) != found.tokenizer:
        message = "the tokenizer in it is not the one that the weights beside it were trained with"
        raise StoreError(
            Problem(code="other-tokenizer", location=str(path), message=message, valid="the file of this model")
        )
    return state, languages, named
