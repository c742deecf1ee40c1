"""Trained tokenizer, saved beside the weights, so that a model can be used without its corpus."""

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
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import Problem, StoreError
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.storage.atomic import FILES, Files, damaged_error, digest, read_json, write_bytes, write_json
from paribus.storage.saved_model import TEXT, TOKENIZER, SavedModel, with_tokenizer_path


@final
@dataclass(frozen=True)
class TextCodec:
    """Trained tokenizer with the names of languages and classes.

    Special tokens are read and shown by name: `<mask>`, `<sentinel 0>`.
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
        """Return the ids of a text, without special tokens around them."""
        return self.tokenizer.encode_batch([text])[0]

    def read(self, text: str) -> list[int]:
        """Return the ids of a text that may contain names of special tokens."""
        named = self.named
        pieces = re.split("(" + "|".join(map(re.escape, named)) + ")", text) if named else [text]
        ids = iter(self.tokenizer.encode_batch([piece for piece in pieces if piece not in named]))
        return [token for piece in pieces for token in ([named[piece]] if piece in named else next(ids))]

    @property
    def named(self) -> dict[str, int]:
        """Ids of special tokens by name; a token without a visible name is left out."""
        vocabulary = self.vocabulary
        names = {
            self.tokenizer.decode([token]): token for token in (*vocabulary.specials.values(), *vocabulary.sentinels)
        }
        return {name: token for name, token in names.items() if name.strip()}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with special tokens by name in angle brackets."""
        return self.tokenizer.decode(ids)


def write_text(folder: Path, text: TextCodec | None, *, files: Files = FILES) -> None:
    """Write the tokenizer beside the weights of a model, or remove that of an earlier model."""
    if text is None:
        with suppress(FileNotFoundError):
            files.unlink(folder / TEXT)
        return
    state = base64.b64encode(text.tokenizer.state()).decode()
    document = {"tokenizer": state, "languages": list(text.languages), "classes": list(text.classes)}
    write_json(folder / TEXT, document, files=files)


def write_tokenizer_json(
    folder: Path, spec: Mapping[str, Any], text: TextCodec | None, *, files: Files = FILES
) -> Mapping[str, Any]:
    """Write the file of a tokenizer that has one beside the weights; return the spec with its path in the folder."""
    content = None if text is None else text.tokenizer.tokenizer_json()
    if content is None or "path" not in spec["tokenizer"]:
        return spec
    write_bytes(folder / TOKENIZER, content.encode(), files=files)
    return with_tokenizer_path(spec, TOKENIZER)


def read_text(saved_model: SavedModel, spec: Mapping[str, Any], classes: Classes) -> TextCodec | None:
    """Return the tokenizer beside the weights of a saved model, if it has the right fingerprint; None without one."""
    saved_text = _read(saved_model)
    if saved_text is None:
        return None
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    tokenizer.load(saved_text[0])
    return TextCodec(tokenizer, saved_text[1], saved_text[2])


def saved_tokenizer_state(saved_model: SavedModel) -> bytes | None:
    """Return the state of the tokenizer of a saved model, if it is saved beside the weights."""
    saved_text = _read(saved_model)
    return None if saved_text is None else saved_text[0]


def _read(saved_model: SavedModel) -> tuple[bytes, tuple[str, ...], tuple[str, ...]] | None:
    path = saved_model.folder / TEXT
    if not path.is_file():
        return None
    document = read_json(path)
    try:
        state = base64.b64decode(document["tokenizer"], validate=True)
        languages, classes = (tuple(str(name) for name in document[key]) for key in ("languages", "classes"))
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise damaged_error(path, f"it does not hold a tokenizer: {error}") from error
    if digest(state) != saved_model.tokenizer:
        message = "the tokenizer in it is not the one that the weights beside it were trained with"
        raise StoreError(
            Problem(code="other-tokenizer", location=str(path), message=message, valid="the file of this model")
        )
    return state, languages, classes
