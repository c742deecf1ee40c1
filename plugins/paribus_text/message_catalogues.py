"""Messages of programs, and their translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, DataError, Document, Problem, Range, Split, Traits, join_names
from paribus_text.catalogues import Found, Wrong, machine, matching, messages
from paribus_text.glancing import glance
from paribus_text.holding import digest, hashed, hold_out
from paribus_text.telling import check


class _Scan(NamedTuple):
    """What one reading of all the catalogues found."""

    pairs: tuple[Found, ...]
    held: frozenset[str]  # hashes of the messages that are held out
    fingerprint: str
    dropped: Mapping[str, int]


@final
class MessageCatalogues(Corpus):
    """Messages in the language that programs are written in, and in others: the machine's own catalogues (`*.mo`), or
    `.mo` and `.po` files of the user's.

    What OPUS has as GNOME, KDE and Ubuntu ("Parallel Data, Tools and Interfaces in OPUS", Tiedemann 2012). A message
    counts once for each language, as the first catalogue by its path has it, and of its plural forms the first. What is
    held out is chosen by a hash of the message: it is held out in every language, wherever it comes from.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs"]}

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...] | None, "patterns of .mo and .po files; null: those of the machine"] = None,
        languages: Annotated[tuple[str, ...] | None, "codes of languages, such as de or pt_BR; null: all"] = ("de",),
        source: Annotated[str, "the language that messages are in"] = "en",
        held_out: Annotated[float, "share held out", Range(above=0, high=0.5)] = 0.1,
    ) -> None:
        self._path = path
        self._languages = languages
        self._source = source
        self._share = held_out
        self._scanned: _Scan | None = None

    def documents(self, split: Split) -> Iterator[Document]:
        scan = self._scan()
        for found in scan.pairs:
            if (hashed(found.message) in scan.held) == (split == "val"):
                text, other = (found.message,), (found.translation,)
                yield Document(found.name, text, other, self._source, target_language=found.language)

    def fingerprint(self) -> str:
        self._scanned = None  # always of what the files hold now
        return self._scan().fingerprint

    def quick_fingerprint(self) -> str | None:
        files = machine() if self._path is None else matching(self._path, [])
        return glance([self._path, self._languages, self._source, self._share, str(Path.cwd())], files)

    def skipped_inputs(self) -> dict[str, int]:
        return dict(self._scan().dropped)

    def _scan(self) -> _Scan:
        if self._scanned is None:
            problems: list[Problem] = []
            files = self._files(problems)
            dropped: Counter[str] = Counter()
            pairs = tuple(self._kept(files, dropped, problems))
            check(problems)
            sizes = Counter({hashed(found.message): len(found.message) for found in pairs})
            if len(sizes) < 2:
                raise _too_few(len(sizes), self._languages, dropped)
            said = [part for found in pairs for part in (found.language, found.message, found.translation)]
            self._scanned = _Scan(pairs, hold_out(sizes, self._share), digest([self._source, *said]), +dropped)
        return self._scanned

    def _files(self, problems: list[Problem]) -> list[Path]:
        """The catalogues to be read, of languages that are asked for where a path says which it is of."""
        if self._path is not None:
            return matching(self._path, problems)
        files = machine()
        if not files:
            raise _none_here()
        there = sorted({file.parent.parent.name for file in files} - {self._source})
        unknown = [language for language in self._languages or () if language not in there]
        if unknown:
            what = f"this machine has no catalogue in {join_names(unknown)}"
            problem = Problem(code="no-language", path="corpus.languages", message=what, valid=join_names(there, 40))
            raise DataError(problem)
        wanted = self._languages or there
        return [file for file in files if file.parent.parent.name in wanted]

    def _kept(self, files: list[Path], dropped: Counter[str], problems: list[Problem]) -> Iterator[Found]:
        seen: set[tuple[str, str]] = set()
        for file in files:
            try:
                read = list(messages(file))
            except Wrong as wrong:
                if self._path is None:  # nobody who reads a machine's catalogues can mend them
                    dropped["catalogues that are broken"] += 1
                else:
                    problems.append(
                        Problem(code=wrong.code, path="corpus.path", location=wrong.where, message=wrong.what)
                    )
                continue
            for found in read:
                why = self._why_not(found)
                if not why and (found.message, found.language) in seen:
                    why = "messages that another catalogue has in the same language"
                if why:
                    dropped[why] += 1
                    continue
                seen.add((found.message, found.language))
                yield found

    def _why_not(self, found: Found) -> str:
        """Why a message is no pair, if it is none."""
        if not found.message or not found.translation:
            return "messages without a translation"
        if found.uncertain:
            return "translations that are marked as uncertain"
        if found.message == found.translation:
            return "translations that are the message itself"
        if not found.language or found.language == self._source:
            return "messages of a catalogue that is in no other language"
        if self._languages is not None and found.language not in self._languages:
            return "messages in languages that are not asked for"
        return ""


def _none_here() -> DataError:
    what = "this machine has no message catalogues (share/locale/*/LC_MESSAGES/*.mo)"
    valid = (
        "`path` with .mo or .po files of yours; or an installed program that is translated, such as Debian's iso-codes"
    )
    return DataError(Problem(code="no-catalogues", path="corpus.path", message=what, valid=valid))


def _too_few(count: int, languages: tuple[str, ...] | None, dropped: Mapping[str, int]) -> DataError:
    left_out = "; ".join(f"{number:,} {reason}" for reason, number in dropped.items() if number)
    asked = f" in {join_names(languages)}" if languages is not None else ""
    what = f"there are {count} different messages with a translation{asked}"
    what += f" (left out: {left_out})" if left_out else ""
    valid = "catalogues with at least two, one of them to be held out; `languages: null` for all languages"
    return DataError(Problem(code="no-documents", path="corpus.path", message=what, valid=valid))
