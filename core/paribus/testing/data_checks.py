"""Check of the round trip of tokenizers, and files with synthetic documents."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

import numpy as np

from paribus.assembly.components import make
from paribus.datamodule.synthetic_corpus import SyntheticCorpus, corpus_for_tokenizer
from paribus.errors import DataError
from paribus.random_keys import key32
from paribus.slots.tokenizer import Tokenizer
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict

MAX_DOCUMENTS: Final = 20  # documents that a check reads of a corpus


def write_files(folder: Path, pattern: str, fields: Collection[str]) -> None:
    """Write synthetic documents as files that match a pattern, such as `corpus/**/*.txt`.

    Rows of a table have their text in each of `fields`. Of `.bin` there are two files of ids, different for each
    pattern.
    """
    path = folder / pattern.replace("**/", "").replace("*", "0")
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [document.text for document in SyntheticCorpus().documents("train")]
    rows = [dict.fromkeys(fields, text) for text in texts]
    if path.suffix == ".bin":
        for number in range(2):
            ids = [key32(pattern, number, index) % 200 for index in range(500 + number)]
            np.array(ids, "<u2").tofile(path.with_stem(f"{path.stem}{number}"))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(fields), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        for number, text in enumerate(texts):
            path.with_stem(str(number)).write_text(f"{text}\n", encoding="utf-8")


def tokenization(case: Case, host: HostModel) -> Verdict:
    """Encoded text has valid ids and decodes to itself, also after the tokenizer was saved and loaded."""
    corpus = corpus_for_tokenizer(host.spec, case.registry, _tokenizer(case, host))
    texts = [document.text for document in itertools.islice(corpus.documents("train"), MAX_DOCUMENTS)]
    tokenizer, restored = (_tokenizer(case, host) for _ in range(2))
    try:
        tokenizer.train(iter(texts), None)
    except DataError:  # the tokenizer reads a file that its example options do not have
        return DOES_NOT_APPLY
    restored.load(tokenizer.state())
    vocabulary = tokenizer.vocabulary()
    special = vocabulary.reserved - {vocabulary.specials.get("unk")}
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        invalid = [token for token in ids if not 0 <= token < vocabulary.size or token in special]
        if invalid:
            return (
                f"{text!r} is encoded with the id {invalid[0]}; expected an id of text, below the vocabulary size "
                f"{vocabulary.size}, and no special token"
            )
        if restored.encode_batch([text]) != [ids] or restored.vocabulary() != vocabulary:
            return (
                f"{text!r} has other ids after `load(state())`. Usual cause: `state` does not contain all that `train` "
                "learns"
            )
        if _comparable_text(tokenizer.decode(ids)) != _comparable_text(text):
            return f"{text!r} is decoded as {tokenizer.decode(ids)!r}; expected the same text, case and spaces aside"
    return HOLDS


def _tokenizer(case: Case, host: HostModel) -> Tokenizer:
    return make(case.registry, "tokenizer", host.spec["tokenizer"], kind=Tokenizer)


def _comparable_text(text: str) -> str:
    """Return the text without case and whitespace, which a tokenizer may drop."""
    return "".join(text.lower().split())
