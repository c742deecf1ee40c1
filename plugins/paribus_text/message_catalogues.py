"""Translation pairs from message catalogues of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, CorpusTraits, DataError, Document, Problem, Range, Split, join_names
from paribus_text.catalogues import CatalogueError, Message, installed_catalogues, matching_catalogues, messages
from paribus_text.holdout import digest, hold_out, text_hash
from paribus_text.preview import preview
from paribus_text.problems import raise_problems


class _Scan(NamedTuple):
    """Result of reading all catalogues once."""

    pairs: tuple[Message, ...]
    held_out: frozenset[str]  # hashes of the held-out messages
    fingerprint: str
    dropped: Mapping[str, int]


@final
class MessageCatalogues(Corpus):
    """Messages of programs and their translations, from the machine's own catalogues (`*.mo`) or from `.mo` and `.po`
    files.

    These are the sources of GNOME, KDE and Ubuntu in OPUS ("Parallel Data, Tools and Interfaces in OPUS", Tiedemann
    2012). A message counts once per language, from the first catalogue by path, in its first plural form. Messages are
    held out by their hash, in every language and every catalogue.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs"]}

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...] | None, "patterns of .mo and .po files; null: those of the machine"] = None,
        languages: Annotated[tuple[str, ...] | None, "language codes, such as de or pt_BR; null: all"] = ("de",),
        source: Annotated[str, "language of the messages"] = "en",
        held_out: Annotated[float, "share held out for validation", Range(above=0, high=0.5)] = 0.1,
    ) -> None:
        self._path = path
        self._languages = languages
        self._source = source
        self._share = held_out
        self._cache: _Scan | None = None

    def documents(self, split: Split) -> Iterator[Document]:
        scan = self._scan()
        for pair in scan.pairs:
            if (_message_hash(pair) in scan.held_out) == (split == "val"):
                text, translation = (pair.message,), (pair.translation,)
                yield Document(pair.name, text, translation, self._source, target_language=pair.language)

    def fingerprint(self) -> str:
        self._cache = None  # the files may have changed
        return self._scan().fingerprint

    def quick_fingerprint(self) -> str | None:
        files = installed_catalogues() if self._path is None else matching_catalogues(self._path, [])
        return preview([self._path, self._languages, self._source, self._share, str(Path.cwd())], files)

    def skipped_inputs(self) -> dict[str, int]:
        return dict(self._scan().dropped)

    def _scan(self) -> _Scan:
        if self._cache is None:
            problems: list[Problem] = []
            files = self._files(problems)
            dropped: Counter[str] = Counter()
            pairs = tuple(self._pairs(files, dropped, problems))
            raise_problems(problems)
            sizes = Counter({_message_hash(pair): len(pair.message) for pair in pairs})
            if len(sizes) < 2:
                raise _too_few(len(sizes), self._languages, dropped)
            parts = [part for pair in pairs for part in (pair.language, pair.message, pair.translation)]
            held_out = hold_out(sizes, self._share)
            fingerprint = digest([self._source, *parts, "validation", *sorted(held_out)])
            self._cache = _Scan(pairs, held_out, fingerprint, +dropped)
        return self._cache

    def _files(self, problems: list[Problem]) -> list[Path]:
        """Return the catalogues to read; of the machine's, only those of the requested languages."""
        if self._path is not None:
            return matching_catalogues(self._path, problems)
        files = installed_catalogues()
        if not files:
            raise _no_catalogues()
        available = sorted({file.parent.parent.name for file in files} - {self._source})
        unknown = [language for language in self._languages or () if language not in available]
        if unknown:
            message = f"no installed catalogue for {join_names(unknown)}"
            valid = join_names(available, 40)
            raise DataError(Problem(code="missing-language", path="corpus.languages", message=message, valid=valid))
        requested = self._languages or available
        return [file for file in files if file.parent.parent.name in requested]

    def _pairs(self, files: list[Path], dropped: Counter[str], problems: list[Problem]) -> Iterator[Message]:
        seen_keys: set[tuple[str, str]] = set()
        for file in files:
            try:
                pairs = list(messages(file))
            except CatalogueError as error:
                if self._path is None:  # users cannot repair the catalogues of the machine
                    dropped["catalogues that are broken"] += 1
                else:
                    problems.append(
                        Problem(code=error.code, path="corpus.path", location=error.location, message=error.message)
                    )
                continue
            for pair in pairs:
                reason = self._drop_reason(pair)
                if not reason and (pair.message, pair.language) in seen_keys:
                    reason = "messages that another catalogue has in the same language"
                if reason:
                    dropped[reason] += 1
                    continue
                seen_keys.add((pair.message, pair.language))
                yield pair

    def _drop_reason(self, pair: Message) -> str:
        """Return the reason to drop a message, or an empty text."""
        if not pair.message or not pair.translation:
            return "messages without a translation"
        if pair.is_fuzzy:
            return "translations marked as fuzzy"
        if pair.message == pair.translation:
            return "translations equal to the message"
        if not pair.language or pair.language == self._source:
            return "messages of a catalogue in the source language"
        if self._languages is not None and pair.language not in self._languages:
            return "messages in languages that are not requested"
        return ""


def _no_catalogues() -> DataError:
    message = "no message catalogues are installed (share/locale/*/LC_MESSAGES/*.mo)"
    valid = "`path` with .mo or .po files; or an installed program with translations, such as Debian's iso-codes"
    return DataError(Problem(code="missing-catalogues", path="corpus.path", message=message, valid=valid))


def _too_few(count: int, languages: tuple[str, ...] | None, dropped: Mapping[str, int]) -> DataError:
    reasons = "; ".join(f"{number:,} {reason}" for reason, number in dropped.items() if number)
    selection = f" in {join_names(languages)}" if languages is not None else ""
    message = f"expected 2 or more distinct messages with a translation{selection}, got {count}"
    message += f" (dropped: {reasons})" if reasons else ""
    valid = "catalogues with two or more messages, one of which is held out; `languages: null` for all languages"
    return DataError(Problem(code="no-documents", path="corpus.path", message=message, valid=valid))


def _message_hash(pair: Message) -> str:
    """Return a hash that messages share if they differ in case and spaces only, such as "Save" and "save"."""
    return text_hash(" ".join(pair.message.casefold().split()))
