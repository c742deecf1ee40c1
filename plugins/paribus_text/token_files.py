"""Corpus of files with token ids, which are memory-mapped: `.bin`, `.npy` and folders of `save_to_disk`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, final

from paribus import (
    Corpus,
    CorpusTraits,
    DataError,
    Document,
    Example,
    Problem,
    Split,
    TokenShard,
    TokenShards,
    join_names,
)
from paribus_text.preview import preview
from paribus_text.problems import raise_problems
from paribus_text.text_files import FileSet
from paribus_text.token_arrays import KINDS, STATE, array_shard, arrow_files, file_digest, rows_digest, saved_rows

SPLITS: Final[tuple[Split, ...]] = ("train", "val")


class _Files(NamedTuple):
    """Sorted files and folders of each split, and the number of skipped ones by reason."""

    paths: Mapping[Split, list[Path]]
    dropped: Counter[str]


@final
class TokenFiles(Corpus):
    """Token ids that another program wrote: `.bin` of nanoGPT, llm.c and modded-nanogpt, `.npy`, and folders that
    `save_to_disk` of Hugging Face's `datasets` wrote (extra `parquet`).

    The ids are read from these files, without a copy. The tokenizer has to be the one that made them: `file`, or `ids`
    if only its size is known. Ids are used as they are: no token is added at the end of a document. Shards follow each
    other in the order of their paths.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents"], "modality": "ids"}

    def __init__(
        self,
        *,
        path: Annotated[
            tuple[str, ...], "folders, and patterns of .bin and .npy files", Example(("tokens/train*.bin",))
        ],
        validation: Annotated[tuple[str, ...], "those of the validation split", Example(("tokens/val*.bin",))],
        documents: Annotated[
            Literal["end", "start", "whole"],
            "end: a document ends with the end token (nanoGPT); start: it starts with that or with bos (llm.c); whole: "
            "it is a file, or a row of a folder",
        ] = "end",
        dtype: Annotated[Literal["uint16", "uint32"], "of ids in a .bin file without a header"] = "uint16",
        column: Annotated[str, "column of the ids in a folder of save_to_disk"] = "input_ids",
    ) -> None:
        self._patterns: dict[Split, tuple[str, ...]] = {"train": path, "val": validation}
        self._bounds: Literal["end", "start", "whole"] = documents
        self._dtype = dtype
        self._column = column

    def token_shards(self, split: Split) -> TokenShards:
        return TokenShards([shard for path in self._files().paths[split] for shard in self._shards(path)], self._bounds)

    def documents(self, split: Split) -> Iterator[Document]:
        for shard in self.token_shards(split).shards:
            rows = [0, len(shard.ids)] if shard.rows is None else shard.rows.tolist()
            for number, (start, stop) in enumerate(pairwise(rows)):
                if stop > start:
                    yield Document(f"{shard.name}, row {number:,}", (" ".join(map(str, shard.ids[start:stop])),))

    def fingerprint(self) -> str:
        total = hashlib.sha256(f"{self._bounds} {self._dtype}".encode())
        for split, paths in self._files().paths.items():
            for path in paths:
                digest = rows_digest(path, self._column) if path.is_dir() else file_digest(path)
                total.update(f"{split} {digest}".encode())
        return total.hexdigest()

    def quick_fingerprint(self) -> str | None:
        options = [self._patterns, self._bounds, self._dtype, self._column, str(Path.cwd())]
        paths = chain.from_iterable(self._files().paths.values())
        return preview(options, chain.from_iterable(arrow_files(path) if path.is_dir() else [path] for path in paths))

    def skipped_inputs(self) -> dict[str, int]:
        return {reason: count for reason, count in self._files().dropped.items() if count}

    def _shards(self, path: Path) -> Iterable[TokenShard]:
        return saved_rows(path, self._column) if path.is_dir() else [array_shard(path, self._dtype)]

    def _files(self) -> _Files:
        dropped: Counter[str] = Counter()
        train, val = (self._paths(split, dropped) for split in SPLITS)
        shared = sorted({*train} & {*val})
        if shared:
            message = "the training split has the same ids"
            valid = "other files than those of corpus.path"
            raise DataError(
                Problem(code="overlap", path="corpus.validation", location=str(shared[0]), message=message, valid=valid)
            )
        return _Files({"train": train, "val": val}, dropped)

    def _paths(self, split: Split, dropped: Counter[str]) -> list[Path]:
        """Return the sorted files and folders of a split."""
        option = "corpus.path" if split == "train" else "corpus.validation"
        matches: set[Path] = set()
        for pattern in self._patterns[split]:
            folder = Path(pattern)
            if (folder / "dataset_dict.json").is_file():
                splits = sorted(str(state.parent) for state in folder.glob("*/state.json"))
                message, valid = "the folder has several splits", f"one of them: {join_names(splits)}"
                raise DataError(
                    Problem(code="missing-dataset", path=option, location=pattern, message=message, valid=valid)
                )
            if (folder / STATE).is_file():
                matches.add(folder)
                continue
            files = FileSet(option, [pattern], KINDS, [], dropped)
            matches.update(files.paths())
            raise_problems(files.problems)
        return sorted(matches)
